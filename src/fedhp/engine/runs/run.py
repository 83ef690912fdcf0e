"""A run and its folder: create, commit every round, checkpoint, resume, finish.

Nothing is written before the experiment has passed all checks; a folder appears complete, by a
rename. A kill at any instant loses at most the work since the last checkpoint, and a resumed run
repeats it bit for bit.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedhp.algorithms import load_algorithm
from fedhp.algorithms.base import is_asynchronous, is_synchronous, rule_of, traits_of
from fedhp.config import FREE_ON_RESUME, Experiment, differences, to_tables
from fedhp.engine.events import EventLoop
from fedhp.engine.executor import StateLost
from fedhp.engine.loop import RoundLoop
from fedhp.engine.memory import count_copies, peak_memory
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.sharded import LocalExecutor, ShardedExecutor
from fedhp.engine.testing import StopCondition, is_due
from fedhp.engine.trial import try_algorithm
from fedhp.errors import Diverged, Interrupted, RunError
from fedhp.files import check_free_space, new_folder, storage_errors, write_file
from fedhp.learn.group_state import GROUP_STATE
from fedhp.learn.params import OPTIMIZER_STATE
from fedhp.record.checkpoint import (
    CARRIED_COLUMNS,
    STATE_COLUMNS,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from fedhp.record.links import round_bytes
from fedhp.record.lock import FolderLock
from fedhp.record.store import RECORD_FILE, Store, description
from fedhp.rounds.context import extra_state
from fedhp.types import RoundRecord

EXPERIMENT = "experiment.toml"
# A checkpoint may take this share of the time at most, however slow the disk.
CHECKPOINT_SHARE = 0.05


class Run:
    """One experiment that runs in one folder."""

    def __init__(
        self, prepared: Prepared, folder: Path, *, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.prepared = prepared
        self.folder = folder
        self.stop = stop

    def rounds_done(self) -> int:
        return _last_round(self.folder)

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left; each is committed before it is yielded."""
        with self._opened() as (store, executor):
            reported = store.last_round()
            last = self.prepared.experiment.rounds
            started, before = time.monotonic(), float(store.meta("seconds") or 0.0)
            while True:
                loop = self._resumed_loop(store, executor)
                checkpoints = _Checkpoints(self, loop, executor)
                try:
                    for record in loop.rounds():
                        store.commit(record)
                        if record.round_index > reported or record.round_index == last:
                            yield record
                        reported = max(reported, record.round_index)
                        if self.stop():
                            raise Interrupted("stopped between rounds")
                        checkpoints.save_if_due()
                    break
                except StateLost:  # only the disk has it: repeat from the checkpoint, bit for bit
                    executor.shards.restart()
                except Interrupted:
                    done = store.last_round()
                    checkpoints.save_if_at(done)
                    store.set_meta("seconds", before + time.monotonic() - started)
                    store.set_meta("status", "interrupted")
                    raise Interrupted(
                        f"stopped after round {done}{self._goal(store)}; saved in {self.folder}",
                        fix="run the same command with --resume",
                    ) from None
                except Diverged as error:
                    checkpoints.save_if_at(store.last_round())
                    store.set_meta("status", "diverged")
                    store.set_meta("message", str(error))
                    raise
            checkpoints.save()
            store.set_meta("seconds", before + time.monotonic() - started)
            store.set_meta("peak_memory", peak_memory())
            store.set_meta("moved_bytes", executor.shards.moved)
            store.set_meta("stopped", loop.stop_condition.reason)
            store.seal()
            store.set_meta("status", "finished")
            store.leave_wal_mode()

    def _goal(self, store: Store) -> str:
        horizon = self.prepared.experiment.horizon
        if horizon is None:
            return f" of {self.prepared.experiment.rounds}"
        clock = store.columns("rounds", names=("clock",))["clock"]
        return f", at {clock[-1] if clock else 0.0:.6g} of {horizon:g} s of virtual time"

    @contextmanager
    def _opened(self) -> Iterator[tuple[Store, ShardedExecutor]]:
        """The record and the executor, for this process alone."""
        threads = torch.get_num_threads()
        with FolderLock(self.folder):
            try:
                with (
                    closing(Store.open(self.folder, write=True)) as store,
                    closing(self._executor()) as executor,
                ):
                    yield store, executor
            finally:
                torch.set_num_threads(threads)

    def _executor(self) -> ShardedExecutor:
        if self.prepared.experiment.engine == "ray":
            from fedhp.engine.ray import RayShards

            return ShardedExecutor(self.prepared, RayShards(self.prepared, stop=self.stop))
        scratch = self.folder if self.prepared.memory.mapped else None
        return LocalExecutor(self.prepared, scratch=scratch, stop=self.stop)

    def _resumed_loop(self, store: Store, executor: ShardedExecutor) -> RoundLoop | EventLoop:
        """A loop that continues after the checkpoint; later rounds of the record are dropped."""
        loop = loop_of(executor)
        saved = read_checkpoint(self.folder)
        if saved is not None:
            if store.last_round() < saved.round_index:
                raise RunError(
                    f"{self.folder}: the record ends at round {store.last_round()}, "
                    f"the checkpoint at {saved.round_index}: the record was damaged",
                    allowed="a record that reaches at least to the checkpoint",
                    fix="put the record back, or start the run again in another folder",
                )
            self._restore(loop, executor, saved)
        store.truncate(loop.checkpoint().round_index)
        _continue_after(loop.stop_condition, store)
        store.set_meta("status", "running")
        return loop

    def _restore(
        self, loop: RoundLoop | EventLoop, executor: ShardedExecutor, saved: Checkpoint
    ) -> None:
        models = saved.arrays.get("models")
        wanted = (self.prepared.experiment.workers, self.prepared.layout.width)
        if models is None or models.shape != wanted:
            shape = "none" if models is None else "x".join(map(str, models.shape))
            raise self._foreign(f"its models are {shape}, not {wanted[0]}x{wanted[1]}")
        try:
            restore(loop, executor, saved)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise self._foreign(f"{type(error).__name__}: {error}") from error

    def _foreign(self, why: str) -> RunError:
        return RunError(
            f"{self.folder}: the checkpoint does not belong to this experiment: {why}",
            allowed="the model, task and algorithm the run was started with, code included",
            fix="undo the change in your own part, or start the run again in another folder",
        )


