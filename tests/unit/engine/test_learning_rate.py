"""algorithm.learning_rate: an algorithm's own learning rate, also in a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedhp
from fedhp.cli.parameters import load_settings
from fedhp.config import Draft, parse
from fedhp.engine.replay.whatif import whatif
from fedhp.engine.runs.campaign import plan_cells
from fedhp.engine.runs.sweep import plan_sweep
from fedhp.engine.runs.variants import parse_variant, split_algorithms
from fedhp.errors import ConfigError
from fedhp.report.describe import describe_run
from fedhp.report.formatting import short_names
from fedhp.rounds.context import planning_context

TINY: dict[str, Any] = {
    "workers": 4,
    "rounds": 2,
    "training": {"local_steps": 2},
    "evaluation": {"images": 30},
}


@pytest.mark.parametrize("name", ["dpsgd", "adpsgd"])
def test_it_is_the_rate_that_is_used_and_recorded(tmp_path: Path, name: str) -> None:
    own = fedhp.make_experiment({**TINY, "algorithm": {"name": name, "learning_rate": 0.3}})
    usual = {**TINY["training"], "learning_rate": 0.3}
    of_all = fedhp.make_experiment({**TINY, "algorithm": {"name": name}, "training": usual})
    with fedhp.run(own, tmp_path / "own") as first, fedhp.run(of_all, tmp_path / "all") as second:
        assert first.table("rounds")["learning_rate"] == pytest.approx([0.3, 0.3 * 0.98])
        assert first.digest() == second.digest()
        assert "learning rate 0.3 x" in dict(describe_run(first))["training"]
    with pytest.raises(ConfigError, match="other models would be trained"):
        whatif(tmp_path / "own", [f"{name}:learning_rate=0.1"])


@pytest.mark.parametrize("name", ["fedhp", "dpsgd", "adpsgd"])
def test_a_run_has_the_rates_of_its_schedule(tmp_path: Path, name: str) -> None:
    cosine = {**TINY["training"], "schedule": "cosine", "final_share": 0.2, "warmup": 1}
    changes = {"rounds": 3, "algorithm": {"name": name}, "training": cosine}
    with fedhp.run(fedhp.make_experiment({**TINY, **changes}), tmp_path / "run") as run:
        assert run.table("rounds")["learning_rate"] == pytest.approx([0.1, 0.1, 0.06])
        said = dict(describe_run(run))["training"]
        assert "learning rate 0.1, as a cosine to 20 % (warm-up of 1 round), batch" in said
    outcome = whatif(tmp_path / "run", ["ldsgd"])
    assert len(outcome.recorded.rounds.clock) == 3


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({}, "learning rate 0.1 x 0.98 per round, batch"),
        ({"decay_by": "time", "decay_seconds": 5.0}, "learning rate 0.1 x 0.98 per 5 s, batch"),
        ({"schedule": "constant"}, "learning rate 0.1, constant, batch"),
        (
            {"schedule": "step", "milestones": [0.5, 2], "decay_by": "time", "warmup": 0.25},
            "learning rate 0.1 x 0.1 after 0.5, 2 s (warm-up of 0.25 s), batch",
        ),
    ],
)
def test_the_schedule_is_shown(tmp_path: Path, training: dict[str, Any], words: str) -> None:
    both = {**TINY["training"], **training}
    changes = {"rounds": 1, "algorithm": {"name": "dpsgd"}, "training": both}
    with fedhp.run(fedhp.make_experiment({**TINY, **changes}), tmp_path / "run") as run:
        assert words in dict(describe_run(run))["training"]


@pytest.mark.parametrize("name", ["fedhp", "dpsgd", "ldsgd", "adpsgd", "pens"])
def test_every_built_in_algorithm_has_it(name: str) -> None:
    tables = {**TINY, "algorithm": {"name": name, "learning_rate": 0.25}}
    assert planning_context(parse(tables), model_bits=1e6).learning_rate == 0.25
    without = planning_context(parse({**TINY, "algorithm": {"name": name}}), model_bits=1e6)
    assert without.learning_rate == 0.1
    with pytest.raises(ConfigError, match=r"algorithm\.learning_rate"):
        planning_context(
            parse({**TINY, "algorithm": {"name": name, "learning_rate": 0}}), model_bits=1e6
        )


# --- defaults of the algorithms themselves -------------------------------------------------

OWN_RATES = pytest.mark.parametrize(("name", "own"), [("fedhp_plus", 0.3), ("free_links", 0.05)])


@OWN_RATES
def test_the_default_of_an_algorithm_is_for_sgd(name: str, own: float) -> None:
    def rate(training: dict[str, Any], **settings: float) -> float:
        tables = {**TINY, "algorithm": {"name": name, **settings}, "training": training}
        return planning_context(parse(tables), model_bits=1e6).learning_rate

    assert rate({"learning_rate": 0.2}) == own
    assert rate({"optimizer": "adamw", "learning_rate": 0.001}) == 0.001
    assert rate({"optimizer": "adamw", "learning_rate": 0.001}, learning_rate=own) == own


def test_with_adamw_a_run_has_the_rate_of_the_experiment(tmp_path: Path) -> None:
    adamw = {"optimizer": "adamw", "learning_rate": 0.001}
    tables = {**TINY, "algorithm": {"name": "fedhp_plus"}, "training": adamw}
    with fedhp.run(fedhp.make_experiment(tables), tmp_path / "run") as run:
        assert run.table("rounds")["learning_rate"] == pytest.approx([0.001, 0.00098])
        assert "AdamW, learning rate 0.001 x" in dict(describe_run(run))["training"]


def refused_rate(error: pytest.ExceptionInfo[ConfigError], rate: str) -> bool:
    wrong = error.value
    assert wrong.key == "training.learning_rate"
    return f"the value {rate} has no effect" in str(wrong) and (
        wrong.fix == f"set algorithm.learning_rate={rate} instead"
    )


@OWN_RATES
def test_a_rate_on_the_command_line_that_the_algorithm_replaces_is_refused(
    name: str, own: float, tmp_path: Path
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(f'algorithm.name = "{name}"\ntraining.learning_rate = 0.1\n')
    assert load_settings(file, []).training.learning_rate == 0.1  # for rivals in a comparison
    for override in ("training.learning_rate=0.2", "training={learning_rate = 0.2}"):
        with pytest.raises(ConfigError, match=f"its own learning rate, {own}") as error:
            load_settings(file, [override])
        assert refused_rate(error, "0.2")
        assert error.value.source == "command line"
    load_settings(file, [f"training.learning_rate={own}"])
    load_settings(file, ["training.learning_rate=none", "training.local_steps=3"])
    load_settings(file, ["training.learning_rate=0.001", "training.optimizer=adamw"])
    load_settings(file, ["training.learning_rate=0.2", "algorithm.name=dpsgd"])
    with pytest.raises(ConfigError, match=r"its own learning rate, 0\.4"):
        load_settings(
            file,
            ["training.learning_rate=0.2", "algorithm.name=dpsgd", "algorithm.learning_rate=0.4"],
        )


def test_a_comparison_may_set_the_rate_of_the_rivals(tmp_path: Path) -> None:
    def planned(*algorithms: str, overrides: tuple[str, ...] = ()) -> list[float]:
        cells = plan_cells(
            Draft(TINY), overrides=overrides, algorithms=algorithms, seeds=None, out=tmp_path
        )
        contexts = [planning_context(cell.experiment, model_bits=1e6) for cell in cells]
        return [context.learning_rate for context in contexts]

    assert planned("fedhp_plus", "dpsgd", overrides=("training.learning_rate=0.2",)) == [0.3, 0.2]
    with pytest.raises(ConfigError) as error:
        planned("fedhp_plus", "free_links", overrides=("training.learning_rate=0.2",))
    assert refused_rate(error, "0.2")
    with pytest.raises(ConfigError) as error:
        planned("dpsgd", "fedhp_plus:training.learning_rate=0.2")
    assert refused_rate(error, "0.2")
    assert "fedhp_plus:training.learning_rate=0.2" in error.value.source


def test_a_sweep_of_a_rate_without_effect_is_refused(tmp_path: Path) -> None:
    def planned(*settings: str) -> int:
        tables = {**TINY, "algorithm": {"name": "fedhp_plus"}}
        sweep = plan_sweep(Draft(tables), settings=settings, seeds=[0], out=tmp_path)
        return len(sweep.runs)

    rates, both = "training.learning_rate=0.1,0.2", "algorithm.name=dpsgd,fedhp_plus"
    for settings in ((rates,), (rates, both), ("training.learning_rate=0.1", "workers=4,5")):
        with pytest.raises(ConfigError) as error:
            planned(*settings)
        assert refused_rate(error, "0.1")
    assert planned("algorithm.learning_rate=0.1,0.2", both) == 4
    assert planned("training.learning_rate=0.1", both) == 2
    assert planned("training.learning_rate=0.001,0.01", "training.optimizer=adamw") == 2


# --- variants ------------------------------------------------------------------------------


def test_settings_of_a_variant_may_be_separated_by_commas(tmp_path: Path) -> None:
    text = "dpsgd,adpsgd:steps=100,learning_rate=0.4,own.module:Name:x=[1,2],y=3,ldsgd"
    entries = split_algorithms(text)
    assert entries == [
        "dpsgd",
        "adpsgd:steps=100:learning_rate=0.4",
        "own.module:Name:x=[1,2]:y=3",
        "ldsgd",
    ]
    variant = parse_variant("adpsgd:steps=100,learning_rate=0.4")
    assert variant == parse_variant(entries[1])
    assert variant.settings == {"steps": 100, "learning_rate": 0.4}
    cells = plan_cells(
        Draft({**TINY, "compare": {"algorithms": ["dpsgd", "adpsgd:steps=5,learning_rate=0.4"]}}),
        overrides=[],
        algorithms=None,
        seeds=None,
        out=tmp_path,
    )
    assert [cell.label for cell in cells] == ["dpsgd", "adpsgd:steps=5:learning_rate=0.4"]
    assert short_names([cell.label for cell in cells])[cells[1].label] == "AD-PSGD 5 steps, lr 0.4"
