"""fedhp doctor finds each planted defect, says how to fix it, and is content without any."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cli.support import Command, write
from fedhp.cluster.ops import doctor
from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.ops.operator import target_of
from fedhp.cluster.protocol.versions import installed
from fedhp.cluster.security.certificates import init_authority, issue


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    init_authority(folder, now=datetime.now(UTC) - timedelta(days=30))
    issue(folder, "w1")
    issue(folder, "c1", roles=("coordinator",), hosts=("127.0.0.1", "node1.lan"))
    return folder


def checks_of(command: Command, *arguments: object, ready: bool) -> dict[str, dict[str, str]]:
    """The findings by check; the exit code fits."""
    outcome = command("doctor", *arguments, "--json")
    assert outcome.code == (0 if ready else 1), outcome.out
    result = outcome.json()
    assert result["ready"] is ready
    for check in result["checks"]:
        assert check["verdict"] == "ok" or check["fix"], check
    return {check["check"]: check for check in result["checks"]}


def test_a_machine_without_faults(command: Command, certs: Path) -> None:
    checks = checks_of(
        command,
        *("--certs", certs, "--name", "c1", "--listen", "127.0.0.1:0", "--data", "digits"),
        ready=True,
    )
    assert {name: check["verdict"] for name, check in checks.items() if name != "disk"} == {
        "versions": "ok",
        "memory": "ok",
        "data": "ok",
        "port": "ok",
        "certificate ca.crt": "ok",
        "certificate c1.crt": "ok",
        "clock": "ok",
    }
    assert (
        "1437 samples of 64" in checks["data"]["message"]
        or "samples of" in checks["data"]["message"]
    )


def test_lines_for_people(command: Command, certs: Path) -> None:
    (certs / "w1.key").chmod(0o640)
    outcome = command("doctor", "--certs", certs, "--name", "w1")
    assert outcome.code == 1
    assert "ok       versions: fedhp" in outcome.out
    assert "wrong    certificate: " in outcome.out
    assert "fix: chmod 600" in outcome.out


def test_an_expired_certificate(command: Command, certs: Path) -> None:
    issue(certs, "w1", days=10, replace=True, now=datetime.now(UTC) - timedelta(days=20))
    check = checks_of(command, "--certs", certs, "--name", "w1", ready=False)["certificate"]
    assert "expired" in check["message"]
    assert "certs issue" in check["fix"]


def test_a_certificate_that_ends_soon(command: Command, certs: Path) -> None:
    issue(certs, "w1", days=10, replace=True)
    check = checks_of(command, "--certs", certs, "--name", "w1", ready=True)["certificate w1.crt"]
    assert check["verdict"] == "warning"
    assert "fedhp certs issue w1 --replace" in check["fix"]


def test_a_certificate_of_another_authority(command: Command, certs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    init_authority(other)
    (certs / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    check = checks_of(command, "--certs", certs, "--name", "w1", ready=False)["certificate"]
    assert "another authority" in check["message"]


def test_a_certificate_that_is_not_there(command: Command, certs: Path) -> None:
    check = checks_of(command, "--certs", certs, "--name", "w7", ready=False)["certificate"]
    assert "w7.crt is missing" in check["message"]


def test_every_certificate_without_a_name(command: Command, certs: Path) -> None:
    issue(certs, "w1", days=10, replace=True, now=datetime.now(UTC) - timedelta(days=20))
    checks = checks_of(command, "--certs", certs, ready=False)
    assert checks["certificate w1.crt"]["verdict"] == "wrong"
    assert checks["certificate c1.crt"]["verdict"] == "ok"


def test_a_file_from_the_future(command: Command, certs: Path) -> None:
    ahead = datetime.now(UTC).timestamp() + 7200
    os.utime(certs / "w1.crt", (ahead, ahead))
    check = checks_of(command, "--certs", certs, "--name", "w1", ready=True)["clock"]
    assert check["verdict"] == "warning"
    assert "in the future" in check["message"]


def test_a_port_that_is_taken(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        check = checks_of(command, "--listen", address, ready=False)["port"]
    assert "in use" in check["message"]
    assert "another port" in check["fix"]
    check = checks_of(command, "--listen", "nonsense", ready=False)["port"]
    assert "address to listen on" in check["message"]


def test_data_that_cannot_be_read(command: Command, tmp_path: Path) -> None:
    check = checks_of(command, "--data", tmp_path / "none.npz", ready=False)["data"]
    assert "none.npz" in check["message"]
    np.savez(tmp_path / "own.npz", x=np.zeros((20, 4), np.float32), y=np.arange(20) % 2)
    check = checks_of(command, "--data", tmp_path / "own.npz", ready=True)["data"]
    assert "of 4 for training" in check["message"]
    assert "2 classes" in check["message"]
    check = checks_of(command, "--data", write(tmp_path), ready=True)["data"]
    assert "10 classes" in check["message"]


def test_little_room(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = SimpleNamespace(free=10 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage)
    monkeypatch.setattr("fedhp.machine.available", lambda: 100 << 20)
    checks = checks_of(command, "--out", tmp_path / "new", ready=False)
    assert checks["disk"]["verdict"] == checks["memory"]["verdict"] == "wrong"
    usage.free = 500 << 20
    monkeypatch.setattr("fedhp.machine.available", lambda: 600 << 20)
    checks = checks_of(command, "--out", tmp_path / "new", ready=True)
    assert checks["disk"]["verdict"] == checks["memory"]["verdict"] == "warning"


def test_a_missing_library(command: Command, monkeypatch: pytest.MonkeyPatch, certs: Path) -> None:
    monkeypatch.setattr(doctor, "installed", lambda: {**installed(), "grpcio": "missing"})
    checks = checks_of(command, "--certs", certs, "--coordinator", "127.0.0.1:1", ready=False)
    assert checks["versions"]["message"] == "not installed: grpcio"
    assert ".[cluster]" in checks["versions"]["fix"]
    assert "reach" not in checks


def test_nobody_listens(command: Command) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        check = checks_of(command, "--coordinator", address, ready=False)["reach"]
    assert f"nothing listens at {address}" in check["message"]


def test_etcd_that_does_not_answer(command: Command) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"etcd://127.0.0.1:{closed.getsockname()[1]}"
        check = checks_of(command, "--ha", address, ready=False)["etcd"]
    assert "etcd" in check["message"]


def asked(cluster: Cluster, name: str = "w0") -> tuple[Any, ...]:
    address = target_of(cluster.folder).address
    return ("--coordinator", address, "--certs", cluster.certificates, "--name", name)


def test_a_coordinator_that_answers(command: Command, gathering: Cluster) -> None:
    checks = checks_of(command, *asked(gathering), ready=True)
    assert checks["coordinator"]["verdict"] == "ok"
    assert "gathering, round 0 of 3" in checks["coordinator"]["message"]
    assert checks["same versions"]["verdict"] == "ok"
    assert "measured to within" in checks["clock"]["message"]


def test_a_coordinator_of_another_federation(
    command: Command, gathering: Cluster, certs: Path
) -> None:
    address = target_of(gathering.folder).address
    arguments = ("--coordinator", address, "--certs", certs, "--name", "w1")
    checks = checks_of(command, *arguments, ready=False)
    assert checks["reach"]["verdict"] == "ok"
    assert "authority" in checks["coordinator"]["message"]


@pytest.mark.parametrize(
    ("ahead", "verdict"), [(10_000.0, "wrong"), (-10_000.0, "wrong"), (600.0, "warning")]
)
def test_a_clock_that_is_apart(
    command: Command,
    gathering: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    verdict: str,
) -> None:
    clock = SimpleNamespace(time=lambda: datetime.now(UTC).timestamp() + ahead)
    monkeypatch.setattr(doctor, "time", clock)
    check = checks_of(command, *asked(gathering), ready=verdict != "wrong")["clock"]
    assert check["verdict"] == verdict
    assert ("ahead of" if ahead > 0 else "behind") in check["message"]


@pytest.mark.parametrize(("library", "verdict"), [("fedhp", "wrong"), ("torch", "warning")])
def test_another_version(
    command: Command,
    gathering: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    verdict: str,
) -> None:
    monkeypatch.setattr(doctor, "installed", lambda: {**installed(), library: "0.0.9"})
    check = checks_of(command, *asked(gathering), ready=verdict != "wrong")["same versions"]
    assert check["verdict"] == verdict
    assert f"{library} 0.0.9 here" in check["message"]
