"""How many rounds a flaky machine, or a member that wants to halt the run, leaves to the others.

`PYTHONPATH=src:tests python -m attacks.liveness KIND SECONDS` prints what happened, for one of
KINDS. The coordinator and all workers are processes; the member that misbehaves is a worker whose
orders are carried out in another way. What counts begins START_SECONDS after the first attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedhp.cluster.coordinator.process.announcements import read_announcement
from fedhp.cluster.coordinator.process.finders import find_in_folder
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings
from fedhp.cluster.history import read_history
from fedhp.cluster.ops import operator, processes
from fedhp.cluster.ops.processes import ProcessEnvironment
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.worker.worker import WorkerSettings
from fedhp.config import Experiment, parse
from fedhp.errors import FedhpError
from net.identities import make_certificates
from waiting import emulate_work, let_fault_last, wait_until

WORKERS = 5
BAD = "w4"  # the member that misbehaves, or the machine that stops
START_SECONDS = 30.0
ENDLESS = 1_000_000  # rounds
STOPPED_SECONDS, AWAKE_SECONDS = 2.2, 0.7  # of the flaky machine
REJOIN_SECONDS = 0.3
LEAST_DEADLINE, SHORT_DEADLINE = 5.0, 1.5  # s; the short one ends before the machine is back
NAN = float("nan")
GROUPS, TURNS = "fedhp_plus", "adpsgd"
KINDS = {
    "quiet": GROUPS,
    "flaky": GROUPS,
    "veto": GROUPS,
    "veto_empty": GROUPS,
    "rejoin": GROUPS,
    "quiet_turns": TURNS,
    "greedy": TURNS,
}


@dataclass
class Outcome:
    """What happened from START_SECONDS on, unless it says otherwise."""

    seconds: float = 0.0
    rounds: int = 0
    longest_pause: float = 0.0  # s between two commits
    longest_deadline: float = 0.0  # s, of an attempt
    given_up: int = 0  # attempts of the whole run
    quarantined: list[tuple[str, str]] = field(default_factory=list)  # who, by whom
    named: dict[str, int] = field(default_factory=dict)  # in how many looks at the status
    looks: int = 0

    @property
    def rate(self) -> float:
        """Rounds per second."""
        return self.rounds / self.seconds


def experiment(algorithm: str, *, least_deadline: float = LEAST_DEADLINE) -> Experiment:
    """Endless short rounds on emulated devices."""
    groups = algorithm == GROUPS
    settings = {"first_deadline": 0.2, "fragments": 3} if groups else {"steps": 5}
    return parse(
        {
            "workers": WORKERS,
            "rounds": ENDLESS,
            "algorithm": {"name": algorithm, **settings},
            "model": {"name": "mlp", "hidden": [16]},
            "evaluation": {"images": 10, "every": 1000},
            "world": {"profile": "uniform", "device": {"xavier_nx": {"step_time": 0.05, "sd": 0}}},
            "cluster": {
                "emulate": True,
                "min_workers": 2,
                "gather": 20.0,
                "least_deadline": least_deadline,
            },
        }
    )


def measure(folder: Path, kind: str, *, seconds: float) -> Outcome:
    """Let a federation run for so long after START_SECONDS."""
    short = kind == "flaky"
    deadline = SHORT_DEADLINE if short else LEAST_DEADLINE
    settings = experiment(KINDS[kind], least_deadline=deadline)
    certificates, run = make_certificates(folder / "certs", WORKERS), folder / "run"
    outcome = Outcome(seconds=seconds)
    with _federation(settings, certificates, run, kind) as bad:
        history = run / "history-boss.jsonl"
        wait_until(lambda: bool(_times(history, "attempt")), "the first attempt")
        began = _times(history, "attempt")[0]
        end = began + START_SECONDS + seconds
        while time.time() < end:
            if short:
                _stop_and_continue(bad)
            else:
                let_fault_last(1.0)
            if time.time() > began + START_SECONDS:
                _look(operator.Target(read_announcement(run).address, certificates), outcome)
        _read(run, outcome, since=began + START_SECONDS, until=end)
    return outcome


@contextlib.contextmanager
def _federation(
    settings: Experiment, certificates: Path, run: Path, kind: str
) -> Iterator[BaseProcess]:
    """All processes; the last worker's."""
    started: list[BaseProcess] = []
    boss = CoordinatorProcessSettings(settings, certificates, run, name="boss")
    try:
        started.append(
            processes.start(processes.run_coordinator, boss, ProcessEnvironment(run.parent / "log"))
        )
        for worker in range(WORKERS):
            name = f"w{worker}"
            order = WorkerSettings(
                name,
                "",
                certificates,
                run / "workers" / name,
                listen="127.0.0.1:0",
                finder=functools.partial(find_in_folder, run),
            )
            log = ProcessEnvironment(run.parent / f"log-{name}")
            if name == BAD and kind in ATTACKS:
                context = multiprocessing.get_context("spawn")
                attacker = context.Process(target=_misbehave, args=(kind, order, log), daemon=True)
                attacker.start()
                started.append(attacker)
            else:
                started.append(processes.start(processes.run_worker, order, log))
        yield started[-1]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGCONT)
            process.kill()
            process.join()


