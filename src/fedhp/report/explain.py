"""A round in plain words: what was decided, why, and how it turned out.

Every number is read from the record; which sentences appear depends on what the record holds
(the step rule, facts, verdicts, absences), not on the algorithm's name.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from fedhp.algorithms.base import about
from fedhp.record.links import NAMED_LINKS
from fedhp.record.reader import RunReader
from fedhp.report.formatting import (
    count,
    data_size,
    label_name,
    listed,
    number,
    score,
    seconds,
    sentence,
)
from fedhp.report.rounds import Link, RoundView, WorkerRound, bridges_of, check_round, read_round
from fedhp.types import GroupRole, LinkVerdict, StepRule

# What the verdicts of a planner that searches mean.
PLANNED = {
    LinkVerdict.CUT: "cut, because the objective is lower without it",
    LinkVerdict.KEPT_BRIDGE: "kept, because the graph would fall apart without it",
    LinkVerdict.KEPT_BOUND: "kept, because cutting it would have broken the distance bound",
    LinkVerdict.KEPT_NO_GAIN: "kept, because without it the objective did not fall",
    LinkVerdict.KEPT_UNTRIED: "kept and never tried: cutting slower ones did not help",
    LinkVerdict.KEPT_ALL: "kept, because this round did not search: every link stays",
}
# What a verdict means, by its word in tables: the reasons that pages show next to a link.
VERDICT_MEANINGS = {
    **{verdict.word: meaning for verdict, meaning in PLANNED.items()},
    LinkVerdict.FIXED.word: "used in every round by this algorithm",
    LinkVerdict.DRAWN.word: "chosen at random",
    LinkVerdict.SCORED.word: "chosen, because the peers were scored on the worker's samples",
    LinkVerdict.TREE.word: "carries the sum of a group average",
    LinkVerdict.SCHEDULED.word: "one of the links that the topology has in this round",
}
FIT = (
    "Each worker gets as many local steps as fit into {deadline}, together with the transfer over "
    "its slowest link"
)
FIXED = "Every worker takes {taken}, independent of its speed."
LOCAL = "Local phase: {taken}, and one more before the exchange."
SCORED = (
    "Every worker takes {taken}. First stage: it scores {peers} random peers and averages the best "
    "{keep}."
)
DRAWN = (
    "Every worker takes {taken}. Second stage: it averages with {keep} random peers of those it "
    "kept more often than by chance."
)
# What set the steps; by other rules the words of the record.
RULES = {
    StepRule.OPT: "{fit}. Of {tried} deadlines tried, this one gives the least time per step (rule "
    "opt; the pace of {pace} is only recorded).",
    StepRule.FILL_PACE: "{fit}. The fastest worker needs this long for the pace of {pace} (rule "
    "fill).",
    StepRule.FILL_ONE_STEP: "{fit}. The slowest worker needs this long for a single step. The "
    "fastest would finish the pace of {pace} earlier, so the others fill the time (rule fill).",
    StepRule.LITERAL: "As printed in the paper: with {least_pace} ({source}) the fastest worker "
    "would finish after {deadline}. The others get the steps that fit into that time, but at least "
    "one, even if it takes longer.",
    **dict.fromkeys((StepRule.FIXED_STEPS, StepRule.FIXED_EPOCHS), FIXED),
    **dict.fromkeys((StepRule.LOCAL_PHASE, StepRule.EPOCH_PHASE), LOCAL),
    StepRule.COMMUNICATING_PHASE: "Communicating phase: one step, then the exchange.",
    **dict.fromkeys((StepRule.PEERS_SCORED, StepRule.PEERS_SCORED_EPOCHS), SCORED),
    **dict.fromkeys((StepRule.PEERS_DRAWN, StepRule.PEERS_DRAWN_EPOCHS), DRAWN),
    StepRule.ASYNCHRONOUS: "Asynchronous: each worker trains when it is ready, then averages with "
    "one random neighbor.",
    StepRule.SHARED_MODEL: "The limit: there is one model, every finished step of any worker moves "
    "it at once, and links cost nothing.",
    StepRule.GROUP_START: "Everyone trains for {deadline}; nothing is exchanged yet.",
    StepRule.GROUP_OVERLAP: "Everyone trains during the transfer, and then for {deadline} until "
    "the deadline.{carried}",
    StepRule.GROUP_WAIT: "Everyone waits for the transfer, then trains for {deadline} until the "
    "deadline.{carried}",
}
ON_TIME = 0.02  # of the planned time: less than this is not worth a reason


@dataclass(frozen=True, slots=True)
class Paragraph:
    heading: str
    text: str


def explain_round(run: RunReader, round_index: int) -> list[Paragraph]:
    view = read_round(run, round_index)
    of = f" of {view.num_rounds}" if view.num_rounds else ""
    some = (
        f" All counts are exact. The record keeps {len(view.links):,} of the {view.links_known:,} "
        "links one by one, among them the slowest of every worker and verdict."
    )
    texts = {
        f"Round {view.round_index}{of}": _overview(view),
        "Steps": _steps(view),
        "Pace": _pace(view),
        "Group": _group(view),
        "Links": _links(view) + ("" if view.complete else some),
        "Distance": _distance(view),
        "Waiting": _waiting(view),
        "Away": _away(view),
    }
    return [Paragraph(heading, text) for heading, text in texts.items() if text]


def explain_text(run: RunReader, round_index: int | None = None, *, width: int = 92) -> str:
    """The same as one text with lines of this width; the last round if none is given."""
    lines: list[str] = []
    for paragraph in explain_round(run, check_round(run, round_index)):
        lines.append(paragraph.heading)
        lines += textwrap.wrap(paragraph.text, width, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def round_line(view: RoundView) -> str:
    """A round in one line: time, links, steps, waiting."""
    steps = [worker.local_steps for worker in view.workers]
    links = count(view.links_used, "transfer" if view.directed else "link")
    if _is_planned(view):
        kept = view.links_known - view.count(LinkVerdict.CUT)
        links = f"{kept} of {count(view.links_known, 'link')} kept"
    parts = [f"{view.started:.1f} to {view.clock:.1f} s", links]
    if steps:
        parts.append(f"{number(sum(steps) / len(steps))} steps on average")
    if not view.asynchronous:
        share = view.mean_waiting_time / view.round_time if view.round_time else 0.0
        parts.append(f"{seconds(view.mean_waiting_time)} waiting ({100 * share:.0f} %)")
    if view.away:
        parts.append(f"{len(view.away)} away")
    return f"Round {view.round_index}: {', '.join(parts)}"


def _is_planned(view: RoundView) -> bool:
    return any(verdict in view.verdicts for verdict in PLANNED)


def _overview(view: RoundView) -> str:
    kind = "" if view.network else " of virtual time"
    text = (
        f"{label_name(view.label)}, seed {view.seed}: from {view.started:.1f} s to "
        f"{view.clock:.1f} s{kind} ({seconds(view.round_time)}), learning rate "
        f"{view.learning_rate:.3g}, {data_size(view.bytes_sent)} sent."
    )
    if view.accuracy is None:
        return f"{text} Not evaluated."
    mean = f", {score(view.mean_model_accuracy, view.metric)} (mean model)"
    honest = "honest " if view.attackers else ""
    return (
        f"{text} Test {view.metric} at its end: {score(view.accuracy, view.metric)} (mean of the "
        f"{honest}workers){'' if view.network else mean}."
    )


def _steps(view: RoundView) -> str:
    sentences = [_rule_words(view), _steps_by_device(view)]
    idle = [worker.name for worker in view.workers if worker.local_steps == 0]
    if view.asynchronous and idle:
        away = ", or the worker may be away" if view.absences else ""
        sentences.append(
            f"No turn of {listed(idle, most=NAMED_LINKS)} ended in this round: a turn may span "
            f"several rounds{away}."
        )
    single = [worker.name for worker in view.workers if worker.local_steps == 1]
    if "deadline" in view.facts and single and not view.group:
        sentences.append(f"Only one step fits for {listed(single, most=NAMED_LINKS)}.")
    return " ".join(sentences)


def _rule_words(view: RoundView) -> str:
    """What set the steps, and where the deadline comes from."""
    deadline = view.facts.get("deadline")
    if view.reason is None:
        known = "" if deadline is None else f" Deadline: {seconds(deadline)}."
        return sentence(view.reason_text) + known
    numbers = view.reason.numbers
    raw, pace = view.facts.get("raw_pace"), view.facts.get("pace_steps")
    epochs = "the local epochs of its own samples ({least} to {most} steps)"
    words = {
        "deadline": seconds(deadline),
        "pace": f"{pace or 0.0:.3g} steps",
        "least_pace": count(max(1, int(pace or 1)), "step"),
        "source": "the start value" if raw is None else f"the formula gives {number(raw)}",
        "carried": "" if view.network else " An unfinished step is continued in the next round.",
    }
    text = RULES.get(view.reason.rule) or sentence(view.reason_text)
    text = text.replace("{taken}", "{steps} steps" if "steps" in numbers else epochs)
    return text.replace("{fit}", FIT).format(**numbers, **words)


def _steps_by_device(view: RoundView) -> str:
    workers = view.workers
    if len({worker.local_steps for worker in workers}) == 1:
        return f"Steps: {workers[0].local_steps} for every worker."
    by_name = sorted({worker.device for worker in workers})  # of equal times in this order

    def step_time(kind: str) -> float:
        times = [w.step_time for w in workers if w.device == kind and w.step_time is not None]
        return sum(times) / len(times) if times else float("inf")

    parts = []
    for kind in sorted(by_name, key=step_time):
        steps = [worker.local_steps for worker in workers if worker.device == kind]
        spread = f"{min(steps)} to {max(steps)}, mean {number(sum(steps) / len(steps))}"
        parts.append(f"{kind} {spread if min(steps) < max(steps) else steps[0]}")
    what = "Steps that ended in this round, by device" if view.asynchronous else "Steps by device"
    return f"{what}: {'; '.join(parts)}."


def _pace(view: RoundView) -> str:
    expected = view.pace.planned_worker
    setter = None if expected is None else view.worker(expected)
    sentences = []
    if setter is not None:
        link, transfer = view.slowest_link(setter.worker, planned=True), "no transfer"
        if link is not None:
            other = _other_end(link, setter.worker)
            transfer = f"{seconds(link.planned_link_time)} for its slowest link, to worker {other}"
        planned = view.facts.get("planned_round_time")
        sentences.append(
            f"In the plan, {setter.name} finishes last: {count(setter.local_steps, 'step')}, then "
            f"{transfer}; {seconds(planned)} in total. The round actually took "
            f"{seconds(view.round_time)}{_why_not_as_planned(view, planned)}."
        )
    now, base = view.facts.get("objective"), view.facts.get("base_objective")
    if now is not None and base is not None:
        sentences.append(_objective(view, now, base))
    return " ".join(sentences)


def _why_not_as_planned(view: RoundView, planned: float | None) -> str:
    """What the worker that finished last needed, against its plan; empty if all went as planned."""
    pace = view.pace
    last = None if pace.last_worker is None else view.worker(pace.last_worker)
    if last is None or planned is None:
        return ""
    late = view.round_time - planned
    if pace.plan_was_right and abs(late) < ON_TIME * planned:
        return ", as planned"
    instead, steps = "" if pace.plan_was_right else " instead", count(last.local_steps, "step")
    text = f", because {last.name} finished last{instead}: its {steps} took "
    text += seconds(last.compute_time)
    link = view.slowest_link(last.worker, planned=True)
    if link is None or link.planned_link_time is None:
        return text
    took, expected = last.communication_time, link.planned_link_time
    text += f", its slowest link {seconds(took)} where the plan had {seconds(expected)}"
    if late > 0 and took - expected >= late / 2:
        text += ". The links were slower than when the plan was made"
    elif late > 0 and abs(late) >= ON_TIME * planned:
        text += ". Its steps were slower than the plan had them"
    return text


def _objective(view: RoundView, now: float, base: float) -> str:
    what = "round time per local step"
    if view.reason is not None and view.reason.rule is StepRule.LITERAL:
        what = "the fastest worker's time"
    elif view.algorithm.get("waiting_tolerance") is not None:
        what += ", with a penalty for waiting"
    against = f"{100 * (1 - now / base):.0f} % less than the {seconds(base)} of"
    against = "the same as with" if now >= base else against
    return f"Objective ({what}): {seconds(now)}, {against} the whole base topology."


def _group(view: RoundView) -> str:
    """Who took part in a group average and why, and how long it took."""
    members = [member for member in view.group if member.takes_part]
    if not members:
        return ""
    fragment, parts = view.facts.get("fragment") or 0.0, view.facts.get("fragments") or 1.0
    what = f"Fragment {fragment + 1:.0f} of {parts:.0f} of the model" if parts > 1 else "The model"
    present = sum(member.role is not GroupRole.AWAY for member in view.group)
    sentences = [f"{what} is averaged among {len(members)} of {count(present, 'worker')}."]
    for role, reason in (
        (GroupRole.FAST, "Chosen for their fast links"),
        (GroupRole.OVERDUE, "Overdue, because they were left out as often as is allowed"),
        (GroupRole.ADDED, "Added, because no other participant holds the current consensus"),
    ):
        sentences += _named(reason, [str(m.worker) for m in members if m.role is role])
    root = next(member.worker for member in members if member.root)
    sentences.append(f"The root is worker {root}, which has taken part for longest.")
    sentences += _named(
        "Returning, so they receive the whole consensus",
        [str(member.worker) for member in members if member.returns],
    )
    left_out = [member for member in view.group if member.role is GroupRole.LEFT_OUT]
    sentences += _named(
        "Left out because of their slow links, with how often in a row, this round included",
        [f"{member.worker} ({member.left_out + 1})" for member in left_out],
    )
    times = ("planned_transfer_time", "transfer_time", "smoothed_transfer_time")
    planned, took, smoothed = (seconds(view.facts.get(name)) for name in times)
    objective, deadline = (seconds(view.facts.get(name)) for name in ("objective", "deadline"))
    sentences += [
        f"The transfer was predicted to take {planned} and took {took}; these participants give "
        f"the least time per participant, {objective}.",
        f"Deadline: {deadline}, by the smoothed transfer time of {smoothed}.",
    ]
    return " ".join(sentences)


def _named(reason: str, names: list[str], *, most: int = 2 * NAMED_LINKS) -> list[str]:
    return [f"{reason}: {listed(names, most=most)}."] if names else []


def _links(view: RoundView) -> str:
    if _is_planned(view):
        return _planned_links(view)
    if not view.links_used:
        return "No models were exchanged."
    verdicts, links = view.used_verdicts, count(view.links_used, "link")
    if view.asynchronous:
        known = view.averagings is not None
        what = count(view.averagings or 0, "averaging") if known else "Averagings"
        text = f"{what} over {links}, each pair drawn at random when the sender was ready."
    elif view.used[0].server:
        text = (
            f"{count(view.links_used, 'worker')} took part over the server: each received its "
            "model before the steps and sent its own afterwards."
        )
    elif LinkVerdict.SCORED in verdicts:
        text = (
            f"{count(view.links_used, 'model')} were pulled and scored by the receivers; the "
            "record does not say which of them were averaged."
        )
    elif view.directed:
        text = f"{count(view.links_used, 'model')} were pulled from chosen peers."
    elif verdicts == {LinkVerdict.TREE}:
        root = next((member.worker for member in view.group if member.root), None)
        text = f"The sum goes over a tree of {links} to worker {root}, and the result back."
    elif verdicts == {LinkVerdict.SCHEDULED}:
        text = f"The topology changes over rounds: this one has {links}."
    elif verdicts == {LinkVerdict.FIXED}:
        text = f"The topology is fixed: {links}."
    else:
        text = f"{links} in use."
    slow = max(view.used, key=lambda link: link.link_time or 0.0)
    what = f"{slow.b} to {slow.a}" if view.directed else slow.name
    return f"{text} The slowest, {what}, took {seconds(slow.link_time)}."


def _planned_links(view: RoundView) -> str:
    cut, all_cut = view.with_verdict(LinkVerdict.CUT), view.count(LinkVerdict.CUT)
    kept = view.links_known - all_cut
    if LinkVerdict.KEPT_ALL in view.verdicts:
        return f"All {count(kept, 'link')} of the base topology are kept: {_why_all(view)}"
    sentences = [f"{kept} of {count(view.links_known, 'link')} kept, {all_cut} cut."]
    if cut:
        named = (
            f"{link.name} ({seconds(link.planned_link_time)}, distance "
            f"{number(link.estimated_distance)})"
            for link in cut
        )
        first = "; the slowest" if all_cut > NAMED_LINKS else ""
        sentences.append(
            f"Cut, because the objective is lower without them{first}: "
            f"{listed(named, most=NAMED_LINKS, total=all_cut)}."
        )
    sentences += _bridge_words(view)
    for verdict, reason in (
        (LinkVerdict.KEPT_BOUND, "cutting them as well would have broken the distance bound"),
        (LinkVerdict.KEPT_NO_GAIN, "tried, but the objective did not fall"),
        (LinkVerdict.KEPT_UNTRIED, "never tried, because cutting slower ones did not help"),
    ):
        links = view.with_verdict(verdict)
        if links:
            slowest = f"{links[0].name} with {seconds(links[0].planned_link_time)}"
            sentences.append(
                f"{count(view.count(verdict), 'link')} kept: {reason} (the slowest: {slowest})."
            )
    tries = view.facts.get("iterations")
    if tries is not None:
        sentences.append(f"The search made {count(round(tries), 'try', 'tries')}.")
    return " ".join(sentences)


def _bridge_words(view: RoundView) -> list[str]:
    """The verdict is from the last try; whether it still holds, the final topology shows."""
    bridges = view.with_verdict(LinkVerdict.KEPT_BRIDGE)
    # A selection does not show the final topology, so only the try can be reported.
    final = bridges_of((link.a, link.b) for link in view.used) if view.complete else set()
    needed = [link for link in bridges if (link.a, link.b) in final]
    tried = [link for link in bridges if (link.a, link.b) not in final]
    sentences = []
    for links, reason in (
        (needed, "Kept, because the network would fall apart without them"),
        (tried, "Kept as the last link to a worker in a cut that was tried"),
    ):
        named = [f"{link.name} ({seconds(link.planned_link_time)})" for link in links]
        sentences += _named(reason, named, most=NAMED_LINKS)
    return sentences


def _why_all(view: RoundView) -> str:
    bound, mean = view.facts.get("distance_bound"), view.facts.get("mean_distance")
    if view.round_index == 1:
        return "the first round measures every pair once."
    if bound is None:
        return "no worker has reported an update yet, so there is no distance bound."
    return (
        f"its pairs without a link are {number(mean)} apart on average, above the bound of "
        f"{number(bound)}, so nothing may be cut."
    )


def _distance(view: RoundView) -> str:
    bound, mean = view.facts.get("distance_bound"), view.facts.get("mean_distance")
    if mean is None or not view.links or LinkVerdict.KEPT_ALL in view.verdicts:
        return ""
    text = f"The pairs without a link add {number(mean)} to the mean distance of all pairs"
    text = text if mean else "Every pair has a link"
    if view.algorithm.get("bound") == "none":
        return f"{text}; the bound is switched off."
    if not bound:
        return f"{text}; the bound is {number(bound)}."
    return f"{text}; the bound is {number(bound)} ({100 * mean / bound:.0f} % used)."


def _waiting(view: RoundView) -> str:
    if view.asynchronous:
        return "Nobody waits: there is no barrier."
    if view.group and not view.mean_waiting_time:
        return "Nobody waits: everyone trains all the time."
    if len(view.workers) < 2:
        return ""
    longest = max(view.workers, key=lambda worker: worker.waiting_time)
    last = None if view.pace.last_worker is None else view.worker(view.pace.last_worker)
    part = 100 * view.mean_waiting_time / view.round_time if view.round_time else 0.0
    text = f"On average {seconds(view.mean_waiting_time)}, {part:.0f} % of the round."
    if last is None:
        return text
    return (
        f"{text} W{longest.name[1:]} waits longest, {seconds(longest.waiting_time)}: "
        f"{_time_spent(view, longest)}. Everyone waits for {last.name}: {_time_spent(view, last)}."
    )


def _time_spent(view: RoundView, worker: WorkerRound) -> str:
    stepping = worker.local_steps * (worker.step_time or 0.0)
    more = " and scoring" if LinkVerdict.SCORED in view.verdicts else " and the estimates"
    if worker.compute_time <= stepping * (1 + 1e-9) + 1e-9:
        more = ""
    known = about(view.algorithm["name"])
    limit = view.algorithm.get("max_steps", known and known.most_steps)
    most = ", the maximum," if worker.local_steps == limit else ""
    steps = count(worker.local_steps, "step")
    text = f"its {steps}{most}{more} took {seconds(worker.compute_time)}"
    link = view.slowest_link(worker.worker)
    if link is None:
        return f"{text}, and it has no link"
    way = f"{'from' if view.directed else 'to'} {_other_end(link, worker.worker)}"
    return f"{text}, its slowest link ({way}) {seconds(worker.communication_time)}"


def _away(view: RoundView) -> str:
    if not view.away:
        return ""
    pronoun = "it" if len(view.away) == 1 else "them"
    return f"{sentence(listed(view.away, most=2 * NAMED_LINKS))} The plan does without {pronoun}."


def _other_end(link: Link, worker: int) -> int | str:
    if link.server:
        return "the server"
    return link.b if link.a == worker else link.a
