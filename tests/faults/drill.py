"""One run of a federation of real processes in which something is broken on purpose.

Every fault goes into history-faults.jsonl, so that the checker knows of it. Nothing waits
without an end: what takes longer than it may is a hang, and fails.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhp.cluster.audit.invariants import check_invariants, longest_pause
from fedhp.cluster.failpoints import VARIABLE
from fedhp.cluster.history import History, read_history
from fedhp.cluster.ops.launch import COORDINATOR_NAME, Cluster
from fedhp.config import Experiment, parse
from waiting import let_last, wait_until

# All rounds about as long.
ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"name": "dpsgd"},
    {"name": "fedhp", "max_steps": 5},
    {"name": "ldsgd"},
    {"name": "pens"},
)
SOON = 60.0  # s until something must have happened
OVER = 150.0  # s until a run must be over


def experiment(*, seed: int = 0, workers: int = 4, rounds: int = 30, **changes: Any) -> Experiment:
    """Small and quick, but rounds take as long as a process needs to come back."""
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
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    return parse(tables)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one drill went."""

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


class Drill:
    """A cluster whose processes can be hurt, and what was done to it."""

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
        self.seed = settings.seed
        folder.mkdir(parents=True, exist_ok=True)
        self.cluster = Cluster(settings, folder, coordinators=coordinators, ha=ha, restart=False)
        self.faults = History(folder, "faults")
        self.takeover: float | None = None

    def __enter__(self) -> Drill:
        return self

    def __exit__(self, *details: object) -> None:
        self.cluster.stop()
        self.faults.close()

    # --- faults ----------------------------------------------------------------------------

    def note(self, kind: str, target: str | list[str]) -> float:
        """For the checker; the time of it."""
        self.faults.note("fault", {"kind": kind, "target": target})
        return time.time()

    def start(self, **failpoints: str) -> None:
        """Everyone; failpoints by name of the process: w1="worker.mixing@3=kill"."""
        environment: Mapping[str, Mapping[str, str]] = {
            name: {VARIABLE: text} for name, text in failpoints.items()
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
        """Start again what died, as it was but without its fail point."""
        for name in names:
            self.note("start", name)
            self.cluster.restart(name)

    # --- waiting ---------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = SOON) -> None:
        """Look until something is so; TimeoutError if it never is."""
        wait_until(condition, what, seconds=seconds)

    def until_dead(self, name: str) -> float:
        """A process killed itself at its fail point; when that was seen."""
        self.until(lambda: self.cluster.exit_codes()[name] is not None, f"the death of {name}")
        return self.note("kill", name)

    def until_stopped(self, name: str) -> float:
        """A process stopped itself at its fail point; when that was seen."""
        stat = Path("/proc") / str(self.cluster.pid(name)) / "stat"
        self.until(
            lambda: stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "T",
            f"the stop of {name}",
        )
        return self.note("stop", name)

    def until_round(self, round_index: int) -> None:
        """So many rounds are committed."""
        self.until(lambda: self.committed() >= round_index, f"round {round_index}")

    def until_lead(self, name: str) -> float:
        """A coordinator leads; since when."""
        self.until(lambda: bool(self.events(name, "lead")), f"the lead of {name}")
        return float(self.events(name, "lead")[-1]["at"])

    def pass_time(self, seconds: float) -> None:
        """Let a fault last: how long is part of the drill, nothing waits for it."""
        let_last(seconds)

    def finish(self) -> None:
        """The run goes on to its end."""
        self.cluster.wait(OVER)

    # --- what is known ---------------------------------------------------------------------

    def committed(self) -> int:
        """The last committed round."""
        found = [
            int(event["round"])
            for name in self.cluster.coordinators
            for event in self.events(name, "commit")
        ]
        return max(found, default=0)

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """What a coordinator wrote."""
        file = self.cluster.record_folder(name) / f"history-{name}.jsonl"
        if not file.exists():
            return []
        return [line for line in read_history(file) if line["event"] == event]

    def last_participants(self) -> set[int]:
        """Who was in the last attempt of all."""
        found = [
            event for name in self.cluster.coordinators for event in self.events(name, "attempt")
        ]
        return set(max(found, key=lambda event: float(event["at"]))["participants"])


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of drill."""

    name: str
    play: Callable[[Path, int], tuple[Experiment, float | None]]  # folder, seed: what was run

    def run(self, folder: Path, seed: int) -> Outcome:
        """One drill and what the checker says of it."""
        started = time.monotonic()
        hang = error = ""
        rounds: int | None = None
        takeover: float | None = None
        try:
            settings, takeover = self.play(folder, seed)
            rounds = settings.rounds
        except TimeoutError as found:
            hang = str(found)
        except Exception as found:  # whatever it is, the campaign goes on and tells it
            error = f"{type(found).__name__}: {found}"
        try:
            violations = tuple(str(each) for each in check_invariants(folder, rounds=rounds))
            pause = longest_pause(folder)
        except Exception as found:
            violations, pause = (), float("nan")
            error = error or f"{type(found).__name__}: {found}"
        seconds = time.monotonic() - started
        return Outcome(self.name, seed, seconds, hang, error, violations, pause, takeover)
