"""Creates the authority of a federation, and a key and a certificate for every machine.

A folder holds ca.crt and ca.key (the authority), NAME.crt and NAME.key (each machine). A machine
needs ca.crt and its own two files; ca.key stays where it was created.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhp.cluster.protocol.addresses import ip_address_in, is_host, same_host
from fedhp.cluster.security import identity as identities
from fedhp.cluster.security.identity import AUTHORITY, CertificateInfo, certificate_info
from fedhp.errors import IdentityError
from fedhp.files import storage_errors, write_file

AUTHORITY_DAYS = 3650
IDENTITY_DAYS = 365
MAX_DAYS = 36500
# Clocks differ: a new certificate is valid on a machine whose clock is this much behind.
BACKDATED = timedelta(hours=1)


def init_authority(
    folder: Path, *, days: int = AUTHORITY_DAYS, replace: bool = False, now: datetime | None = None
) -> CertificateInfo:
    """Create an authority. With replace, all certificates of the old one become invalid."""
    _check_days(days)
    _check_free(folder, AUTHORITY, replace=replace)
    key = ec.generate_private_key(ec.SECP256R1())
    # The number tells two authorities apart, for people and for the TLS library.
    subject = _subject(f"fedhp authority {secrets.token_hex(4)}")
    builder = (
        _builder(subject, subject, key=key, start=now or datetime.now(UTC), days=days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
    )
    return _save(folder, AUTHORITY, builder.sign(key, hashes.SHA256()), key=key, replace=replace)


def issue(
    folder: Path,
    name: str,
    *,
    hosts: Sequence[str] = (),
    roles: Sequence[str] = ("worker",),
    days: int = IDENTITY_DAYS,
    replace: bool = False,
    now: datetime | None = None,
) -> CertificateInfo:
    """Create a machine's key and certificate, signed by the authority in the same folder."""
    start = now or datetime.now(UTC)
    _check_days(days)
    if identities.check_name(name).casefold() == AUTHORITY:
        raise IdentityError(
            f"{name!r} cannot be the name of a machine: {AUTHORITY}.crt is the authority's",
            fix="choose another name",
        )
    _check_hosts(name, hosts)
    wrong = [role for role in roles if role not in identities.ROLES]
    if wrong or not roles:
        raise IdentityError(
            f"unknown role {wrong[0]!r}" if wrong else "an identity needs a role",
            allowed=", ".join(identities.ROLES),
            fix="for example --role worker",
        )
    identities.check_separate(roles)
    authority, signer = _authority(folder, start)
    ends = authority.not_valid_after_utc
    if start + timedelta(days=days) > ends:
        raise IdentityError(
            f"in {days} days the authority itself has expired ({identities.format_time(ends)})",
            allowed=f"at most {(ends - start).days} days",
            fix="give fewer --days, or create a new authority in another folder",
        )
    _check_free(folder, name, replace=replace)
    _check_distinct(folder, name, hosts)
    key = ec.generate_private_key(ec.SECP256R1())
    sides = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        _builder(_subject(name), authority.subject, key=key, start=start, days=days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(sides), critical=False)
        .add_extension(_alternative_names(name, hosts, roles), critical=False)
        .add_extension(signed_by, critical=False)
    )
    return _save(folder, name, builder.sign(signer, hashes.SHA256()), key=key, replace=replace)


def _check_days(days: int) -> None:
    if not 1 <= days <= MAX_DAYS:
        raise IdentityError(
            f"a certificate cannot be valid for {days} days",
            allowed=f"1 to {MAX_DAYS}",
            fix=f"for example --days {IDENTITY_DAYS}",
        )


