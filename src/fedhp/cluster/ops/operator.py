"""An operator's calls to a coordinator: how it stands, stop, drain, allow; refusals in words."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fedhp.cluster.coordinator.leadership import ANNOUNCED, Announced, announced
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.protocol.wire_pb2_grpc import CoordinatorStub
from fedhp.cluster.security.certificates import load_identity
from fedhp.cluster.security.tls import open_channel, why_refused
from fedhp.errors import RunError

OPERATOR = "operator"  # the name that `fedhp cluster up` issues
CERTIFICATES = "certs"
TRIES = 3  # when another operator of the same name spoke at the same moment

_UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class Target:
    """Whom an operator calls, and as whom."""

    address: str
    certificates: Path
    name: str = OPERATOR
    coordinator: str | None = None  # its name; none: whoever may serve that host


def target_of(folder: Path, *, certificates: Path | None = None, name: str = OPERATOR) -> Target:
    """The coordinator that writes into a folder, or into one inside it (the latest epoch)."""
    found: list[Announced] = []
    for file in [folder / ANNOUNCED, *sorted(folder.glob(f"*/{ANNOUNCED}"))]:
        try:
            found.append(announced(file.parent))
        except OSError:
            continue
    if not found:
        raise RunError(
            f"{folder} does not say where a coordinator is: it has no {ANNOUNCED}",
            allowed="the --out folder of `fedhp coordinator` or `fedhp cluster up`",
            fix="check the folder, or give --coordinator HOST:PORT",
        )
    latest = max(found, key=lambda each: each.epoch)
    return Target(latest.address, certificates or folder / CERTIFICATES, name, latest.name)


def status(target: Target, *, seconds: float = limits.COMMAND_SECONDS) -> wire.StatusReply:
    """How the run stands."""
    return asyncio.run(ask_status(target, seconds=seconds))


def command(target: Target, *, stop: bool = False, drain: str = "", allow: str = "") -> str:
    """One of the three wishes; what the coordinator will do, in words."""
    wish = wire.CommandRequest()
    if stop:
        wish.stop = True
    elif drain:
        wish.drain = drain
    else:
        wish.allow = allow

    def request(envelope: wire.Envelope) -> wire.CommandRequest:
        wish.envelope.CopyFrom(envelope)
        return wish

    async def ask() -> wire.Receipt:
        run = (await ask_status(target)).run  # a wish is for the run that is there now
        seconds = limits.COMMAND_SECONDS
        receipt: wire.Receipt = await _ask(target, "Command", request, seconds=seconds, run=run)
        return receipt

    return str(asyncio.run(ask()).why)


async def ask_status(
    target: Target, *, seconds: float = limits.COMMAND_SECONDS
) -> wire.StatusReply:
    """The same inside an event loop."""
    reply: wire.StatusReply = await _ask(
        target, "Status", lambda envelope: wire.StatusRequest(envelope=envelope), seconds=seconds
    )
    return reply


async def _ask(
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
        for _ in range(TRIES):
            # A process of its own, for the guard: several operators may share one name.
            envelope = Envelopes(target.name).make(run=run)
            try:
                return await getattr(CoordinatorStub(channel), method)(
                    request(envelope), timeout=seconds
                )
            except grpc.aio.AioRpcError as error:
                refused = error
                if not str(error.details()).startswith("incarnation:"):
                    break
        if refused.code() not in (*_UNREACHED, grpc.StatusCode.UNAUTHENTICATED):
            raise RunError(f"{target.address}: the coordinator refused: {_printable(refused)}")
        why = await why_refused(identity, target.address, name=target.coordinator, error=refused)
        raise RunError(
            f"no coordinator answered: {why}",
            allowed="the address of a coordinator that is running",
            fix="see the reason; `fedhp doctor --coordinator HOST:PORT` looks closer",
        )
    finally:
        await channel.close()


def _printable(error: grpc.aio.AioRpcError) -> str:
    told = str(error.details() or error.code().name.lower())[: limits.TEXT_LENGTH]
    return "".join(each if each.isprintable() else " " for each in told)


def status_json(reply: wire.StatusReply) -> dict[str, Any]:
    """The answer as plain values; what is no number is null."""
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
