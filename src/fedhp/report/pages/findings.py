"""What the figures of a report show, in a sentence or two with their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedhp.record.reader import RunReader
from fedhp.record.timeline import read_pace, read_paces
from fedhp.report.claims.judging import INTERVAL_SEEDS
from fedhp.report.figures.comparison import most_telling_target
from fedhp.report.figures.run import (
    WorkerRows,
    bandwidth_of,
    finite,
    local_steps_of,
    read_worker_rows,
    varies,
)
from fedhp.report.formatting import (
    count,
    final_meaning,
    label_name,
    listed,
    number,
    score,
    seconds,
    sentence,
    target_name,
    worker_name,
)
from fedhp.report.groups import Comparison, kind_means
from fedhp.report.paired import compare_times
from fedhp.report.rounds import check_round, pace_words, paces_words, selection_note


def result_sentences(comparison: Comparison) -> list[str]:
    """Which algorithm reached the target first, and how much later the others; else the best."""
    target = most_telling_target(comparison)
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
        return [_final_words(comparison)]
    # A mean over only the seeds that were fast enough does not compare with one over all.
    reached.sort()
    (_, first, name, some), *rest = reached
    goal = target_name(target, comparison.metric)
    if len(comparison.groups) == 1:
        return [f"{name} reaches {goal} after {seconds(first)} of virtual time{some}."]
    seeds = max(len(group.finished) for group in comparison.groups)
    mean = f" (means of {seeds} seeds)" if seeds > 1 else ""
    doubts = _not_certain(comparison, target, name)
    start = "Lowest mean time to" if doubts and seeds > 1 else "First to"
    best = f"{start} {goal}{mean}: {name}, after {seconds(first)} of virtual time{some}{doubts}."
    later = []
    for _, time, other, which in rest:
        longer = f", {time / first:.1f} times as long" if first and time / first >= 1.05 else ""
        later.append(f"{other} after {seconds(time)}{which}{longer}")
    then = [f"Then {'; '.join(later)}."] if later else []
    return [best, *then, *([f"Not reached by {listed(missed)}."] if missed else [])]


def _not_certain(comparison: Comparison, target: str, best: str) -> str:
    """From which others the seeds cannot tell the fastest, after a semicolon."""
    runs = {
        group.name: (group.label, [run.summary for run in group.finished])
        for group in comparison.groups
        if group.finished
    }
    seeds = max(len(group) for _, group in runs.values())
    if seeds < INTERVAL_SEEDS:
        return f"; {count(seeds, 'seed')}, too few to rank ({INTERVAL_SEEDS} are needed)"
    others = [
        name
        for name in runs
        if name != best and compare_times(runs[best], runs[name], target).verdict != "faster"
    ]
    return f"; the seeds cannot tell whether it is faster than {listed(others)}" if others else ""


def _final_words(comparison: Comparison) -> str:
    """The final results, best first, where no target was reached."""
    metric = comparison.metric
    finals = [
        (float(np.mean(values)), group.name)
        for group in comparison.groups
        if (values := group.numbers(lambda run: run.final_accuracy))
    ]
    if not finals:
        return "No run has finished; the results so far are drawn as thin lines."
    ranked = [f"{name} {score(value, metric)}" for value, name in sorted(finals, reverse=True)]
    start = "No target was reached" if comparison.targets else "No target was set"
    meaning = final_meaning(
        run.summary.final_tests for group in comparison.groups for run in group.finished
    )
    return f"{start}. Final test {metric} ({meaning}): {', '.join(ranked)}."


def world_words(run: RunReader) -> str:
    parts = [_speed_words(read_worker_rows(run))]
    speed, unit = bandwidth_of(run)
    known = finite(speed)
    if known.size and varies(speed):
        low, high, mean = (number(float(v)) for v in (known.min(), known.max(), known.mean()))
        span = f"from {low} to {high} {unit}, mean {mean}"
        parts.append(f"Bandwidths at the starts of rounds range {span}.")
    elif known.size:
        parts.append(f"Every link has {number(float(known[0]))} {unit} all the time.")
    if run.meta("experiment")["world"]["bandwidth"]["per"] == "link" and varies(speed):
        parts.append("Links differ; the mean over a worker's links is shown.")
    away = float(np.isnan(local_steps_of(run)).mean())
    if away:
        parts.append(f"Workers are away {100 * away:.1f} % of the time.")
    return " ".join(part for part in parts if part)


def _speed_words(workers: WorkerRows) -> str:
    times = {worker: workers.mean_step_time(worker) for worker in range(len(workers.devices))}
    times = {worker: time for worker, time in times.items() if not np.isnan(time)}
    if not times:
        return ""
    if len(times) == 1 or max(times.values()) == min(times.values()):
        return f"A local step takes {seconds(min(times.values()))} on every worker."
    fast, slow = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    ratio = times[slow] / times[fast] if times[fast] else float("inf")
    return (
        f"The slowest of {count(len(workers.devices), 'worker')}, "
        f"{worker_name(slow, workers.devices[slow])}, needs {seconds(times[slow])} for a local "
        f"step, {number(ratio)} times as long as the fastest, worker {fast} "
        f"({workers.devices[fast]}, {seconds(times[fast])})."
    )


def topology_words(run: RunReader) -> str:
    rounds = run.table("rounds")
    used = rounds["links"]
    what = "transfer" if any(rounds["directed"]) else "link"
    text, mean = f"{count(used[0], what)} in every round.", number(sum(used) / len(used))
    if min(used) < max(used):
        text = f"{min(used)} to {max(used)} {what}s per round, {mean} on average."
    note = selection_note(run)
    return f"{text} The record holds {note}." if note else text


def round_words(
    runs: Sequence[RunReader], round_index: int, *, names: Mapping[str, str] | None = None
) -> str:
    """How long the workers wait in one round, and for whom, run by run; `names` of their labels, if
    known."""
    parts, lasts = [], list[str]()
    for run in runs:
        label = run.meta("label")
        name = (names or {}).get(label, label_name(label))
        row = run.table("rounds", round_index=round_index)
        wait, time = row["mean_waiting_time"][0], row["round_time"][0]
        if run.meta("asynchronous"):
            parts.append(f"with {name} nobody waits")
        elif time:
            share = f"{100 * wait / time:.0f} % of the round's {seconds(time)}"
            parts.append(f"with {name} a worker waits {seconds(wait)} on average, {share}")
        words = pace_words(read_pace(run, round_index), run.meta("devices"))
        often = paces_words(read_paces(run), run.meta("devices"))
        lasts += [f"{name}: {sentence(words)} {sentence(often)}"] if words else []
    if not parts:
        return ""
    return " ".join([f"In round {round_index}, {'; '.join(parts)}.", *lasts])


def step_words(run: RunReader) -> str:
    """The range of the local steps, and the means of the device kinds."""
    check_round(run, None)
    steps = local_steps_of(run)
    known = finite(steps)
    if not known.size:
        return "No worker took a local step."
    if not varies(steps):
        each = "" if some_away(run) else " in every round"
        return f"Every worker takes {count(int(known[0]), 'local step')}{each}."
    workers = read_worker_rows(run)
    means = kind_means(steps, workers.devices)
    words = ", ".join(f"{kind} {number(means[kind])}" for kind in workers.styles if kind in means)
    text = f"From {known.min():.0f} to {known.max():.0f}; mean by device: {words}."
    return f"{text} Some workers are away at times." if some_away(run) else text


def some_away(run: RunReader) -> bool:
    return bool(np.isnan(local_steps_of(run)).any())
