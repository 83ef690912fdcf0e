"""The histories of all processes of a run in one timeline: leadership terms, workers, faults."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedhp.cluster import events as kinds
from fedhp.cluster.events import Began, CaughtUp, Committed, Joined, Kind, Lead, Reported
from fedhp.cluster.history import read_history
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.errors import RunError

HISTORIES = "history-*.jsonl"
FROZEN = "the process was stopped, or its machine slept"


class HistoryEvent(dict[str, Any]):
    """A line of a history."""

    def is_a(self, *of: Kind) -> bool:
        """Whether it is of one of these kinds."""
        return any(self["event"] == kind.event for kind in of)

    @property
    def at(self) -> float:
        """When it was written; s, wall clock."""
        return float(self["at"])

    @property
    def attempt(self) -> Attempt:
        return Attempt.from_facts(self)

    @property
    def worker(self) -> int:
        return int(self["worker"])


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a coordinator could not do anything, as it says; s, wall clock."""

    start: float
    end: float
    why: str


@dataclass(frozen=True)
class LeadershipTerm:
    """What one coordinator did from taking the lead on."""

    coordinator: str
    at: float
    run: str
    epoch: int
    resumed_from: Attempt  # the last committed one, when it took the lead
    min_workers: int
    asynchronous: bool
    folder: Path  # of its history and its record
    events: list[HistoryEvent]

    @functools.cached_property
    def participants(self) -> dict[Attempt, frozenset[int]]:
        """Of every attempt that it began."""
        return {e.attempt: frozenset(map(int, e["participants"])) for e in self.events_of(Began)}

    def events_of(self, *of: Kind) -> Iterator[HistoryEvent]:
        return (event for event in self.events if event.is_a(*of))

    def pauses(self) -> list[Pause]:
        pauses: list[Pause] = []
        paused: HistoryEvent | None = None
        for event in self.events:
            if event.is_a(kinds.Paused):
                paused = paused or event
            elif event.is_a(kinds.Resumed) and paused is not None:
                pauses.append(Pause(paused.at, event.at, str(paused["why"])))
                paused = None
            elif event.is_a(kinds.Frozen):
                since, seconds = float(event["since"]), float(event["seconds"])
                pauses.append(Pause(since, since + seconds, FROZEN))
        return sorted(pauses, key=lambda pause: pause.start)


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """Everything that the processes of a run wrote about it."""

    terms: list[LeadershipTerm]  # by epoch
    worker_events: dict[str, list[HistoryEvent]]  # by name
    faults: list[HistoryEvent]  # that a test planted
    worker_numbers: dict[str, int]  # by name
    committed: frozenset[Attempt]
    unannounced: frozenset[Attempt]  # committed, but only a later term says so
    # The last round of which lines were dropped, by its committed attempt if that is known: what
    # can be checked begins after it.
    dropped: Attempt = INITIAL

    @property
    def asynchronous(self) -> bool:
        return any(term.asynchronous for term in self.terms)

    def events_of(self, kind: Kind) -> Iterator[HistoryEvent]:
        return (event for term in self.terms for event in term.events_of(kind))

    def of_workers(self, *of: Kind) -> Iterator[tuple[int, HistoryEvent]]:
        """What workers with a known number wrote of these kinds, with that number."""
        for name, events in self.worker_events.items():
            if name in self.worker_numbers:
                yield from (
                    (self.worker_numbers[name], event) for event in events if event.is_a(*of)
                )

    def begun(self) -> Callable[[Attempt], bool]:
        """Whether a coordinator began an attempt; of many at one round it notes only a range."""
        begun = {attempt for term in self.terms for attempt in term.participants}
        gaps = list(self.events_of(kinds.LeftOut))

        def is_begun(attempt: Attempt) -> bool:
            return attempt in begun or any(
                (attempt.epoch, attempt.round_index) == (int(gap["epoch"]), int(gap["round"]))
                and int(gap["first"]) <= attempt.number <= int(gap["last"])
                for gap in gaps
            )

        return is_begun

    def last_committed_round(self, moment: float) -> int:
        announced = [int(e["round"]) for e in self.events_of(Committed) if e.at <= moment]
        resumed = [term.resumed_from.round_index for term in self.terms if term.at <= moment]
        return max([*announced, *resumed], default=0)

    def idle_seconds(self, term: LeadershipTerm, start: float, end: float) -> float:
        """How long in this time the coordinator could not do anything: it was stopped, its machine
        slept, or it had paused because nothing could be written or committed."""
        spans = [(pause.start, pause.end) for pause in term.pauses()]
        since = None
        for fault in (fault for fault in self.faults if fault["target"] == term.coordinator):
            if fault["kind"] == "stop":
                since = fault.at
            elif fault["kind"] == "cont" and since is not None:
                spans.append((since, fault.at))
                since = None
        if since is not None:
            spans.append((since, end))
        total, covered = 0.0, start
        for begin, finish in sorted(spans):
            total += max(0.0, min(finish, end) - max(begin, covered))
            covered = max(covered, min(finish, end))
        return total

    def is_pause_announced(self, term: LeadershipTerm, start: float, end: float) -> bool:
        """Whether the coordinator said in this time that it waits, nobody knows how long: for
        workers, or (in a history that does not say when it went on) for its ledger."""
        needed = max(1, term.min_workers)
        ended = any(event.is_a(kinds.Resumed) for event in term.events)
        return any(
            (event.is_a(kinds.Paused) and not ended)
            or (event.is_a(kinds.Waiting) and len(event["ready"]) < needed)
            for event in term.events
            if start <= event.at <= end
        )

    def returns(self) -> list[tuple[str, float]]:
        returns: list[tuple[str, float]] = []
        for name, events in self.worker_events.items():
            if name not in self.worker_numbers:
                continue
            joins = [event.at for event in self._events_about(name, Joined)][1:]
            woken = [
                fault.at
                for fault in self.faults
                if fault["kind"] in ("cont", "heal") and name in _targets(fault)
            ]
            orders = [event.at for event in events if event.is_a(kinds.Ordered)]
            moments = {event.at for event in events if event.is_a(CaughtUp)}
            for moment in (*joins, *woken):
                moments.update([at for at in orders if at > moment][:1])
            returns.extend((name, at) for at in sorted(moments))
        return returns

    def was_away(self, name: str, start: float, end: float) -> bool:
        worker = self.worker_numbers[name]
        gone = [event for event in self.events_of(kinds.Gone) if worker in event["workers"]]
        left = self._events_about(name, kinds.Left)
        hit = [fault for fault in self.faults if name in _targets(fault)]
        own = self.worker_events[name]
        processes = {event["process"] for event in own if start <= event.at <= end}
        away = any(start <= event.at <= end for event in (*gone, *left, *hit))
        return away or len(processes) > 1

    def _events_about(self, name: str, kind: Kind) -> Iterator[HistoryEvent]:
        worker = self.worker_numbers[name]
        for term in sorted(self.terms, key=lambda term: term.at):
            yield from (event for event in term.events_of(kind) if event.worker == worker)


