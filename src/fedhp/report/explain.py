"""A round in plain words: what was decided, why, and how it turned out.

Every number is read from the record; which sentences appear depends on what the record
holds (facts, verdicts, absences), not on the algorithm's name.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedhp.algorithms.fedhp import FedHP
from fedhp.record.links import NAMED
from fedhp.record.reader import RunReader
from fedhp.report.describe import describe_run
from fedhp.report.formatting import count, data_size, label_name, listed, number, score, seconds
from fedhp.report.rounds import Link, RoundView, Share, bridges_of, read_round
from fedhp.types import LinkVerdict, StepRule

__all__ = ["Paragraph", "describe_run", "explain_round"]

SHOWN = NAMED  # links or workers named one by one

PLANNED = (
    LinkVerdict.CUT,
    LinkVerdict.KEPT_BRIDGE,
    LinkVerdict.KEPT_BOUND,
    LinkVerdict.KEPT_NO_GAIN,
    LinkVerdict.KEPT_UNTRIED,
    LinkVerdict.KEPT_ALL,
)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences under a heading."""

    heading: str
    text: str


def explain_round(run: RunReader, round_index: int) -> list[Paragraph]:
    """What happened in this round and why."""
    view = read_round(run, round_index)
    found = [
        Paragraph(f"Round {view.round_index} of {view.num_rounds}", _setting(view)),
        Paragraph("Steps", _steps(view)),
        Paragraph("Pace", _pace(view)),
        Paragraph("Links", _links(view) + _selection(view)),
        Paragraph("Distance", _distance(view)),
        Paragraph("Waiting", _waiting(view)),
        Paragraph("Away", _away(view)),
    ]
    return [paragraph for paragraph in found if paragraph.text]


def _setting(view: RoundView) -> str:
    kind = "" if view.network else " of virtual time"
    text = (
        f"{label_name(view.label)}, seed {view.seed}: from {view.started:.1f} s to "
        f"{view.clock:.1f} s{kind} ({seconds(view.round_time)}), learning rate "
        f"{view.learning_rate:.3g}, {data_size(view.bytes_sent)} sent."
    )
    if view.accuracy is None:
        return f"{text} Not evaluated."
    mean = f", {score(view.mean_model_accuracy, view.metric)} (mean model)"
    return (
        f"{text} Test {view.metric} after it: {score(view.accuracy, view.metric)} (mean of the "
        f"workers){'' if view.network else mean}."
    )


def _steps(view: RoundView) -> str:
    sentences = [_rule_words(view), _steps_by_device(view)]
    idle = [share.name for share in view.shares if share.local_steps == 0]
    if view.asynchronous and idle:
        sentences.append(
            f"No training of {listed(idle, most=SHOWN)} ended in this round: a turn may span "
            f"several{', or a worker be away' if view.absences else ''}."
        )
    single = [share.name for share in view.shares if share.local_steps == 1]
    if "deadline" in view.facts and single:
        sentences.append(f"Time for one step only: {listed(single, most=SHOWN)}.")
    return " ".join(sentences)


def _rule_words(view: RoundView) -> str:
    """What set the steps, and where the deadline comes from."""
    deadline = view.facts.get("deadline")
    if view.reason is None:
        known = "" if deadline is None else f" Deadline: {seconds(deadline)}."
        return _sentence(view.reason_text) + known
    numbers = view.reason.numbers
    pace = f"{view.facts.get('pace_steps') or 0.0:.3g} steps"
    fit = f"Each worker gets as many local steps as fit into {seconds(deadline)}, together with "
    fit += "the transfer over its slowest link"
    match view.reason.rule:
        case StepRule.OPT:
            return (
                f"{fit}. Of {numbers['tried']} deadlines tried, this one gives the least time per "
                f"step (rule opt; the pace of {pace} is only recorded)."
            )
        case StepRule.FILL_PACE:
            return f"{fit}. The fastest worker needs this long for the pace of {pace} (rule fill)."
        case StepRule.FILL_ONE_STEP:
            return (
                f"{fit}. The slowest worker needs this long for a single step. The fastest would "
                f"finish the pace of {pace} earlier, so the others fill the time (rule fill)."
            )
        case StepRule.LITERAL:
            raw = view.facts.get("raw_pace")
            source = "the start value" if raw is None else f"the formula gives {number(raw)}"
            steps = count(max(1, int(view.facts.get("pace_steps") or 1)), "step")
            return (
                f"As printed in the paper: with {steps} ({source}) the fastest worker would finish "
                f"after {seconds(deadline)}. The others get the steps that fit into that time, but "
                f"at least one, even if it takes longer."
            )
        case StepRule.FIXED_STEPS:
            return f"Every worker takes {numbers['steps']} steps, independent of its speed."
        case StepRule.LOCAL_PHASE:
            return f"Local phase: {numbers['steps']} steps, and one more before the exchange."
        case StepRule.COMMUNICATING_PHASE:
            return "Communicating phase: one step, then the exchange."
        case StepRule.PEERS_SCORED:
            return (
                f"Every worker takes {numbers['steps']} steps. First stage: it scores "
                f"{numbers['peers']} random peers and averages the best {numbers['keep']}."
            )
        case StepRule.PEERS_DRAWN:
            return (
                f"Every worker takes {numbers['steps']} steps. Second stage: it averages with "
                f"{numbers['keep']} random peers of those it kept more often than by chance."
            )
        case StepRule.ASYNCHRONOUS:
            return (
                "Asynchronous: each worker trains when it is ready, then averages with one random "
                "neighbor."
            )


