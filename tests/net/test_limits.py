"""Limits of the protocol as both sides know them, and calls at exactly these limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from fedhp.cluster.protocol import calls, limits, message_checks, setup, versions
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import HostPort, own_address
from fedhp.cluster.protocol.calls import Messages
from fedhp.cluster.protocol.group_codec import FragmentCodec
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.stubs import CoordinatorStub, PeerStub
from net.good_messages import GOOD, SCENE

MEGABYTE = 2**20


def test_bounds_that_releases_must_agree_on() -> None:
    """One that a release lowers alone refuses what the others send."""
    assert {name: value for name, value in vars(limits).items() if name.endswith("_BYTES")} == {
        "MESSAGE_BYTES": 4 * MEGABYTE,
        "MODEL_CHUNK_BYTES": MEGABYTE,
        "CHUNK_MESSAGE_BYTES": MEGABYTE + 65_536,
        "REQUEST_BYTES": 262_144,
        "REQUEST_WINDOW_BYTES": 65_536,
        "LINK_BYTES": 256,
        "MODEL_BYTES": 8192 * MEGABYTE,
        "EXPERIMENT_BYTES": MEGABYTE,
        "PROBE_BYTES": 16 * MEGABYTE,
        "EXCESS_BYTES": MEGABYTE,
    }
    counts = (limits.NAME_LENGTH, limits.ADDRESS_LENGTH, limits.TEXT_LENGTH)
    assert counts == (64, 255, 2000)
    assert (limits.MAX_WORKERS, limits.MAX_LINKS, limits.MODEL_VERSIONS) == (10_000, 10_000, 8)
    assert (limits.SEQUENCE_WINDOW, limits.STRIKES, limits.PROTOCOL_VERSION) == (4096, 5, 1)
    assert (setup.MAX_PARTS, setup.MAX_FACTS, setup.MAX_SCALED, setup.SKETCH) == (64, 300, 64, 2)


def test_waits_of_callers_are_longer_than_those_of_who_answers() -> None:
    assert limits.POLL_SECONDS + limits.POLL_SLACK == 20.0
    assert limits.BEAT_SECONDS < limits.POLL_SECONDS < limits.JOIN_SECONDS
    assert limits.CONNECT_SECONDS < limits.COMMAND_SECONDS < limits.DIAL_BACK_SECONDS
    assert limits.REQUEST_SECONDS == limits.REPORT_SECONDS == limits.CHUNK_SECONDS == 20.0
    assert limits.PEER_QUARANTINE_SECONDS == 600.0


def test_options_of_servers() -> None:
    small, large = (limits.coordinator_limits(workers) for workers in (0, 1000))
    assert small == limits.STANDBY_LIMITS
    assert (small.message, large.message) == (262_144, 262_144 + 256_000)
    assert (small.window, small.streams) == (65_536, 32)
    worker = limits.WORKER_LIMITS
    assert (worker.message, worker.window, worker.streams) == (MEGABYTE + 65_536, 262_144, 8)
    options = dict(worker.options())
    assert options["grpc.max_receive_message_length"] == worker.message + MEGABYTE
    assert options["grpc.max_concurrent_streams"] == 8
    assert options["grpc.http2.lookahead_bytes"] == 262_144
    assert options["grpc.http2.bdp_probe"] == options["grpc.so_reuseport"] == 0
    assert options["grpc.max_send_message_length"] == limits.MESSAGE_BYTES
    keepalive = options["grpc.keepalive_time_ms"], options["grpc.keepalive_timeout_ms"]
    assert keepalive == (20_000, 10_000)
    first, longest = "grpc.initial_reconnect_backoff_ms", "grpc.max_reconnect_backoff_ms"
    assert (options[first], options[longest]) == (200, 2000)


class Call:
    """The context of a call: what was sent, then the end, or nothing more at all."""

    def __init__(self, *sent: bytes, endless: bool = False) -> None:
        self._sent, self._endless = list(sent), endless

    async def read(self) -> Any:
        if self._sent:
            return self._sent.pop(0)
        if self._endless:
            await asyncio.Event().wait()
        return grpc.aio.EOF


def only(call: Call, *, most: int) -> wire.PeerAddress:
    async def work() -> wire.PeerAddress:
        return await Messages(call, wire.PeerAddress, most=most).only()

    return asyncio.run(work())


def test_a_message_of_exactly_the_limit_is_read() -> None:
    message = wire.PeerAddress(worker=3, name="x" * 50)
    content = message.SerializeToString()
    assert only(Call(content), most=len(content)) == message
    with pytest.raises(Refused, match=f"has {len(content)} bytes, over {len(content) - 1}"):
        only(Call(content), most=len(content) - 1)


def test_a_call_without_its_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 0.001)
    with pytest.raises(Refused, match="did not come in time") as caught:
        only(Call(endless=True), most=9)
    assert caught.value.reason == "patience"
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 20.0)
    monkeypatch.setattr(calls, "CLOSING_SECONDS", 0.0)
    with pytest.raises(Refused, match="far more than 9 bytes") as caught:
        only(Call(), most=9)
    assert caught.value.reason == "empty"
    with pytest.raises(Refused, match="3 bytes are no PeerAddress"):
        only(Call(b"\xff\xff\xff"), most=9)


@pytest.mark.parametrize("size", [1, 31, 33])
def test_a_key_has_its_length_or_is_absent(size: int) -> None:
    reply = GOOD["JoinReply"].make(SCENE)
    for right in (b"", b"k" * 32):
        reply.key = right
        message_checks.check_join_reply(reply)
    reply.key = b"k" * size
    with pytest.raises(Refused, match=f"has {size} bytes, not 32"):
        message_checks.check_join_reply(reply)


def test_calls_are_of_the_kind_that_the_service_declares() -> None:
    made: dict[str, str] = {}

    def record(kind: str) -> Callable[..., str]:
        def make(path: str, **_options: Any) -> str:
            made[path.rpartition("/")[2]] = kind
            return path

        return make

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    channel = SimpleNamespace(**{kind: record(kind) for kind in kinds})
    for stub, name in ((CoordinatorStub, "Coordinator"), (PeerStub, "Peer")):
        made.clear()
        service = wire.DESCRIPTOR.services_by_name[name]
        calls = stub(channel)
        assert made.keys() == {method.name for method in service.methods}
        for method in service.methods:
            assert getattr(calls, method.name) == f"/{service.full_name}/{method.name}"
            sides = made[method.name].split("_")
            streams = [side == "stream" for side in sides]
            assert streams == [method.client_streaming, method.server_streaming]
        with pytest.raises(AttributeError, match="no method Nothing"):
            calls.Nothing  # noqa: B018


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return "9.9"

    monkeypatch.setattr(metadata, "version", version)
    found = versions.installed.__wrapped__()
    assert found["torch"] == "missing"
    assert found["numpy"] == "9.9"


def test_where_others_reach_a_server_that_listens_everywhere() -> None:
    here = HostPort("127.0.0.1", 7000)
    assert own_address(here, towards=None) == here
    everywhere = HostPort("0.0.0.0", 7000)
    assert own_address(everywhere, towards=HostPort("127.0.0.1", 9)) == here
    assert own_address(everywhere, towards=None) == HostPort(socket.gethostname(), 7000)


def test_group_averages_have_two_encodings() -> None:
    with pytest.raises(ValueError, match="no compression 'fp16'"):
        FragmentCodec(SimpleNamespace(start=0, middle=1, stop=2), "fp16")  # type: ignore[arg-type]
