"""Every command in terminals of 40 to 160 columns: no word or number is broken in two."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from cli.support import rounds_in, write
from emulator import Screen, TerminalProcess, fake_terminal
from fedhp.cli import call
from fedhp.cli.app import app
from fedhp.terminal import fit_commands, fit_text
from subprocesses import forked_jobs

WIDTHS = (40, 60, 80, 100, 160)
LONG = "adpsgd:steps=5:training.learning_rate=0.4"
ALGORITHMS = f"fedhp:deadline=fill,{LONG}"
SHORT_NAMES = {
    *("FedHP", "AD", "D", "PSGD", "deadline", "fill", "5", "steps", "lr", "low"),
    *("0.1", "0.2", "0.4", "1", "2"),
}
SHOWN = (
    "show 'one run'",
    "show 'one run' --round 2",
    "show many",
    "show swept",
    "explain 'one run'",
    "whatif 'one run' --planner dpsgd --planner fedhp:deadline=fill",
    "data split tiny.toml",
    "data split tiny.toml data.partition=dirichlet",
    "doctor",
)
WRONG = (
    "run tiny.toml traning.learning_rate=3",
    "run tiny.toml data.name=nothing",
    "run tiny.toml --unknown",
    "run",
    "show nothing",
    "explain 'one run' --round 99",
    "compare tiny.toml --algorithms nothing --no-figures",
    "cluster status",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run, a comparison with long labels and a sweep, in the working directory."""
    folder, before = tmp_path_factory.mktemp("work"), Path.cwd()
    write(folder, evaluation={"targets": [0.5]})
    os.chdir(folder)
    try:
        with forked_jobs():
            assert call(["run", "tiny.toml", "--out", "one run"]) == 0
            compare = ["compare", "tiny.toml", "--algorithms", ALGORITHMS, "--seeds", "0-1"]
            assert call([*compare, "--jobs", "1", "--out", "many", "--no-figures"]) == 0
            sweep = ["sweep", "tiny.toml", "training.learning_rate=0.1,0.2", "rounds=2"]
            sweep += ["world.bandwidth.low=1,2", "--jobs", "1", "--out", "swept", "--no-figures"]
            assert call(sweep) == 0
        yield folder
    finally:
        os.chdir(before)


def seen(line: str, width: int, **options: object) -> tuple[int, Screen]:
    with fake_terminal(width, **options) as screen:  # type: ignore[arg-type]
        code = call(shlex.split(line))
    return code, screen


def words(text: str) -> set[str]:
    """Letters and digits that belong together, without what a ruler or a bar is made of."""
    found = re.findall(r"[\w.%=…]+", text)
    return {word.strip(".") for word in found}


def check_words(narrow: Screen, wide: str) -> None:
    """Nothing was broken: every word in the narrow terminal is also in the wide one."""
    assert narrow.broken == []
    known = words(wide) | words("no room for: (in full with --json) classes, most of") | SHORT_NAMES
    assert {word for word in words(narrow.text) - known if "…" not in word} == set()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("line", SHOWN)
def test_results_fit(line: str, width: int, folder: Path) -> None:
    code, screen = seen(line, width)
    assert code == 0
    _, wide = seen(line, 400)
    if "doctor" not in line and "whatif" not in line:  # free memory, time taken
        check_words(screen, wide.text)
    assert screen.broken == []
    assert screen.cursor_visible


@pytest.mark.parametrize("width", [40, 60, 100])
@pytest.mark.parametrize("line", [*SHOWN, "data check own.npz"])
def test_results_fit_a_dumb_terminal(line: str, width: int, folder: Path) -> None:
    if not Path("own.npz").exists():
        samples = np.zeros((40, 3, 4), np.float32)
        np.savez("own.npz", x=samples, y=np.arange(40) % 4)
    code, screen = seen(line, width, term="dumb")
    assert code == 0, screen.text
    # A path that is to be copied into a file stays whole.
    assert [text for text in screen.broken if "data.path =" not in text] == []
    assert "bold" not in screen.text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("line", WRONG)
def test_errors_fit(line: str, width: int, folder: Path) -> None:
    code, screen = seen(line, width)
    assert code == 2
    _, wide = seen(line, 400)
    check_words(screen, wide.text)


def commands() -> list[str]:
    names = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names.append(str(group.name))
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            names.append(f"{group.name} {command.name or command.callback.__name__}")
    return ["", *names]


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("name", commands())
def test_help_fits(name: str, width: int) -> None:
    code, screen = seen(f"{name} --help", width)
    assert code == 0
    assert screen.broken == []
    assert "..." not in screen.text.replace("]...", "").replace("[ARGS]...", "") or (
        re.search(r"(, \.\.\.|PORT,\.\.\.|fig1 ?\s*\.\.\.|(RUN|FOLDER|c)\.\.\.)", screen.text)
    ), "a sentence is cut"
    assert not re.search(r"list\[|<path>|<str>|x>=|[{}]|\.{4}", screen.text)
    _, wide = seen(f"{name} --help", 400)
    check_words(screen, wide.text)


