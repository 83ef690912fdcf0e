"""What the figures of a report show, said in a sentence or two with their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhp.record.reader import RunReader
from fedhp.report.figures.panels import best_known_target
from fedhp.report.figures.world import (
    Roster,
    bandwidth_of,
    finite,
    read_roster,
    steps_of,
    varies,
)
from fedhp.report.formatting import (
    count,
    label_name,
    listed,
    number,
    score,
    seconds,
    target_name,
)
from fedhp.report.groups import Comparison
from fedhp.report.rounds import check_round, selection_note


def first_words(comparison: Comparison) -> str:
    """The result in one sentence or two."""
    return result_words(comparison).partition(" Then ")[0]


def result_words(comparison: Comparison) -> str:
    """Who reached the most telling target first and how much later the others; else the best."""
    target = best_known_target(comparison)
    reached, missed = [], []
    for group in comparison.groups:
        times = group.numbers(lambda run: run.time_to_target.get(target or ""))
        if times:
            part = len(times) < len(group.finished)
            some = f" ({len(times)} of {len(group.finished)} seeds)" if part else ""
            reached.append((part, float(np.mean(times)), group.name, some))
        elif group.finished:
            missed.append(group.name)
    if target is None or not reached:
        return _final_words(comparison)
    # A mean over the seeds that were quick enough is no match for one over all.
    reached.sort()
    (_, first, name, some), *rest = reached
    goal = target_name(target, comparison.metric)
    if len(comparison.groups) == 1:
        return f"{name} reaches {goal} after {seconds(first)} of virtual time{some}."
    seeds = max(len(group.finished) for group in comparison.groups)
    mean = f" (means of {seeds} seeds)" if seeds > 1 else ""
    text = f"First to {goal}{mean}: {name}, after {seconds(first)} of virtual time{some}."
    later = []
    for _, time, other, which in rest:
        longer = f", {time / first:.1f} times as long" if first and time / first >= 1.05 else ""
        later.append(f"{other} after {seconds(time)}{which}{longer}")
    if later:
        text += f" Then {'; '.join(later)}."
    if missed:
        text += f" Not reached by {listed(missed)}."
    return text


def _final_words(comparison: Comparison) -> str:
    """The final results, best first, where no target was reached."""
    finals = [
        (float(np.mean(values)), group.name)
        for group in comparison.groups
        if (values := group.numbers(lambda run: run.final_accuracy))
    ]
    if not finals:
        return "No run has finished; what there is so far is drawn as thin lines."
    ranked = [
        f"{name} {score(value, comparison.metric)}" for value, name in sorted(finals, reverse=True)
    ]
    start = "No target was reached" if comparison.targets else "No target was set"
    return f"{start}. Final test {comparison.metric}: {', '.join(ranked)}."


def world_words(run: RunReader) -> str:
    """How unequal the workers and their links are."""
    roster = read_roster(run)
    parts = [_speed_words(roster)]
    speed, unit = bandwidth_of(run)
    known = finite(speed)
    if known.size and varies(speed):
        parts.append(
            f"Bandwidths at the starts of rounds range from {number(float(known.min()))} to "
            f"{number(float(known.max()))} {unit}, mean {number(float(known.mean()))}."
        )
    elif known.size:
        parts.append(f"Every link has {number(float(known[0]))} {unit} all the time.")
    if run.meta("experiment")["world"]["bandwidth"]["per"] == "link" and varies(speed):
        parts.append("Links differ; shown is the mean over a worker's links.")
    away = float(np.isnan(steps_of(run)).mean())
    if away:
        parts.append(f"Workers are away {100 * away:.1f} % of the time.")
    return " ".join(part for part in parts if part)


def _speed_words(roster: Roster) -> str:
    times = {w: roster.mean_step_time(w) for w in range(len(roster.devices))}
    times = {worker: time for worker, time in times.items() if not np.isnan(time)}
    if not times:
        return ""
    if len(times) == 1 or max(times.values()) == min(times.values()):
        return f"A local step takes {seconds(min(times.values()))} on every worker."
    quick, slow = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    ratio = times[slow] / times[quick] if times[quick] else float("inf")
    return (
        f"The slowest of {count(len(roster.devices), 'worker')}, worker {slow} "
        f"({roster.devices[slow]}), needs {seconds(times[slow])} for a local step, "
        f"{number(ratio)} times as long as the quickest, worker {quick} "
        f"({roster.devices[quick]}, {seconds(times[quick])})."
    )


def topology_words(run: RunReader) -> str:
    """How many links were in use, over all rounds."""
    rounds = run.table("rounds")
    used = rounds["links"]
    what = "transfer" if any(rounds["directed"]) else "link"
    if min(used) == max(used):
        text = f"{count(used[0], what)} in every round."
    else:
        mean = sum(used) / len(used)
        text = f"{min(used)} to {max(used)} {what}s per round, {number(mean)} on average."
    note = selection_note(run)
    return f"{text} The record holds {note}." if note else text


def round_words(runs: Sequence[RunReader], round_index: int) -> str:
    """How long everyone waits in one round, run by run."""
    parts = []
    for run in runs:
        name = label_name(run.meta("label"))
        row = run.table("rounds", round_index=round_index)
        wait, time = row["mean_waiting_time"][0], row["round_time"][0]
        if run.meta("asynchronous"):
            parts.append(f"with {name} nobody waits")
        elif time:
            share = f"{100 * wait / time:.0f} % of its {seconds(time)}"
            parts.append(f"with {name} a worker waits {seconds(wait)} on average, {share}")
    return f"In round {round_index}, {'; '.join(parts)}." if parts else ""


def step_words(run: RunReader) -> str:
    """The range of the local steps, and the means of the device kinds."""
    check_round(run, None)
    steps = steps_of(run)
    known = finite(steps)
    if not known.size:
        return "Nobody took a local step."
    if not varies(steps):
        each = "" if np.isnan(steps).any() else " in every round"
        return f"Everyone takes {count(int(known[0]), 'local step')}{each}."
    roster = read_roster(run)
    means = []
    for kind in roster.looks:
        mine = finite(steps[:, np.array(roster.devices) == kind])
        if mine.size:
            means.append(f"{kind} {number(float(mine.mean()))}")
    text = f"From {known.min():.0f} to {known.max():.0f}; mean by device: {', '.join(means)}."
    if np.isnan(steps).any():
        text += " Some are away at times."
    return text
