"""Rounds of group averages to which everyone can go back together, and when they have to.

A member can add something to an average that ruins the model of all. Workers keep a few earlier
versions of their own; the coordinator keeps what it planned with then, and decides by the losses
of most workers, never by those of one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from fedhp.cluster.coordinator.committed_state import Norms, norms_of, versions_of
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt

KEPT = 2  # checkpoints
EVERY = 5  # rounds from one to the next
FIRST_ROUNDS = 5  # whose losses say how large a loss is at first
EXPLODED = 5.0  # so many times as large as at first; in honest runs it is smaller than at first


@dataclass(frozen=True, slots=True)
class GroupCheckpoint:
    """What everyone continues from after a return to this round."""

    attempt: Attempt
    versions: dict[int, Attempt]  # of each worker's models
    norms: Norms
    plan: bytes  # what the algorithm keeps between rounds

    def to_facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "attempt": self.attempt.to_list(),
            "versions": {worker: each.to_list() for worker, each in self.versions.items()},
            "norms": self.norms,
            "plan": base64.b64encode(self.plan).decode(),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> GroupCheckpoint:
        """As to_facts gave it."""
        return cls(
            Attempt.from_list(facts["attempt"]),
            versions_of(facts["versions"]),
            norms_of(facts["norms"]),
            base64.b64decode(facts["plan"]),
        )


class Checkpoints:
    """The rounds to which the run can go back, and the losses that decide."""

    def __init__(self, facts: Mapping[str, Any] | None = None) -> None:
        facts = facts or {}
        self._kept = [GroupCheckpoint.from_facts(each) for each in facts.get("kept", ())]
        self._first_losses: list[float] = [float(loss) for loss in facts.get("losses", ())]
        # To which the next round goes back, and to which the last return went.
        self.returned, self._used = (
            Attempt.from_list(facts[key]) if facts.get(key) else None
            for key in ("returned", "used")
        )
        self.returns = int(facts.get("returns", 0))  # so far

    def pack(self) -> dict[str, Any]:
        """For the committed state."""
        return {
            "kept": [each.to_facts() for each in self._kept],
            "losses": self._first_losses,
            "returned": None if self.returned is None else self.returned.to_list(),
            "used": None if self._used is None else self._used.to_list(),
            "returns": self.returns,
        }

    def versions_of(self, worker: int) -> list[Attempt]:
        """What a worker has to keep of its models."""
        versions = {each.versions.get(worker, INITIAL) for each in self._kept}
        return sorted(versions - {INITIAL})

    def explode(self, reports: Mapping[int, wire.RoundReport]) -> bool:
        """Whether most losses of a round are far larger than at first."""
        losses = [report.train_loss for report in reports.values() if report.steps]
        limit = EXPLODED * max(self._first_losses, default=0.0)
        if len(self._first_losses) < FIRST_ROUNDS or limit <= 0:
            return False
        return 2 * sum(loss > limit for loss in losses) > len(losses)

    def round_ended(
        self, reports: Mapping[int, wire.RoundReport], checkpoint: GroupCheckpoint
    ) -> None:
        """A round is about to be committed, and its losses are as they should be."""
        self.returned = None
        losses = [report.train_loss for report in reports.values() if report.steps]
        if losses and len(self._first_losses) < FIRST_ROUNDS:
            self._first_losses.append(median(losses))
        last = self._kept[-1].attempt.round_index if self._kept else -EVERY
        if checkpoint.attempt.round_index >= last + EVERY:
            self._kept = [*self._kept, checkpoint][-KEPT:]

    def go_back(self) -> GroupCheckpoint | None:
        """The newest checkpoint; the one before it, if that is where the last return went to and
        nothing was kept since. None: there is none yet."""
        if not self._kept:
            return None
        if len(self._kept) > 1 and self._kept[-1].attempt == self._used:
            self._kept.pop()
        checkpoint = self._kept[-1]
        self.returned = self._used = checkpoint.attempt
        self.returns += 1
        return checkpoint
