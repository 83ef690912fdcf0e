"""The members of the run: they join, ask for orders, leave; who is there, and who may come back."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedhp import __version__
from fedhp.cluster import events
from fedhp.cluster.coordinator.attempts.attempts import Attempts
from fedhp.cluster.coordinator.conductor import Member, MemberStatus
from fedhp.cluster.coordinator.context import PUT_ASIDE, STOP_SECONDS, LeaderContext
from fedhp.cluster.coordinator.members.setup_checks import SetupChecks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Guard, Refused, new_key
from fedhp.cluster.protocol.setup import Setup, SetupPart, difference
from fedhp.cluster.protocol.versions import works_with
from fedhp.cluster.security.tls import AllowList

LOG = logging.getLogger("fedhp.coordinator")
BEATS_TO_PARDON = 2.5  # heartbeats until every worker has heard whom the operator allowed
NOT_ALLOWED = "it is no longer on the allow-list"
BY_OPERATOR = "the operator removed it"
FINGERPRINT_DIGITS = 16  # of SHA-256; all certificates come from one authority
MOST_REPLACED = 8  # certificates of one name that are remembered
ALLOW_LIST_SECONDS = 0.5  # between two looks at the allow-list
GONE_SECONDS = 0.1  # that the list of absent workers may be old
SETUP = "setup"  # key of a warning
GONE_FOR_GOOD = (
    MemberStatus.LEFT,
    MemberStatus.DEAD,
    MemberStatus.REMOVED,
    MemberStatus.QUARANTINED,
)


class NameBindings:
    """The certificates of all names in a run, and those that were replaced.

    A name is bound to the certificate that it first joined with. One that was issued later takes
    its place (a renewal, or another machine), any other one only after an operator has allowed it.
    """

    def __init__(self, packed: Mapping[str, Sequence[int | str]] | None = None) -> None:
        self._bound: dict[str, tuple[str, int]] = {}  # fingerprint, and when it became valid
        self._replaced: dict[str, tuple[str, ...]] = {}  # fingerprints by name, the last one first
        self._reopened: set[str] = set()  # names that an operator has allowed
        for name, (fingerprint, issued, *replaced) in (packed or {}).items():
            self._bound[name] = str(fingerprint), int(issued)
            self._replaced[name] = tuple(map(str, replaced))

    def pack(self) -> dict[str, list[int | str]]:
        """As JSON, for the next coordinator: fingerprint, time of issue, replaced ones."""
        return {
            name: [*bound, *self._replaced.get(name, ())]
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
        newer = shown[1] >= bound[1] or name in self._reopened
        if shown[0] in replaced or not newer:
            raise Refused(
                "certificate",
                f"the name {name} belongs to another certificate now, and the one shown is older; "
                f"to use the name here: fedhp certs issue {name} --replace, and copy both files",
            )
        self._reopened.discard(name)
        self._replaced[name] = (bound[0], *replaced)[:MOST_REPLACED]
        self._bound[name] = shown
        return True


@functools.lru_cache(maxsize=4096)
def _read(pem: bytes) -> tuple[str, int]:
    """Fingerprint, and when it became valid (s since 1970)."""
    certificate = x509.load_pem_x509_certificate(pem)  # TLS has accepted it
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()[:FINGERPRINT_DIGITS]
    return fingerprint, int(certificate.not_valid_before_utc.timestamp())


class Admission:
    """Lets names in, removes members and allows them again."""

    def __init__(
        self, context: LeaderContext, attempts: Attempts, guard: Guard, allowed: AllowList
    ) -> None:
        self._context, self._conductor = context, context.conductor
        self._attempts, committed = attempts, context.taken_over
        self.guard = guard
        self.allowed = allowed
        if allowed.names is None and committed.allowed is not None:
            LOG.info("no --allow is given: the allow-list of the last coordinator counts")
            self.allowed = AllowList(None, frozenset(committed.allowed))
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

    def remove(self, member: Member, why: str) -> None:
        """A member is out at once, and may not come back before it is allowed again."""
        self._conductor.remove(member, why)
        self._attempts.reachability.forget(member.worker)
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

    def named(self) -> dict[str, Any]:
        """For the ledger: all members, and those that an operator removed."""
        members = self._conductor.members.values()
        removed = sorted(member.name for member in members if member.removed == BY_OPERATOR)
        indices = tuple((member.worker, member.name) for member in members)
        return {"members": indices, "removed": tuple(removed)}

    def allow(self, member: Member, *, now: float) -> None:
        """A member may join, send and take part again, also from another machine."""
        self.guard.pardon(member.name)
        self.pardoned[member.name] = self.pardoned.get(member.name, 0) + 1
        # The other workers hear of it with their next heartbeat: its links are used after that.
        wait = BEATS_TO_PARDON * self._context.experiment.cluster.beat
        self.forgiven_at[member.worker] = now + wait
        self._attempts.groups.allow(member.worker)
        self._context.warnings.end(PUT_ASIDE, members=[member.name])
        self.bindings.reopen(member.name)
        self._expect_another_process(member.name)
        member.readmit()
        self._context.history.note(events.Allowed(member.worker))
        self._change_removals()
        self._bar()
        self._context.round_loop.notify()
        self._context.waiting.wake([member.worker])

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


class Members:
    """Who is a member, what each of them has, and who knows that the run is over."""

    def __init__(
        self,
        context: LeaderContext,
        attempts: Attempts,
        admission: Admission,
        setups: SetupChecks,
    ) -> None:
        self._context, self._conductor, self._phase = context, context.conductor, context.phase
        self._planning, self._attempts, self._admission = attempts.planning, attempts, admission
        self.setups = setups
        # Workers that said that they know of the end.
        self.informed = set(context.taken_over.informed)
        self._dismissed = set[int]()  # workers that got their last order
        self._drained_at: dict[int, float] = {}  # when the operator said so, by worker
        self._looked_at = 0.0  # when the allow-list was read last
        self._gone: tuple[float, list[int]] = (float("-inf"), [])  # as of when, and who

    # --- joining and asking ----------------------------------------------------------------

    def join(self, name: str, request: wire.JoinRequest, *, now: float) -> Member:
        """A worker joins, for the first time or again; Refused if it cannot."""
        if not works_with(request.fedhp):
            raise Refused(
                "version",
                f"the worker has fedhp {request.fedhp}, the coordinator {__version__}; a release "
                "works with itself, the one before and the one after: update the older one",
            )
        setup = Setup.from_wire(request.setup) if request.HasField("setup") else None
        if setup is not None and (why := difference(setup.parts, self.setups.reference)):
            raise self._setup_refused(name, why)
        incarnation = request.envelope.incarnation
        self._admission.replace_process(name, incarnation)
        restarted = self._conductor.loses_report(name, incarnation=incarnation)
        before = self._conductor.by_name.get(name)
        replaced = before is not None and not before.left and incarnation != before.incarnation
        member = self._conductor.join(
            name,
            request.address,
            incarnation=incarnation,
            models=tuple(map(Attempt.from_wire, request.stands)),
            # A new process is not ready before it has timed a step.
            step_time=request.step_time if request.step_time > 0 else float("nan"),
            now=now,
        )
        if replaced:
            self._attempts.reachability.replaced(member)
        self._attempts.reachability.forget(member.worker)
        self._attempts.work.restarted(member.worker)
        self._drained_at.pop(member.worker, None)
        self._dismissed.discard(member.worker)
        # The same for the whole epoch: tickets for its peers are under way.
        self._attempts.work.keys.setdefault(name, new_key())
        self._planning.note_samples(member.worker, request.samples)
        self._context.warnings.end(SETUP, members=[name])
        self.setups.forget(member.worker)
        self.setups.refused.discard(name)
        if setup is not None:
            self._note_setup(member, setup)
        self._context.history.note(events.Joined(member.worker, name))
        LOG.info("%s joined as worker %d", name, member.worker)
        if restarted:
            self._context.missed(member, "it joined again during a round")
        if request.fedhp != __version__:
            LOG.warning("%s has fedhp %s, not %s: update it", name, request.fedhp, __version__)
        self._context.round_loop.notify()
        if self._conductor.holds(member):
            self._context.waiting.wake_without_model()
        return member

    def poll(self, member: Member, request: wire.NextRequest, *, now: float) -> None:
        """A member asks for an order, and says what it has and has measured. A member that only
        asks again wakes nobody."""
        notify, models = (
            self._context.round_loop.notify,
            tuple(map(Attempt.from_wire, request.stands)),
        )
        # What it says of its steps counts before its first report, and after a report that was not
        # counted; then it cannot have been slower than the time since its order. 0: not measured.
        step_time, given = request.step_time, self._attempts.work.given.get(member.worker)
        if math.isfinite(member.step_time):
            slowest = (now - given[0]) / max(given[1], 1) if member.misses and given else 0.0
            step_time = min(step_time, slowest)
        held_before = models == member.models
        quiet = now - member.seen > self._context.experiment.cluster.suspect_after
        if not held_before or quiet or (step_time > 0 and step_time != member.step_time):
            notify()
        member.models, member.seen = models, now
        if step_time > 0:
            member.step_time = step_time
        waiting, sizes = self._context.waiting, self._planning.model_sizes
        if waiting.without_model and not held_before and self._conductor.holds(member):
            waiting.wake_without_model()
        if request.model_bytes and member.worker not in sizes:
            sizes[member.worker] = request.model_bytes
            notify()
        self._planning.note_samples(member.worker, request.samples)
        if request.HasField("setup"):
            self._note_setup(member, Setup.from_wire(request.setup))
        if request.surveyed and (survey := self._planning.survey) is not None:
            survey.add(member.worker, request.surveyed)
            coming = self._context.round_index + 1
            self._attempts.reachability.tried(member, request.surveyed, coming, now=now)
            notify()

    # --- what they have --------------------------------------------------------------------

    def _note_setup(self, member: Member, setup: Setup) -> None:
        """What a member is going to train; what it differs in is refused with its next order."""
        self.setups.say(member.worker, setup)
        self._context.history.note(events.SetupNoted(member.worker, setup.private))
        if setup.private:
            LOG.info("%s trains on its own samples (--data)", member.name)
        self._context.record.note(private=sorted(self.setups.private))
        self._context.round_loop.notify()

    def check_setup(self, member: Member) -> None:
        """Refuse a member whose data, modules or model are not those of the run."""
        record = self._context.record
        if why := self.setups.differing.get(member.worker):
            self.setups.forget(member.worker)
            self.setups.private.discard(member.worker)
            refusal = self._setup_refused(member.name, why)
            self._planning.forget(member.worker)
            record.note(private=sorted(self.setups.private))
            self.leave(member, "its setup is not that of the run")
            raise refusal
        if self.setups.scaling is None and (scaling := self.setups.find_scaling()):
            record.note(scaling=dict(zip(("mean", "deviation"), map(list, scaling), strict=True)))

    def _setup_refused(self, name: str, why: str) -> Refused:
        self.setups.refused.add(name)
        text = f"{name} is refused: {why}"
        self._context.warnings.set(SETUP, members=[name], value=1.0, text=text)
        return Refused("setup", why)

    def own_setup_known(self, parts: Sequence[SetupPart]) -> None:
        """What this machine has itself, with which the workers are compared."""
        self.setups.take_own(parts)
        self._context.round_loop.notify()
        self._context.waiting.wake_all()

    # --- leaving ---------------------------------------------------------------------------

    def leave(self, member: Member, why: str) -> None:
        """A member leaves by its own decision."""
        self._gone_away(member)
        self._context.history.note(events.Left(member.worker, why))
        LOG.info("%s left: %s", member.name, why)
        self._context.round_loop.notify()

    def _gone_away(self, member: Member) -> None:
        member.left = True
        self._attempts.reachability.forget(member.worker)

    def dismiss(self, member: Member) -> None:
        """A member gets the order that it has finished. At the end of the run it stays a member
        until it says that the order arrived: one that did not get it asks again."""
        if member.worker not in self._dismissed:
            self._dismissed.add(member.worker)
            self._context.history.note(events.Dismissed(member.worker))
        if not self._phase.is_finished:
            self._gone_away(member)

    def was_dismissed(self, member: Member) -> bool:
        """Whether a member got its last order since it joined, if not from this coordinator."""
        return member.worker in self._dismissed or self._phase.is_finished

    def finished(self, member: Member) -> None:
        """A member has carried out its last order, and ends."""
        self._gone_away(member)
        if self._phase.is_finished:
            self.informed.add(member.worker)
        self._context.round_loop.notify()

    def drain(self, member: Member, *, now: float) -> None:
        """A member is to leave after its present round, or in a few seconds if that takes longer;
        the rounds of the others go on."""
        member.draining = True
        self._drained_at.setdefault(member.worker, now)
        self._context.history.note(events.Drained(member.worker))
        self._context.round_loop.notify()
        self._context.waiting.wake([member.worker])

    def must_leave(self, member: Member) -> bool:
        """Whether a member should give up what it does and ask for its next order."""
        asynchronous = self._context.asynchronous
        if self._phase.is_finished:
            return not asynchronous or bool(self._phase.stopping)
        ordered = member.worker in self._attempts.work.orders
        return member.draining and not asynchronous and not ordered

    # --- who is there ----------------------------------------------------------------------

    def supervise(self, now: float) -> None:
        """What has to happen soon although nobody calls: the allow-list may have changed, and
        members that leave are waited for no longer than a few seconds. Logs who is silent."""
        for worker, since in list(self._drained_at.items()):
            if now - since > STOP_SECONDS:
                del self._drained_at[worker]
                self._attempts.work.orders.pop(worker, None)
                if self._conductor.release(self._conductor.members[worker]):
                    self._context.history.note(events.Released(worker))
                    self._context.round_loop.notify()
        for worker, when in list(self._admission.forgiven_at.items()):
            if now >= when:
                del self._admission.forgiven_at[worker]
                self._attempts.reachability.forget(worker)
                self._attempts.groups.blame.forgive(worker)
        if now - self._looked_at > ALLOW_LIST_SECONDS:
            self._looked_at = now
            self._attempts.reachability.watch(now)
            self._admission.follow_allow_list()

    def ready(self, now: float, *, without: Sequence[int]) -> list[int]:
        """Workers that can take part in the next attempt, without some."""
        setups = self.setups
        doubted = setups.awaits_own or bool(setups.differing)
        return [
            member.worker
            for member in self._conductor.ready(now)
            if math.isfinite(member.step_time)
            and self._planning.has_usual_model(member)
            and not (doubted and not setups.is_agreed(member.worker))
            and member.worker not in without
        ]

    def wake_behind(self) -> None:
        """Wake the members that wait for a model that somebody may have now."""
        members, waiting = self._conductor.members, self._context.waiting
        waiting.wake(
            worker for worker in waiting.workers() if not self._conductor.holds(members[worker])
        )

    def status_of(self, member: Member, *, now: float) -> MemberStatus:
        """Whether a member can take part now."""
        if self._admission.guard.is_quarantined(member.name):
            return MemberStatus.QUARANTINED
        return self._conductor.status(member, now)

    def expected_back(self, now: float) -> list[Member]:
        """Members that may still call: neither gone for good nor silent for too long."""
        members = self._conductor.members.values()
        return [
            member for member in members if self.status_of(member, now=now) not in GONE_FOR_GOOD
        ]

    def uninformed(self) -> list[Member]:
        """Members that do not know yet that the run is over, wherever they are."""
        members = self._conductor.members.values()
        return [
            member
            for member in members
            if member.worker not in self.informed and not member.removed
        ]

    def gone(self, now: float) -> list[int]:
        """Workers that nobody should wait for, as of a moment ago: every heartbeat asks."""
        conductor, running = self._conductor, self._conductor.running
        if now - self._gone[0] > GONE_SECONDS:
            gone = [
                worker
                for worker, member in conductor.members.items()
                if not conductor.is_alive(member, now)
                or (member.draining and running and worker not in running.participants)
            ]
            self._gone = now, gone
        return self._gone[1]
