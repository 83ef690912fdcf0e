"""Coordinators and workers as processes of this machine, forked from one that has torch loaded.

None outlives the launcher, however that ends: each watches a pipe of the launcher, and Linux
kills it together with the fork server, which watches another. Without a fork server, 30 workers
would take minutes and gigabytes to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedhp.children import SAFE_PATH
from fedhp.cluster.coordinator.process.leadership import (
    CoordinatorProcessSettings,
    coordinate,
    stand_by,
)
from fedhp.cluster.ops import logs
from fedhp.cluster.protocol import limits
from fedhp.errors import Interrupted, as_fedhp_error, restart_helps, service_exit_codes
from fedhp.files import PRIVATE_FILE, PRIVATE_FOLDER
from fedhp.types import RoundRecord

if TYPE_CHECKING:
    from fedhp.cluster.worker.worker import WorkerSettings

LOG = logging.getLogger("fedhp.process")
# What every process needs; user-defined data sets and models are loaded by those that use them.
PRELOADED = (
    "fedhp.cluster.worker.worker",
    "fedhp.cluster.coordinator.process.leadership",
    "torch",
    "sklearn.datasets",
)
# Numerical libraries read these when they are loaded: many processes share few cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PR_SET_PDEATHSIG = 1
STANDBY_STOP_SECONDS = 10.0  # for a standby to end after SIGTERM
STANDBY_RESTART_SECONDS = 5.0  # as RestartSec of the systemd units
STANDBY_POLL_SECONDS = 0.2  # between two looks whether the worker ended
STANDBY_END_SECONDS = 2 * limits.POLL_SECONDS  # for it to end by itself when the run is over


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """Where a process logs, and its additional environment variables."""

    log: Path | None  # None: to the launcher's standard error
    log_format: logs.Format = "text"
    variables: tuple[tuple[str, str], ...] = ()


Settings = TypeVar("Settings", CoordinatorProcessSettings, "WorkerSettings")


class StandbyProcess:
    """A standby coordinator of a worker, as long as the worker runs; restarted if that helps.

    Its own thread starts it, waits for it and ends it: Linux takes that thread for its parent.
    """

    def __init__(self, start: Callable[[], BaseProcess]) -> None:
        self._start = start
        self._end_seconds = 0.0  # that it may take to end by itself after its worker
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="standby")
        self._thread.start()

    def let_run_end(self) -> None:
        """The run is over: the standby may lead it, and other workers still have to hear so."""
        self._end_seconds = STANDBY_END_SECONDS

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def _supervise(self) -> None:
        while not self._ending.is_set():
            process = self._start()
            while process.is_alive() and not self._ending.is_set():
                process.join(STANDBY_POLL_SECONDS)
            if self._ending.is_set():
                process.join(self._end_seconds)
                process.terminate()
                process.join(STANDBY_STOP_SECONDS)
                process.kill()
                process.join()
                return
            code, ended = process.exitcode or 0, "the standby coordinator ended (exit code %d); "
            if not restart_helps(code):
                if code:
                    LOG.error(ended + "see above", code)
                return
            LOG.warning(ended + "it is restarted in %g s", code, STANDBY_RESTART_SECONDS)
            self._ending.wait(STANDBY_RESTART_SECONDS)


@contextlib.contextmanager
def standby_process(
    settings: CoordinatorProcessSettings | None, environment: ProcessEnvironment
) -> Iterator[StandbyProcess | None]:
    """Run a standby coordinator next to a worker; without settings, none.

    In its own process it takes no core from training, and a crash of one leaves the other alone.
    """
    if settings is None:
        yield None
        return
    context = multiprocessing.get_context("spawn")

    def start() -> BaseProcess:
        process = context.Process(
            target=_run_standby, args=(settings, environment), name=settings.name, daemon=True
        )
        with _environment_variables(SAFE_PATH):
            process.start()
        return process

    standby = StandbyProcess(start)
    try:
        yield standby
    finally:
        standby.close()


def warm_up() -> None:
    """Start the fork server; it loads its libraries while the launcher continues."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with _environment_variables({**ONE_THREAD, **SAFE_PATH}):
        forkserver.ensure_running()


def start(
    main: Callable[[Settings, ProcessEnvironment], None],
    settings: Settings,
    environment: ProcessEnvironment,
) -> BaseProcess:
    """A new process with this main function: run_coordinator or run_worker."""
    warm_up()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(
        target=main, args=(settings, environment), name=settings.name, daemon=True
    )
    process.start()
    return process


@contextlib.contextmanager
def _environment_variables(added: Mapping[str, str]) -> Iterator[None]:
    """A new process inherits the environment of the moment it is started."""
    before = {name: os.environ[name] for name in added if name in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        os.environ.update(before)


def run_coordinator(settings: CoordinatorProcessSettings, environment: ProcessEnvironment) -> None:
    def log_round(record: RoundRecord) -> None:
        LOG.info("round ended", extra={"round": record.round_index})

    run_process(settings.name, environment, partial(coordinate, settings, on_round=log_round))


def _run_standby(settings: CoordinatorProcessSettings, environment: ProcessEnvironment) -> None:
    run_process(settings.name, environment, partial(stand_by, settings))


def run_worker(settings: WorkerSettings, environment: ProcessEnvironment) -> None:
    """The main function of a worker's process: it trains, with one thread."""

    async def main(stop: asyncio.Event) -> int:
        import torch

        from fedhp.cluster.worker import worker

        torch.set_num_threads(1)
        return await worker.run_worker(settings, stop=stop)

    run_process(settings.name, environment, main)


def run_process(
    name: str, environment: ProcessEnvironment, main: Callable[..., Coroutine[None, None, object]]
) -> None:
    """Run a process from its first line to its exit code, which errors.py explains; main is told
    to stop, and may return the code."""

    async def run() -> int:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        code = await main(stop=stop)
        return code if isinstance(code, int) else 0

    os.setsid()  # Ctrl-C in the terminal is for the launcher only
    die_with_parent()
    # A full garbage collection would write to all objects of the fork server, and so copy them.
    gc.freeze()
    os.environ.update(dict(environment.variables))
    if environment.log is not None:
        environment.log.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        handle = os.open(environment.log, flags, PRIVATE_FILE)
        for number in (1, 2):
            os.dup2(handle, number)
        os.close(handle)
    if environment.log_format == "json":
        logs.begin_json_lines(name)
    logs.set_up(who=name, form=environment.log_format)
    if environment.log is not None:
        logging.getLogger(logs.ROOT).addHandler(logs.SizeBound(environment.log))
    try:
        with service_exit_codes():
            code = asyncio.run(run())
    except Interrupted as error:
        LOG.info("stopped: %s", error.problem)
        code = error.exit_code
    except Exception as error:  # one that is not a FedhpError is a bug: log its details
        reported = as_fedhp_error(error)
        LOG.error("%s", reported)
        code = reported.exit_code
    sys.exit(code)


def die_with_parent() -> None:
    """End this process when the one that started it ends, even by kill -9."""
    if sys.platform == "linux":
        # For a process that is stopped (SIGSTOP) and cannot watch anything.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The fork server ends when nobody holds this pipe: a stopped child must not keep it alive.
    handle = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if handle is not None:
        os.close(handle)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    parent = multiprocessing.parent_process()

    def end_with_it() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_it, daemon=True).start()
