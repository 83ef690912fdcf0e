"""What is imported when, and which names are public."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fedhp
from fedhp import components
from fedhp.learn.names import MODEL_SETTINGS, MODELS, TASKS

HEAVY = (
    "torch",
    "matplotlib",
    "sklearn",
    "scipy",
    "pandas",
    "safetensors",
    "grpc",
    "cryptography",
    "optuna",
    "fastapi",
    "starlette",
    "uvicorn",
)
PUBLIC = [
    "Action",
    "ChangingTopology",
    "Dataset",
    "Decision",
    "Delivery",
    "DirectedMixing",
    "DisjointGroups",
    "ExchangeSequence",
    "Experiment",
    "Federation",
    "FedhpError",
    "Gathering",
    "GroupAverage",
    "LinkVerdict",
    "NeighborMixing",
    "Observation",
    "PeerScoring",
    "Plan",
    "Reports",
    "RoundRecord",
    "ServerAverage",
    "Task",
    "Topology",
    "WeightedMixing",
    "__version__",
    "compare",
    "explain",
    "export",
    "load_experiment",
    "make_experiment",
    "open_run",
    "report",
    "reproduce",
    "run",
    "show",
    "start",
    "sweep",
    "tune",
    "whatif",
]


def loaded_after(code: str) -> list[str]:
    """Which of these modules a fresh interpreter has loaded after some code."""
    watched = (*HEAVY, "pydantic", "numpy", "rich", "fedhp.config")
    program = f"import sys\n{code}\nprint('loaded:', *(m for m in {watched!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1].removeprefix("loaded:").split()


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_after("import fedhp") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([name, "--help"] for name in ("run", "compare", "tune", "whatif", "report", "data")),
    ],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"from fedhp.cli import call\nassert call({arguments!r}) == 0"
    loaded = loaded_after(code)
    assert not set(loaded) & {*HEAVY, "numpy", "fedhp.config"}, loaded


WRONG = (
    ["run", "roundz=3"],
    ["run", "world.profil=paper"],
    ["run", "data.name=mnits"],
    ["run", "algorithm.dedline=fill"],
    ["run", "algorithm.name=fedph"],
    ["run", "model.hiden=[3]"],
    ["run", "model.name=mpl"],
    ["run", "task.weight=1"],
    ["run", "topology.name=ring", "topology.degre=3"],
    ["compare", "roundz=3"],
    ["compare", "model.hiden=[3]"],
    ["compare", "--algorithms", "dpsgd,fedph"],
    ["compare", "--algorithms", "adpsgd:stps=3"],
    ["tune", "roundz=3"],
    ["tune", "--algorithms", "dpsgd:steps=5..50,fedph"],
)


def wrong_command(words: list[str], folder: Path) -> list[str]:
    """A command line with a mistake, on an experiment file that sets nothing."""
    (folder / "empty.toml").touch()
    command, *settings = words
    return [command, str(folder / "empty.toml"), *settings, "--out", str(folder / "run")]


def test_a_wrong_key_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    calls = [f"assert call({wrong_command(words, tmp_path)!r}) == 2" for words in WRONG]
    loaded = loaded_after("\n".join(["from fedhp.cli import call", *calls]))
    assert not set(loaded) & set(HEAVY), loaded
    assert not (tmp_path / "run").exists()


def test_the_early_check_knows_the_settings_of_every_model_and_task() -> None:
    settings = {
        name: tuple(components._parameters(components.resolve(name, MODELS, key="model.name")))
        for name in MODELS
    }
    assert settings == MODEL_SETTINGS
    for name in TASKS:
        assert not components._parameters(components.resolve(name, TASKS, key="task.name"))


def test_a_run_on_digits_does_not_import_scikit_learn(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text("workers = 3\nrounds = 1\n", encoding="utf-8")
    arguments = ["run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run")]
    loaded = loaded_after(f"from fedhp.cli import call\nassert call({arguments!r}) == 0")
    assert "torch" in loaded
    assert not set(loaded) & {"sklearn", "matplotlib", "pandas"}, loaded


def test_a_name_brings_only_what_it_needs() -> None:
    loaded = loaded_after("import fedhp\nfedhp.FedhpError")
    assert loaded == []
    loaded = loaded_after("import fedhp\nfedhp.Experiment")
    assert not set(loaded) & set(HEAVY)


def test_a_replay_needs_no_torch() -> None:
    assert "torch" not in loaded_after("import fedhp.engine.replay.whatif, fedhp.report.whatif")
    assert "torch" not in loaded_after("import fedhp\nfedhp.whatif")


def test_the_public_names_are_these_and_all_are_there() -> None:
    assert sorted(fedhp.__all__) == sorted(PUBLIC)
    for name in fedhp.__all__:
        assert getattr(fedhp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedhp.nothing  # noqa: B018


def test_public_names_have_homes_that_exist() -> None:
    for name, home in fedhp._HOMES.items():
        assert name in fedhp.__all__
        assert hasattr(importlib.import_module(home), name)


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedhp", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"fedhp {fedhp.__version__}"
