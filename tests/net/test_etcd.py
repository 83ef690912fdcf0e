"""etcd as the ledger: leaders killed, stopped, woken and deposed; answers lost, requests late."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedhp.cluster.ledger.base import NotLeader, Unreachable
from fedhp.cluster.ledger.etcd import DRIFT, PART_BYTES, EtcdLedger, Leader, elapsed, find_leader
from fedhp.cluster.ledger.etcd_client import EtcdClient, delete, put
from fedhp.seeds import Purpose, generator
from net import etcd_support
from net.etcd_support import Etcd, needs_etcd, running_etcd

pytestmark = [needs_etcd, pytest.mark.slow]

LEASE = 2.0
PATIENCE = 20.0  # s: these tests are about what is done, not about how soon
NEVER = 600.0  # a lease that nobody renews or loses during a test
LARGE = generator(6, Purpose.PROBE).bytes(2 * PART_BYTES + 1000)  # three parts


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("one"), 1) as etcd:
        yield etcd


@pytest.fixture
def run(tmp_path: Path) -> str:
    return tmp_path.name


def within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, in time: a hang is a failure."""
    asyncio.run(asyncio.wait_for(work, seconds))


@contextlib.asynccontextmanager
async def leading(url: str, run: str, *, lease: float = NEVER) -> AsyncIterator[EtcdLedger]:
    ledger = EtcdLedger(url, run, lease_seconds=lease, patience=PATIENCE, insecure=True)
    try:
        await ledger.lead(name="c", address="127.0.0.1:1")
        yield ledger
    finally:
        await ledger.close()


async def keys_of(etcd: Etcd, run: str) -> list[str]:
    """The ends of all keys of a run."""
    client = EtcdClient(etcd.url, patience=PATIENCE, insecure=True)
    answer = await client.call("/v3/kv/range", {"key": "AA==", "range_end": "AA==", "limit": "0"})
    await client.close()
    names = [base64.b64decode(entry["key"]).decode() for entry in answer.get("kvs", ())]
    return [name.partition(f"/{run}/")[2] for name in names if f"/{run}/" in name]


async def depose(etcd: Etcd, run: str) -> None:
    """Remove the leader's key, as an operator can; the leader does not know it yet."""
    client = EtcdClient(etcd.url, patience=PATIENCE, insecure=True)
    key = f"/test/{run}/leader"
    await client.transact([], [delete(key, f"{key}\0")])
    await client.close()


def test_workers_find_the_leader(one: Etcd, run: str) -> None:
    async def work() -> None:
        assert await find_leader(one.url, run, insecure=True) is None
        ledger = EtcdLedger(one.url, run, lease_seconds=LEASE, insecure=True)
        epoch = await ledger.lead(name="c1", address="10.0.0.1:9")
        assert await find_leader(one.url, run, insecure=True) == Leader("c1", "10.0.0.1:9", epoch)
        assert await find_leader(one.url, f"{run}-other", insecure=True) is None
        await ledger.close()
        assert await find_leader(one.url, run, insecure=True) is None

    within(60, work())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_leadership_passes_in_time(
    one: Etcd, run: str, how: signal.Signals, record_property: Callable[[str, object], None]
) -> None:
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(etcd_support.Leader(one.url, run, name="old"))
        epoch = int(old.hear().removeprefix("leads "))
        new = stack.enter_context(etcd_support.Leader(one.url, run, name="new"))
        assert old.ask("by the first") == "committed by the first"
        at = old.signal(how)
        later = int(new.hear().removeprefix("leads "))
        took = time.monotonic() - at
        assert later > epoch
        assert took < LEASE + 5
        record_property(f"figure: takeover after {how.name}", f"{took:.1f} s, lease {LEASE} s")
        assert new.ask("read") == "state by the first"
        assert new.ask("by the second") == "committed by the second"
        if how == signal.SIGSTOP:
            old.signal(signal.SIGCONT)
            old.tell("by the first again")
            assert sorted([old.hear(), old.hear()]) == ["NotLeader", "lost"]
        assert new.ask("read") == "state by the second"


