"""What the run is doing, why, and when it ends: waiting, running, paused, stopping, finished."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.engine.testing import StopCondition

STOP_SECONDS = 3.0  # that a running round has to end, once the run or a member is to stop


class Phase(StrEnum):
    """What a coordinator is doing, in the words that operators see."""

    WAITING = "waiting"  # for the lead
    STARTING = "starting"  # it leads, and is about to prove that with a first commit
    GATHERING = "gathering"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


class RunPhase:
    """The phase of a run, and the conditions that end it."""

    def __init__(self, committed: CommittedState) -> None:
        self.current, self.why = Phase.STARTING, ""
        self.stopping = committed.stopped  # why an operator ends the run
        self.stop_requested, self.stop_committed = asyncio.Event(), asyncio.Event()
        self.has_begun = False  # a round under this coordinator
        self.interrupted: Phase | None = None  # what it did before nothing could be written
        self._rounds = committed.experiment.rounds
        self.stop_condition = StopCondition(committed.experiment, tested=True, by_middle=True)
        last = committed.attempt.round_index
        self.stop_condition.resume(last, 0.0, committed.bytes_sent, None)
        if committed.ended:
            self.stop_condition.end(last, committed.ended)

    def start(self) -> None:
        """The lead is proven; workers may come."""
        self.current = Phase.GATHERING

    def wait_for_workers(self, why: str, *, round_index: int) -> None:
        """Too few workers are ready for the attempt after this round."""
        self.current = Phase.GATHERING if round_index == 0 else Phase.PAUSED
        self.why = why

    def pause(self, why: str) -> None:
        """Nothing can be written or committed at the moment."""
        if self.interrupted is None:
            self.interrupted = self.current
        self.current, self.why = Phase.PAUSED, why

    def resume(self) -> None:
        """Something was written: continue where the pause, if there was one, began."""
        self.current, self.why = self.interrupted or self.current, ""
        self.interrupted = None

    def stop(self, why: str) -> None:
        """End the run after its present round, or in a few seconds if that takes longer."""
        self.stopping = why
        self.stop_requested.set()

    @property
    def is_finished(self) -> bool:
        """Whether the run is over."""
        return self.current is Phase.FINISHED

    def has_all_rounds(self, round_index: int) -> bool:
        """Whether no round follows this one, by the experiment or a condition of it."""
        return round_index >= self.stop_condition.last_round

    def finish(self, round_index: int) -> None:
        """The run ends after this round: with all its rounds, by a condition, or stopped."""
        self.current, self.interrupted = Phase.FINISHED, None
        self.why = self.stop_condition.reason or f"all {self._rounds} rounds are done"
        if self.stopping and not self.has_all_rounds(round_index):
            self.why = self.stopping
