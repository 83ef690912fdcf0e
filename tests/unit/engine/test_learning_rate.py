"""algorithm.learning_rate: an algorithm's own learning rate, also in a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedhp
from fedhp.config import parse
from fedhp.engine.replay.whatif import whatif
from fedhp.engine.runs.campaign import plan_cells
from fedhp.engine.runs.variants import parse_variant, split_algorithms
from fedhp.errors import ConfigError
from fedhp.report.describe import describe_run
from fedhp.report.formatting import short_names

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
    from fedhp.engine.context import planning_context

    tables = {**TINY, "algorithm": {"name": name, "learning_rate": 0.25}}
    assert planning_context(parse(tables), model_bits=1e6).learning_rate == 0.25
    without = planning_context(parse({**TINY, "algorithm": {"name": name}}), model_bits=1e6)
    assert without.learning_rate == 0.1
    with pytest.raises(ConfigError, match=r"algorithm\.learning_rate"):
        planning_context(
            parse({**TINY, "algorithm": {"name": name, "learning_rate": 0}}), model_bits=1e6
        )


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
        {**TINY, "compare": {"algorithms": ["dpsgd", "adpsgd:steps=5,learning_rate=0.4"]}},
        overrides=[],
        algorithms=None,
        seeds=None,
        out=tmp_path,
        source="",
    )
    assert [cell.label for cell in cells] == ["dpsgd", "adpsgd:steps=5:learning_rate=0.4"]
    assert short_names([cell.label for cell in cells])[cells[1].label] == "AD-PSGD 5 steps, lr 0.4"
