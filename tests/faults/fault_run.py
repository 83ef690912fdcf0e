"""One run of a federation of real processes in which something is broken on purpose.

Every fault is noted in history-faults.jsonl, so that the checker knows about it. Nothing waits
without an end: what takes longer than it may is a hang, and fails.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.events import Began, Committed
from fedhp.cluster.failpoints import FAILPOINTS_VARIABLE
from fedhp.cluster.history import History, read_history
from fedhp.cluster.ops.launch import COORDINATOR_NAME, Cluster
from fedhp.config import Experiment, parse
from fedhp.tables import merge_tables
from waiting import let_fault_last, wait_until

# All rounds about as long.
ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"name": "dpsgd"},
    {"name": "fedhp", "max_steps": 5},
    {"name": "ldsgd"},
    {"name": "pens"},
)
EVENT_SECONDS = 60.0  # until something must have happened
RUN_SECONDS = 150.0  # until a run must be over


def experiment(*, seed: int = 0, workers: int = 4, rounds: int = 30, **changes: Any) -> Experiment:
    """Small and quick, but rounds take as long as a process needs to restart."""
    tables: dict[str, Any] = {
        "seed": seed,
        "workers": workers,
        "rounds": rounds,
        "algorithm": ALGORITHMS[seed % len(ALGORITHMS)],
        "model": {"name": "logistic"},
        "data": {"skew": 0.8},
        "training": {"local_steps": 4, "batch_size": 8},
        "evaluation": {"images": 50, "every": 5},
        "world": {"profile": "uniform", "device": {"xavier_nx": {"step_time": 0.1, "sd": 0.0}}},
        "cluster": {
            "emulate": True,
            "min_workers": 2,
            "gather": 8.0,
            "beat": 0.2,
            "suspect_after": 1.0,
            "dead_after": 4.0,
            "least_deadline": 5.0,
        },
    }
    return parse(merge_tables(tables, changes))


CaseResult = tuple[Experiment, float | None]  # what was run; s until a standby led


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run with faults."""

    case: str
    seed: int
    seconds: float
    hang: str  # what did not happen in time
    error: str
    violations: tuple[str, ...]
    pause: float  # s, the longest time without a commit
    takeover: float | None = None  # s until another coordinator led

    @property
    def good(self) -> bool:
        """No hang, no error, no broken promise."""
        return not (self.hang or self.error or self.violations)


