"""Coordinators and workers as processes of this machine, forked from one that has torch loaded.

None outlives the launcher, however it ends: each watches a pipe of the launcher's, and Linux
kills it with the fork server, which watches another. Plain processes of 30 workers would take
minutes and gigabytes to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedhp.cluster.coordinator.leadership import (
    CoordinatorProcessSettings,
    coordinate,
    file_finder,
    leader_finder,
    stand_by,
)
from fedhp.cluster.ops import logs
from fedhp.cluster.protocol import limits
from fedhp.errors import Interrupted, as_fedhp_error
from fedhp.types import RoundRecord

LOG = logging.getLogger("fedhp.process")
# What every process needs; data sets and models of one's own are loaded by whoever uses them.
PRELOADED = (
    "fedhp.cluster.worker.worker",
    "fedhp.cluster.coordinator.leadership",
    "torch",
    "sklearn.datasets",
)
# Read by numerical libraries when they are loaded: many processes share few cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PR_SET_PDEATHSIG = 1
STOP_SECONDS = 10.0  # for a standby to end when asked to
GOODBYE_SECONDS = 2 * limits.POLL_SECONDS  # for a standby to end by itself when the run is over


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """What a process has beside its task."""

    log: Path | None  # none: where the launcher's own words go
    log_format: logs.Format = "text"
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """A worker of this machine."""

    name: str
    certificates: Path
    state: Path
    coordinator: Path  # the folder of a coordinator that says where it is
    ha: str | None = None  # or etcd, which says who leads


def start_coordinator(seat: CoordinatorProcessSettings, around: ProcessEnvironment) -> BaseProcess:
    """A new process that coordinates."""
    return _start(seat.name, _coordinator, (seat, around))


def start_worker(task: WorkerTask, around: ProcessEnvironment) -> BaseProcess:
    """A new process that trains, with one thread."""
    return _start(task.name, _worker, (task, around))


class Patience:
    """How long a standby may go on after its worker has ended."""

    seconds = 0.0

    def let_all_hear(self) -> None:
        """It may be the leader, whom the other workers still have to ask whether it is over."""
        self.seconds = GOODBYE_SECONDS


@contextlib.contextmanager
def beside(
    seat: CoordinatorProcessSettings | None, around: ProcessEnvironment
) -> Iterator[Patience]:
    """With a process that waits to coordinate; in one of its own, it takes no core from training
    and a crash of either leaves the other alone. Without a seat, nothing."""
    patience = Patience()
    if seat is None:
        yield patience
        return
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_standby, args=(seat, around), name=seat.name, daemon=True)
    process.start()
    try:
        yield patience
    finally:
        process.join(patience.seconds)
        process.terminate()
        process.join(STOP_SECONDS)
        process.kill()
        process.join()


def warm_up() -> None:
    """Start the fork server; what it loads, it loads while the launcher goes on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with _environment(ONE_THREAD):
        forkserver.ensure_running()


def _start(name: str, target: Callable[..., None], arguments: tuple[object, ...]) -> BaseProcess:
    warm_up()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=target, args=arguments, name=name, daemon=True)
    process.start()
    return process


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """The fork server takes over the environment of the moment it is started."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# --- inside the new process ------------------------------------------------------------------


def _coordinator(seat: CoordinatorProcessSettings, around: ProcessEnvironment) -> None:
    def told(record: RoundRecord) -> None:
        LOG.info("round ended", extra={"round": record.round_index})

    async def main() -> int:
        await coordinate(seat, stop=_stopped_by_signal(), on_round=told)
        return 0

    _live(seat.name, around, main)


def _standby(seat: CoordinatorProcessSettings, around: ProcessEnvironment) -> None:
    async def main() -> int:
        await stand_by(seat, stop=_stopped_by_signal())
        return 0

    _live(seat.name, around, main)


def _worker(task: WorkerTask, around: ProcessEnvironment) -> None:
    async def main() -> int:
        import torch

        from fedhp.cluster.worker.worker import WorkerSettings, run_worker

        torch.set_num_threads(1)
        find = leader_finder(task.ha) if task.ha is not None else file_finder(task.coordinator)
        settings = WorkerSettings(
            name=task.name,
            coordinator="",
            certificates=task.certificates,
            state=task.state,
            listen="127.0.0.1:0",
            finder=find,
        )
        return await run_worker(settings, stop=_stopped_by_signal())

    _live(task.name, around, main)


def _live(
    name: str, around: ProcessEnvironment, main: Callable[[], Coroutine[None, None, int]]
) -> None:
    """The whole life of a process; its exit code says how it went (errors.py)."""
    os.setsid()  # Ctrl-C in the terminal is the launcher's business
    die_with_parent()
    os.environ.update(dict(around.environment))
    if around.log is not None:
        _redirect(around.log)
    logs.set_up(who=name, form=around.log_format)
    try:
        code = asyncio.run(main())
    except Interrupted as error:
        LOG.info("stopped: %s", error.problem)
        code = error.exit_code
    except Exception as error:  # what is no FedhpError is a bug: say so, keep the details
        told = as_fedhp_error(error)
        LOG.error("%s", told)
        code = told.exit_code
    sys.exit(code)


def _redirect(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(handle, number)
    os.close(handle)


def _stopped_by_signal() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


def die_with_parent() -> None:
    """Let this process end when the one that started it does, even by kill -9."""
    if sys.platform == "linux":
        # For a process that is stopped (SIGSTOP) and cannot watch anything.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The fork server ends when nobody holds this pipe; a stopped child must not keep it alive.
    handle = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if handle is not None:
        os.close(handle)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=functools.partial(_follow, parent), daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
