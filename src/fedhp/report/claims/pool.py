"""The finished runs of the paper's suite, each read once: what its figures and claims ask.

Runs are found by data set, non-IID level and label, whichever figure they were run for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedhp.report.groups import RunCurves, read_curves

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import PaperCell, Suite

Key: TypeAlias = tuple[str, float, str]  # data set, non-IID level, label


@dataclass(frozen=True, slots=True)
class Pool:
    """Finished runs by data set, level and label; `left_out` are the cells without one."""

    found: Mapping[Key, tuple[RunCurves, ...]]  # in the order of their seeds
    left_out: tuple[PaperCell, ...] = ()

    def runs(self, data: str, label: str, *, skew: float) -> list[RunCurves]:
        """The runs of one label, one per seed."""
        return list(self.found.get(_key(data, skew, label), ()))

    def by_seed(self, data: str, label: str, *, skew: float) -> dict[int, RunCurves]:
        """The same, by seed: equal seeds mean equal worlds."""
        return {run.summary.seed: run for run in self.runs(data, label, skew=skew)}

    def levels(self, data: str, label: str | None = None) -> list[float]:
        """The non-IID levels at which there are runs, rising."""
        return sorted({p for name, p, who in self.found if name == data and label in (None, who)})


def make_pool(
    runs: Iterable[tuple[str, float, RunCurves]], left_out: Iterable[PaperCell] = ()
) -> Pool:
    """A pool of (data set, level, run); of two runs of one seed the first stays."""
    found: dict[Key, dict[int, RunCurves]] = {}
    for data, skew, run in runs:
        key = _key(data, skew, run.summary.algorithm)
        found.setdefault(key, {}).setdefault(run.summary.seed, run)
    return Pool(
        {key: tuple(mine[seed] for seed in sorted(mine)) for key, mine in found.items()},
        tuple(left_out),
    )


def read_pool(suite: Suite) -> Pool:
    """Read every finished cell of the suite; the others are left out, and named."""
    from fedhp.engine.runs.suite import finished_cells

    cells = suite.cells()
    done = finished_cells(cells)
    there = {each.cell.folder for each in done}
    return make_pool(
        ((each.data, each.skew, read_curves(each.cell.folder)) for each in done),
        (each for each in cells if each.cell.folder not in there),
    )


def _key(data: str, skew: float, label: str) -> Key:
    return data, round(skew, 6), label
