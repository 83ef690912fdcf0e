"""When a run ends (its rounds, its horizon, or `until`), and after which rounds it is tested."""

from __future__ import annotations

import numpy as np

from fedhp.config import EvaluationConfig, Experiment, UntilConfig
from fedhp.types import RoundRecord


def is_due(evaluation: EvaluationConfig, round_index: int, *, started: float, clock: float) -> bool:
    """Whether a round that lasted from `started` to `clock` is tested, though it is not the last:
    every so many rounds, or at the first end of a round at or after each multiple of `seconds`."""
    seconds = evaluation.seconds
    if seconds is None:
        return round_index % evaluation.every == 0
    return _multiples(clock, seconds) > _multiples(started, seconds)


def _multiples(clock: float, seconds: float) -> int:
    """How many multiples of these seconds have passed; a clock may be a rounding error early."""
    return int(clock / seconds * (1 + 1e-12) + 1e-9)


class StopCondition:
    """The last round of a run, as far as it is known. Without tests, `until` and the horizon do not
    count: a replay has the rounds of its record. by_middle: `until.accuracy` is what half of the
    workers have reached, not their mean, which one of them could move."""

    def __init__(self, experiment: Experiment, *, tested: bool, by_middle: bool = False) -> None:
        self._by_middle = by_middle
        self._until = experiment.until if tested else UntilConfig()
        self._horizon = experiment.horizon if tested else None
        self._round, self.bytes_sent = 0, 0
        self.last_round = experiment.rounds
        self.reason = ""  # which condition was reached; empty: none

    @property
    def needs_tests(self) -> bool:
        """Whether the tests of a round decide if there is another."""
        return self._until.accuracy is not None

    def resume(self, round_index: int, clock: float, sent: int, accuracy: float | None) -> None:
        """Continue after this round, with the bytes sent so far."""
        self._round, self.bytes_sent = round_index, sent
        self._check(round_index, clock, accuracy)

    def end(self, round_index: int, reason: str) -> None:
        """This round was the last one, for this reason."""
        self.last_round, self.reason = round_index, reason

    def is_last(self, record: RoundRecord) -> bool:
        """Whether the run ends after this round; it may be asked again with its tests."""
        if record.round_index > self._round:
            self._round = record.round_index
            self.bytes_sent += record.bytes_sent
        accuracy, tested = record.accuracy, record.evaluation
        if self._by_middle and tested is not None:
            accuracy = float(np.nanmedian(tested.accuracy))
        self._check(record.round_index, record.clock, accuracy)
        return record.round_index >= self.last_round

    def _check(self, round_index: int, clock: float, accuracy: float | None) -> None:
        until = self._until
        if self._horizon is not None and clock >= self._horizon:
            self.last_round = min(self.last_round, round_index)
        if until.accuracy is not None and accuracy is not None and accuracy >= until.accuracy:
            self.reason = f"until.accuracy = {until.accuracy:g} is reached ({accuracy:.4g})"
        elif until.clock is not None and clock >= until.clock:
            self.reason = f"until.clock = {until.clock:g} is reached ({clock:.6g} s)"
        elif until.bytes is not None and self.bytes_sent >= until.bytes:
            self.reason = f"until.bytes = {until.bytes} is reached ({self.bytes_sent} bytes)"
        else:
            return
        self.last_round = min(self.last_round, round_index)
