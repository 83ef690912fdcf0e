"""The README's commands run in order, in an empty folder, with fewer rounds than printed."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.support import Command
from fedhp.cli.app import app
from unit.engine.small_suite import write_small_suite

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SMALLER = {
    "demo": ["workers=4", "rounds=2", "compare.seeds=[0]"],
    "run": ["training.local_steps=2", "evaluation.images=100"],
    "compare": ["rounds=2", "training.local_steps=2"],
    "cluster up": ["rounds=1", "training.local_steps=2"],
}
# These need another machine or a download: their options are checked, and other tests run them.
ELSEWHERE = ("coordinator", "worker", "data fetch", "data check")
BEFORE = ("pip install",)  # done for the tests


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not " ".join(line).startswith(BEFORE)]


def name_of(words: list[str]) -> str:
    groups = ("cluster", "certs", "data")
    return " ".join(words[1:3]) if words[1] in groups else words[1]


def check_options(words: list[str]) -> None:
    """Parse a command line without running it."""
    command: Any = typer.main.get_command(app)
    arguments = words[1:]
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(words[1], arguments)


def test_every_block_is_known() -> None:
    names = {name_of(words) for words in commands() if words[0] == "fedhp"}
    assert {"demo", "init", "run", "compare", "report", "cluster up", "data split"} <= names
    assert {words[0] for words in commands()} == {"fedhp", "cd"}


@pytest.mark.timeout(600)
def test_the_commands_run_in_order(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = write_small_suite(tmp_path / "files", fig2="accuracy", fig7="waiting")
    data = Path(os.environ.get("FEDHP_DATA", "nowhere"), "mnist")
    for words in commands():
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            continue
        name = name_of(words)
        if name in ELSEWHERE:
            check_options(words)
            continue
        smaller = SMALLER.get(name, [])
        if "data.name=mnist" in words:
            if not data.is_dir():
                continue
            smaller = [*smaller, f"data.path={data}", "rounds=1", "data.train_images=600"]
        keys = [setting.partition("=")[0] for setting in smaller]
        arguments = [word for word in words[1:] if word.partition("=")[0] not in keys] + smaller
        if name == "reproduce":
            arguments += ["--files", str(suite)]
        outcome = command(*arguments)
        assert outcome.code == 0, f"{shlex.join(words)}\n{outcome.err}"
        assert "world.model_megabits" not in " ".join(words)


def test_the_python_example_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("init", tmp_path / "first").code == 0
    monkeypatch.chdir(tmp_path / "first")
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})


def test_the_readme_says_which_fedhp_this_is() -> None:
    assert "hyperspherical prototypes" in TEXT
    assert "heterogeneous participants" in TEXT
