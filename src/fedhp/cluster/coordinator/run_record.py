"""What a coordinator keeps: the committed state for the ledger, and the record for people.

The record of a round is written before the ledger commits it; a round in the record that was
never committed is cut off by whoever coordinates next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from fedhp.cluster.protocol.attempt import Attempt
from fedhp.config import Experiment, differences, parse, to_tables
from fedhp.engine.memory import peak_memory
from fedhp.errors import RunError
from fedhp.record.lock import FolderLock
from fedhp.record.store import FILE, Store, description
from fedhp.types import RoundRecord

EXPERIMENT = "experiment.toml"


@dataclass(frozen=True, slots=True)
class Content:
    """The committed state: all that another coordinator needs to go on."""

    run: str
    experiment: Experiment
    committed: Attempt
    members: tuple[tuple[int, str], ...]  # index and name
    model_bytes: int
    planner: bytes  # Planning or Turns, packed

    def to_bytes(self) -> bytes:
        """A line of JSON, then the brain."""
        head = {
            "run": self.run,
            "experiment": to_tables(self.experiment),
            "committed": self.committed.to_list(),
            "members": self.members,
            "model_bytes": self.model_bytes,
        }
        return json.dumps(head).encode() + b"\n" + self.planner

    @classmethod
    def from_bytes(cls, content: bytes) -> Content:
        """As it was committed."""
        line, _, planner = content.partition(b"\n")
        head = json.loads(line)
        return cls(
            run=head["run"],
            experiment=parse(head["experiment"]),
            committed=Attempt.from_list(head["committed"]),
            members=tuple((worker, name) for worker, name in head["members"]),
            model_bytes=head["model_bytes"],
            planner=planner,
        )

    def check(self, experiment: Experiment) -> None:
        """Refuse to go on under other settings."""
        changed = differences(to_tables(self.experiment), to_tables(experiment))
        if changed:
            key, old, new = changed[0]
            raise RunError(
                f"{key} is {new!r}, but the run was started with {old!r}",
                allowed="the settings the run was started with",
                fix=f"set {key} back, or start a new run in another folder",
            )


class RunRecordWriter:
    """The record, as in simulation: `fedhp show`, `report` and `export` read it."""

    def __init__(self, folder: Path, store: Store, lock: FolderLock, text: str) -> None:
        self.folder = folder
        self.experiment_text = text
        self._store = store
        self._lock = lock
        self._samples = dict(enumerate(store.meta("samples") or ()))
        self._model_bytes = store.meta("model_bytes")

    @classmethod
    def open(cls, folder: Path, content: Content, *, asynchronous: bool) -> RunRecordWriter:
        """The record of this run in this folder; a new one where there is none."""
        text = tomli_w.dumps(to_tables(content.experiment))
        lock = FolderLock(folder)
        lock.__enter__()
        try:
            if (folder / FILE).is_file():
                store = Store.open(folder, write=True)
                _check_run(store, content, folder)
                store.truncate(content.committed.round_index)
            else:
                store = Store.create(folder)
                for key, value in _description(content, asynchronous).items():
                    store.set_meta(key, value)
                (folder / EXPERIMENT).write_text(text, encoding="utf-8")
            store.set_meta("status", "running")
        except BaseException:
            lock.__exit__(None, None, None)
            raise
        return cls(folder, store, lock, text)

    def write(self, record: RoundRecord) -> None:
        """Append a round."""
        self._store.commit(record)

    def note_samples(self, worker: int, samples: int) -> None:
        """How much data a worker says it has; told with every poll, written when it is new."""
        if self._samples.get(worker) == samples:
            return
        self._samples[worker] = samples
        most = max(self._samples) + 1
        self._store.set_meta("samples", [self._samples.get(each, 0) for each in range(most)])

    def note_model(self, model_bytes: int) -> None:
        """How large a model is; written when it is new."""
        if model_bytes == self._model_bytes:
            return
        self._model_bytes = model_bytes
        self._store.set_meta("model_bytes", model_bytes)
        self._store.set_meta("parameters", model_bytes // 4)

    def finish(self, status: str) -> None:
        """The run is over, or ends here for now."""
        self._store.set_meta("peak_memory", peak_memory())
        self._store.set_meta("status", status)
        self._store.leave_wal_mode()

    def close(self) -> None:
        """Close the files."""
        self._store.close()
        self._lock.__exit__(None, None, None)


def _check_run(store: Store, content: Content, folder: Path) -> None:
    if store.meta("run") != content.run:
        raise RunError(
            f"--out {folder}: the folder holds the record of another run",
            allowed="a folder that does not exist yet, or that of this run",
            fix="choose another --out",
        )


def _description(content: Content, asynchronous: bool) -> dict[str, object]:
    experiment = content.experiment
    about = description(experiment, label=experiment.algorithm.name, asynchronous=asynchronous)
    return {
        **about,
        "run": content.run,
        "network": True,
        "devices": ["machine"] * experiment.workers,
        "metric": "accuracy",
        "parameters": content.model_bytes // 4,
        "model_bytes": content.model_bytes,
        "samples": [],
    }
