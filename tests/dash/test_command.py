"""`fedhp dash` and --dash: wrong options are refused, the page ends with its command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme

from cli.support import Command, interrupt, start, write
from dash.conftest import FIRST
from fedhp.dash.child import DashChild
from subprocesses import ended_after
from waiting import PATIENCE, wait_until

TOKEN = "a-token-of-some-length"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(TOKEN)
    return file


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def read(url: str, *, token: str = "", context: ssl.SSLContext | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as response:
        content = response.read()
    assert isinstance(content, bytes)
    return content


def test_a_missing_folder_is_refused(command: Command, tmp_path: Path) -> None:
    result = command("dash", tmp_path / "nothing")
    assert result.code == 2
    assert "is not a folder" in result.err
    assert "fix:" in result.err


@pytest.mark.parametrize("port", ["-1", "65536", "many"])
def test_a_wrong_port_is_refused(command: Command, real_runs: Path, port: str) -> None:
    result = command("dash", real_runs, "--port", port)
    assert result.code == 2
    assert "--port" in result.err


def test_a_port_in_use_is_refused(command: Command, real_runs: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = command("dash", real_runs, "--port", port)
        with_run = command("run", write(real_runs.parent), "--dash", "--dash-port", port)
    assert (result.code, with_run.code) == (75, 75)
    assert f"port {port}" in result.err
    assert "--dash-port" in with_run.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_machines_need_tls_and_a_token(
    command: Command, real_runs: Path, host: str, token_file: Path
) -> None:
    for options in ([], ["--token-file", token_file]):
        result = command("dash", real_runs, "--host", host, "--port", 0, *options)
        assert result.code == 2
        assert "--cert, --key and --token-file" in result.err


def test_a_certificate_and_its_key_belong_together(
    command: Command, real_runs: Path, tmp_path: Path
) -> None:
    one = command("dash", real_runs, "--cert", tmp_path / "c")
    assert (one.code, "--key" in one.err) == (2, True)
    both = command("dash", real_runs, "--cert", tmp_path / "c", "--key", tmp_path / "k")
    assert (both.code, "cannot be used" in both.err) == (2, True)
    folder = command("dash", real_runs, "--certs", tmp_path / "no certs")
    assert folder.code == 2


@pytest.mark.parametrize("name", ["a b", "name:80", "http://name", ""])
def test_a_wrong_host_name_is_refused(command: Command, real_runs: Path, name: str) -> None:
    result = command("dash", real_runs, "--allow-host", name)
    assert (result.code, "--allow-host" in result.err) == (2, True)


def test_a_port_without_a_page_is_refused(command: Command, tmp_path: Path) -> None:
    result = command("run", write(tmp_path), "--out", tmp_path / "x", "--dash-port", 0)
    assert (result.code, "add --dash" in result.err) == (2, True)


def test_the_command_serves_until_ctrl_c(real_runs: Path) -> None:
    with ended_after(start("dash", real_runs, "--port", 0)) as process:
        line = first_line(process)
        url = line.split()[-1]
        assert url.startswith("http://127.0.0.1:")
        assert json.loads(read(f"{url}api/runs"))["folder"] == "runs"
        interrupt(process)
        assert process.wait(PATIENCE) in (0, 130)


def test_with_tls_and_a_token_others_may_look(
    real_runs: Path, tmp_path: Path, token_file: Path
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    options = ["--cert", tmp_path / "cert.pem", "--key", tmp_path / "key.pem"]
    command = ["dash", real_runs, "--host", "0.0.0.0", "--port", 0, *options]
    with ended_after(start(*command, "--token-file", token_file)) as process:
        url = first_line(process).split()[-1]
        assert url.startswith("https://localhost:")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read(f"{url}api/runs", context=context)
        assert json.loads(read(f"{url}api/runs", token=TOKEN, context=context))["runs"]


def test_the_page_of_a_command_ends_with_it(real_runs: Path, tmp_path: Path) -> None:
    """Also if the command is killed; and it may be started before its folder exists."""
    folder = tmp_path / "later"
    code = (
        "import sys, time; from pathlib import Path; from fedhp.dash.child import DashChild\n"
        "child = DashChild(Path(sys.argv[1])); print(child.url, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    with ended_after(process):
        url = first_line(process).strip()
        assert json.loads(read(f"{url}api/runs"))["runs"] == []
        shutil.copytree(real_runs, folder)
        assert len(json.loads(read(f"{url}api/runs"))["runs"]) == 2
        os.kill(process.pid, signal.SIGKILL)
    port = int(url.rstrip("/").rpartition(":")[2])
    wait_until(lambda: not answers(port), "the page has ended", seconds=PATIENCE)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_run_with_a_page_is_the_same(command: Command, real_runs: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rounds=5, algorithm={"name": "fedhp"}, seed=3)
    plain = command("run", file, "--out", tmp_path / "plain", "--json").json()
    seen = command("run", file, "--out", tmp_path / "seen", "--json", "--dash", "--dash-port", 0)
    assert seen.json()["runs"] == plain["runs"]  # with its digest
    assert "live page: http://127.0.0.1:" in seen.err
    names = [sorted(path.name for path in (tmp_path / run).iterdir()) for run in ("plain", "seen")]
    assert names[0] == names[1]


def test_the_end_of_a_run_says_how_to_look_at_it(command: Command, tmp_path: Path) -> None:
    result = command("run", write(tmp_path), "--out", tmp_path / "x")
    assert f"fedhp dash {tmp_path / 'x'} --open" in result.out


def test_the_child_says_where_it_is(real_runs: Path) -> None:
    with DashChild(real_runs / FIRST) as child:
        assert json.loads(read(f"{child.url}api/runs"))["runs"][0]["run"] == "."
        assert not child.failed
