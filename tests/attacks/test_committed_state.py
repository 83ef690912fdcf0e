"""Finding 1: the state that a coordinator continues from must be signed, and etcd encrypted."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from attacks.places import SOON
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.process import leadership
from fedhp.cluster.coordinator.process.finders import leader_finder
from fedhp.cluster.coordinator.process.leadership import (
    CoordinatorProcessSettings,
    check_etcd,
    coordinate,
    warn_of_plain_etcd,
)
from fedhp.cluster.ledger import etcd
from fedhp.cluster.ledger.base import PURPOSE, LedgerDamaged, SignedLedger
from fedhp.cluster.ledger.etcd import EtcdLedger
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.protocol.attempt import INITIAL
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.security.identity import Identity, load_identity
from fedhp.cluster.security.signatures import MAGIC, sign
from fedhp.config import parse
from fedhp.errors import ConfigError
from net.clusters import tiny

STATE = b'{"run": "what the run continues from"}\nplanner'
PAST = datetime.now(UTC) - timedelta(days=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    init_authority(folder, now=PAST)
    issue(folder, "boss", hosts=["127.0.0.1"], roles=["coordinator"])
    issue(folder, "second", hosts=["127.0.0.1"], roles=["coordinator", "operator"])
    issue(folder, "w0")
    return folder


def other_authority(folder: Path) -> Identity:
    init_authority(folder)
    issue(folder, "boss", roles=["coordinator"])
    return load_identity(folder, "boss")


@asynccontextmanager
async def leading(path: Path) -> AsyncIterator[LocalLedger]:
    ledger = LocalLedger(path)
    await ledger.lead(name="c", address="")
    try:
        yield ledger
    finally:
        await ledger.close()


def stored(path: Path, content: bytes) -> None:
    """Write a state as somebody does who can write the ledger's file, or the key in etcd."""

    async def write() -> None:
        async with leading(path) as ledger:
            await ledger.commit(content)

    asyncio.run(write())


def continued(path: Path, identity: Identity) -> bytes | None:
    """What a coordinator that takes over reads."""

    async def read() -> bytes | None:
        async with leading(path) as ledger:
            return await SignedLedger(ledger, identity, where=str(path)).committed()

    return asyncio.run(read())


def test_what_one_coordinator_signed_another_continues(folder: Path, tmp_path: Path) -> None:
    async def commit() -> None:
        async with leading(tmp_path) as ledger:
            signed = SignedLedger(ledger, load_identity(folder, "boss"), where="")
            assert await signed.committed() is None
            await signed.commit(STATE)

    asyncio.run(commit())
    assert continued(tmp_path, load_identity(folder, "second")) == STATE


def changed(content: bytes) -> bytes:
    return content.replace(b"continues", b"restarts!")


