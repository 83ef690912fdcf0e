"""Real handshakes on loopback: who gets in and who does not, with the cause in words."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fedhp.cluster.security import tls
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import AllowList, open_channel, peer_of
from fedhp.errors import IdentityError
from net.identities import (
    DENIED,
    FAR_AHEAD,
    LONG_AGO,
    UNAVAILABLE,
    Doorkeeper,
    knock,
    plain_server,
    read_first,
    run,
    serving,
    sign,
    turned_away,
    why_refused,
)
from waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("patient")


def test_who_has_a_certificate_gets_in_and_is_known(ours: Path) -> None:
    async def scene() -> None:
        worker = load_identity(ours, "worker-1")
        async with serving(load_identity(ours, "server")) as (address, _):
            port = address.rpartition(":")[2]
            for there, name in (
                (address, "server"),
                (address, None),
                (f"localhost:{port}", None),
            ):
                async with open_channel(worker, there, name=name) as channel:
                    assert await knock(channel, "worker-1") == "worker-1 worker"
                assert "the connection works" in await why_refused(worker, there, name=name)

    run(scene)


def test_addresses_of_version_6(ours: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error.strerror}")

    async def scene() -> None:
        worker = load_identity(ours, "worker-1")
        async with serving(load_identity(ours, "server"), host="[::1]") as (address, _):
            for there in (address, address.replace("::1", "0:0::1")):
                async with open_channel(worker, there, name=None) as channel:
                    assert await knock(channel, "worker-1")
                assert "the connection works" in await why_refused(worker, there, name=None)

    run(scene)


def test_1_no_certificate(ours: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(load_identity(ours, "server")) as (address, door):
            bare = grpc.ssl_channel_credentials((ours / "ca.crt").read_bytes())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with grpc.aio.secure_channel(address, bare) as channel:
                    await knock(channel, "worker-1")
            assert caught.value.code() is UNAVAILABLE
            assert door.calls == 0

    run(scene)
    (tmp_path / "ca.crt").write_bytes((ours / "ca.crt").read_bytes())
    with pytest.raises(IdentityError, match=r"worker-1\.crt is missing"):
        load_identity(tmp_path, "worker-1")


@pytest.mark.parametrize(
    ("who", "when", "words"),
    [
        ("old", LONG_AGO, "expired on {0.ends:%Y-%m-%d %H:%M} UTC"),
        ("early", FAR_AHEAD, "not yet valid"),
    ],
    ids=["2_expired", "3_not_yet_valid"],
)
def test_a_certificate_out_of_its_time(ours: Path, who: str, when: datetime, words: str) -> None:
    async def scene() -> None:
        identity = load_identity(ours, who, now=when)
        with pytest.raises(IdentityError, match=words.format(identity)):
            load_identity(ours, who)
        async with serving(load_identity(ours, "server")) as (address, door):
            error = await turned_away(identity, address, name="server")
            assert error.code() is UNAVAILABLE
            assert door.calls == 0
            why = await why_refused(identity, address, name="server", error=error)
            assert words.format(identity) in why
            assert "clock" in why

    run(scene)


def test_4_a_foreign_authority(ours: Path, theirs: Path) -> None:
    async def scene() -> None:
        stranger = load_identity(theirs, "worker-1")
        spy = replace(stranger, authority=load_identity(ours, "worker-1").authority)
        async with serving(load_identity(ours, "server")) as (address, door):
            error = await turned_away(stranger, address, name="server")
            why = await why_refused(stranger, address, name="server", error=error)
            assert "has a certificate of another authority than ca.crt" in why
            error = await turned_away(spy, address, name="server")  # it takes the server's
            assert error.code() is UNAVAILABLE
            why = await why_refused(spy, address, name="server", error=error)
            assert "was signed by another authority" in why
            assert door.calls == 0

    run(scene)


def test_5_a_server_at_another_host(ours: Path) -> None:
    async def scene() -> None:
        worker = load_identity(ours, "worker-1")
        async with serving(load_identity(ours, "nowhere")) as (address, door):
            error = await turned_away(worker, address, name=None)
            assert error.code() is UNAVAILABLE
            assert door.calls == 0
            why = await why_refused(worker, address, name=None, error=error)
            assert "not for 127.0.0.1 but for nowhere, elsewhere.example" in why
            assert "--host 127.0.0.1" in why
            async with open_channel(worker, address, name="nowhere") as channel:
                assert await knock(channel, "worker-1")

    run(scene)


def test_6_in_the_name_of_another(ours: Path) -> None:
    async def scene() -> None:
        thief = load_identity(ours, "worker-2")
        async with serving(load_identity(ours, "server")) as (address, _):
            error = await turned_away(thief, address, name="server", sender="worker-1")
            assert error.code() is DENIED
            why = await why_refused(thief, address, name="server", error=error)
            assert "refused the call: sender:" in why
            assert why.endswith("from 'worker-1'")
        async with serving(thief) as (address, door):  # and as a server
            caller = load_identity(ours, "worker-1")
            error = await turned_away(caller, address, name="server")
            assert error.code() is UNAVAILABLE
            assert door.calls == 0
            why = await why_refused(caller, address, name="server", error=error)
            assert why == f"{address} is worker-2, not server"

    run(scene)


def test_7_removed_from_the_allow_list(ours: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        file = tmp_path / "allowed"
        file.write_text("worker-1  # in the lab\n\n# gone: worker-3\nworker-2\n")
        worker = load_identity(ours, "worker-1")
        door = Doorkeeper(AllowList(file))
        async with (
            serving(load_identity(ours, "server"), door) as (address, _),
            open_channel(worker, address, name="server") as channel,
        ):
            assert await knock(channel, "worker-1")
            file.write_text("worker-2\n")
            with pytest.raises(grpc.aio.AioRpcError) as caught:  # on the open connection
                await knock(channel, "worker-1")
            assert caught.value.code() is DENIED
            why = await why_refused(worker, address, name="server", error=caught.value)
            assert "refused the call: unknown: 'worker-1' is not on the allow-list" in why

    run(scene)


def test_a_role_is_needed(ours: Path) -> None:
    async def scene() -> None:
        door = Doorkeeper(AllowList(None), roles=("operator", "coordinator"))
        async with serving(load_identity(ours, "server"), door) as (address, _):
            error = await turned_away(load_identity(ours, "worker-1"), address, name="server")
            assert error.code() is DENIED
            assert "needs coordinator or operator" in str(error.details())
            async with open_channel(load_identity(ours, "server"), address, name=None) as channel:
                assert await knock(channel, "server") == "server coordinator"

    run(scene)


@pytest.mark.parametrize(
    ("uris", "words"),
    [([], "no name"), (["fedhp://worker-1", "fedhp://worker-2"], "2 names")],
    ids=["none", "several"],
)
def test_a_certificate_without_exactly_one_name(
    ours: Path, uris: list[str], words: str, tmp_path: Path
) -> None:
    async def scene() -> None:
        for file in ("ca.crt", "ca.key"):
            (tmp_path / file).write_bytes((ours / file).read_bytes())
        (tmp_path / "ca.key").chmod(0o600)
        sign(tmp_path, "odd", uris=uris)
        pair = [(tmp_path / f"odd.{end}").read_bytes() for end in ("crt", "key")]
        odd = replace(load_identity(ours, "worker-1"), certificate=pair[0], key=pair[1])
        async with serving(load_identity(ours, "server")) as (address, _):
            error = await turned_away(odd, address, name="server")
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert words in str(error.details())

    run(scene)


def test_our_server_speaks_tls_1_3_only(ours: Path) -> None:
    async def scene() -> None:
        context = tls._context(load_identity(ours, "worker-1"))
        async with serving(load_identity(ours, "server")) as (address, _):
            assert await asyncio.to_thread(read_first, address, context)
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(read_first, address, context)

    run(scene)


def test_our_client_speaks_tls_1_3_only(ours: Path) -> None:
    def at_most(version: ssl.TLSVersion) -> Callable[[ssl.SSLContext], None]:
        return lambda context: setattr(context, "maximum_version", version)

    async def scene() -> None:
        worker, server = load_identity(ours, "worker-1"), load_identity(ours, "server")
        with plain_server(server, at_most(ssl.TLSVersion.TLSv1_3)) as (address, seen):
            async with open_channel(worker, address, name="server") as channel:
                channel.get_state(try_to_connect=True)
                assert await asyncio.to_thread(seen.get, timeout=PATIENCE) == "TLSv1.3"
        with plain_server(server, at_most(ssl.TLSVersion.TLSv1_2)) as (address, seen):
            error = await turned_away(worker, address, name="server")
            assert error.code() is UNAVAILABLE
            assert seen.empty()
            why = await why_refused(worker, address, name="server", error=error)
            assert why == f"{address} speaks only TLS 1.2 or older, but TLS 1.3 is required"

    run(scene)


def test_too_late_for_tls_1_3_only(ours: Path) -> None:
    program = (
        "import grpc, sys, pathlib\n"
        "from fedhp.cluster.security import identity as who, tls\n"
        "identity = who.load_identity(pathlib.Path(sys.argv[1]), 'server')\n"
        "for make in (tls.server_credentials, tls.client_credentials):\n"
        "    try: make(identity)\n"
        "    except who.IdentityError as error: print(error.fix)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRPC_")}
    command = [sys.executable, "-c", program, str(ours)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment
    )
    assert done.stdout.count("import fedhp.cluster before grpc") == 2


@dataclass
class Facts:
    """A call's context, as far as peer_of looks at it."""

    facts: dict[str, list[bytes]]

    def auth_context(self) -> dict[str, list[bytes]]:
        return self.facts


def test_a_peer_is_known_only_through_tls_1_3() -> None:
    facts = {
        "transport_security_type": [b"ssl"],
        "ssl_tls_version": [b"TLSv1.3"],
        "peer_uri": [b"fedhp://a", b"fedhp-role:worker", b"fedhp-role:king", b"https://b"],
    }
    assert peer_of(Facts(facts)) == tls.PeerIdentity("a", frozenset({"worker"}))
    for key, value in (
        ("transport_security_type", [b"insecure"]),
        ("ssl_tls_version", [b"TLSv1.2"]),
        ("ssl_tls_version", []),
        ("peer_uri", [b"fedhp://\xff"]),
    ):
        with pytest.raises(IdentityError):
            peer_of(Facts({**facts, key: value}))
    with pytest.raises(IdentityError):
        peer_of(Facts({}))
