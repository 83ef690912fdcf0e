"""Whether a recorded run kept the promises of docs/protocol.md, one function per promise.

It reads every history-NAME.jsonl below a folder: those of coordinators, of workers, and of tests
that planted faults (events "fault"). It shares no code with the processes that wrote them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from fedhp.cluster.audit.timeline import (
    Event,
    LeadershipTerm,
    Pause,
    RunTimeline,
    read_timeline,
)
from fedhp.cluster.events import (
    Advanced,
    Began,
    CaughtUp,
    Committed,
    Finished,
    GaveUp,
    LeftOut,
    Mixed,
    Ordered,
    Reported,
    Trained,
    Waiting,
)
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.exchange.facts import participants_in

GRACE = 2.0  # s beyond a deadline
ROUNDS_TO_RETURN = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which one, how and when."""

    rule: str
    text: str
    at: float = 0.0  # s, wall clock of the machine

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check_invariants(folder: Path, *, rounds: int | None = None) -> list[Violation]:
    """All violations; with `rounds`, also that so many were committed."""
    timeline = read_timeline(folder)
    violations = [violation for check in INVARIANTS for violation in check(timeline)]
    last = max((attempt.round_index for attempt in timeline.committed), default=0)
    if rounds is not None and last != rounds:
        violations.append(Violation("lost", f"the run ended after round {last} of {rounds}"))
    return violations


def find_pauses(folder: Path) -> list[Pause]:
    """When a coordinator could not do anything, as it noted: that breaks no promise."""
    return [pause for term in read_timeline(folder).terms for pause in term.pauses()]


def longest_pause(folder: Path) -> float:
    """Seconds of the longest time between two commits, or from the first order to a commit."""
    timeline = read_timeline(folder)
    commits = [event["at"] for term in timeline.terms for event in term.events_of(Committed)]
    attempts = [event["at"] for term in timeline.terms for event in term.events_of(Began)]
    moments = sorted([*commits, *attempts[:1]])
    return max((end - start for start, end in pairwise(moments)), default=0.0)


# --- rounds and epochs ---------------------------------------------------------------------


def every_round_is_committed_once(timeline: RunTimeline) -> Iterator[Violation]:
    """1, 2, 3, ...: none lost and none repeated, across all coordinators."""
    last = timeline.dropped
    for term in timeline.terms:
        resumed = term.resumed_from
        if resumed != last and resumed in timeline.unannounced:
            last = resumed  # durable, but its coordinator died before it could write so
        if resumed != last:
            rule = "lost" if resumed.round_index <= last.round_index else "unknown"
            yield Violation(
                rule,
                f"epoch {term.epoch} continued from ({resumed}), but ({last}) was committed",
                term.at,
            )
        for event in term.events_of(Committed):
            attempt = Attempt.from_facts(event)
            if attempt.round_index <= last.round_index:
                yield Violation(
                    "doubled",
                    f"round {attempt.round_index} was committed again by ({attempt})",
                    event["at"],
                )
            elif attempt.round_index > last.round_index + 1:
                yield Violation(
                    "lost", f"({attempt}) was committed directly after ({last})", event["at"]
                )
            if attempt.epoch != term.epoch or attempt not in term.participants:
                yield Violation(
                    "unknown",
                    f"({attempt}) was committed in epoch {term.epoch}, which never began it",
                    event["at"],
                )
            last = max(last, attempt, key=lambda attempt: attempt.round_index)


