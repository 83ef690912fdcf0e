"""The paper's figures as cells: shared between figures, renamed by a change, none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhp.engine.runs.suite import (
    FIGURES,
    PROFILES,
    Suite,
    check_suite,
    paper_folder,
    read_suite,
)
from fedhp.errors import ConfigError
from unit.engine.small_suite import FIGURE, write_small_suite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_small_suite(tmp_path / "files", fig2="accuracy", fig3="targets")


def suite_of(
    folder: Path, *names: str, overrides: tuple[str, ...] = (), chosen: tuple[str, ...] = ()
) -> Suite:
    out = folder / "out"
    return read_suite(
        names, profile="quick", out=out, overrides=overrides, folder=folder, chosen=chosen
    )


def places(suite: Suite) -> set[Path]:
    return {run.cell.folder for run in suite.cells()}


def test_figures_share_their_runs(folder: Path) -> None:
    both = suite_of(folder, "fig2", "fig3")
    assert len(both.cells()) == 2 * 3
    assert places(both) == places(suite_of(folder, "fig3"))


def test_a_changed_setting_renames_the_runs_it_touches_alone(folder: Path) -> None:
    before = suite_of(folder, "fig2")
    text = (folder / "sets" / "mnist.toml").read_text()
    (folder / "sets" / "mnist.toml").write_text(text.replace("rounds = 3", "rounds = 4"))
    after = suite_of(folder, "fig2")
    touched = places(after) - places(before)
    assert {path.parent.name for path in touched} == {"mnist-p0.5"}
    assert len(touched) == 2


def test_what_cannot_change_a_number_renames_nothing(folder: Path) -> None:
    plain = suite_of(folder, "fig2")
    assert places(plain) == places(suite_of(folder, "fig2", overrides=("executors=1",)))


def test_some_of_the_data_sets_are_run(folder: Path) -> None:
    (folder / "fig3.toml").write_text(FIGURE.replace(", mnist = [0]", ""))
    everything = suite_of(folder, "fig2", "fig3")
    some = suite_of(folder, "fig2", "fig3", chosen=("mnist",))
    assert [figure.name for figure in some.figures] == ["fig2"]
    assert list(some.sets) == ["mnist"]
    assert places(some) == {run.cell.folder for run in everything.cells() if run.data == "mnist"}
    with pytest.raises(ConfigError, match="'cifar' is not a data set") as unknown:
        suite_of(folder, "fig2", chosen=("cifar",))
    assert unknown.value.allowed == "emnist, mnist"
    with pytest.raises(ConfigError, match="fig3 has no run on mnist"):
        suite_of(folder, "fig3", chosen=("mnist",))


def test_a_missing_data_set_is_left_out_and_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHP_DATA", str(folder / "nothing"))
    monkeypatch.setenv("FEDHP_CACHE", str(folder / "nothing"))
    suite = check_suite(suite_of(folder, "fig2"))
    assert list(suite.missing) == ["mnist"]
    assert "train-images" in suite.missing["mnist"]
    assert {run.data for run in suite.cells()} == {"emnist"}


def test_finished_runs_are_shown_without_their_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHP_DATA", str(folder / "nothing"))
    monkeypatch.setenv("FEDHP_CACHE", str(folder / "nothing"))
    monkeypatch.setattr("fedhp.engine.runs.suite.is_finished", lambda place: "mnist-" in str(place))
    suite = check_suite(suite_of(folder, "fig2"))
    assert not suite.missing
    assert {run.data for run in suite.cells()} == {"emnist", "mnist"}


def test_an_unknown_set_is_refused(folder: Path) -> None:
    (folder / "fig2.toml").write_text(FIGURE.replace("emnist", "third"))
    with pytest.raises(ConfigError, match="unknown data set 'third'"):
        suite_of(folder, "fig2")


def test_a_wrong_key_is_refused(folder: Path) -> None:
    (folder / "fig2.toml").write_text('colour = "red"\n' + FIGURE)
    with pytest.raises(ConfigError, match="colour"):
        suite_of(folder, "fig2")


@pytest.mark.parametrize("profile", PROFILES)
def test_the_papers_own_files_are_whole(profile: str, tmp_path: Path) -> None:
    assert {path.stem for path in paper_folder().glob("*.toml")} == set(FIGURES)
    suite = read_suite(FIGURES, profile=profile, out=tmp_path)
    for figure in suite.figures:
        assert figure.cells
    # The text's numbers need no run that the figures lack.
    figures = {run.cell.folder for figure in suite.figures[:-1] for run in figure.cells}
    assert places(suite) == figures


def test_quick_has_three_seeds_where_verdicts_need_them(tmp_path: Path) -> None:
    suite = read_suite(FIGURES, profile="quick", out=tmp_path)
    for data in ("emnist", "cifar10"):
        for skew in (0.1, 0.8):
            seeds = {
                run.cell.seed
                for run in suite.cells()
                if (run.data, run.skew, run.cell.label) == (data, skew, "fedhp:deadline=fill")
            }
            assert len(seeds) >= 3
