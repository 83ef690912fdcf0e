"""Mutual TLS 1.3: credentials and channels, who is at the other end, and why it refused.

gRPC tells a refused client no more than "Socket closed"; why_refused finds the true cause.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
import grpc.aio
from cryptography import x509

from fedhp.cluster import CIPHERS_SETTING, RSA_ONLY, TLS13_ONLY
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.addresses import HostPort, parse_address
from fedhp.cluster.protocol.message_checks import one_line
from fedhp.cluster.security import identity as identities
from fedhp.cluster.security.identity import Identity
from fedhp.errors import IdentityError

_RACY = 2.0  # s; a file that changed so lately may change again under the same time stamp
_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)

# What is wrong with the other side's certificate, by OpenSSL's X509_V_ERR_ numbers.
_VERDICTS = {
    9: "has a certificate that is not yet valid by this machine's clock",
    10: "has a certificate that expired by this machine's clock",
    **dict.fromkeys((7, 18, 19, 20, 21), "has a certificate of another authority than ca.crt"),
    26: "has a certificate that is not made for servers",
}
# What the other side says of ours, by the names of TLS alerts.
_ALERTS = {
    "CERTIFICATE_EXPIRED": "says that the certificate expired or is not yet valid",
    "UNKNOWN_CA": "trusts another authority than the one that signed it",
    "CERTIFICATE_REQUIRED": "got no certificate",
    "HANDSHAKE_FAILURE": "found nothing in common to speak, or got no certificate",
    "BAD_CERTIFICATE": "says that the certificate is bad",
    "UNSUPPORTED_CERTIFICATE": "says that the certificate is not made for clients",
    "CERTIFICATE_REVOKED": "says that the certificate was revoked",
    "DECRYPT_ERROR": "says that the certificate's signature is wrong",
    "ACCESS_DENIED": "says that access is denied",
}


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who is at the other end of a call, by its certificate."""

    name: str
    roles: frozenset[str]


