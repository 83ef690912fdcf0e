"""Whether a recorded run kept the promises of docs/protocol.md, one function per promise.

It reads every history-NAME.jsonl below a folder: those of coordinators, of workers, and of tests
that planted faults (events "fault"). It shares no code with the processes that wrote them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fedhp.cluster import events as kinds
from fedhp.cluster.audit.timeline import (
    HistoryEvent,
    LeadershipTerm,
    Pause,
    RunTimeline,
    read_timeline,
)
from fedhp.cluster.events import Began, Committed, GaveUp, Mixed, Reported
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.exchange.facts import participants_in

GRACE = 2.0  # s beyond a deadline
ROUNDS_TO_RETURN = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which one, and how."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check_invariants(folder: Path, *, rounds: int | None = None) -> list[Violation]:
    """All violations; with `rounds`, also that so many were committed."""
    timeline = read_timeline(folder)
    violations = [
        found if isinstance(found, Violation) else Violation(rule, found)
        for find, rule in INVARIANTS
        for found in find(timeline)
    ]
    last = max((attempt.round_index for attempt in timeline.committed), default=0)
    if rounds is not None and last != rounds:
        violations.append(Violation("lost", f"the run ended after round {last} of {rounds}"))
    return violations


def find_pauses(folder: Path) -> list[Pause]:
    """When a coordinator could not do anything, as it noted: that breaks no promise."""
    return [pause for term in read_timeline(folder).terms for pause in term.pauses()]


Found: TypeAlias = Iterator[str | Violation]  # what is wrong


def every_round_is_committed_once(timeline: RunTimeline) -> Found:
    """1, 2, 3, ...: none lost and none repeated, across all coordinators."""
    last = timeline.dropped
    for term in timeline.terms:
        resumed = term.resumed_from
        if resumed != last and resumed in timeline.unannounced:
            last = resumed  # durable, but its coordinator died before it could write so
        if resumed != last:
            rule = "lost" if resumed.round_index <= last.round_index else "unknown"
            text = f"epoch {term.epoch} continued from ({resumed}), but ({last}) was committed"
            yield Violation(rule, text)
        for event in term.events_of(Committed):
            attempt, index = event.attempt, event.attempt.round_index
            if index <= last.round_index:
                text = f"round {index} was committed again by ({attempt})"
                yield Violation("doubled", text)
            elif index > last.round_index + 1:
                text = f"({attempt}) was committed directly after ({last})"
                yield Violation("lost", text)
            if attempt.epoch != term.epoch or attempt not in term.participants:
                text = f"({attempt}) was committed in epoch {term.epoch}, which never began it"
                yield Violation("unknown", text)
            last = max(last, attempt, key=lambda attempt: attempt.round_index)


def every_epoch_has_one_coordinator(timeline: RunTimeline) -> Found:
    """And no coordinator returns to an earlier epoch, or leads another run."""
    leaders: dict[int, LeadershipTerm] = {}
    newest: dict[str, int] = {}
    for term in sorted(timeline.terms, key=lambda term: term.at):
        who, epoch = term.coordinator, term.epoch
        other = leaders.setdefault(epoch, term)
        if other is not term:
            yield f"{other.coordinator} and {who} both led epoch {epoch}"
        elif epoch <= newest.get(who, 0):
            yield f"{who} led epoch {epoch} after epoch {newest[who]}"
        newest[who] = epoch
        if term.run != timeline.terms[0].run:
            yield f"{who} led another run: {term.run}"


def workers_obey_only_the_newest_epoch(timeline: RunTimeline) -> Found:
    """A worker works for attempts that a coordinator began, and never again for an earlier
    epoch than the largest it has seen."""
    is_begun = timeline.begun()
    for name, events in timeline.worker_events.items():
        largest = 0
        for event in events:
            if not event.is_a(kinds.Ordered) or event.get("kind") not in ("work", "act"):
                continue
            attempt = event.attempt
            if attempt.epoch < largest:
                yield f"{name} obeyed epoch {attempt.epoch} after epoch {largest}"
            largest = max(largest, attempt.epoch)
            if not is_begun(attempt):
                yield f"{name} obeyed an order for ({attempt}), which no coordinator began"


def workers_train_from_committed_models(timeline: RunTimeline) -> Found:
    """A worker takes over models of committed rounds alone, and trains from the last one."""
    start = timeline.dropped
    expected = {start.round_index + 1: start}
    expected |= {attempt.round_index + 1: attempt for attempt in timeline.committed}
    groups = any(participants_in(event) is not None for event in timeline.events_of(Began))
    counted = _counted_attempts(timeline) if groups else {}
    returns = {
        event.attempt: Attempt.from_list(event["back_to"]).round_index
        for event in timeline.events_of(Began)
        if "back_to" in event  # everyone goes back to that attempt before this one
    }
    for name, events in timeline.worker_events.items():
        # None: the line that says which model it had was dropped.
        current: Attempt | None = INITIAL if start == INITIAL else None
        process = events[0]["process"] if events else None
        for event in events:
            if event["process"] != process:
                current, process = INITIAL, event["process"]
            if event.is_a(kinds.Advanced, kinds.CaughtUp):
                current = event.attempt
                if current not in timeline.committed and current not in (INITIAL, start):
                    yield f"{name} took over {_model_of(current)}, which was not committed"
            if event.is_a(kinds.Trained) and "turn" not in event and current is not None:
                attempt = event.attempt
                if groups:
                    last = _last_before(attempt, counted.get(name, ()), timeline, returns)
                    wrong = current not in (INITIAL, start, last)
                else:
                    wrong = current != expected.get(attempt.round_index)
                if wrong:
                    yield f"{name} trained for ({attempt}) from {_model_of(current)}"


def _counted_attempts(timeline: RunTimeline) -> dict[str, list[Attempt]]:
    """The committed attempts for which a worker's report was counted, by name, in their order."""
    names = {worker: name for name, worker in timeline.worker_numbers.items()}
    counted: dict[str, list[Attempt]] = {}
    for event in timeline.events_of(Reported):
        if event.attempt in timeline.committed and event.worker in names:
            counted.setdefault(names[event.worker], []).append(event.attempt)
    return counted


