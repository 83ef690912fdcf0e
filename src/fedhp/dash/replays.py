"""What if: `fedhp whatif --json` in a process of its own, one at a time, kept by record state.

Only built-in planners, and only for runs of built-in parts: a request never makes this machine
import a module that a record or an address names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhp.algorithms.base import ALGORITHMS
from fedhp.components import is_dotted
from fedhp.dash.runs import RecordState, record_state
from fedhp.errors import RunError, TryAgain

SECONDS = 120.0  # that a replay may take
MOST_KEPT = 64
MOST_PLANNERS = 8
LONGEST_PLANNER = 200  # characters
MOST_ERROR_BYTES = 4000

Key = tuple[str, tuple[str, ...]]


class ReplayRefused(RunError):
    """A replay that this server does not make."""


class ReplayFailed(RunError):
    """A replay of a record that does not allow it."""


class Replays:
    """The replays of all runs."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[RecordState, dict[str, Any]]] = OrderedDict()
        self._busy = asyncio.Lock()

    async def whatif(
        self, run: str, folder: Path, planners: Sequence[str], experiment: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The object of `fedhp whatif RUN --planner ... --json`; TryAgain while one is made."""
        check_planners(planners)
        check_parts(experiment)
        key, state = (run, tuple(planners)), record_state(folder)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == state:
            return kept[1]
        if self._busy.locked():
            raise TryAgain(
                "another replay is being made",
                allowed="one replay at a time",
                fix="ask again in a moment",
            )
        async with self._busy:
            answer = await _replay(folder, planners)
        self._kept[key] = state, answer
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return answer


def check_planners(planners: Sequence[str]) -> None:
    """Refuse what is not a built-in planner with settings."""
    for planner in planners:
        name = planner.strip().replace(",", ":").partition(":")[0]
        unprintable = not planner.isprintable() or len(planner) > LONGEST_PLANNER
        if name not in ALGORITHMS or unprintable or len(planners) > MOST_PLANNERS:
            raise ReplayRefused(
                f"{planner[:LONGEST_PLANNER]!r} is not a planner for the page",
                allowed=f"at most {MOST_PLANNERS} of {', '.join(ALGORITHMS)}, with settings such "
                "as fedhp:deadline=fill",
                fix="for a planner of your own use `fedhp whatif RUN --planner ...`",
            )


def check_parts(experiment: Mapping[str, Any]) -> None:
    """Refuse a run with parts of the user's own: a replay would import them."""
    for key in ("algorithm", "topology", "model", "task", "data"):
        name = str(experiment[key].get("name", ""))
        if is_dotted(name):
            raise ReplayRefused(
                f"{key}.name is {name[:LONGEST_PLANNER]!r}, a part of the user's own",
                allowed="runs of built-in parts",
                fix="use `fedhp whatif RUN` on the command line",
            )


async def _replay(folder: Path, planners: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "fedhp", "whatif", str(folder), "--json"]
    for planner in planners:
        command.append(f"--planner={planner}")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        raise ReplayFailed(
            f"the replay took longer than {SECONDS:.0f} s",
            allowed="replays of smaller records",
            fix="use `fedhp whatif RUN` on the command line",
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        text = errors.decode("utf-8", "replace")[-MOST_ERROR_BYTES:]
        problem = text.rpartition("error: ")[2].strip().splitlines()
        kind = ReplayRefused if problem and "--planner" in problem[0] else ReplayFailed
        raise kind(
            problem[0] if problem else "the replay failed",
            allowed=_line(problem, "allowed: "),
            fix=_line(problem, "fix: "),
        )
    answer = json.loads(output)
    assert isinstance(answer, dict)
    return answer


def _line(lines: Sequence[str], start: str) -> str:
    stripped = (line.strip() for line in lines)
    return next((line.removeprefix(start) for line in stripped if line.startswith(start)), "")