class _Checkpoints:
    """Writes the checkpoints of a run, so often that they take a small share of the time."""

    def __init__(self, run: Run, loop: RoundLoop | EventLoop, executor: ShardedExecutor) -> None:
        self._folder = run.folder
        self._interval = run.prepared.experiment.checkpoint.seconds
        self._loop = loop
        self._executor = executor
        self._last, self._cost = time.monotonic(), 0.0  # when and how long the last one took

    def save_if_due(self) -> None:
        waited = time.monotonic() - self._last
        if waited >= self._interval and self._cost <= CHECKPOINT_SHARE * waited:
            self.save()

    def save_if_at(self, round_index: int) -> None:
        """Save if the models are those of this round: after it, tests may not have ended."""
        if self._loop.checkpoint().round_index == round_index:
            self.save()

    def save(self) -> None:
        started = time.monotonic()
        with run_storage_errors(self._folder):
            write_checkpoint(self._folder, checkpoint_of(self._loop, self._executor))
        self._last = time.monotonic()
        self._cost = self._last - started


def _continue_after(condition: StopCondition, store: Store) -> None:
    last = store.last_round()
    if last:
        here: dict[str, Any] = {"where": "round = ?", "values": (last,)}
        tested = store.columns("evaluations", names=("accuracy",), **here)["accuracy"]
        clock = store.columns("rounds", names=("clock",), **here)["clock"][0]
        sent = sum(store.columns("rounds", names=("bytes_sent",))["bytes_sent"])
        condition.resume(last, clock, sent, tested[0] if tested else None)


def loop_of(executor: ShardedExecutor) -> RoundLoop | EventLoop:
    prepared = executor.prepared
    if is_synchronous(prepared.algorithm):
        return RoundLoop(prepared, executor, tester=executor)
    return EventLoop(prepared, executor, tester=executor)


def checkpoint_of(loop: RoundLoop | EventLoop, executor: ShardedExecutor) -> Checkpoint:
    """The state of the last round's end, models included."""
    state, layout = loop.checkpoint(), executor.prepared.layout
    scalars, kept = dict(state.scalars), layout.state
    if kept.start < kept.stop:
        scalars[STATE_COLUMNS] = [kept.start, kept.stop]
    others = [slot for slot in layout.carried if slot.vector.name not in OPTIMIZER_STATE]
    if others:
        scalars[CARRIED_COLUMNS] = [[slot.start, slot.stop] for slot in others]
    return replace(state, arrays={**executor.state(), **state.arrays}, scalars=scalars)


def restore(loop: RoundLoop | EventLoop, executor: ShardedExecutor, saved: Checkpoint) -> None:
    """Continue from a checkpoint, which holds what the executor keeps."""
    names = executor.shards.kept()[0]
    executor.load({name: saved.arrays[name] for name in names})
    loop.restore(saved)


