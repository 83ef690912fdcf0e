"""A changed kind drops settings of the other kind; every command says so, once."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedhp
from cli.support import Command, write
from unit.engine.small_suite import write_small_suite

REGULAR = {"name": "random_regular", "degree": 2}


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged since the last call."""
    texts = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return texts


def test_every_command_reports_a_dropped_setting_once(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, rounds=1, topology=REGULAR)
    options = ["--seeds", "0,1", "--no-figures"]
    dropped = "drops settings of 'skew' in"
    assert command("run", file, "data.partition=iid", "--out", tmp_path / "run").code == 0
    (note,) = messages(caplog)
    assert note == f"note: data.partition=iid {dropped} {file}: data.skew = 0.8"
    assert (
        command(
            *("compare", file, "data.partition=iid", "--algorithms", "dpsgd,ldsgd"),
            *(*options, "--out", tmp_path / "compare"),
        ).code
        == 0
    )
    assert messages(caplog) == [note]
    variants = "dpsgd:data.partition=iid,ldsgd:data.skew=none"
    result = command("compare", file, "--algorithms", variants, *options, "--out", tmp_path / "v")
    assert result.code == 0, result.err
    (of_variant,) = messages(caplog)
    assert of_variant.startswith("note: dpsgd:data.partition=iid: data.partition=iid drops")
    swept = ["data.partition=iid,dirichlet", "training.local_steps=1,2"]
    assert command("sweep", file, *swept, *options, "--out", tmp_path / "sweep").code == 0
    assert messages(caplog) == [note, note.replace("iid", "dirichlet")]
    assert command("whatif", tmp_path / "run", "topology.name=ring").code == 0
    (replayed,) = messages(caplog)
    assert "topology.degree = 2" in replayed
    result = command("whatif", tmp_path / "run", "--planner", "dpsgd:topology.name=ring")
    assert result.code == 0, result.err
    (replayed,) = messages(caplog)
    assert "dpsgd:topology.name=ring" in replayed


def test_reproduce_reports_a_dropped_setting_of_the_sets_it_uses(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = write_small_suite(tmp_path / "files", fig2="accuracy")
    for name in ("emnist", "mnist"):
        path = files / "sets" / f"{name}.toml"
        path.write_text(path.read_text().replace('{ name = "logistic" }', "{ hidden = [4] }"))
    result = command(
        *("reproduce", "fig2", "--profile", "standard", "--files", files, "--jobs", "1"),
        *("--set", "model.name=logistic", "--set", "rounds=1", "--out", tmp_path / "out"),
    )
    assert result.code == 0, result.err
    (note,) = messages(caplog)
    assert "model.name=logistic drops settings of 'mlp'" in note
    assert "emnist.toml: model.hidden = [4]" in note


def test_functions_report_it_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path, rounds=1)
    experiment = fedhp.load_experiment(file, data={"partition": "iid"})
    assert experiment.data.skew is None
    (note,) = messages(caplog)
    assert "data.skew = 0.8" in note
    fedhp.compare(
        file,
        tmp_path / "runs",
        algorithms=["dpsgd", "ldsgd"],
        overrides=["data.partition=iid"],
        jobs=1,
    )
    assert messages(caplog) == [note]
