"""Certificates over time: renewed without a restart, warned of before they expire, diagnosed."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedhp.cluster.coordinator.service import CoordinatorService
from fedhp.cluster.ledger.base import SignedLedger, Unreachable
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.ops.operator import status_json
from fedhp.cluster.protocol.message_checks import check_status_reply
from fedhp.cluster.protocol.wire_pb2 import NextRequest, Order, StatusReply
from fedhp.cluster.security import renewal
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.renewal import ExpiryWatch, RenewableIdentity
from fedhp.cluster.security.tls import AllowList, open_channel, peer_of
from fedhp.cluster.worker import coordinator_client
from fedhp.console.cluster import trouble_lines
from net.fake_coordinator import FakeCoordinator
from net.federation import Federation, experiment, start_federation
from net.identities import (
    LONG_AGO,
    TODAY,
    knock,
    make_certificates,
    run,
    serving,
    turned_away,
    why_refused,
)
from waiting import wait_until_async

EXPIRED_DAYS = 30  # of validity from LONG_AGO on


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "LOOK_SECONDS", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority that is older than every certificate of these tests."""
    init_authority(tmp_path / "certs", now=TODAY - timedelta(days=800))
    return tmp_path / "certs"


def test_new_files_are_taken_up_when_they_fit_together(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issue(folder, "w0", days=10)
    identity = RenewableIdentity(load_identity(folder, "w0"))
    first = identity.current()
    assert identity.current() is first
    key = (folder / "w0.key").read_bytes()
    issue(folder, "w0", days=90, replace=True)
    renewed_key = (folder / "w0.key").read_bytes()
    (folder / "w0.key").write_bytes(key)  # only one of the two files has been copied so far
    assert identity.current() is first
    assert identity.current() is first
    assert len([line for line in caplog.messages if "not used yet" in line]) == 1
    (folder / "w0.key").write_bytes(renewed_key)
    renewed = identity.current()
    assert renewed.ends > first.ends
    assert renewed.key == renewed_key
    assert identity.current() is renewed


def test_a_server_shows_its_renewed_certificate_without_a_restart(folder: Path) -> None:
    """One that has expired is refused; after the renewal the same server is accepted."""
    issue(folder, "server", hosts=["127.0.0.1"], days=EXPIRED_DAYS, now=LONG_AGO)
    issue(folder, "w0")

    async def scene() -> None:
        worker = load_identity(folder, "w0")
        async with serving(load_identity(folder, "server", now=LONG_AGO)) as (address, _):
            await turned_away(worker, address, name="server")
            why = await why_refused(worker, address, name="server")
            assert "has expired" in why
            ends = LONG_AGO + timedelta(days=EXPIRED_DAYS)
            assert f"to {ends:%Y-%m-%d %H:%M} UTC" in why
            renewing = "fedhp certs issue server --host 127.0.0.1 --role worker --replace"
            assert renewing in why
            issue(folder, "server", hosts=["127.0.0.1"], replace=True)
            async with open_channel(worker, address, name="server") as channel:
                assert await knock(channel, "w0")

    run(scene)


class Seeing(FakeCoordinator):
    """Keeps the certificates with which workers ask for orders."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shown: list[bytes] = []

    async def Next(self, request: NextRequest, context: Any) -> Order:
        self.shown.append(peer_of(context).certificate)
        return await super().Next(request, context)


def test_a_worker_connects_again_with_its_renewed_certificate(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs", 1)

    async def scene() -> None:
        coordinator = Seeing(experiment(), certificates)
        async with coordinator:
            federation, shown = Federation(coordinator, tmp_path), coordinator.shown
            await federation.ready([0])
            issue(certificates, "w0", hosts=["127.0.0.1"], replace=True)
            wait = Order(epoch=1)
            wait.wait.why = "for the others"
            coordinator.order(0, wait)  # ends the call over the old connection
            await coordinator.until(lambda: len(shown) > 1)
            assert shown[0] != shown[1]
            assert shown[1] == (certificates / "w0.crt").read_bytes()
            assert not federation.running[0].done()
            federation.stops[0].set()
            await federation.running[0]

    run(scene)


def test_a_worker_that_has_joined_names_the_certificate_that_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator is started again, with a certificate that has expired meanwhile."""
    monkeypatch.setattr(coordinator_client, "SILENT_SECONDS", 0.1)
    certificates = tmp_path / "certs"
    init_authority(certificates, now=TODAY - timedelta(days=800))
    issue(certificates, "w0", hosts=["127.0.0.1"])
    issue(certificates, "boss", hosts=["127.0.0.1"], roles=["coordinator"])

    async def scene() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0])
            late = {"hosts": ["127.0.0.1"], "roles": ["coordinator"], "days": EXPIRED_DAYS}
            issue(certificates, "late", now=LONG_AGO, **late)  # type: ignore[arg-type]
            coordinator = federation.coordinator
            await coordinator._server.stop(grace=None)
            expired = load_identity(certificates, "late", now=LONG_AGO)
            port = coordinator.address.rpartition(":")[2]
            async with serving(expired, port=int(port)):
                await wait_until_async(
                    lambda: any("late" in str(vars(line)) for line in caplog.records),
                    "the diagnosis",
                )
        why = next(str(vars(line)["why"]) for line in caplog.records if "late" in str(vars(line)))
        assert "has expired" in why
        assert "fedhp certs issue late --host 127.0.0.1 --role coordinator --replace" in why

    run(scene)


