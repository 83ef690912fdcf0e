"""Who a machine is: loads its certificate, checks it, and names the true cause of a problem.

A folder holds ca.crt (the authority) and NAME.crt and NAME.key of each machine, as created by
certificates.py. Keys never appear in a message.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.addresses import ip_address_in, is_name
from fedhp.errors import IdentityError, NotYetValid

ROLES = ("coordinator", "worker", "operator")
AUTHORITY = "ca"
NAME_URI, ROLE_URI = "fedhp://", "fedhp-role:"
# Reserved by RFC 2606: no machine has such a host name, and no certificate gets one with --host.
ROLE_DOMAIN = "fedhp.invalid"

_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this machine is, with everything a TLS connection needs."""

    name: str
    roles: frozenset[str]
    folder: Path
    ends: datetime
    authority: bytes = field(repr=False)  # these three are PEM
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    stamp: tuple[int, ...] = field(default=(), repr=False, compare=False)  # of the three files


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """What a certificate contains, and what is wrong with it."""

    file: Path
    name: str
    roles: tuple[str, ...]
    hosts: tuple[str, ...]  # where it may serve, in addition to its name
    authority: bool  # it signs others
    starts: datetime
    ends: datetime
    fingerprint: str  # SHA-256, hexadecimal
    has_key: bool  # its private key is in the same folder
    problem: str = ""

    def days_left(self, now: datetime) -> int:
        """Whole days until it expires; negative if it has expired."""
        return (self.ends - now).days


def load_identity(folder: Path, name: str, *, now: datetime | None = None) -> Identity:
    """Load a machine's identity from its three files, and check it."""
    check_name(name)
    stamp = file_stamp(folder, name)  # before they are read: a later change is never missed
    file, signer_file = folder / f"{name}.crt", folder / f"{AUTHORITY}.crt"
    authority, certificate = read_pem(signer_file), read_pem(file)
    key = read_pem(file.with_suffix(".key"))
    parse_key(file, certificate, key=key)
    info = _verify(file, certificate, authority=authority, moment=now or datetime.now(UTC))
    if info.name != name:
        raise IdentityError(
            f"{file} is the certificate of {info.name}, not of {name}",
            fix="copy the right files: a file is named after the name in the certificate",
        )
    roles = frozenset(info.roles)
    return Identity(name, roles, folder, info.ends, authority, certificate, key, stamp)


def file_stamp(folder: Path, name: str) -> tuple[int, ...]:
    """Changes when one of the three files does."""
    stamp: list[int] = []
    for file in (f"{AUTHORITY}.crt", f"{name}.crt", f"{name}.key"):
        try:
            stamp += stamp_of(os.stat(folder / file))
        except OSError:
            stamp.append(0)
    return tuple(stamp)


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def coordinator_host(name: str | None = None) -> str:
    """The host name that only the certificates of coordinators have: of any, or of this one.

    TLS compares it in the handshake, so that the connection itself proves the role and the name.
    """
    any_coordinator = f"coordinator.{ROLE_DOMAIN}"
    return any_coordinator if name is None else f"{check_name(name)}.{any_coordinator}"


def is_role_host(host: str) -> bool:
    return f".{host.casefold()}".endswith(f".{ROLE_DOMAIN}")


def renewal_command(info: CertificateInfo) -> str:
    """The command that issues the same certificate again, where the authority is."""
    if info.authority:
        return "fedhp certs init, in a new folder; then issue all certificates again"
    options = [f"--host {host}" for host in info.hosts] + [f"--role {role}" for role in info.roles]
    return " ".join(("fedhp certs issue", info.name, *options, "--replace"))


def recheck(identity: Identity, *, now: datetime | None = None) -> None:
    """Check an identity in memory again: time passes, and files are replaced."""
    file = identity.folder / f"{identity.name}.crt"
    moment = now or datetime.now(UTC)
    _verify(file, identity.certificate, authority=identity.authority, moment=moment)


