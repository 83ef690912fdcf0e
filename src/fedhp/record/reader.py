"""Reading a finished or unfinished run: arrays, tables, and a summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhp.config import MOST_WORKERS
from fedhp.errors import RunError
from fedhp.files import UNFINISHED
from fedhp.record.checkpoint import current_models, own_parameters, read_checkpoint
from fedhp.record.lock import is_held
from fedhp.record.store import RECORD_FILE, Store
from fedhp.texts import printable_texts
from fedhp.types import FloatArray, LinkVerdict

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedhp.record.models import RunModels

Columns = dict[str, list[Any]]
VERDICT = "verdict"  # a column of numbers in the record, of words for those who read it
VERDICT_WORDS = {int(verdict): verdict.word for verdict in LinkVerdict}

# The folder of `fedhp tune` has this file, and its runs in these folders.
SEARCH_FILE, TRIALS, COMPARED = "search.json", "trials", "comparison"
TESTS_FOR_A_MEAN = 10  # a run with fewer tests still learns between its last ones


class RunReader:
    """A run folder, read only."""

    def __init__(self, folder: str | Path, *, trust: Sequence[str] = ()) -> None:
        """trust: own modules that models of this run may be built with; nothing else needs one."""
        self.folder = Path(folder)
        self._trust = tuple(trust)
        self._store = Store.open(self.folder)
        workers = self._store.meta("workers")
        valid = type(workers) is int and 1 <= workers <= MOST_WORKERS
        if workers is not None and not valid:
            raise RunError(
                f"{self.folder}: the record is damaged: it has {workers!r} workers",
                allowed=f"1 to {MOST_WORKERS}",
                fix="start the run again in another folder",
            )

    def close(self) -> None:
        """Close the record."""
        self._store.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def meta(self, key: str) -> Any:
        """A value of the run's description: label, algorithm, seed, devices, status, ...

        Its texts are bounded and printable: they may come from somebody else.
        """
        return printable_texts(self._store.meta(key))

    @property
    def status(self) -> str:
        """created, running, interrupted, finished or diverged; a run is running only while a
        process works on it."""
        recorded = str(self.meta("status"))
        if recorded == "running" and is_held(self.folder) is False:
            return "interrupted"
        return recorded

    def check(self) -> None:
        """Refuse a record with damaged bytes: a finished run knows the hash of its numbers."""
        self._store.check()

    def check_sealed(self) -> None:
        """Refuse a finished record without its hashes; they are not compared."""
        self._store.check_sealed()

    @property
    def rounds_done(self) -> int:
        """How many rounds are committed."""
        return self._store.last_round()

    def snapshot(self) -> AbstractContextManager[None]:
        """Inside, all tables are read as of one moment, while the run goes on."""
        return self._store.snapshot()

    def last_row(self, table: str) -> dict[str, Any] | None:
        """The last row of a table, None if it is empty."""
        return self._store.last_row(table)

    def extremes(self, table: str, column: str, *, first_round: int = 1) -> Columns:
        """The columns round, lowest and highest: of the values of one column in every round."""
        return self._store.extremes(table, column, first_round=first_round)

    def table(
        self,
        name: str,
        *,
        round_index: int | None = None,
        first_round: int | None = None,
        columns: Sequence[str] = (),
        last_round: int | None = None,
    ) -> Columns:
        """A table as columns (pandas.DataFrame(run.table("rounds")) just works).

        Tables: rounds, workers, links, verdicts, facts, evaluations, worker_evaluations,
        final_evaluations, final_worker_evaluations, participation, test_metrics,
        worker_test_metrics, class_test_metrics, own_test_metrics, phases, wall.
        A single round can be read, or all from a first round on, up to a last one if it is given;
        all columns, or those named.
        Verdicts are words: "cut", "kept_bridge", ... (fedhp.LinkVerdict).
        Of very many links only a selection is recorded: see `links_kept`.
        """
        where, values = "", tuple[int, ...]()
        if last_round is not None:
            where, values = "round BETWEEN ? AND ?", (first_round or 0, last_round)
        elif first_round is not None:
            where, values = "round >= ?", (first_round,)
        elif round_index is not None:
            where, values = "round = ?", (round_index,)
        table = self._store.columns(name, names=columns, where=where, values=values)
        if VERDICT in table:
            table[VERDICT] = [_verdict_word(verdict) for verdict in table[VERDICT]]
        return table

    def worker_rows(self, table: str, worker: int, *, columns: Sequence[str] = ()) -> Columns:
        """The rows of one worker in a table that has one per worker and round."""
        return self._store.columns(table, names=columns, where="worker = ?", values=(worker,))

    def last_of_workers(self, table: str, column: str, *, last_round: int) -> Columns:
        """Each worker's last value of a column up to a round, and its round, by worker."""
        return self._store.last_of_workers(table, column, last_round=last_round)

    def last_workers(self, *, first_round: int, last_round: int) -> Columns:
        """Who finished last in every round, see fedhp.record.timeline."""
        return self._store.last_workers(first_round=first_round, last_round=last_round)

    def blocks(self, name: str) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a table, some at a time, after its header: for large tables."""
        blocks = self._store.blocks(name)
        yield (header := next(blocks))
        column = header[0].index(VERDICT) if VERDICT in header[0] else None
        for rows in blocks:
            yield (
                rows
                if column is None
                else [
                    (*row[:column], _verdict_word(row[column]), *row[column + 1 :]) for row in rows
                ]
            )

    def column_types(self, name: str) -> dict[str, str]:
        """The columns of a table with their types: INTEGER, REAL or TEXT."""
        types = self._store.types(name)
        return {column: "TEXT" if column == VERDICT else types[column] for column in types}

    def links_kept(self, round_index: int | None = None) -> tuple[int, int]:
        """How many links are recorded, and how many there were, in a round or in all."""
        table = self.table("rounds", round_index=round_index)
        return sum(table["links_recorded"]), sum(table["links_known"])

    def array(self, table: str, column: str) -> FloatArray:
        """One column as numbers; missing values are NaN. For `workers`: [rounds, workers]."""
        names = self._store.names(table)
        if column not in names:
            raise RunError(
                f"the table {table!r} has no column {column!r}",
                allowed=", ".join(names),
                fix="choose one of these",
            )
        values = np.array(self._store.columns(table, names=(column,))[column], dtype=np.float64)
        if table in ("workers", "worker_evaluations"):
            return values.reshape(-1, int(self.meta("workers")))
        return values

    def models(self) -> NDArray[np.float32] | None:
        """Every worker's model as of the last checkpoint, [N, parameters]; None before it.

        It is the model that is tested: with group averages (FedHP+) the consensus that the worker
        holds, with push-sum the model divided by its weight. Running statistics (BatchNorm) come
        after the parameters. What travels along, or belongs to the optimizer, is left out.
        """
        saved = read_checkpoint(self.folder, mapped=True)
        return None if saved is None else own_parameters(saved)

    def model(self, worker: int) -> nn.Module:
        """A worker's model as of the last checkpoint: a new torch module with its weights."""
        return self.run_models().model(worker)

    def mean_model(self) -> nn.Module:
        """The mean of all workers' models as of the last checkpoint, as a new torch module."""
        return self.run_models().mean_model()

    def state_dict(self, worker: int | None = None) -> dict[str, Tensor]:
        """The tensors of a worker's model, or of the mean model, by their names in the module."""
        module = self.mean_model() if worker is None else self.model(worker)
        return dict(module.state_dict())

    def run_models(self) -> RunModels:
        """All models as of the last checkpoint; builds the run's task, which reads its data."""
        from fedhp.record.models import RunModels

        saved = read_checkpoint(self.folder, mapped=True)
        if saved is None and self.meta("network"):
            raise RunError(
                f"{self.folder}: no process of a network run has all models",
                allowed="a run of `fedhp run`, `compare` or `sweep`",
                fix="read the model of each worker from workers/NAME/model.safetensors",
            )
        if saved is None:
            raise RunError(
                f"{self.folder}: there is no checkpoint yet, so there are no models",
                allowed="a finished run, or one that has written a checkpoint",
                fix="let the run finish, with --resume if it was interrupted",
            )
        return RunModels(self.folder, self.meta("experiment"), saved, trust=self._trust)

    def digest(self) -> str:
        """A hash of all numbers of the run, models included: equal runs have equal digests."""
        saved = read_checkpoint(self.folder, mapped=True)
        return self._store.digest(None if saved is None else current_models(saved))

    def summary(self) -> RunSummary:
        """The run in a few numbers."""
        return summarize(self)