def _check_hosts(name: str, hosts: Sequence[str]) -> None:
    for host in (name, *hosts):
        if identities.is_role_host(host):
            raise IdentityError(
                f"{host!r} is reserved: such names prove that a machine is a coordinator",
                allowed=f"any other name or host, not {identities.ROLE_DOMAIN} nor one below it",
                fix="for a coordinator give --role coordinator; its certificate then has them",
            )
    for host in hosts:
        if not is_host(host):
            raise IdentityError(
                f"{host[:300]!r} is not a host",
                allowed="a DNS name or an IP address, without a port and without '*'",
                fix="for example --host node1.lan --host 10.0.0.5",
            )


def _check_free(folder: Path, stem: str, *, replace: bool) -> None:
    for file in (folder / f"{stem}.crt", folder / f"{stem}.key"):
        if file.exists() and not replace:
            raise _already_exists(file)


def _already_exists(file: Path) -> IdentityError:
    lost = "all certificates it signed become invalid" if file.stem == AUTHORITY else "it is lost"
    return IdentityError(
        f"{file} already exists",
        allowed="a name or folder that is not yet used",
        fix=f"choose another one, or add --replace: then {lost}",
    )


def _check_distinct(folder: Path, name: str, hosts: Sequence[str]) -> None:
    """TLS compares names like hosts, ignoring case: no machine may be taken for another."""
    for file in sorted(folder.glob("*.crt")):
        if file.stem in (AUTHORITY, name):
            continue
        pem = identities.read_pem(file)
        other = certificate_info(file, identities.parse_certificate(file, pem))
        shared = [own for own in (name, *hosts) if same_host(own, other.name)]
        shared += [name for host in other.hosts if same_host(name, host)]
        if shared:
            raise IdentityError(
                f"{name} and {other.name} could be mistaken for each other: both would be "
                f"{shared[0]!r}",
                allowed="names that differ in more than upper and lower case; hosts that are not "
                "the name of another machine",
                fix="choose another name, or give the host with its domain or as an IP address",
            )


def _authority(
    folder: Path, moment: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    file = folder / f"{AUTHORITY}.crt"
    if not file.exists():
        raise IdentityError(
            f"{folder} has no authority ({file.name})",
            fix=f"create one first: fedhp certs init --folder {folder}",
        )
    pem = identities.read_pem(file)
    certificate = identities.parse_certificate(file, pem)
    key = identities.parse_key(file, pem, key=identities.read_pem(file.with_suffix(".key")))
    identities.check_dates(f"{file}: the authority", certificate, moment)
    return certificate, key


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    *,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    days: int,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - BACKDATED)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    no = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    signs = {"key_cert_sign": authority, "crl_sign": authority}
    others = dict.fromkeys((*no, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not authority, **signs, **others)


def _alternative_names(
    name: str, hosts: Sequence[str], roles: Sequence[str]
) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = [x509.DNSName(name)]
    for host in dict.fromkeys(hosts):
        address = ip_address_in(host)
        if address is not None:
            names.append(x509.IPAddress(address))
        elif host != name:
            names.append(x509.DNSName(host))
    if "coordinator" in roles:
        names += [x509.DNSName(identities.coordinator_host(who)) for who in (None, name)]
    uris = [f"{identities.ROLE_URI}{role}" for role in dict.fromkeys(roles)]
    names += map(x509.UniformResourceIdentifier, (f"{identities.NAME_URI}{name}", *uris))
    return x509.SubjectAlternativeName(names)


def _save(
    folder: Path,
    stem: str,
    certificate: x509.Certificate,
    *,
    key: ec.EllipticCurvePrivateKey,
    replace: bool,
) -> CertificateInfo:
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / f"{stem}.crt"
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    with storage_errors(folder, option="--folder", kind=IdentityError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(file.with_suffix(".key"), secret, mode=0o600, replace=replace)
        _write(file, pem, mode=0o644, replace=replace)
    return certificate_info(file, certificate)


def _write(file: Path, content: bytes, *, mode: int, replace: bool) -> None:
    """Written completely or not at all; a key never has a wider mode, not even meanwhile."""
    try:
        write_file(file, content, mode=mode, replace=replace, shared=True)
    except FileExistsError:
        raise _already_exists(file) from None