def inspect(path: Path, *, now: datetime | None = None) -> tuple[CertificateInfo, ...]:
    """The certificate in a file, or all in a folder, the authority first."""
    moment = now or datetime.now(UTC)
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*.crt"), key=lambda file: (file.stem != AUTHORITY, file.name))
    if not files:
        fix = f"fedhp certs init --folder {path}"
        raise IdentityError(f"{path} has no certificates (*.crt)", fix=fix)
    return tuple(_inspect_file(file, moment) for file in files)


def check_name(name: str) -> str:
    """Return the name, if it is valid for a machine."""
    if is_name(name) and ip_address_in(name) is None:
        return name
    raise IdentityError(
        f"{name[: 2 * limits.NAME_LENGTH]!r} cannot be the name of a machine",
        allowed=f"1 to {limits.NAME_LENGTH} letters, digits, '-', '_' and '.', with a letter or "
        "digit at the beginning and the end; not an IP address",
        fix="choose a name like worker-1, and give addresses with --host",
    )


def name_and_roles(uris: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The one name and the roles among a certificate's URIs; raises without exactly one name."""
    uris = tuple(uris)
    names = [uri.removeprefix(NAME_URI) for uri in uris if uri.startswith(NAME_URI)]
    if len(names) != 1:
        raise IdentityError(
            f"the certificate has {f'{len(names)} names' if names else 'no name'} ({NAME_URI}NAME)",
            allowed="exactly one name",
            fix="issue it with: fedhp certs issue NAME",
        )
    roles = {uri.removeprefix(ROLE_URI) for uri in uris if uri.startswith(ROLE_URI)}
    check_separate(roles)
    return check_name(names[0]), tuple(role for role in ROLES if role in roles)


def check_separate(roles: Iterable[str]) -> None:
    """Refuse a coordinator that is a worker as well: it could give itself every model."""
    if {"coordinator", "worker"} <= set(roles):
        raise IdentityError(
            "one certificate cannot be that of a coordinator and of a worker",
            allowed="a certificate of its own for each; a standby has one too",
            fix="fedhp certs issue NAME, and fedhp certs issue NAME-standby --role coordinator",
        )


def format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def read_pem(file: Path) -> bytes:
    """A file's content; a key only if nobody but its owner can access it."""
    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if file.suffix == ".key" and mode & 0o077:
                raise IdentityError(
                    f"{file}: other users can access this key (mode {mode:04o})",
                    allowed="mode 0600",
                    fix=f"chmod 600 {file}; if somebody may have read the key, issue a new one",
                )
            return stream.read(_MAX_FILE_BYTES)
    except FileNotFoundError:
        raise IdentityError(
            f"{file} is missing",
            allowed=f"{AUTHORITY}.crt, NAME.crt and NAME.key in one folder",
            fix="create it with fedhp certs init and fedhp certs issue NAME, or copy it here",
        ) from None
    except OSError as error:
        fix = "repair the file or its permissions"
        raise IdentityError(f"{file} cannot be read: {error.strerror}", fix=fix) from None


def parse_certificate(file: Path, pem: bytes) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _ = certificate.extensions  # parsed only when asked for
    except (ValueError, x509.DuplicateExtension):
        raise IdentityError(
            f"{file} is not a certificate, or it is damaged",
            allowed="a certificate in PEM form",
            fix="copy it again, or issue a new one",
        ) from None
    return certificate


def parse_key(file: Path, certificate: bytes, *, key: bytes) -> ec.EllipticCurvePrivateKey:
    """Parse a private key; it must belong to the certificate and be of the kind that TLS needs."""
    key_file = file.with_suffix(".key")
    fix = "copy both files again from where they were created, or issue new ones"
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except TypeError:
        why = f"{key_file} has a passphrase, but a machine must start without one"
        raise IdentityError(why, fix=fix) from None
    except Exception:  # of many kinds, and their texts may quote the file
        raise IdentityError(f"{key_file} is not a private key, or it is damaged", fix=fix) from None
    if private.public_key() != parse_certificate(file, certificate).public_key():
        raise IdentityError(f"{key_file} does not belong to {file}", fix=fix)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise IdentityError(
            f"{key_file} is not the kind of key that fedhp creates",
            allowed="an elliptic-curve key: any other would make TLS 1.2 possible",
            fix="issue a new one with: fedhp certs issue NAME",
        )
    return private


def check_dates(what: str, certificate: x509.Certificate, moment: datetime) -> None:
    """Raise unless the certificate is valid at this moment."""
    starts, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock says {format_time(moment)}"
    if moment > ends:
        renewal = renewal_command(certificate_info(Path("expired.crt"), certificate))
        raise IdentityError(
            f"{what} expired on {format_time(ends)}; {clock}",
            fix=f"{renewal}; or set this machine's clock if it is wrong",
        )
    if moment < starts:
        raise NotYetValid(
            f"{what} is not yet valid, only from {format_time(starts)}; {clock}",
            fix="set this machine's clock if it is wrong; otherwise wait, or issue a new one",
        )


def certificate_info(file: Path, certificate: x509.Certificate) -> CertificateInfo:
    """What a certificate contains, whether fedhp issued it or not."""
    extensions: dict[type, Any] = {type(each.value): each.value for each in certificate.extensions}
    names = extensions.get(x509.SubjectAlternativeName)
    basic = extensions.get(x509.BasicConstraints)
    authority = basic is not None and basic.ca
    name, problem = common_name(certificate.subject), ""
    roles, hosts, uris = tuple[str, ...](), list[str](), list[str]()
    if names is not None:
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        hosts += names.get_values_for_type(x509.DNSName)
        hosts += map(str, names.get_values_for_type(x509.IPAddress))
    if not authority or uris:
        try:
            name, roles = name_and_roles(uris)
        except IdentityError as error:
            problem = error.problem
    if "coordinator" in roles and not {coordinator_host(), coordinator_host(name)} <= set(hosts):
        problem = (
            f"the certificate of {name} has the role coordinator, but not the host name "
            f"{coordinator_host(name)}, by which others recognize a coordinator: an older "
            "version of fedhp issued it"
        )
    return CertificateInfo(
        file,
        name,
        roles,
        tuple(host for host in hosts if host != name and not is_role_host(host)),
        authority,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        certificate.fingerprint(hashes.SHA256()).hex(),
        file.with_suffix(".key").exists(),
        problem,
    )


def common_name(name: x509.Name) -> str:
    names = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else "nameless"


def _verify(
    file: Path, certificate: bytes, *, authority: bytes, moment: datetime
) -> CertificateInfo:
    signer_file = file.with_name(f"{AUTHORITY}.crt")
    parsed, signer = parse_certificate(file, certificate), parse_certificate(signer_file, authority)
    try:
        parsed.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        raise IdentityError(
            f"{file} was signed by another authority ({common_name(parsed.issuer)}) than the one "
            f"in {signer_file} ({common_name(signer.subject)})",
            fix="copy the ca.crt of the authority that issued it, or issue a new certificate here",
        ) from None
    check_dates(f"the authority in {signer_file}", signer, moment)
    check_dates(f"{file}: the certificate", parsed, moment)
    info = certificate_info(file, parsed)
    if info.problem:
        command = renewal_command(info) if info.roles else "fedhp certs issue NAME"
        raise IdentityError(f"{file}: {info.problem}", fix=f"issue a new one with: {command}")
    return info


def _inspect_file(file: Path, moment: datetime) -> CertificateInfo:
    if file.suffix == ".key":
        raise IdentityError(
            f"{file} is a private key", allowed="a certificate (.crt) or a folder of them"
        )
    certificate = parse_certificate(file, pem := read_pem(file))
    info, signer = certificate_info(file, certificate), file.with_name(f"{AUTHORITY}.crt")
    try:
        if info.has_key and not info.authority:
            load_identity(file.parent, file.stem, now=moment)
        elif signer.exists() and not info.authority:
            _verify(file, pem, authority=read_pem(signer), moment=moment)
        else:
            check_dates(f"{file}: the certificate", certificate, moment)
    except IdentityError as error:
        return replace(info, problem=error.problem)
    return info