@pytest.mark.parametrize("state", [b"small", LARGE], ids=["small", "large"])
def test_etcd_itself_refuses_a_deposed_leader(one: Etcd, run: str, state: bytes) -> None:
    """Whatever its clock says: this one believes for minutes that it leads."""

    async def work() -> None:
        async with leading(one.url, run) as old:
            await old.commit(b"by the first")
            await depose(one, run)
            async with leading(one.url, run) as new:
                assert old.leads()
                with pytest.raises(NotLeader, match="another process took over"):
                    await old.commit(state)
                assert old.lost.is_set()
                assert not old.leads()
                assert len(await keys_of(one, run)) == 3, "it left a part behind"
                assert await new.committed() == b"by the first"

    within(60, work())


def test_a_deposed_leader_does_not_read_either(one: Etcd, run: str) -> None:
    async def work() -> None:
        async with leading(one.url, run) as old:
            await depose(one, run)
            with pytest.raises(NotLeader):
                await old.committed()
            assert old.lost.is_set()

    within(60, work())


def test_a_leader_notices_that_its_key_was_removed(one: Etcd, run: str) -> None:
    async def work() -> None:
        async with leading(one.url, run, lease=4 * LEASE) as ledger:
            await depose(one, run)
            await ledger.lost.wait()
            with pytest.raises(NotLeader, match="its key was removed"):
                await ledger.commit(b"one")

    within(60, work())


def test_a_leader_stays_one_as_long_as_it_lives(one: Etcd, run: str) -> None:
    async def work() -> None:
        async with leading(one.url, run, lease=LEASE) as ledger:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ledger.lost.wait(), 1.3 * LEASE)
            await ledger.commit(b"still here")

    within(60, work())


def test_the_clock_alone_ends_a_leadership(one: Etcd, run: str) -> None:
    """As after a long stop: the first thing that runs must know that it is over."""

    async def work() -> None:
        now = 100.0
        ledger = EtcdLedger(
            one.url, run, lease_seconds=10, patience=PATIENCE, clock=lambda: now, insecure=True
        )
        await ledger.lead(name="c", address="127.0.0.1:1")
        now = 108.9
        assert ledger.leads()
        now = 109.0
        assert not ledger.leads()
        assert ledger.lost.is_set()
        with pytest.raises(NotLeader, match="not renewed in time"):
            await ledger.commit(b"too late")
        assert (await keys_of(one, run)) == ["leader"]
        await ledger.close()

    within(60, work())


def test_a_leader_that_etcd_does_not_answer_steps_down_first(tmp_path: Path) -> None:
    async def work(etcd: Etcd) -> None:
        async with leading(etcd.url, "r", lease=LEASE) as ledger:
            etcd.freeze(0)
            at = elapsed()
            await ledger.lost.wait()
            assert ledger._valid_until <= at + LEASE * (1 - DRIFT), "no answer, yet a longer lease"
            assert elapsed() >= ledger._valid_until
            etcd.wake(0)

    with running_etcd(tmp_path, 1) as etcd:
        within(60, work(etcd))


def test_what_a_killed_writer_left_is_never_seen_and_is_removed(one: Etcd, run: str) -> None:
    async def work() -> None:
        async with leading(one.url, run) as ledger:
            await ledger.commit(LARGE)
            assert len(await keys_of(one, run)) == 5
            for name in ("0000-half", "ffff-half"):
                part = put(ledger._keys.part(name, 0), b"half a state")
                await ledger._transact_as_leader(part)
        async with leading(one.url, run) as ledger:
            assert await ledger.committed() == LARGE
            await ledger.commit(b"next")
            assert len(await keys_of(one, run)) == 3
            assert await ledger.committed() == b"next"

    within(60, work())


