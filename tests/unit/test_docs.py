"""The documentation is true: examples run as printed, and the files it names exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedhp import components
from fedhp.algorithms.base import ALGORITHMS
from fedhp.tables import merge_tables, parse_override
from subprocesses import forked_jobs

ROOT = Path(__file__).parents[2]


def test_api_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {}
    with forked_jobs():
        for block in blocks:
            exec(compile(block, "docs/api.md", "exec"), names)


RECIPES = re.findall(
    r"^## (.*?)\n(.*?)(?=^## |\Z)",
    (ROOT / "docs/recipes.md").read_text(encoding="utf-8"),
    flags=re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(block, id=title)
        for title, text in RECIPES
        for block in re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    ],
)
def test_recipes_train(recipe: str, tmp_path: Path) -> None:
    """As printed, but two rounds of the digits with a small model."""
    import fedhp
    from fedhp.config import parse

    whole = parse(tomllib.loads(recipe))  # as printed
    small = {"rounds": 2, "evaluation": {"images": 40}, "executors": 1}
    data = {**tomllib.loads(recipe).get("data", {}), "name": "digits", "pool": 1}
    small |= {"data": data, "model": {"name": "mlp"}}
    if whole.augmentation.active:
        small["model"] = {"name": "small_cnn", "width": 0.25}
    training = {"local_epochs": 0.5} if whole.training.local_epochs is not None else {}
    if whole.training.warmup:
        training["warmup"] = 1
    small["training"] = training
    tables = merge_tables(tomllib.loads(recipe), small)
    with fedhp.run(parse(tables), tmp_path / "run") as run:
        assert run.rounds_done == 2
        assert run.summary().final_accuracy is not None


def test_every_command_about_runs_has_a_function_in_the_documentation() -> None:
    import fedhp
    from fedhp.cli.app import app

    commands = [info.callback.__name__ for info in app.registered_commands if info.callback]
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    others = {"demo", "init", "dash", "coordinator", "worker", "doctor"}  # they serve the terminal
    assert others < set(commands)
    for name in (*sorted(set(commands) - others), "load_experiment", "make_experiment", "start"):
        assert name in fedhp.__all__
        assert f"fedhp.{name}(" in text, name
        assert f".{name} *\n\n`{name}(" in page, name


def algorithm_rows() -> dict[str, str]:
    text = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    table = text.partition("| name | settings (default) |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in table.splitlines()]
    return {name.strip("`"): settings for name, settings in rows}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_settings_of_algorithms_have_the_defaults_in_the_table(name: str) -> None:
    row = algorithm_rows()[name]
    defaults = components.defaults(components.resolve(name, ALGORITHMS, key="algorithm.name"))
    assert defaults.keys() - set(re.findall(r"`(\w+)`", row)) <= {"learning_rate"}, "not named"
    written = re.findall(r"`(\w+)` (?:\((?:I\d, )?|is )?(\"\w+\"|true|false|[\d.]*\d|none)", row)
    written += re.findall(r"`(\w+)` \((?:I\d, )?(training)\.", row)
    assert written
    for setting, text in written:
        given = None if text in ("none", "training") else parse_override(f"x={text}")[1]
        assert defaults[setting] == given, setting


def test_the_design_page_names_files_that_exist() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_/]+\.(?:py|proto))`", text))
    missing = sorted(name for name in named if not (ROOT / "src/fedhp" / name).is_file())
    assert len(named) > 60
    assert not missing
    rows = text.partition("## I want to change")[2].partition("\n## ")[0].count("\n| ")
    assert rows >= 25 + 2  # the header and its line


def test_own_algorithm_example(tmp_path: Path) -> None:
    import fedhp

    with fedhp.run(ROOT / "examples/own_algorithm.toml", tmp_path / "run") as run:
        assert run.rounds_done == 10
        steps = run.array("workers", "local_steps")
        assert steps.max() <= 60
        assert len(set(steps[-1])) > 1


def test_every_word_of_a_refusal_is_explained() -> None:
    from fedhp.cluster.protocol.guard import BAD_REASONS, LATE_REASONS

    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    table = text.partition("## What is refused")[2].partition("## What is assumed")[0]
    said = set(re.findall(r"`([a-z]+)`", table))
    sources = (ROOT / "src/fedhp/cluster").rglob("*.py")
    used = {
        word
        for source in sources
        for word in re.findall(r'Refused\(\s*"([a-z]+)"', source.read_text(encoding="utf-8"))
    }
    assert used | BAD_REASONS | LATE_REASONS == said


def _told_to_install() -> dict[str, list[str]]:
    """What users are told to install with pip, by file."""
    files = [
        *ROOT.glob("*.md"),
        *(path for kind in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{kind}")),
        *(ROOT / "examples").rglob("*.ipynb"),
        *(ROOT / "src").rglob("*.py"),
    ]
    found = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        found[str(file.relative_to(ROOT))] = re.findall(r"pip install ([^\n`]+)", text)
    return found


def test_nobody_is_told_to_install_fedhp_from_an_index() -> None:
    told = _told_to_install()
    assert sum(map(len, told.values())) >= 5
    wrong = [(file, what) for file, all_of in told.items() for what in all_of]
    assert not [pair for pair in wrong if re.match(r"['\"]?fedhp($|[\[=' \"])", pair[1])]


def test_the_readme_installs_what_its_commands_need() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^pip install '\.\[(.*?)\]'", text, flags=re.MULTILINE)
    needed = {"tune": "fedhp tune", "tensorboard": "--to tensorboard", "cluster": "fedhp cluster"}
    for extra, command in needed.items():
        assert command in text
        assert extra in extras.split(",")
