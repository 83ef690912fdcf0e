"""The results of a sweep: one row per combination of settings, as a table, Markdown and JSON.

Means and 95 % intervals are over the seeds that finished; the others are counted, never averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fedhp.engine.runs.run import is_run
from fedhp.engine.runs.sweep import Sweep
from fedhp.record.reader import RunSummary
from fedhp.record.statistics import Interval, interval, summarize_runs
from fedhp.report.formatting import (
    ACCURACY,
    MISSING,
    data_size,
    decimals_for,
    final_meaning,
    target_name,
    time_name,
)
from fedhp.report.groups import FINISHED, read_summaries
from fedhp.report.tables import AT_TIME_CAPTION, markdown_table, new_table, with_spread

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Combination:
    """The values of the settings that vary, and the runs with these values."""

    texts: tuple[str, ...]
    values: tuple[Any, ...]
    runs: tuple[RunSummary, ...]

    @property
    def finished(self) -> list[RunSummary]:
        """The runs that may be averaged."""
        return [run for run in self.runs if run.status == FINISHED]

    @property
    def metric(self) -> str:
        """What the runs measure."""
        return self.runs[0].metric if self.runs else ACCURACY

    def _spread(self, value: Callable[[RunSummary], float | None]) -> Interval | None:
        values = map(value, self.finished)
        return interval([number for number in values if number is not None])

    def final(self) -> Interval | None:
        """The final result; in percent where it is an accuracy."""
        return self._result(lambda run: run.final_accuracy)

    def result_at(self, time: str) -> Interval | None:
        """The result at a time, over the seeds whose run lasted so long."""
        return self._result(lambda run: run.accuracy_at_time.get(time))

    def _result(self, value: Callable[[RunSummary], float | None]) -> Interval | None:
        scale = 100.0 if self.metric == ACCURACY else 1.0
        return self._spread(lambda run: None if (v := value(run)) is None else scale * v)

    def time_to(self, target: str) -> Interval | None:
        """The virtual time to a target, over the seeds that reached it."""
        return self._spread(lambda run: run.time_to_target.get(target))


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All combinations of a sweep, in the order in which they were given."""

    keys: tuple[str, ...]
    combinations: tuple[Combination, ...]

    @property
    def _runs(self) -> list[RunSummary]:
        return [run for each in self.combinations for run in each.runs]

    @property
    def targets(self) -> list[str]:
        """The targets of all runs, lowest first."""
        return sorted({target for run in self._runs for target in run.time_to_target}, key=float)

    @property
    def times(self) -> list[str]:
        """The times of evaluation.times of all runs, the earliest first."""
        return sorted({time for run in self._runs for time in run.accuracy_at_time}, key=float)

    @property
    def metrics(self) -> list[str]:
        """What the runs measure; usually one thing."""
        return list(dict.fromkeys(each.metric for each in self.combinations if each.runs))

    def as_json(self) -> dict[str, Any]:
        """Plain values: per combination its settings, intervals and runs."""
        combinations = [
            {
                "settings": dict(zip(self.keys, each.values, strict=True)),
                "summary": next(iter(summarize_runs(each.finished).values()), None),
                "runs": [run.as_json() for run in each.runs],
            }
            for each in self.combinations
        ]
        return {"keys": list(self.keys), "combinations": combinations}


def sweep_table(result: SweepResult) -> Table:
    from rich.markup import escape

    headers, rows, caption = sweep_rows(result)
    # A long key takes several lines in the header, so that there is room for the results.
    keys = [key.replace(".", ".\n") for key in result.keys]
    final, *others = headers[len(keys) :]
    # Fixed settings are the same in every row.
    fixed = [key for i, key in enumerate(keys) if len(rows) > 1 and len({r[i] for r in rows}) == 1]
    return new_table(
        *(*keys, final, *others),
        rows=[[*map(escape, row)] for row in rows],
        left=keys,
        drop_first=(
            *("seeds", "data\nsent"),
            *(header for header in others if header.startswith("sent")),
            *reversed(others),
            *fixed,
        ),
        keep=(*(key for key in keys if key not in fixed), final),
        caption=caption,
    )


