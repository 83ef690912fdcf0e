"""Logs as the libraries' own readers see them: scalars by name and round, parameters, the end.

A library that is not installed skips the test, and says which.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.sinks.mlflow import RUN_TAG, store_uri

Scalars = dict[str, dict[int, float]]  # by name and round
SINKS = ("tensorboard", "mlflow", "wandb")


@dataclass
class ReadLog:
    """One run's log."""

    scalars: Scalars = field(default_factory=dict)
    times: Scalars = field(default_factory=dict)  # s after the log's beginning
    settings: dict[str, Any] = field(default_factory=dict)
    digest: str | None = None
    status: str = ""
    repeated: int = 0  # points of a name and round that has one already

    def add(self, name: str, step: int, value: float, time: float = 0.0) -> None:
        self.repeated += step in self.scalars.get(name, {})
        self.scalars.setdefault(name, {})[step] = value
        self.times.setdefault(name, {})[step] = time


def require(*sinks: str) -> None:
    """Skip where a library is absent."""
    for name in sinks:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (pip install '.[{name}]')")


def read_log(sink: str, run: Path, *, store: Path | None = None) -> ReadLog:
    """The log of a run, where it is by default."""
    if sink == "tensorboard":
        return read_tensorboard(run / "tensorboard")
    if sink == "mlflow":
        return read_mlflow(store or run / "mlflow.db")["."]
    return read_wandb(run / "wandb")


def read_tensorboard(folder: Path) -> ReadLog:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    log = ReadLog()
    start = events.FirstEventTimestamp()
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            log.add(name, event.step, event.value, event.wall_time - start)
    content = events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    for key, value in HParamsPluginData.FromString(content).session_start_info.hparams.items():
        log.settings[key] = getattr(value, value.WhichOneof("kind"))
    if "summary" in events.Tags()["tensors"]:
        (text,) = events.Tensors("summary")
        summary = json.loads(text.tensor_proto.string_val[0])
        log.digest, log.status = summary["digest"], summary["status"]
    return log


def read_mlflow(store: Path) -> dict[str, ReadLog]:
    """All runs of a store, by their folders from that of the store on."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store_uri(store), registry_uri=store_uri(store))
    logs: dict[str, ReadLog] = {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            log = ReadLog(settings=dict(run.data.params), status=run.info.status)
            log.digest = run.data.tags.get("fedhp.digest")
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    after = (metric.timestamp - run.info.start_time) / 1000
                    log.add(name, metric.step, metric.value, after)
            assert run.data.tags[RUN_TAG] not in logs
            logs[run.data.tags[RUN_TAG]] = log
    return logs


def read_wandb(folder: Path) -> ReadLog:
    """The single offline run in a folder, with `wandb leet inspect`."""
    (file,) = folder.glob("offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    log = ReadLog()
    for record in map(json.loads, output.splitlines()):
        if record["type"] == "run":
            log.settings = record["run"]["config"]["update"]
        elif record["type"] == "history":
            for name, value in record["history"]["item"].items():
                if not name.startswith("_"):
                    log.add(name, record["history"]["step"]["num"], value)
        elif record["type"] == "summary" and "final" in record["summary"]["update"]:
            final = record["summary"]["update"]["final"]
            log.digest, log.status = final["digest"], final["status"]
    return log


def as_stored(sink: str, value: float) -> float:
    """A number as the sink keeps it."""
    return float(np.float32(value)) if sink == "tensorboard" else value


def history(log: ReadLog) -> Scalars:
    """The scalars by round, without the numbers of the end."""
    return {name: points for name, points in log.scalars.items() if not name.startswith("final/")}
