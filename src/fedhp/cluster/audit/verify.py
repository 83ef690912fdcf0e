"""A run of the network done again in simulation, from its plans, and compared bit by bit.

The models of every worker after every committed round must have the digests that the workers
reported, also after deaths, lost links and catching up. And how long rounds took is compared
with what the simulator says of the measured step and link times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w

from fedhp.cluster.audit.timeline import Event, LeadershipTerm, Recorded, read_run
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.config import parse, to_tables
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.record.store import FILE
from fedhp.types import FloatArray, IntArray, LinkVerdict

SYNCHRONOUS = ("fedhp", "dpsgd", "ldsgd", "pens")


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A committed round, as the record and the histories tell it."""

    attempt: Attempt
    participants: tuple[int, ...]
    digests: dict[int, str]  # by worker, of the models that count
    uncounted: dict[int, str]  # and of those that were kept, but never reported
    lost: dict[int, tuple[int, ...]]  # by worker: whose models did not come
    local_steps: IntArray  # [N]
    learning_rate: float
    links: IntArray  # [E, 2] over which models went; (receiver, sender) where directed
    directed: bool
    scored: bool
    whole: bool  # whether the record has all links
    compute_time: FloatArray  # [N] s
    communication_time: FloatArray  # [N] s
    round_time: float


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """What the comparison of one round gave."""

    round_index: int
    compared: int  # models
    different: tuple[int, ...]  # workers whose model is another one
    why_not: str = ""  # nothing was compared


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Predicted and real round times, s; errors are shares of the real ones."""

    predicted: FloatArray
    real: FloatArray

    @property
    def errors(self) -> FloatArray:
        """One per round."""
        found: FloatArray = np.abs(self.predicted - self.real) / np.maximum(self.real, 1e-9)
        return found


@dataclass(frozen=True, slots=True)
class Verified:
    """The whole comparison."""

    rounds: tuple[RoundVerdict, ...]
    times: RoundTimes
    algorithm: str

    @property
    def equal(self) -> bool:
        """Whether something was compared and all of it was equal."""
        compared = sum(each.compared for each in self.rounds)
        return compared > 0 and not any(each.different for each in self.rounds)

    @property
    def whole(self) -> bool:
        """Whether every round was compared."""
        return all(not each.why_not for each in self.rounds)


def verify(folder: Path) -> Verified:
    """Do the recorded run again and compare; refuses what cannot be done again at all."""
    from fedhp.cluster.audit.replay import RunReplayer

    run = read_run(folder)
    text = _check(run, folder)
    rounds = list(rounds_of(run))
    again = RunReplayer(text, run)
    verdicts: list[RoundVerdict] = []
    stopped = ""
    try:
        for done in rounds:
            if not stopped:
                stopped = again.why_not(done)
            if stopped:
                verdicts.append(RoundVerdict(done.attempt.round_index, 0, (), stopped))
                continue
            found = again.round(done)
            told = sorted(done.digests.items())
            different = tuple(worker for worker, text in told if found[worker] != text)
            verdicts.append(RoundVerdict(done.attempt.round_index, len(told), different))
    finally:
        again.close()
    return Verified(tuple(verdicts), times_of(rounds), again.algorithm)


def times_of(rounds: list[RoundDone]) -> RoundTimes:
    """What the simulator's rule says of the measured times: t = max (compute + communication)."""
    predicted = [
        float(np.nanmax(done.compute_time + done.communication_time, initial=0.0))
        for done in rounds
    ]
    return RoundTimes(np.array(predicted), np.array([done.round_time for done in rounds]))


def rounds_of(run: Recorded) -> Iterator[RoundDone]:
    """The committed rounds in order, each from the record of who committed it."""
    makers = {attempt: term for term in run.terms for attempt in term.attempts}
    readers: dict[Path, RunReader] = {}
    try:
        for attempt in sorted(run.commits, key=lambda each: each.round_index):
            term = makers.get(attempt)
            if term is None:
                raise RunError(f"nothing is known of {attempt}, which was committed")
            if term.folder not in readers:
                readers[term.folder] = RunReader(term.folder)
            yield _round(run, term, readers[term.folder], attempt)
    finally:
        for reader in readers.values():
            reader.close()


def _round(run: Recorded, term: LeadershipTerm, reader: RunReader, attempt: Attempt) -> RoundDone:
    index = attempt.round_index
    rows = reader.table("rounds", round_index=index)
    if not rows["round"]:
        raise RunError(
            f"{reader.folder}: round {index} was committed, but is not on record",
            allowed="a record with all committed rounds",
            fix="nothing; the record was damaged, or a file of another run is in its place",
        )
    workers = reader.table("workers", round_index=index)
    links = reader.table("links", round_index=index)
    used = np.array(links["used"], dtype=np.bool_)
    pairs = np.array([links["a"], links["b"]], dtype=np.int64).T.reshape(-1, 2)
    reports = [event for event in term.named("report") if Attempt.from_facts(event) == attempt]
    counted = {int(event["worker"]): str(event["digest"]) for event in reports}
    mixed = {worker: str(event["digest"]) for worker, event in _done(run, "mixed", attempt)}
    steps = np.array(workers["local_steps"], dtype=np.int64)
    for worker, event in _done(run, "trained", attempt):
        steps[worker] = event["steps"]  # also of those whose report was never counted
    return RoundDone(
        attempt=attempt,
        participants=tuple(sorted(term.attempts[attempt])),
        digests=counted,
        uncounted={worker: text for worker, text in mixed.items() if worker not in counted},
        lost={int(event["worker"]): tuple(event.get("lost", ())) for event in reports},
        local_steps=steps,
        learning_rate=rows["learning_rate"][0],
        links=pairs[used],
        directed=bool(rows["directed"][0]),
        scored=LinkVerdict.SCORED in links["verdict"],
        whole=rows["links_recorded"][0] == rows["links_known"][0],
        compute_time=_numbers(workers["compute_time"]),
        communication_time=_numbers(workers["communication_time"]),
        round_time=rows["round_time"][0],
    )


def _done(run: Recorded, kind: str, attempt: Attempt) -> Iterator[tuple[int, Event]]:
    """Events of one kind that workers wrote of this attempt."""
    for name, events in run.workers.items():
        if name in run.places:
            for event in events:
                if event["event"] == kind and Attempt.from_facts(event) == attempt:
                    yield run.places[name], event


def _numbers(column: list[float | None]) -> FloatArray:
    return np.array([np.nan if each is None else each for each in column])


def _check(run: Recorded, folder: Path) -> str:
    """The experiment's text; RunError where nothing of it can be done again."""
    term = run.terms[0]
    if not (term.folder / FILE).is_file():
        raise RunError(f"{folder}: there is no record beside {term.who}'s history")
    with RunReader(term.folder) as reader:
        experiment = parse(reader.meta("experiment"))
    name, cluster = experiment.algorithm.name, experiment.cluster
    if name not in SYNCHRONOUS:
        raise RunError(
            f"{folder}: {name} cannot be done again from its record",
            allowed=f"a run of {', '.join(SYNCHRONOUS)}",
            fix="nothing; an asynchronous run depends on the moments of its swaps",
        )
    for key, value in (("compression", cluster.compression), ("robust", cluster.robust)):
        if value != "none":
            raise RunError(
                f"{folder}: cluster.{key} was {value!r}, which a simulation does not know",
                allowed=f"runs with cluster.{key} = 'none'",
                fix="nothing; run it again without it to verify the rest",
            )
    return tomli_w.dumps(to_tables(experiment))