def read_timeline(folder: Path) -> RunTimeline:
    """From all histories below a folder."""
    files = sorted(folder.rglob(HISTORIES))
    timeline = _known(build_timeline((file, list(read_history(file))) for file in files))
    if not timeline.terms:
        raise RunError(
            f"{folder}: no history of a coordinator here",
            allowed="the folder of a run of `fedhp cluster`",
            fix="check the path; the coordinator writes history-NAME.jsonl",
        )
    return timeline


def build_timeline(histories: Iterable[tuple[Path, list[dict[str, Any]]]]) -> RunTimeline:
    terms: list[LeadershipTerm] = []
    worker_events: dict[str, list[HistoryEvent]] = {}
    faults: list[HistoryEvent] = []
    dropped = INITIAL
    for file, lines in histories:
        events = [HistoryEvent(line) for line in lines]
        gaps = [event.attempt for event in events if event.is_a(kinds.Dropped)]
        dropped = max([dropped, *gaps], key=lambda attempt: attempt.round_index)
        if any(event["event"] == "fault" for event in events):
            faults.extend(events)
        elif any(event.is_a(Lead) for event in events):
            terms.extend(_terms(events, file.parent))
        elif events:
            worker_events.setdefault(str(events[0]["who"]), []).extend(events)
    terms.sort(key=lambda term: (term.epoch, term.at))
    announced = {event.attempt for term in terms for event in term.events_of(Committed)}
    begun = {attempt for term in terms for attempt in term.participants}
    unannounced = {term.resumed_from for term in terms} & begun - announced
    ends = {attempt.round_index: attempt for attempt in sorted(announced | unannounced)}
    return RunTimeline(
        terms,
        worker_events,
        sorted(faults, key=lambda fault: fault.at),
        {str(event["name"]): event.worker for term in terms for event in term.events_of(Joined)},
        committed=frozenset(announced | unannounced),
        unannounced=frozenset(unannounced),
        dropped=ends.get(dropped.round_index, dropped),
    )


