"""What is durable of a run: the state in the ledger, which another coordinator continues from, and
the record, the same as in simulation.

A round is written into the record before the ledger commits it. A round in the record that was
never committed is removed by the next coordinator.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Leadership, Line
from fedhp.cluster.protocol.setup import SetupPart
from fedhp.config import Experiment, differences, parse, to_tables
from fedhp.engine.memory import peak_memory
from fedhp.errors import RunError, StorageFull
from fedhp.files import PRIVATE_FILE, restrict, write_file
from fedhp.record.lock import FolderLock
from fedhp.record.store import RECORD_FILE, Store, description
from fedhp.types import RoundRecord

# By worker and by fragment: what it brings, and what was usual while it gathered that.
Norms = dict[int, tuple[tuple[float, float], ...]]
EXPERIMENT = "experiment.toml"
OPERATOR_STOP = "operator_stop"  # in the record: why an operator ended the run; empty: nobody did


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The run after its last committed attempt."""

    run: str
    experiment: Experiment
    attempt: Attempt  # the last one that was committed
    members: tuple[tuple[int, str], ...] = ()  # index and name
    model_bytes: int = 0  # 0: not known yet
    bytes_sent: int = 0  # by all workers so far
    ended: str = ""  # the condition of [until] that was reached; empty: none
    stopped: str = ""  # why an operator ended the run; nobody goes on before --resume
    informed: tuple[int, ...] = ()  # workers that know that the run is over
    leaders: Line = ()  # all coordinators that led, the oldest first
    place: str = ""  # which copy of the ledger this is; empty: there can be only one
    allowed: tuple[str, ...] | None = None  # names on the allow-list; None: there is none
    removed: tuple[str, ...] = ()  # names that the operator removed
    certificates: dict[str, list[int | str]] = field(default_factory=dict)  # NameBindings.pack()
    # Group averages: the last committed attempt in which each worker was counted, by worker.
    versions: dict[int, Attempt] = field(default_factory=dict)
    # Group averages: how large what each worker brings next is, by worker and fragment.
    norms: Norms = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)  # Checkpoints.pack()
    digests: dict[int, bytes] = field(default_factory=dict)  # of that attempt's models, by worker
    # What the workers must have in common, and whose it is, by name of the part (setup_checks.py).
    setup: dict[str, tuple[SetupPart, str]] = field(default_factory=dict)
    private: tuple[int, ...] = ()  # workers that train on samples of their own
    planner: bytes = b""  # as Planner.pack() gives it
    # The experiment as tables, where they were made before: the same for every commit of a run.
    tables: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def to_bytes(self) -> bytes:
        """One line of JSON, then the planner."""
        head = {
            "committed" if each.name == "attempt" else each.name: getattr(self, each.name)
            for each in fields(self)
        }
        planner, tables = head.pop("planner"), head.pop("tables")
        head["experiment"] = to_tables(self.experiment) if tables is None else tables
        head["setup"] = [[*astuple(part), owner] for part, owner in self.setup.values()]
        # What JSON does not know: digests; attempts and leaderships.
        line = json.dumps(head, default=lambda x: x.hex() if isinstance(x, bytes) else x.to_list())
        return line.encode() + b"\n" + bytes(planner)

    @classmethod
    def from_bytes(cls, content: bytes) -> CommittedState:
        """The state of to_bytes(), or of an earlier release, which lacks some of it."""
        line, _, planner = content.partition(b"\n")
        head = json.loads(line)
        head["attempt"] = head.pop("committed")
        names = [each.name for each in fields(cls) if each.name in head]
        values = {name: _FROM_JSON.get(name, lambda value: value)(head[name]) for name in names}
        return cls(**values, planner=planner)

    @staticmethod
    def stop_in(content: bytes) -> tuple[str, str]:
        """The run, and why an operator ended it or an empty text; the experiment is not read."""
        head = json.loads(content.partition(b"\n")[0])
        return str(head["run"]), str(head.get("stopped", ""))

    def check_place(self, place: str, *, moved: bool) -> None:
        """Refuse to lead from a copy of the ledger: the original may lead at the same time."""
        if self.place and place and place != self.place and not moved:
            raise RunError(
                f"this ledger is a copy: run {self.run} was led from another file, whose "
                "coordinator may still lead",
                allowed="one ledger per run, in the folder where the run was started",
                fix="start the coordinator in the original folder; if that is gone for good, add "
                "--moved",
            )


def norms_of(facts: Mapping[str, Sequence[Sequence[float]]]) -> Norms:
    """Norms that were stored as JSON."""
    return {
        int(worker): tuple((norm, usual) for norm, usual in pairs)
        for worker, pairs in facts.items()
    }


def versions_of(facts: Mapping[str, Sequence[int]]) -> dict[int, Attempt]:
    """Versions by worker that were stored as JSON."""
    return {int(worker): Attempt.from_list(version) for worker, version in facts.items()}


