"""Who has which data: `fedhp data split --json` of a run, in a process of its own, once per run.

The record does not have it; it is made from the settings and the data, if the data is here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhp.components import is_dotted
from fedhp.dash.replays import ReplayRefused, check_parts
from fedhp.dash.schema import ClassCounts
from fedhp.errors import RunError, TryAgain

SECONDS = 120.0
MOST_KEPT = 16
MOST_ERROR_LINES = 3


class DataSplits:
    """The splits of all runs, as far as they were asked for."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, ClassCounts] = OrderedDict()
        self._busy = threading.Lock()

    def counts(self, folder: Path, experiment: Mapping[str, Any]) -> ClassCounts:
        """The split of a run's data; TryAgain while another one is made."""
        check_parts(experiment)
        partition = str(experiment["data"].get("partition", ""))
        if is_dotted(partition):
            raise ReplayRefused(
                f"data.partition is {partition[:200]!r}, a part of the user's own",
                allowed="runs of built-in parts",
                fix="use `fedhp data split` on the command line",
            )
        key = json.dumps(
            [experiment["data"], experiment["workers"], experiment["seed"]], sort_keys=True
        )
        if key in self._kept:
            return self._kept[key]
        if not self._busy.acquire(blocking=False):
            raise TryAgain(
                "the data of another run is being read",
                allowed="one at a time",
                fix="ask again in a moment",
            )
        try:
            self._kept[key] = _split(folder)
        finally:
            self._busy.release()
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]


def _split(folder: Path) -> ClassCounts:
    command = [sys.executable, "-m", "fedhp", "data", "split", "experiment.toml", "--json"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"reading the data took longer than {SECONDS:.0f} s",
            fix="use `fedhp data split` on the command line",
        ) from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RunError(
            f"the data cannot be split here: {' '.join(lines[:MOST_ERROR_LINES])}",
            allowed="a run whose data set is on this machine",
            fix="set FEDHP_DATA to the folder of the data sets and start the server again",
        )
    return ClassCounts.model_validate_json(done.stdout)