class AllowList:
    """The names that may call, one per line of a file, read anew whenever the file changes."""

    def __init__(self, file: Path | None) -> None:
        """Without a file: everyone the authority signed."""
        self._file = file
        self._stamp: tuple[int, ...] = ()
        self._names: frozenset[str] = frozenset()
        if file is not None:
            self._refresh(file)

    def refusal(self, name: str) -> str:
        """Why this name may not call, empty if it may; an unreadable list lets nobody in."""
        if self._file is None:
            return ""
        try:
            self._refresh(self._file)
        except IdentityError as error:
            return error.problem
        return "" if name in self._names else f"{name} is not on the allow-list"

    def _refresh(self, file: Path) -> None:
        try:
            facts = os.stat(file)
            stamp = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            if stamp == self._stamp:
                return
            self._names = frozenset(_listed(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, IdentityError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise IdentityError(
                f"the allow-list {file} cannot be used: {why}",
                allowed="a text file with one name per line; '#' begins a comment",
                fix="mend the file; until then nobody is let in",
            ) from None
        # Two writes within one tick of the clock bear the same times: then look again.
        if time.time() - max(facts.st_mtime, facts.st_ctime) > _RACY:
            self._stamp = stamp


def server_credentials(identity: Identity) -> grpc.ServerCredentials:
    """For a server that takes only clients with a certificate of its authority."""
    _require_tls13()
    pair = (identity.key, identity.certificate)
    return grpc.ssl_server_credentials([pair], identity.authority, require_client_auth=True)


def client_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """For a client that shows its certificate and trusts its authority alone."""
    _require_tls13()
    return grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)


def open_channel(identity: Identity, address: str, *, name: str | None) -> grpc.aio.Channel:
    """A channel to HOST:PORT; there must be `name`, or without one whoever may serve HOST."""
    target = parse_address(address, key="address")
    options: list[tuple[str, Any]] = [*limits.CONNECTION_OPTIONS, ("grpc.enable_http_proxy", 0)]
    if name is not None:
        options.append(("grpc.ssl_target_name_override", identities.check_name(name)))
    # The scheme is spelled out, or gRPC takes a host called "unix" for one.
    url = "dns:///" + quote(str(target), safe=":")
    return grpc.aio.secure_channel(url, client_credentials(identity), options=options)


def peer_of(context: Any) -> PeerIdentity:
    """Who is calling, by the certificate that TLS has verified; never by what a message says."""
    facts = context.auth_context()
    if list(facts.get("transport_security_type", ())) != [b"ssl"]:
        raise IdentityError("the connection is not encrypted", allowed="mutual TLS 1.3")
    version = b"".join(facts.get("ssl_tls_version", ())).decode("ascii", "replace")
    if version != "TLSv1.3":
        raise IdentityError(f"the connection is {version or 'of an unknown kind'}, not TLS 1.3")
    uris = (uri.decode("utf-8", "replace") for uri in facts.get("peer_uri", ()))
    name, roles = identities.name_and_roles(uris)
    return PeerIdentity(name, frozenset(roles))


async def admit(
    context: Any, allowed: AllowList, *, sender: str, roles: Collection[str] = ()
) -> PeerIdentity:
    """The caller, if it may call; otherwise the call ends with the reason.

    `sender` is who the message says it is from; without roles any will do.
    """
    try:
        peer = peer_of(context)
    except IdentityError as error:
        await _abort(context, grpc.StatusCode.UNAUTHENTICATED, error.problem)
    refusal = allowed.refusal(peer.name)
    if not refusal and sender != peer.name:
        refusal = f"{peer.name} calls itself {sender[: limits.NAME_LENGTH]!r}"
    if not refusal and roles and not peer.roles & set(roles):
        has = " and ".join(sorted(peer.roles)) or "nothing"
        refusal = f"{peer.name} is {has} by its certificate, but this needs {' or '.join(roles)}"
    if refusal:
        await _abort(context, grpc.StatusCode.PERMISSION_DENIED, refusal)
    return peer


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a call failed, in words, and whether it will fail until somebody mends a certificate."""

    text: str
    final: bool = False


async def why_refused(
    identity: Identity,
    address: str,
    *,
    name: str | None,
    error: grpc.aio.AioRpcError | None = None,
) -> str:
    """In words, why a call to this address failed; `error` is what gRPC made of it."""
    return (await cause_of(identity, address, name=name, error=error)).text


async def cause_of(
    identity: Identity,
    address: str,
    *,
    name: str | None,
    error: grpc.aio.AioRpcError | None = None,
) -> Cause:
    """The same, and whether trying again is in vain."""
    target = parse_address(address, key="address")
    if error is not None and error.code() in _REFUSALS:
        reason = one_line(str(error.details() or "no reason given"))
        return Cause(f"{address} refused the call: {reason}")
    try:
        identities.recheck(identity)
        identities.load_identity(identity.folder, identity.name)
    except IdentityError as wrong:
        return Cause("; ".join(part for part in (wrong.problem, wrong.fix) if part), final=True)
    found = await asyncio.to_thread(_try_handshake, identity, target, name=name)
    return Cause(f"{address} {found.text}", found.final)


async def facts_at(identity: Identity, address: str) -> identities.Facts | None:
    """What the certificate at an address says; None where there is no handshake."""

    target = parse_address(address, key="address")

    def look() -> identities.Facts | None:
        try:
            with (
                socket.create_connection(
                    (target.host, target.port), limits.CONNECT_SECONDS
                ) as plain,
                _context(identity).wrap_socket(plain) as connection,
            ):
                return _facts(connection.getpeercert(binary_form=True))
        except OSError:  # TLS's own errors too
            return None

    return await asyncio.to_thread(look)


def _require_tls13() -> None:
    if not TLS13_ONLY:
        raise IdentityError(
            "gRPC was imported before fedhp.cluster, so it would also speak TLS 1.2",
            allowed="TLS 1.3 alone",
            fix="import fedhp.cluster before grpc, or set in the environment "
            f"{CIPHERS_SETTING}={RSA_ONLY}",
        )


def _listed(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        name = line.partition("#")[0].strip()
        if name:
            try:
                yield identities.check_name(name)
            except IdentityError as error:
                raise IdentityError(f"line {number}: {error.problem}") from None


async def _abort(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    await context.abort(code, why)
    raise AssertionError("gRPC's abort raises")


def _try_handshake(identity: Identity, target: HostPort, *, name: str | None) -> Cause:
    """What comes of a handshake with the identity's files, outside gRPC."""
    patience = limits.CONNECT_SECONDS
    try:
        plain = socket.create_connection((target.host, target.port), timeout=patience)
    except ConnectionRefusedError:
        return Cause("refused the connection: nobody listens there; is the program running?")
    except TimeoutError:
        return Cause(
            f"did not answer within {patience:g} s: the machine is off, or a firewall is between"
        )
    except socket.gaierror:
        return Cause("cannot be found: this machine knows no host of that name")
    except OSError as error:
        return Cause(f"cannot be reached: {error.strerror or error}")
    with plain:
        shown = False
        try:
            with _context(identity).wrap_socket(plain) as connection:
                shown = True
                stranger = _wrong_side(
                    connection.getpeercert(binary_form=True), target.host, name=name
                )
                # With TLS 1.3 a handshake ends here before the other side has judged our
                # certificate: its verdict, or HTTP/2's first frame, is in the first read.
                if stranger:
                    return Cause(stranger, final=True)
                return Cause(_verdict(identity, connection.recv(1)))
        except ssl.SSLCertVerificationError as error:
            other = f"has a bad certificate: {error.verify_message}"
            return Cause(_VERDICTS.get(error.verify_code, other), final=True)
        except TimeoutError:
            return Cause(f"took the connection but said nothing for {patience:g} s: is it stuck?")
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            if shown:
                return Cause(_verdict(identity, b""))
            return Cause("broke off in the handshake: it speaks no TLS 1.3, or is another program")
        except ssl.SSLError as error:
            return Cause(_alert(identity, error.reason or ""), final=True)
        except OSError as error:
            return Cause(f"broke the connection: {error.strerror or error}")


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # done after it, with words; nothing but the handshake is sent
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=identity.authority.decode("ascii"))
    stem = str(identity.folder / identity.name)
    context.load_cert_chain(f"{stem}.crt", f"{stem}.key")
    return context


