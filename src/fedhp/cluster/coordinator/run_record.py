"""The record that a coordinator writes, the same as in simulation.

A round is written before the ledger commits it. A round in the record that was never committed
is removed by the next coordinator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.config import to_tables
from fedhp.engine.memory import peak_memory
from fedhp.errors import RunError, StorageFull
from fedhp.files import PRIVATE_FILE, restrict, write_file
from fedhp.record.lock import FolderLock
from fedhp.record.store import RECORD_FILE, Store, description
from fedhp.types import RoundRecord

EXPERIMENT = "experiment.toml"
OPERATOR_STOP = "operator_stop"  # in the record: why an operator ended the run; empty: nobody did


class RunRecordWriter:
    """An open record, locked; `fedhp show`, `report` and `export` read it."""

    def __init__(
        self, folder: Path, store: Store, lock: FolderLock, *, experiment_text: str
    ) -> None:
        self.folder = folder
        self.experiment_text = experiment_text
        self._store = store
        self._lock = lock
        self._samples = dict(enumerate(store.meta("samples") or ()))
        self._samples_changed = False
        self._model_bytes = store.meta("model_bytes")
        self._noted: dict[str, object] = {
            "private": store.meta("private") or [],
            "scaling": store.meta("scaling"),
        }
        self._unwritten: dict[str, object] = {}  # of the description: the disk was full

    @classmethod
    def open(
        cls, folder: Path, committed: CommittedState, *, asynchronous: bool
    ) -> RunRecordWriter:
        """The record of this run in this folder; a new one where there is none."""
        text = tomli_w.dumps(to_tables(committed.experiment))
        lock = FolderLock(folder, private=True)
        lock.__enter__()
        try:
            if (folder / RECORD_FILE).is_file():
                store = Store.open(folder, write=True)
                _check_run(store, committed, folder)
                store.truncate(committed.attempt.round_index)
            else:
                store = Store.create(folder)
                for key, value in _description(committed, asynchronous).items():
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
        """Append a round."""
        if self._samples_changed or self._unwritten:
            self._write_description()
        self._store.commit(record)

    def note_samples(self, worker: int, samples: int) -> None:
        """How much data a worker has; it says so with every poll. Changes are written together
        with the next round, since a list of all for every worker that joins would be long."""
        if self._samples.get(worker) != samples:
            self._samples[worker] = samples
            self._samples_changed = True

    def note_private(self, workers: Sequence[int]) -> None:
        """Which workers train on samples of their own."""
        self._note("private", list(workers))

    def note_scaling(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        """What all samples are scaled by, per channel."""
        self._note("scaling", {"mean": list(mean), "deviation": list(deviation)})

    def _note(self, key: str, value: object) -> None:
        """Describe something that hardly ever changes; only changes are written."""
        if self._noted.get(key) != value:
            self._noted[key] = value
            self._describe(key, value)

    def note_model(self, model_bytes: int) -> None:
        """How large a model is; only changes are written."""
        if model_bytes == self._model_bytes:
            return
        self._model_bytes = model_bytes
        self._describe("model_bytes", model_bytes)
        self._describe("parameters", model_bytes // 4)

    def _describe(self, key: str, value: object) -> None:
        """Set a value of the description; on a full disk together with the next round."""
        self._unwritten[key] = value
        with contextlib.suppress(StorageFull):
            self._write_description()

    def _write_description(self) -> None:
        if self._samples_changed:
            count = max(self._samples) + 1
            samples = [self._samples.get(index, 0) for index in range(count)]
            self._unwritten["samples"], self._samples_changed = samples, False
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
        """Close the record and release its lock."""
        self._store.close()
        self._lock.__exit__(None, None, None)


def _check_run(store: Store, committed: CommittedState, folder: Path) -> None:
    if store.meta("run") != committed.run:
        raise RunError(
            f"--out {folder}: the folder holds the record of another run",
            allowed="a folder that does not exist yet, or that of this run",
            fix="choose another --out",
        )


def _description(committed: CommittedState, asynchronous: bool) -> dict[str, object]:
    experiment = committed.experiment
    about = description(experiment, label=experiment.algorithm.name, asynchronous=asynchronous)
    return {
        **about,
        "run": committed.run,
        "network": True,
        "devices": ["machine"] * experiment.workers,
        "metric": "accuracy",
        "parameters": committed.model_bytes // 4,
        "model_bytes": committed.model_bytes,
        "samples": [],
    }
