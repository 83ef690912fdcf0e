"""Runs that all tests of this folder read; nobody changes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from unit.report.runs import WORLD, make_run, set_status


@dataclass(frozen=True, slots=True)
class Runs:
    """Folders of finished and unfinished runs."""

    fedhp: tuple[Path, Path]  # seeds 0 and 1
    dpsgd: tuple[Path, Path]
    adpsgd: Path
    ldsgd: Path
    pens: Path
    plus: Path
    plus_waiting: Path  # without overlap
    fill: Path
    literal: Path
    away: Path  # worker 2 is away in rounds 2 to 4
    per_link: Path
    stopped: Path  # dpsgd, seed 2, diverged after 3 rounds
    empty: Path

    @property
    def comparison(self) -> list[Path]:
        """A comparison as `fedhp compare` would leave it."""
        return [*self.fedhp, *self.dpsgd, self.adpsgd, self.ldsgd, self.pens]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    top = tmp_path_factory.mktemp("runs")
    away = {**WORLD, "away": [{"worker": 2, "first": 2, "last": 4}]}
    per_link = {**WORLD, "bandwidth": {"per": "link"}}
    stopped = make_run(top / "stopped", "dpsgd", seed=2, stop_after=3)
    set_status(stopped, "diverged")
    return Runs(
        fedhp=(
            make_run(top / "fedhp-0", "fedhp"),
            make_run(top / "fedhp-1", "fedhp", seed=1),
        ),
        dpsgd=(make_run(top / "dpsgd-0", "dpsgd"), make_run(top / "dpsgd-1", "dpsgd", seed=1)),
        adpsgd=make_run(top / "adpsgd", "adpsgd"),
        ldsgd=make_run(top / "ldsgd", "ldsgd"),
        pens=make_run(top / "pens", "pens", settings={"peers": 3, "keep": 2, "stage_share": 0.5}),
        plus=make_run(top / "plus", "fedhp_plus"),
        plus_waiting=make_run(
            top / "plus-waiting", "fedhp_plus", settings={"overlap": False}, rounds=3
        ),
        fill=make_run(
            top / "fill", "fedhp", label="fedhp:deadline=fill", settings={"deadline": "fill"}
        ),
        literal=make_run(top / "literal", "fedhp", settings={"planner": "literal"}),
        away=make_run(top / "away", "fedhp", world=away),
        per_link=make_run(
            top / "per-link", "fedhp", settings={"bound": "none"}, world=per_link, rounds=3
        ),
        stopped=stopped,
        empty=make_run(top / "empty", "dpsgd", rounds=0),
    )
