"""Who a machine is: its certificate read and checked, the true cause said if it is no good.

A folder holds ca.crt (the authority) and NAME.crt and NAME.key of each machine, made by
certificates.py. Keys never appear in a message.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.addresses import ip_address_in, is_name, same_host
from fedhp.errors import IdentityError

ROLES = ("coordinator", "worker", "operator")
AUTHORITY = "ca"
NAME_URI, ROLE_URI = "fedhp://", "fedhp-role:"

_LARGEST_FILE = 1 << 20
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this machine is, with all that a TLS connection needs."""

    name: str
    roles: frozenset[str]
    folder: Path
    ends: datetime
    authority: bytes = field(repr=False)  # these three are PEM
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a certificate says of itself, and what is wrong with it."""

    file: Path
    name: str
    roles: tuple[str, ...]
    hosts: tuple[str, ...]  # where it may serve, besides its name
    authority: bool  # it signs others
    starts: datetime
    ends: datetime
    fingerprint: str  # SHA-256, hexadecimal
    has_key: bool  # its private key is in the same folder
    problem: str = ""

    def days_left(self, now: datetime) -> int:
        """Whole days until its end; negative when it is over."""
        return (self.ends - now).days

    def may_serve(self, host: str) -> bool:
        """Whether TLS takes it for this host or name."""
        return any(same_host(host, own) for own in (self.name, *self.hosts))


def load_identity(folder: Path, name: str, *, now: datetime | None = None) -> Identity:
    """A machine's identity from its three files, checked before any work."""
    check_name(name)
    file, signer_file = folder / f"{name}.crt", folder / f"{AUTHORITY}.crt"
    authority, certificate = read(signer_file), read(file)
    key = read(file.with_suffix(".key"))
    key_of(file, certificate, key=key)
    facts = _examine(file, certificate, authority=authority, moment=now or datetime.now(UTC))
    if facts.name != name:
        raise IdentityError(
            f"{file} is the certificate of {facts.name}, not of {name}",
            fix="copy the right files; a file has the name that is in the certificate",
        )
    roles = frozenset(facts.roles)
    return Identity(name, roles, folder, facts.ends, authority, certificate, key)


def recheck(identity: Identity, *, now: datetime | None = None) -> None:
    """The same checks for what a process holds in memory: time passes, files are renewed."""
    file = identity.folder / f"{identity.name}.crt"
    moment = now or datetime.now(UTC)
    _examine(file, identity.certificate, authority=identity.authority, moment=moment)


def inspect(path: Path, *, now: datetime | None = None) -> tuple[Facts, ...]:
    """What the certificate in a file says, or all in a folder, the authority first."""
    moment = now or datetime.now(UTC)
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*.crt"), key=lambda file: (file.stem != AUTHORITY, file.name))
    if not files:
        raise IdentityError(
            f"{path} holds no certificates (*.crt)", fix=f"fedhp certs init --folder {path}"
        )
    return tuple(_inspected(file, moment) for file in files)


def check_name(name: str) -> str:
    """The name, if a machine may be called so."""
    if is_name(name) and ip_address_in(name) is None:
        return name
    raise IdentityError(
        f"{name[: 2 * limits.NAME_LENGTH]!r} cannot be the name of a machine",
        allowed=f"1 to {limits.NAME_LENGTH} letters, digits, '-', '_' and '.', with a letter or "
        "digit at either end; no IP address",
        fix="choose a name like worker-1; addresses are given with --host",
    )


