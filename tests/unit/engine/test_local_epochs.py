"""training.local_epochs: the steps of every worker follow from its own samples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhp
from fedhp.algorithms import Federation, Observation, Traits
from fedhp.algorithms.dpsgd import DPSGD, RingState
from fedhp.config import parse, to_tables
from fedhp.engine.prepare import prepare
from fedhp.engine.replay.whatif import whatif
from fedhp.engine.runs.tune import _tuned_algorithm
from fedhp.errors import ConfigError
from fedhp.report.describe import describe_run
from fedhp.report.explain import explain_text
from fedhp.timing import epoch_steps, median_steps
from fedhp.types import Plan, Reports

ROUNDS = 3


def tables(algorithm: str, epochs: float = 0.5, **settings: Any) -> dict[str, Any]:
    return {
        "workers": 5,
        "rounds": ROUNDS,
        "algorithm": {"name": algorithm, **settings},
        "model": {"name": "mlp", "hidden": [6]},
        "data": {"train_images": 300, "partition": "quantity", "alpha": 1.0},
        "training": {"local_epochs": epochs, "batch_size": 16},
        "evaluation": {"images": 30},
    }


def steps_of(run: Any) -> tuple[list[int], np.ndarray[Any, Any]]:
    """What the epochs of the workers should take, and the recorded steps [R, N]."""
    expected = [max(1, math.ceil(0.5 * samples / 16)) for samples in run.meta("samples")]
    return expected, run.array("workers", "local_steps")


@pytest.mark.parametrize("algorithm", ["dpsgd", "pens"])
def test_every_round_has_the_epochs_of_each_worker(algorithm: str, tmp_path: Path) -> None:
    with fedhp.run(fedhp.make_experiment(tables(algorithm)), tmp_path / "run") as run:
        expected, steps = steps_of(run)
        assert len(set(expected)) > 2
        assert steps.tolist() == [expected] * ROUNDS
        words = explain_text(run, 1, width=1000)
        assert (
            f"local epochs of its own samples ({min(expected)} to {max(expected)} steps)" in words
        )
        assert "0.5 local epochs" in dict(describe_run(run))["training"]


def test_ld_sgd_counts_its_local_phase_in_epochs(tmp_path: Path) -> None:
    with fedhp.run(fedhp.make_experiment(tables("ldsgd")), tmp_path / "run") as run:
        expected, steps = steps_of(run)
        long, short = [count + 1 for count in expected], [1] * 5
        assert steps.tolist() == [long, short, long]
        assert "Local phase: the local epochs" in explain_text(run, 1, width=1000)


def test_turns_of_ad_psgd_have_the_epochs_of_their_worker(tmp_path: Path) -> None:
    with fedhp.run(fedhp.make_experiment(tables("adpsgd")), tmp_path / "run") as run:
        expected, steps = steps_of(run)
        assert (steps % np.array(expected) == 0).all()
        assert steps.sum() > 0


class Own:
    """An algorithm of a user's own, which says that it knows local epochs."""

    traits = Traits(local_epochs=True)

    def start(self, federation: Federation) -> RingState:
        return DPSGD().start(federation)

    def plan(
        self, state: RingState, observation: Observation, reports: Reports
    ) -> tuple[RingState, Plan]:
        return DPSGD().plan(state, observation, reports)

    def steps(self) -> int:  # not a setting
        return 1


def test_an_own_algorithm_sees_the_epochs(tmp_path: Path) -> None:
    experiment = fedhp.make_experiment(tables("unit.engine.test_local_epochs:Own"))
    with fedhp.run(experiment, tmp_path / "run") as run:
        expected, steps = steps_of(run)
        assert steps.tolist() == [expected] * ROUNDS


def test_fedhp_begins_with_the_median(tmp_path: Path) -> None:
    settings = tables("fedhp", deadline="fill", pace="fixed")
    experiment = fedhp.make_experiment(settings)
    with fedhp.run(experiment, tmp_path / "run") as run:
        expected, _ = steps_of(run)
        facts = run.table("facts", round_index=1)
        pace = dict(zip(facts["name"], facts["value"], strict=True))["pace_steps"]
        assert pace == int(np.median(expected))


