"""Only what differs in algorithm and seed alone is averaged; nothing counts twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedhp.errors import RunError
from fedhp.report.groups import RunEntry, sort_runs
from unit.report.conftest import Runs
from unit.report.runs import WORLD, make_run


def labels_and_seeds(entries: tuple[RunEntry, ...] | list[RunEntry]) -> list[tuple[str, int]]:
    return [(entry.label, entry.seed) for entry in entries]


def test_a_comparison_is_one_batch_without_a_name(runs: Runs) -> None:
    found = sort_runs(runs.comparison)
    [batch] = found.batches
    assert batch.name == ""
    assert found.notes == ()
    assert labels_and_seeds(batch.runs)[:4] == [
        ("fedhp", 0),
        ("fedhp", 1),
        ("dpsgd", 0),
        ("dpsgd", 1),
    ]
    assert len(batch.runs) == 7


def test_fedhp_speaks_first_then_a_rival_with_a_barrier(runs: Runs) -> None:
    [batch] = sort_runs([runs.adpsgd, runs.pens, *reversed(runs.fedhp), *runs.dpsgd]).batches
    representative_runs = batch.representative_runs()
    assert labels_and_seeds(representative_runs) == [
        ("fedhp", 0),
        ("pens", 0),
        ("adpsgd", 0),
        ("dpsgd", 0),
    ]
    assert batch.folders[0] in runs.fedhp
    assert sorted(batch.folders) == sorted(run.folder for run in batch.runs)


def test_a_finished_seed_that_all_have_is_preferred(runs: Runs) -> None:
    [batch] = sort_runs([runs.stopped, runs.dpsgd[1], *runs.fedhp]).batches
    assert labels_and_seeds(batch.representative_runs()) == [("fedhp", 1), ("dpsgd", 1)]
    [alone] = sort_runs([runs.stopped]).batches
    assert labels_and_seeds(alone.representative_runs()) == [("dpsgd", 2)]


def test_other_settings_are_another_batch_named_by_what_differs(runs: Runs, tmp_path: Path) -> None:
    short = make_run(tmp_path / "short", "dpsgd", rounds=2)
    found = sort_runs([*runs.dpsgd, short, runs.away])
    assert [len(batch.runs) for batch in found.batches] == [2, 1, 1]
    first, second, third = (batch.name for batch in found.batches)
    assert "rounds = 6" in first
    assert "rounds = 2" in second
    assert "world.away = [" in third
    assert len({first, second, third}) == 3


def test_one_label_that_stands_for_two_things_is_not_averaged(runs: Runs) -> None:
    found = sort_runs([runs.fedhp[0], runs.literal])
    assert [len(batch.runs) for batch in found.batches] == [1, 1]
    assert found.batches[1].name == "algorithm.planner = literal"
    assert found.batches[0].name == "no algorithm.planner"


def test_what_a_label_says_may_differ(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "a", "dpsgd", rounds=1)
    label = "dpsgd:training.local_steps=3"
    training = {"local_steps": 3}
    variant = make_run(tmp_path / "b", "dpsgd", rounds=1, label=label, training=training)
    [batch] = sort_runs([plain, variant]).batches
    assert batch.labels == ["dpsgd", label]
    unsaid = make_run(tmp_path / "c", "dpsgd", rounds=1, training=training)
    assert len(sort_runs([plain, unsaid]).batches) == 2
    # The label's own setting does not excuse the same difference in another label.
    assert len(sort_runs([plain, variant, unsaid]).batches) == 2


def test_a_seed_counts_once(runs: Runs, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs.dpsgd[0], copy)
    found = sort_runs([*runs.dpsgd, copy, runs.dpsgd[0], runs.dpsgd[0] / "." / ".." / "dpsgd-0"])
    [batch] = found.batches
    assert batch.folders == list(runs.dpsgd)
    assert len(found.notes) == 1
    assert str(copy) in found.notes[0]


def test_the_run_that_came_further_is_kept(runs: Runs, tmp_path: Path) -> None:
    early = make_run(tmp_path / "early", "dpsgd", stop_after=2)
    [batch] = sort_runs([early, *runs.dpsgd]).batches
    assert sorted(batch.folders) == sorted(runs.dpsgd)


def test_runs_that_have_not_begun_are_left_out(runs: Runs) -> None:
    found = sort_runs([runs.empty, runs.fedhp[0]])
    assert [batch.folders for batch in found.batches] == [[runs.fedhp[0]]]
    assert found.notes == ("Left out: 1 run has no committed round.",)
    with pytest.raises(RunError, match="no round is committed yet"):
        sort_runs([runs.empty])
    with pytest.raises(RunError, match="no run to report on"):
        sort_runs([])


def test_other_worlds_do_not_mix(runs: Runs, tmp_path: Path) -> None:
    wide = {**WORLD, "model_megabits": 24}
    other = make_run(tmp_path / "other", "dpsgd", rounds=6, seed=1, world=wide)
    found = sort_runs([*runs.dpsgd, other])
    assert [batch.name for batch in found.batches] == [
        "world.model_megabits = 12.0",
        "world.model_megabits = 24.0",
    ]
