"""An operator's calls to the coordinator that leads: status, stop, drain, remove and allow.

With several coordinators the leader is found: a standby says who leads, and so does etcd. While
another one takes over, a call is tried again for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fedhp.cluster.coordinator.process.announcements import (
    ANNOUNCEMENT,
    STANDBY_ANNOUNCEMENT,
    Announcement,
    read_announcement,
)
from fedhp.cluster.coordinator.process.finders import leader_in_etcd
from fedhp.cluster.coordinator.process.standby import read_refusal
from fedhp.cluster.ledger.base import RunStopped
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Envelopes, Refused
from fedhp.cluster.protocol.message_checks import (
    check_fields,
    check_status_reply,
    one_line,
)
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security.identity import Identity, load_identity
from fedhp.cluster.security.tls import cause_of, open_channel
from fedhp.errors import FedhpError, RunError
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE

OPERATOR_NAME = "operator"  # the name that `fedhp cluster up` issues
CERTIFICATES = "certs"  # below the folder of a run
CALL_TRIES = 3  # another operator of the same name may call at the same moment
TAKEOVER_SECONDS = 30.0  # for another coordinator to take over: a lease, and a restart
TAKEOVER_PAUSE = 1.0  # s until the coordinators are asked again

_NOT_REACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Where a coordinator may be, which leads or stands by."""

    address: str
    name: str | None = None  # None: any coordinator

    def __str__(self) -> str:
        return self.address if self.name is None else f"{self.name} at {self.address}"


@dataclass(frozen=True, slots=True)
class Target:
    """The coordinators that an operator calls, and the operator's own name."""

    address: str  # of the one that is asked first; empty with etcd
    certificates: Path
    name: str = OPERATOR_NAME
    coordinator: str | None = None  # its name; None: any coordinator
    others: tuple[CoordinatorAddress, ...] = ()  # asked if that one does not answer
    etcd: str | None = None  # where to look up who leads, instead of the addresses
    insecure_etcd: bool = False
    run: str = ""  # that is meant, or the first digits of its name; empty: not known


MEMBER_FACTS = (
    *("worker", "name", "address", "status", "phase", "round", "silent_seconds", "step_time"),
    *("local_steps", "accuracy"),
)
SILENCE_FACTS = ("name", "address", "status", "silent_seconds")


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    reply: wire.StatusReply
    leader: CoordinatorAddress


class _DoesNotLead(Exception):
    """Why a coordinator did not answer as the leader; of a standby also what it said."""


class _NobodyLeads(Exception):
    """Nobody answered as the leader (why), and whether another one may be about to take over."""


def target_of(
    folder: Path, *, certificates: Path | None = None, name: str = OPERATOR_NAME
) -> Target:
    """The coordinators that write into a folder, or into one inside it; the one with the latest
    epoch first. They must lead the run whose record is there."""
    announcements: list[Announcement] = []
    runs: dict[str, Path] = {}
    for name_of_file in (ANNOUNCEMENT, STANDBY_ANNOUNCEMENT):
        for place in (folder, *sorted(file.parent for file in folder.glob(f"*/{name_of_file}"))):
            try:
                announcements.append(read_announcement(place, name_of_file))
            except OSError:
                continue
            # A record that is being written for the first time does not say it yet.
            with contextlib.suppress(FedhpError):
                if (place / RECORD_FILE).is_file():
                    with RunReader(place) as reader:
                        runs[str(reader.meta("run") or "")] = place
    runs.pop("", None)
    if len(runs) > 1:
        raise RunError(
            f"{folder} holds several runs: {', '.join(map(str, sorted(runs.values())))}",
            allowed="the folder of one run",
            fix="give one of these folders",
        )
    if not announcements:
        raise RunError(
            f"{folder} does not say where a coordinator is: it has no {ANNOUNCEMENT}",
            allowed="the --out folder of `fedhp coordinator` or `fedhp cluster up`",
            fix="check the folder, or give --coordinator HOST:PORT",
        )
    latest, *earlier = sorted(announcements, key=lambda announcement: -announcement.epoch)
    others = tuple(CoordinatorAddress(other.address, other.name) for other in earlier)
    certificates, run = certificates or folder / CERTIFICATES, next(iter(runs), "")
    return Target(latest.address, certificates, name, latest.name, others, run=run)


def _quiet(text: str) -> None:
    pass