@pytest.mark.parametrize(
    ("samples", "epochs", "batch", "steps"),
    [(30, 1.0, 10, 3), (31, 1.0, 10, 4), (3, 0.1, 8, 1), (100, 0.07, 1, 7), (10, 2.5, 4, 7)],
)
def test_the_number_of_steps(samples: int, epochs: float, batch: int, steps: int) -> None:
    assert epoch_steps(np.array([samples]), epochs=epochs, batch_size=batch).tolist() == [steps]


def test_the_median_leaves_unknown_workers_out() -> None:
    assert median_steps(np.array([0, 5, 7, 0, 9])) == 7


def test_a_replay_knows_the_samples(tmp_path: Path) -> None:
    with fedhp.run(fedhp.make_experiment(tables("dpsgd")), tmp_path / "run") as run:
        expected, _ = steps_of(run)
        samples = run.meta("samples")
    replayed = whatif(tmp_path / "run")
    assert replayed.own.sure == "recorded"
    names = [outcome.planner for outcome in replayed.planners]
    assert "adpsgd" in names
    assert not any("steps=" in name for name in names)
    other = whatif(tmp_path / "run", ["ldsgd"], overrides=["training.local_epochs=1"])
    assert other.planners[0].rounds.local_steps[0].tolist() == [
        1 + math.ceil(count / 16) for count in samples
    ]
    fixed = whatif(tmp_path / "run", ["dpsgd"], overrides=["training.local_steps=4"])
    assert fixed.planners[0].rounds.local_steps[0].tolist() == [4] * 5
    assert replayed.own.rounds.local_steps[0].tolist() == expected


def test_tune_does_not_try_steps_of_its_own() -> None:
    tuned = _tuned_algorithm("dpsgd", parse(tables("dpsgd")), listed=True)
    assert "steps" not in tuned.space
    assert "learning_rate" in tuned.space
    plain = parse({**tables("dpsgd"), "training": {}})
    assert "steps" in _tuned_algorithm("dpsgd", plain, listed=True).space


def refused(settings: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        prepare(parse(settings))
    return caught.value


def test_what_has_no_effect_is_refused() -> None:
    both = tables("dpsgd")
    both["training"]["local_steps"] = 30
    assert refused(both).key == "training.local_steps"
    for algorithm, settings, words in (
        ("dpsgd", {"steps": 5}, "algorithm.steps is 5"),
        ("ldsgd", {"steps": 0}, "algorithm.steps is 0"),
        ("adpsgd", {"steps": 5}, "algorithm.steps is 5"),
        ("fedhp", {"initial_steps": 5}, "algorithm.initial_steps is 5"),
        ("fedhp_plus", {}, "it trains by time"),
        ("free_links", {}, "it sets the steps by itself"),
        ("fedhp.starter.own_algorithm:RandomPairs", {}, "it sets the steps by itself"),
    ):
        error = refused(tables(algorithm, **settings))
        assert error.key == "training.local_epochs"
        assert words in str(error)
    many = tables("dpsgd", 10_000)
    many["training"]["batch_size"] = 1
    assert "too many steps" in str(refused(many))
    for value in (0, -1.0, "1"):
        assert refused(tables("dpsgd", value)).key == "training.local_epochs"  # type: ignore[arg-type]


def test_an_override_replaces_the_other_setting() -> None:
    notes: list[str] = []
    steps = parse(tables("dpsgd"), ["training.local_steps=7"], notes=notes)
    assert (steps.training.local_steps, steps.training.local_epochs) == (7, None)
    assert "training.local_epochs" in notes[0]
    epochs = parse({"training": {"local_steps": 7}}, ["training.local_epochs=2"])
    assert epochs.training.local_epochs == 2
    written = to_tables(epochs)
    assert "local_steps" not in written["training"]
    assert to_tables(parse(written)) == written