FORGERIES: dict[str, tuple[Callable[[Path, Path], bytes], str]] = {
    "not signed": (lambda folder, _: STATE, "it is not signed"),
    "changed": (
        lambda folder, _: changed(sign(load_identity(folder, "boss"), STATE, purpose=PURPOSE)),
        "somebody changed it",
    ),
    "signed by a worker": (
        lambda folder, _: sign(load_identity(folder, "w0"), STATE, purpose=PURPOSE),
        "w0 is worker, not coordinator",
    ),
    "signed by another authority": (
        lambda _, tmp: sign(other_authority(tmp / "theirs"), STATE, purpose=PURPOSE),
        "another authority",
    ),
    "signed as something else": (
        lambda folder, _: sign(load_identity(folder, "boss"), STATE, purpose="a list"),
        "signed as 'a list'",
    ),
    "a worker's key under the coordinator's certificate": (
        lambda folder, _: sign(load_identity(folder, "w0"), STATE, purpose=PURPOSE).replace(
            load_identity(folder, "w0").certificate.replace(b"\n", b"\\n"),
            load_identity(folder, "boss").certificate.replace(b"\n", b"\\n"),
        ),
        "somebody changed it",
    ),
    "damaged": (lambda *_: MAGIC + b"{}\n" + STATE, "cannot be read"),
    "no JSON": (lambda *_: MAGIC + b"\xff\n" + STATE, "cannot be read"),
    "nested too deeply": (lambda *_: MAGIC + b"[" * 10_000 + b"\n" + STATE, "cannot be read"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_state_that_no_coordinator_signed_is_refused(
    name: str, folder: Path, tmp_path: Path
) -> None:
    forge, words = FORGERIES[name]
    stored(tmp_path / "ledger", forge(folder, tmp_path))
    with pytest.raises(LedgerDamaged, match=words) as refused:
        continued(tmp_path / "ledger", load_identity(folder, "second"))
    assert "signed" in refused.value.allowed
    assert refused.value.fix


def test_a_certificate_must_have_been_valid_when_it_signed(folder: Path, tmp_path: Path) -> None:
    issue(folder, "old", days=10, roles=["coordinator"], now=PAST)
    identity = load_identity(folder, "old", now=PAST)
    late = sign(identity, STATE, purpose=PURPOSE)
    now = time.time()
    in_time = sign(identity, STATE, purpose=PURPOSE, now=now - 15 * 86_400)
    boss = load_identity(folder, "boss")
    ahead = sign(boss, STATE, purpose=PURPOSE, now=now + 15 * 86_400)
    second = load_identity(folder, "second")
    stored(tmp_path / "a", in_time)
    assert continued(tmp_path / "a", second) == STATE  # a run may outlive a certificate
    for content, words in ((late, "expired"), (ahead, "in the future")):
        stored(tmp_path / words, content)
        with pytest.raises(LedgerDamaged, match=words):
            continued(tmp_path / words, second)


def run_coordinator(settings: CoordinatorProcessSettings) -> None:
    async def run() -> None:
        await asyncio.wait_for(coordinate(settings, stop=asyncio.Event()), SOON)

    asyncio.run(run())


def test_a_coordinator_does_not_continue_an_unsigned_run(folder: Path, tmp_path: Path) -> None:
    """The whole process: a ledger that somebody else wrote."""
    experiment = tiny(workers=1, rounds=1)
    forged = CommittedState("a" * 32, experiment, INITIAL).to_bytes()
    stored(tmp_path / "run" / leadership.LEDGER, forged)
    settings = CoordinatorProcessSettings(
        experiment=experiment, certificates=folder, folder=tmp_path / "run", name="boss"
    )
    with pytest.raises(LedgerDamaged, match="it is not signed") as refused:
        run_coordinator(settings)
    assert "find out who wrote it" in refused.value.fix


def test_a_standby_refuses_untrusted_parts_of_a_signed_state(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a coordinator that may sign cannot choose the code of another machine."""
    experiment = parse({"algorithm": {"name": "attacks.payload:fire"}})
    content = CommittedState("a" * 32, experiment, INITIAL).to_bytes()
    signed = sign(load_identity(folder, "boss"), content, purpose=PURPOSE)
    stored(tmp_path / "ledger", signed)

    def ledger(settings: CoordinatorProcessSettings, identity: Identity) -> SignedLedger:
        return SignedLedger(LocalLedger(tmp_path / "ledger"), identity, where="etcd")

    monkeypatch.setattr(leadership, "_ledger", ledger)
    settings = CoordinatorProcessSettings(
        experiment=None, certificates=folder, folder=tmp_path / "run", name="second"
    )
    with pytest.raises(ConfigError, match="does not trust the module") as refused:
        run_coordinator(settings)
    assert refused.value.key == "algorithm.name"


def test_etcd_without_tls_is_refused_unless_the_operator_insists(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = "etcd://127.0.0.1:1"
    with pytest.raises(ConfigError, match="is not encrypted") as refused:
        EtcdLedger(url, "r")
    assert "--insecure-etcd" in refused.value.fix
    with pytest.raises(ConfigError, match="is not encrypted"):
        leader_finder(url)
    settings = CoordinatorProcessSettings(
        experiment=None,
        certificates=folder,
        folder=tmp_path,
        name="boss",
        listen="127.0.0.1:7701",
        ha=url,
    )
    with pytest.raises(ConfigError, match="is not encrypted"):
        leadership.check_settings(settings)
    leadership.check_settings(replace(settings, insecure_etcd=True))
    leadership.check_settings(replace(settings, ha="etcds://127.0.0.1:1"))
    check_etcd(url, insecure=True)
    with caplog.at_level(logging.WARNING):
        warn_of_plain_etcd("etcds://127.0.0.1:1")
        assert not caplog.records
        warn_of_plain_etcd(url)
    assert "INSECURE" in caplog.text


def test_a_state_in_etcd_that_unpacks_to_too_much_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(etcd, "STATE_BYTES", 1000)
    assert etcd.unpacked(zlib.compress(bytes(1000))) == bytes(1000)
    with pytest.raises(zlib.error):
        etcd.unpacked(zlib.compress(bytes(1001)))
    with pytest.raises(zlib.error):
        etcd.unpacked(zlib.compress(STATE)[:-1])
