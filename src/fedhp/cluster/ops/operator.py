"""An operator's calls to a coordinator: status, stop, drain, remove and allow."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fedhp.cluster.coordinator.leadership import ANNOUNCEMENT, Announcement, read_announcement
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Envelopes, Refused
from fedhp.cluster.protocol.message_checks import check_receipt, check_status_reply, one_line
from fedhp.cluster.protocol.wire_pb2_grpc import CoordinatorStub
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import open_channel, why_refused
from fedhp.errors import RunError

OPERATOR_NAME = "operator"  # the name that `fedhp cluster up` issues
CERTIFICATES = "certs"  # below the folder of a run
CALL_TRIES = 3  # another operator of the same name may call at the same moment

_NOT_REACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class Target:
    """The coordinator that an operator calls, and the operator's own name."""

    address: str
    certificates: Path
    name: str = OPERATOR_NAME
    coordinator: str | None = None  # its name; None: any coordinator that may serve that host


def target_of(
    folder: Path, *, certificates: Path | None = None, name: str = OPERATOR_NAME
) -> Target:
    """The coordinator that writes into a folder, or into one inside it (the latest epoch)."""
    announcements: list[Announcement] = []
    for file in [folder / ANNOUNCEMENT, *sorted(folder.glob(f"*/{ANNOUNCEMENT}"))]:
        try:
            announcements.append(read_announcement(file.parent))
        except OSError:
            continue
    if not announcements:
        raise RunError(
            f"{folder} does not say where a coordinator is: it has no {ANNOUNCEMENT}",
            allowed="the --out folder of `fedhp coordinator` or `fedhp cluster up`",
            fix="check the folder, or give --coordinator HOST:PORT",
        )
    latest = max(announcements, key=lambda announcement: announcement.epoch)
    return Target(latest.address, certificates or folder / CERTIFICATES, name, latest.name)


def status(target: Target, *, seconds: float = limits.COMMAND_SECONDS) -> wire.StatusReply:
    """The status of the run and its workers."""
    return asyncio.run(_status(target, seconds=seconds))


def command(
    target: Target, *, stop: bool = False, drain: str = "", remove: str = "", allow: str = ""
) -> str:
    """One of the four commands; what the coordinator will do, in words."""
    message = wire.CommandRequest()
    if stop:
        message.stop = True
    elif drain:
        message.drain = drain
    elif remove:
        message.remove = remove
    else:
        message.allow = allow

    def request(envelope: wire.Envelope) -> wire.CommandRequest:
        message.envelope.CopyFrom(envelope)
        return message

    async def send() -> wire.Receipt:
        run = (await _status(target)).run  # a command is for the run of this moment
        seconds = limits.COMMAND_SECONDS
        receipt: wire.Receipt = await _call(target, "Command", request, seconds=seconds, run=run)
        _check(check_receipt, receipt, target)
        return receipt

    return str(asyncio.run(send()).why)


async def _status(target: Target, *, seconds: float = limits.COMMAND_SECONDS) -> wire.StatusReply:
    reply: wire.StatusReply = await _call(
        target, "Status", lambda envelope: wire.StatusRequest(envelope=envelope), seconds=seconds
    )
    _check(check_status_reply, reply, target)
    return reply


def _check(check: Callable[[Any], None], reply: Any, target: Target) -> None:
    try:
        check(reply)
    except Refused as error:
        raise RunError(
            f"{target.address}: the coordinator's reply cannot be used: {error.text}",
            fix="install the same version of fedhp on both machines",
        ) from None


async def _call(
    target: Target,
    method: str,
    request: Callable[[wire.Envelope], Any],
    *,
    seconds: float,
    run: str = "",
) -> Any:
    identity = load_identity(target.certificates, target.name)
    channel = open_channel(identity, target.address, name=target.coordinator)
    try:
        for _ in range(CALL_TRIES):
            # For the guard each call is a new process: several operators may share one name.
            envelope = Envelopes(target.name).make(run=run)
            try:
                return await getattr(CoordinatorStub(channel), method)(
                    request(envelope), timeout=seconds
                )
            except grpc.aio.AioRpcError as error:
                refused = error
                if not str(error.details()).startswith("incarnation:"):
                    break
        if refused.code() not in (*_NOT_REACHED, grpc.StatusCode.UNAUTHENTICATED):
            why = one_line(str(refused.details() or refused.code().name.lower()))
            raise RunError(f"{target.address}: the coordinator refused: {why}")
        why = await why_refused(identity, target.address, name=target.coordinator, error=refused)
        raise RunError(
            f"no coordinator answered: {why}",
            allowed="the address of a coordinator that is running",
            fix="run `fedhp doctor --coordinator HOST:PORT` for details",
        )
    finally:
        await channel.close()


def status_json(reply: wire.StatusReply) -> dict[str, Any]:
    """The reply as plain values; NaN and infinity become null."""
    return {
        "run": reply.run,
        "epoch": reply.epoch,
        "round": reply.round,
        "rounds": reply.rounds,
        "state": reply.state,
        "why": reply.why,
        "round_seconds": reply.round_seconds,
        "versions": dict(sorted(reply.versions.items())),
        "workers": [
            {
                "worker": member.worker,
                "name": member.name,
                "address": member.address,
                "status": member.status,
                "phase": member.phase,
                "round": member.round,
                "silent_seconds": _number(member.silent_seconds),
                "step_time": _number(member.step_time),
                "local_steps": member.local_steps,
                "accuracy": _number(member.accuracy),
            }
            for member in reply.members
        ],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) and value < limits.FOREVER else None