def every_epoch_has_one_coordinator(timeline: RunTimeline) -> Iterator[Violation]:
    """And no coordinator returns to an earlier epoch, or leads another run."""
    leaders: dict[int, LeadershipTerm] = {}
    newest: dict[str, int] = {}
    for term in sorted(timeline.terms, key=lambda term: term.at):
        other = leaders.setdefault(term.epoch, term)
        if other is not term:
            yield Violation(
                "epoch",
                f"{other.coordinator} and {term.coordinator} both led epoch {term.epoch}",
                term.at,
            )
        elif term.epoch <= newest.get(term.coordinator, 0):
            yield Violation(
                "epoch",
                f"{term.coordinator} led epoch {term.epoch} after epoch {newest[term.coordinator]}",
                term.at,
            )
        newest[term.coordinator] = term.epoch
        if term.run != timeline.terms[0].run:
            yield Violation("epoch", f"{term.coordinator} led another run: {term.run}", term.at)


# --- workers -------------------------------------------------------------------------------


def workers_obey_only_the_newest_epoch(timeline: RunTimeline) -> Iterator[Violation]:
    """A worker works for attempts that a coordinator began, and never again for an earlier
    epoch than the largest it has seen."""
    is_begun = timeline.begun()
    for name, events in timeline.worker_events.items():
        largest = 0
        for event in events:
            if event["event"] != Ordered.event or event.get("kind") not in ("work", "act"):
                continue
            attempt = Attempt.from_facts(event)
            if attempt.epoch < largest:
                yield Violation(
                    "obedience",
                    f"{name} obeyed epoch {attempt.epoch} after epoch {largest}",
                    event["at"],
                )
            largest = max(largest, attempt.epoch)
            if not is_begun(attempt):
                yield Violation(
                    "obedience",
                    f"{name} obeyed an order for ({attempt}), which no coordinator began",
                    event["at"],
                )


def workers_train_from_committed_models(timeline: RunTimeline) -> Iterator[Violation]:
    """A worker takes over models of committed rounds alone, and trains from the last one."""
    start = timeline.dropped
    expected = {start.round_index + 1: start}
    expected |= {attempt.round_index + 1: attempt for attempt in timeline.committed}
    groups = any(
        participants_in(event) is not None
        for term in timeline.terms
        for event in term.events_of(Began)
    )
    counted = _counted_attempts(timeline) if groups else {}
    returns = _returns(timeline)
    for name, events in timeline.worker_events.items():
        # None: the line that says which model it had was dropped.
        current: Attempt | None = INITIAL if start == INITIAL else None
        process = events[0]["process"] if events else None
        for event in events:
            if event["process"] != process:
                current, process = INITIAL, event["process"]
            if event["event"] in (Advanced.event, CaughtUp.event):
                current = Attempt.from_facts(event)
                if current not in timeline.committed and current not in (INITIAL, start):
                    yield Violation(
                        "model",
                        f"{name} took over {_model_of(current)}, which was not committed",
                        event["at"],
                    )
            if event["event"] == Trained.event and "turn" not in event and current is not None:
                attempt = Attempt.from_facts(event)
                if groups:
                    undone = _undone_rounds(timeline, returns, attempt)
                    last = _last_before(counted.get(name, ()), attempt, undone)
                    wrong = current not in (INITIAL, start, last)
                else:
                    wrong = current != expected.get(attempt.round_index)
                if wrong:
                    yield Violation(
                        "model",
                        f"{name} trained for ({attempt}) from {_model_of(current)}",
                        event["at"],
                    )


def _counted_attempts(timeline: RunTimeline) -> dict[str, list[Attempt]]:
    """The committed attempts for which a worker's report was counted, by name, in their order."""
    names = {worker: name for name, worker in timeline.worker_numbers.items()}
    counted: dict[str, list[Attempt]] = {}
    for term in timeline.terms:
        for event in term.events_of(Reported):
            attempt = Attempt.from_facts(event)
            if attempt in timeline.committed and int(event["worker"]) in names:
                counted.setdefault(names[int(event["worker"])], []).append(attempt)
    return counted


def _returns(timeline: RunTimeline) -> dict[Attempt, int]:
    """The attempts before which everyone went back to an earlier round, and to which."""
    return {
        Attempt.from_facts(event): int(Attempt.from_list(event["back_to"]).round_index)
        for term in timeline.terms
        for event in term.events_of(Began)
        if "back_to" in event
    }


