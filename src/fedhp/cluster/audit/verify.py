"""A run of the network repeated in simulation from its plans, and compared bit by bit.

The model of every worker after every committed round, and its consensus where there is one, must
have the digest that the worker reported, also after deaths, lost links and catching up. The round
times are compared with those that the simulator predicts from measured step and link times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w

from fedhp.cluster.audit.committed_rounds import CommittedRound, read_committed_rounds
from fedhp.cluster.audit.replay import RunReplayer
from fedhp.cluster.audit.timeline import RunTimeline, missing_beginning, read_timeline
from fedhp.cluster.events import SetupNoted
from fedhp.components import parts_of_record
from fedhp.config import Experiment, parse, to_tables
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE
from fedhp.types import FloatArray


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    round_index: int
    compared: int  # models
    different: tuple[int, ...]  # workers whose model differs
    why_not: str = ""  # why some or all were not compared


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of a whole run."""

    rounds: tuple[RoundVerdict, ...]
    time_errors: FloatArray  # of every round, relative to the real time
    algorithm: str
    private: tuple[int, ...] = ()  # workers whose samples only their machines have
    missing: str = ""  # which rounds the histories no longer have

    @property
    def equal(self) -> bool:
        compared = sum(verdict.compared for verdict in self.rounds)
        return compared > 0 and not any(verdict.different for verdict in self.rounds)

    @property
    def comparable(self) -> bool:
        """Whether a simulation can have the same data."""
        return not self.private

    @property
    def whole(self) -> bool:
        return not any(verdict.why_not for verdict in self.rounds)


def verify(folder: Path, *, trust: Sequence[str] = ()) -> Verification:
    """Repeat a recorded run and compare; RunError if it cannot be repeated at all.

    trust: modules whose parts the folder may name.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(parts_of_record(trust))
        timeline = read_timeline(folder)
        experiment = _repeatable_experiment(timeline, folder)
        rounds = list(read_committed_rounds(timeline))
        errors, algorithm = _time_errors(rounds), experiment.algorithm.name
        noted = timeline.events_of(SetupNoted)
        private = tuple(sorted({event.worker for event in noted if event["private"]}))
        if private:
            names = ", ".join(map(str, private))
            why = f"worker{'s' if len(private) > 1 else ''} {names} used private data"
            verdicts = [RoundVerdict(done.attempt.round_index, 0, (), why) for done in rounds]
            return Verification(tuple(verdicts), errors, algorithm, private)
        returns = [done.back_to for done in rounds if done.back_to is not None]
        replayer = RunReplayer(tomli_w.dumps(to_tables(experiment)), timeline, returns=returns)
        stack.callback(replayer.close)
        missing = missing_beginning(timeline.dropped)
        verdicts = [_verdict(replayer, done, missing) for done in rounds]
    return Verification(tuple(verdicts), errors, algorithm, missing=missing)


def _verdict(replayer: RunReplayer, done: CommittedRound, missing: str) -> RoundVerdict:
    """Of one round, repeated; without the beginning none can be."""
    index = done.attempt.round_index
    if obstacle := missing or replayer.prepare_round(done):
        return RoundVerdict(index, 0, (), obstacle)
    consensus: dict[int, str] = {}
    if done.averaged is None:
        digests = replayer.replay_round(done)
    else:
        digests, consensus = replayer.replay_group_round(done)
    different = tuple(
        worker
        for worker, digest in sorted(digests.items())
        if digest != done.digests[worker]
        or consensus.get(worker, "") != done.consensus.get(worker, "")
    )
    return RoundVerdict(index, len(digests), different, replayer.unknown_inputs(done))


def _time_errors(rounds: list[CommittedRound]) -> FloatArray:
    """Of the simulator's rule with the measured times: t = max(compute + communication)."""
    measured = [done.compute_time + done.communication_time for done in rounds]
    predicted = np.array([float(np.nanmax(times, initial=0.0)) for times in measured])
    real = np.array([done.round_time for done in rounds])
    errors: FloatArray = np.abs(predicted - real) / np.maximum(real, 1e-9)
    return errors


def _repeatable_experiment(timeline: RunTimeline, folder: Path) -> Experiment:
    term = timeline.terms[0]
    if not (term.folder / RECORD_FILE).is_file():
        raise RunError(
            f"{term.folder}: there is no {RECORD_FILE} next to the history of {term.coordinator}",
            allowed="a folder as its coordinator wrote it",
            fix="copy the folder again with all its files",
        )
    with RunReader(term.folder) as reader:
        experiment = parse(reader.meta("experiment"), stored=True)
        asynchronous = bool(reader.meta("asynchronous"))
    if asynchronous:
        raise RunError(
            f"{folder}: a run of {experiment.algorithm.name} cannot be repeated from its record",
            allowed="a run of an algorithm with rounds",
            fix="nothing; an asynchronous run depends on when its swaps happened",
        )
    return experiment
