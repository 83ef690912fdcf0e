"""A replay as a table and in sentences: whether it can be trusted, and which planner is fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhp.report.formatting import MISSING, count, listed, number, seconds, short_names
from fedhp.report.tables import column_texts, new_table

if TYPE_CHECKING:
    from rich.table import Table

    from fedhp.engine.replay.whatif import WhatIf

SURE = {
    "recorded": "as recorded",
    "exact": "exact, because it plans only by the clock and the seed",
    "assumed": "under the assumption below",
}


def whatif_table(result: WhatIf) -> Table:
    """The recorded rounds, then those of every planner; the most steps per second is bold."""
    from rich.markup import escape

    recorded = result.recorded
    outcomes = [recorded, *result.planners]
    most = max(outcome.steps_per_second for outcome in outcomes)
    against = [result.against_record(outcome) for outcome in result.planners]
    rates = column_texts([outcome.steps_per_second for outcome in outcomes])
    forms = ["[bold]{}[/]" if each.steps_per_second == most else "{}" for each in outcomes]
    columns: list[tuple[str, list[str]]] = [
        ("planner", [escape(name) for name in _row_names(result)]),
        ("rounds", column_texts([len(outcome.rounds.clock) for outcome in outcomes], 0)),
        ("round\n(s)", column_texts([outcome.round_time for outcome in outcomes])),
        ("against\nrecord", [MISSING, *(_percent(time) for time, _ in against)]),
        ("waiting\n(s)", column_texts([outcome.mean_waiting_time for outcome in outcomes])),
        ("against\nrecord", [MISSING, *(_percent(waiting) for _, waiting in against)]),
        ("mean\nsteps", column_texts([outcome.mean_local_steps for outcome in outcomes], 1)),
        ("steps\nper s", [form.format(rate) for form, rate in zip(forms, rates, strict=True)]),
        ("links", column_texts([outcome.mean_links for outcome in outcomes], 1)),
        ("total\n(s)", column_texts([outcome.total_time for outcome in outcomes])),
        ("basis", [outcome.sure for outcome in outcomes]),
    ]
    table = new_table(
        *(header for header, _ in columns),
        rows=zip(*(column for _, column in columns), strict=True),
        left=("planner", "basis"),
        keep=("planner", "round\n(s)"),
        drop_first=("total\n(s)", "links", "rounds", "mean\nsteps", "basis", "against\nrecord"),
        caption="exact: what such a run would take; assumed: planned by the recorded measurements",
    )
    table.short_labels = [escape(name) for name in _row_names(result, short=True)]
    return table


def _row_names(result: WhatIf, *, short: bool = False) -> list[str]:
    names = [outcome.planner for outcome in result.planners]
    recorded = result.recorded.planner
    if short:
        shorter = short_names([recorded, *names])
        names, recorded = [shorter[name] for name in names], shorter[recorded]
    if recorded not in names:
        return [recorded, *names]
    replayed = f"{recorded} (changed)" if result.overrides else f"{recorded} (replayed)"
    return [f"{recorded} (recorded)", *(replayed if n == recorded else n for n in names)]


def whatif_words(result: WhatIf) -> list[str]:
    """One sentence each: the check, the changed settings, the fastest, assumptions, the cost."""
    sentences = [_check_words(result)]
    if result.overrides:
        where = "The change applies to every row but the recorded one."
        sentences.append(f"Changed: {listed(result.overrides)}. {where}")
    sentences.append(_fastest_words(result))
    sentences.extend(
        f"Assumed for {outcome.planner}: {'; '.join(outcome.assumptions)}."
        for outcome in result.planners
        if outcome.assumptions
    )
    planners = count(len(result.planners), "planner")
    rounds = count(len(result.recorded.rounds.clock), "round")
    sentences.append(f"Replayed {planners} over {rounds} in {seconds(result.seconds)}.")
    return sentences


def _check_words(result: WhatIf) -> str:
    rounds = len(result.recorded.rounds.clock)
    text = "Devices and links, rebuilt from the settings, equal the record bit for bit"
    if result.first_difference is None:
        whole = "does the round" if rounds == 1 else f"do all {rounds} rounds"
        return f"{text}; so {whole} of the run's own planner, replayed."
    why = "" if result.all_links else ": the record holds only a selection of the links"
    return (
        f"{text}, but the run's own planner, replayed, plans differently from round "
        f"{result.first_difference} on (rounds of {seconds(result.own.round_time)} instead of "
        f"{seconds(result.recorded.round_time)}){why}."
    )


def _fastest_words(result: WhatIf) -> str:
    best, recorded = result.best, result.recorded
    steps = f"{number(best.steps_per_second)} local steps per second of virtual time"
    before = number(recorded.steps_per_second)
    if best.steps_per_second > recorded.steps_per_second:
        gain = best.steps_per_second / recorded.steps_per_second - 1
        more = f"{100 * gain:.0f} % more than the recorded {before}"
        text = f"The fastest is {best.planner}: {steps}, {more}"
    else:
        text = f"None is faster than the record with {before}; {best.planner} is next with {steps}"
    return (
        f"{text} ({SURE[best.sure]}). Nothing was trained: a replay cannot say how well the models "
        "would have learned at that speed."
    )


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:+.0f} %"