class Meddler:
    """Between a ledger and etcd: sees each request whole, and may keep its answer back."""

    def __init__(self, etcd: Etcd) -> None:
        self._port = int(etcd.member_url(0).rpartition(":")[2])
        self.seen: list[bytes] = []
        self.pass_on: Callable[[bytes], bool] = lambda request: True
        self.answer: Callable[[bytes], bool] = lambda request: True

    async def __aenter__(self) -> Meddler:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"etcd://127.0.0.1:{port}/test"
        return self

    async def __aexit__(self, *unused: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await _message(reader)
                self.seen.append(request)
                if not self.pass_on(request):
                    break
                answer = await self.send(request)
                if not self.answer(request):
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def send(self, request: bytes) -> bytes:
        """Send a request to etcd, now."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request.replace(b"Connection: keep-alive", b"Connection: close"))
        answer = await reader.read()
        writer.close()
        return answer


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    return head + await reader.readexactly(length)


def changes_the_pointer(request: bytes) -> bool:
    return b"request_delete_range" in request


@pytest.mark.parametrize("state", [b"small", LARGE], ids=["small", "large"])
def test_a_commit_whose_answer_was_lost_is_made_once(one: Etcd, run: str, state: bytes) -> None:
    async def work() -> None:
        async with Meddler(one) as between, leading(between.url, run) as ledger:
            swallowed: list[bytes] = []

            def answer(request: bytes) -> bool:
                if changes_the_pointer(request) and not swallowed:
                    swallowed.append(request)
                    return False
                return True

            between.answer = answer
            await ledger.commit(state)
            assert swallowed
            pointer = await ledger._client.get(f"/test/{run}/state")
            assert pointer is not None
            assert pointer.created == pointer.changed, "it was made twice"
            assert await ledger.committed() == state
            await ledger.commit(b"next")
            assert await ledger.committed() == b"next"

    within(60, work())


def test_a_lead_whose_answer_was_lost_is_one(one: Etcd, run: str) -> None:
    async def work() -> None:
        async with Meddler(one) as between:
            swallowed: list[bytes] = []

            def answer(request: bytes) -> bool:
                if b"create_revision" in request and not swallowed:
                    swallowed.append(request)
                    return False
                return True

            between.answer = answer
            async with leading(between.url, run) as ledger:
                assert swallowed
                await ledger.commit(b"one")

    within(60, work())


def test_a_request_that_comes_again_much_later_changes_nothing(one: Etcd, run: str) -> None:
    async def work() -> None:
        async with Meddler(one) as between, leading(between.url, run) as ledger:
            await ledger.commit(b"one")
            late = [request for request in between.seen if b"/kv/txn" in request]
            await ledger.commit(b"two")
            for request in late:
                assert b"200 OK" in await between.send(request)
            assert await ledger.committed() == b"two"

    within(60, work())


def test_a_commit_that_comes_late_does_not_spoil_the_next(one: Etcd, run: str) -> None:
    """It deletes the parts that the next one has just written, and is distinguished from it."""

    async def work() -> None:
        async with Meddler(one) as between, leading(between.url, run) as ledger:
            await ledger.commit(b"first")
            kept: list[bytes] = []

            def hold(request: bytes) -> bool:
                if changes_the_pointer(request):
                    kept.append(request)
                    return False
                return True

            between.pass_on = hold
            ledger._client.patience = 2.0
            with pytest.raises(Unreachable):
                await ledger.commit(LARGE)
            ledger._client.patience = PATIENCE
            between.pass_on = lambda request: True
            sent = False
            plain_send = between.send

            async def send(request: bytes) -> bytes:
                nonlocal sent
                if changes_the_pointer(request) and not sent:
                    sent = True
                    assert b'"succeeded":true' in await plain_send(kept[0])
                return await plain_send(request)

            between.send = send  # type: ignore[method-assign]
            await ledger.commit(LARGE[::-1])
            assert sent
            assert await ledger.committed() == LARGE[::-1]

    within(60, work())


@pytest.mark.slow
def test_no_half_state_is_ever_seen(one: Etcd, run: str) -> None:
    """Leaders are killed in the middle of large commits."""
    acknowledged = 0
    for life in generator(7, Purpose.PROBE).integers(1, 6, 6):
        with etcd_support.Leader(one.url, run, name="c") as leader:
            assert leader.hear().startswith("leads ")
            leader.tell(f"large {acknowledged + 1}")
            for _ in range(life):
                acknowledged = int(leader.hear())
            leader.signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *(int(line) for line in leader.rest())])
        state = asyncio.run(committed_state(one.url, run))
        allowed = [
            hashlib.sha512(str(number).encode()).digest()
            for number in (acknowledged, acknowledged + 1)
        ]
        assert state is not None
        assert state[:64] in allowed
        assert len(state) == 64 * 20_000 + 1_000_000


async def committed_state(url: str, run: str) -> bytes | None:
    async with asyncio.timeout(60), leading(url, run, lease=LEASE) as ledger:
        return await ledger.committed()
