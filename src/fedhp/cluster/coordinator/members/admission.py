"""Who may take part: certificates, the allow-list, and the members that an operator removed."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedhp.cluster import events
from fedhp.cluster.coordinator.attempts.attempts import Attempts
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.reachability import Reachability
from fedhp.cluster.protocol.guard import Guard, Refused
from fedhp.cluster.security.tls import AllowList

LOG = logging.getLogger("fedhp.coordinator")
BEATS_TO_PARDON = 2.5  # heartbeats until every worker has heard whom the operator allowed
NOT_ALLOWED = "it is no longer on the allow-list"
BY_OPERATOR = "the operator removed it"
FINGERPRINT_DIGITS = 16  # of SHA-256; all certificates come from one authority
MOST_REPLACED = 8  # certificates of one name that are remembered


@dataclass(frozen=True, slots=True)
class BoundCertificate:
    fingerprint: str
    issued: int  # s since 1970, when it became valid


class NameBindings:
    """The certificates of all names in a run, and those that were replaced.

    A name is bound to the certificate that it first joined with. One that was issued later takes
    its place (a renewal, or another machine), any other one only after an operator has allowed it.
    """

    def __init__(self, packed: Mapping[str, Sequence[int | str]] | None = None) -> None:
        self._bound: dict[str, BoundCertificate] = {}
        self._replaced: dict[str, tuple[str, ...]] = {}  # fingerprints by name, the last one first
        self._reopened: set[str] = set()  # names that an operator has allowed
        for name, (fingerprint, issued, *replaced) in (packed or {}).items():
            self._bound[name] = BoundCertificate(str(fingerprint), int(issued))
            self._replaced[name] = tuple(map(str, replaced))

    def pack(self) -> dict[str, list[int | str]]:
        """As JSON, for the next coordinator: fingerprint, time of issue, replaced ones."""
        return {
            name: [bound.fingerprint, bound.issued, *self._replaced.get(name, ())]
            for name, bound in sorted(self._bound.items())
        }

    def reopen(self, name: str) -> None:
        """An operator allows the name: the next other certificate gets it, whatever its age."""
        self._reopened.add(name)

    def admit(self, name: str, pem: bytes) -> bool:
        """Accept the certificate of a caller, or raise Refused; whether it replaces another."""
        shown, bound = _read(pem), self._bound.get(name)
        if bound is None or bound == shown:
            self._bound[name] = shown
            return False
        replaced = self._replaced.get(name, ())
        newer = shown.issued >= bound.issued or name in self._reopened
        if shown.fingerprint in replaced or not newer:
            raise Refused(
                "certificate",
                f"the name {name} belongs to another certificate now, and the one shown is older; "
                f"to use the name here: fedhp certs issue {name} --replace, and copy both files",
            )
        self._reopened.discard(name)
        self._replaced[name] = (bound.fingerprint, *replaced)[:MOST_REPLACED]
        self._bound[name] = shown
        return True


@functools.lru_cache(maxsize=4096)
def _read(pem: bytes) -> BoundCertificate:
    certificate = x509.load_pem_x509_certificate(pem)  # TLS has accepted it
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()[:FINGERPRINT_DIGITS]
    return BoundCertificate(fingerprint, int(certificate.not_valid_before_utc.timestamp()))


class Admission:
    """Lets names in, removes members and allows them again."""

    def __init__(
        self,
        context: LeaderContext,
        committed: CommittedState,
        *,
        allowed: AllowList,
        guard: Guard,
        attempts: Attempts,
        reachability: Reachability,
    ) -> None:
        self._context, self._conductor = context, context.conductor
        self._attempts, self._reachability = attempts, reachability
        self.guard = guard
        self.allowed = allowed
        if allowed.names is None and committed.allowed is not None:
            LOG.info("no --allow is given: the allow-list of the last coordinator counts")
            self.allowed = AllowList.of(committed.allowed)
        self.bindings = NameBindings(committed.certificates)
        self.removals_changed, self.removals_committed = asyncio.Event(), asyncio.Event()
        self.readmitted: dict[str, int] = {}  # how often a name went to another process, by name
        self.pardoned: dict[str, int] = {}  # how often the operator let a name in again
        self.barred: tuple[str, ...] = ()  # names whose calls nobody should accept
        self._replaceable: set[str] = set()  # names whose next process need not be a later one
        self.forgiven_at: dict[int, float] = {}  # when allowed members' links may be used

    def certificate_shown(self, name: str, pem: bytes) -> None:
        """A worker calls with this certificate; Refused if another one has its name now."""
        if pem and self.bindings.admit(name, pem):
            self._expect_another_process(name)
            self._context.history.note(events.NewCertificate(name))
            LOG.info("%s has a new certificate; the one before is refused from now on", name)

    def _expect_another_process(self, name: str) -> None:
        self.guard.restart(name)
        self._replaceable.add(name)

    def replace_process(self, name: str, incarnation: int) -> None:
        """Let a process of another machine join whose clock is behind, and tell the peers."""
        member = self._conductor.by_name.get(name)
        if name not in self._replaceable or member is None or member.removed:
            return
        self._replaceable.discard(name)
        if incarnation < member.incarnation:
            member.incarnation = 0  # its processes need not be later by the clock of that machine
            self.readmitted[name] = self.readmitted.get(name, 0) + 1

    def call_refused(self, name: str, why: str) -> None:
        """A call was refused; for the history, which gets as many as the log."""
        self._context.history.note(events.CallRefused(name, why))

    def quarantined(self, name: str) -> None:
        """The guard refuses everything of this caller from now on."""
        member = self._conductor.by_name.get(name)
        worker = None if member is None else member.worker
        self._context.history.note(events.Quarantined(name, worker))

    def remove(self, member: Member, why: str) -> None:
        """A member is out at once, and may not come back before it is allowed again."""
        self._conductor.remove(member, why)
        self._reachability.forget(member.worker)
        self._attempts.work.withdraw(member.worker)
        self._context.history.note(events.Removed(member.worker, why))
        LOG.warning("%s is removed: %s", member.name, why)
        if why == BY_OPERATOR:
            self._change_removals()
        self._bar()
        self._context.round_loop.notify()
        self._context.waiting.wake([member.worker])

    def _change_removals(self) -> None:
        self.removals_committed.clear()
        self.removals_changed.set()

    def removed_names(self) -> tuple[str, ...]:
        """The members that an operator removed, for the ledger."""
        members = self._conductor.members.values()
        return tuple(sorted(member.name for member in members if member.removed == BY_OPERATOR))

    def allow(self, member: Member, *, now: float) -> None:
        """A member may join, send and take part again, also from another machine."""
        self.guard.pardon(member.name)
        self.pardoned[member.name] = self.pardoned.get(member.name, 0) + 1
        # The other workers hear of it with their next heartbeat: its links are used after that.
        wait = BEATS_TO_PARDON * self._context.experiment.cluster.beat
        self.forgiven_at[member.worker] = now + wait
        self._attempts.groups.allow(member.worker)
        self._attempts.suspensions.end_warning(member)
        self.bindings.reopen(member.name)
        self._expect_another_process(member.name)
        member.readmit()
        self._context.history.note(events.Allowed(member.worker))
        self._change_removals()
        self._bar()
        self._context.round_loop.notify()
        self._context.waiting.wake([member.worker])

    def forgive(self, now: float) -> None:
        """The links of members that were allowed a while ago may be used again."""
        for worker, when in list(self.forgiven_at.items()):
            if now >= when:
                del self.forgiven_at[worker]
                self._reachability.forget(worker)
                self._attempts.groups.forgive(worker)

    def follow_allow_list(self) -> None:
        """Remove the members that are not on it any more; let others join again."""
        for member in self._conductor.members.values():
            allowed = not self.allowed.refusal(member.name)
            if not allowed and not member.removed:
                self.remove(member, NOT_ALLOWED)
            elif allowed and member.removed == NOT_ALLOWED:
                member.readmit()
        self._bar()

    def _bar(self) -> None:
        names = {member.name for member in self._conductor.members.values() if member.removed}
        self.barred = tuple(sorted(names | self.guard.quarantined()))
