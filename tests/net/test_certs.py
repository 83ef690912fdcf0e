"""An authority and its identities: what is in them, how they lie on the disk, what is refused."""

from __future__ import annotations

import errno
import ipaddress
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.security.identity import CertificateInfo, inspect, load_identity, recheck
from fedhp.errors import FedhpError, IdentityError, StorageFull
from net.identities import certificate, sign

NOW = datetime(2030, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init_authority(tmp_path, now=NOW)
    return tmp_path


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def secrets_in(folder: Path) -> list[str]:
    """Every line of a PEM body in a folder."""
    lines = [
        line
        for file in folder.rglob("*.*")
        for line in file.read_text(errors="replace").splitlines()
    ]
    return [line for line in lines if line and "-----" not in line]


def refused(folder: Path, name: str = "worker-1", *, now: datetime = NOW) -> str:
    """The words of load_identity, which has to refuse; no secret is among them."""
    with pytest.raises(IdentityError) as caught:
        load_identity(folder, name, now=now)
    assert caught.value.fix
    text = f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
    assert not [line for line in secrets_in(folder) if line in text]
    return caught.value.problem


def test_an_identity_says_who_where_and_as_what(folder: Path) -> None:
    hosts = ["node1.lan", "10.0.0.5", "fd00::5"]
    issue(folder, "worker-1", hosts=hosts, roles=("worker", "operator"), days=10, now=NOW)
    issued = certificate(folder / "worker-1.crt")
    names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["worker-1", "node1.lan"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == hosts[1:]
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == ["fedhp://worker-1", "fedhp-role:worker", "fedhp-role:operator"]
    assert issued.subject.rfc4514_string() == "CN=worker-1"
    assert issued.not_valid_after_utc == NOW + 10 * DAY
    usage = issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    identity = load_identity(folder, "worker-1", now=NOW)
    assert identity.roles == {"worker", "operator"}
    assert not [line for line in secrets_in(folder) if line in repr(identity)]


def test_another_library_takes_it_for_both_sides(folder: Path) -> None:
    issue(folder, "worker-1", hosts=["10.0.0.5"], now=NOW)
    store = verification.Store([certificate(folder / "ca.crt")])
    policy = verification.PolicyBuilder().store(store).time(NOW)
    issued = certificate(folder / "worker-1.crt")
    for subject in (
        x509.DNSName("worker-1"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.5")),
    ):
        policy.build_server_verifier(subject).verify(issued, [])
    policy.build_client_verifier().verify(issued, [])
    with pytest.raises(verification.VerificationError):
        policy.build_server_verifier(x509.DNSName("worker-2")).verify(issued, [])


def test_an_identity_cannot_sign_others(folder: Path) -> None:
    issue(folder, "worker-1", now=NOW)
    for name, authority in (("ca", True), ("worker-1", False)):
        extensions = certificate(folder / f"{name}.crt").extensions
        basic = extensions.get_extension_for_class(x509.BasicConstraints)
        usage = extensions.get_extension_for_class(x509.KeyUsage)
        assert basic.critical
        assert usage.critical
        assert basic.value.ca is authority
        assert usage.value.key_cert_sign is authority
        assert usage.value.digital_signature is not authority


def test_keys_are_private_whatever_the_umask_and_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    whole = os.fsync

    def watch(handle: int) -> None:
        facts = os.fstat(handle)
        if stat.S_ISREG(facts.st_mode):
            opened.append(stat.S_IMODE(facts.st_mode))
        whole(handle)

    monkeypatch.setattr(os, "fsync", watch)
    before = os.umask(0)
    try:
        init_authority(tmp_path / "new", now=NOW)
        issue(tmp_path / "new", "worker-1", now=NOW)
    finally:
        os.umask(before)
    assert opened == [0o600, 0o644, 0o600, 0o644]
    assert mode(tmp_path / "new") == 0o700
    assert {mode(tmp_path / "new" / f"{name}.key") for name in ("ca", "worker-1")} == {0o600}


@pytest.mark.parametrize("make", [init_authority, lambda folder: issue(folder, "worker-1")])
@pytest.mark.parametrize("gone", ["crt", "key"])
def test_nothing_is_overwritten_unless_asked_for(
    tmp_path: Path, make: Callable[[Path], CertificateInfo], gone: str
) -> None:
    init_authority(tmp_path)
    issue(tmp_path, "worker-1")
    stem = "ca" if make is init_authority else "worker-1"
    (tmp_path / f"{stem}.{gone}").unlink()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(IdentityError, match="already exists") as caught:
        make(tmp_path)
    assert "--replace" in caught.value.fix
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_who_is_faster_wins_and_the_other_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the same identity between the look and the write."""
    link = os.link

    def slow(source: Path, target: Path) -> None:
        target.write_text("theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    with pytest.raises(IdentityError, match="already exists"):
        issue(folder, "worker-1", now=NOW)
    assert (folder / "worker-1.key").read_text() == "theirs"


def test_replace_gives_a_new_pair(folder: Path) -> None:
    issue(folder, "worker-1", now=NOW)
    old = load_identity(folder, "worker-1", now=NOW)
    (folder / "worker-1.key").chmod(0o644)
    issue(folder, "worker-1", replace=True, now=NOW)
    new = load_identity(folder, "worker-1", now=NOW)
    assert new.key != old.key
    init_authority(folder, replace=True, now=NOW)
    assert "another authority" in refused(folder)


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(folder.iterdir())

    def full(handle: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull):
        issue(folder, "worker-1", now=NOW)
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize("name", ["a", "x" * 64, "node_1.rack-2", "7"])
def test_good_names(folder: Path, name: str) -> None:
    issue(folder, name, now=NOW)
    assert load_identity(folder, name, now=NOW).name == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 65, "a b", "a/b", "../a", ".a", "a.", "-a", "a\n", "ä", "*", "10.0.0.1", "ca", "CA"],
)
def test_bad_names(folder: Path, name: str) -> None:
    with pytest.raises(IdentityError, match="cannot be the name"):
        issue(folder, name, now=NOW)


@pytest.mark.parametrize(
    "host",
    ["", "node1:7000", "*", "*.lan", "a b", "a..b", "x" * 64, "a.lan\n", "[::1]", "10.0.0.5/8"],
)
def test_bad_hosts(folder: Path, host: str) -> None:
    with pytest.raises(IdentityError, match="is not a host"):
        issue(folder, "worker-1", hosts=[host], now=NOW)


def test_nobody_may_pass_for_another(folder: Path) -> None:
    issue(folder, "worker-1", hosts=["node1", "10.0.0.5"], now=NOW)
    for name, hosts in (("Worker-1", []), ("worker-2", ["WORKER-1"]), ("Node1", [])):
        with pytest.raises(IdentityError, match="mistaken for each other"):
            issue(folder, name, hosts=hosts, now=NOW)
    issue(folder, "worker-2", hosts=["node1", "10.0.0.5"], now=NOW)  # two on one machine


@pytest.mark.parametrize("days", [0, -1, 36501])
def test_bad_days(folder: Path, days: int) -> None:
    with pytest.raises(IdentityError, match=f"for {days} days"):
        issue(folder, "worker-1", days=days, now=NOW)


def test_no_identity_outlives_its_authority(folder: Path) -> None:
    with pytest.raises(IdentityError, match="the authority itself") as caught:
        issue(folder, "worker-1", days=365, now=NOW + 3600 * DAY)
    assert caught.value.allowed == "at most 50 days"
    issue(folder, "worker-1", days=50, now=NOW + 3600 * DAY)


def test_bad_roles_and_no_authority(folder: Path) -> None:
    for roles in (["king"], []):
        with pytest.raises(IdentityError, match="role"):
            issue(folder, "worker-1", roles=roles, now=NOW)
    with pytest.raises(IdentityError, match="has no authority") as caught:
        issue(folder / "empty", "worker-1", now=NOW)
    assert "fedhp certs init" in caught.value.fix


@pytest.mark.parametrize("missing", ["ca.crt", "worker-1.crt", "worker-1.key"])
def test_a_missing_file(folder: Path, missing: str) -> None:
    issue(folder, "worker-1", now=NOW)
    (folder / missing).unlink()
    assert refused(folder) == f"{folder / missing} is missing"


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o644])
def test_a_key_that_others_can_use(folder: Path, bits: int) -> None:
    issue(folder, "worker-1", now=NOW)
    (folder / "worker-1.key").chmod(bits)
    assert f"mode {bits:04o}" in refused(folder)
    (folder / "ca.key").chmod(bits)
    with pytest.raises(IdentityError, match=f"mode {bits:04o}"):
        issue(folder, "worker-2", now=NOW)


def test_a_key_of_another_certificate(folder: Path) -> None:
    issue(folder, "worker-1", now=NOW)
    issue(folder, "worker-2", now=NOW)
    os.replace(folder / "worker-2.key", folder / "worker-1.key")
    assert "does not belong to" in refused(folder)


def test_another_authority(folder: Path, tmp_path: Path) -> None:
    issue(folder, "worker-1", now=NOW)
    old = load_identity(folder, "worker-1", now=NOW)
    init_authority(tmp_path / "other", now=NOW)
    os.replace(tmp_path / "other" / "ca.crt", folder / "ca.crt")
    assert "was signed by another authority (fedhp authority" in refused(folder)
    recheck(old, now=NOW)  # what is in memory is still good


def test_too_late_and_too_early(folder: Path) -> None:
    issue(folder, "worker-1", days=9, now=NOW + DAY)
    load_identity(folder, "worker-1", now=NOW + DAY - timedelta(minutes=59))
    early, late = NOW, NOW + 11 * DAY
    text = refused(folder, now=late)
    assert "expired on 2030-06-11 12:00 UTC" in text
    assert "clock says 2030-06-12 12:00 UTC" in text
    text = refused(folder, now=early)
    assert "not yet valid, only from 2030-06-02 11:00 UTC" in text
    assert "clock says 2030-06-01 12:00 UTC" in text
    identity = load_identity(folder, "worker-1", now=NOW + DAY)
    with pytest.raises(IdentityError, match="expired"):
        recheck(identity, now=late)


def test_the_authority_is_over(folder: Path) -> None:
    issue(folder, "worker-1", now=NOW)
    assert "the authority in" in refused(folder, now=NOW + 4000 * DAY)
    with pytest.raises(IdentityError, match="expired"):
        issue(folder, "worker-2", now=NOW + 4000 * DAY)


@pytest.mark.parametrize(
    ("uris", "words"),
    [
        ([], "no name"),
        (["https://worker-1"], "no name"),
        (["fedhp://worker-1", "fedhp://worker-2"], "2 names"),
        (["fedhp://worker-2"], "is the certificate of worker-2, not of worker-1"),
        (["fedhp://a b"], "'a b' cannot be the name"),
    ],
)
def test_not_exactly_one_name(folder: Path, uris: list[str], words: str) -> None:
    sign(folder, "worker-1", uris=uris)
    assert words in refused(folder)


def test_an_rsa_key_would_let_tls_1_2_in(folder: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    sign(folder, "worker-1", uris=["fedhp://worker-1"], key=key)
    assert "not the kind of key" in refused(folder)


def test_damaged_files(folder: Path) -> None:
    issue(folder, "worker-1", now=NOW)
    whole = (folder / "worker-1.key").read_bytes()
    for broken in (whole[:150], b"", b"\xff\x00", whole.replace(b"PRIVATE", b"PUBLIC")):
        (folder / "worker-1.key").write_bytes(broken)
        assert "worker-1.key is not a private key" in refused(folder)
    (folder / "worker-1.key").write_bytes(whole)
    locked = serialization.load_pem_private_key(whole, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"open sesame"),
    )
    (folder / "worker-1.key").write_bytes(locked)
    assert "has a passphrase" in refused(folder)
    (folder / "worker-1.key").write_bytes(whole)
    (folder / "worker-1.crt").write_bytes((folder / "worker-1.crt").read_bytes()[:200])
    assert "worker-1.crt is not a certificate" in refused(folder)


def test_inspect_tells_all_with_what_is_wrong(folder: Path) -> None:
    issue(folder, "worker-1", hosts=["10.0.0.5"], now=NOW)
    issue(folder, "b", roles=["coordinator"], days=10, now=NOW)
    issue(folder, "c", now=NOW)
    (folder / "worker-1.key").chmod(0o644)
    (folder / "c.key").unlink()
    authority, b, c, worker = inspect(folder, now=NOW + 11 * DAY)
    assert (authority.authority, b.authority, worker.authority) == (True, False, False)
    assert (b.roles, b.days_left(NOW), b.days_left(NOW + 11 * DAY)) == (("coordinator",), 10, -1)
    assert "expired" in b.problem
    assert (c.has_key, c.problem) == (False, "")
    assert (worker.hosts, worker.has_key) == (("10.0.0.5",), True)
    assert "mode 0644" in worker.problem
    assert inspect(folder / "c.crt", now=NOW)[0].name == "c"


def test_inspect_refuses_files_that_are_not_certificates(folder: Path) -> None:
    (folder / "empty").mkdir()
    for path, words in (("ca.key", "private key"), ("empty", "no certificates"), ("x", "missing")):
        with pytest.raises(FedhpError, match=words):
            inspect(folder / path, now=NOW)