# How fields are read that JSON does not give back as they were.
_FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "experiment": partial(parse, stored=True),
    "attempt": Attempt.from_list,
    "members": lambda pairs: tuple(map(tuple, pairs)),
    "leaders": lambda line: tuple(map(Leadership.from_list, line)),
    "allowed": lambda names: None if names is None else tuple(names),
    "versions": versions_of,
    "norms": norms_of,
    "digests": lambda facts: {int(each): bytes.fromhex(facts[each]) for each in facts},
    "setup": lambda lists: {part[0]: (SetupPart.from_list(part), own) for *part, own in lists},
    **dict.fromkeys(("informed", "removed", "private"), tuple),
}


def check_same_settings(started_with: Mapping[str, Any], experiment: Experiment) -> None:
    """Refuse to continue a run with other settings than those that it was started with."""
    changed = differences(started_with, to_tables(experiment))
    if changed:
        key, old, new = changed[0]
        raise RunError(
            f"{key} is {new!r}, but the run was started with {old!r}",
            allowed="the settings the run was started with",
            fix=f"set {key} back, or start a new run in another folder",
        )


class RunRecordWriter:
    """An open record, locked; `fedhp show`, `report` and `export` read it."""

    def __init__(
        self, folder: Path, store: Store, lock: FolderLock, *, experiment_text: str
    ) -> None:
        self.folder = folder
        self.experiment_text = experiment_text
        self._store = store
        self._lock = lock
        self._samples: list[int] = store.meta("samples") or []
        self._noted: dict[str, object] = {
            "private": store.meta("private") or [],
            **{key: store.meta(key) for key in ("scaling", "model_bytes", "parameters")},
        }
        self._unwritten: dict[str, object] = {}  # of the description

    @classmethod
    def open(
        cls, folder: Path, committed: CommittedState, *, asynchronous: bool
    ) -> RunRecordWriter:
        """The record of this run in this folder; a new one where there is none."""
        experiment = committed.experiment
        text = tomli_w.dumps(to_tables(experiment))
        lock = FolderLock(folder, private=True)
        lock.__enter__()
        try:
            if (folder / RECORD_FILE).is_file():
                store = Store.open(folder, write=True)
                if store.meta("run") != committed.run:
                    raise RunError(
                        f"--out {folder}: the folder holds the record of another run",
                        allowed="a folder that does not exist yet, or that of this run",
                        fix="choose another --out",
                    )
                store.truncate(committed.attempt.round_index)
            else:
                store = Store.create(folder)
                about = {
                    **description(
                        experiment, label=experiment.algorithm.name, asynchronous=asynchronous
                    ),
                    "run": committed.run,
                    "network": True,
                    "devices": ["machine"] * experiment.workers,
                    "metric": "accuracy",
                    "parameters": committed.model_bytes // 4,
                    "model_bytes": committed.model_bytes,
                    "samples": [],
                }
                for key, value in about.items():
                    store.set_meta(key, value)
                write_file(folder / EXPERIMENT, text.encode(), mode=PRIVATE_FILE)
            # SQLite gives the files that it adds the mode of the first one.
            for file in folder.glob(f"{RECORD_FILE}*"):
                restrict(file)
            store.set_meta("status", "running")
            store.set_meta(OPERATOR_STOP, committed.stopped)
        except BaseException:
            lock.__exit__(None, None, None)
            raise
        return cls(folder, store, lock, experiment_text=text)

    def write(self, record: RoundRecord) -> None:
        if self._unwritten:
            self._write_description()
        self._store.commit(record)

    def note_samples(self, worker: int, samples: int) -> None:
        """How much data a worker has; it says so with every poll. Changes are written together
        with the next round, since a list of all for every worker that joins would be long."""
        missing = worker + 1 - len(self._samples)
        if missing > 0 or self._samples[worker] != samples:
            self._samples += [0] * missing
            self._samples[worker] = samples
            self._unwritten["samples"] = self._samples

    def note(self, **described: object) -> None:
        """Describe what hardly ever changes: which workers train on samples of their own, what all
        samples are scaled by, how large a model is. Only changes are written, on a full disk
        together with the next round."""
        changed = {key: value for key, value in described.items() if self._noted[key] != value}
        if changed:
            self._noted |= changed
            self._unwritten |= changed
            with contextlib.suppress(StorageFull):
                self._write_description()

    def _write_description(self) -> None:
        for key, value in list(self._unwritten.items()):
            self._store.set_meta(key, value)
            del self._unwritten[key]

    def finish(self, status: str, *, reached: str = "", stopped: str = "") -> None:
        """The run is over, perhaps because a condition was reached, or ends here for now.

        stopped: why an operator ended it; empty if nobody did.
        """
        self._write_description()
        self._store.set_meta(OPERATOR_STOP, stopped)
        if reached:
            self._store.set_meta("stopped", reached)
        self._store.set_meta("peak_memory", peak_memory())
        if status == "finished":
            self._store.seal()
        self._store.set_meta("status", status)
        self._store.leave_wal_mode()

    def close(self) -> None:
        self._store.close()
        self._lock.__exit__(None, None, None)
