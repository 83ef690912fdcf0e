"""Mutual TLS 1.3: credentials and channels, who is at the other end, and why it refused.

gRPC tells a refused client only "Socket closed"; cause_of finds the true one.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from fedhp.cluster import CIPHERS_SETTING, RSA_ONLY, TLS13_ONLY
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.addresses import HostPort, parse_address, same_host
from fedhp.cluster.protocol.message_checks import one_line
from fedhp.cluster.security import identity as identities
from fedhp.cluster.security.identity import Identity
from fedhp.cluster.security.renewal import AnyIdentity, renewable
from fedhp.errors import ExitCode, IdentityError

_RECENT_SECONDS = 2.0  # a file that changed so recently may change again with the same times
_REFUSAL_CODES = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)

# What is wrong with the other side's certificate, by OpenSSL's X509_V_ERR_ numbers.
_CERTIFICATE_ERRORS = {
    9: "has a certificate that is not yet valid, by this machine's clock",
    10: "has a certificate that has expired, by this machine's clock",
    **dict.fromkeys((7, 18, 19, 20, 21), "has a certificate of another authority than ca.crt"),
    26: "has a certificate that is not for servers",
}
_DATE_ERRORS = (9, 10)  # they pass: that machine gets a new certificate, or a clock is set
# What the other side says about ours, by the names of TLS alerts.
_TLS_ALERTS = {
    "CERTIFICATE_EXPIRED": "says that the certificate has expired or is not yet valid",
    "UNKNOWN_CA": "trusts another authority than the one that signed it",
    "CERTIFICATE_REQUIRED": "got no certificate",
    "HANDSHAKE_FAILURE": "has no TLS settings in common, or got no certificate",
    "BAD_CERTIFICATE": "says that the certificate is bad",
    "UNSUPPORTED_CERTIFICATE": "says that the certificate is not for clients",
    "CERTIFICATE_REVOKED": "says that the certificate was revoked",
    "DECRYPT_ERROR": "says that the certificate's signature is wrong",
    "ACCESS_DENIED": "says that access is denied",
}


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who is at the other end of a call, by its certificate."""

    name: str
    roles: frozenset[str]
    certificate: bytes = field(default=b"", repr=False, compare=False)  # PEM


