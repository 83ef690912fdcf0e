"""A worker's membership in a run: its identity, the guard of its messages, phase and history."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedhp.cluster import events, failpoints
from fedhp.cluster.history import History, facts_of
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import BadModel
from fedhp.cluster.protocol.guard import (
    BAD_REASONS,
    Envelopes,
    Follower,
    Guard,
    Leadership,
    Refused,
    TicketChecker,
)
from fedhp.cluster.protocol.limits import LogThrottle
from fedhp.cluster.security.identity import Identity
from fedhp.cluster.security.leader_proof import check_proof
from fedhp.cluster.security.renewal import ExpiryWatch, RenewableIdentity
from fedhp.cluster.worker.model_store import stored_attempts
from fedhp.errors import IdentityError
from fedhp.files import PRIVATE_FILE, storage_errors, write_file

log = logging.getLogger("fedhp.worker")

# These fail points are reached within a stream (peer_server.py, peer_client.py), not on entering.
IN_STREAMS = ("sending", "receiving")
LEADER_FILE = "leader.json"


class WorkerSession:
    """What a worker knows of itself; `run` is empty and `worker` -1 before it has joined."""

    def __init__(
        self, identity: Identity, history: History, *, folder: Path, after: int = 0
    ) -> None:
        self.certificates = RenewableIdentity(identity)
        self.expiry = ExpiryWatch(self.certificates)
        self.name = identity.name
        self.history = history
        self.envelopes = Envelopes(identity.name, after=after)
        self.guard = Guard(run=None, quarantine=limits.PEER_QUARANTINE_SECONDS)
        self.leader = FollowedLeader(folder)
        self.tickets = TicketChecker()
        self._log_throttle = LogThrottle()
        self._readmitted: dict[str, tuple[int, int]] = {}  # epoch and count, by name
        self._pardoned: dict[str, tuple[int, int]] = {}  # likewise
        self.worker = -1
        self.workers = 0  # in the experiment, once it is known
        self.phase = "joining"
        self._phase_seconds: defaultdict[str, float] = defaultdict(float)  # in those before
        self._phase_since = time.monotonic()
        self.sent_bytes = 0  # of models and probes, to peers
        self.received_bytes = 0
        self.refused: Counter[str] = Counter()  # messages, by reason
        self.attempt = INITIAL  # the one in progress, or the last one

    @property
    def run(self) -> str:
        """The run that was joined."""
        return self.guard.run or ""

    def envelope(self, attempt: Attempt | None = None) -> wire.Envelope:
        """For a message about this attempt; by default the current one, in the current epoch."""
        subject = attempt or replace(self.attempt, epoch=self.guard.epoch)
        run = self.guard.run or ""
        return self.envelopes.make(run=run, attempt=subject, token=self.guard.token)

    def follow(self, reply: wire.JoinReply, *, nonce: bytes) -> None:
        """Follow the coordinator that a join reached, or raise Refused.

        nonce: of the join. Nothing of a reply is believed that no coordinator signed for it.
        """
        authority = self.certificates.current().authority
        try:
            address = check_proof(reply, authority=authority, caller=self.name, nonce=nonce)
        except IdentityError as error:
            raise Refused(
                "proof", f"the reply does not prove that a coordinator sent it: {error.problem}"
            ) from None
        self.leader.joined(reply)
        self.guard.obey(reply.epoch)
        self.guard.token = self.leader.follower.token
        self.tickets.key = reply.key
        log.info("follows", extra={"epoch": reply.epoch, "leader": address})

    def heard(self, reply: wire.BeatReply) -> None:
        """What a heartbeat says of other names, as the coordinator counts it: they belong to
        another process now, or the operator let them in again."""
        for name in _changed(self._readmitted, reply.readmitted, epoch=reply.epoch):
            self.guard.restart(name)
        for name in _changed(self._pardoned, reply.pardoned, epoch=reply.epoch):
            self.guard.pardon(name)

    def enter(self, phase: str) -> None:
        """Change the phase; in some of them a test lets the process die."""
        now = time.monotonic()
        self._phase_seconds[self.phase] += now - self._phase_since
        self.phase, self._phase_since = phase, now
        if phase in failpoints.WORKER_POINTS and phase not in IN_STREAMS:
            failpoints.reach(f"worker.{phase}", self.attempt.round_index)

    def seconds_by_phase(self) -> dict[str, float]:
        """How long this worker was in each phase so far."""
        elapsed = time.monotonic() - self._phase_since
        return {**self._phase_seconds, self.phase: self._phase_seconds[self.phase] + elapsed}

    def note(self, event: events.Event) -> None:
        """Write an event to the history and the log."""
        facts = facts_of(event)
        self.history.append(event.event, facts)
        log.info(event.event, extra=facts)

    def note_refusal(self, peer: str, error: Refused | BadModel, *, what: str) -> None:
        """Record a refused message; one that an honest peer never sends is a strike."""
        self.refused[error.reason] += 1
        bad = isinstance(error, BadModel) or error.reason in BAD_REASONS
        quarantined = self.guard.strike(peer, error.reason) if bad else False
        written, left_out = self._log_throttle.admit(peer, what, error.reason)
        if not written:
            return
        event = events.MessageRefused(
            peer, what, error.reason, quarantined, left_out=left_out or None
        )
        self.history.note(event)
        log.warning(event.event, extra={**facts_of(event), "why": str(error)})


def _changed(
    known: dict[str, tuple[int, int]], counts: Mapping[str, int], *, epoch: int
) -> list[str]:
    """The names whose count is another one than is known; it is known from now on."""
    changed = [name for name, count in counts.items() if known.get(name) != (epoch, count)]
    known.update((name, (epoch, counts[name])) for name in changed)
    return changed


class FollowedLeader:
    """The leader of the run that this worker joined last, kept on disk: a restarted worker is not
    led astray either."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / LEADER_FILE
        self._run, self.follower = "", Follower()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(self._file.read_bytes())
            epoch, token = int(known["epoch"]), bytes.fromhex(known["token"])
            # Of two stored models, the older one was committed; the other need not be.
            stored = stored_attempts(folder)
            committed = stored[0] if len(stored) > 1 else INITIAL
            self._run, self.follower = str(known["run"]), Follower(epoch, token, committed)

    def joined(self, reply: wire.JoinReply) -> None:
        """Follow the coordinator that answered, or raise Refused."""
        follower = self.follower if reply.run == self._run else Follower()
        known = (self._run, follower.epoch, follower.token)
        committed = follower.committed  # an older program does not say
        if reply.HasField("committed"):
            committed = Attempt.from_wire(reply.committed)
        follower.follow(
            tuple(map(Leadership.from_wire, reply.leaders)),
            epoch=reply.epoch,
            committed=committed,
        )
        self._run, self.follower = reply.run, follower
        if known != (self._run, follower.epoch, follower.token):
            facts = {"run": reply.run, "epoch": follower.epoch, "token": follower.token.hex()}
            with storage_errors(self._file, option="--state", recovery="start this worker again"):
                write_file(self._file, json.dumps(facts).encode(), mode=PRIVATE_FILE)
