"""In which settings runs differ, by what they ran with."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhp.report.differences import differing_settings, runs_difference_words
from fedhp.report.groups import sort_runs
from fedhp.report.pages.run_report import run_sections
from unit.report.conftest import Runs
from unit.report.runs import make_run


def test_a_rate_that_no_label_says_is_named(runs: Runs) -> None:
    """FedHP+ has its own learning rate, which is not in its label or its settings."""
    words = runs_difference_words([runs.plus, *runs.fedhp, runs.dpsgd[0], runs.adpsgd])
    assert words == (
        "The runs differ in learning rate (0.3 with FedHP+; 0.1 with the others). Their other "
        "settings are equal, but for the algorithm, its own settings and the seed."
    )


def test_the_report_has_the_sentence(runs: Runs) -> None:
    folders = [runs.plus, runs.dpsgd[0]]
    settings = next(part for part in run_sections(folders) if part.anchor == "settings")
    assert "learning rate (0.3 with FedHP+; 0.1 with D-PSGD)" in settings.body


@pytest.fixture(scope="module")
def various(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    top = tmp_path_factory.mktemp("various")
    steps = {"steps": 20, "learning_rate": 0.6}
    return [
        make_run(top / "fedhp", "fedhp", rounds=1),
        make_run(top / "dpsgd", "dpsgd", rounds=1),
        make_run(
            top / "tuned",
            "adpsgd",
            label="adpsgd:steps=20:learning_rate=0.6",
            settings=steps,
            rounds=1,
        ),
        make_run(
            top / "smooth",
            "dpsgd",
            label="dpsgd:training.label_smoothing=0.1",
            training={"local_steps": 10, "label_smoothing": 0.1},
            rounds=1,
        ),
    ]


def test_settings_of_the_algorithm_replace_those_of_the_experiment(various: list[Path]) -> None:
    words = runs_difference_words(various)
    assert "learning rate (0.6 with AD-PSGD 20 steps, lr 0.6; 0.1 with the others)" in words
    assert "local steps (20 with AD-PSGD 20 steps, lr 0.6; 10 with the others; FedHP " in words
    assert "FedHP sets it by itself)" in words
    assert "training.label_smoothing (0.1 with D-PSGD label smoothing 0.1; not set with" in words


def test_seeds_alone_are_no_difference(runs: Runs) -> None:
    assert runs_difference_words(runs.fedhp) == ""
    assert differing_settings(sort_runs(runs.fedhp).batches[0].runs) == {}
    equal = runs_difference_words([runs.fedhp[0], runs.dpsgd[0]])
    assert equal.startswith("All runs have the same settings, but for the algorithm")
