"""The histories of all processes of a run, put together: terms of office, workers, faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhp.cluster.history import read_history
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.errors import RunError

Event = dict[str, Any]
HISTORIES = "history-*.jsonl"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept: which, and what happened when."""

    rule: str
    text: str
    at: float = 0.0  # s, clock of the machine

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class LeadershipTerm:
    """What one coordinator did from taking the lead on."""

    who: str
    at: float
    run: str
    epoch: int
    stand: Attempt  # the committed one that it took up
    min_workers: int
    asynchronous: bool
    folder: Path  # of its history, and of its record
    events: list[Event]
    attempts: dict[Attempt, frozenset[int]]  # with their participants

    def named(self, name: str) -> Iterator[Event]:
        """The events of one kind."""
        return (event for event in self.events if event["event"] == name)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A whole run."""

    terms: list[LeadershipTerm]  # by epoch
    workers: dict[str, list[Event]]
    faults: list[Event]
    places: dict[str, int] = field(default_factory=dict)  # index of each worker
    commits: frozenset[Attempt] = frozenset()
    unsaid: frozenset[Attempt] = frozenset()  # of them, those known by a later term alone

    @property
    def asynchronous(self) -> bool:
        """Whether turns take the place of rounds."""
        return any(term.asynchronous for term in self.terms)

    def round_at(self, moment: float) -> int:
        """The last round that was known to be committed then."""
        said = [
            int(event["round"])
            for term in self.terms
            for event in term.named("commit")
            if event["at"] <= moment
        ]
        told = [term.stand.round_index for term in self.terms if term.at <= moment]
        return max([*said, *told], default=0)

    def frozen(self, who: str, start: float, end: float) -> float:
        """Seconds of this time in which a process was stopped from outside."""
        total, since = 0.0, None
        for fault in self.faults:
            if fault["target"] != who:
                continue
            if fault["kind"] == "stop":
                since = float(fault["at"])
            elif fault["kind"] == "cont" and since is not None:
                total += max(0.0, min(end, float(fault["at"])) - max(start, since))
                since = None
        return total if since is None else total + max(0.0, end - max(start, since))

    def excused(self, term: LeadershipTerm, start: float, end: float) -> bool:
        """Whether it said in this time that it can't go on: no ledger, or too few workers."""
        least = max(1, term.min_workers)
        return any(
            event["event"] == "paused"
            or (event["event"] == "waiting" and len(event["ready"]) < least)
            for event in term.events
            if start <= event["at"] <= end
        )

    def returns(self) -> list[tuple[str, float]]:
        """Workers that were away and asked for orders again, and when."""
        found: list[tuple[str, float]] = []
        for name, events in self.workers.items():
            if name not in self.places:
                continue
            joins = [event["at"] for event in self._said_of(name, "join")][1:]
            woken = [
                fault["at"]
                for fault in self.faults
                if fault["kind"] in ("cont", "heal") and name in _targets(fault)
            ]
            asked = [event["at"] for event in events if event["event"] == "order"]
            caught = [event["at"] for event in events if event["event"] == "caught_up"]
            for moment in (*joins, *woken):
                caught.extend([at for at in asked if at > moment][:1])
            found.extend((name, float(at)) for at in sorted(set(caught)))
        return found

    def away(self, name: str, start: float, end: float) -> bool:
        """Whether a worker was away in this time, by a coordinator's or a fault's word."""
        worker = self.places[name]
        gone = any(
            event["event"] == "gone" and worker in event["workers"] and start <= event["at"] <= end
            for term in self.terms
            for event in term.events
        )
        left = any(start <= event["at"] <= end for event in self._said_of(name, "leave"))
        hit = any(name in _targets(each) and start <= each["at"] <= end for each in self.faults)
        lives = [event["process"] for event in self.workers[name] if start <= event["at"] <= end]
        return gone or left or hit or len(set(lives)) > 1

    def _said_of(self, name: str, kind: str) -> Iterator[Event]:
        for term in sorted(self.terms, key=lambda each: each.at):
            yield from (each for each in term.named(kind) if each["worker"] == self.places[name])


def _targets(fault: Event) -> list[str]:
    target = fault["target"]
    return [target] if isinstance(target, str) else list(target)


def read_run(folder: Path) -> Recorded:
    """All histories below a folder."""
    files = sorted(folder.rglob(HISTORIES))
    run = put_together((file, list(read_history(file))) for file in files)
    if not run.terms:
        raise RunError(
            f"{folder} holds no history of a coordinator",
            allowed="the folder of a run of `fedhp cluster`",
            fix="check the path; the coordinator writes history-NAME.jsonl",
        )
    return run


def put_together(histories: Iterable[tuple[Path, list[Event]]]) -> Recorded:
    """The events of all files, each with its path."""
    terms: list[LeadershipTerm] = []
    workers: dict[str, list[Event]] = {}
    faults: list[Event] = []
    for file, events in histories:
        kinds = {event["event"] for event in events}
        if "fault" in kinds:
            faults.extend(events)
        elif "lead" in kinds:
            terms.extend(_terms(events, file.parent))
        elif kinds:
            workers.setdefault(str(events[0]["who"]), []).extend(events)
    terms.sort(key=lambda term: (term.epoch, term.at))
    said = {Attempt.from_facts(event) for term in terms for event in term.named("commit")}
    begun = {attempt for term in terms for attempt in term.attempts}
    unsaid = {term.stand for term in terms} & begun - said
    places = {
        str(event["name"]): int(event["worker"]) for term in terms for event in term.named("join")
    }
    return Recorded(
        terms,
        workers,
        sorted(faults, key=lambda event: float(event["at"])),
        places,
        commits=frozenset(said | unsaid),
        unsaid=frozenset(unsaid),
    )


def _terms(events: Iterable[Event], folder: Path) -> Iterator[LeadershipTerm]:
    term: LeadershipTerm | None = None
    for event in events:
        if event["event"] == "lead":
            if term is not None:
                yield term
            term = LeadershipTerm(
                who=str(event["who"]),
                at=float(event["at"]),
                run=str(event["run"]),
                epoch=int(event["epoch"]),
                stand=Attempt.from_list(event["stand"]),
                min_workers=int(event["min_workers"]),
                asynchronous=bool(event["asynchronous"]),
                folder=folder,
                events=[],
                attempts={},
            )
        elif term is not None:
            term.events.append(event)
            if event["event"] == "attempt":
                term.attempts[Attempt.from_facts(event)] = frozenset(
                    map(int, event["participants"])
                )
    if term is not None:
        yield term
