"""A replay in sentences: whether it can be trusted, which planner is the fastest, how sure."""

from __future__ import annotations

from fedhp.engine.replay.whatif import WhatIf
from fedhp.report.formatting import count, listed, number, seconds

SURE = {
    "recorded": "as recorded",
    "exact": "exact, for it plans by the clock and the seed alone",
    "assumed": "under the assumption below",
}


def whatif_words(result: WhatIf) -> list[str]:
    """One sentence each: the check, the changed settings, the fastest, assumptions, the cost."""
    found = [_checked(result)]
    if result.overrides:
        found.append(
            f"Changed: {listed(result.overrides)}. All but the recorded row lives in this world."
        )
    found.append(_fastest(result))
    found.extend(
        f"Assumed for {outcome.planner}: {'; '.join(outcome.assumptions)}."
        for outcome in result.planners
        if outcome.assumptions
    )
    planners = count(len(result.planners), "planner")
    rounds = count(len(result.recorded.rounds.clock), "round")
    found.append(f"Replayed {planners} over {rounds} in {seconds(result.seconds)}.")
    return found


def _checked(result: WhatIf) -> str:
    rounds = len(result.recorded.rounds.clock)
    text = "Devices and links, rebuilt from the settings, are those of the record bit for bit"
    if result.first_difference is None:
        whole = "is the round" if rounds == 1 else f"are all {rounds} rounds"
        return f"{text}; so {whole} of the run's own planner, replayed."
    why = "" if result.all_links else ": the record holds a selection of the links only"
    return (
        f"{text}, but the run's own planner, replayed, plans otherwise from round "
        f"{result.first_difference} on (rounds of {seconds(result.own.round_time)} instead of "
        f"{seconds(result.recorded.round_time)}){why}."
    )


def _fastest(result: WhatIf) -> str:
    best, recorded = result.best, result.recorded
    steps = f"{number(best.steps_per_second)} local steps per second of virtual time"
    before = number(recorded.steps_per_second)
    if best.steps_per_second > recorded.steps_per_second:
        gain = best.steps_per_second / recorded.steps_per_second - 1
        text = f"The fastest is {best.planner}: {steps}, {gain:+.0%} against the recorded {before}"
    else:
        text = f"None is faster than the record with {before}; {best.planner} is next with {steps}"
    return (
        f"{text} ({SURE[best.sure]}). Nothing was trained: how well the models would have learned "
        "at that speed, a replay cannot say."
    )
