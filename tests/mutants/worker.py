"""Runs tests in a copy of the tree, each time in a fork of a process that has loaded the libraries.

As a program it reads jobs from its input, a line each, and answers with a line each.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from waiting import let_fault_last

# Not fedhp, which is mutated, and not grpc, which does not survive a fork.
LIBRARIES = (
    "numpy",
    "scipy.sparse.csgraph",
    "scipy.optimize",
    "torch",
    "torch.func",
    "torch.optim.lr_scheduler",
    "torch._dynamo",
    "pydantic",
    "networkx",
    "hypothesis",
    "hypothesis.strategies",
    "hypothesis.stateful",
    "pytest",
    "safetensors.torch",
    "sklearn.datasets",
    "cryptography.x509",
    "fastapi",
    "httpx",
    "typer",
    "rich",
    "mutants.recording",
)
OPTIONS = (
    *("-x", "-q", "--no-header", "--tb=line", "-p", "mutants.recording", "-p", "no:cacheprovider"),
    *("-p", "no:xdist", "-p", "no:schemathesis", "-p", "no:anyio"),
    *("--hypothesis-seed=0", "-m", "not slow"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of what is loaded already
)
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests of a job ended."""

    code: int  # of pytest; -1: they took too long
    seconds: float
    told: str  # the end of their output

    def failed_test(self, tests: Iterable[str]) -> str:
        """The one of these tests that failed, if its name was printed."""
        lines = [line for line in self.told.splitlines() if line.startswith(("FAILED", "ERROR"))]
        ends = [line.partition(" ")[2] + " " for line in lines]
        return next((name for name in tests for end in ends if end.startswith(f"{name} ")), "")


class Worker:
    """A process with its own copy of the tree."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        paths = [tree / "src", Path(__file__).parents[1]]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")},
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mutants.worker", str(tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, arguments: list[str], *, limit: float, record: Path | None = None) -> Outcome:
        """Tests, or all in some files; limit: in seconds."""
        job = {"arguments": arguments, "limit": limit, "record": str(record or "")}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve(tree: Path) -> None:
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    for line in sys.stdin:
        job = json.loads(line)
        outcome = _carry_out(tree, job["arguments"], float(job["limit"]), job["record"])
        print(json.dumps(asdict(outcome)), flush=True)


def _carry_out(tree: Path, arguments: list[str], limit: float, record: str) -> Outcome:
    output, started = tree / "output.txt", time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(_test(tree, arguments, output, record))
    code = -1
    while time.monotonic() - started < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            code = 1 if code < 0 else code  # it crashed
            break
        let_fault_last(POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also what it may have left running
    if code == -1:
        os.waitpid(child, 0)
    told = output.read_text(encoding="utf-8", errors="replace")[-4000:] if output.exists() else ""
    return Outcome(code, time.monotonic() - started, told)


def _test(tree: Path, arguments: list[str], output: Path, record: str) -> int:
    """In the fork."""
    os.setsid()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree / "tests")]
    if record:
        os.environ["MUTANTS_RECORDING"] = record
    import pytest

    options = (
        ["--timeout=30", "--continue-on-collection-errors", *OPTIONS[1:]] if record else OPTIONS
    )
    code = int(pytest.main([*options, *arguments]))
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
