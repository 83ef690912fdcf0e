"""A run and its folder: create, commit every round, checkpoint, resume, finish.

Nothing is written before the experiment has passed the gate; a folder appears whole, by a
rename. A kill at any instant loses at most the work since the last checkpoint, and resuming
repeats it bit for bit.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedhp import __version__
from fedhp.algorithms import Algorithm
from fedhp.config import Experiment, differences, to_tables
from fedhp.engine.events import EventLoop
from fedhp.engine.local import LocalEngine
from fedhp.engine.loop import RoundLoop
from fedhp.engine.prepare import Prepared, prepare
from fedhp.errors import Diverged, Interrupted, RunError, StorageFull
from fedhp.record.checkpoint import read_checkpoint, sync_folder, write_checkpoint
from fedhp.record.lock import FolderLock
from fedhp.record.store import Store
from fedhp.types import RoundRecord

EXPERIMENT = "experiment.toml"
# A checkpoint may take this share of the time at most, however slow the disk.
CHECKPOINT_SHARE = 0.05


class Run:
    """One experiment being carried out in one folder."""

    def __init__(
        self, prepared: Prepared, folder: Path, *, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.prepared = prepared
        self.folder = folder
        self.stop = stop

    @property
    def num_rounds(self) -> int:
        """How many rounds the experiment has."""
        return self.prepared.experiment.rounds

    def rounds_done(self) -> int:
        """How many rounds the folder already holds."""
        store = Store.open(self.folder)
        try:
            return store.last_round()
        finally:
            store.close()

    def rounds(self) -> Iterator[RoundRecord]:
        """Carry out the rounds that are left; each is committed before it is yielded."""
        threads = torch.get_num_threads()
        with FolderLock(self.folder):
            store = Store.open(self.folder, write=True)
            engine = LocalEngine(self.prepared, stop=self.stop)
            try:
                yield from self._rounds(store, engine)
            finally:
                engine.close()
                store.close()
                torch.set_num_threads(threads)

    def _rounds(self, store: Store, engine: LocalEngine) -> Iterator[RoundRecord]:
        loop = self._loop(engine)
        saved = read_checkpoint(self.folder)
        if saved is not None:
            if store.last_round() < saved.round_index:
                raise RunError(
                    f"{self.folder}: the record ends at round {store.last_round()}, "
                    f"the checkpoint at {saved.round_index}",
                    fix="the record was damaged; start the run anew in another folder",
                )
            loop.restore(saved)
        store.truncate(loop.checkpoint().round_index)
        store.set_meta("status", "running")
        last, cost = time.monotonic(), 0.0
        try:
            for record in loop.rounds():
                store.commit(record)
                yield record
                if self.stop():
                    raise Interrupted("stopped between rounds")
                waited = time.monotonic() - last
                if waited >= self.prepared.experiment.checkpoint.seconds and (
                    cost <= CHECKPOINT_SHARE * waited
                ):
                    cost = self._save(loop)
                    last = time.monotonic()
        except Interrupted:
            self._save(loop)
            store.set_meta("status", "interrupted")
            done = loop.checkpoint().round_index
            raise Interrupted(
                f"stopped after round {done} of {self.num_rounds}; saved in {self.folder}",
                fix="go on with the same command and --resume",
            ) from None
        except Diverged as error:
            self._save(loop)
            store.set_meta("status", "diverged")
            store.set_meta("message", str(error))
            raise
        self._save(loop)
        store.set_meta("status", "finished")
        store.fold()

    def _loop(self, engine: LocalEngine) -> RoundLoop | EventLoop:
        algorithm = self.prepared.algorithm
        if isinstance(algorithm, Algorithm):
            return RoundLoop(engine, algorithm)
        return EventLoop(engine, algorithm)

    def _save(self, loop: RoundLoop | EventLoop) -> float:
        started = time.monotonic()
        try:
            write_checkpoint(self.folder, loop.checkpoint())
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        return time.monotonic() - started


def start_run(
    experiment: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    source: str = "",
    label: str = "",
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """A new run in this folder, or with resume the one that is there."""
    target = Path(folder)
    if is_run(target):
        if not resume:
            raise RunError(
                f"{target} already holds a run",
                allowed="a folder that does not exist yet, or --resume to go on with it",
                fix="add --resume, choose another --out, or delete the folder",
            )
        check_unchanged(experiment, target)
        return Run(prepare(experiment, source=source), target, stop=stop)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(
            f"{target} exists and is not a run folder",
            allowed="a folder that does not exist yet, or an empty one",
            fix="choose another --out",
        )
    check_writable(target)
    prepared = prepare(experiment, source=source)
    _check_space(prepared, target)
    _create(prepared, target, label=label or experiment.algorithm.name)
    return Run(prepared, target, stop=stop)


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / EXPERIMENT).is_file()


def is_finished(folder: Path) -> bool:
    """Whether a run folder holds a finished run."""
    if not is_run(folder):
        return False
    store = Store.open(folder)
    try:
        return bool(store.meta("status") == "finished")
    finally:
        store.close()


def check_writable(folder: Path) -> None:
    """Fail early where a run folder could not be made."""
    parent = folder
    while not parent.exists() and parent.parent != parent:
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise RunError(
            f"--out {folder}: {parent} is not a folder this user can write to",
            allowed="a path below a writable folder",
            fix="choose another --out, or mend the permissions",
        )


def _check_space(prepared: Prepared, folder: Path) -> None:
    """Refuse when the disk clearly cannot hold the run."""
    experiment = prepared.experiment
    matrices = 2 if isinstance(prepared.algorithm, Algorithm) else 3
    checkpoint = 4 * prepared.layout.width * experiment.workers * matrices
    links = len(prepared.federation.base_topology.links)
    records = experiment.rounds * (100 * experiment.workers + 60 * links + 500)
    parent = folder
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if checkpoint + records > free:
        raise StorageFull(
            f"--out {folder}: the run needs about {(checkpoint + records) / 1e6:.0f} MB, "
            f"{free / 1e6:.0f} MB are free",
            allowed="enough space for the records and two checkpoints",
            fix="free some space, or choose an --out on another disk",
        )


def _create(prepared: Prepared, target: Path, *, label: str) -> None:
    """Make the folder beside its place, whole, and move it there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from None
    try:
        store = Store.create(temporary)
        for key, value in _description(prepared, label).items():
            store.set_meta(key, value)
        store.fold()
        store.close()
        tables = to_tables(prepared.experiment)
        (temporary / EXPERIMENT).write_text(tomli_w.dumps(tables), encoding="utf-8")
        temporary.chmod(0o755)
        if target.is_dir():
            target.rmdir()
        os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _unwritable(target, error) from None
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _description(prepared: Prepared, label: str) -> dict[str, Any]:
    experiment = prepared.experiment
    return {
        "status": "created",
        "label": label,
        "fedhp": __version__,
        "experiment": to_tables(experiment),
        "algorithm": experiment.algorithm.name,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "workers": experiment.workers,
        "asynchronous": not isinstance(prepared.algorithm, Algorithm),
        "devices": list(prepared.world.devices.names),
        "metric": prepared.task.metric_name,
        "parameters": prepared.facts.parameters,
        "model_bytes": prepared.model_bytes,
        "samples": [len(part) for part in prepared.parts],
    }


def check_unchanged(experiment: Experiment, folder: Path) -> None:
    """Refuse to resume a run under other settings."""
    store = Store.open(folder)
    try:
        recorded = store.meta("experiment")
    finally:
        store.close()
    changed = differences(recorded, to_tables(experiment))
    if changed:
        key, old, new = changed[0]
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise RunError(
            f"{folder}: {key} is {new!r}, but the run was started with {old!r}{more}",
            allowed="the settings the run was started with",
            fix=f"set {key} back, or start a new run with another --out",
        )


def _unwritable(folder: Path, error: OSError) -> StorageFull | RunError:
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return StorageFull(
            f"{folder}: the disk is full: {error.strerror}",
            fix="free some space and go on with --resume; committed rounds are kept",
        )
    return RunError(
        f"{folder}: cannot be written: {error.strerror or error}",
        allowed="a writable folder",
        fix="choose another --out, or mend the permissions",
    )
