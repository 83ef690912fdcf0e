"""This worker in its run: its name and place, what it has seen, and what it says of itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedhp.cluster import failpoints
from fedhp.cluster.history import History
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import BadModel
from fedhp.cluster.protocol.guard import BAD, Envelopes, Guard, Refused
from fedhp.cluster.security.identity import Identity

log = logging.getLogger("fedhp.worker")

WORKERS = frozenset({"worker"})
# Reached within a stream, not when the worker turns to it: see peers.py and pulls.py.
IN_STREAMS = ("sending", "receiving")


class WorkerSession:
    """Who this worker is; `run` is empty and `worker` -1 before it has joined."""

    def __init__(self, identity: Identity, history: History, *, after: int = 0) -> None:
        self.identity = identity
        self.name = identity.name
        self.history = history
        self.envelopes = Envelopes(identity.name, after=after)
        self.guard = Guard(run=None)
        self.worker = -1
        self.workers = 0  # of the experiment, once it is known
        self.phase = "joining"
        self.attempt = INITIAL  # the one that is worked on, or was last

    @property
    def run(self) -> str:
        """The run that was joined."""
        return self.guard.run or ""

    def envelope(self, attempt: Attempt | None = None) -> wire.Envelope:
        """For a message about this attempt, by default the current one, in the obeyed epoch."""
        about = attempt or replace(self.attempt, epoch=self.guard.epoch)
        return self.envelopes.make(run=self.run, attempt=about)

    def enter(self, phase: str) -> None:
        """Be in a phase from now on; some of them are places where a test lets a process die."""
        self.phase = phase
        if phase in failpoints.WORKER and phase not in IN_STREAMS:
            failpoints.reach(f"worker.{phase}", self.attempt.round_index)

    def note(self, event: str, facts: Mapping[str, Any]) -> None:
        """Into the history and the log."""
        self.history.note(event, facts)
        log.info(event, extra=dict(facts))

    def refused(self, peer: str, error: Refused | BadModel, *, what: str) -> None:
        """A message was refused: kept, and a strike where an honest peer never sends such."""
        bad = isinstance(error, BadModel) or error.reason in BAD
        shut_out = self.guard.strike(peer, error.reason) if bad else False
        facts = {"peer": peer, "what": what, "reason": error.reason, "quarantined": shut_out}
        self.history.note("refused", facts)
        log.warning("refused", extra={**facts, "why": str(error)})
