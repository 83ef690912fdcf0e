"""How much a member that floods the coordinator costs the others: rounds with and without it.

`PYTHONPATH=src:tests python -m attacks.flood` prints the ratio. The coordinator and the attacker
have processes of their own; periods with and without the flood take turns, so that other load on
the machine meets both. The attacker has a low priority, as if it were on another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from attacks.flood_memory import SERVICE, own_channel
from faults.scripted import ScriptedWorker
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings
from fedhp.cluster.ops import processes
from fedhp.cluster.ops.processes import ProcessEnvironment
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security.leader_proof import new_nonce
from fedhp.config import Experiment, parse
from net.identities import make_certificates
from waiting import emulate_work, wait_until_async

HONEST = 6
CALLS = 2_000  # in parallel
CONNECTIONS = 8  # of the attacker
ENDLESS = 1_000_000  # rounds
KINDS = ("Next", "Beat", "Status", "Join")
# Messages that cannot be parsed and methods that do not exist: fewer calls, each on its own stream.
BAD_CALLS, BAD_CONNECTIONS = 480, 15
BAD_KINDS = {
    "64 bytes of 0xff": ("Beat", b"\xff" * 64),
    "an unknown method": ("Nothing", b""),
    "1 MB of garbage": ("Beat", b"\xff" * 1_000_000),
}


@dataclass
class Outcome:
    """Rounds in all periods of each kind, and what the attacker's calls came to."""

    quiet: list[int] = field(default_factory=list)
    flooded: list[int] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def ratio(self) -> float:
        """Rounds under the flood, as a share of those without it."""
        return sum(self.flooded) / max(sum(self.quiet), 1)


def experiment() -> Experiment:
    """Endless rounds of little work; the attacker is not needed for any of them."""
    return parse(
        {
            "workers": HONEST + 1,
            "rounds": ENDLESS,
            "algorithm": {"name": "dpsgd"},
            "training": {"local_steps": 20},
            "cluster": {
                "min_workers": HONEST,
                "gather": 3.0,
                "beat": 0.5,
                "suspect_after": 60.0,
                "dead_after": 120.0,
                "least_deadline": 60.0,
                "probe_bytes": 0,
            },
        }
    )


def measure(
    folder: Path, *, kind: str, periods: int = 4, seconds: float = 4.0, calls: int = 0
) -> Outcome:
    """Rounds with and without so many parallel calls of one member; 0: as many as its kind has."""
    calls = calls or (BAD_CALLS if kind in BAD_KINDS else CALLS)
    certificates = make_certificates(folder / "certs", HONEST + 1)
    run = folder / "run"
    settings = CoordinatorProcessSettings(experiment(), certificates, run, name="boss")
    coordinator = processes.start(
        processes.run_coordinator, settings, ProcessEnvironment(folder / "boss.log")
    )
    try:
        return asyncio.run(
            _everyone(certificates, run, kind=kind, periods=periods, seconds=seconds, calls=calls)
        )
    finally:
        coordinator.kill()
        coordinator.join()


async def _everyone(
    certificates: Path, run: Path, *, kind: str, periods: int, seconds: float, calls: int
) -> Outcome:
    announced = run / "coordinator.json"
    await wait_until_async(announced.exists, "the coordinator's address")
    address = json.loads(announced.read_bytes())["address"]
    workers = [
        ScriptedWorker.named(
            certificates, f"w{worker}", run / "workers" / f"w{worker}", lambda: address
        )
        for worker in range(HONEST)
    ]
    tasks = [asyncio.create_task(worker.live()) for worker in workers]
    context = multiprocessing.get_context("spawn")
    flooding, answers = context.Event(), context.Queue()
    attacker = context.Process(
        target=_attack,
        args=(certificates, address, flooding, answers, kind, calls),
        daemon=True,
    )
    attacker.start()
    outcome = Outcome()
    try:
        await wait_until_async(lambda: _rounds(workers) >= 5, "the first rounds")
        await asyncio.to_thread(answers.get)  # the attacker has joined
        for period in range(periods + 1):
            quiet = await _count(workers, seconds)
            flooding.set()
            await emulate_work(seconds / 4)  # until all its calls are there
            flooded = await _count(workers, seconds)
            flooding.clear()
            outcome.answers.update(await asyncio.to_thread(answers.get))
            await emulate_work(seconds / 4)
            if period:  # in the first one, rounds wait for the new member to catch up
                outcome.quiet.append(quiet)
                outcome.flooded.append(flooded)
        outcome.answers["refusals logged"] = _logged(run.parent / "boss.log")
        return outcome
    finally:
        attacker.kill()
        attacker.join()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _rounds(workers: list[ScriptedWorker]) -> int:
    """The last round that any worker was ordered to work in."""
    return max((worker.attempt.round_index for worker in workers if worker.orders), default=0)