def _steps_by_device(view: RoundView) -> str:
    shares = view.shares
    if len({share.local_steps for share in shares}) == 1:
        return f"Steps: {shares[0].local_steps} for everyone."
    kinds = sorted({share.device for share in shares}, key=lambda kind: _mean_time(shares, kind))
    parts = []
    for kind in kinds:
        steps = [share.local_steps for share in shares if share.device == kind]
        mean = sum(steps) / len(steps)
        if min(steps) == max(steps):
            spread = f"{steps[0]}"
        else:
            spread = f"{min(steps)} to {max(steps)}, mean {number(mean)}"
        parts.append(f"{kind} {spread}")
    what = "Steps that ended in it, by device" if view.asynchronous else "Steps by device"
    return f"{what}: {'; '.join(parts)}."


def _mean_time(shares: list[Share], kind: str) -> float:
    times = [s.step_time for s in shares if s.device == kind and s.step_time is not None]
    return sum(times) / len(times) if times else float("inf")


def _pace(view: RoundView) -> str:
    setter = None if view.pace_setter is None else view.share(view.pace_setter)
    sentences = []
    if setter is not None:
        link = view.slowest_link(setter.worker, planned=True)
        way = (
            "no link"
            if link is None
            else f"{seconds(link.planned_link_time)} for its slowest link, to worker "
            f"{_other(link, setter.worker)}"
        )
        planned = view.facts.get("planned_round_time")
        sentences.append(
            f"In the plan {setter.name} is the last to finish: "
            f"{count(setter.local_steps, 'step')}, then {way}; {seconds(planned)} in all. "
            f"In fact the round took {seconds(view.round_time)}."
        )
    now, base = view.facts.get("objective"), view.facts.get("base_objective")
    if now is not None and base is not None:
        sentences.append(_objective(view, now, base))
    return " ".join(sentences)


def _objective(view: RoundView, now: float, base: float) -> str:
    what = "round time per local step"
    if view.reason is not None and view.reason.rule is StepRule.LITERAL:
        what = "the fastest worker's time"
    elif view.algorithm.get("waiting_tolerance") is not None:
        what += ", with a penalty for waiting"
    if now >= base:
        return f"Objective ({what}): {seconds(now)}, as with the whole base topology."
    return (
        f"Objective ({what}): {seconds(now)}, {100 * (1 - now / base):.0f} % less than the "
        f"{seconds(base)} of the whole base topology."
    )


def _links(view: RoundView) -> str:
    if any(verdict in view.verdicts for verdict in PLANNED):
        return _planned_links(view)
    if not view.links_used:
        return "Nobody exchanged models."
    if view.asynchronous:
        return _random_meetings(view)
    verdicts = view.used_verdicts
    slowest = _slowest_words(view)
    if LinkVerdict.SCORED in verdicts:
        return (
            f"{count(view.links_used, 'model')} travelled to be scored by those who pulled them; "
            f"the record does not say which were then averaged. {slowest}"
        )
    if view.directed:
        return f"{count(view.links_used, 'model')} were pulled from chosen peers. {slowest}"
    if verdicts == {LinkVerdict.FIXED}:
        return f"The topology is fixed: {count(view.links_used, 'link')}. {slowest}"
    return f"{count(view.links_used, 'link')} in use. {slowest}"


def _selection(view: RoundView) -> str:
    if view.complete:
        return ""
    return (
        f" All counts are exact; one by one the record keeps {len(view.links):,} of the "
        f"{view.links_known:,} links, the slowest of every worker and verdict among them."
    )


def _random_meetings(view: RoundView) -> str:
    meetings = round(view.bytes_sent / (2 * view.model_bytes))
    return (
        f"{count(meetings, 'averaging')} over {count(view.links_used, 'link')}, each pair drawn "
        f"at random when the sender was ready. {_slowest_words(view)}"
    )


