"""Why a connection failed, in words; who is on the allow-list; what an address may be."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.addresses import parse_address
from fedhp.cluster.security import tls
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import AllowList, open_channel
from fedhp.errors import ConfigError, IdentityError
from net.identities import (
    DENIED,
    FAR_AHEAD,
    LONG_AGO,
    plain_server,
    read_first,
    run,
    serving,
    turned_away,
    why_refused,
)
from waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("patient")


def asks_for(authority: Path) -> Callable[[ssl.SSLContext], None]:
    """A server that takes only clients of this authority."""

    def change(context: ssl.SSLContext) -> None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority / "ca.crt")

    return change


def test_the_words_of_a_server_that_says_why(ours: Path, theirs: Path) -> None:
    """With TLS 1.3 they come after the handshake."""
    server, worker = load_identity(ours, "server"), load_identity(ours, "worker-1")
    with plain_server(server, asks_for(theirs)) as (address, _):
        why = asyncio.run(why_refused(worker, address, name="server"))
        assert "refused the certificate of worker-1: it trusts another authority" in why
    with plain_server(server, asks_for(ours)) as (address, _):
        old = load_identity(ours, "old", now=LONG_AGO)
        why = tls._try_handshake(old, parse_address(address, key=""), "server").text
        assert "certificate has expired" in why
        bare = ssl.create_default_context(cafile=ours / "ca.crt")
        bare.check_hostname = False
        with pytest.raises(ssl.SSLError) as caught:
            read_first(address, bare)
        assert "it got no certificate" in tls._alert_text(worker, caught.value.reason)


def test_a_server_that_closes_without_a_word(ours: Path, theirs: Path) -> None:
    async def scene() -> None:
        mixed = replace(load_identity(ours, "server"), authority=(theirs / "ca.crt").read_bytes())
        worker = load_identity(ours, "worker-1")
        async with serving(mixed) as (address, door):
            error = await turned_away(worker, address, name="server")
            why = await why_refused(worker, address, name="server", error=error)
            assert "closed the connection without a reason" in why
            assert "compare the clocks of the two machines, and their ca.crt" in why
            assert door.calls == 0

    run(scene)


@pytest.mark.parametrize(
    ("who", "when", "words"),
    [("old", LONG_AGO, "certificate that has expired"), ("early", FAR_AHEAD, "not yet valid")],
)
def test_a_server_out_of_its_time(ours: Path, who: str, when: datetime, words: str) -> None:
    async def scene() -> None:
        worker = load_identity(ours, "worker-1")
        async with serving(load_identity(ours, who, now=when)) as (address, _):
            error = await turned_away(worker, address, name=who)
            assert words in await why_refused(worker, address, name=who, error=error)

    run(scene)


def test_nobody_there_no_tls_and_no_answer(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = load_identity(ours, "worker-1")

    def why(address: str) -> str:
        return asyncio.run(why_refused(worker, address, name=None))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with monkeypatch.context() as hasty:
            hasty.setattr(limits, "CONNECT_SECONDS", 0.2)
            assert "sent nothing for 0.2 s" in why(address)
    assert "nothing listens there" in why(address)
    assert "does not know the host" in why("no-such-host.invalid:7000")

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            plain, _ = listener.accept()
            with plain:
                plain.sendall(b"220 hello, this is no TLS\r\n")
                plain.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        assert "does not speak TLS" in why(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join(PATIENCE)


def test_files_that_changed_since_they_were_loaded(ours: Path, tmp_path: Path) -> None:
    for file in ("ca.crt", "worker-1.crt", "worker-1.key"):
        shutil.copy(ours / file, tmp_path)
    worker = load_identity(tmp_path, "worker-1")
    (tmp_path / "worker-1.key").chmod(0o640)
    assert "(mode 0640); chmod 600" in asyncio.run(why_refused(worker, "127.0.0.1:1", name=None))
    (tmp_path / "worker-1.key").unlink()
    assert "is missing" in asyncio.run(why_refused(worker, "127.0.0.1:1", name=None))


def test_what_a_peer_writes_is_cut_and_cleaned(ours: Path) -> None:
    error = grpc.aio.AioRpcError(
        DENIED, grpc.aio.Metadata(), grpc.aio.Metadata(), details="\x1b[2J" + "x" * 9999
    )
    worker = load_identity(ours, "worker-1")
    why = asyncio.run(why_refused(worker, "a:1", name=None, error=error))
    assert why.isprintable()
    assert len(why) < 2 * limits.TEXT_LENGTH


@pytest.mark.parametrize(
    "address",
    ["", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "unix:/tmp/x", "::1:7", "[a]:7", "a b:7"],
)
def test_bad_addresses(ours: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        open_channel(load_identity(ours, "worker-1"), address, name=None)


def test_a_host_is_never_taken_for_a_scheme(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To gRPC "unix:7000" is a file, unless the scheme is given."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("7000")
        listener.listen()
        listener.setblocking(False)
        run(lambda: turned_away(load_identity(ours, "worker-1"), "unix:7000", name="server"))
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_list_is_read_anew_at_every_change(tmp_path: Path) -> None:
    file = tmp_path / "allowed"
    file.write_text("a\n")
    allowed = AllowList(file)
    assert (allowed.refusal("a"), allowed.refusal("b")) == ("", "b is not on the allow-list")
    file.write_text("b\n")
    assert (allowed.refusal("a"), allowed.refusal("b")) == ("a is not on the allow-list", "")
    assert AllowList(None).refusal("anybody") == ""


@pytest.mark.parametrize(("age", "noticed"), [(0.5, True), (60.0, False)])
def test_two_changes_within_a_tick_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, noticed: bool
) -> None:
    """A time stamp of just now tells nothing; that of a minute ago saves reading the file."""
    file = tmp_path / "allowed"
    file.write_text("a\n")
    same, then = os.stat(file), time.time() + age
    with monkeypatch.context() as frozen:
        frozen.setattr(os, "stat", lambda _: same)
        frozen.setattr(time, "time", lambda: then)
        allowed = AllowList(file)
        file.write_text("b\n")
        refusal = allowed.refusal("b")
    assert (refusal == "") is noticed


def test_a_list_that_cannot_be_used_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "allowed"
    file.write_text("a\n")
    allowed = AllowList(file)
    assert allowed.refusal("a") == ""
    for content, words in ((b"a\nb c\n", "line 2: 'b c' cannot be"), (b"\xff", "cannot be used")):
        file.write_bytes(content)
        assert words in allowed.refusal("a")
        with pytest.raises(IdentityError, match="the allow-list"):
            AllowList(file)
    file.unlink()
    assert "No such file" in allowed.refusal("a")
    file.write_text("a\n")
    assert allowed.refusal("a") == ""
