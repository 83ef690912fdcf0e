"""The runs of a campaign as Ray tasks, each a whole run that writes its folder on a shared disk.

A task that is lost with its machine is started again elsewhere and resumes the run from its
checkpoint, bit for bit.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fedhp import components
from fedhp.config import Experiment
from fedhp.engine.ray import check_cluster, import_ray, start_ray
from fedhp.engine.runs.job import Event, cell_events
from fedhp.engine.runs.run import is_run
from fedhp.errors import ConfigError, RunError, install_extra
from fedhp.tables import COMMAND_LINE

LOCAL = "local"  # the address that starts Ray on this machine
MAX_LOSSES = 3  # of one run: then it is not bad luck
DATA_FOLDER = "FEDHP_DATA"


@contextmanager
def ray_jobs(
    address: str, runs: Sequence[tuple[Experiment, Path]], *, stop: Callable[[], bool]
) -> Iterator[tuple[Callable[[], RayJob], int]]:
    """A connection to Ray for the time of a campaign: what makes a job, and how many cores there
    are. Ray is ended if it was started here."""
    if any(experiment.engine == "ray" for experiment, _ in runs):
        raise ConfigError(
            "engine = 'ray' spreads the workers of one run, --ray whole runs",
            key="--ray",
            source=COMMAND_LINE,
            allowed="one of them",
            fix="remove --ray, or set engine=local",
        )
    where = None if address == LOCAL else address
    try:
        check_cluster(where)
        ray = import_ray()
        started = start_ray(ray, where, stop=stop)
    except ConfigError as error:
        raise _of_the_option(error) from None
    try:
        cores = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        for experiment, _ in runs:
            _check_cores(experiment, max(cores, default=0))
        for _, folder in runs:  # the tasks look for it, to notice a disk that is not shared
            folder.parent.mkdir(parents=True, exist_ok=True)
        yield partial(RayJob, ray), max(1, int(sum(cores)))
    finally:
        if started:
            ray.shutdown()


class RayJob:
    """Runs one cell after another, each as a task, wherever Ray has a free core."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._task: Any = None
        self._stopped = False

    def run(self, message: Mapping[str, Any]) -> Iterator[Event]:
        """Start a task and pass on what it reports; a task that is lost is started again."""
        errors = self._ray.exceptions
        cell = {**message, "folder": os.path.abspath(message["folder"])}
        folders = [os.path.dirname(os.path.abspath(message["file"])), os.getcwd()]
        for _ in range(MAX_LOSSES):
            if self._stopped:
                return
            self._task = self._start(cell, folders)
            try:
                for reference in self._task:
                    event: Event = self._ray.get(reference)
                    if event["event"] == "finished" and not is_run(Path(message["folder"])):
                        event = _not_shared(Path(message["folder"]), "this machine")
                    yield event
                return
            except errors.RayTaskError as error:
                yield {"event": "failed", "kind": "RunError", "message": str(error.cause or error)}
                return
            except errors.RayError:
                continue

    def stop(self) -> None:
        """Kill the task: everything committed is on disk, and resuming repeats the rest."""
        self._stopped = True
        if self._task is not None:
            self._ray.cancel(self._task, force=True)

    def close(self) -> None:
        """There is nothing to end."""

    def _start(self, cell: Mapping[str, Any], folders: list[str]) -> Any:
        tables = cell["experiment"]
        cores = tables["executors"] if isinstance(tables["executors"], int) else 1
        task = self._ray.remote(
            num_cpus=cores,
            num_gpus=1 if tables["device"].startswith("cuda") else 0,
            num_returns="streaming",
            max_retries=0,
        )(run_task)
        return task.remote(dict(cell), folders, os.environ.get(DATA_FOLDER))


def run_task(cell: dict[str, Any], folders: list[str], data: str | None) -> Iterator[Event]:
    if data is not None:
        os.environ.setdefault(DATA_FOLDER, data)
    # The user's own parts are looked for where the driver found them.
    components.make_importable(*folders)
    if Path(cell["folder"]).parent.is_dir():
        yield from cell_events(cell)
    else:
        yield _not_shared(Path(cell["folder"]).parent, socket.gethostname())


def _not_shared(folder: Path, machine: str) -> Event:
    error = RunError(
        f"{folder} is not there on {machine}: the machines of the Ray cluster do not share it",
        allowed="an --out folder on a disk that all machines share",
        fix="choose such an --out",
    )
    return {"event": "failed", "kind": "RunError", "message": str(error)}


def _of_the_option(error: ConfigError) -> ConfigError:
    """An error about the Ray of engine = "ray" as one about --ray."""
    if error.key == "engine":  # it is not installed
        fix = f"{install_extra('ray')}; or remove --ray"
    else:
        fix = "start a cluster with `ray start --head`, or write --ray local"
    return ConfigError(
        error.detail,
        key="--ray",
        source=COMMAND_LINE,
        allowed="HOST:PORT of a running cluster, auto for the one of this machine, or local",
        fix=fix,
    )


def _check_cores(experiment: Experiment, most: float) -> None:
    """Refuse a run that would wait for ever for a machine with enough cores."""
    needed = experiment.executors if isinstance(experiment.executors, int) else 1
    if needed > most:
        raise ConfigError(
            f"a run with {needed} executors needs as many cores, but the largest machine of the "
            f"Ray cluster has {most:g}",
            key="executors",
            allowed=f"at most {max(1, int(most))}",
            fix="lower executors",
        )
