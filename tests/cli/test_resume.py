"""--resume: what may change, what may not, and what a damaged folder says."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import fedhp
from cli.support import Command, digest_of, write
from fedhp.record import checkpoint, store


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Path:
    """A finished run."""
    result = command("run", write(tmp_path), "--out", tmp_path / "run")
    assert result.code == 0, result.err
    return tmp_path / "run"


def test_a_run_that_is_there_is_not_overwritten(command: Command, run: Path) -> None:
    before = digest_of(run)
    result = command("run", write(run.parent), "--out", run)
    assert result.code == 2
    assert f"--out {run}: the folder already holds a run" in result.err
    assert "add --resume" in result.err
    assert digest_of(run) == before


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_the_folder_of_an_experiment_file_is_not_a_run(
    resume: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    """Its file may have the name that the file of a run has: it must not be called a run."""
    file = write(tmp_path).rename(tmp_path / "experiment.toml")
    result = command("run", file, "--out", tmp_path, *resume)
    assert result.code == 2
    assert f"--out {tmp_path}: exists and is not a run folder" in result.err
    assert "delete" not in result.err


def test_a_finished_run_is_told_again(command: Command, run: Path) -> None:
    result = command("run", write(run.parent), "--out", run, "--resume", "--json")
    assert result.code == 0
    assert result.json()["runs"][0]["digest"] == digest_of(run)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.skew=0.5", "data.skew is 0.5, but the run was started with 0.8"),
        ("rounds=2", "rounds is 2, but the run was started with 3"),
        ("algorithm.name=pens", "algorithm.name is 'pens', but the run was started with 'dpsgd'"),
        ("algorithm.steps=4", "algorithm.steps is 4, but the run was started with not set"),
        ("seed=1", "seed is 1, but the run was started with 0"),
    ],
)
def test_other_settings_are_refused(command: Command, run: Path, override: str, words: str) -> None:
    result = command("run", write(run.parent), override, "--out", run, "--resume")
    assert result.code == 2
    assert f"{run}: {words}" in result.err
    assert f"set {override.split('=')[0]} back" in result.err


def test_settings_that_change_no_number_may_change(command: Command, run: Path) -> None:
    before = digest_of(run)
    overrides = ("executors=2", "checkpoint.seconds=1", "compare.seeds=[5]")
    result = command("run", write(run.parent), *overrides, "--out", run, "--resume")
    assert result.code == 0, result.err
    assert digest_of(run) == before


def test_resume_without_a_run_begins_one(command: Command, tmp_path: Path) -> None:
    result = command("run", write(tmp_path), "--out", tmp_path / "new", "--resume")
    assert result.code == 0
    assert (tmp_path / "new" / store.RECORD_FILE).is_file()


@pytest.mark.parametrize("content", [b"", b"garbage" * 500])
def test_a_damaged_record(command: Command, run: Path, content: bytes) -> None:
    (run / store.RECORD_FILE).write_bytes(content)
    result = command("run", write(run.parent), "--out", run, "--resume")
    assert result.code == 2
    assert f"{run / store.RECORD_FILE}: the record is damaged" in result.err
    assert "another folder" in result.err


def test_a_missing_record(command: Command, run: Path) -> None:
    (run / store.RECORD_FILE).unlink()
    result = command("run", write(run.parent), "--out", run, "--resume")
    assert result.code == 2
    assert f"it has no {store.RECORD_FILE}" in result.err


def test_a_record_without_its_description(command: Command, run: Path) -> None:
    connection = sqlite3.connect(run / store.RECORD_FILE)
    connection.execute("DELETE FROM meta WHERE key = 'experiment'")
    connection.commit()
    connection.close()
    result = command("run", write(run.parent), "--out", run, "--resume")
    assert result.code == 2
    assert "does not say with which settings" in result.err


def test_a_damaged_checkpoint_and_the_fix_it_names(command: Command, run: Path) -> None:
    before = digest_of(run)
    file = run / checkpoint.CHECKPOINT_FILE
    for content in (file.read_bytes()[:-10], b"", b"\xff" * 64):
        file.write_bytes(content)
        result = command("run", write(run.parent), "--out", run, "--resume")
        assert result.code == 2
        assert f"{file}: the checkpoint is damaged" in result.err
        assert "delete that file" in result.err
    file.unlink()
    assert command("run", write(run.parent), "--out", run, "--resume").code == 0
    assert digest_of(run) == before


def test_a_checkpoint_ahead_of_its_record(command: Command, run: Path) -> None:
    connection = sqlite3.connect(run / store.RECORD_FILE)
    connection.execute("DELETE FROM rounds WHERE round = 3")
    connection.commit()
    connection.close()
    result = command("run", write(run.parent), "--out", run, "--resume")
    assert result.code == 2
    assert "the record ends at round 2, the checkpoint at 3" in result.err
    assert "fix:" in result.err


def test_a_checkpoint_of_another_run(command: Command, run: Path) -> None:
    other = run.parent / "other"
    result = command("run", write(run.parent), "model.hidden=[5]", "--out", other)
    assert result.code == 0
    (run / checkpoint.CHECKPOINT_FILE).write_bytes(
        (other / checkpoint.CHECKPOINT_FILE).read_bytes()
    )
    result = command("run", write(run.parent), "--out", run, "--resume")
    assert result.code == 2
    assert "the checkpoint does not belong to this experiment" in result.err


def all_tables(folder: Path) -> dict[str, object]:
    """Every table of the record, the metrics included, without real seconds."""
    with fedhp.open_run(folder) as run:
        return {name: run.table(name) for name in store.ROUND_TABLES if name != "wall"}


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "dpsgd"},
        {"name": "ldsgd"},
        {"name": "adpsgd"},
        {"name": "fedhp_plus"},
    ],
    ids=str,
)
def test_more_rounds_as_if_asked_for_at_the_start(
    command: Command, tmp_path: Path, algorithm: dict[str, object]
) -> None:
    """3 is no multiple of `every`: the test after the old last round must go."""
    file = write(
        tmp_path,
        algorithm=algorithm,
        evaluation={"every": 2, "per_class": True},
        data={"own_test": 0.2},
    )
    short, whole = tmp_path / "short", tmp_path / "whole"
    assert command("run", file, "--out", short).code == 0
    longer = command("run", file, "rounds=5", "--out", short, "--resume")
    assert longer.code == 0, longer.err
    assert command("run", file, "rounds=5", "--out", whole).code == 0
    assert digest_of(short) == digest_of(whole)
    assert all_tables(short) == all_tables(whole)
    assert (short / "experiment.toml").read_bytes() == (whole / "experiment.toml").read_bytes()
    back = command("run", file, "--out", short, "--resume")
    assert back.code == 2
    assert "rounds is 3, but the run was started with 5" in back.err


@pytest.mark.parametrize("name", ["fedhp", "pens"])
def test_more_rounds_are_refused_where_decisions_may_depend_on_them(
    command: Command, tmp_path: Path, name: str
) -> None:
    file, out = write(tmp_path, algorithm={"name": name}), tmp_path / "run"
    assert command("run", file, "--out", out).code == 0
    before = digest_of(out)
    refused = command("run", file, "rounds=16", "--out", out, "--resume")
    assert refused.code == 2
    assert "rounds is 16, but the run was started with 3" in refused.err
    assert f"the algorithm {name!r} may use the length of the run" in refused.err
    assert "start a new run with rounds = 16 and another --out" in refused.err
    assert digest_of(out) == before


WARM_STEPS = {"schedule": "step", "milestones": [2, 4], "warmup": 2}


@pytest.mark.parametrize("name", ["dpsgd", "adpsgd"])
def test_more_rounds_continue_the_learning_rates(
    command: Command, tmp_path: Path, name: str
) -> None:
    file = write(tmp_path, algorithm={"name": name}, training=WARM_STEPS)
    short, whole = tmp_path / "short", tmp_path / "whole"
    assert command("run", file, "--out", short).code == 0
    assert command("run", file, "rounds=5", "--out", short, "--resume").code == 0
    assert command("run", file, "rounds=5", "--out", whole).code == 0
    assert digest_of(short) == digest_of(whole)
    with fedhp.open_run(short) as run:
        rates = run.table("rounds")["learning_rate"]
    assert rates == pytest.approx([0.05, 0.1, 0.01, 0.01, 0.001])


def test_a_cosine_that_ended_early_is_resumed_but_gets_no_more_rounds(
    command: Command, tmp_path: Path
) -> None:
    file, out = write(tmp_path, training={"schedule": "cosine"}), tmp_path / "run"
    assert command("run", file, "until.clock=0.001", "--out", out).code == 0
    assert command("run", file, "--out", out, "--resume").code == 0
    assert command("run", file, "--out", tmp_path / "whole").code == 0
    assert digest_of(out) == digest_of(tmp_path / "whole")
    refused = command("run", file, "rounds=5", "--out", out, "--resume")
    assert refused.code == 2
    assert "the learning rates of training.schedule = 'cosine' end with the run" in refused.err
    assert "another --out" in refused.err


def test_an_own_algorithm_must_say_that_it_ignores_the_number_of_rounds(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_rounds.py").write_text(
        "from fedhp.algorithms import Traits\n"
        "from fedhp.algorithms.dpsgd import DPSGD\n"
        "class Silent(DPSGD):\n    traits = Traits()\n"
        "class Declared(DPSGD):\n    traits = Traits(uses_rounds=False)\n"
    )
    for name, code in (("Silent", 2), ("Declared", 0)):
        file = write(tmp_path, rounds=1, algorithm={"name": f"mine_rounds:{name}"})
        out = tmp_path / name
        assert command("run", file, "--out", out).code == 0
        longer = command("run", file, "rounds=2", "--out", out, "--resume")
        assert longer.code == code, longer.err
        assert ("set traits = Traits(uses_rounds=False) in its class" in longer.err) == (code == 2)


def test_a_finished_comparison_gets_more_rounds(command: Command, tmp_path: Path) -> None:
    options = ("--algorithms", "dpsgd", "--no-figures", "--json", "--out", tmp_path / "c")
    file = write(tmp_path, rounds=1)
    assert command("compare", file, *options).code == 0
    longer = command("compare", file, "rounds=2", *options, "--resume")
    assert longer.code == 0, longer.err
    assert longer.json()["runs"][0]["rounds"] == 2