def test_warnings_come_30_days_before_and_name_the_command(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issue(folder, "w0", hosts=["10.0.0.5"], days=100, now=TODAY)
    issue(folder, "w1", days=40, now=TODAY)
    clock = [TODAY]
    own = RenewableIdentity(load_identity(folder, "w0"), now=lambda: clock[0])
    watch = ExpiryWatch(own, now=lambda: clock[0])
    watch.see("w1", (folder / "w1.crt").read_bytes())

    def after(days: float) -> list[tuple[int, str]]:
        caplog.clear()
        clock[0] = TODAY + timedelta(days=days)
        watch.check()
        return [(line.levelno, line.getMessage()) for line in caplog.records]

    assert after(9) == []
    ((level, text),) = after(11.9)
    assert level == logging.WARNING
    ends = load_identity(folder, "w1").ends
    for words in ("w1 expires", f"{ends:%Y-%m-%d %H:%M} UTC", "in 28 days", "to that machine"):
        assert words in text
    assert "fedhp certs issue w1 --role worker --replace" in text
    assert after(12.4) == []  # once a day
    assert len(after(13.1)) == 1
    assert watch.seconds_left()["w1"] == pytest.approx(timedelta(days=26.9).total_seconds(), abs=99)
    ((level, text),) = after(41)
    assert level == logging.ERROR
    assert "w1 expired on" in text
    issue(folder, "w1", days=365, replace=True)
    watch.see("w1", (folder / "w1.crt").read_bytes())
    assert after(42) == []
    ((level, text),) = after(90)
    assert f"w0 --host 10.0.0.5 --role worker --replace, then copy both files to {folder}" in text
    ((level, text),) = after(101)
    assert "w0 expired on" in text
    assert watch.seconds_left()["w0"] < 0
    caplog.set_level(logging.INFO)
    issue(folder, "w0", days=365, replace=True)
    assert [text for _, text in after(102) if "took up" not in text] == []


def test_the_status_names_the_certificates_to_renew(folder: Path) -> None:
    state: Any = SimpleNamespace(
        guard=None,
        admission=SimpleNamespace(allowed=AllowList(None)),
        status=lambda: StatusReply(run="0" * 32, state="running"),
    )
    for name, days in (("boss", 20), ("w0", 365), ("w1", 3), ("w2", 1)):
        issue(folder, name, days=days, now=TODAY)
    later = TODAY + timedelta(days=2)
    watch = ExpiryWatch(RenewableIdentity(load_identity(folder, "boss")), now=lambda: later)
    for name in ("w0", "w1", "w2"):
        watch.see(name, (folder / f"{name}.crt").read_bytes())
    own = RenewableIdentity(load_identity(folder, "boss"))
    reply = CoordinatorService(state, own, address="127.0.0.1:1", expiry=watch).status()
    check_status_reply(reply)
    assert [certificate.name for certificate in reply.expiring] == ["w2", "w1", "boss"]
    assert trouble_lines(reply) == [
        "certificates to renew:",
        "  w2: expired 1.0 days ago",
        "  w1: expires in 1.0 days",
        "  boss: expires in 18.0 days",
    ]
    assert status_json(reply)["expiring_certificates"][0]["name"] == "w2"


def test_nothing_is_signed_with_an_expired_certificate(folder: Path, tmp_path: Path) -> None:
    """Nobody would accept it after a restart: the commit waits for the renewed certificate."""
    issue(folder, "boss", roles=["coordinator"], days=EXPIRED_DAYS, now=LONG_AGO)
    expired = load_identity(folder, "boss", now=LONG_AGO)

    async def scene() -> None:
        ledger = SignedLedger(LocalLedger(tmp_path / "ledger"), expired, where="")
        try:
            await ledger.lead(name="boss", address="127.0.0.1:1")
            with pytest.raises(Unreachable, match="expired on"):
                await ledger.commit(b"state")
            issue(folder, "boss", roles=["coordinator"], replace=True)
            await ledger.commit(b"state")
            assert await ledger.committed() == b"state"
        finally:
            await ledger.close()

    asyncio.run(scene())