def _verdict_word(verdict: int | None) -> str | None:
    """The word for a recorded verdict; the number of one that this version does not know."""
    if verdict is None:
        return None
    return VERDICT_WORDS.get(verdict, str(verdict))


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run in numbers; the fields of `--json`."""

    algorithm: str
    seed: int
    metric: str  # what "accuracy" means: accuracy, or the metric of the user's own task
    status: str
    rounds: int
    final_accuracy: float | None
    best_accuracy: float | None
    mean_model_accuracy: float | None
    whole_test_accuracy: float | None  # of the last models, if rounds used a part of the test set
    completion_time: float
    round_time: float | None
    mean_waiting_time: float | None
    mean_local_steps: float | None
    bytes_sent: int
    time_to_target: dict[str, float | None]
    digest: str
    worst_worker_accuracy: float | None = None  # over the tests of final_accuracy
    best_worker_accuracy: float | None = None
    final_tests: int = 1  # final_accuracy and mean_model_accuracy: mean of this many last tests
    final_loss: float | None = None  # test loss, mean of the workers, over the same tests
    mean_model_loss: float | None = None
    own_accuracy: float | None = None  # on what each worker held back, mean of the workers
    class_accuracy: list[float | None] | None = None  # by class, over the same tests
    mean_model_class_accuracy: list[float | None] | None = None
    accuracy_at_time: dict[str, float | None] = field(default_factory=dict)  # evaluation.times
    bytes_to_target: dict[str, int | None] = field(default_factory=dict)  # sent by all until then
    last_accuracy: float | None = None  # of the last test alone

    def as_json(self) -> dict[str, Any]:
        """Plain values; NaN and infinity become null, since JSON has no such numbers."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(content) for key, content in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarize(run: RunReader) -> RunSummary:
    """Final = mean of the last `final_tests` tests; time and bytes to target as in `time_to`."""
    rounds, tests = run.table("rounds"), run.table("evaluations")
    evaluation, interpolated = run.meta("experiment")["evaluation"], interpolates(run)
    # The final number is that of one test where there are only a few.
    last = evaluation["final_mean"] if len(tests["accuracy"]) >= TESTS_FOR_A_MEAN else 1
    own = run.table("own_test_metrics", first_round=min(tests["round"][-last:], default=0))
    losses = final_metrics(run, "test_metrics", tests["round"][-last:])
    classes = final_metrics(run, "class_test_metrics", tests["round"][-last:])
    by_worker = list(worker_finals(run, tests["round"][-last:]).values())

    def crossings(clock: Sequence[float]) -> dict[str, float | None]:
        return {
            target_key(target): time_to(target, clock, tests["accuracy"], interpolated=interpolated)
            for target in evaluation["targets"]
        }

    return RunSummary(
        algorithm=run.meta("label"),
        seed=run.meta("seed"),
        metric=run.meta("metric"),
        status=run.status,
        rounds=len(rounds["round"]),
        final_accuracy=mean(tests["accuracy"][-last:]),
        last_accuracy=mean(tests["accuracy"][-1:]),
        best_accuracy=max(tests["accuracy"], default=None),
        mean_model_accuracy=mean(tests["mean_model_accuracy"][-last:]),
        whole_test_accuracy=mean(run.table("final_evaluations")["accuracy"]),
        completion_time=rounds["clock"][-1] if rounds["clock"] else 0.0,
        round_time=mean(rounds["round_time"]),
        mean_waiting_time=mean(rounds["mean_waiting_time"]),
        mean_local_steps=mean(rounds["mean_local_steps"]),
        bytes_sent=sum(rounds["bytes_sent"]),
        time_to_target=crossings(tests["clock"]),
        digest=run.digest(),
        worst_worker_accuracy=min(by_worker, default=None),
        best_worker_accuracy=max(by_worker, default=None),
        final_tests=min(last, max(1, len(tests["accuracy"]))),
        final_loss=mean(losses["loss"]),
        mean_model_loss=mean(losses["mean_model_loss"]),
        own_accuracy=mean(own["accuracy"]),
        class_accuracy=_by_class(classes, "accuracy"),
        mean_model_class_accuracy=_by_class(classes, "mean_model_accuracy"),
        accuracy_at_time={
            time_key(time): accuracy_at(time, tests, end=rounds["clock"][-1:])
            for time in evaluation.get("times") or ()
        },
        bytes_to_target={
            target: None if crossing is None else round(crossing)
            for target, crossing in crossings(sent_until_tests(run)).items()
        },
    )


def sent_until_tests(run: RunReader) -> list[int]:
    """The bytes that all workers had sent at each test."""
    rounds = run.table("rounds")
    sent = dict(zip(rounds["round"], accumulate(rounds["bytes_sent"]), strict=True))
    return [sent[round_index] for round_index in run.table("evaluations")["round"]]


def final_metrics(run: RunReader, table: str, rounds: Sequence[int]) -> Columns:
    """The rows of a table of metrics that belong to these last evaluated rounds."""
    rows = run.table(table, first_round=rounds[0] if rounds else 0)
    kept = [index for index, whole in enumerate(rows["whole"]) if not whole]
    return {name: [column[index] for index in kept] for name, column in rows.items()}


def _by_class(rows: Columns, column: str) -> list[float | None] | None:
    """The mean of a column for every class; None if classes were not tested."""
    if not rows["class"]:
        return None
    values: dict[int, list[float | None]] = {}
    for number, value in zip(rows["class"], rows[column], strict=True):
        values.setdefault(number, []).append(value)
    return [mean(values[number]) for number in sorted(values)]


def worker_finals(run: RunReader, rounds: Sequence[int]) -> dict[int, float]:
    """Each worker's mean over the tests of these consecutive evaluated rounds."""
    if not rounds:
        return {}
    tests = run.table("worker_evaluations", first_round=rounds[0])
    by_worker: dict[int, list[float]] = {}
    for worker, accuracy in zip(tests["worker"], tests["accuracy"], strict=True):
        by_worker.setdefault(worker, []).append(accuracy)
    return {worker: float(np.mean(values)) for worker, values in by_worker.items()}


def target_key(target: float) -> str:
    """A target as text: two decimals, or more where it has them."""
    short = f"{target:.2f}"
    return short if float(short) == target else repr(float(target))


def interpolates(run: RunReader) -> bool:
    """Whether the times to a target of this run are interpolated: if it is tested by the clock."""
    return run.meta("experiment")["evaluation"].get("seconds") is not None


def time_to(
    target: float, clock: Sequence[float], values: Sequence[float], *, interpolated: bool = False
) -> float | None:
    """Virtual time of the first test that reaches the target; interpolated, the time at which the
    line from the test before crosses it. With the bytes sent instead of the clock: its bytes."""
    for index, (time, value) in enumerate(zip(clock, values, strict=True)):
        if value >= target:
            if not (interpolated and index):
                return float(time)
            before, lower = clock[index - 1], values[index - 1]
            return float(before + (time - before) * (target - lower) / (value - lower))
    return None


def time_key(time: float) -> str:
    """A time in seconds as text: 60, or 62.5."""
    return f"{time:.0f}" if time == int(time) else repr(float(time))


def accuracy_at(time: float, tests: Columns, *, end: Sequence[float]) -> float | None:
    """The result of the last evaluation up to this time; None if the run ended before, or had
    no evaluation yet. `end` holds the clock of the last round, if there is one."""
    if not end or end[0] < time:
        return None
    results = [a for c, a in zip(tests["clock"], tests["accuracy"], strict=True) if c <= time]
    return results[-1] if results else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None."""
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def find_runs(folder: str | Path) -> list[Path]:
    """The run folders at or below a folder, sorted; of a tuning those that it compares."""
    top = Path(folder)
    if (top / SEARCH_FILE).is_file():
        if not (top / COMPARED).is_dir():
            raise RunError(
                f"{top} holds a tuning that has not reached its comparison yet",
                allowed="a tuning that has ended",
                fix="continue it with fedhp tune --resume, or name the folder of its trials: "
                f"{top / TRIALS}",
            )
        top = top / COMPARED
    if (top / RECORD_FILE).is_file():
        return [top]
    records = top.glob(f"**/{RECORD_FILE}")
    runs = sorted(record.parent for record in records if UNFINISHED not in record.parts)
    if not runs:
        raise RunError(
            f"{top} holds no run",
            allowed="a run folder, or a folder with runs in it",
            fix="check the path; `fedhp run` prints where it writes",
        )
    return runs
