"""Processes that tests start, ended with them; forked ones need not load torch again.

A command as `python -m fedhp` starts it costs seconds of computing before it does anything.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import pytest

from fedhp.cluster.ops import processes

Stream = Path | Connection
Text = TypeVar("Text", str, bytes)


@contextmanager
def ended_after(process: subprocess.Popen[Text]) -> Iterator[subprocess.Popen[Text]]:
    """A process that does not outlive its test, however that ends."""
    with process:
        try:
            yield process
        finally:
            process.kill()


class Forked:
    """A process with the part of subprocess.Popen that tests and campaigns use."""

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: object,
        streams: Mapping[int, Stream] | None = None,
    ) -> None:
        processes.warm_up()
        context = multiprocessing.get_context("forkserver")
        surroundings = dict(os.environ), os.getcwd(), list(sys.path)
        self._process = context.Process(
            target=_enter, args=(target, arguments, dict(streams or {}), surroundings), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.kill()
        self.wait()


class ForkedCommand(Forked):
    """`fedhp ARGUMENTS`; what it prints goes to files."""

    def __init__(self, *arguments: object) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedhp-command-")
        self._files = [Path(self._folder.name) / name for name in ("out", "err")]
        streams = dict(enumerate(self._files, start=1))
        super().__init__(_command, [str(each) for each in arguments], streams=streams)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Everything it printed until its end."""
        self.wait(timeout)
        out, err = (file.read_text(encoding="utf-8") for file in self._files)
        return out, err

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        self._folder.cleanup()


class ForkedJob(Forked):
    """A job process of a campaign (fedhp.engine.runs.job), as campaign.py starts it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        reads, orders = context.Pipe(duplex=False)
        answers, writes = context.Pipe(duplex=False)
        super().__init__(_job, streams={0: reads, 1: writes})
        reads.close()
        writes.close()
        self.stdin: IO[str] = _stream(orders, "w")
        self.stdout: IO[str] = _stream(answers, "r")


@contextmanager
def forked_jobs() -> Iterator[None]:
    """Comparisons in this process have such job processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedhp.engine.runs.campaign._start_job", ForkedJob)
        yield


def _stream(connection: Any, mode: str) -> IO[str]:
    handle = os.dup(connection.fileno())
    connection.close()
    return open(handle, mode, encoding="utf-8")


# --- inside the new process ----------------------------------------------------------------


def _enter(
    target: Callable[..., None],
    arguments: tuple[object, ...],
    streams: dict[int, Stream],
    surroundings: tuple[dict[str, str], str, list[str]],
) -> None:
    environment, folder, path = surroundings
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path
    for number, stream in streams.items():
        if isinstance(stream, Path):
            handle = os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, number)
            os.close(handle)
        else:
            os.dup2(stream.fileno(), number)
            stream.close()
    if 0 in streams:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    target(*arguments)


def _command(arguments: list[str]) -> None:
    from fedhp.cli import main

    main(arguments)


def _job() -> None:
    from fedhp.engine.runs.job import main

    os.setsid()  # Ctrl-C reaches the parent alone
    main()
