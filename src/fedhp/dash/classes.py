"""Who has which data: the answer of `fedhp data split --json` about a run, made once.

The record does not have it; it is made from the settings of the record and the data, if the data
is here.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from typing import Any

from fedhp.dash import isolated
from fedhp.dash.schema import ClassCounts
from fedhp.errors import TryAgain

MOST_KEPT = 16
PARTS = ("task.name", "data.name", "data.partition")
PATHS = ("data.path",)


class DataSplits:
    """The splits of all runs, as far as they were asked for."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, ClassCounts] = OrderedDict()
        self._busy = asyncio.Lock()

    async def counts(self, experiment: Any) -> ClassCounts:
        """The split of the data of these settings; TryAgain while another one is made."""
        isolated.check_experiment(experiment, parts=PARTS, paths=PATHS)
        used = {key: experiment[key] for key in ("data", "workers", "seed") if key in experiment}
        key = json.dumps(used, sort_keys=True)
        if key in self._kept:
            return self._kept[key]
        if self._busy.locked():
            raise TryAgain(
                "the data of another run is being read",
                allowed="one at a time",
                fix="ask again in a moment",
            )
        async with self._busy:
            answer = await isolated.ask({"work": "classes", "experiment": used})
        self._kept[key] = ClassCounts.model_validate(answer)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]
