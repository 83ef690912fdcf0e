"""The histories of all processes of a run in one timeline: leadership terms, workers, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from fedhp.cluster.events import (
    Advanced,
    Began,
    CaughtUp,
    Committed,
    Dropped,
    Frozen,
    Gone,
    Joined,
    Kind,
    Lead,
    Left,
    LeftOut,
    Ordered,
    Paused,
    Reported,
    Resumed,
    Waiting,
)
from fedhp.cluster.history import read_history
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.errors import RunError

Event: TypeAlias = dict[str, Any]
HISTORIES = "history-*.jsonl"
FROZEN = "the process was stopped, or its machine slept"


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a coordinator could not do anything, as it says; s, wall clock."""

    start: float
    end: float
    why: str


@dataclass(frozen=True, slots=True)
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
    events: list[Event]
    participants: dict[Attempt, frozenset[int]]  # of every attempt that it began

    def events_of(self, kind: Kind) -> Iterator[Event]:
        """The events of one kind."""
        return (event for event in self.events if event["event"] == kind.event)

    def pauses(self) -> list[Pause]:
        """Its pauses that are over, in the order of their beginnings."""
        pauses: list[Pause] = []
        paused: Event | None = None
        for event in self.events:
            if event["event"] == Paused.event:
                paused = paused or event
            elif event["event"] == Resumed.event and paused is not None:
                pauses.append(Pause(float(paused["at"]), float(event["at"]), str(paused["why"])))
                paused = None
            elif event["event"] == Frozen.event:
                since, seconds = float(event["since"]), float(event["seconds"])
                pauses.append(Pause(since, since + seconds, FROZEN))
        return sorted(pauses, key=lambda pause: pause.start)


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """Everything that the processes of a run wrote about it."""

    terms: list[LeadershipTerm]  # by epoch
    worker_events: dict[str, list[Event]]  # by name
    faults: list[Event]  # that a test planted
    worker_numbers: dict[str, int]  # by name
    committed: frozenset[Attempt]
    unannounced: frozenset[Attempt]  # committed, but only a later term says so
    # The last round of which lines were dropped, by its committed attempt if that is known: what
    # can be checked begins after it.
    dropped: Attempt = INITIAL

    @property
    def asynchronous(self) -> bool:
        """Whether workers take turns, without rounds."""
        return any(term.asynchronous for term in self.terms)

    def begun(self) -> Callable[[Attempt], bool]:
        """Whether a coordinator began an attempt; of many at one round it notes only a range."""
        begun = {attempt for term in self.terms for attempt in term.participants}
        ranges = [
            (int(event["epoch"]), int(event["round"]), int(event["first"]), int(event["last"]))
            for term in self.terms
            for event in term.events_of(LeftOut)
        ]

        def is_begun(attempt: Attempt) -> bool:
            return attempt in begun or any(
                (attempt.epoch, attempt.round_index) == (epoch, index)
                and first <= attempt.number <= last
                for epoch, index, first, last in ranges
            )

        return is_begun

    def last_committed_round(self, moment: float) -> int:
        """The last round that was known to be committed then."""
        announced = [
            int(event["round"])
            for term in self.terms
            for event in term.events_of(Committed)
            if event["at"] <= moment
        ]
        resumed = [term.resumed_from.round_index for term in self.terms if term.at <= moment]
        return max([*announced, *resumed], default=0)

    def idle_seconds(self, term: LeadershipTerm, start: float, end: float) -> float:
        """How long in this time the coordinator could not do anything: it was stopped, its machine
        slept, or it had paused because nothing could be written or committed."""
        spans = [(pause.start, pause.end) for pause in term.pauses()]
        since = None
        for fault in self.faults:
            if fault["target"] != term.coordinator:
                continue
            if fault["kind"] == "stop":
                since = float(fault["at"])
            elif fault["kind"] == "cont" and since is not None:
                spans.append((since, float(fault["at"])))
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
        ended = any(True for _ in term.events_of(Resumed))
        return any(
            (event["event"] == Paused.event and not ended)
            or (event["event"] == Waiting.event and len(event["ready"]) < needed)
            for event in term.events
            if start <= event["at"] <= end
        )

    def returns(self) -> list[tuple[str, float]]:
        """Workers that were away and asked for orders again, and when."""
        returns: list[tuple[str, float]] = []
        for name, events in self.worker_events.items():
            if name not in self.worker_numbers:
                continue
            joins = [event["at"] for event in self._events_about(name, Joined)][1:]
            woken = [
                fault["at"]
                for fault in self.faults
                if fault["kind"] in ("cont", "heal") and name in _targets(fault)
            ]
            orders = [event["at"] for event in events if event["event"] == Ordered.event]
            moments = {event["at"] for event in events if event["event"] == CaughtUp.event}
            for moment in (*joins, *woken):
                moments.update([at for at in orders if at > moment][:1])
            returns.extend((name, float(at)) for at in sorted(moments))
        return returns

    def was_away(self, name: str, start: float, end: float) -> bool:
        """Whether a worker was away in this time, according to a coordinator or a fault."""
        worker = self.worker_numbers[name]
        gone = any(
            worker in event["workers"] and start <= event["at"] <= end
            for term in self.terms
            for event in term.events_of(Gone)
        )
        left = any(start <= event["at"] <= end for event in self._events_about(name, Left))
        hit = any(name in _targets(fault) and start <= fault["at"] <= end for fault in self.faults)
        processes = {
            event["process"] for event in self.worker_events[name] if start <= event["at"] <= end
        }
        return gone or left or hit or len(processes) > 1

    def _events_about(self, name: str, kind: Kind) -> Iterator[Event]:
        worker = self.worker_numbers[name]
        for term in sorted(self.terms, key=lambda term: term.at):
            yield from (event for event in term.events_of(kind) if event["worker"] == worker)


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