def _known(timeline: RunTimeline) -> RunTimeline:
    """Without the rounds of which a history has dropped its lines: others may still have theirs,
    but they prove nothing alone."""
    dropped = timeline.dropped
    if dropped == INITIAL:
        return timeline

    def is_known(event: HistoryEvent) -> bool:
        if not {"epoch", "round", "attempt"} <= event.keys():
            return True
        # Which model a worker has now is known from the line that says it took it over.
        taken_over = event.is_a(kinds.Advanced, CaughtUp)
        return int(event["round"]) + taken_over > dropped.round_index

    terms = [
        replace(
            term,
            resumed_from=max(term.resumed_from, dropped, key=lambda last: last.round_index),
            events=list(filter(is_known, term.events)),
        )
        for term in timeline.terms
    ]
    return replace(
        timeline,
        terms=terms,
        worker_events={
            name: list(filter(is_known, events)) for name, events in timeline.worker_events.items()
        },
        committed=frozenset(
            attempt for attempt in timeline.committed if attempt.round_index > dropped.round_index
        ),
    )


def missing_beginning(dropped: Attempt) -> str:
    """What histories with this gap no longer have; empty if they have everything."""
    if dropped == INITIAL:
        return ""
    return (
        f"the histories begin at round {dropped.round_index + 1}; the lines before it were dropped "
        "when they had reached their largest size"
    )


def final_digests(histories: Iterable[Path]) -> dict[str, str]:
    """Digests of the models by worker name: those of the last committed round, or everyone's
    last one if the algorithm is asynchronous."""
    names: dict[int, str] = {}
    reported: dict[Attempt | None, dict[int, str]] = {None: {}}  # None: the last of everyone
    commits: list[HistoryEvent] = []
    for event in (HistoryEvent(line) for file in histories for line in read_history(file)):
        if event.is_a(Joined):
            names[event.worker] = event["name"]
        elif event.is_a(Committed):
            commits.append(event)
        elif event.is_a(Reported):
            for key in (None, event.attempt):
                reported.setdefault(key, {})[event.worker] = event["digest"]
    digests: dict[int, str] = {}
    if commits:
        last = max(commits, key=lambda event: (event["round"], event["epoch"], event["attempt"]))
        digests = reported.get(last.attempt if last["reported"] else None, {})
    return {names.get(worker, str(worker)): digests[worker] for worker in sorted(digests)}


def _targets(fault: HistoryEvent) -> list[str]:
    target = fault["target"]
    return [target] if isinstance(target, str) else list(target)


def _terms(events: list[HistoryEvent], folder: Path) -> Iterator[LeadershipTerm]:
    starts = [place for place, event in enumerate(events) if event.is_a(Lead)]
    for start, end in pairwise([*starts, len(events)]):
        lead = events[start]
        yield LeadershipTerm(
            coordinator=str(lead["who"]),
            at=lead.at,
            run=str(lead["run"]),
            epoch=int(lead["epoch"]),
            resumed_from=Attempt.from_list(lead["stand"]),
            min_workers=int(lead["min_workers"]),
            asynchronous=bool(lead["asynchronous"]),
            folder=folder,
            events=events[start + 1 : end],
        )
