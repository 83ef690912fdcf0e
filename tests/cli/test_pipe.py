"""A pipe whose reader has seen enough (`fedhp show RUN | head`) ends a command quietly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unit.report.runs import make_run
from waiting import PATIENCE

CLOSED_PIPE = 128 + signal.SIGPIPE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    make_run(folder, "fedhp")
    return folder


def fedhp(*arguments: object, closed: str) -> subprocess.CompletedProcess[str]:
    """A command that writes this stream to a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "fedhp", *map(str, arguments)],
            stdout=writer if closed == "stdout" else subprocess.PIPE,
            stderr=writer if closed == "stderr" else subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "words",
    [
        ("show", "RUN"),  # rich
        ("show", "RUN", "--json"),  # print, which is written at the end
        ("explain", "RUN"),
        ("--help",),  # typer
    ],
    ids=" ".join,
)
def test_nobody_reads_the_output(run: Path, words: tuple[str, ...]) -> None:
    result = fedhp(*(run if word == "RUN" else word for word in words), closed="stdout")
    assert result.stderr == ""
    assert result.returncode == CLOSED_PIPE


@pytest.mark.parametrize("words", [("show", "nothing"), ("show", "--unknown")], ids=" ".join)
def test_nobody_reads_the_error(words: tuple[str, ...]) -> None:
    result = fedhp(*words, closed="stderr")
    assert result.stdout == ""
    assert result.returncode == CLOSED_PIPE


def test_a_reader_that_takes_the_first_line(run: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "fedhp", "show", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert command.stdout is not None
    assert command.stderr is not None
    assert command.stdout.readline().startswith("run ")
    command.stdout.close()
    assert command.stderr.read() == ""
    command.stderr.close()
    assert command.wait(PATIENCE) in (0, CLOSED_PIPE)  # 0: it was faster than this reader