def build_timeline(histories: Iterable[tuple[Path, list[Event]]]) -> RunTimeline:
    """From the events of every file, each with its path."""
    terms: list[LeadershipTerm] = []
    worker_events: dict[str, list[Event]] = {}
    faults: list[Event] = []
    dropped = INITIAL
    for file, events in histories:
        gaps = [Attempt.from_facts(event) for event in events if event["event"] == Dropped.event]
        dropped = max([dropped, *gaps], key=lambda attempt: attempt.round_index)
        kinds = {event["event"] for event in events}
        if "fault" in kinds:
            faults.extend(events)
        elif Lead.event in kinds:
            terms.extend(_terms(events, file.parent))
        elif kinds:
            worker_events.setdefault(str(events[0]["who"]), []).extend(events)
    terms.sort(key=lambda term: (term.epoch, term.at))
    announced = {Attempt.from_facts(event) for term in terms for event in term.events_of(Committed)}
    begun = {attempt for term in terms for attempt in term.participants}
    unannounced = {term.resumed_from for term in terms} & begun - announced
    ends = {attempt.round_index: attempt for attempt in sorted(announced | unannounced)}
    return RunTimeline(
        terms,
        worker_events,
        sorted(faults, key=lambda fault: float(fault["at"])),
        {
            str(event["name"]): int(event["worker"])
            for term in terms
            for event in term.events_of(Joined)
        },
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

    def is_known(event: Event) -> bool:
        if not {"epoch", "round", "attempt"} <= event.keys():
            return True
        # Which model a worker has now is known from the line that says it took it over.
        taken_over = event["event"] in (Advanced.event, CaughtUp.event)
        return int(event["round"]) + taken_over > dropped.round_index

    terms = [
        replace(
            term,
            resumed_from=max(term.resumed_from, dropped, key=lambda last: last.round_index),
            events=list(filter(is_known, term.events)),
            participants={
                attempt: workers
                for attempt, workers in term.participants.items()
                if attempt.round_index > dropped.round_index
            },
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
    last = (0, 0, 0)
    asynchronous = False
    names: dict[int, str] = {}
    reported: dict[tuple[int, int, int], dict[int, str]] = {}
    latest: dict[int, str] = {}
    for file in histories:
        for event in read_history(file):
            if event["event"] == Joined.event:
                names[event["worker"]] = event["name"]
            if event["event"] not in (Reported.event, Committed.event):
                continue
            key = (event["round"], event["epoch"], event["attempt"])
            if event["event"] == Reported.event:
                reported.setdefault(key, {})[event["worker"]] = event["digest"]
                latest[event["worker"]] = event["digest"]
            elif key > last:
                last, asynchronous = key, not event["reported"]
    digests = latest if asynchronous else reported.get(last, {})
    return {names.get(worker, str(worker)): digests[worker] for worker in sorted(digests)}


def _targets(fault: Event) -> list[str]:
    target = fault["target"]
    return [target] if isinstance(target, str) else list(target)


def _terms(events: Iterable[Event], folder: Path) -> Iterator[LeadershipTerm]:
    term: LeadershipTerm | None = None
    for event in events:
        if event["event"] == Lead.event:
            if term is not None:
                yield term
            term = LeadershipTerm(
                coordinator=str(event["who"]),
                at=float(event["at"]),
                run=str(event["run"]),
                epoch=int(event["epoch"]),
                resumed_from=Attempt.from_list(event["stand"]),
                min_workers=int(event["min_workers"]),
                asynchronous=bool(event["asynchronous"]),
                folder=folder,
                events=[],
                participants={},
            )
        elif term is not None:
            term.events.append(event)
            if event["event"] == Began.event:
                workers = frozenset(map(int, event["participants"]))
                term.participants[Attempt.from_facts(event)] = workers
    if term is not None:
        yield term
