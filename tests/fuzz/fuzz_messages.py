"""Random bytes as messages: parse, guard, checks. Only DecodeError and Refused may be raised.

Run: PYTHONPATH=src:tests python tests/fuzz/fuzz_messages.py [--kind Report] [-runs=100000]
Other options are libFuzzer's; without --kind, the first byte of an input chooses the kind.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["fedhp.cluster"]):
    from fedhp.cluster.protocol import guard, limits, message_checks  # noqa: F401

from google.protobuf.message import DecodeError

from fedhp.cluster.protocol.guard import Guard, Refused
from fuzz.mutate import mutate
from net.bad_messages import BAD_MESSAGES
from net.good_messages import GOOD, SCENE, Kind, new_guard, take

MAX_GROWTH = 50 << 20  # bytes of memory
TYPES: dict[str, type[Any]] = {name: type(kind.make(SCENE)) for name, kind in GOOD.items()}
WARM_UP = 20_000  # inputs until the memory in use is taken as the baseline


class Tally:
    """How the inputs ended, and how the memory grew."""

    def __init__(self, every: int) -> None:
        self.every = every  # inputs between two reports
        self.ends: Counter[tuple[str, str]] = Counter()
        self.reasons: Counter[str] = Counter()
        self.inputs = 0
        self.baseline = 0

    def growth(self) -> int:
        """Bytes in use beyond those after the first inputs."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        used = pages * resource.getpagesize()
        if self.inputs == WARM_UP:
            self.baseline = used
        return used - self.baseline if self.baseline else 0

    def count(self, name: str, end: str) -> None:
        """One more input that ended this way; memory that grows without end is a failure."""
        self.inputs += 1
        self.ends[name, end] += 1
        if self.inputs % WARM_UP == 0 and self.growth() > MAX_GROWTH:
            raise MemoryError(f"{self.growth()} bytes more than after {WARM_UP} inputs")
        if self.inputs % self.every == 0:
            sys.stderr.write(self.report() + "\n")

    def report(self) -> str:
        """All counts as one line of JSON."""
        kinds: dict[str, dict[str, int]] = {}
        for (name, end), count in sorted(self.ends.items()):
            kinds.setdefault(name, {})[end] = count
        return json.dumps(
            {
                "inputs": self.inputs,
                "kinds": kinds,
                "reasons": dict(sorted(self.reasons.items())),
                "growth_mb": round(self.growth() / (1 << 20), 1),
            }
        )


def tester(names: list[str], tally: Tally) -> Callable[[bytes], None]:
    """The function that libFuzzer calls with every input; they all share one guard."""
    gate: Guard = new_guard()

    def test(data: bytes) -> None:
        name, body = _split(data, names)
        kind: Kind = GOOD[name]
        end = "taken"
        try:
            message = TYPES[name].FromString(body)
        except DecodeError:
            tally.count(name, "not parsed")
            return
        try:
            take(message, kind, guard=gate)
        except Refused as refused:
            end = "refused"
            tally.reasons[refused.reason] += 1
            gate.strike(SCENE.name, refused.reason)
            gate.pardon(SCENE.name)
            if refused.reason == "incarnation":  # else nothing could come after the largest one
                gate.forget(SCENE.name)
            # The envelope rarely fits: check the fields anyway.
            _fields_alone(message, kind)
        tally.count(name, end)

    return test


def mutator(names: list[str], share: float) -> Callable[[bytes, int, int], bytes]:
    """This share of the inputs is changed field by field, so that they parse; others by bytes."""

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        name, body = _split(data, names)
        if rng.random() >= share:
            return bytes(atheris.Mutate(data, most))
        try:
            message = TYPES[name].FromString(body)
        except DecodeError:
            message = GOOD[name].make(SCENE)
        mutate(message, rng)
        changed = data[: len(data) - len(body)] + bytes(message.SerializeToString())
        return changed if len(changed) <= most else bytes(atheris.Mutate(data, most))

    return change


def _split(data: bytes, names: list[str]) -> tuple[str, bytes]:
    """The kind that an input is of, and its message."""
    if len(names) == 1:
        return names[0], data
    return names[data[0] % len(names) if data else 0], data[1:]


def _fields_alone(message: Any, kind: Kind) -> None:
    try:
        kind.check(message, SCENE)
    except Refused as refused:
        message_checks.check_text(refused.text, "the text of a refusal")


def write_seeds(folder: Path, names: list[str]) -> None:
    """Write every good and every bad message as a file: the fuzzer starts from them."""
    folder.mkdir(parents=True, exist_ok=True)
    messages = [(name, GOOD[name].make(SCENE)) for name in names]
    for bad in BAD_MESSAGES:
        if bad.kind in names:
            message = GOOD[bad.kind].make(SCENE)
            bad.spoil(message, SCENE)
            messages.append((bad.kind, message))
    for index, (name, message) in enumerate(messages):
        chooser = bytes([names.index(name)]) if len(names) > 1 else b""
        body = message.SerializeToString()
        if len(body) <= limits.TEXT_LENGTH * 4:  # larger seeds make every input slow
            (folder / f"seed-{index:03}").write_bytes(chooser + body)


def main() -> None:
    """Fuzz one kind of message, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=list(GOOD), help="one kind only")
    parser.add_argument(
        "--seeds", type=Path, help="write the seeds here first, and start from them"
    )
    parser.add_argument("--every", type=int, default=100_000, help="inputs between two reports")
    parser.add_argument("--share", type=float, default=0.5, help="of inputs changed by fields")
    options, rest = parser.parse_known_args()
    names = [options.kind] if options.kind else list(GOOD)
    if options.seeds:
        write_seeds(options.seeds, names)
        rest.append(str(options.seeds))
    atheris.Setup(
        [sys.argv[0], *rest],
        tester(names, Tally(options.every)),
        custom_mutator=mutator(names, options.share),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