def _wrong_side(certificate: bytes | None, host: str, *, name: str | None) -> str:
    facts = _facts(certificate)
    if facts is None:
        return "showed no certificate"
    if facts.may_serve(host if name is None else name):
        return ""
    if name is not None:
        return f"is {facts.name}, not {name}"
    served = ", ".join((facts.name, *facts.hosts))
    return (
        f"is {facts.name}, whose certificate is not for {host} but for {served}; "
        f"issue it again with --host {host}"
    )


def _facts(certificate: bytes | None) -> identities.Facts | None:
    if certificate is None:
        return None
    file = Path("its certificate")
    return identities.describe(file, x509.load_der_x509_certificate(certificate))


def _verdict(identity: Identity, first: bytes) -> str:
    if first:
        return (
            f"takes the certificate of {identity.name}: the connection works, TLS is not the cause"
        )
    return (
        f"closed the connection without a word when it saw the certificate of {identity.name}. "
        f"That is valid by this machine's clock ({identities.said(datetime.now(UTC))}), and one "
        "authority signed both sides: compare the clocks of the two machines, and their ca.crt"
    )


def _alert(identity: Identity, reason: str) -> str:
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return "speaks only TLS 1.2 or older, but TLS 1.3 is required"
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        return "speaks no TLS: another program listens there, or one without certificates"
    for alert, words in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return f"refused the certificate of {identity.name}: it {words}"
    return f"ended the handshake: {reason.replace('_', ' ').lower() or 'no reason given'}"
