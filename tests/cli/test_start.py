"""`fedhp demo` and `fedhp init` work in any folder; one version everywhere."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fedhp
from cli.support import Command
from fedhp.cli import call
from fedhp.cluster.ops import logs
from fedhp.starter import COPIED, DEMO

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder; modules of the same names as those of `fedhp init` are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget_own_parts()
    yield tmp_path
    forget_own_parts()


def forget_own_parts() -> None:
    for name in COPIED:
        sys.modules.pop(Path(name).stem, None)


def test_the_demo_runs_in_an_empty_folder(command: Command, empty: Path) -> None:
    smaller = ["workers=4", "rounds=1", 'compare.algorithms=["dpsgd"]', "compare.seeds=[0]"]
    outcome = command("demo", *smaller, "--json")
    assert outcome.code == 0, outcome.err
    assert [run["algorithm"] for run in outcome.json()["runs"]] == ["dpsgd"]
    assert (empty / "runs/demo-1/comparison.md").is_file()


def test_a_new_folder_runs_with_its_model_and_algorithm(command: Command, empty: Path) -> None:
    created = command("init", "my folder")
    assert created.code == 0, created.err
    assert "cd 'my folder'" in created.out
    assert sorted(path.name for path in (empty / "my folder").iterdir()) == sorted(COPIED)
    own = ["model.name=own_model:two_convolutions", "algorithm.name=own_algorithm:RandomPairs"]
    for number, names in enumerate(([], own)):
        settings = ["rounds=2", "training.local_steps=2", *names]
        outcome = command("run", "my folder/experiment.toml", *settings, "--out", f"run-{number}")
        assert outcome.code == 0, outcome.err
    with fedhp.open_run(empty / "run-1") as run:
        assert run.summary().algorithm == "own_algorithm:RandomPairs"
        assert len(set(run.array("workers", "local_steps")[-1])) > 1


def test_nothing_is_overwritten(command: Command, empty: Path) -> None:
    (empty / "own_model.py").write_text("mine", encoding="utf-8")
    outcome = command("init", ".")
    assert outcome.code == 2
    assert "already contains own_model.py" in outcome.err
    assert [path.name for path in empty.iterdir()] == ["own_model.py"]


def test_a_file_in_the_place_of_the_folder_is_named(command: Command, empty: Path) -> None:
    (empty / "taken").touch()
    outcome = command("init", "taken")
    assert outcome.code == 2
    assert "taken" in outcome.err


def test_what_the_commands_need_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["fedhp"]
    package = ROOT / "src/fedhp"
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    assert {DEMO, *package.rglob("*.toml")} <= shipped
    assert (ROOT / "experiments/demo.toml").read_bytes() == DEMO.read_bytes()
    links = [
        path for path in [*package.rglob("*"), *ROOT.glob("experiments/*")] if path.is_symlink()
    ]
    assert not links, "not every system and archive keeps symbolic links"


def test_a_network_command_without_its_packages_says_what_to_install(empty: Path) -> None:
    (empty / "empty.toml").touch()
    program = (
        "import sys; sys.modules['grpc'] = None; from fedhp.cli import call; "
        "sys.exit(call(['cluster', 'up', 'empty.toml', '--workers', '2']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'grpc'" in done.stderr
    assert "pip install '.[cluster]'" in done.stderr


def test_a_command_leaves_the_log_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("fedhp")
    before = log.handlers[:], log.level, log.propagate

    def worker(arguments: list[str], standalone_mode: bool) -> int:
        logs.set_up(who="w0")
        return 0

    monkeypatch.setattr("fedhp.cli.app.app", worker)
    assert call(["worker"]) == 0
    assert (log.handlers[:], log.level, log.propagate) == before


def test_changelog_and_citation_have_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = [line for line in changes.splitlines() if line.startswith("## ")]
    assert headings[0] == f"## {fedhp.__version__}"
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fedhp.__version__}\n" in citation


def cpu_seconds(arguments: list[str], *, code: int, remove: Path | None = None) -> float:
    """The least CPU time of a command in five attempts: other processes only add to it."""
    times = []
    for _ in range(5):
        before = os.times()
        done = subprocess.run([sys.executable, "-m", "fedhp", *arguments], capture_output=True)
        after = os.times()
        assert done.returncode == code, done.stderr
        user = after.children_user - before.children_user
        times.append(user + after.children_system - before.children_system)
        if remove is not None:
            shutil.rmtree(remove)
    return min(times)


@pytest.mark.slow
@pytest.mark.alone
def test_start_up_is_fast(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    (tmp_path / "empty.toml").touch()
    command = ["run", str(tmp_path / "empty.toml"), "--out", str(tmp_path / "run")]
    keys = ("roundz=3", "algorithm.dedline=fill", "algorithm.name=fedph", "model.hiden=[3]")
    wrong = {key: cpu_seconds([*command, key], code=2) for key in keys}
    run = cpu_seconds([*command, "rounds=1"], code=0, remove=tmp_path / "run")
    figures = f"{max(wrong.values()):.2f} for a wrong key, {run:.2f} for one round on the digits"
    record_property("figure: CPU seconds of fedhp run", figures)
    assert max(wrong.values()) <= 0.5, wrong
    assert run <= 2.5


@pytest.mark.parametrize("group", [(), ("cluster",), ("data",), ("certs",)])
def test_a_group_without_a_command_shows_its_help(command: Command, group: tuple[str, ...]) -> None:
    shown = command(*group)
    assert shown.code == 2
    assert f"{' '.join(('', *group))} [OPTIONS] COMMAND" in shown.err
    assert "Commands:" in shown.err


def test_the_program_without_arguments_shows_its_help() -> None:
    done = subprocess.run([sys.executable, "-m", "fedhp"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr
