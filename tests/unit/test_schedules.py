"""Schedules of the learning rate: against torch's and closed forms, their refusals and defaults."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
)

from fedhp.config import Experiment, TrainingConfig, parse, to_tables
from fedhp.config.origins import Origins
from fedhp.errors import ConfigError
from fedhp.rounds.context import planning_context
from fedhp.rounds.planner import Observed, observe
from fedhp.schedules import learning_rate
from fedhp.timing import Network

ROUNDS = 12


def rates(training: dict[str, Any], *, rounds: int = ROUNDS, start: float = 0.4) -> list[float]:
    experiment = parse({"rounds": rounds, "training": training})
    return [
        learning_rate(start, experiment, round_index=index, clock=99.0)
        for index in range(1, rounds + 1)
    ]


def rate_at_time(training: dict[str, Any], clock: float, **top: Any) -> float:
    experiment = parse({**top, "training": {"decay_by": "time", **training}})
    return learning_rate(0.4, experiment, round_index=7, clock=clock)


def rates_of_torch(make: Callable[[SGD], LRScheduler], *, start: float = 0.4) -> list[float]:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR steps by a number, as torch warns itself
        scheduler = make(optimizer)
        used = []
        for _ in range(ROUNDS):
            used.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return used


def warmed(optimizer: SGD, rounds: int, then: LRScheduler) -> LRScheduler:
    """Rounds of a linear warm-up, and then another schedule from its beginning."""
    rising = LinearLR(optimizer, start_factor=1 / rounds, total_iters=rounds - 1)
    return SequentialLR(optimizer, [rising, then], milestones=[rounds])


@pytest.mark.parametrize(
    ("training", "make"),
    [
        ({"decay": 0.9}, lambda o: ExponentialLR(o, 0.9)),
        (
            {"schedule": "step", "milestones": [3, 7], "factor": 0.2},
            lambda o: MultiStepLR(o, [3, 7], 0.2),
        ),
        ({"schedule": "step", "milestones": [5]}, lambda o: MultiStepLR(o, [5])),
        ({"schedule": "cosine"}, lambda o: CosineAnnealingLR(o, ROUNDS)),
        (
            {"schedule": "cosine", "final_share": 0.25},
            lambda o: CosineAnnealingLR(o, ROUNDS, eta_min=0.1),
        ),
        (
            {"schedule": "cosine", "warmup": 4},
            lambda o: warmed(o, 4, CosineAnnealingLR(o, ROUNDS - 4)),
        ),
        ({"decay": 0.9, "warmup": 3}, lambda o: warmed(o, 3, ExponentialLR(o, 0.9))),
        (
            {"schedule": "constant", "warmup": 5},
            lambda o: LinearLR(o, start_factor=1 / 5, total_iters=4),
        ),
    ],
)
def test_by_round_as_in_torch(training: dict[str, Any], make: Callable[[SGD], LRScheduler]) -> None:
    assert rates(training) == pytest.approx(rates_of_torch(make), rel=1e-9)


def test_a_round_before_a_milestone_has_the_rate_before_it() -> None:
    used = rates({"schedule": "step", "milestones": [3], "factor": 0.5})
    assert used == [0.4] * 3 + [0.2] * (ROUNDS - 3)


def test_the_warm_up_ends_with_the_whole_rate() -> None:
    assert rates({"schedule": "constant", "warmup": 4})[:6] == [0.1, 0.2, 0.4 * 0.75, 0.4, 0.4, 0.4]
    assert rates({"schedule": "constant", "warmup": 1}) == [0.4] * ROUNDS


def test_by_time() -> None:
    assert [rate_at_time({"decay": 0.5}, t) for t in (0.0, 10.0, 20.0)] == [0.4, 0.2, 0.1]
    assert rate_at_time({"decay": 0.25}, 5.0) == pytest.approx(0.2)
    assert rate_at_time({"decay": 0.5, "warmup": 30}, 40.0) == 0.2
    step = {"schedule": "step", "milestones": [2.5, 60], "factor": 0.5}
    assert [rate_at_time(step, t) for t in (2.4, 2.5, 59.9, 60.0)] == [0.4, 0.2, 0.2, 0.1]
    cosine = {"schedule": "cosine", "final_share": 0.5, "warmup": 20}
    used = [rate_at_time(cosine, t, horizon=100) for t in (20.0, 60.0, 100.0, 130.0)]
    assert used == pytest.approx([0.4, 0.3, 0.2, 0.2])


def test_a_warm_up_by_time_starts_above_zero() -> None:
    warm = {"schedule": "constant", "warmup": 10}
    used = [rate_at_time(warm, t) for t in (0.0, 5.0, 10.0, 11.0)]
    assert used == pytest.approx([0.004, 0.4 * 0.505, 0.4, 0.4])


def test_a_cosine_is_never_zero() -> None:
    near = 100 * (1 - 1e-12)
    for clock in (near, 100.0, 1e6):
        assert 0 < rate_at_time({"schedule": "cosine"}, clock, horizon=100) <= 4e-7
    assert rates({"schedule": "cosine"}, rounds=1) == [0.4]
    nothing = parse({"rounds": 0, "training": {"schedule": "cosine", "warmup": 3}})
    assert learning_rate(0.3, nothing, round_index=1, clock=0.0) == pytest.approx(0.1)


def test_the_default_has_the_bits_of_the_formula() -> None:
    decay = 0.98
    assert rates({}, rounds=300, start=0.1) == [0.1 * decay ** (h - 1) for h in range(1, 301)]
    for clock in (0.0, 0.1, 12.345, 1e5 / 3):
        assert rate_at_time({}, clock) == 0.4 * decay ** (clock / 10.0)


def test_new_keys_are_left_out_at_their_defaults() -> None:
    assert set(to_tables(Experiment())["training"]) >= {"decay", "decay_by", "decay_seconds"}
    new = {"schedule", "milestones", "factor", "final_share", "warmup"}
    assert not new & set(to_tables(Experiment())["training"])


@pytest.mark.parametrize(
    "training",
    [
        {"schedule": "constant"},
        {"schedule": "constant", "warmup": 3, "decay_by": "time"},
        {"schedule": "step", "milestones": [3, 70]},
        {"schedule": "step", "milestones": [0.5, 7.0], "factor": 0.3, "decay_by": "time"},
        {"schedule": "cosine", "final_share": 0.1, "warmup": 2},
        {"warmup": 2, "decay": 0.9},
    ],
)
def test_what_a_run_keeps_can_be_read_again(training: dict[str, Any]) -> None:
    experiment = parse({"training": training})
    assert parse(to_tables(experiment)) == experiment
    kept = to_tables(experiment)["training"]
    assert {key: kept[key] for key in training} == training
    assert ("decay" in kept) == (experiment.training.schedule == "exponential")


@pytest.mark.parametrize(
    ("tables", "key", "words"),
    [
        ({"schedule": "step"}, "milestones", "is required"),
        ({"schedule": "step", "milestones": []}, "milestones", "invalid value"),
        ({"schedule": "step", "milestones": [9, 3]}, "milestones", "9, 3 do not rise"),
        ({"schedule": "step", "milestones": [3, 3]}, "milestones", "do not rise"),
        ({"schedule": "step", "milestones": [0]}, "milestones", "invalid value"),
        ({"schedule": "step", "milestones": [2.5]}, "milestones", "not a number of rounds"),
        ({"schedule": "step", "milestones": [2], "factor": 1.0}, "factor", "invalid value"),
        ({"milestones": [3]}, "milestones", "has no effect"),
        ({"schedule": "cosine", "milestones": [3]}, "milestones", "has no effect"),
        ({"factor": 0.1}, "factor", "has no effect"),
        ({"schedule": "step", "milestones": [3], "final_share": 0.0}, "final_share", "no effect"),
        ({"schedule": "constant", "decay": 0.98}, "decay", "has no effect"),
        ({"schedule": "cosine", "decay_seconds": 10.0}, "decay_seconds", "has no effect"),
        ({"decay_seconds": 5.0}, "decay_seconds", "training.decay_by is 'round'"),
        ({"schedule": "cosine", "final_share": 1.5}, "final_share", "invalid value"),
        ({"warmup": 2.5}, "warmup", "not a number of rounds"),
        ({"warmup": -1}, "warmup", "invalid value"),
        ({"schedule": "cosine", "warmup": 100}, "warmup", "leaves nothing of the run"),
        ({"schedule": "cosin"}, "schedule", "invalid value"),
        ({"schedule": "cosine", "decay_by": "time"}, "schedule", "the run has no horizon"),
    ],
)
def test_refusals(tables: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        parse({"training": tables})
    assert refusal.value.key.startswith(f"training.{key}")


def test_a_cosine_by_round_needs_a_number_of_rounds() -> None:
    with pytest.raises(ConfigError, match="has no number of rounds") as refusal:
        parse({"horizon": 50.0, "training": {"schedule": "cosine"}})
    assert "decay_by = 'time'" in refusal.value.fix
    by_time = {"schedule": "cosine", "decay_by": "time", "warmup": 49.5}
    assert parse({"horizon": 50.0, "training": by_time}).training.warmup == 49.5
    with pytest.raises(ConfigError, match="leaves nothing"):
        parse({"horizon": 49.5, "training": by_time})


def test_another_unit_drops_the_points_of_the_first() -> None:
    tables = {"training": {"schedule": "step", "milestones": [3, 9], "warmup": 2}}
    notes: list[str] = []
    changes = ["training.decay_by=time", "training.milestones=[30, 90]"]
    training = parse(tables, changes, notes=notes).training
    assert (training.milestones, training.warmup) == ([30, 90], 0)
    assert "training.warmup = 2" in notes[0]
    with pytest.raises(ConfigError, match="is required") as refusal:
        parse(tables, ["training.decay_by=time"], origins=Origins("ep.toml"))
    assert "training.decay_by=time drops settings of 'round' in ep.toml" in refusal.value.problem
    assert "training.milestones = [3, 9]" in refusal.value.problem
    with pytest.raises(ConfigError, match="is required") as refusal:
        parse(tables, ["training.milestones=none"], origins=Origins("ep.toml"))
    assert "drops" not in refusal.value.problem


def test_settings_made_in_python_are_checked_as_well() -> None:
    assert TrainingConfig(schedule="constant").decay == 0.98
    assert math.isclose(TrainingConfig(schedule="step", milestones=[4]).factor, 0.1)


@pytest.mark.parametrize(("horizon", "share"), [(None, None), (8.0, 0.25), (2.0, 1.0)])
def test_an_algorithm_observes_the_share_of_the_horizon(
    horizon: float | None, share: float | None
) -> None:
    here = np.ones(4, dtype=np.bool_)
    tables = {"workers": 4} if horizon is None else {"workers": 4, "horizon": horizon}
    context = planning_context(parse(tables), model_bits=1e6)
    network = Network(np.full(4, 1e6), 1e6)
    observed = Observed(round_index=3, clock=2.0, available=here, network=network)
    observation = observe(context, observed)
    assert (observation.share_done, observation.clock, observation.round_index) == (share, 2.0, 3)
    assert observation.available is here
    assert not observation.changing
    assert observation.topology == context.federation.base_topology