def test_every_value_has_a_name_in_the_help() -> None:
    """`--jobs N`, not `--jobs`."""

    def unnamed(command: Any, path: str) -> list[str]:
        found = [
            f"{path} {parameter.name}"
            for parameter in command.params
            if parameter.metavar is None and not getattr(parameter, "is_flag", False)
        ]
        for name, inner in getattr(command, "commands", {}).items():
            found += unnamed(inner, f"{path} {name}")
        return found

    assert unnamed(typer.main.get_command(app), "fedhp") == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_run_fits_and_names_a_round_that_exists(width: int, term: str, folder: Path) -> None:
    out = f"new {term} {width}"
    code, screen = seen(f"run tiny.toml rounds=1 --out '{out}'", width, term=term, color=False)
    assert code == 0
    assert screen.broken == []
    assert "1/1" in screen.text
    assert "1 rounds" not in screen.text
    assert "bold" not in screen.text
    hint = " ".join(screen.text.split("next:")[1].replace("\\\n", " ").split())
    assert f"fedhp show '{out}'" in hint
    assert f"fedhp explain '{out}' --round 1" in hint
    heading = next((line for line in screen.lines if line.startswith("run ")), "")
    assert (term == "xterm") == ("round" in heading)
    assert term == "dumb" or "left" in heading


@pytest.mark.parametrize("width", WIDTHS)
def test_a_sweep_shows_its_results_at_every_width(width: int, folder: Path) -> None:
    with forked_jobs():
        settings = "training.learning_rate=0.1,0.2 world.bandwidth.low=1,2 rounds=2"
        line = f"sweep tiny.toml {settings} --jobs 1 --out swept --no-figures --resume"
        code, screen = seen(line, width)
    assert code == 0
    assert screen.broken == []
    rows = [line.split() for line in screen.lines if re.match(r"0\.[12] ", line)]
    assert [row[:2] for row in rows] == [["0.1", "1"], ["0.1", "2"], ["0.2", "1"], ["0.2", "2"]]
    assert all(re.search(r" \d+\.\d( |$)", " ".join(row)) for row in rows), "the results"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_tuning_shows_its_results_at_every_width(width: int, folder: Path) -> None:
    with forked_jobs():
        algorithms = "--algorithms adpsgd:overlap=true,serve=average,dpsgd --budget 1"
        line = f"tune tiny.toml rounds=1 {algorithms} --tuning-seeds 0 --seeds 1-2 --jobs 1"
        code, screen = seen(f"{line} --out tuned --no-figures --resume", width)
    assert code == 0
    assert screen.broken == []
    table = screen.text.partition("algorithm")[2]
    assert "held-out" in table
    for word in ("AD-PSGD", "overlap", "D-PSGD", "0.1", "steps", "not reached"):
        assert word in " ".join(table.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_of_a_comparison_stay_different(width: int, folder: Path) -> None:
    """Shortened labels do not become equal."""
    _, screen = seen("show swept", width)
    table = screen.text.split("algorithm")[-1].split("final:")[0]
    assert "…" not in table
    for setting in ("0.1", "0.2", "low"):
        assert table.count(setting) >= 2


def test_a_command_that_does_not_fit_can_still_be_pasted() -> None:
    command = "fedhp explain 'my runs/a long name of a run' --round 2"
    text = fit_commands("next:", ["fedhp show x", command], 40)
    intro, first, *rest = text.splitlines()
    assert (intro, first) == ("next:", "  fedhp show x")
    assert max(map(len, text.splitlines())) <= 40
    pasted = " ".join(line.strip().removesuffix("\\") for line in rest)
    assert all(line.endswith(" \\") for line in rest[:-1])
    assert shlex.split(pasted) == shlex.split(command)
    path = "swept/training.learning_rate=0.1,it's 2,world.bandwidth.low=1/seed-0"
    pieces = fit_commands("next:", [f"fedhp show {shlex.quote(path)}"], 40)
    assert max(map(len, pieces.splitlines())) <= 40
    joined = pieces.removeprefix("next:").replace("\\\n", "")  # as a shell does
    assert shlex.split(joined) == ["fedhp", "show", path]


def test_a_number_stays_with_its_unit() -> None:
    assert fit_text("it took about 12 min and 40 %", 16) == "it took about\n  12 min and\n  40 %"
    assert fit_text("see /a/very/long/path", 12) == "see /a/very/\n  long/path"
    assert fit_text("a\n  b", None) == "a\n  b"


@pytest.mark.timeout(300)
def test_a_real_terminal_that_is_resized_and_interrupted(folder: Path, tmp_path: Path) -> None:
    """The display follows the new width; Ctrl-C saves the run and shows the cursor again."""
    out = tmp_path / "run"
    arguments = ["run", "tiny.toml", "rounds=100000", "--out", str(out)]
    env = {**os.environ, "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        env.pop(name, None)
    process = TerminalProcess([sys.executable, "-m", "fedhp", *arguments], columns=100, env=env)
    screen = process.screen
    try:
        process.read_until(lambda: "steps" in screen.text and "/100000" in screen.text)
        assert not screen.cursor_visible
        process.resize(40)
        done = rounds_in(tmp_path / "run")
        process.read_until(
            lambda: "steps" not in screen.text and rounds_in(tmp_path / "run") > done
        )
        assert re.search(r"^dpsgd  .*/100000", screen.text, re.M)
        process.press_control_c()
        assert process.wait() == 130
    finally:
        process.kill()
    assert screen.broken == []
    assert screen.cursor_visible
    assert "stopped after round" in screen.text
    assert screen.text.count("run  ") == 1, "the display is there once"
