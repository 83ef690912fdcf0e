"""The Python interface: public names, settings by name, and the commands as functions."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import fedhp
from unit.engine.small_suite import write_small_suite
from unit.report.runs import make_run

DEMO = """
[algorithm]
name = "fedhp"
deadline = "fill"
[data]
skew = 0.8
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("api") / "run", "fedhp", rounds=3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(DEMO)
    return path


def test_dir_lists_the_public_names_without_importing_torch() -> None:
    script = "import fedhp, sys; print('torch' in sys.modules, *dir(fedhp))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    torch_imported, *names = done.stdout.split()
    assert torch_imported == "False"
    assert names == sorted(fedhp.__all__)
    commands = {"run", "compare", "sweep", "tune", "show", "explain", "whatif", "report", "export"}
    assert commands | {"reproduce"} <= set(names)
    assert "Any" not in names
    for name in names:
        assert getattr(fedhp, name) is not None


def test_sections_by_name_are_laid_over_the_file(file: Path) -> None:
    experiment = fedhp.load_experiment(file, seed=3, algorithm={"name": "dpsgd"})
    assert (experiment.seed, experiment.algorithm.name) == (3, "dpsgd")
    assert experiment.algorithm.settings == {}, "the settings of another algorithm are dropped"
    assert experiment.data.skew == 0.8
    nested = fedhp.load_experiment(
        file,
        world={
            "bandwidth": {"low": 2, "high": 4.5},
            "away": [{"worker": 1, "first": 2, "last": 3}],
        },
        model={"name": "mlp", "hidden": [8, 4]},
        evaluation={"targets": (0.5, 0.75)},
    )
    assert (nested.world.bandwidth.low, nested.world.bandwidth.high) == (2, 4.5)
    assert nested.world.away[0].worker == 1
    assert nested.model.settings == {"hidden": [8, 4]}
    assert nested.evaluation.targets == [0.5, 0.75]
    assert nested.algorithm.settings == {"deadline": "fill"}


def test_a_table_that_is_a_value_replaces_the_list(file: Path) -> None:
    experiment = fedhp.load_experiment(
        file,
        world={"devices": {"laptop": 3, "my phone": 2}, "device": {"my phone": {"step_time": 1.5}}},
    )
    assert experiment.world.devices == {"laptop": 3, "my phone": 2}
    assert experiment.world.device["my phone"].step_time == 1.5


def test_sweep_runs_every_combination_as_the_command_does(tmp_path: Path) -> None:
    base = {"workers": 4, "rounds": 1, "training": {"local_steps": 1}, "evaluation": {"images": 40}}
    experiment = fedhp.make_experiment(base)
    settings = {"algorithm.name": ["dpsgd", "ldsgd"], "data.skew": [0.5, 0.8], "rounds": 1}
    result = fedhp.sweep(experiment, tmp_path / "a", settings, jobs=1, figures=False)
    assert result.keys == ("algorithm.name", "data.skew")
    assert [each.values for each in result.combinations][:2] == [("dpsgd", 0.5), ("dpsgd", 0.8)]
    assert all(len(each.finished) == 1 for each in result.combinations)
    assert (tmp_path / "a" / "algorithm.name=dpsgd,data.skew=0.5" / "seed-0").is_dir()
    assert (tmp_path / "a" / "sweep.json").is_file()
    texts = ["algorithm.name=dpsgd,ldsgd", "data.skew=0.5,0.8", "rounds=1"]
    again = fedhp.sweep(experiment, tmp_path / "a", texts, jobs=1, resume=True, figures=False)
    assert again == result
    with pytest.raises(fedhp.FedhpError, match="more than one value"):
        fedhp.sweep(experiment, tmp_path / "b", {"rounds": 1})
    with pytest.raises(fedhp.FedhpError, match="learning_rte"):
        fedhp.sweep(experiment, tmp_path / "b", {"training.learning_rte": [1, 2]})


def test_text_keeps_every_character(file: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a 'quoted' \\ \"path\""
    odd.mkdir()
    experiment = fedhp.load_experiment(file, data={"path": odd})
    assert experiment.data.path == str(odd)


def test_a_wrong_section_is_refused_with_its_key(file: Path) -> None:
    with pytest.raises(fedhp.FedhpError, match="learning_rte"):
        fedhp.load_experiment(file, training={"learning_rte": 1})


def test_a_wrong_override_is_not_blamed_on_the_file(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for call in (
        lambda: fedhp.compare(file, out, overrides=["data.name=npz", "data.path=no.npz"]),
        lambda: fedhp.sweep(file, out, {"data.name": "npz", "data.path": ["a.npz", "b.npz"]}),
        lambda: fedhp.compare(file, out, overrides=["model.hidden=x"]),
        lambda: fedhp.compare(file, out, algorithms=["pens:peers=x"]),
    ):
        with pytest.raises(fedhp.FedhpError, match=r"^command line"):
            call()
    file.write_text("[topology]\nname = 'ringg'\n")
    with pytest.raises(fedhp.FedhpError, match=r"x\.toml, fedhp: topology"):
        fedhp.compare(file, out, overrides=["rounds=1"])


def test_show_and_explain_return_the_text_of_the_command(run: Path) -> None:
    text = fedhp.show(run)
    assert "finished, 3 of 3 rounds" in text
    assert fedhp.open_run(run).digest() in text
    assert ", round 2" in fedhp.show(run, round_index=2)
    assert fedhp.explain(run).startswith("Round 3 of 3\n  ")
    text = fedhp.explain(run, 2)
    assert text.startswith("Round 2 of 3")
    assert "\nLinks\n" in text
    assert max(map(len, text.splitlines())) <= 92
    with pytest.raises(fedhp.FedhpError, match="round 9"):
        fedhp.explain(run, 9)


def test_export_returns_the_files(run: Path, tmp_path: Path) -> None:
    (table,) = fedhp.export(run, tmp_path / "links.csv", table="links")
    assert table.read_text().startswith("round,a,b,used")
    assert {path.parent for path in fedhp.export(run, tmp_path / "all")} == {tmp_path / "all"}
    assert fedhp.export(run, trace=tmp_path / "trace.csv") == [tmp_path / "trace.csv"]
    assert fedhp.export(run, latex=tmp_path / "t.tex") == [tmp_path / "t.tex"]
    assert "tabular" in (tmp_path / "t.tex").read_text()


def test_report_is_a_function_although_a_package_has_its_name(run: Path, tmp_path: Path) -> None:
    from_api = importlib.import_module("fedhp.api").report(run, tmp_path / "one")
    importlib.import_module("fedhp.report.show")
    page = fedhp.report([run], tmp_path / "two")
    assert page == tmp_path / "two" / "report.html"
    assert page.read_text() == from_api.read_text()
    assert importlib.import_module("fedhp.report.export").table_csv


@pytest.mark.slow
def test_reproduce_runs_the_figures(tmp_path: Path) -> None:
    files = write_small_suite(tmp_path / "files", fig2="accuracy")
    result = fedhp.reproduce("fig2", files=files, out=tmp_path / "out", jobs=1)
    assert result.page == tmp_path / "out" / "report.html"
    assert result.page.is_file()
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        console.print(result.table())
    header = next(line for line in capture.get().splitlines() if "verdict" in line)
    assert "FedHP" not in header, "the values of D-PSGD are in the same column"
    assert "our values" in header
    with pytest.raises(fedhp.FedhpError, match="fig9"):
        fedhp.reproduce("fig9", out=tmp_path / "out")
    with pytest.raises(fedhp.FedhpError, match="tiny"):
        fedhp.reproduce("fig2", profile="tiny")