def leader_status(
    target: Target,
    *,
    seconds: float = limits.COMMAND_SECONDS,
    patience: float = 0.0,
    notify: Callable[[str], None] = _quiet,
) -> LeaderStatus:
    """The status of the run and its workers, and who leads it.

    patience: s for another coordinator to take over. notify: hears whom the call was sent to.
    """
    return asyncio.run(_Leading(target, patience, notify).status(seconds=seconds))


def command(
    target: Target,
    *,
    patience: float = 0.0,
    notify: Callable[[str], None] = _quiet,
    **what: Any,
) -> str:
    """One of the four commands (stop=True, or drain, remove or allow with a worker's name); what
    the coordinator will do, in words. See leader_status.

    The target must name the run: another one may be at the same address by now.
    """
    if not target.run:
        raise RunError(
            "it is not known which run this command is for",
            allowed="the folder of a run that has begun, or the run's name",
            fix="give --run RUN; `fedhp cluster status --json` names the run",
        )

    async def send() -> str:
        leading = _Leading(target, patience, notify)
        run = (await leading.status()).reply.run
        request = functools.partial(wire.CommandRequest, **what)
        receipt = await leading.call("Command", request, check_fields, run=run)
        return str(receipt.why)

    return asyncio.run(send())


async def dial_back(target: Target, address: str) -> wire.DialBackReply:
    """Whether others can connect to this machine at its address, which must be that of a worker
    with the name of the target's caller."""
    request = functools.partial(wire.DialBackRequest, address=address)
    reply: wire.DialBackReply = await _Leading(target).call(
        "DialBack", request, check_fields, seconds=limits.DIAL_BACK_SECONDS
    )
    return reply


class _Leading:
    """Calls to the coordinator that leads, whichever that is."""

    def __init__(
        self, target: Target, patience: float = 0.0, notify: Callable[[str], None] = _quiet
    ) -> None:
        self._target = target
        self._identity = load_identity(target.certificates, target.name)
        self._patience, self._notify = patience, notify
        self._found = False  # it has answered
        self.leader = CoordinatorAddress(target.address, target.coordinator)

    async def status(self, *, seconds: float = limits.COMMAND_SECONDS) -> LeaderStatus:
        reply = await self.call("Status", wire.StatusRequest, check_status_reply, seconds=seconds)
        meant = self._target.run
        if not reply.run.startswith(meant):
            raise RunError(
                f"{self.leader} leads run {reply.run}, not run {meant}",
                allowed=f"the address of a coordinator that leads run {meant}",
                fix=f"if run {reply.run} is meant: --coordinator {self.leader.address} "
                f"--run {reply.run}",
            )
        return LeaderStatus(reply, self.leader)

    async def call(
        self,
        method: str,
        request: Callable[..., Any],  # of the envelope
        check: Callable[[Any], None],
        *,
        seconds: float = limits.COMMAND_SECONDS,
        run: str = "",
    ) -> Any:
        until, waiting = time.monotonic() + self._patience, False
        ask = functools.partial(_call, self._identity, method, request, seconds=seconds, run=run)
        while True:
            try:
                reply = await self._ask_leader(ask)
                check(reply)
                return reply
            except Refused as error:
                raise RunError(
                    f"{self.leader.address}: the coordinator's reply cannot be used: {error.text}",
                    fix="install the same version of fedhp on both machines",
                ) from None
            except _NobodyLeads as error:
                why, soon = error.args
                if not soon or time.monotonic() + TAKEOVER_PAUSE > until:
                    fix = (
                        "start a coordinator with this --ha, and check etcd: fedhp doctor --ha URL"
                    )
                    if self._target.etcd is None:
                        fix = "run `fedhp doctor --coordinator HOST:PORT` for details"
                    raise RunError(
                        f"no coordinator answered: {why}",
                        allowed="the address of a coordinator that is running",
                        fix=fix,
                    ) from None
                if not waiting:
                    self._notify(f"waiting for a coordinator to take over: {why}")
                waiting = True
            await asyncio.sleep(TAKEOVER_PAUSE)

    async def _ask_leader(self, ask: Callable[[CoordinatorAddress], Any]) -> Any:
        """Ask one coordinator after another, and first the one that a standby names."""
        causes, asked, stands_by = list[str](), set[str](), False
        queue = deque([self.leader] if self._found else await self._first())
        while queue:
            coordinator = queue.popleft()
            if coordinator.address in asked:
                continue
            asked.add(coordinator.address)
            try:
                reply = await ask(coordinator)
            except _DoesNotLead as error:
                why, standby = error.args
                causes.append(why)
                named = standby and standby.leader
                stands_by = stands_by or standby is not None
                if named is not None and named.address not in asked:
                    leader = CoordinatorAddress(named.address, named.name)
                    self._notify(f"{coordinator.address} is a standby; {leader} leads")
                    queue.appendleft(leader)
            else:
                if causes and not stands_by:
                    self._notify(f"{'; '.join(causes)}; {coordinator} leads")
                self.leader, self._found = coordinator, True
                return reply
        several = self._target.etcd is not None or bool(self._target.others)
        soon = stands_by or several or self._found
        self._found = False
        raise _NobodyLeads("; ".join(causes), soon)

    async def _first(self) -> list[CoordinatorAddress]:
        target = self._target
        if target.etcd is None:
            return [CoordinatorAddress(target.address, target.coordinator), *target.others]
        try:
            leader = await leader_in_etcd(
                target.etcd, insecure=target.insecure_etcd, authority=self._identity.authority
            )
        except RunStopped as error:
            raise RunError(
                str(error),
                allowed="a run that goes on",
                fix="to continue it, start a coordinator with --resume",
            ) from None
        except OSError as error:
            raise _NobodyLeads(str(error), True) from None
        coordinator = CoordinatorAddress(leader.address, leader.name)
        if self.leader != coordinator:
            self._notify(f"{coordinator} leads")
        self.leader = coordinator
        return [coordinator]