def _undone_rounds(
    timeline: RunTimeline, returns: Mapping[Attempt, int], attempt: Attempt
) -> list[range]:
    """The rounds whose models nobody continues from in this attempt: everyone went back, before
    it or before an earlier one that was committed."""
    return [
        range(to + 1, each.round_index)
        for each, to in returns.items()
        if each == attempt
        or (each in timeline.committed and each.round_index < attempt.round_index)
    ]


def _last_before(counted: Sequence[Attempt], attempt: Attempt, undone: Sequence[range]) -> Attempt:
    """The last of these attempts, which rise, that is of an earlier round and still counts."""
    place = bisect_left(counted, attempt.round_index, key=lambda version: version.round_index)
    for version in reversed(counted[:place]):
        if not any(version.round_index in rounds for rounds in undone):
            return version
    return INITIAL


def averages_have_all_participants(timeline: RunTimeline) -> Iterator[Violation]:
    """A committed group average took effect for all of its participants: no sum lacks one, and
    none counts twice what a worker learned."""
    for term in timeline.terms:
        groups = {
            Attempt.from_facts(event): participants
            for event in term.events_of(Began)
            if (participants := participants_in(event)) is not None
        }
        reports: dict[Attempt, dict[int, str]] = {}
        for event in term.events_of(Reported):
            by_worker = reports.setdefault(Attempt.from_facts(event), {})
            by_worker[int(event["worker"])] = str(event.get("consensus", ""))
        for attempt in sorted(groups.keys() & timeline.committed):
            missing = sorted(groups[attempt] - reports.get(attempt, {}).keys())
            if missing:
                yield Violation(
                    "average",
                    f"({attempt}) was committed, but participants {missing} did not report",
                    term.at,
                )


def _model_of(attempt: Attempt) -> str:
    return "the initial model" if attempt == INITIAL else f"the model of ({attempt})"


def every_report_counts_once(timeline: RunTimeline) -> Iterator[Violation]:
    """A counted report comes from a participant of the current attempt, once."""
    for term in timeline.terms:
        counted: set[tuple[Attempt, int, int]] = set()
        over: set[Attempt] = set()
        for event in term.events:
            if event["event"] in (Committed.event, GaveUp.event):
                over.add(Attempt.from_facts(event))
            if event["event"] == Committed.event and event["reported"]:
                yield from _commit_names_counted_reports(event, counted)
            if event["event"] != Reported.event:
                continue
            attempt, worker = Attempt.from_facts(event), int(event["worker"])
            key = attempt, worker, int(event.get("turn", 0))
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
                text = f"the report of worker {worker} for ({attempt}) {problem}"
                yield Violation("report", text, event["at"])
            counted.add(key)


def _commit_names_counted_reports(
    commit: Event, counted: set[tuple[Attempt, int, int]]
) -> Iterator[Violation]:
    committed = Attempt.from_facts(commit)
    workers = sorted({worker for attempt, worker, _ in counted if attempt == committed})
    if workers != sorted(commit["reported"]):
        yield Violation(
            "report",
            f"the commit of ({committed}) names the reports of workers {commit['reported']}, "
            f"but those of {workers} were counted",
            commit["at"],
        )


def reports_have_the_digest_of_the_stored_model(timeline: RunTimeline) -> Iterator[Violation]:
    """The digest of a counted report is that of the model the worker wrote to its disk."""
    stored = {
        (Attempt.from_facts(event), timeline.worker_numbers[name], event.get("turn", 0)): event[
            "digest"
        ]
        for name, events in timeline.worker_events.items()
        for event in events
        if event["event"] == Mixed.event and name in timeline.worker_numbers
    }
    for term in timeline.terms:
        for event in term.events_of(Reported):
            attempt, worker = Attempt.from_facts(event), int(event["worker"])
            key = attempt, worker, int(event.get("turn", 0))
            if stored.get(key, event["digest"]) != event["digest"]:
                yield Violation(
                    "report",
                    f"worker {worker} reported another model for ({attempt}) than it stored",
                    event["at"],
                )


def commits_have_enough_reports(timeline: RunTimeline) -> Iterator[Violation]:
    """At least min_workers, or the commit says why not."""
    for term in timeline.terms:
        for event in term.events_of(Committed):
            count, needed = len(event["reported"]), max(1, term.min_workers)
            if count < needed and not term.asynchronous and not event.get("why"):
                yield Violation(
                    "quorum",
                    f"({Attempt.from_facts(event)}) was committed with {count} reports; "
                    f"at least {needed} are needed",
                    event["at"],
                )


# --- times ---------------------------------------------------------------------------------


def attempts_end_by_their_deadline(timeline: RunTimeline) -> Iterator[Violation]:
    """Even if workers die; pauses of the coordinator that it noted do not count."""
    for term in timeline.terms:
        ends = {
            Attempt.from_facts(event): float(event["at"])
            for event in term.events
            if event["event"] in (Committed.event, GaveUp.event)
        }
        for event in term.events_of(Began):
            attempt, start = Attempt.from_facts(event), float(event["at"])
            if timeline.asynchronous or attempt not in ends:
                continue
            end = ends[attempt]
            seconds = end - start - timeline.idle_seconds(term, start, end)
            late = seconds > event["deadline"] + GRACE
            if late and not timeline.is_pause_announced(term, start, end):
                yield Violation(
                    "pause",
                    f"({attempt}) took {seconds:.1f} s; its deadline was {event['deadline']:.1f} s",
                    start,
                )


def the_next_attempt_begins_at_once(timeline: RunTimeline) -> Iterator[Violation]:
    """Unless the coordinator says what it waits for: for all to join as long as it says, for a
    worker that catches up as long as for a report."""
    for term in timeline.terms:
        end, allowed, deadline = None, 0.0, 0.0
        for event in term.events:
            if event["event"] in (Committed.event, GaveUp.event):
                end, allowed = float(event["at"]), 0.0
            if event["event"] == LeftOut.event:  # of the attempts in between
                end = None
            if event["event"] == Waiting.event:
                allowed = deadline if event.get("late") else float(event.get("patience", 0.0))
            if event["event"] in (Began.event, Finished.event) and end is not None:
                start = float(event["at"])
                waited = start - end - timeline.idle_seconds(term, end, start)
                late = waited > allowed + GRACE
                if late and not timeline.is_pause_announced(term, end, start):
                    yield Violation("pause", f"no attempt began for {waited:.1f} s", end)
                end = None
            if event["event"] == Began.event:
                deadline = float(event["deadline"])


def returning_workers_take_part_again(timeline: RunTimeline) -> Iterator[Violation]:
    """A worker that was away works again within two rounds of asking for orders."""
    if timeline.asynchronous:
        return
    attempts = sorted(
        (float(event["at"]), Attempt.from_facts(event).round_index, event["participants"])
        for term in timeline.terms
        for event in term.events_of(Began)
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
            yield Violation(
                "return",
                f"{name} was back in round {done + 1}, but took part in no round up to {last}",
                since,
            )


Invariant: TypeAlias = Callable[[RunTimeline], Iterator[Violation]]
INVARIANTS: tuple[Invariant, ...] = (
    every_round_is_committed_once,
    every_epoch_has_one_coordinator,
    workers_obey_only_the_newest_epoch,
    workers_train_from_committed_models,
    averages_have_all_participants,
    every_report_counts_once,
    reports_have_the_digest_of_the_stored_model,
    commits_have_enough_reports,
    attempts_end_by_their_deadline,
    the_next_attempt_begins_at_once,
    returning_workers_take_part_again,
)
