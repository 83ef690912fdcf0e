"""What any ledger promises: the local ledger and etcd pass the same tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedhp.cluster.ledger.base import Ledger, NotLeader, RunStopped
from fedhp.cluster.ledger.etcd import EtcdLedger
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.errors import RunError
from fedhp.seeds import Purpose, generator
from net.etcd_support import Etcd, needs_etcd, running_etcd

Make = Callable[[], Ledger]
# It does not compress, so that it takes several keys in etcd.
LARGE = generator(5, Purpose.PROBE).bytes(1_300_000)


def test_a_run_that_was_stopped_says_so() -> None:
    stopped = RunStopped("0" * 32, "stopped by an operator")
    assert str(stopped) == "nobody coordinates: the run was stopped by an operator"
    assert (stopped.run, stopped.why) == ("0" * 32, "stopped by an operator")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd"), 1) as etcd:
        yield etcd


@pytest.fixture(params=["local", pytest.param("etcd", marks=needs_etcd)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Another ledger of the same run, each time."""
    if request.param == "local":
        return lambda: LocalLedger(tmp_path / "coordinator")
    etcd: Etcd = request.getfixturevalue("etcd")
    run = tmp_path.name
    return lambda: EtcdLedger(etcd.url, run, lease_seconds=30, patience=20, insecure=True)


@contextlib.asynccontextmanager
async def leading(make: Make) -> AsyncIterator[tuple[Ledger, int]]:
    ledger = make()
    try:
        yield ledger, await ledger.lead(name="c", address="127.0.0.1:1")
    finally:
        await ledger.close()


def in_time(test: Callable[[Make], Awaitable[None]]) -> Callable[[Make], None]:
    """Run a coroutine; nothing here takes long, and a hang is a failure."""

    def run(make: Make) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await test(make)

        asyncio.run(bounded())

    run.__name__ = test.__name__
    return run


@in_time
async def test_the_last_commit_is_what_the_next_leader_finds(make: Make) -> None:
    async with leading(make) as (ledger, first):
        assert first >= 1
        assert await ledger.committed() is None
        for state in (b"one", b"", b"two" * 1000):
            await ledger.commit(state)
            assert await ledger.committed() == state
        assert ledger.leads()
    async with leading(make) as (ledger, second):
        assert second > first
        assert await ledger.committed() == b"two" * 1000
        await ledger.commit(b"three")
    async with leading(make) as (ledger, third):
        assert third > second
        assert await ledger.committed() == b"three"
        assert not ledger.lost.is_set()


@in_time
async def test_a_large_state_and_the_same_one_twice(make: Make) -> None:
    async with leading(make) as (ledger, _):
        await ledger.commit(LARGE)
        await ledger.commit(LARGE)
        assert await ledger.committed() == LARGE
    async with leading(make) as (ledger, _):
        await ledger.commit(b"small")
        await ledger.commit(LARGE[1:])
    async with leading(make) as (ledger, _):
        assert await ledger.committed() == LARGE[1:]


@in_time
async def test_only_a_leader_commits(make: Make) -> None:
    idle = make()
    with pytest.raises(NotLeader):
        await idle.commit(b"mine")
    with pytest.raises(NotLeader):
        await idle.committed()
    assert not idle.leads()
    assert not idle.lost.is_set()
    async with leading(make) as (ledger, _):
        assert await ledger.committed() is None
    assert not ledger.leads()
    assert not ledger.lost.is_set(), "it was given back, not lost"
    with pytest.raises(NotLeader):
        await ledger.commit(b"after the end")
    with pytest.raises(RuntimeError, match="only once"):
        await ledger.lead(name="c", address="")
    await ledger.close()
    await idle.close()


@in_time
async def test_the_others_wait_for_their_turn(make: Make) -> None:
    holders: list[int] = []
    epochs: list[int] = []

    async def candidate(number: int) -> None:
        async with leading(make) as (ledger, epoch):
            holders.append(number)
            assert len(holders) == 1, "two lead at once"
            epochs.append(epoch)
            await ledger.commit(str(number).encode())
            assert await ledger.committed() == str(number).encode()
            assert ledger.leads()
            holders.remove(number)

    await asyncio.gather(*(candidate(number) for number in range(4)))
    assert sorted(set(epochs)) == epochs
    assert len(epochs) == 4


@in_time
async def test_a_candidate_that_gives_up_leaves_nothing_behind(make: Make) -> None:
    async with leading(make) as (_, first):
        other = make()
        waiting = asyncio.create_task(other.lead(name="d", address="127.0.0.1:2"))
        done, _ = await asyncio.wait([waiting], timeout=0.7)
        assert not done
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await other.close()
    async with leading(make) as (_, second):
        assert second > first


@in_time
async def test_commits_at_the_same_time_are_made_one_by_one(make: Make) -> None:
    async with leading(make) as (ledger, _):
        states = [bytes([number]) * 2000 for number in range(8)]
        await asyncio.gather(*(ledger.commit(state) for state in states))
        assert await ledger.committed() == states[-1]


def run_in(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_a_ledger_removed_beneath_its_leader(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(lambda: LocalLedger(tmp_path / "a")) as (ledger, _):
            (tmp_path / "a").rename(tmp_path / "b")
            with pytest.raises(NotLeader):
                await ledger.commit(b"into nowhere")
            assert ledger.lost.is_set()

    run_in(work())


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def work() -> None:
        ledger = LocalLedger(tmp_path / "file" / "coordinator")
        with pytest.raises(RunError, match="cannot be written"):
            await ledger.lead(name="c", address="")
        await ledger.close()

    run_in(work())
