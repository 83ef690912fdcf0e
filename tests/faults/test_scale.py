"""What a round costs a coordinator grows with its workers and their links, not with all pairs.

Counted, never timed: instructions of the interpreter, bytes of the committed state, bytes written.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fedhp
from faults.offline import run_offline, sparse_experiment
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.security.identity import load_identity
from fedhp.record.store import Store
from net.identities import make_certificates

FEW, MANY = 100, 300
ROUNDS = 4  # the last one is counted: by then the state holds all that it ever holds
LINEAR = 1.15  # how much more than in proportion: logarithms, and longer numbers in texts
SOURCE = str(Path(fedhp.__file__).parent)


@dataclass
class Cost:
    """Of one round."""

    instructions: int = 0
    committed: int = 0  # bytes of the state
    written: int = 0  # bytes into the ledger, compressed


class CountingLedger(LocalLedger):
    """A ledger that counts the bytes of its last commit."""

    def __init__(self, folder: Path, cost: Cost) -> None:
        super().__init__(folder)
        self._cost = cost

    async def commit(self, state: bytes) -> None:
        self._cost.committed, self._cost.written = len(state), len(zlib.compress(state, 1))
        await super().commit(state)


class InstructionCounter:
    """Counts the instructions of fedhp's own code in this thread, while it is on."""

    def __init__(self) -> None:
        self.count = 0

    def start(self) -> None:
        sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._count

    def _count(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "opcode":
            self.count += 1
        return self._count


def last_round(workers: int, folder: Path, certificates: Path, *, rounds: int = ROUNDS) -> Cost:
    """What the last of a few rounds costs a coordinator of so many workers."""
    cost, counter = Cost(), InstructionCounter()

    def round_ended(record: Any) -> None:
        if record.round_index == rounds - 1:
            counter.start()
        elif record.round_index == rounds:
            counter.stop()
            cost.instructions = counter.count

    async def run() -> None:
        ledger = CountingLedger(folder / "ledger", cost)
        try:
            await run_offline(
                sparse_experiment(workers, rounds),
                identity=load_identity(certificates, "boss"),
                folder=folder,
                ledger=ledger,
                on_round=round_ended,
            )
        finally:
            counter.stop()
            await ledger.close()

    asyncio.run(run())
    return cost


@pytest.mark.slow
def test_a_round_grows_with_the_workers_and_their_links(
    tmp_path: Path, record_property: Any
) -> None:
    certificates = make_certificates(tmp_path / "certs", 0)
    few, many = (
        last_round(workers, tmp_path / str(workers), certificates) for workers in (FEW, MANY)
    )
    for name in ("instructions", "committed", "written"):
        small, large = getattr(few, name), getattr(many, name)
        growth = large / small
        record_property(
            f"figure: {name} of a round, {FEW} and {MANY} workers",
            f"{small} and {large}: {growth:.2f} times as many",
        )
        assert growth < LINEAR * MANY / FEW, name


def test_workers_that_join_do_not_each_write_a_list_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[int]] = []

    def set_meta(self: Store, key: str, value: Any) -> None:
        if key == "samples":
            written.append(value)
        original(self, key, value)

    original = Store.set_meta
    monkeypatch.setattr(Store, "set_meta", set_meta)
    last_round(12, tmp_path / "run", make_certificates(tmp_path / "certs", 0), rounds=2)
    assert written == [[], [100] * 12]  # the first one is that of the new record