def start_run(
    experiment: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    label: str = "",
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """A new run in this folder, or with resume the one that is there."""
    target = Path(folder)
    resumed = check_folder(experiment, target, resume=resume)
    if experiment.engine == "ray":
        from fedhp.engine.ray import check_cluster

        with experiment.origins.named():
            check_cluster(experiment.ray.address)
    prepared = prepare(experiment)
    try_algorithm(prepared)
    if resumed:
        _extend(experiment, target)
    else:
        _check_space(prepared, target)
        try:
            _create(prepared, target, label=label or experiment.algorithm.name)
        except RunError:
            # Another process may have made the run in the meantime: the job of one that was just
            # killed, or a command with the same --out, which check_folder refuses.
            if not (is_run(target) and check_folder(experiment, target, resume=resume)):
                raise
    return Run(prepared, target, stop=stop)


def is_run(folder: Path) -> bool:
    return (folder / EXPERIMENT).is_file()


def is_finished(folder: Path) -> bool:
    return is_run(folder) and _meta(folder, "status") == "finished"


def is_complete(experiment: Experiment, folder: Path) -> bool:
    """Whether a folder holds this experiment, finished, and not to be extended."""
    return is_finished(folder) and not differences(
        _meta(folder, "experiment"), to_tables(experiment)
    )


def _meta(folder: Path, key: str) -> Any:
    with closing(Store.open(folder)) as store:
        return store.meta(key)


def check_folder(experiment: Experiment, folder: Path, *, resume: bool) -> bool:
    """Whether this folder holds a run to resume; refuse one that cannot be used."""
    with run_storage_errors(folder):
        if is_run(folder) and (folder / RECORD_FILE).is_file():
            if not resume:
                raise RunError(
                    f"--out {folder}: the folder already holds a run",
                    allowed="a folder that does not exist yet, or --resume to resume the run",
                    fix="add --resume, choose another --out, or delete the folder",
                )
            check_unchanged(experiment, folder)
            return True
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            why = f": it has no {RECORD_FILE}" if is_run(folder) else ""
            raise RunError(
                f"--out {folder}: exists and is not a run folder{why}",
                allowed="a folder that does not exist yet, or an empty one",
                fix="choose another --out",
            )
        os.rmdir(tempfile.mkdtemp(prefix=".fedhp-", dir=_existing(folder)))
    return False


def run_storage_errors(folder: Path) -> AbstractContextManager[None]:
    """Clear errors where a run cannot write to its folder."""
    return storage_errors(
        f"--out {folder}",
        option="--out",
        recovery="resume the run with --resume; committed rounds are kept",
    )


def _check_space(prepared: Prepared, folder: Path) -> None:
    """Refuse when the disk clearly cannot hold the run."""
    experiment, traits = prepared.experiment, traits_of(prepared.algorithm)
    matrices = 2 if is_synchronous(prepared.algorithm) else 3
    matrices += 2 * len(extra_state(experiment, prepared.algorithm))
    if traits.group_average:
        matrices += 2 * len(GROUP_STATE)
    per_link = rule_of(prepared.algorithm).per_link()
    # Two checkpoints, while one replaces the other.
    copies = 2 * count_copies(experiment, traits, per_link=per_link)
    checkpoint = 4 * prepared.layout.width * (experiment.workers * matrices + copies)
    links = len(prepared.federation.base_topology.links)
    rounds = experiment.rounds
    if experiment.horizon is not None:  # rounds at least as long as the slowest worker's steps
        slowest = float(prepared.world.devices.mean.max())
        steps = prepared.epoch_steps
        fixed = experiment.training.local_steps if steps is None else int(steps.min())
        rounds = int(experiment.horizon / (fixed * slowest))
    records = rounds * round_bytes(experiment.workers, links)
    mapped = prepared.memory.models if prepared.memory.mapped else 0
    check_free_space(
        f"--out {folder}",
        checkpoint + records + mapped,
        free=shutil.disk_usage(_existing(folder)).free,
        what="the run",
        option="--out",
    )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    while not folder.exists() and folder.parent != folder:
        folder = folder.parent
    return folder


def _create(prepared: Prepared, target: Path, *, label: str) -> None:
    with run_storage_errors(target), new_folder(target) as folder:
        store = Store.create(folder)
        asynchronous = is_asynchronous(prepared.algorithm)
        meta: dict[str, Any] = {
            **description(prepared.experiment, label=label, asynchronous=asynchronous),
            "devices": list(prepared.world.devices.names),
            "metric": prepared.task.metric_name,
            "learning_rate": prepared.learning_rate,
            "parameters": prepared.facts.parameters,
            "model_bytes": prepared.model_bytes,
            **({"transfer_share": prepared.transfer_share} if prepared.transfer_share != 1 else {}),
            "samples": [len(part) for part in prepared.parts],
        }
        for key, value in meta.items():
            store.set_meta(key, value)
        store.leave_wal_mode()
        store.close()
        tables = to_tables(prepared.experiment)
        write_file(folder / EXPERIMENT, tomli_w.dumps(tables).encode())


def check_unchanged(experiment: Experiment, folder: Path) -> None:
    """Refuse to resume a run under other settings."""
    recorded = _meta(folder, "experiment")
    if not isinstance(recorded, dict):
        raise RunError(
            f"{folder}: the record does not say with which settings the run was started",
            allowed="a record this program wrote, unchanged",
            fix="start the run again in another folder",
        )
    changed = differences(recorded, to_tables(experiment))
    if changed and all(_extends(*change) for change in changed):
        for key, old, new in changed:
            if key in LENGTHS:
                _check_extendable(experiment, folder, key=key, old=old, new=new)
    elif changed:
        key, old, new = changed[0]
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise RunError(
            f"{folder}: {key} is {_shown(new)}, but the run was started with {_shown(old)}{more}",
            allowed="the settings the run was started with",
            fix=f"set {key} back, or start a new run with another --out",
        )


LENGTHS = ("rounds", "horizon")  # a run has one or the other, and can get more of it

# Settings of tables only: a run that has them otherwise is the same run.
REPORTED = ("evaluation.targets", "evaluation.times", "evaluation.final_mean")


def may_change_on_resume(key: str) -> bool:
    """Whether a run can be resumed with another value of this setting, at least some values."""
    section = key.split(".")[0]
    return key in (*LENGTHS, *REPORTED) or section in ("until", *FREE_ON_RESUME)


def _extends(key: str, old: Any, new: Any) -> bool:
    """Whether a changed setting only lets a run continue for longer, or is reported otherwise."""
    if key in REPORTED:
        return True
    if key in LENGTHS:
        return old is not None and new is not None and bool(new > old)
    return key.startswith("until") and (new is None or (old is not None and new > old))


def _check_extendable(
    experiment: Experiment, folder: Path, *, key: str, old: float, new: float
) -> None:
    """Refuse more rounds where earlier decisions would have been different with them."""
    part = experiment.algorithm
    if traits_of(load_algorithm(part.name, part.settings)).uses_rounds:
        problem = f"the algorithm {part.name!r} may use the length of the run"
        hint = "if it is your own and does not, set traits = Traits(uses_rounds=False) in its class"
    elif experiment.training.schedule == "cosine" and _last_round(folder):
        problem = "the learning rates of training.schedule = 'cosine' end with the run"
        hint = "or use another training.schedule where runs shall be continued"
    else:
        return
    raise RunError(
        f"{folder}: {key} is {new}, but the run was started with {old}, and "
        f"with {key} = {new} earlier decisions would have been different: {problem}",
        allowed=f"{key} = {old}, or more where no earlier decision depends on it",
        fix=f"start a new run with {key} = {new} and another --out ({hint})",
    )


def _last_round(folder: Path) -> int:
    with closing(Store.open(folder)) as store:
        return store.last_round()


def _irregular_tests(store: Store, experiment: Experiment) -> list[int]:
    """The rounds that were tested only because the run ended with them."""
    rounds = store.columns("rounds", names=("round", "clock"))
    clocks = dict(zip(rounds["round"], rounds["clock"], strict=True))
    return [
        index
        for index in store.columns("evaluations", names=("round",))["round"]
        if not is_due(
            experiment.evaluation, index, started=clocks.get(index - 1, 0.0), clock=clocks[index]
        )
    ]


def _extend(experiment: Experiment, folder: Path) -> None:
    """Let a run that was started with fewer rounds go on, as if these had been asked for."""
    tables = to_tables(experiment)
    changed = differences(_meta(folder, "experiment"), tables)
    if not any(_extends(*change) for change in changed):
        return
    with FolderLock(folder), run_storage_errors(folder):
        with closing(Store.open(folder, write=True)) as store:
            condition = StopCondition(experiment, tested=True)
            _continue_after(condition, store)
            ended = store.last_round() >= condition.last_round
            meta: dict[str, Any] = {"experiment": tables, "status": "interrupted"}
            if experiment.horizon is None:
                meta["rounds"] = experiment.rounds
            irregular = None if ended else _irregular_tests(store, experiment)
            store.extend(meta, irregular=irregular)
            store.leave_wal_mode()
        write_file(folder / EXPERIMENT, tomli_w.dumps(tables).encode())


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)
