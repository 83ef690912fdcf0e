"""A member with a worker's certificate tries to be followed as the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.errors import FedhpError
from net.fake_coordinator import FakeCoordinator
from net.federation import experiment, run


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.transport.abort()


@asynccontextmanager
async def switchboard(choose: Callable[[int], str]) -> AsyncIterator[tuple[str, list[str]]]:
    """A port whose owner passes every connection on to the address that it chooses."""
    passed: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = choose(len(passed))
        passed.append(address)
        host, _, port = address.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        for pair in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.ensure_future(_pump(*pair))
            tasks.add(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", passed
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def victim(certificates: Path, folder: Path, address: str) -> None:
    """A worker that is sent to this address by what etcd, DNS or an option says."""

    async def find() -> str:
        return address

    settings = WorkerSettings(
        name="w0",
        coordinator="",
        certificates=certificates,
        state=folder / "w0",
        listen="127.0.0.1:0",
        finder=find,
        give_up=3.0,
    )
    await run_worker(settings)


def test_the_first_connection_is_not_believed_for_what_the_second_shows(
    certificates: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with (
            FakeCoordinator(experiment(), certificates) as boss,
            FakeCoordinator(experiment(), certificates, name="w2") as thief,
            switchboard(lambda n: boss.address if n % 2 else thief.address) as (address, passed),
        ):
            working = asyncio.ensure_future(victim(certificates, tmp_path, address))
            obeyed = asyncio.ensure_future(thief.until(lambda: "w0" in thief.stored))
            await asyncio.wait({working, obeyed}, return_when=asyncio.FIRST_COMPLETED)
            print("JOINS", len(thief.joins), "OBEYS", dict(thief.stored), len(passed))
            assert not thief.joins
            with pytest.raises(FedhpError):
                await working
            obeyed.cancel()

    run(test())
