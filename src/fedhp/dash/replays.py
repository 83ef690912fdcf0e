"""What if: the object of `fedhp whatif --json`, one replay at a time, kept by record state.

Only built-in planners, and only for runs of built-in parts: a request never makes this machine
import a module that a record or an address names.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedhp.algorithms.base import ALGORITHMS
from fedhp.dash import isolated
from fedhp.dash.isolated import LONGEST, WorkRefused
from fedhp.dash.runs import RecordState, record_state
from fedhp.errors import TryAgain

MOST_KEPT = 64
MOST_PLANNERS = 8
PARTS = ("algorithm.name", "topology.name", "model.name", "task.name", "data.name")
PATHS = ("world.trace", "world.device_trace", "world.availability_trace")

Key = tuple[str, tuple[str, ...]]


class Replays:
    """The replays of all runs."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[RecordState, dict[str, Any]]] = OrderedDict()
        self._busy = asyncio.Lock()

    async def whatif(
        self, run: str, folder: Path, planners: Sequence[str], experiment: Any
    ) -> dict[str, Any]:
        """The object of `fedhp whatif RUN --planner ... --json`; TryAgain while one is made."""
        check_planners(planners)
        isolated.check_experiment(experiment, parts=PARTS, paths=PATHS)
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
        order = {"work": "whatif", "folder": str(folder), "planners": list(planners)}
        async with self._busy:
            answer = {**await isolated.ask(order), "run": run}  # not where it is on this machine
        self._kept[key] = state, answer
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return answer


def check_planners(planners: Sequence[str]) -> None:
    """Refuse what is not a built-in planner with settings."""
    for planner in planners:
        name = planner.strip().replace(",", ":").partition(":")[0]
        unprintable = not planner.isprintable() or len(planner) > LONGEST
        if name not in ALGORITHMS or unprintable or len(planners) > MOST_PLANNERS:
            raise WorkRefused(
                f"{planner[:LONGEST]!r} is not a planner for the page",
                allowed=f"at most {MOST_PLANNERS} of {', '.join(ALGORITHMS)}, with settings such "
                "as fedhp:deadline=fill",
                fix="for a planner of your own use `fedhp whatif RUN --planner ...`",
            )