def _last_before(
    attempt: Attempt,
    counted: Sequence[Attempt],
    timeline: RunTimeline,
    returns: Mapping[Attempt, int],
) -> Attempt:
    """The last of the counted attempts, which rise, that is of an earlier round and still counts:
    everyone may have gone back, before this attempt or before an earlier committed one."""
    undone = [
        range(to + 1, each.round_index)
        for each, to in returns.items()
        if each == attempt
        or (each in timeline.committed and each.round_index < attempt.round_index)
    ]
    place = bisect_left(counted, attempt.round_index, key=lambda version: version.round_index)
    for version in reversed(counted[:place]):
        if not any(version.round_index in rounds for rounds in undone):
            return version
    return INITIAL


def averages_have_all_participants(timeline: RunTimeline) -> Found:
    """A committed group average took effect for all of its participants: no sum lacks one, and
    none counts twice what a worker learned."""
    for term in timeline.terms:
        groups = {event.attempt: participants_in(event) for event in term.events_of(Began)}
        reports: dict[Attempt, set[int]] = {}
        for event in term.events_of(Reported):
            reports.setdefault(event.attempt, set()).add(event.worker)
        for attempt in sorted(groups.keys() & timeline.committed):
            missing = sorted((groups[attempt] or frozenset()) - reports.get(attempt, set()))
            if missing:
                yield f"({attempt}) was committed, but participants {missing} did not report"


def _model_of(attempt: Attempt) -> str:
    return "the initial model" if attempt == INITIAL else f"the model of ({attempt})"


def every_report_counts_once(timeline: RunTimeline) -> Found:
    """A counted report comes from a participant of the current attempt, once."""
    for term in timeline.terms:
        counted: set[tuple[Attempt, int, int]] = set()
        over: set[Attempt] = set()
        for event in term.events:
            if event.is_a(Committed, GaveUp):
                over.add(event.attempt)
            if event.is_a(Committed) and (named := event["reported"]):
                workers = sorted({who for done, who, _ in counted if done == event.attempt})
                if workers != sorted(named):
                    text = f"the commit of ({event.attempt}) names the reports of workers {named}, "
                    yield f"{text}but those of {workers} were counted"
            if not event.is_a(Reported):
                continue
            attempt, worker, _ = key = _report_key(event)
            participants = term.participants.get(attempt)
            problem = ""
            if key in counted:
                problem = "was counted twice"
            elif term.asynchronous:
                pass  # a turn may outlast its round, and its worker may have joined later
            elif participants is None or attempt in over:
                problem = "was counted, but the attempt is not in progress"
            elif worker not in participants:
                problem = "was counted, but the worker does not take part"
            if problem:
                yield f"the report of worker {worker} for ({attempt}) {problem}"
            counted.add(key)