def _stop_and_continue(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    let_fault_last(STOPPED_SECONDS)
    os.kill(process.pid, signal.SIGCONT)
    let_fault_last(AWAKE_SECONDS)


def _look(target: operator.Target, outcome: Outcome) -> None:
    """Who the status names: put aside, or in a warning."""
    with contextlib.suppress(FedhpError):
        reply = operator.leader_status(target).reply
        outcome.looks += 1
        names = {member.name for member in reply.members if member.status == "suspended"}
        names |= {name for warning in reply.warnings for name in warning.members}
        for name in names:
            outcome.named[name] = outcome.named.get(name, 0) + 1


def _times(history: Path, event: str) -> list[float]:
    if not history.exists():
        return []
    return [line["at"] for line in read_history(history) if line["event"] == event]


def _read(run: Path, outcome: Outcome, *, since: float, until: float) -> None:
    history = run / "history-boss.jsonl"
    commits = [at for at in _times(history, "commit") if since <= at <= until]
    outcome.rounds = len(commits)
    pauses = [later - earlier for earlier, later in itertools.pairwise([since, *commits, until])]
    outcome.longest_pause = max(pauses)
    outcome.longest_deadline = max(
        line["deadline"]
        for line in read_history(history)
        if line["event"] == "attempt" and line["at"] >= since - START_SECONDS / 2
    )
    outcome.given_up = len(_times(history, "gave_up"))
    for worker in range(WORKERS):
        name = f"w{worker}"
        for line in read_history(run / "workers" / name / f"history-{name}.jsonl"):
            if line["event"] == "refused" and line.get("quarantined"):
                outcome.quarantined.append((line["peer"], name))


# --- inside the process of the member that misbehaves --------------------------------------


def _veto(self: Any, work: wire.Work, *, names: bool) -> wire.RoundReport:
    """It has no average, at once."""
    neighbors = [child.worker for child in work.group.children]
    if work.group.HasField("parent"):
        neighbors.append(work.group.parent.worker)
    lost = sorted(neighbors) if names else []
    return wire.RoundReport(
        failed="a link broke",
        step_time=self.step_time,
        links=[wire.LinkReport(worker=peer, distance=NAN, lost="unreachable") for peer in lost],
    )


def _vetoes(*, names: bool) -> None:
    from fedhp.cluster.worker.rounds import OrderExecutor

    honest = OrderExecutor._average

    async def average(
        self: Any, work: wire.Work, attempt: Attempt, *, received: float
    ) -> wire.RoundReport:
        if work.group.members:
            return _veto(self, work, names=names)
        return await honest(self, work, attempt, received=received)

    OrderExecutor._average = average  # type: ignore[method-assign]


def _rejoins() -> None:
    from fedhp.cluster.worker.worker import Worker

    honest = Worker._follow_orders

    async def follow(self: Any, learner: Any, executor: Any) -> None:
        async def join_again() -> None:
            while True:
                await emulate_work(REJOIN_SECONDS)
                self._session.envelopes = Envelopes(self._session.name)
                with contextlib.suppress(Exception):
                    await self._join()

        joining = asyncio.ensure_future(join_again())
        try:
            await honest(self, learner, executor)
        finally:
            joining.cancel()

    Worker._follow_orders = follow  # type: ignore[method-assign]


def _is_greedy() -> None:
    from fedhp.cluster.worker.rounds import OrderExecutor

    async def act(self: Any, order: wire.Order, *, received: float) -> wire.RoundReport:
        self.last_round = None
        return wire.RoundReport(
            step_time=self.step_time,
            train_loss=1.0,
            update_norm=1.0,
            smoothness=NAN,
            gradient_variance=NAN,
            start_loss=NAN,
            accuracy=NAN,
            whole_accuracy=NAN,
            digest=hashlib.sha256(str(order.act.turn).encode()).digest(),
            turn=order.act.turn,
        )

    OrderExecutor.act = act  # type: ignore[method-assign]


ATTACKS = {
    "veto": lambda: _vetoes(names=True),
    "veto_empty": lambda: _vetoes(names=False),
    "rejoin": _rejoins,
    "greedy": _is_greedy,
}


def _misbehave(kind: str, order: WorkerSettings, log: ProcessEnvironment) -> None:
    ATTACKS[kind]()
    processes.run_worker(order, log)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(sys.argv[1], measure(Path(place), sys.argv[1], seconds=float(sys.argv[2])))