class AllowList:
    """The names that may call, one per line of a file, read again whenever the file changes."""

    def __init__(self, file: Path | None, names: frozenset[str] | None = None) -> None:
        """Without a file these names, or every one that the authority signed, may call."""
        self._file = file
        self._stamp: tuple[int, ...] = ()
        self.names = names  # as last read; None: all
        if file is not None:
            self._refresh(file)

    def refusal(self, name: str) -> str:
        """Why this name may not call, empty if it may; with an unreadable list nobody may."""
        if self.names is None:
            return ""
        try:
            if self._file is not None:
                self._refresh(self._file)
        except IdentityError as error:
            return error.problem
        return "" if name in self.names else f"{name} is not on the allow-list"

    def _refresh(self, file: Path) -> None:
        try:
            status = os.stat(file)
            stamp = identities.stamp_of(status)
            if stamp == self._stamp:
                return
            self.names = frozenset(_listed(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, IdentityError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise IdentityError(
                f"the allow-list {file} cannot be used: {why}",
                allowed="a text file with one name per line; '#' begins a comment",
                fix="repair the file; until then nobody may call",
            ) from None
        # Two writes within one tick of the clock have the same times: then read it again next time.
        if time.time() - max(status.st_mtime, status.st_ctime) > _RECENT_SECONDS:
            self._stamp = stamp


def server_credentials(identity: AnyIdentity) -> grpc.ServerCredentials:
    """For a server that accepts only clients with a certificate of its authority.

    A renewed certificate is shown to whoever connects after its files have changed.
    """
    _require_tls13()
    renewed = renewable(identity)
    shown = renewed.current()

    def changed() -> Any:
        """Called by gRPC before every handshake, in a thread of its own; None: no change."""
        nonlocal shown
        before, shown = shown, renewed.current()
        return None if shown is before else configuration(shown)

    def configuration(own: Identity) -> Any:
        pair = (own.key, own.certificate)
        return grpc.ssl_server_certificate_configuration([pair], own.authority)

    return grpc.dynamic_ssl_server_credentials(
        configuration(shown), changed, require_client_authentication=True
    )


def client_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """For a client that shows its certificate and trusts its authority alone."""
    _require_tls13()
    return grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)


def open_channel(
    identity: Identity, address: str, *, name: str | None, coordinator: bool = False
) -> grpc.aio.Channel:
    """A channel to HOST:PORT, where `name` must answer; without a name, any that may serve HOST.

    coordinator: any, or of this name. The handshake itself demands the host name that only
    coordinators' certificates have.
    """
    served = None if name is None else identities.check_name(name)
    if coordinator:
        served = identities.coordinator_host(name)
    target = parse_address(address, key="address")
    options: list[tuple[str, Any]] = [*limits.CONNECTION_OPTIONS, ("grpc.enable_http_proxy", 0)]
    if served is not None:
        options.append(("grpc.ssl_target_name_override", served))
    # With the scheme in front, because gRPC would take a host called "unix" for one.
    url = "dns:///" + quote(str(target), safe=":")
    return grpc.aio.secure_channel(url, client_credentials(identity), options=options)


def peer_of(context: Any) -> PeerIdentity:
    """Who is calling, by the certificate that TLS has verified; never by what a message says."""
    properties = context.auth_context()
    if list(properties.get("transport_security_type", ())) != [b"ssl"]:
        raise IdentityError("the connection is not encrypted", allowed="mutual TLS 1.3")
    version = b"".join(properties.get("ssl_tls_version", ())).decode("ascii", "replace")
    if version != "TLSv1.3":
        raise IdentityError(f"the connection is {version or 'of an unknown kind'}, not TLS 1.3")
    pem = b"".join(properties.get("x509_pem_cert", ()))
    return _identity_in(tuple(properties.get("peer_uri", ())), pem)


@functools.lru_cache(maxsize=1024)
def _identity_in(uris: tuple[bytes, ...], pem: bytes) -> PeerIdentity:
    """The identity in a certificate's URIs: every call names it, and few differ."""
    name, roles = identities.name_and_roles(uri.decode("utf-8", "replace") for uri in uris)
    return PeerIdentity(name, frozenset(roles), pem)


async def identify_caller(context: Any) -> PeerIdentity:
    """Who is calling; a call whose certificate does not name one machine ends here."""
    try:
        return peer_of(context)
    except IdentityError as error:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"sender: {error.problem}")
        raise AssertionError("gRPC's abort raises") from None


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a call failed, and whether it will fail until somebody corrects this machine."""

    text: str
    final: bool = False
    works: bool = False  # nothing failed when it was tried again


async def cause_of(
    identity: Identity,
    address: str,
    *,
    name: str | None,
    coordinator: bool = False,
    error: grpc.aio.AioRpcError | None = None,
) -> Cause:
    """Why a call to this address failed, and whether it is useless to try again.

    coordinator: it had to be one, of this name if there is one, whatever its hosts. error: what
    gRPC reported.
    """
    target = parse_address(address, key="address")
    if error is not None and error.code() in _REFUSAL_CODES:
        reason = one_line(str(error.details() or "no reason given"))
        return Cause(f"{address} refused the call: {reason}")
    try:
        identities.recheck(identity)
        identities.load_identity(identity.folder, identity.name)
    except IdentityError as wrong:
        text = "; ".join(part for part in (wrong.problem, wrong.fix) if part)
        return Cause(text, final=wrong.exit_code == ExitCode.NEVER)
    cause = await asyncio.to_thread(_try_handshake, identity, target, name, coordinator)
    return Cause(f"{address} {cause.text}", cause.final)


async def handshake_problem(identity: Identity, target: HostPort, *, name: str) -> str:
    """Why a handshake with the machine of this name fails at an address; empty if it succeeds."""
    cause = await asyncio.to_thread(_try_handshake, identity, target, name)
    return "" if cause.works else cause.text


def _require_tls13() -> None:
    if not TLS13_ONLY:
        raise IdentityError(
            "gRPC was imported before fedhp.cluster, so it would also accept TLS 1.2",
            allowed="only TLS 1.3",
            fix="import fedhp.cluster before grpc, or set the environment variable "
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


def _try_handshake(
    identity: Identity, target: HostPort, name: str | None, coordinator: bool = False
) -> Cause:
    seconds = limits.CONNECT_SECONDS
    try:
        plain = socket.create_connection((target.host, target.port), timeout=seconds)
    except ConnectionRefusedError:
        return Cause("refused the connection: nothing listens there; is the program running?")
    except TimeoutError:
        why = "the machine is off, or a firewall blocks it"
        return Cause(f"did not answer within {seconds:g} s: {why}")
    except socket.gaierror:
        return Cause("cannot be found: this machine does not know the host name")
    except OSError as error:
        return Cause(f"cannot be reached: {error.strerror or error}")
    with plain:
        certificate_seen = False
        try:
            with _context(identity).wrap_socket(plain) as connection:
                certificate_seen = True
                shown, mismatch = connection.getpeercert(binary_form=True), "showed no certificate"
                if shown is not None:
                    certificate = x509.load_der_x509_certificate(shown)
                    info = identities.certificate_info(Path("its certificate"), certificate)
                    mismatch = _mismatch(info, target.host, name, coordinator)
                # With TLS 1.3 a handshake ends here before the other side has checked our
                # certificate: the first read brings its alert, or the first frame of HTTP/2.
                if mismatch:
                    return Cause(mismatch, final=True)
                first = connection.recv(1)
                return Cause(_after_handshake(identity, first), works=bool(first))
        except ssl.SSLCertVerificationError as error:
            other = f"has a bad certificate: {error.verify_message}"
            text = _CERTIFICATE_ERRORS.get(error.verify_code, other)
            if error.verify_code not in _DATE_ERRORS:
                return Cause(text, final=True)
            return Cause(text + _dates_at(identity, target))
        except TimeoutError:
            silence = f"sent nothing for {seconds:g} s"
            return Cause(f"accepted the connection but {silence}: is it stuck?")
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            if certificate_seen:
                return Cause(_after_handshake(identity, b""))
            return Cause(
                "closed the connection in the handshake: it does not speak TLS 1.3, or it is "
                "another program"
            )
        except ssl.SSLError as error:
            reason = error.reason or ""
            passes = reason.endswith("CERTIFICATE_EXPIRED")
            return Cause(_alert_text(identity, reason), final=not passes)
        except OSError as error:
            return Cause(f"broke the connection: {error.strerror or error}")


def _dates_at(identity: Identity, target: HostPort) -> str:
    """Whose certificate is shown there and until when it is valid, although TLS refuses it."""
    context = _context(identity)
    context.verify_mode = ssl.CERT_NONE  # only to look at it: nothing is sent
    address = (target.host, target.port)
    try:
        with (
            socket.create_connection(address, limits.CONNECT_SECONDS) as plain,
            context.wrap_socket(plain) as connection,
        ):
            shown = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
        shown.verify_directly_issued_by(x509.load_pem_x509_certificate(identity.authority))
    except (OSError, ValueError, TypeError, InvalidSignature):
        return ""
    info = identities.certificate_info(Path("its certificate"), shown)
    starts, ends = map(identities.format_time, (info.starts, info.ends))
    renewal = identities.renewal_command(info)
    return f": that of {info.name} is valid from {starts} to {ends}; to renew it: {renewal}"


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # checked later, with a better message; no data is sent
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=identity.authority.decode("ascii"))
    stem = str(identity.folder / identity.name)
    context.load_cert_chain(f"{stem}.crt", f"{stem}.key")
    return context


def _mismatch(
    info: identities.CertificateInfo, host: str, name: str | None, coordinator: bool
) -> str:
    if coordinator and info.problem:
        return f"cannot be used: {info.problem}; to renew it: {identities.renewal_command(info)}"
    if coordinator and "coordinator" not in info.roles:
        roles = " and ".join(info.roles) or "nothing"
        return f"is {info.name}; by its certificate it is {roles}, not a coordinator"
    served = (info.name, *info.hosts)
    if coordinator:
        if name in (None, info.name):
            return ""
    elif any(same_host(host if name is None else name, own) for own in served):
        return ""
    if name is not None:
        return f"is {info.name}, not {name}"
    return (
        f"is {info.name}, whose certificate is not for {host} but for {', '.join(served)}; "
        f"issue it again with --host {host}"
    )


def _after_handshake(identity: Identity, first: bytes) -> str:
    if first:
        return f"accepts {identity.name}'s certificate: the connection works, TLS is not the cause"
    now = identities.format_time(datetime.now(UTC))
    return (
        f"closed the connection without a reason when it saw the certificate of {identity.name}. "
        f"It is valid by this machine's clock ({now}), and one "
        "authority signed both sides: compare the clocks of the two machines, and their ca.crt"
    )


def _alert_text(identity: Identity, reason: str) -> str:
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return "speaks only TLS 1.2 or older, but TLS 1.3 is required"
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        return "does not speak TLS: another program listens there, or one without certificates"
    for alert, text in _TLS_ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return f"refused the certificate of {identity.name}: it {text}"
    return f"ended the handshake: {reason.replace('_', ' ').lower() or 'no reason given'}"
