"""Which try at which round, and every form in which it is written down.

An attempt also names the version of the models that it made: a model version is the attempt
whose commit produced it. The wire calls such a version `Stand`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedhp.cluster.protocol import wire_pb2 as wire


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One try at a round; later ones are larger."""

    epoch: int
    round_index: int
    number: int  # from 1

    def __str__(self) -> str:
        return f"epoch {self.epoch}, round {self.round_index}, attempt {self.number}"

    @classmethod
    def from_wire(cls, named: wire.Stand | wire.Envelope | wire.BeatReply) -> Attempt:
        """What a message names: a model version, or the attempt that it is about."""
        return cls(named.epoch, named.round, named.attempt)

    def to_wire(self) -> wire.Stand:
        """As a model version in a message."""
        return wire.Stand(round=self.round_index, epoch=self.epoch, attempt=self.number)

    @classmethod
    def from_order(cls, order: wire.Order) -> Attempt:
        """What an order is about; an asynchronous turn is the only attempt of its kind."""
        if order.HasField("work"):
            return cls(order.epoch, order.work.round, order.work.attempt)
        if order.HasField("act"):
            return cls(order.epoch, order.act.round, 1)
        return cls.from_wire(order.committed)

    @classmethod
    def after(cls, committed: Attempt, *, epoch: int) -> Attempt:
        """What orders and calls outside of an attempt are about: this round is committed."""
        return cls(epoch, committed.round_index, 0)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Attempt:
        """The attempt of a history event."""
        return cls(int(facts["epoch"]), int(facts["round"]), int(facts["attempt"]))

    def to_facts(self) -> dict[str, int]:
        """As part of a history event, a log entry or a file's metadata."""
        return {"epoch": self.epoch, "round": self.round_index, "attempt": self.number}

    @classmethod
    def from_list(cls, numbers: Iterable[Any]) -> Attempt:
        """As to_list gave it, read back from JSON."""
        epoch, round_index, number = map(int, numbers)
        return cls(epoch, round_index, number)

    def to_list(self) -> list[int]:
        """Epoch, round and number, for JSON."""
        return [self.epoch, self.round_index, self.number]


INITIAL = Attempt(0, 0, 0)  # names the initial model, which every worker can make by itself
