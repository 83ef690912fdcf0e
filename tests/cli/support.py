"""Small experiments for the command line, and ways to watch a run from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedhp
from fedhp.cli import call
from fedhp.errors import FedhpError
from subprocesses import ForkedCommand
from waiting import PATIENCE

TINY: dict[str, Any] = {
    "workers": 6,
    "rounds": 3,
    "algorithm": {"name": "dpsgd"},
    "model": {"name": "mlp"},
    "data": {"skew": 0.8},
    "training": {"local_steps": 3},
    "evaluation": {"images": 60},
    "world": {"profile": "slow_links", "model_megabits": 12},
}


def write(folder: Path, **changes: Any) -> Path:
    """An experiment file; sections given are laid over the tiny one."""
    tables = dict(TINY)
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    file = folder / "tiny.toml"
    file.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return file


class CommandResult:
    """The exit code and the output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        assert "Traceback" not in out + err

    def json(self) -> Any:
        """The one strict JSON object on standard output."""

        def refuse(token: str) -> None:
            raise AssertionError(f"{token} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Command = Callable[..., CommandResult]


def caller(capsys: pytest.CaptureFixture[str]) -> Command:
    """Commands in this process."""

    def command(*arguments: object) -> CommandResult:
        capsys.readouterr()
        code = call([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return command


Started = subprocess.Popen[str] | ForkedCommand


def start(*arguments: object) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedhp", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: Started) -> CommandResult:
    """What a process said until its end."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode is not None
    return CommandResult(process.returncode, out, err)


def rounds_in(folder: Path) -> int:
    """How many rounds a folder holds by now; 0 before there is a record."""
    try:
        with fedhp.open_run(folder) as run:
            return run.rounds_done
    except FedhpError:
        return 0


def interrupt(process: Started) -> None:
    """Ctrl-C."""
    process.send_signal(signal.SIGINT)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def is_alive(pid: int) -> bool:
    """Whether a process still runs (a zombie does not)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def digest_of(folder: Path) -> str:
    """The hash of a run's numbers."""
    with fedhp.open_run(folder) as run:
        return run.digest()