def _report_key(event: HistoryEvent) -> tuple[Attempt, int, int]:
    return event.attempt, event.worker, int(event.get("turn", 0))


def reports_have_the_digest_of_the_stored_model(timeline: RunTimeline) -> Found:
    """The digest of a counted report is that of the model the worker wrote to its disk."""
    stored = {
        (event.attempt, worker, int(event.get("turn", 0))): event["digest"]
        for worker, event in timeline.of_workers(Mixed)
    }
    for event in timeline.events_of(Reported):
        if stored.get(_report_key(event), event["digest"]) != event["digest"]:
            text = f"worker {event.worker} reported another model for ({event.attempt}) than it "
            yield f"{text}stored"


def commits_have_enough_reports(timeline: RunTimeline) -> Found:
    """At least min_workers, or the commit says why not."""
    for term in timeline.terms:
        for event in term.events_of(Committed):
            count, needed = len(event["reported"]), max(1, term.min_workers)
            if count < needed and not term.asynchronous and not event.get("why"):
                text = f"({event.attempt}) was committed with {count} reports; at least {needed} "
                yield f"{text}are needed"


def attempts_end_by_their_deadline(timeline: RunTimeline) -> Found:
    """Even if workers die; pauses of the coordinator that it noted do not count."""
    for term in timeline.terms:
        ends = {event.attempt: event.at for event in term.events_of(Committed, GaveUp)}
        for event in term.events_of(Began):
            attempt, start = event.attempt, event.at
            if timeline.asynchronous or attempt not in ends:
                continue
            seconds = ends[attempt] - start - timeline.idle_seconds(term, start, ends[attempt])
            late = seconds > event["deadline"] + GRACE
            if late and not timeline.is_pause_announced(term, start, ends[attempt]):
                text = f"({attempt}) took {seconds:.1f} s; its deadline was "
                yield f"{text}{event['deadline']:.1f} s"


def the_next_attempt_begins_at_once(timeline: RunTimeline) -> Found:
    """Unless the coordinator says what it waits for: for all to join as long as it says, for a
    worker that catches up as long as for a report."""
    for term in timeline.terms:
        end, allowed, deadline = None, 0.0, 0.0
        for event in term.events:
            if event.is_a(Committed, GaveUp):
                end, allowed = event.at, 0.0
            if event.is_a(kinds.LeftOut):  # of the attempts in between
                end = None
            if event.is_a(kinds.Waiting):
                allowed = deadline if event.get("late") else float(event.get("patience", 0.0))
            if event.is_a(Began, kinds.Finished) and end is not None:
                waited = event.at - end - timeline.idle_seconds(term, end, event.at)
                late = waited > allowed + GRACE
                if late and not timeline.is_pause_announced(term, end, event.at):
                    yield f"no attempt began for {waited:.1f} s"
                end = None
            if event.is_a(Began):
                deadline = float(event["deadline"])


def returning_workers_take_part_again(timeline: RunTimeline) -> Found:
    """A worker that was away works again within two rounds of asking for orders."""
    if timeline.asynchronous:
        return
    attempts = sorted(
        (event.at, event.attempt.round_index, event["participants"])
        for event in timeline.events_of(Began)
    )
    for name, since in timeline.returns():
        worker, done = timeline.worker_numbers[name], timeline.last_committed_round(since)
        last = done + 1 + ROUNDS_TO_RETURN
        later = [attempt for attempt in attempts if attempt[0] > since]
        within = [attempt for attempt in later if attempt[1] <= last]
        until = max((at for at, _, _ in within), default=since)
        if len(within) == len(later) or timeline.was_away(name, since, until):
            continue  # the run did not get that far, or the worker went away again
        if not any(worker in participants for _, _, participants in within):
            yield f"{name} was back in round {done + 1}, but took part in no round up to {last}"


# With the rule that each checks.
INVARIANTS: tuple[tuple[Callable[[RunTimeline], Found], str], ...] = (
    (every_round_is_committed_once, "several"),
    (every_epoch_has_one_coordinator, "epoch"),
    (workers_obey_only_the_newest_epoch, "obedience"),
    (workers_train_from_committed_models, "model"),
    (averages_have_all_participants, "average"),
    (every_report_counts_once, "report"),
    (reports_have_the_digest_of_the_stored_model, "report"),
    (commits_have_enough_reports, "quorum"),
    (attempts_end_by_their_deadline, "pause"),
    (the_next_attempt_begins_at_once, "pause"),
    (returning_workers_take_part_again, "return"),
)
