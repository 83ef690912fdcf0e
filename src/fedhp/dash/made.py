"""Answers that a process of their own makes (isolated.py), one at a time, and that are kept: the
objects of `fedhp whatif --json` and of `fedhp data split --json`.

Only built-in planners, and only for runs of built-in parts: a request never makes this machine
import a module that a record or an address names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhp.algorithms.base import ALGORITHMS
from fedhp.dash import isolated
from fedhp.dash.isolated import LONGEST, WorkRefused
from fedhp.dash.runs import record_state
from fedhp.errors import TryAgain

MOST_PLANNERS = 8
REPLAYED_PARTS = ("algorithm.name", "topology.name", "model.name", "task.name", "data.name")
REPLAYED_PATHS = ("world.trace", "world.device_trace", "world.availability_trace")
SPLIT_PARTS = ("task.name", "data.name", "data.partition")


class KeptAnswers:
    """The last answers of one kind; an answer counts as long as the state it was made in."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def get(self, key: Any, state: Any) -> dict[str, Any] | None:
        kept = self._kept.get(key)
        return kept[1] if kept is not None and kept[0] == state else None

    def keep(self, key: Any, state: Any, answer: dict[str, Any]) -> dict[str, Any]:
        self._kept[key] = state, answer
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        return answer


class MadeAnswers:
    """One kind of work; TryAgain while another answer of it is being made."""

    def __init__(self, most: int, busy: str, allowed: str) -> None:
        self._answers, self._lock = KeptAnswers(most), asyncio.Lock()
        self._busy, self._allowed = busy, allowed

    async def answer(self, key: Any, state: Any, order: Mapping[str, Any]) -> dict[str, Any]:
        kept = self._answers.get(key, state)
        if kept is not None:
            return kept
        if self._lock.locked():
            raise TryAgain(self._busy, allowed=self._allowed, fix="ask again in a moment")
        async with self._lock:
            return self._answers.keep(key, state, await isolated.ask(order))


class Replays(MadeAnswers):
    def __init__(self) -> None:
        super().__init__(64, "another replay is being made", "one replay at a time")

    async def whatif(
        self, run: str, folder: Path, planners: Sequence[str], experiment: Any
    ) -> dict[str, Any]:
        """The object of `fedhp whatif RUN --planner ... --json`."""
        for planner in planners:
            name = planner.strip().replace(",", ":").partition(":")[0]
            unprintable = not planner.isprintable() or len(planner) > LONGEST
            if name not in ALGORITHMS or unprintable or len(planners) > MOST_PLANNERS:
                raise WorkRefused(
                    f"{planner[:LONGEST]!r} is not a planner for the page",
                    allowed=f"at most {MOST_PLANNERS} of {', '.join(ALGORITHMS)}, with settings "
                    "such as fedhp:deadline=fill",
                    fix="for a planner of your own use `fedhp whatif RUN --planner ...`",
                )
        isolated.check_experiment(experiment, parts=REPLAYED_PARTS, paths=REPLAYED_PATHS)
        order = {"work": "whatif", "folder": str(folder), "planners": list(planners)}
        answer = await self.answer((run, tuple(planners)), record_state(folder), order)
        return {**answer, "run": run}  # not where it is on this machine


class DataSplits(MadeAnswers):
    """Who has which data. The record does not have it; it is made from its settings and the data,
    if the data is here."""

    def __init__(self) -> None:
        super().__init__(16, "the data of another run is being read", "one at a time")

    async def counts(self, experiment: Any) -> dict[str, Any]:
        isolated.check_experiment(experiment, parts=SPLIT_PARTS, paths=("data.path",))
        used = {key: experiment[key] for key in ("data", "workers", "seed") if key in experiment}
        order = {"work": "classes", "experiment": used}
        return await self.answer(json.dumps(used, sort_keys=True), None, order)
