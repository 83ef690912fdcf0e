"""A machine is gone and another one gets its name; then the old one comes back."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from attacks.members import command
from faults.in_process import InProcessFederation, experiment, in_process_federation, run, until
from faults.scripted import ScriptedWorker
from fedhp.cluster.coordinator.members.members import NameBindings
from fedhp.cluster.coordinator.service import CoordinatorState
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import CALL_RULES, Envelopes, Guard, Refused
from fedhp.cluster.security.certificates import issue
from fedhp.cluster.security.identity import load_identity
from net.identities import make_certificates

NOW = datetime.now(UTC)
AHEAD = 10**18  # ns by which a clock is wrong


def machine_of_w1(certificates: Path, folder: Path, *, issued: datetime) -> Path:
    """A machine with its own certificate of the name w1; returns its folder of certificates."""
    shutil.copytree(certificates, folder)
    issue(folder, "w1", hosts=("127.0.0.1",), replace=True, now=issued)
    return folder


def start_w1(federation: InProcessFederation, machine: Path) -> ScriptedWorker:
    worker = ScriptedWorker.named(
        machine, "w1", federation.folder / "workers" / machine.name, lambda: federation.address
    )
    federation.workers["w1"] = worker
    federation.worker_tasks["w1"] = asyncio.create_task(worker.live())
    return worker


async def takes_part(leader: CoordinatorState, name: str) -> None:
    """Wait until a committed round has a report of this worker."""
    before = leader.round_index

    def reported() -> bool:
        member = leader.conductor.by_name.get(name)
        return member is not None and any(m.round_index > before for m in member.models)

    await until(reported)


@pytest.fixture
def old_and_new(tmp_path: Path) -> tuple[Path, Path]:
    """Two machines; the certificate of the new one was issued earlier, by a clock behind."""
    certificates = make_certificates(tmp_path / "authority", 3)
    old = machine_of_w1(certificates, tmp_path / "old", issued=NOW)
    new = machine_of_w1(certificates, tmp_path / "new", issued=NOW - timedelta(minutes=20))
    return old, new


def test_a_name_goes_to_another_machine_when_the_operator_allows_it(
    old_and_new: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = old_and_new
    (tmp_path / "run").mkdir()
    settings = experiment(rounds=100_000, cluster={"gather": 0.5})

    async def scenario() -> None:
        async with in_process_federation(settings, old, tmp_path / "run") as federation:
            leader = await federation.start_coordinator()
            for name in ("w0", "w2"):
                federation.start_worker(name)
            with monkeypatch.context() as clock:  # that of the old machine is years ahead
                clock.setattr(
                    "faults.scripted.Envelopes", lambda name: Envelopes(name, after=AHEAD * 4)
                )
                start_w1(federation, old)
                await takes_part(leader, "w1")
            await federation.stop_worker("w1")

            refused = start_w1(federation, new)
            await until(lambda: len(refused.refused) >= 2)
            assert refused.refused[0].startswith("certificate: the name w1 belongs to another")
            await federation.stop_worker("w1")

            assert "another machine" in await command(federation, allow="w1")
            start_w1(federation, new)
            await takes_part(leader, "w1")
            assert leader.admission.readmitted == {"w1": 1}

            back = ScriptedWorker.named(old, "w1", tmp_path / "back", lambda: federation.address)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(back.live(), 0.5)
            # Its calls are refused, and do not use up those of the machine that has the name.
            assert {text.partition(":")[0] for text in back.refused} <= {"certificate", "streams"}
            assert back.refused[0].startswith("certificate: ")
            assert not federation.workers["w1"].refused
            await takes_part(leader, "w1")

            # The next coordinator knows it, too.
            await federation.stop_coordinator()
            leader = await federation.start_coordinator()
            await until(lambda: leader.round_index > 0)
            back.refused.clear()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(back.live(), 0.5)
            assert back.refused[0].startswith("certificate: ")

    run(scenario())


def test_a_renewed_certificate_needs_nobody_and_the_old_one_is_refused(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "authority", 3)
    old, new, third = (
        load_identity(machine_of_w1(certificates, tmp_path / name, issued=issued), "w1").certificate
        for name, issued in (
            ("old", NOW - timedelta(minutes=20)),
            ("new", NOW),
            ("third", NOW - timedelta(minutes=40)),
        )
    )
    bindings = NameBindings()
    assert not bindings.admit("w1", old)
    assert not bindings.admit("w1", old)
    assert bindings.admit("w1", new)
    for pem in (old, third):
        with pytest.raises(Refused, match="certs issue w1 --replace"):
            bindings.admit("w1", pem)
    bindings.reopen("w1")
    with pytest.raises(Refused):  # once replaced, always refused
        bindings.admit("w1", old)
    later = NameBindings(bindings.pack())
    assert not later.admit("w1", new)
    with pytest.raises(Refused):
        later.admit("w1", third)
    later.reopen("w1")
    assert later.admit("w1", third)
    with pytest.raises(Refused):
        later.admit("w1", new)


def test_peers_accept_the_process_of_the_other_machine(tmp_path: Path) -> None:
    guard = Guard(run="0" * 32)
    workers = frozenset({"worker"})
    old, new = Envelopes("w1", after=AHEAD * 4), Envelopes("w1")

    def take(envelopes: Envelopes) -> None:
        envelope = envelopes.make(run="0" * 32, attempt=Attempt(1, 1, 1))
        guard.check(envelope, peer="w1", roles=workers, rule=CALL_RULES["Pull"])

    take(old)
    with pytest.raises(Refused, match="fedhp cluster allow"):
        take(new)
    guard.restart("w1")
    take(new)
    take(new)