class FaultRun:
    """A cluster whose processes are killed and stopped on purpose."""

    def __init__(
        self,
        settings: Experiment,
        folder: Path,
        *,
        coordinators: tuple[str, ...] = (COORDINATOR_NAME,),
        ha: str | None = None,
    ) -> None:
        self.settings = settings
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.cluster = Cluster(
            settings,
            folder,
            coordinators=coordinators,
            ha=ha,
            insecure_etcd=ha is not None,
            restart=False,
        )
        self.faults = History(folder, "faults")

    def __enter__(self) -> FaultRun:
        return self

    def __exit__(self, *details: object) -> None:
        self.cluster.stop()
        self.faults.close()

    # --- faults ----------------------------------------------------------------------------

    def note(self, kind: str, target: str | list[str]) -> float:
        """Note a fault for the checker; returns its time."""
        self.faults.append("fault", {"kind": kind, "target": target})
        return time.time()

    def start(self, **failpoints: str) -> None:
        """Start all; failpoints by name of the process: w1="worker.mixing@3=kill"."""
        environment: Mapping[str, Mapping[str, str]] = {
            name: {FAILPOINTS_VARIABLE: text} for name, text in failpoints.items()
        }
        self.cluster.start(environment=environment)

    def kill(self, *names: str) -> None:
        """kill -9, all at once."""
        for name in names:
            self.note("kill", name)
        for name in names:
            self.cluster.kill(name)

    def stop(self, name: str) -> None:
        """SIGSTOP."""
        self.note("stop", name)
        self.cluster.kill(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """SIGCONT."""
        self.note("cont", name)
        self.cluster.kill(name, signal.SIGCONT)

    def restart(self, *names: str) -> None:
        """Restart what died, without its fail point."""
        for name in names:
            self.note("start", name)
            self.cluster.start_process(name)

    # --- waiting ---------------------------------------------------------------------------

    def until(
        self, condition: Callable[[], bool], what: str, *, seconds: float = EVENT_SECONDS
    ) -> None:
        """Wait until a condition holds; TimeoutError if it never does."""
        wait_until(condition, what, seconds=seconds)

    def until_dead(self, name: str) -> float:
        """Wait until a process has killed itself at its fail point; returns when that was seen."""
        self.until(lambda: self.cluster.exit_codes()[name] is not None, f"the death of {name}")
        code = self.cluster.exit_codes()[name]
        if code != -signal.SIGKILL:  # it ended by itself, and the case would test nothing
            raise AssertionError(f"{name} was not killed: it ended with exit code {code}")
        return self.note("kill", name)

    def until_stopped(self, name: str) -> float:
        """Wait until a process has stopped itself at its fail point; returns when that was seen."""
        stat = Path("/proc") / str(self.cluster.pid(name)) / "stat"
        self.until(
            lambda: stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "T",
            f"the stop of {name}",
        )
        return self.note("stop", name)

    def until_round(self, round_index: int) -> None:
        """Wait until this round is committed."""
        self.until(lambda: self.committed() >= round_index, f"round {round_index}")

    def until_lead(self, name: str) -> float:
        """Wait until a coordinator leads; returns since when."""
        self.until(lambda: bool(self.events(name, "lead")), f"the lead of {name}")
        return float(self.events(name, "lead")[-1]["at"])

    def pass_time(self, seconds: float) -> None:
        """Let a fault last: its length is part of the test, nothing waits for it."""
        let_fault_last(seconds)

    def finish(self) -> None:
        """Wait until the run is over."""
        self.cluster.wait(RUN_SECONDS)

    # --- what is known ---------------------------------------------------------------------

    def committed(self) -> int:
        """The last committed round."""
        rounds = [
            int(event["round"])
            for name in self.cluster.coordinators
            for event in self.events(name, "commit")
        ]
        return max(rounds, default=0)

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """The events of one kind in the history of a coordinator."""
        file = self.cluster.record_folder(name) / f"history-{name}.jsonl"
        if not file.exists():
            return []
        return [line for line in read_history(file) if line["event"] == event]

    def last_participants(self) -> set[int]:
        """The workers of the last attempt."""
        attempts = [
            event for name in self.cluster.coordinators for event in self.events(name, "attempt")
        ]
        return set(max(attempts, key=lambda event: float(event["at"]))["participants"])


@dataclass(frozen=True, slots=True)
class FaultCase:
    """A kind of fault, at a time that depends on the seed."""

    name: str
    run_case: Callable[[Path, int], CaseResult]  # with a folder and a seed

    def run(self, folder: Path, seed: int) -> Outcome:
        """Run the case once, and check its histories."""
        started = time.monotonic()
        hang = error = ""
        rounds: int | None = None
        takeover: float | None = None
        try:
            settings, takeover = self.run_case(folder, seed)
            rounds = settings.rounds
        except TimeoutError as timeout:
            hang = str(timeout)
        except Exception as failure:  # the campaign continues, and reports it
            error = f"{type(failure).__name__}: {failure}"
        try:
            violations = tuple(
                str(violation) for violation in check_invariants(folder, rounds=rounds)
            )
            pause = longest_pause(folder)
        except Exception as failure:
            violations, pause = (), float("nan")
            error = error or f"{type(failure).__name__}: {failure}"
        seconds = time.monotonic() - started
        return Outcome(self.name, seed, seconds, hang, error, violations, pause, takeover)


def longest_pause(folder: Path) -> float:
    """Seconds of the longest time between two commits, or from the first order to a commit."""
    timeline = read_timeline(folder)
    commits = [event.at for event in timeline.events_of(Committed)]
    attempts = [event.at for event in timeline.events_of(Began)]
    moments = sorted([*commits, *attempts[:1]])
    return max((end - start for start, end in pairwise(moments)), default=0.0)
