"""How much memory one certificate can make a coordinator, a standby or a worker take.

`PYTHONPATH=src:tests python -m attacks.flood_memory` prints the figures. Every party has a process
of its own. The attacker sends messages of 4.1 MB over many connections as fast as it can; it has
not joined, and its name is on the allow-list or not.
"""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedhp.cluster.coordinator.process.finders import find_in_folder
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings
from fedhp.cluster.ops import processes
from fedhp.cluster.ops.processes import ProcessEnvironment
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import parse_listen, reserve_port
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import AllowList, client_credentials, open_channel
from fedhp.cluster.worker.worker import WorkerSettings
from net.clusters import ENDLESS, tiny
from net.identities import make_certificates
from waiting import emulate_work, wait_until

WORKERS = 2
SERVICE = "/fedhp.cluster.v1."
CONNECTIONS, CALLS = 12, 32  # of the attacker, and calls of each connection at once
MESSAGE = 4_100_000  # bytes
SECONDS, AFTER_SECONDS = 20.0, 12.0
MEGABYTE = 1e6


@dataclass(frozen=True)
class Attack:
    """Who is attacked and with what."""

    target: str  # coordinator, standby, worker
    method: str
    listed: bool = True  # whether the attacker's name is on the allow-list
    connections: int = CONNECTIONS
    calls: int = CALLS
    size: int = MESSAGE
    seconds: float = SECONDS
    after: float = AFTER_SECONDS

    def __str__(self) -> str:
        listed = "on" if self.listed else "off"
        return f"{self.target}, {self.method}, from a name {listed} the list"


ATTACKS = (
    Attack("coordinator", "Join"),
    Attack("coordinator", "Join", listed=False),
    Attack("coordinator", "Nothing"),  # there is no such method
    Attack("standby", "Join"),
    Attack("worker", "Pull"),
    Attack("worker", "Average"),
)


@dataclass(frozen=True)
class Memory:
    """Resident bytes of the attacked process."""

    before: float
    most: float
    after: float
    calls: int  # that the attacker ended

    @property
    def growth(self) -> float:
        """Bytes, at the worst moment."""
        return self.most - self.before

    def __str__(self) -> str:
        parts = (self.before, self.most, self.after)
        before, most, after = (f"{part / MEGABYTE:.0f}" for part in parts)
        return f"{before} -> {most} MB, {after} MB afterwards, {self.calls} calls"


def measure(folder: Path, attack: Attack) -> Memory:
    """Attack one process of a small federation, and look how large it becomes."""
    certificates = make_certificates(folder / "certs", WORKERS + 1)
    allow = folder / "allowed"
    names = [f"w{worker}" for worker in range(WORKERS + attack.listed)]
    allow.write_text("\n".join(["operator", *names]))
    with ExitStack() as stack:
        if attack.target == "standby":
            process, address = stack.enter_context(_standby(folder, certificates, allow))
        else:
            process, address = stack.enter_context(
                _federation(folder, certificates, allow, worker=attack.target == "worker")
            )
        assert process.pid is not None
        before = _resident(process.pid)
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        attacker = context.Process(
            target=_attack, args=(certificates, address, attack, answers), daemon=True
        )
        attacker.start()
        try:
            assert answers.get() == "begins"
            most = max(_watch(process.pid, attack.seconds))
            calls = int(answers.get())
        finally:
            attacker.kill()
            attacker.join()
        *_, after = _watch(process.pid, attack.after)
        assert process.is_alive()
    return Memory(before, most, after, calls)


def _watch(pid: int, seconds: float) -> Iterator[float]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield _resident(pid)
        asyncio.run(emulate_work(0.05))
    yield _resident(pid)


def _resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024.0 * int(line.split()[1])
    raise AssertionError(f"process {pid} has ended")


@contextmanager
def _federation(
    folder: Path, certificates: Path, allow: Path, *, worker: bool
) -> Iterator[tuple[BaseProcess, str]]:
    """The process to attack and its address, in a run that makes rounds."""
    run = folder / "run"
    experiment = tiny(workers=WORKERS, rounds=ENDLESS)
    settings = CoordinatorProcessSettings(experiment, certificates, run, name="boss", allow=allow)
    started = [
        processes.start(
            processes.run_coordinator, settings, ProcessEnvironment(folder / "boss.log")
        )
    ]
    try:
        for name in (f"w{worker}" for worker in range(WORKERS)):
            own = WorkerSettings(
                name,
                "",
                certificates,
                run / "workers" / name,
                listen="127.0.0.1:0",
                finder=functools.partial(find_in_folder, run),
            )
            started.append(
                processes.start(
                    processes.run_worker, own, ProcessEnvironment(folder / f"{name}.log")
                )
            )
        history = run / "history-boss.jsonl"

        def committed() -> list[str]:
            text = history.read_text() if history.exists() else ""
            return [line for line in text.splitlines() if '"event": "commit"' in line]

        wait_until(lambda: len(committed()) >= 5, "the first rounds")
        address = str(json.loads((run / "coordinator.json").read_bytes())["address"])
        if worker:
            yield started[1], asyncio.run(_address_of("w0", address, certificates))
        else:
            yield started[0], address
    finally:
        for process in started:
            process.kill()
            process.join()