async def _call(
    identity: Identity,
    method: str,
    request: Callable[..., Any],
    coordinator: CoordinatorAddress,
    *,
    seconds: float,
    run: str,
) -> Any:
    """One coordinator's reply; _DoesNotLead if it does not lead, RunError if it refuses."""
    address, name = coordinator.address, coordinator.name
    channel = open_channel(identity, address, name=name, coordinator=True)
    try:
        for _ in range(CALL_TRIES):
            # For the guard each call is a new process: several operators may share one name.
            envelope = Envelopes(identity.name).make(run=run)
            try:
                send = getattr(CoordinatorStub(channel), method)
                return await send(request(envelope=envelope), timeout=seconds)
            except grpc.aio.AioRpcError as error:
                refused = error
                if not str(error.details()).startswith("incarnation:"):
                    break
        details = one_line(str(refused.details() or refused.code().name.lower()))
        standby = read_refusal(details)
        if standby is not None:
            raise _DoesNotLead(f"{address} is a standby: {standby.text}", standby)
        if refused.code() not in (*_NOT_REACHED, grpc.StatusCode.UNAUTHENTICATED):
            raise RunError(f"{address}: the coordinator refused: {details}")
        cause = await cause_of(identity, address, name=name, coordinator=True, error=refused)
        raise _DoesNotLead(cause.text, None)
    finally:
        await channel.close()


def status_json(
    reply: wire.StatusReply, *, leader: CoordinatorAddress | None = None
) -> dict[str, Any]:
    """The reply as plain values; NaN and infinity become null."""
    names = {member.worker: member.name for member in reply.members}
    return {
        "coordinator": None if leader is None else leader.address,
        **_plain(reply, "run", "epoch", "round", "rounds", "state", "why"),
        "round_seconds": reply.round_seconds,
        "versions": dict(sorted(reply.versions.items())),
        "workers": [_plain(member, *MEMBER_FACTS) for member in reply.members],
        "unreachable": [_plain(member, *SILENCE_FACTS) for member in unreachable(reply)],
        "broken_links": [
            {
                "worker": names.get(link.worker, str(link.worker)),
                "peer": names.get(link.peer, str(link.peer)),
                "why": link.why,
                "since_round": link.since,
                "last_round": link.last,
                "failures": link.failures,
            }
            for link in reply.broken
        ],
        "broken_link_count": reply.broken_links,
        "expiring_certificates": [_plain(each, "name", "seconds") for each in reply.expiring],
        "warnings": [
            {"key": each.key, "members": list(each.members), **_plain(each, "value", "text")}
            for each in reply.warnings
        ],
    }


def _plain(message: Any, *names: str) -> dict[str, Any]:
    values = {name: getattr(message, name) for name in names}
    return {
        name: None if isinstance(value, float) and not -math.inf < value < limits.FOREVER else value
        for name, value in values.items()
    }


def unreachable(reply: wire.StatusReply) -> list[wire.MemberStatus]:
    """Members that send no heartbeats, and those that this coordinator has never seen."""
    return [
        member
        for member in reply.members
        if member.status in ("suspect", "dead")
        or (member.status == "left" and member.silent_seconds >= limits.FOREVER)
    ]
