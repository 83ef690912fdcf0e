"""etcd's members killed, frozen, foreign, locked or full: a clear error, never a hang."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from fedhp.cluster.ledger.base import Unreachable
from fedhp.cluster.ledger.etcd import EtcdLedger, find_leader, read_committed
from fedhp.cluster.ledger.etcd_client import (
    EtcdClient,
    EtcdRefused,
    Item,
    encode_key,
    parse_etcd_url,
)
from fedhp.errors import ConfigError, StorageFull
from fedhp.seeds import Purpose, generator
from net.etcd_support import Etcd, free_ports, needs_etcd, running_etcd

NEVER = 600.0  # s of a lease that no test sees the end of


def within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, in time: a hang is a failure."""
    asyncio.run(asyncio.wait_for(work, seconds))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path, 3) as etcd:
        yield etcd


@contextlib.asynccontextmanager
async def leading(url: str) -> AsyncIterator[EtcdLedger]:
    ledger = EtcdLedger(url, "r", lease_seconds=NEVER, insecure=True)
    try:
        await ledger.lead(name="c", address="127.0.0.1:1")
        yield ledger
    finally:
        await ledger.close()


@needs_etcd
def test_one_of_three_is_not_missed_but_two_are(three: Etcd) -> None:
    async def work() -> None:
        async with leading(three.url) as ledger:
            three.kill(0)
            await ledger.commit(b"without one")
            three.kill(1)
            at = time.monotonic()
            with pytest.raises(Unreachable, match="without a leader: most members are down"):
                await ledger.commit(b"alone")
            assert time.monotonic() - at < 8
            await asyncio.to_thread(three.start, 1)
            await ledger.commit(b"alone")
            assert await ledger.committed() == b"alone"

    within(60, work())


@needs_etcd
@pytest.mark.slow
def test_each_member_is_killed_in_turn(three: Etcd) -> None:
    """One of them is etcd's own leader."""

    async def work() -> None:
        async with leading(three.url) as ledger:
            for member in (0, 1, 2, 0, 1, 2):
                await asyncio.to_thread(three.kill, member)
                await ledger.commit(f"without {member}".encode())
                assert await find_leader(three.url, "r", insecure=True) is not None
                await asyncio.to_thread(three.start, member)
            assert await ledger.committed() == b"without 2"

    within(180, work())


@needs_etcd
def test_a_member_that_is_frozen_is_passed_over(three: Etcd) -> None:
    async def work() -> None:
        async with leading(three.url) as ledger:
            three.freeze(0)
            at = time.monotonic()
            for number in range(3):
                await ledger.commit(bytes([number]))
            assert time.monotonic() - at < 8
            assert await ledger.committed() == bytes([2])

    within(60, work())


def test_an_etcd_that_is_not_there_is_an_error_within_seconds() -> None:
    async def work() -> None:
        first, second = free_ports(2)
        url = f"etcd://127.0.0.1:{first},127.0.0.1:{second}"
        ledger = EtcdLedger(url, "r", insecure=True)
        at = time.monotonic()
        with pytest.raises(Unreachable) as caught:
            await ledger.lead(name="c", address="")
        assert time.monotonic() - at < 8
        assert f"127.0.0.1:{first} cannot be reached" in caught.value.problem
        assert f"127.0.0.1:{second} cannot be reached" in caught.value.problem
        assert caught.value.fix
        await ledger.close()

    within(60, work())


@needs_etcd
def test_two_etcds_are_not_one(tmp_path: Path) -> None:
    """Each would elect its own leader."""

    async def work(first: Etcd, second: Etcd) -> None:
        hosts = ",".join(etcd.member_url(0).removeprefix("http://") for etcd in (first, second))
        ledger = EtcdLedger(f"etcd://{hosts}/test", "r", insecure=True)
        with pytest.raises(EtcdRefused, match="belong to different clusters"):
            await ledger.lead(name="c", address="")
        await ledger.close()
        client = EtcdClient(f"etcd://{hosts}/test", insecure=True)
        await client.get("one")
        first.kill(0)
        with pytest.raises(Unreachable, match="belongs to another cluster"):
            await client.get("one")
        await client.close()

    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with running_etcd(tmp_path / "1", 1) as first, running_etcd(tmp_path / "2", 1) as second:
        within(60, work(first, second))


