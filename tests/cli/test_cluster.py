"""fedhp cluster and fedhp coordinator: a run on this machine, an operator, what is refused."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from cli.support import Command, ended, start, write
from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.ops.operator import leader_status, target_of
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from subprocesses import ended_after
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    init_authority(folder)
    issue(folder, "coordinator", hosts=("127.0.0.1",), roles=("coordinator",))
    issue(folder, "w0")
    return folder


def test_up_runs_everything_and_sums_it_up(command: Command, tmp_path: Path) -> None:
    file, out = write(tmp_path), tmp_path / "run"
    arguments = ("cluster", "up", file, "--workers", 2, "--out", out, "rounds=2")
    outcome = command(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    result = outcome.json()
    assert result["rounds"] == 2
    assert sorted(result["digests"]) == ["w0", "w1"]
    assert result["exit_codes"] == {"coordinator": 0, "w0": 0, "w1": 0}
    assert 0 < result["accuracy"] <= 1
    assert result["runs"] == [result["run"]]
    assert result["run"]["mean_model_accuracy"] is None
    assert "round 2/2" in outcome.err

    again = command(*arguments)  # over already: nothing runs again
    assert again.code == 0, again.err
    assert "dpsgd" in again.out or "D-PSGD" in again.out
    assert f"run: {out}" in again.out
    with RunReader(out) as run:
        assert run.rounds_done == 2
    for words in (("show", out), ("show", out, "--round", 1), ("explain", out)):
        outcome = command(*words)
        assert outcome.code == 0, outcome.err
        assert "virtual" not in outcome.out
    assert "3 machines" not in command("show", out).out
    assert "2 machines of a network" in command("show", out).out


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (("model.name=nothing",), "model.name"),
        (("data.name=nothing",), "data.name"),
        (("cluster.min_workers=9",), "min_workers"),
        (("algorithm.name=pens", "algorithm.symmetric=true"), "algorithm.symmetric"),
        (("data.own_test=0.2",), "data.own_test"),
        (("evaluation.per_class=true",), "evaluation.per_class"),
    ],
)
def test_up_refuses_before_anything_starts(
    command: Command, tmp_path: Path, changes: tuple[str, ...], expected: str
) -> None:
    out = tmp_path / "run"
    outcome = command("cluster", "up", write(tmp_path), "--out", out, *changes)
    assert outcome.code == 2
    assert expected in outcome.err
    assert not out.exists()


def test_up_stops_everything_on_a_signal(tmp_path: Path) -> None:
    file, out = write(tmp_path, rounds=100_000, workers=2), tmp_path / "run"
    with ended_after(start("cluster", "up", file, "--out", out)) as process:
        wait_until(lambda: (out / "record.sqlite").exists(), "the record")
        process.send_signal(signal.SIGINT)
        outcome = ended(process)
    assert outcome.code == 130
    assert "continues the run" in outcome.err


def test_status_for_people_and_programs(command: Command, gathering: Cluster) -> None:
    outcome = command("cluster", "status", "--out", gathering.folder)
    assert outcome.code == 0, outcome.err
    assert (
        "gathering (0 of 3 workers are ready; at least 1 are needed): round 0 of 3" in outcome.out
    )
    address = target_of(gathering.folder).address
    outcome = command(
        *("cluster", "status", "--coordinator", address, "--certs", gathering.certificates),
        "--json",
    )
    assert outcome.json()["state"] == "gathering"
    assert outcome.json()["workers"] == []


def test_only_an_operator_may_command(command: Command, gathering: Cluster) -> None:
    outcome = command("cluster", "stop", "--out", gathering.folder, "--name", "w0")
    assert outcome.code == 2
    assert "needs operator" in outcome.err
    outcome = command("cluster", "drain", "w9", "--out", gathering.folder)
    assert outcome.code == 2
    assert "there is no worker w9" in outcome.err
    outcome = command("cluster", "allow", "w9", "--out", gathering.folder)
    assert "there is no worker w9" in outcome.err


def test_a_status_without_a_coordinator_says_why(
    command: Command, tmp_path: Path, certs: Path
) -> None:
    outcome = command("cluster", "status")
    assert outcome.code == 2
    assert "--coordinator HOST:PORT, or --out DIR" in outcome.err
    outcome = command("cluster", "status", "--out", tmp_path)
    assert "does not say where a coordinator is" in outcome.err
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        asked = ("cluster", "status", "--coordinator", address, "--certs", certs, "--name", "w0")
        outcome = command(*asked)
        assert "nothing listens there" in outcome.err
    outcome = command(*asked[:-1], "nobody")
    assert "nobody.crt is missing" in outcome.err


def test_a_standby_has_its_own_allow_list_and_certificate(
    command: Command, tmp_path: Path, certs: Path
) -> None:
    worker = ("worker", "--name", "w0", "--coordinator", "127.0.0.1:1", "--certs", certs)
    for option, value in (("--allow", tmp_path / "names.txt"), ("--standby-name", "c1")):
        outcome = command(*worker, option, value)
        assert outcome.code == 2
        assert f"{option} together with --standby" in outcome.err
    standby = ("--ha", "etcds://127.0.0.1:1", "--standby", "127.0.0.1:7701")
    assert "w0-standby.crt is missing" in command(*worker, *standby).err
    outcome = command(*worker, *standby, "--standby-name", "w0")
    assert outcome.code == 2
    assert "w0 is worker by its certificate, not coordinator" in outcome.err


def test_a_stranger_reads_the_true_cause(command: Command, gathering: Cluster, certs: Path) -> None:
    address = target_of(gathering.folder).address
    outcome = command(
        "cluster", "status", "--coordinator", address, "--certs", certs, "--name", "w0"
    )
    assert outcome.code == 2
    assert "authority" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--listen", "nonsense"), "address to listen on"),
        (("--listen", "127.0.0.1:0", "--name", "w0"), "not coordinator"),
        (("--listen", "127.0.0.1:0", "--name", "c9"), "c9.crt is missing"),
        (("--listen", "127.0.0.1:0", "--min-workers", "9"), "min_workers is 9"),
        (("--listen", "127.0.0.1:0", "--log-format", "xml"), "--log-format"),
        (("--listen", "127.0.0.1:0", "--allow", "/nowhere"), "allow-list"),
        (("--listen", "127.0.0.1:0", "--metrics", "nonsense"), "--metrics"),
        (("--listen", "0.0.0.0:0", "--ha", "etcds://127.0.0.1:1"), "--advertise"),
        (("--listen", "127.0.0.1:0", "algorithm.name=nothing"), "algorithm.name"),
        (("--listen", "127.0.0.1:0", "algorithm.name=pens", "algorithm.symmetric=true"), "PENS"),
    ],
)
def test_a_coordinator_refuses_before_it_starts(
    command: Command, tmp_path: Path, certs: Path, arguments: tuple[str, ...], expected: str
) -> None:
    out = tmp_path / "run"
    outcome = command("coordinator", write(tmp_path), "--certs", certs, "--out", out, *arguments)
    assert outcome.code == 2
    assert expected.replace("PENS", "algorithm.symmetric") in outcome.err
    assert not out.exists()


def test_a_port_in_use_is_an_error(command: Command, tmp_path: Path, certs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        outcome = command("coordinator", write(tmp_path), "--certs", certs, "--listen", listen)
    assert outcome.code == 75
    assert "in use" in outcome.err


def test_a_coordinator_ends_cleanly_on_sigterm(tmp_path: Path, certs: Path) -> None:
    out = tmp_path / "run"
    arguments = ("--listen", "127.0.0.1:0", "--certs", certs, "--out", out, "--max-workers", 1)
    command = ("coordinator", write(tmp_path), *arguments, "--log-format", "json")
    with ended_after(start(*command)) as process:
        wait_until(lambda: _answers(out, certs), "it answers")
        process.send_signal(signal.SIGTERM)
        outcome = ended(process)
    assert outcome.code == 130
    assert "the run is saved" in outcome.err
    lines = [json.loads(line) for line in (outcome.out + outcome.err).splitlines()]
    assert {line["who"] for line in lines} == {"coordinator"}
    with RunReader(out) as run:
        assert run.meta("status") == "interrupted"
        assert run.meta("workers") == 1


def _answers(out: Path, certs: Path) -> bool:
    try:
        return (
            leader_status(target_of(out, certificates=certs, name="w0")).reply.state == "gathering"
        )
    except RunError:
        return False