async def _address_of(name: str, coordinator: str, certificates: Path) -> str:
    identity = load_identity(certificates, "operator")
    async with open_channel(identity, coordinator, name=None) as channel:
        stub: Any = CoordinatorStub(channel)
        request = wire.StatusRequest(envelope=Envelopes("operator").make())
        status = await stub.Status(request, timeout=20)
    return str(next(member.address for member in status.members if member.name == name))


@contextmanager
def _standby(folder: Path, certificates: Path, allow: Path) -> Iterator[tuple[BaseProcess, str]]:
    with reserve_port(parse_listen("127.0.0.1:0", key="listen"), key="listen") as reserved:
        address = str(reserved)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(
        target=_serve_standby, args=(certificates, address, allow, ready), daemon=True
    )
    process.start()
    try:
        assert ready.wait(60)
        yield process, address
    finally:
        process.kill()
        process.join()


def _serve_standby(certificates: Path, address: str, allow: Path, ready: Any) -> None:
    from fedhp.cluster.coordinator.process.standby import StandbyService, standing_by

    async def nobody() -> None:
        return None

    async def serve() -> None:
        identity = load_identity(certificates, "boss")
        service = StandbyService("boss", address, lookup=nobody, allowed=AllowList(allow))
        async with standing_by(identity, parse_listen(address, key="listen"), service):
            ready.set()
            await asyncio.Event().wait()

    asyncio.run(serve())


# --- inside the attacker's process ---------------------------------------------------------


def large_message(method: str, size: int) -> bytes:
    """A message of this size that can be parsed."""
    message: Any = wire.JoinRequest(address="x" * size)
    if method == "Pull":
        message = wire.PullRequest(base=b"x" * size)
    elif method == "Average":
        message = wire.Chunk(data=b"x" * size)
    return bytes(message.SerializeToString())


def own_channel(certificates: Path, name: str, address: str, *, server: str) -> Any:
    """A channel with a connection of its own."""
    import grpc.aio

    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.ssl_target_name_override", server),
    ]
    credentials = client_credentials(load_identity(certificates, name))
    return grpc.aio.secure_channel(address, credentials, options=options)


def _attack(certificates: Path, address: str, attack: Attack, answers: Any) -> None:
    os.nice(19)
    asyncio.run(_flood(certificates, address, attack, answers))


async def _flood(certificates: Path, address: str, attack: Attack, answers: Any) -> None:
    import grpc.aio

    service = "Peer" if attack.target == "worker" else "Coordinator"
    path = f"{SERVICE}{service}/{attack.method}"
    server = "w0" if attack.target == "worker" else "boss"
    message = large_message(attack.method, attack.size)
    end = time.monotonic() + attack.seconds
    ended = 0

    async def call_again_and_again(channel: Any) -> None:
        nonlocal ended
        streams = attack.target == "worker"
        call = channel.unary_stream(path) if streams else channel.unary_unary(path)
        while time.monotonic() < end:
            try:
                if streams:
                    await call(message, timeout=30.0).read()
                else:
                    await call(message, timeout=30.0)
            except grpc.aio.AioRpcError:
                pass
            ended += 1

    channels = [
        own_channel(certificates, f"w{WORKERS}", address, server=server)
        for _ in range(attack.connections)
    ]
    answers.put("begins")
    tasks = [
        asyncio.create_task(call_again_and_again(channel))
        for channel in channels
        for _ in range(attack.calls)
    ]
    while time.monotonic() < end:
        await emulate_work(0.05)
    for task in tasks:
        task.cancel()
    answers.put(ended)


def main(targets: list[str]) -> None:
    """Print the memory of each target."""
    for attack in ATTACKS:
        if not targets or attack.target in targets:
            with tempfile.TemporaryDirectory() as folder:
                print(f"{attack}: {measure(Path(folder), attack)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
