"""Names and addresses of machines: what is one, at every limit, and what is said of the others."""

from __future__ import annotations

import errno
import socket

import pytest

from fedhp.cluster.protocol.addresses import (
    HostPort,
    cannot_listen,
    check_free,
    ip_address_in,
    is_host,
    is_name,
    is_reachable,
    parse_address,
    parse_listen,
    reserve_port,
    same_host,
    split_host_port,
)
from fedhp.errors import AddressUnavailable, ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node1.lan:7000", HostPort("node1.lan", 7000)),
        ("10.0.0.5:0", HostPort("10.0.0.5", 0)),
        ("h:65535", HostPort("h", 65535)),
        ("h:65536", None),
        ("[fd00:0::5]:7000", HostPort("fd00::5", 7000)),
        ("[10.0.0.5]:7000", None),  # brackets are for IPv6
        ("fd00::5:7000", None),
        ("h", None),
        (":7000", None),
        ("h:", None),
        ("h:-1", None),
        ("x" * 253 + ":1", HostPort("x" * 253, 1)),
        ("x" * 254 + ":1", None),
    ],
)
def test_a_host_and_a_port(text: str, address: HostPort | None) -> None:
    assert split_host_port(text) == address


def test_an_address_to_connect_to_has_a_port_and_one_to_listen_on_need_not() -> None:
    assert parse_listen("0.0.0.0:0", key="--listen") == HostPort("0.0.0.0", 0)
    assert parse_address("h:1", key="--to") == HostPort("h", 1)
    for parse, text in ((parse_address, "h:0"), (parse_address, "h"), (parse_listen, "h")):
        with pytest.raises(ConfigError, match=f"'{text}' is not an address") as caught:
            parse(text, key="--x")
        assert caught.value.key == "--x"
        with pytest.raises(ConfigError) as caught:
            parse("y" * 400, key="--x")
        assert f"{'y' * 255}'" in str(caught.value)
        assert "y" * 256 not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "text", "everywhere", "family"),
    [
        ("0.0.0.0", "0.0.0.0:5", True, socket.AF_INET),
        ("::", "[::]:5", True, socket.AF_INET6),
        ("::1", "[::1]:5", False, socket.AF_INET6),
        ("127.0.0.1", "127.0.0.1:5", False, socket.AF_INET),
        ("h", "h:5", False, socket.AF_INET),
    ],
)
def test_what_an_address_says_of_itself(
    host: str, text: str, everywhere: bool, family: socket.AddressFamily
) -> None:
    address = HostPort(host, 5)
    assert (str(address), address.everywhere, address.family) == (text, everywhere, family)


def test_names_of_machines() -> None:
    for name in ("a", "7", "a-b_c.d", "x" * 64):
        assert is_name(name)
    for name in ("", "x" * 65, "-a", "a.", "_a", "a/b", "a\n"):
        assert not is_name(name)


def test_names_and_numbers_of_hosts() -> None:
    long = ".".join(["x" * 63] * 3 + ["y" * 61])
    for host in ("h", "a_b.lan", "1.example", "10.0.0.5", "fd00::5", long, "x" * 63):
        assert is_host(host)
    for host in ("", "a..b", "-a", "a-", "x" * 64, long + "y", "10.0.5", "h.7", "0x7f", "h h"):
        assert not is_host(host)
    for host in ("0.0.0.0", "::", "224.0.0.1", "ff02::1", "-a"):
        assert not is_reachable(host)
    for host in ("127.0.0.1", "h", "fd00::5"):
        assert is_reachable(host)


def test_hosts_that_are_written_in_two_ways_are_the_same() -> None:
    assert same_host("fd00::5", "fd00:0:0::5")
    assert same_host("Node.LAN", "node.lan")
    assert not same_host("a", "b")
    assert not same_host("10.0.0.5", "10.0.0.6")
    assert ip_address_in("node.lan") is None


def test_a_port_that_is_in_use_is_not_free() -> None:
    with reserve_port(HostPort("127.0.0.1", 0), key="--listen", listening=True) as taken:
        assert taken.port > 0
        assert taken.host == "127.0.0.1"
        with pytest.raises(AddressUnavailable, match="cannot listen on") as caught:
            check_free(taken, key="--listen")
        assert caught.value.key == "--listen"
    check_free(taken, key="--listen")
    with reserve_port(taken, key="--listen"), reserve_port(taken, key="--listen"):
        pass  # nobody listens: a server of this process can bind
    with pytest.raises(ConfigError):
        check_free(HostPort("not a host", 1), key="--listen")


@pytest.mark.parametrize(
    ("code", "passing"),
    [
        (errno.EADDRINUSE, True),
        (errno.EADDRNOTAVAIL, True),
        (socket.EAI_AGAIN, True),
        (errno.EACCES, False),
        (socket.EAI_NONAME, False),
    ],
)
def test_what_may_pass_of_addresses_that_cannot_be_listened_on(code: int, passing: bool) -> None:
    error = cannot_listen("h:1", OSError(code, "the reason"), key="--listen")
    assert isinstance(error, AddressUnavailable) is passing
    assert "cannot listen on h:1: the reason" in str(error)
    assert "no words" in str(cannot_listen("h:1", OSError("no words"), key="--listen"))
