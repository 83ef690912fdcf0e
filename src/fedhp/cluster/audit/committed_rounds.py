"""The committed rounds of a run, each read from the record of the coordinator that led it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedhp.cluster.audit.timeline import LeadershipTerm, RunTimeline
from fedhp.cluster.events import Began, Mixed, Reported, Trained
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.errors import RunError
from fedhp.exchange import Exchange
from fedhp.exchange.facts import from_facts, rule_in
from fedhp.record.reader import RunReader
from fedhp.types import FloatArray, IntArray, LinkVerdict


@dataclass(frozen=True, slots=True)
class CommittedRound:
    """What happened in a committed round, from the record and the histories."""

    attempt: Attempt
    participants: tuple[int, ...]
    digests: dict[int, str]  # by worker, of the counted reports
    unreported: dict[int, str]  # of models that were stored, but whose report was not counted
    lost: dict[int, dict[int, int]]  # by worker: peers whose models did not come, from which on
    local_steps: IntArray  # [N]
    learning_rate: float
    links: IntArray  # [E, 2] that carried models; (receiver, sender) where directed
    directed: bool
    scored: bool
    has_all_links: bool  # the record has all links, not a selection
    compute_time: FloatArray  # [N] s
    communication_time: FloatArray  # [N] s
    round_time: float
    exchange: Exchange | None = None  # None: a mixing, of which only the links are on record
    rule: str = ""  # of the mixing weights; histories of earlier releases do not have it
    during_transfer: IntArray | None = None  # [N] steps before a group average was there
    consensus: dict[int, str] = field(default_factory=dict)  # digests by worker
    restarted: tuple[int, ...] = ()  # workers that began again with the initial model
    back_to: Attempt | None = None  # everyone began with its model of that round

    def lost_by(self, worker: int, exchange: int) -> set[int]:
        """The peers whose models a worker did not get in an exchange of the round, from 0."""
        return {peer for peer, first in self.lost.get(worker, {}).items() if first <= exchange}

    @property
    def averaged(self) -> Exchange | None:
        """The exchange, if it was of group averages."""
        return self.exchange if self.exchange is not None and self.exchange.groups else None


def read_committed_rounds(timeline: RunTimeline) -> Iterator[CommittedRound]:
    """In the order of the rounds."""
    terms = {attempt: term for term in timeline.terms for attempt in term.participants}
    readers: dict[Path, RunReader] = {}
    with contextlib.ExitStack() as stack:
        for attempt in sorted(timeline.committed, key=lambda attempt: attempt.round_index):
            term = terms.get(attempt)
            if term is None:
                raise RunError(
                    f"({attempt}) was committed, but no history says who began it",
                    allowed="the histories of all coordinators that led",
                    fix="add the folder of the missing coordinator",
                )
            if term.folder not in readers:
                readers[term.folder] = stack.enter_context(RunReader(term.folder))
            yield _read_round(timeline, term, readers[term.folder], attempt)


def _read_round(
    timeline: RunTimeline, term: LeadershipTerm, reader: RunReader, attempt: Attempt
) -> CommittedRound:
    index = attempt.round_index
    rows = reader.table("rounds", round_index=index)
    if not rows["round"]:
        raise RunError(
            f"{reader.folder}: round {index} was committed, but is not on record",
            allowed="a record with all committed rounds",
            fix="nothing; the record was damaged, or replaced by a file of another run",
        )
    workers = reader.table("workers", round_index=index)
    links = reader.table("links", round_index=index)
    used = np.array(links["used"], dtype=np.bool_)
    pairs = np.array([links["a"], links["b"]], dtype=np.int64).T.reshape(-1, 2)
    reports = [event for event in term.events_of(Reported) if event.attempt == attempt]
    digests = {event.worker: str(event["digest"]) for event in reports}
    steps = np.array(workers["local_steps"], dtype=np.int64)
    own = [found for found in timeline.of_workers(Trained, Mixed) if found[1].attempt == attempt]
    for worker, event in own:
        if event.is_a(Trained):
            steps[worker] = event["steps"]  # also of those whose report was never counted
    began = next(event for event in term.events_of(Began) if event.attempt == attempt)
    during = np.zeros_like(steps)
    lost: dict[int, dict[int, int]] = {}
    for event in reports:
        during[event.worker] = event.get("during", 0)
        peers = event.get("lost", ())
        first = event.get("lost_at") or [0] * len(peers)
        lost[event.worker] = dict(zip(peers, first, strict=True))
    return CommittedRound(
        attempt=attempt,
        participants=tuple(sorted(term.participants[attempt])),
        digests=digests,
        unreported={
            worker: str(event["digest"])
            for worker, event in own
            if event.is_a(Mixed) and worker not in digests
        },
        lost=lost,
        local_steps=steps,
        learning_rate=rows["learning_rate"][0],
        links=pairs[used],
        directed=bool(rows["directed"][0]),
        scored=LinkVerdict.SCORED.word in links["verdict"],
        has_all_links=rows["links_recorded"][0] == rows["links_known"][0],
        compute_time=np.array(workers["compute_time"], dtype=np.float64),
        communication_time=np.array(workers["communication_time"], dtype=np.float64),
        round_time=rows["round_time"][0],
        exchange=from_facts(began),
        rule=rule_in(began),
        during_transfer=during,
        consensus={e.worker: str(e["consensus"]) for e in reports if "consensus" in e},
        restarted=tuple(began.get("restarted", ())),
        back_to=Attempt.from_list(began["back_to"]) if "back_to" in began else None,
    )