def sweep_markdown(result: SweepResult) -> str:
    headers, rows, caption = sweep_rows(result)
    return f"{markdown_table(headers, rows, left=len(result.keys))}\n{caption}\n"


def sweep_rows(result: SweepResult) -> tuple[list[str], list[list[str]], str]:
    metrics = result.metrics or [ACCURACY]
    metric = metrics[0] if len(metrics) == 1 else ""
    unit = "%" if metric == ACCURACY else metric
    decimals = 1 if metric == ACCURACY else None
    columns = [_texts(result, Combination.final, decimals=decimals)]
    headers = [*result.keys, f"final\n{unit}".strip()]
    for target in result.targets:
        headers.append(f"to {target_name(target, metric or ACCURACY)}\n(s)")
        times = partial(Combination.time_to, target=target)
        columns.append(_texts(result, times, part="reached", missing="not reached"))
    for target in result.targets:
        headers.append(f"sent to\n{target_name(target, metric or ACCURACY)}")
        sent = partial(Combination._spread, value=partial(_sent_to, target))
        columns.append(_texts(result, sent, missing="not reached", size=True))
    for time in result.times:
        headers.append(f"at {time_name(time)}\n{unit}".strip())
        at_time = partial(Combination.result_at, time=time)
        columns.append(_texts(result, at_time, decimals=decimals, part="seeds"))
    headers += ["data\nsent", "seeds"]
    sent = partial(Combination._spread, value=attrgetter("bytes_sent"))
    columns.append(_texts(result, sent, size=True))
    seeds = [(len(each.finished), len(each.runs)) for each in result.combinations]
    columns.append([str(n) if n == begun else f"{n} of {begun}" for n, begun in seeds])
    cells = zip(*columns, strict=True)
    rows = [[*each.texts, *row] for each, row in zip(result.combinations, cells, strict=True)]
    several = any(len(each.finished) > 1 for each in result.combinations)
    notes = ["mean ± half-width of the 95 % interval over the seeds" if several else "one seed"]
    tests = [run.final_tests for each in result.combinations for run in each.finished]
    notes += [f"final: {final_meaning(tests)}"] if tests else []
    notes += [AT_TIME_CAPTION] if result.times else []
    if any(len(each.finished) < len(each.runs) for each in result.combinations):
        notes.append("runs that did not finish are not counted")
    return headers, rows, "; ".join(notes)


def _texts(
    result: SweepResult,
    number: Callable[[Combination], Interval | None],
    *,
    decimals: int | None = None,
    part: str = "",
    missing: str = MISSING,
    size: bool = False,
) -> list[str]:
    """A column; `part` names the seeds that have the number, where others may not."""
    spreads = [number(each) for each in result.combinations]
    if decimals is None:
        decimals = decimals_for(spread.mean if spread else None for spread in spreads)
    texts = []
    for each, spread in zip(result.combinations, spreads, strict=True):
        runs, none = len(each.finished) if part else 0, missing if each.finished else MISSING
        text = with_spread(spread, decimals, runs=runs, part=part, missing=none)
        texts.append(data_size(spread.mean) if size and spread else text)
    return texts


def _sent_to(target: str, run: RunSummary) -> float | None:
    return run.bytes_to_target.get(target)


def read_sweep(plan: Sweep) -> SweepResult:
    values = {run.texts: run.values for run in plan.runs}
    combinations = []
    for texts in values:
        folders = [run.cell.folder for run in plan.runs if run.texts == texts]
        begun = read_summaries(folder for folder in folders if is_run(folder))
        combinations.append(Combination(texts, values[texts], tuple(begun)))
    return SweepResult(tuple(key.key for key in plan.keys), tuple(combinations))
