"""`fedhp certs`: from nothing to the three files of a machine, and when they expire."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.support import Command
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.security.identity import load_identity


@pytest.fixture
def folder(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An authority in the default folder of the working directory."""
    monkeypatch.chdir(tmp_path)
    assert command("certs", "init").code == 0
    return tmp_path / "certs"


def test_the_output_names_the_next_step(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = command("certs", "init", "--folder", "my keys", "--days", 100)
    assert "fedhp certs issue NAME --folder 'my keys'" in result.out
    result = command(
        "certs", "issue", "w", "--host", "10.0.0.5", "--days", 50, "--folder", "my keys"
    )
    assert result.code == 0
    for file in ("ca.crt", "w.crt", "w.key"):
        assert f"\n  my keys/{file}\n" in result.out
    assert "ca.key" not in result.out
    assert "10.0.0.5" in result.out


def test_an_issued_identity_can_be_used(command: Command, folder: Path) -> None:
    asked = ("--role", "coordinator", "--role", "operator")
    assert command("certs", "issue", "head", *asked).code == 0
    assert command("certs", "issue", "w-1").code == 0
    assert load_identity(folder, "head").roles == {"coordinator", "operator"}
    assert load_identity(folder, "w-1").roles == {"worker"}


def test_inspect_is_a_table_with_a_warning(command: Command, folder: Path) -> None:
    command("certs", "issue", "w-1", "--host", "node1.lan", "--days", 29)
    command("certs", "issue", "w-2", "--days", 31)
    result = command("certs", "inspect")
    assert result.code == 0
    row = next(line for line in result.out.splitlines() if "node1.lan" in line)
    ends = datetime.now(UTC) + timedelta(days=29)
    for cell in ("w-1", "worker", f"{ends:%Y-%m-%d}", "28", "here"):
        assert cell in row
    assert "soon: w-1 expires in 28 days" in result.out
    assert "soon: w-2" not in result.out
    assert command("certs", "inspect", folder / "w-2.crt").code == 0


def test_inspect_json(command: Command, folder: Path) -> None:
    command("certs", "issue", "w-1", "--host", "10.0.0.5", "--days", 29)
    authority, worker = command("certs", "inspect", folder, "--json").json()["certificates"]
    assert (authority["authority"], worker["authority"]) == (True, False)
    assert (worker["name"], worker["roles"], worker["hosts"]) == ("w-1", ["worker"], ["10.0.0.5"])
    assert (worker["days_left"], worker["key"], worker["problem"]) == (28, True, "")


def test_what_is_wrong_is_the_exit_code(command: Command, folder: Path) -> None:
    command("certs", "issue", "w-1")
    (folder / "w-1.key").chmod(0o644)
    result = command("certs", "inspect")
    assert result.code == 2
    assert "wrong: " in result.out
    assert "1 of 2 certificates cannot be used" in result.err
    assert "mode 0644" in result.err
    result = command("certs", "inspect", "--json")
    assert result.code == 2
    assert "mode 0644" in result.json()["certificates"][1]["problem"]


def test_nothing_is_replaced_unasked(command: Command, folder: Path) -> None:
    command("certs", "issue", "w-1")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    for arguments in (("init",), ("issue", "w-1")):
        result = command("certs", *arguments)
        assert result.code == 2
        assert "already exists" in result.err
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert command("certs", "issue", "w-1", "--replace").code == 0
    assert (folder / "w-1.key").read_bytes() != before["w-1.key"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("issue", "a b"), "cannot be the name of a machine"),
        (("issue", "w", "--host", "node1:7000"), "is not a host"),
        (("issue", "w", "--role", "king"), "coordinator, worker, operator"),
        (("issue", "w", "--days", "0"), "1 to 36500"),
        (("issue", "w", "--folder", "nowhere"), "fedhp certs init --folder nowhere"),
        (("inspect", "nowhere"), "nowhere is missing"),
        (("inspect", "certs/ca.key"), "is a private key"),
    ],
)
def test_a_mistake_is_explained(
    command: Command, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = command("certs", *arguments)
    assert result.code == 2
    assert words in result.err


def test_no_key_is_ever_shown(command: Command, folder: Path) -> None:
    results = [command("certs", "issue", "w-1"), command("certs", "inspect", "--json")]
    (folder / "w-1.key").write_bytes((folder / "w-1.key").read_bytes()[:-60])
    results += [command("certs", "inspect"), command("certs", "issue", "w-1")]
    secret = [line for key in folder.glob("*.key") for line in key.read_text().splitlines()]
    text = "".join(result.out + result.err for result in results)
    assert not [line for line in secret if line and line in text]


def test_without_the_extra_it_says_what_to_install(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fedhp.cluster.security.identity")
    monkeypatch.delattr("fedhp.cluster.security.identity")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    result = command("certs", "inspect")
    assert result.code == 2
    assert "pip install '.[cluster]'" in result.err


def test_help_imports_neither_grpc_nor_cryptography() -> None:
    program = (
        "import sys\nfrom fedhp.cli import call\n"
        "assert call(['certs', 'issue', '--help']) == 0\n"
        "assert not {'grpc', 'cryptography', 'numpy', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


def test_an_expired_one_is_shown_with_its_date(command: Command, tmp_path: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=100)
    init_authority(tmp_path, now=long_ago)
    ends = issue(tmp_path, "w-1", days=90, now=long_ago).ends
    result = command("certs", "inspect", tmp_path)
    assert result.code == 2
    assert f"expired on {ends:%Y-%m-%d %H:%M} UTC" in result.err
