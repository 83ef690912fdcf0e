"""The commands of the README run in order in an empty folder; those of the docs exist.

In `make test` they run with fewer rounds, seeds and figures than printed, in `make campaign` as
printed, except those that need an hour, a download or another machine.
"""

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
from fedhp.cli.parameters import check_builtin_parts
from fedhp.components import is_dotted
from fedhp.config import load
from unit.engine.small_suite import write_small_suite

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
DOCS = sorted((ROOT / "docs").glob("*.md"))
SMALLER = {
    "demo": ["workers=4", "rounds=2", "compare.seeds=[0]", 'compare.algorithms=["fedhp", "dpsgd"]'],
    "run": ["training.local_steps=2", "evaluation.images=100", "rounds=12"],
    "compare": ["rounds=2", "training.local_steps=2", "--seeds", "0", "--no-figures"],
    "tune": ["--budget", "1", "--seeds", "1", "training.local_steps=2", "data.train_images=200"],
    "cluster up": ["training.local_steps=2", "rounds=1"],
}
# These need another machine or a download: their options are checked, and other tests run them.
ELSEWHERE = ("coordinator", "worker", "data fetch", "data check")
BEFORE = ("pip install",)  # done for the tests
GROUPS = ("cluster", "certs", "data")


def blocks_of(text: str, language: str = "") -> list[str]:
    """The blocks of a page in a language; commands have none."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [block for kind, block in blocks if kind == language]


def commands(text: str) -> list[list[str]]:
    """The words of every line in the blocks of a page that is a command."""
    lines = "".join(blocks_of(text)).replace("\\\n", " ").splitlines()
    typed = [line.removeprefix("$ ") for line in lines]
    return [shlex.split(line, comments=True) for line in typed if line.startswith("fedhp ")]


def in_prose(text: str) -> list[list[str]]:
    """The words of the commands between backticks, such as `fedhp export RUN --models FOLDER`."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    quoted = [" ".join(code.split()) for code in re.findall(r"`(fedhp [a-z][^`]*)`", prose)]
    return [shlex.split(code) for code in quoted if not re.search(r"\.\.\.|[|\[]", code)]


def readme_lines() -> list[list[str]]:
    """What the README's blocks tell the user to type, cd included."""
    lines = [
        shlex.split(line, comments=True) for block in blocks_of(TEXT) for line in block.splitlines()
    ]
    return [line for line in lines if line and not " ".join(line).startswith(BEFORE)]


def name_of(words: list[str]) -> str:
    return " ".join(words[1:3]) if words[1] in GROUPS else words[1]


def check_options(words: list[str]) -> None:
    """Parse a command line without running it."""
    command: Any = typer.main.get_command(app)
    arguments = words[1:]
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(words[1], arguments)


def check_settings(words: list[str]) -> None:
    """Load the experiment file that a command names, with its overrides."""
    if words[1] not in ("run", "compare") or not (ROOT / words[2]).is_file():
        return
    overrides = [word for word in words[3:] if re.match(r"[a-z_.]+=", word)]
    settings = load(ROOT / words[2], overrides)
    if not any(is_dotted(part.name) for part in (settings.algorithm, settings.model)):
        check_builtin_parts(settings)


def smaller(words: list[str]) -> list[str]:
    """The command with settings that make it fast; one that it sets itself is replaced."""
    added = SMALLER.get(name_of(words), [])
    keys = {word.partition("=")[0] for word in added if "=" in word}
    return [word for word in words if word.partition("=")[0] not in keys] + added


def test_every_block_is_known() -> None:
    names = {name_of(words) for words in readme_lines() if words[0] == "fedhp"}
    assert {"demo", "init", "run", "compare", "report", "cluster up", "data split"} <= names
    assert {words[0] for words in readme_lines()} == {"fedhp", "cd"}


@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda page: str(page.name))
def test_the_documented_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words in [*commands(text), *in_prose(text)]:
        try:
            check_options(words)
            check_settings(words)
        except Exception as error:
            # Prose may name a command, or one option of it, without the required ones.
            incomplete = type(error).__name__ in ("MissingParameter", "BadOptionUsage")
            if not incomplete or words in commands(text):
                raise AssertionError(f"{shlex.join(words)}: {error}") from error


def test_the_documented_commands_are_many() -> None:
    assert sum(len(commands(page.read_text(encoding="utf-8"))) for page in DOCS) > 30


def run_the_readme(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, *, as_printed: bool
) -> None:
    monkeypatch.chdir(folder)
    suite = write_small_suite(folder / "files", fig7="waiting")
    data = Path(os.environ.get("FEDHP_DATA", "nowhere"), "mnist")
    for words in readme_lines():
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            continue
        name = name_of(words)
        if name in ELSEWHERE:
            check_options(words)
            continue
        arguments = words if as_printed else smaller(words)
        if name == "reproduce":  # an hour
            arguments = [*arguments, "--files", str(suite)]
        if "data.name=mnist" in words:
            if not data.is_dir():
                continue
            arguments = [word for word in arguments if not word.startswith("data.path=")]
            arguments.append(f"data.path={data}")
            if not as_printed:
                arguments = [word for word in arguments if not word.startswith("rounds=")]
                arguments += ["rounds=1", "data.train_images=600", "data.test_images=100"]
        outcome = command(*arguments[1:])
        assert outcome.code == 0, f"{shlex.join(words)}\n{outcome.err}"
        assert "world.model_megabits" not in " ".join(words)


@pytest.mark.timeout(600)
def test_the_commands_run_in_order(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_the_readme(command, tmp_path, monkeypatch, as_printed=False)


@pytest.mark.slow
def test_the_commands_run_in_order_as_printed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_the_readme(command, tmp_path, monkeypatch, as_printed=True)


def test_the_commands_about_certificates_run_in_order(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in ("certificates.md", "cluster.md"):
        (tmp_path / page).mkdir()
        monkeypatch.chdir(tmp_path / page)
        for words in commands((ROOT / "docs" / page).read_text(encoding="utf-8")):
            if words[1] == "certs":
                outcome = command(*words[1:])
                assert outcome.code == 0, f"{shlex.join(words)}\n{outcome.err}"


def test_the_split_in_the_docs_is_what_is_printed(command: Command) -> None:
    text = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    (words,) = commands(text)
    outcome = command(*words[1:])
    assert outcome.code == 0, outcome.err
    (block,) = re.findall(
        r"^```\n\$ fedhp data split.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    for line in block.splitlines():
        if "..." not in line:
            assert " ".join(line.split()) in " ".join(outcome.out.split())


def test_the_python_example_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("init", tmp_path / "first").code == 0
    monkeypatch.chdir(tmp_path / "first")
    (block,) = blocks_of(TEXT, "python")
    exec(compile(block, "README.md", "exec"), {})


def test_the_readme_says_which_fedhp_this_is() -> None:
    assert "hyperspherical prototypes" in TEXT
    assert "heterogeneous participants" in TEXT
