"""The offline checker: did a recorded run keep the promises of docs/protocol.md?

It reads every history-NAME.jsonl below a folder: of coordinators, of workers, and of whoever
planted faults (events "fault"), and knows nothing of the programs that wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from fedhp.cluster.audit.timeline import (
    Event,
    LeadershipTerm,
    Recorded,
    Violation,
    read_run,
)
from fedhp.cluster.protocol.attempt import INITIAL, Attempt

GRACE = 2.0  # s beyond a deadline
ROUNDS_TO_RETURN = 2


def check(folder: Path, *, rounds: int | None = None) -> list[Violation]:
    """Everything that was not as promised; with `rounds`, also that so many were committed."""
    run = read_run(folder)
    found = [violation for rule in RULES for violation in rule(run)]
    done = max((each.round_index for each in run.commits), default=0)
    if rounds is not None and done != rounds:
        found.append(Violation("lost", f"the run ended after round {done} of {rounds}"))
    return found


def longest_pause(folder: Path) -> float:
    """Seconds of the longest time between two commits, or from the first order to a commit."""
    run = read_run(folder)
    times = [event["at"] for term in run.terms for event in term.named("commit")]
    first = [event["at"] for term in run.terms for event in term.named("attempt")]
    moments = sorted([*times, *first[:1]])
    return max((b - a for a, b in pairwise(moments)), default=0.0)


# --- rounds and epochs ---------------------------------------------------------------------


def rounds_are_committed_once(run: Recorded) -> Iterator[Violation]:
    """1, 2, 3, ...: none lost, none doubled, across all coordinators."""
    last = INITIAL
    for term in run.terms:
        told = term.stand
        if told != last and told in run.unsaid:
            last = told  # durable, but its coordinator died before it could write so
        if told != last:
            kind = "lost" if told.round_index <= last.round_index else "unknown"
            yield Violation(
                kind, f"epoch {term.epoch} went on from {told}, but {last} was committed", term.at
            )
        for event in term.named("commit"):
            made = Attempt.from_facts(event)
            if made.round_index <= last.round_index:
                yield Violation("doubled", f"round {made.round_index} again: {made}", event["at"])
            elif made.round_index > last.round_index + 1:
                yield Violation("lost", f"{made} came after {last}", event["at"])
            if made.epoch != term.epoch or made not in term.attempts:
                yield Violation("unknown", f"{made} was never begun in this term", event["at"])
            last = max(last, made, key=lambda each: each.round_index)


def epochs_rise(run: Recorded) -> Iterator[Violation]:
    """Every epoch has one coordinator, and no coordinator goes back to an earlier one."""
    owner: dict[int, LeadershipTerm] = {}
    newest: dict[str, int] = {}
    for term in sorted(run.terms, key=lambda each: each.at):
        other = owner.setdefault(term.epoch, term)
        if other is not term:
            yield Violation(
                "epoch", f"{other.who} and {term.who} both led epoch {term.epoch}", term.at
            )
        elif term.epoch <= newest.get(term.who, 0):
            yield Violation(
                "epoch", f"{term.who} led {term.epoch} after {newest[term.who]}", term.at
            )
        newest[term.who] = term.epoch
        if term.run != run.terms[0].run:
            yield Violation("epoch", f"{term.who} led another run: {term.run}", term.at)


# --- workers -------------------------------------------------------------------------------


def epochs_are_obeyed(run: Recorded) -> Iterator[Violation]:
    """A worker works for a coordinator that leads, and never for an earlier one afterwards."""
    begun = {attempt for term in run.terms for attempt in term.attempts}
    for name, events in run.workers.items():
        largest = 0
        for event in events:
            if event["event"] != "order" or event.get("kind") not in ("work", "act"):
                continue
            attempt = Attempt.from_facts(event)
            if attempt.epoch < largest:
                yield Violation(
                    "obedience",
                    f"{name} obeyed epoch {attempt.epoch} after {largest}",
                    event["at"],
                )
            largest = max(largest, attempt.epoch)
            if attempt not in begun:
                yield Violation("obedience", f"{name} obeyed {attempt}: nobody's", event["at"])


def only_committed_models_are_kept(run: Recorded) -> Iterator[Violation]:
    """A worker goes on from models of committed rounds alone, and trains from the last one."""
    before = {1: INITIAL} | {each.round_index + 1: each for each in run.commits}
    for name, events in run.workers.items():
        stand, process = INITIAL, None
        for event in events:
            if event["process"] != process:
                stand, process = INITIAL, event["process"]
            if event["event"] in ("advanced", "caught_up"):
                stand = Attempt.from_facts(event)
                if stand not in run.commits and stand != INITIAL:
                    yield Violation("stand", f"{name} stands at {stand}", event["at"])
            if event["event"] == "trained" and "turn" not in event:
                attempt = Attempt.from_facts(event)
                if stand != before.get(attempt.round_index):
                    yield Violation(
                        "stand", f"{name} trained for {attempt} from {stand}", event["at"]
                    )


def reports_count_once(run: Recorded) -> Iterator[Violation]:
    """A counted report is of a participant, of the attempt that runs, and counted once."""
    for term in run.terms:
        seen: set[tuple[Attempt, int, int]] = set()
        over: set[Attempt] = set()
        for event in term.events:
            if event["event"] in ("commit", "gave_up"):
                over.add(Attempt.from_facts(event))
            if event["event"] == "commit" and event["reported"]:
                yield from _sums_up(event, seen)
            if event["event"] != "report":
                continue
            attempt, worker = Attempt.from_facts(event), int(event["worker"])
            key = attempt, worker, int(event.get("turn", 0))
            participants = term.attempts.get(attempt)
            if key in seen:
                yield Violation("report", f"worker {worker} twice in {attempt}", event["at"])
            if term.asynchronous:
                pass  # a turn may outlast its round, and its worker may have come later
            elif participants is None or attempt in over:
                yield Violation("report", f"worker {worker} in {attempt}: not on", event["at"])
            elif worker not in participants:
                yield Violation("report", f"worker {worker} has no part in {attempt}", event["at"])
            seen.add(key)


def _sums_up(event: Event, seen: set[tuple[Attempt, int, int]]) -> Iterator[Violation]:
    """A commit names those whose reports were counted."""
    attempt = Attempt.from_facts(event)
    counted = sorted({worker for each, worker, _ in seen if each == attempt})
    if counted != sorted(event["reported"]):
        yield Violation(
            "report", f"{attempt} names {event['reported']}, counted were {counted}", event["at"]
        )


def reports_tell_what_was_kept(run: Recorded) -> Iterator[Violation]:
    """The digest of a counted report is that of the model the worker wrote to its disk."""
    mixed = {
        (Attempt.from_facts(event), run.places[name], event.get("turn", 0)): event["digest"]
        for name, events in run.workers.items()
        for event in events
        if event["event"] == "mixed" and name in run.places
    }
    for term in run.terms:
        for event in term.named("report"):
            key = Attempt.from_facts(event), int(event["worker"]), int(event.get("turn", 0))
            if mixed.get(key, event["digest"]) != event["digest"]:
                yield Violation("report", f"{key[0]}: worker {key[1]} told another", event["at"])


def commits_have_enough_reports(run: Recorded) -> Iterator[Violation]:
    """At least min_workers, or the commit says why."""
    for term in run.terms:
        for event in term.named("commit"):
            count, least = len(event["reported"]), max(1, term.min_workers)
            if count < least and not term.asynchronous and not event.get("why"):
                yield Violation(
                    "few", f"{Attempt.from_facts(event)}: {count} reports, not {least}", event["at"]
                )


# --- times ---------------------------------------------------------------------------------


def attempts_end_in_time(run: Recorded) -> Iterator[Violation]:
    """An attempt is over at its deadline, whoever died; what is paused says so."""
    for term in run.terms:
        ends = {
            Attempt.from_facts(event): float(event["at"])
            for event in term.events
            if event["event"] in ("commit", "gave_up")
        }
        for event in term.named("attempt"):
            attempt, began = Attempt.from_facts(event), float(event["at"])
            if run.asynchronous or attempt not in ends:
                continue
            took = ends[attempt] - began - run.frozen(term.who, began, ends[attempt])
            said = run.excused(term, began, ends[attempt])
            if took > event["deadline"] + GRACE and not said:
                yield Violation("pause", f"{attempt} took {took:.1f} s", began)


def survivors_go_on(run: Recorded) -> Iterator[Violation]:
    """After an attempt the next one begins at once, unless the coordinator says what it needs:
    for all to gather it waits as long as it says, for who catches up as long as for a report."""
    for term in run.terms:
        ended, most, deadline = None, 0.0, 0.0
        for event in term.events:
            if event["event"] in ("commit", "gave_up"):
                ended, most = float(event["at"]), 0.0
            if event["event"] == "waiting":
                most = deadline if event.get("late") else float(event.get("patience", 0.0))
            if event["event"] in ("attempt", "finished") and ended is not None:
                began = float(event["at"])
                waited = began - ended - run.frozen(term.who, ended, began)
                if waited > most + GRACE and not run.excused(term, ended, began):
                    yield Violation("pause", f"nothing was begun for {waited:.1f} s", ended)
                ended = None
            if event["event"] == "attempt":
                deadline = float(event["deadline"])


def who_returns_takes_part(run: Recorded) -> Iterator[Violation]:
    """A worker that was away works again within two rounds of asking for orders."""
    if run.asynchronous:
        return
    attempts = sorted(
        (float(event["at"]), Attempt.from_facts(event), frozenset(event["participants"]))
        for term in run.terms
        for event in term.named("attempt")
    )
    for name, since in run.returns():
        worker, done = run.places[name], run.round_at(since)
        last = done + 1 + ROUNDS_TO_RETURN
        later = [each for each in attempts if each[0] > since]
        missed = [each for each in later if each[1].round_index <= last]
        passed = any(each[1].round_index > last for each in later)
        until = max((each[0] for each in missed), default=since)
        if not passed or run.away(name, since, until):
            continue
        if not any(worker in participants for _, _, participants in missed):
            yield Violation(
                "return", f"{name} was back in round {done + 1}, without work by {last}", since
            )


Rule = Callable[[Recorded], Iterator[Violation]]
RULES: tuple[Rule, ...] = (
    rounds_are_committed_once,
    epochs_rise,
    epochs_are_obeyed,
    only_committed_models_are_kept,
    reports_count_once,
    reports_tell_what_was_kept,
    commits_have_enough_reports,
    attempts_end_in_time,
    survivors_go_on,
    who_returns_takes_part,
)