@contextlib.asynccontextmanager
async def answering(status: int, body: str) -> AsyncIterator[str]:
    """A server that always says the same."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}\r\n{body}".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"etcd://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


OLD = json.dumps({"header": {"cluster_id": "1"}, "version": "3.3.27", "leader": "1"})


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, OLD, "is etcd 3.3.27"),
        (404, "404 page not found\n", "without JSON"),
        (200, "<html>a web page</html>", "without JSON"),
        (200, "", "without JSON"),
        (200, "[1, 2]", "without JSON"),
        (200, "[" * 10_000, "without JSON"),
        (200, '{"some": "thing"}', "does not answer as etcd does"),
        (200, '{"header": 5}', "does not answer as etcd does"),
        (500, '{"error": {"code": "x"}}', "refuses: no reason given"),
    ],
)
def test_what_is_not_a_usable_etcd_is_refused(status: int, body: str, words: str) -> None:
    async def work() -> None:
        async with answering(status, body) as url:
            ledger = EtcdLedger(url, "r", insecure=True)
            with pytest.raises(EtcdRefused, match=words) as caught:
                await ledger.lead(name="c", address="")
            assert caught.value.fix
            await ledger.close()

    within(60, work())


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[1, 2]", b'["commit", Infinity, "digest"]', b"[" * 10_000]
)
def test_a_value_that_fedhp_did_not_write_is_refused(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(self: EtcdClient, key: str, **options: Any) -> Item:
        return Item(value, created=1, changed=1, lease=0)

    monkeypatch.setattr(EtcdClient, "get", get)

    async def work() -> None:
        for read in (find_leader, read_committed):
            with pytest.raises(EtcdRefused, match="did not write"):
                await read("etcd://127.0.0.1:1/test", "r", insecure=True)

    within(60, work())


@needs_etcd
def test_a_password_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(etcd: Etcd) -> None:
        client = EtcdClient(etcd.url, insecure=True)
        await client.call("/v3/auth/user/add", {"name": "root", "password": "secret"})
        await client.call("/v3/auth/role/add", {"name": "root"})
        await client.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        await client.call("/v3/auth/enable", {})
        with pytest.raises(EtcdRefused, match=r"denies access.*user name is empty"):
            await client.get("one")
        await client.close()
        monkeypatch.setenv("ETCDCTL_USER", "root:guess")
        wrong = EtcdLedger(etcd.url, "r", insecure=True)
        with pytest.raises(EtcdRefused, match="denies access") as caught:
            await wrong.lead(name="c", address="")
        assert "guess" not in str(caught.value)
        await wrong.close()
        monkeypatch.setenv("ETCDCTL_USER", "root:secret")
        async with leading(etcd.url) as ledger:
            await ledger.commit(b"one")
            ledger._client._token = "one.that.has.expired"
            await ledger.commit(b"two")
            assert await ledger.committed() == b"two"
        for user, password in (("root:secret", ""), ("root", "secret")):
            monkeypatch.setenv("ETCDCTL_USER", user)
            monkeypatch.setenv("ETCDCTL_PASSWORD", password)
            assert await find_leader(etcd.url, "nobody", insecure=True) is None

    with running_etcd(tmp_path, 1) as etcd:
        within(60, work(etcd))


@needs_etcd
def test_tls_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("coordinator")
    for name, blob in {
        "ca": authority.cert_pem,
        "other": stranger.cert_pem,
        "server": server.cert_chain_pems[0],
        "server-key": server.private_key_pem,
        "client": client.cert_chain_pems[0],
        "client-key": client.private_key_pem,
    }.items():
        blob.write_to_path(str(tmp_path / name))

    def use(authority: str, certificate: str = "", key: str = "") -> None:
        for name, file in (("CACERT", authority), ("CERT", certificate), ("KEY", key)):
            monkeypatch.setenv(f"ETCDCTL_{name}", str(tmp_path / file) if file else "")

    async def work(url: str) -> None:
        secure = url.replace("etcd://", "etcds://")
        use("other", "client", "client-key")
        with pytest.raises(EtcdRefused, match="cannot be trusted"):
            await find_leader(secure, "r")
        use("ca")
        with pytest.raises(EtcdRefused, match="certificate"):
            await find_leader(secure, "r")
        use("ca", "client", "client-key")
        with pytest.raises((EtcdRefused, Unreachable)):
            await find_leader(url, "r", insecure=True)
        assert await find_leader(secure, "r") is None

    options = ("--cert-file", "server", "--key-file", "server-key", "--trusted-ca-file", "ca")
    paths = [option if option.startswith("--") else str(tmp_path / option) for option in options]
    with running_etcd(tmp_path, 1, extra=(*paths, "--client-cert-auth")) as etcd:
        within(60, work(etcd.url))


def test_tls_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCDCTL_CACERT", str(tmp_path / "nowhere.pem"))
    with pytest.raises(ConfigError, match="TLS files for etcd") as caught:
        EtcdClient("etcds://h:1")
    assert "nowhere.pem" in str(caught.value)


@needs_etcd
def test_an_etcd_without_space_is_an_error(tmp_path: Path) -> None:
    noise = generator(8, Purpose.PROBE).bytes(400_000)

    async def fill(ledger: EtcdLedger) -> None:
        for number in range(20):
            await ledger.commit(bytes([number]) + noise)

    async def work(etcd: Etcd) -> None:
        async with leading(etcd.url) as ledger:
            await ledger.commit(b"first")
            with pytest.raises(StorageFull, match="no space left") as caught:
                await fill(ledger)
            assert "--auto-compaction-retention" in caught.value.fix

    with running_etcd(tmp_path, 1, extra=("--quota-backend-bytes", "2000000")) as etcd:
        within(60, work(etcd))


@pytest.mark.parametrize(
    ("url", "members", "prefix"),
    [
        ("etcd://h1:2379", ("http://h1:2379",), "/fedhp"),
        ("etcd://h1", ("http://h1:2379",), "/fedhp"),
        ("etcds://h1:1,10.0.0.2:2/a/b/", ("https://h1:1", "https://10.0.0.2:2"), "/a/b"),
        ("etcd://[::1]:5,h/", ("http://[::1]:5", "http://h:2379"), "/fedhp"),
    ],
)
def test_addresses(url: str, members: tuple[str, ...], prefix: str) -> None:
    address = parse_etcd_url(url)
    assert (address.members, address.prefix) == (members, prefix)


@pytest.mark.parametrize(
    "url",
    [
        *("", "etcd://", "http://h:1", "h:2379", "etcd://h:port", "etcd://h:99999", "etcd://h,,g"),
        *("etcd://user:secret@h:1", "etcd://h/a b", "etcd://h/a?b", "etcd:/h", "etcd://[::1"),
    ],
)
def test_wrong_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match="is not an address of etcd"):
        parse_etcd_url(url)


@pytest.mark.parametrize("run", ["", "a/b", "a b", "../x"])
def test_a_run_name_that_cannot_be_a_key(run: str) -> None:
    with pytest.raises(ConfigError, match="cannot be part of a key"):
        EtcdLedger("etcd://h:1", run, insecure=True)


def test_a_key_is_carried_as_text() -> None:
    assert encode_key("/fedhp") == "L2ZlZGhw"


def test_a_certificate_without_its_authority_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCDCTL_CERT", "mine.pem")
    with pytest.raises(ConfigError, match="ETCDCTL_CACERT is not") as caught:
        EtcdClient("etcds://h:1")
    assert "export ETCDCTL_CACERT" in str(caught.value)
