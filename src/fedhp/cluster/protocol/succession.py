"""The line of leaders of a run: which coordinator may follow which.

Every epoch has a random token, and every leader knows the epochs before its own. A run folder that
was copied begins a second line: its leaders have other tokens, or lack rounds that were committed.
A worker follows one line and refuses any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Refused

TOKEN_BYTES = 16
LONGEST_LINE = 1000  # leaders that are remembered
COPY = "it leads from a copy or an old backup of the run's state, next to the real coordinator"


@dataclass(frozen=True, slots=True)
class Leadership:
    """One leader: its epoch, its token, and the committed attempt from which it began."""

    epoch: int
    token: bytes
    start: Attempt

    def to_wire(self) -> wire.Leadership:
        """As part of a message."""
        return wire.Leadership(epoch=self.epoch, token=self.token, start=self.start.to_wire())

    @classmethod
    def from_wire(cls, message: wire.Leadership) -> Leadership:
        """As a message names it."""
        return cls(message.epoch, message.token, Attempt.from_wire(message.start))

    def to_list(self) -> list[Any]:
        """For JSON."""
        return [self.epoch, self.token.hex(), *self.start.to_list()]

    @classmethod
    def from_list(cls, values: Iterable[Any]) -> Leadership:
        """As to_list gave it."""
        epoch, token, *start = values
        return cls(int(epoch), bytes.fromhex(token), Attempt.from_list(start))


Line = tuple[Leadership, ...]  # the oldest first; the last one leads


def extended(line: Line, epoch: int, *, start: Attempt) -> Line:
    """The line with a new leader at its end, who has a new token."""
    return (*line, Leadership(epoch, secrets.token_bytes(TOKEN_BYTES), start))[-LONGEST_LINE:]


def check_line(line: Sequence[wire.Leadership], *, epoch: int) -> None:
    """The line of leaders in a reply of this epoch; an empty one comes from an older program."""
    if len(line) > LONGEST_LINE:
        raise Refused("size", f"the reply names {len(line)} leaders, at most {LONGEST_LINE}")
    for leader in line:
        check_token(leader.token)
        if not leader.token:
            raise Refused("missing", "a leader in the reply has no token")
    epochs = [leader.epoch for leader in line]
    if epochs and (epochs != sorted(set(epochs)) or epochs[-1] != epoch):
        raise Refused("order", "the epochs of the leaders do not rise to that of the reply")


def check_token(token: bytes) -> None:
    """A leader's token, or none."""
    if len(token) not in (0, TOKEN_BYTES):
        raise Refused("size", f"a leader's token has {len(token)} bytes, not {TOKEN_BYTES}")


class Follower:
    """What a worker knows of the line that it follows: the last leader, the last commit."""

    def __init__(self, epoch: int = 0, token: bytes = b"", committed: Attempt = INITIAL) -> None:
        self.epoch, self.token, self.committed = epoch, token, committed

    def follow(self, line: Line, *, epoch: int, committed: Attempt) -> None:
        """Follow this leader from now on; Refused if it is not of the same line."""
        if epoch < self.epoch:
            raise Refused(
                "epoch",
                f"the coordinator has epoch {epoch}, but this worker follows epoch {self.epoch}",
            )
        if self.token:
            self._check_line(line, epoch=epoch)
        if committed.round_index < self.committed.round_index:
            raise Refused(
                "epoch",
                f"the coordinator of epoch {epoch} has committed round {committed.round_index}, "
                f"but this worker has seen round {self.committed.round_index}: {COPY}",
            )
        self.epoch, self.token = epoch, line[-1].token if line else b""
        self.saw_commit(committed)

    def check_reply(self, epoch: int, token: bytes) -> None:
        """A later reply must come from the leader that this worker follows."""
        if self.token and (epoch, token) != (self.epoch, self.token):
            raise Refused("epoch", self._other_leader(epoch))

    def saw_commit(self, committed: Attempt) -> None:
        """The leader says that this attempt is committed."""
        self.committed = max(self.committed, committed)

    def _check_line(self, line: Line, *, epoch: int) -> None:
        tokens = {leader.epoch: leader.token for leader in line}
        if tokens.get(self.epoch) != self.token:
            raise Refused("epoch", self._other_leader(epoch))
        later = [leader for leader in line if leader.epoch > self.epoch]
        if later and later[0].start < self.committed:
            raise Refused(
                "epoch",
                f"the coordinator of epoch {later[0].epoch} began after {later[0].start}, but this "
                f"worker has seen the commit of {self.committed}: {COPY}",
            )

    def _other_leader(self, epoch: int) -> str:
        if epoch == self.epoch:
            return f"another coordinator also has epoch {epoch}: {COPY}"
        return (
            f"the coordinator of epoch {epoch} does not know the one of epoch {self.epoch}, which "
            f"this worker follows: {COPY}"
        )