def name_and_roles(uris: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The one name and the roles among a certificate's URIs; no name or several: an error."""
    uris = tuple(uris)
    names = [uri.removeprefix(NAME_URI) for uri in uris if uri.startswith(NAME_URI)]
    if len(names) != 1:
        raise IdentityError(
            f"the certificate has {f'{len(names)} names' if names else 'no name'} ({NAME_URI}NAME)",
            allowed="exactly one name",
            fix="issue it with: fedhp certs issue NAME",
        )
    given = {uri.removeprefix(ROLE_URI) for uri in uris if uri.startswith(ROLE_URI)}
    return check_name(names[0]), tuple(role for role in ROLES if role in given)


def said(moment: datetime) -> str:
    """A moment in a message."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def read(file: Path) -> bytes:
    """A file's content; a key only if nobody but its owner can use it."""
    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if file.suffix == ".key" and mode & 0o077:
                raise IdentityError(
                    f"{file}: others than its owner can use this key (mode {mode:04o})",
                    allowed="mode 0600",
                    fix=f"chmod 600 {file}; if somebody may have read it, issue a new one",
                )
            return stream.read(_LARGEST_FILE)
    except FileNotFoundError:
        raise IdentityError(
            f"{file} is missing",
            allowed=f"{AUTHORITY}.crt, NAME.crt and NAME.key in one folder",
            fix="make it with fedhp certs init and fedhp certs issue NAME, or copy it here",
        ) from None
    except OSError as error:
        raise IdentityError(
            f"{file} cannot be read: {error.strerror}", fix="mend the file or its permissions"
        ) from None


def parse(file: Path, pem: bytes) -> x509.Certificate:
    """The certificate in a file's content."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _ = certificate.extensions  # parsed only when asked for
    except (ValueError, x509.DuplicateExtension):
        raise IdentityError(
            f"{file} is no certificate, or it is damaged",
            allowed="a certificate in PEM form",
            fix="copy it again, or issue a new one",
        ) from None
    return certificate


def key_of(file: Path, certificate: bytes, *, key: bytes) -> ec.EllipticCurvePrivateKey:
    """The private key, if it is the certificate's and of the kind that TLS needs here."""
    secret = file.with_suffix(".key")
    again = "copy both files again from where they were made, or issue them anew"
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except TypeError:
        raise IdentityError(
            f"{secret} has a passphrase, which nobody types when a machine starts", fix=again
        ) from None
    except Exception:  # of many kinds, and their words may quote the file
        raise IdentityError(f"{secret} is no private key, or it is damaged", fix=again) from None
    if private.public_key() != parse(file, certificate).public_key():
        raise IdentityError(f"{secret} does not belong to {file}", fix=again)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise IdentityError(
            f"{secret} is of another kind than fedhp makes",
            allowed="a key on an elliptic curve: without it TLS 1.2 would be possible",
            fix="issue a new one with: fedhp certs issue NAME",
        )
    return private


def check_dates(what: str, certificate: x509.Certificate, moment: datetime) -> None:
    """Valid now."""
    starts, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock says {said(moment)}"
    if moment > ends:
        raise IdentityError(
            f"{what} expired on {said(ends)}; {clock}",
            fix="fedhp certs issue NAME --replace, or set this machine's clock if it is wrong",
        )
    if moment < starts:
        raise IdentityError(
            f"{what} is not yet valid, but from {said(starts)}; {clock}",
            fix="set this machine's clock if it is wrong; otherwise wait, or issue a new one",
        )


def describe(file: Path, certificate: x509.Certificate, *, problem: str = "") -> Facts:
    """What a certificate says, whoever made it."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    basic = _extension(certificate, x509.BasicConstraints)
    authority = basic is not None and basic.ca
    name = common_name(certificate.subject)
    roles: tuple[str, ...] = ()
    hosts: list[str] = []
    uris = [] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier)
    if not authority or uris:
        try:
            name, roles = name_and_roles(uris)
        except IdentityError as error:
            problem = problem or error.problem
    if names is not None:
        hosts += names.get_values_for_type(x509.DNSName)
        hosts += map(str, names.get_values_for_type(x509.IPAddress))
    return Facts(
        file,
        name,
        roles,
        tuple(host for host in hosts if host != name),
        authority,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        certificate.fingerprint(hashes.SHA256()).hex(),
        file.with_suffix(".key").exists(),
        problem,
    )


def common_name(name: x509.Name) -> str:
    """The common name of a subject or issuer."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else "nameless"


def _examine(file: Path, certificate: bytes, *, authority: bytes, moment: datetime) -> Facts:
    """Signed by the authority beside it, valid now, with exactly one name."""
    signer_file = file.with_name(f"{AUTHORITY}.crt")
    found, signer = parse(file, certificate), parse(signer_file, authority)
    try:
        found.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        raise IdentityError(
            f"{file} was signed by another authority ({common_name(found.issuer)}) than the one "
            f"in {signer_file} ({common_name(signer.subject)})",
            fix="copy the ca.crt of the authority that issued it, or have one issued by this one",
        ) from None
    check_dates(f"the authority in {signer_file}", signer, moment)
    check_dates(f"{file}: the certificate", found, moment)
    facts = describe(file, found)
    if facts.problem:
        raise IdentityError(
            f"{file}: {facts.problem}", fix="issue a new one with: fedhp certs issue NAME"
        )
    return facts


def _inspected(file: Path, moment: datetime) -> Facts:
    if file.suffix == ".key":
        raise IdentityError(
            f"{file} is a private key", allowed="a certificate (.crt) or a folder of them"
        )
    pem = read(file)
    certificate = parse(file, pem)
    facts, signer = describe(file, certificate), file.with_name(f"{AUTHORITY}.crt")
    try:
        if facts.has_key and not facts.authority:
            load_identity(file.parent, file.stem, now=moment)
        elif signer.exists() and not facts.authority:
            _examine(file, pem, authority=read(signer), moment=moment)
        else:
            check_dates(f"{file}: the certificate", certificate, moment)
    except IdentityError as error:
        return describe(file, certificate, problem=error.problem)
    return facts


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