async def _count(workers: list[ScriptedWorker], seconds: float) -> int:
    before = _rounds(workers)
    await emulate_work(seconds)
    return _rounds(workers) - before


def _logged(log: Path) -> int:
    return log.read_text(errors="replace").count("refused w") if log.exists() else 0


# --- inside the attacker's process ---------------------------------------------------------


def _attack(
    certificates: Path, address: str, flooding: Event, answers: Any, kind: str, calls: int
) -> None:
    os.nice(19)
    asyncio.run(_flood(certificates, address, flooding, answers, kind, calls))


async def _flood(
    certificates: Path, address: str, flooding: Event, answers: Any, kind: str, calls: int
) -> None:
    import grpc.aio

    from fedhp import __version__

    name = f"w{HONEST}"
    envelopes = Envelopes(name)
    connections = BAD_CONNECTIONS if calls <= BAD_CALLS else CONNECTIONS
    channels = [own_channel(certificates, name, address, server="boss") for _ in range(connections)]
    stub: Any = CoordinatorStub(channels[0])
    join = wire.JoinRequest(
        envelope=envelopes.make(),
        address="127.0.0.1:1",
        fedhp=__version__,
        samples=1,
        nonce=new_nonce(),
    )
    run = (await stub.Join(join, timeout=limits.JOIN_SECONDS)).run
    answers.put("joined")
    counts: Counter[str] = Counter()

    method, bad_message = BAD_KINDS.get(kind, (kind, None))

    def request() -> bytes:
        if bad_message is not None:
            return bad_message
        return bytes(good_request().SerializeToString())

    def good_request() -> Any:
        if kind == "Join":
            return wire.JoinRequest(
                envelope=envelopes.make(),
                address="127.0.0.1:1",
                fedhp=__version__,
                nonce=new_nonce(),
            )
        envelope = envelopes.make(run=run)
        return {
            "Next": wire.NextRequest(envelope=envelope, samples=envelope.sequence % 1000 + 1),
            "Beat": wire.BeatRequest(envelope=envelope),
            "Status": wire.StatusRequest(envelope=envelope),
        }[kind]

    async def call_again_and_again(channel: Any) -> None:
        call = channel.unary_unary(f"{SERVICE}Coordinator/{method}")
        while flooding.is_set():
            try:
                await call(request(), timeout=limits.POLL_SECONDS)
                counts["answered"] += 1
            except grpc.aio.AioRpcError as error:
                counts[str(error.code().name).lower()] += 1

    while True:
        await asyncio.to_thread(flooding.wait)
        counts.clear()
        tasks = [
            asyncio.create_task(call_again_and_again(channels[index % connections]))
            for index in range(calls)
        ]
        while flooding.is_set():
            await emulate_work(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        answers.put(dict(counts))


def main(kinds: list[str]) -> None:
    """Print the ratio for each kind of call."""
    for kind in kinds or [*KINDS, *BAD_KINDS]:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
            started = time.monotonic()
            outcome = measure(Path(folder), kind=kind)
            print(
                f"parallel calls of one member, {kind}: {100 * outcome.ratio:.0f} % of the "
                f"rounds ({outcome.flooded} to {outcome.quiet}), "
                f"{dict(outcome.answers)}, {time.monotonic() - started:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