def _slowest_words(view: RoundView) -> str:
    link = max(view.used, key=lambda link: link.link_time or 0.0)
    what = f"{link.b} to {link.a}" if view.directed else link.name
    return f"The slowest, {what}, took {seconds(link.link_time)}."


def _planned_links(view: RoundView) -> str:
    cut, all_cut = view.with_verdict(LinkVerdict.CUT), view.count(LinkVerdict.CUT)
    kept = view.links_known - all_cut
    if LinkVerdict.KEPT_ALL in view.verdicts:
        return f"All {count(kept, 'link')} of the base topology stay: {_why_all(view)}"
    sentences = [f"{kept} of {count(view.links_known, 'link')} kept, {all_cut} cut."]
    if cut:
        named = (
            f"{link.name} ({seconds(link.planned_link_time)}, distance "
            f"{number(link.estimated_distance)})"
            for link in cut
        )
        first = "; the slowest" if all_cut > SHOWN else ""
        sentences.append(
            f"Cut, because the objective falls without them{first}: "
            f"{listed(named, most=SHOWN, total=all_cut)}."
        )
    sentences += _bridge_words(view)
    for verdict, reason in (
        (LinkVerdict.KEPT_BOUND, "cutting them, too, would have broken the distance bound"),
        (LinkVerdict.KEPT_NO_GAIN, "tried, but the objective did not fall"),
        (LinkVerdict.KEPT_UNTRIED, "never tried, for slower ones did not pay"),
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
    """The verdict is of the last try; whether it still holds shows in the final topology."""
    bridges = view.with_verdict(LinkVerdict.KEPT_BRIDGE)
    # A selection does not show the final topology, so that only the try can be told of.
    apart = bridges_of((link.a, link.b) for link in view.used) if view.complete else set()
    real = [link for link in bridges if (link.a, link.b) in apart]
    tried = [link for link in bridges if (link.a, link.b) not in apart]
    sentences = []
    for links, reason in (
        (real, "Had to stay, or the network would fall apart"),
        (tried, "Kept as the last way to a worker in a cut tried"),
    ):
        named = [f"{link.name} ({seconds(link.planned_link_time)})" for link in links]
        if named:
            sentences.append(f"{reason}: {listed(named, most=SHOWN)}.")
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
    text = (
        f"The pairs left without a link add {number(mean)} to the mean distance of all pairs"
        if mean
        else "No pair is left without a link"
    )
    if view.algorithm.get("bound") == "none":
        return f"{text}; the bound is switched off."
    if not bound:
        return f"{text}; the bound is {number(bound)}."
    return f"{text}; the bound is {number(bound)} ({100 * mean / bound:.0f} % used)."


def _waiting(view: RoundView) -> str:
    if view.asynchronous:
        return "Nobody waits: there is no barrier."
    if len(view.shares) < 2:
        return ""
    longest = max(view.shares, key=lambda share: share.waiting_time)
    last = min(view.shares, key=lambda share: share.waiting_time)
    part = 100 * view.mean_waiting_time / view.round_time if view.round_time else 0.0
    text = f"On average {seconds(view.mean_waiting_time)}, {part:.0f} % of the round."
    if longest.waiting_time <= 0:
        return text
    return (
        f"{text} W{longest.name[1:]} waits longest, {seconds(longest.waiting_time)}: "
        f"{_spent(view, longest)}. Everyone waits for {last.name}: {_spent(view, last)}."
    )


def _spent(view: RoundView, share: Share) -> str:
    """How a worker came to its time."""
    stepping = share.local_steps * (share.step_time or 0.0)
    more = ""
    if share.compute_time > stepping * (1 + 1e-9) + 1e-9:
        scored = LinkVerdict.SCORED in view.verdicts
        more = " and scoring" if scored else " and the estimates"
    most = ", the most allowed," if share.local_steps == _most_steps(view) else ""
    text = f"its {count(share.local_steps, 'step')}{most}{more} took {seconds(share.compute_time)}"
    link = view.slowest_link(share.worker)
    if link is None:
        return f"{text}, and it has no link"
    return (
        f"{text}, its slowest link ({'from' if view.directed else 'to'} "
        f"{_other(link, share.worker)}) "
        f"{seconds(share.communication_time)}"
    )


def _most_steps(view: RoundView) -> int | None:
    """The limit of the planner's steps, where there is one."""
    default = FedHP.model_fields["max_steps"].default
    most = view.algorithm.get("max_steps", default if view.algorithm["name"] == "fedhp" else None)
    return None if most is None else int(most)


def _away(view: RoundView) -> str:
    if not view.away:
        return ""
    return (
        f"{_sentence(listed(view.away, most=2 * SHOWN))} The plan does without "
        f"{'it' if len(view.away) == 1 else 'them'}."
    )


def _other(link: Link, worker: int) -> int:
    return link.b if link.a == worker else link.a


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
