"""MLflow: a local SQLite store, with one MLflow run for every run.

The step is the round; timestamps are virtual time after the start of the MLflow run. MLflow
cannot delete metrics: a log is continued if its numbers are those of the record, otherwise
another MLflow run takes its place. Tracking servers and MLflow's telemetry are never contacted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhp.sinks.base import Outdated
from fedhp.sinks.points import RoundPoints, RunDescription, RunOutcome, Values

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

STORE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"  # MLflow wants a folder for them; fedhp writes none
RUN_TAG, ID_TAG, MARK_TAG = "fedhp.run", "fedhp.id", "fedhp.log"
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # in one call
LONGEST_PARAMETER = 500
MOST_SECONDS = 60.0  # for other processes that write to the store
STATUS = {
    "running": "RUNNING",
    "interrupted": "KILLED",
    "finished": "FINISHED",
    "diverged": "FAILED",
}


def place_of(description: RunDescription, path: Path | None) -> Path:
    """The file of the store, one for all runs of a command."""
    return store_file(description.top, path)


def store_file(top: Path, path: Path | None) -> Path:
    """The file of the store: what the user names is the file, or the folder for it."""
    if path is None:
        return top / STORE
    return path / STORE if path.is_dir() or not path.suffix else path


def viewing(top: Path, path: Path | None) -> str:
    return f"mlflow ui --backend-store-uri {shlex.quote(store_uri(store_file(top, path)))}"


def store_uri(store: Path) -> str:
    return f"sqlite:///{store.absolute()}"


def is_marked(description: RunDescription, place: Path, mark: str) -> bool:
    if not place.is_file():
        return False
    found = _find(_client(place), description, place)
    return found is not None and found.data.tags.get(MARK_TAG) == mark


def open_log(description: RunDescription, place: Path, *, fresh: bool) -> MlflowLog:
    """The MLflow run of this run: the one that is there if its settings are the same."""
    place.parent.mkdir(parents=True, exist_ok=True)
    client = _client(place)

    from mlflow.entities import Param

    found = _find(client, description, place)
    if found is not None:
        same = found.data.params == _parameters(description) and MARK_TAG not in found.data.tags
        if same and not fresh:
            run_id = found.info.run_id
            client.update_run(run_id, status=STATUS["running"])
            held = _held(client, run_id, list(found.data.metrics))
            return MlflowLog(client, run_id, found.info.start_time, held)
        client.delete_run(found.info.run_id)
    tags = {
        RUN_TAG: _identity(description, place),
        ID_TAG: _hash(description, place),
        "fedhp.label": description.label,
        "fedhp.seed": str(description.seed),
        "fedhp.metric": description.metric,
    }

    experiment = _experiment(client, description, place)
    name = description.name.partition("/")[2] or description.name
    run = client.create_run(experiment, run_name=name, tags=tags)
    parameters = [Param(*item) for item in _parameters(description).items()]
    for some in _pieces(parameters, MOST_PARAMETERS):
        client.log_batch(run.info.run_id, params=some)
    return MlflowLog(client, run.info.run_id, run.info.start_time, {})


class MlflowLog:
    def __init__(
        self, client: MlflowClient, run_id: str, start: int, held: dict[int, Values]
    ) -> None:
        self._client, self._run_id, self._start = client, run_id, start
        self._held = held  # by round: what the store has, and was not compared yet

    def write(self, rounds: Sequence[RoundPoints]) -> None:
        metrics = []
        for points in rounds:
            held = self._held.pop(points.round_index, {})
            if not held.items() <= points.values.items():
                raise Outdated
            missing = {name: value for name, value in points.values.items() if name not in held}
            metrics += self._metrics(missing, points.clock, points.round_index)
        self._log(metrics)

    def finish(self, outcome: RunOutcome, *, mark: str) -> None:
        if self._held:  # rounds that the record does not have
            raise Outdated
        self._log(self._metrics(outcome.numbers, outcome.clock, outcome.round_index))
        self._client.set_tag(self._run_id, "fedhp.digest", outcome.summary.digest)
        self._client.set_tag(self._run_id, "fedhp.status", outcome.summary.status)
        status, end = STATUS[outcome.summary.status], self._timestamp(outcome.clock)
        self._client.set_terminated(self._run_id, status=status, end_time=end)
        self._client.set_tag(self._run_id, MARK_TAG, mark)

    def close(self, status: str) -> None:
        self._client.update_run(self._run_id, status=STATUS[status])

    def _log(self, metrics: list[Any]) -> None:
        for some in _pieces(metrics, MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=some)

    def _metrics(self, values: Values, clock: float, step: int) -> list[Any]:
        from mlflow.entities import Metric

        time = self._timestamp(clock)
        return [Metric(name, value, time, step) for name, value in values.items()]

    def _timestamp(self, clock: float) -> int:
        return self._start + round(1000 * clock)


def _client(store: Path) -> MlflowClient:
    # Read when MLflow is imported, or used first: it would report its use over the network, and
    # print the steps of making a database.
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    # Fail at once where MLflow would try for two minutes: no place for a file, not a database.
    with contextlib.closing(sqlite3.connect(store, timeout=MOST_SECONDS)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.rollback()
    return MlflowClient(tracking_uri=store_uri(store), registry_uri=store_uri(store))


def _experiment(client: MlflowClient, description: RunDescription, store: Path) -> str:
    name = description.top.name
    known = client.get_experiment_by_name(name)
    if known is None:
        artifacts = (store.absolute().parent / ARTIFACTS).as_uri()
        return client.create_experiment(name, artifact_location=artifacts)
    if known.lifecycle_stage != "active":
        client.restore_experiment(known.experiment_id)
    return str(known.experiment_id)


def _identity(description: RunDescription, store: Path) -> str:
    """The run's folder, from that of the store: both may be moved together."""
    return os.path.relpath(description.folder, store.absolute().parent)


def _hash(description: RunDescription, store: Path) -> str:
    """The identity without the characters that MLflow cannot search for, such as quotes."""
    return hashlib.sha256(_identity(description, store).encode()).hexdigest()[:32]


def _find(client: MlflowClient, description: RunDescription, store: Path) -> Any:
    experiment = client.get_experiment_by_name(description.top.name)
    if experiment is None:
        return None
    wanted = f"tags.`{ID_TAG}` = '{_hash(description, store)}'"
    return next(iter(client.search_runs([experiment.experiment_id], wanted, max_results=1)), None)


def _held(client: MlflowClient, run_id: str, names: Sequence[str]) -> dict[int, Values]:
    held: dict[int, Values] = {}
    for name in names:
        for metric in client.get_metric_history(run_id, name):
            held.setdefault(metric.step, {})[name] = metric.value
    return held


def _parameters(description: RunDescription) -> dict[str, str]:
    settings = {"label": description.label, **description.settings}
    return {key: str(value)[:LONGEST_PARAMETER] for key, value in settings.items() if value != ""}


def _pieces(items: list[Any], most: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
