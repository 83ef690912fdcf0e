"""What fedhp tune tries, in which order, and how trials are ranked."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedhp.algorithms import load_algorithm
from fedhp.algorithms.base import ADAMW_LEARNING_RATES, ALGORITHMS, LEARNING_RATES, Range
from fedhp.config import Draft, parse
from fedhp.engine.runs.tune import (
    BATCH,
    RANDOM_TRIALS,
    Search,
    SeededRuns,
    Trial,
    TunedAlgorithm,
    Tuning,
    best_trial,
    plan_tuning,
)
from fedhp.engine.runs.variants import parse_variant, split_ranges, tables_of
from fedhp.errors import ConfigError
from fedhp.record.reader import RunSummary
from fedhp.report.figures.tune import pareto_front
from fedhp.seeds import Purpose, generator


def plan(*algorithms: str, tables: dict[str, Any] | None = None, **changes: Any) -> Tuning:
    options: dict[str, Any] = {
        "overrides": (),
        "budget": 6,
        "target": None,
        "tuning_seeds": (0, 1),
        "seeds": (6, 7),
        "out": Path("out"),
        **changes,
    }
    return plan_tuning(Draft(tables or {}), algorithms=algorithms, **options)


def planned(entry: str, **tables: Any) -> TunedAlgorithm:
    [algorithm] = plan(entry, tables=tables).algorithms
    return algorithm


def summary(time: float | None, final: float | None, *, status: str = "finished") -> RunSummary:
    return RunSummary(
        algorithm="dpsgd",
        seed=0,
        metric="accuracy",
        status=status,
        rounds=1,
        final_accuracy=final,
        best_accuracy=final,
        mean_model_accuracy=final,
        whole_test_accuracy=None,
        completion_time=100.0,
        round_time=1.0,
        mean_waiting_time=0.0,
        mean_local_steps=1.0,
        bytes_sent=1000,
        time_to_target={"0.90": time},
        digest="",
    )


def trial(
    number: int, *runs: tuple[float | None, float | None], target: str | None = "0.90"
) -> Trial:
    results = tuple(
        summary(*run, status="diverged" if run[1] is None else "finished") for run in runs
    )
    return Trial("dpsgd", number, {}, SeededRuns(f"t{number}", results, target))


RANKED = [
    trial(1, (10.0, 0.91), (20.0, 0.91)),  # by the mean time
    trial(2, (15.0, 0.95), (16.0, 0.95)),
    trial(3, (1e7, 0.99), (1e7, 0.99)),  # however late it comes
    trial(4, (1.0, 0.90), (None, 0.89)),  # a seed misses the target: by the final result
    trial(5, (None, 0.80), (None, 0.88)),
    trial(6, (2.0, 0.99), (None, None)),  # diverged with a seed
]


def test_trials_are_ranked_by_time_then_by_result_and_failures_last() -> None:
    for order in permutations(RANKED, len(RANKED)):
        assert sorted(order, key=lambda each: each.measured.rank) == RANKED
    assert best_trial(RANKED[::-1]) is RANKED[0]
    assert best_trial(RANKED[-1:]) is None


def test_without_a_target_the_final_result_counts() -> None:
    trials = [trial(1, (5.0, 0.7), target=None), trial(2, (None, 0.8), target=None)]
    assert best_trial(trials) is trials[1]


def test_the_sampler_learns_the_same_order() -> None:
    """What is told to Optuna is one number per trial."""
    search = Search(planned("dpsgd"), seed=0)
    told = []
    search._study.tell = lambda asked, value: told.append(value)
    search._asked = [object()] * len(RANKED)
    search.tell(RANKED)
    assert told == sorted(told)
    assert len(set(told)) == len(RANKED)


def proposals(algorithm: TunedAlgorithm, *, budget: int, seed: int) -> list[str]:
    """The labels of a search in which the smallest learning rate is the fastest."""
    search = Search(algorithm, seed=seed)
    labels: list[str] = []
    sizes = []
    while len(search.trials) < budget:
        asked = search.ask(budget)
        sizes.append(len(asked))
        labels += [label for label, _ in asked]
        search.tell([trial(1, (float(each["learning_rate"]), 0.95)) for _, each in asked])
    assert sizes[0] == min(RANDOM_TRIALS, budget)
    assert max(sizes[1:], default=BATCH) == BATCH
    return labels


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_proposal_is_valid_and_inside_the_ranges(name: str) -> None:
    algorithm, experiment = planned(name), parse({})
    assert "learning_rate" in algorithm.space
    assert len(algorithm.space) <= 4
    search = Search(algorithm, seed=3)
    for number in range(5):
        for label, settings in search.ask(12):
            tried = parse(tables_of(parse_variant(label), experiment))
            load_algorithm(tried.algorithm.name, tried.algorithm.settings)
            if label != name:
                assert tried.algorithm.settings == settings
                assert number or label.startswith(f"{name}:")
            for key, option in algorithm.space.items():
                value = settings[key]
                if isinstance(option, Range):
                    assert option.low <= value <= option.high
                else:
                    assert value in option
        search.tell([trial(1, (10.0 + number, 0.9))] * len(search._asked))
    assert len(search.trials) == 12


def test_the_same_seed_proposes_the_same_and_another_one_something_else() -> None:
    algorithm = planned("adpsgd")
    first = proposals(algorithm, budget=10, seed=0)
    assert proposals(algorithm, budget=10, seed=0) == first
    assert first[0] == "adpsgd"
    other = proposals(algorithm, budget=10, seed=1)
    assert other[0] == "adpsgd"
    assert not set(other[1:]) & set(first[1:])
    assert len(set(first)) == 10


def test_a_larger_budget_begins_like_a_smaller_one() -> None:
    algorithm = planned("dpsgd")
    longer = proposals(algorithm, budget=10, seed=0)
    for budget in (1, 3, 4, 6, 8):
        assert proposals(algorithm, budget=budget, seed=0) == longer[:budget]


def test_the_search_finds_the_better_end_of_a_range() -> None:
    """With the time equal to the learning rate, later trials are below the middle of the range."""
    labels = proposals(planned("dpsgd"), budget=40, seed=0)
    rates = [parse_variant(label).settings["learning_rate"] for label in labels[-10:]]
    middle = (0.02 * 1.0) ** 0.5
    assert sum(rate < middle for rate in rates) >= 8


def test_what_an_entry_fixes_is_not_tuned() -> None:
    assert set(planned("adpsgd").space) == {"learning_rate", "steps", "momentum"}
    fixed = planned("adpsgd:steps=10:overlap=true")
    assert set(fixed.space) == {"learning_rate", "momentum"}
    adamw = planned("adpsgd:training.optimizer=adamw:training.learning_rate=0.05")
    assert set(adamw.space) == {"steps"}
    assert fixed.label == "adpsgd:steps=10:overlap=true"
    assert set(planned("dpsgd:training.learning_rate=0.2").space) == {"steps"}
    with pytest.raises(ConfigError, match="fixes every setting"):
        planned("dpsgd:steps=3:learning_rate=0.1")


def test_adamw_has_learning_rates_of_its_own() -> None:
    assert planned("dpsgd").space["learning_rate"] == LEARNING_RATES
    adamw = planned("dpsgd:training.optimizer=adamw")
    assert adamw.space["learning_rate"] == ADAMW_LEARNING_RATES
    given = planned("dpsgd:training.optimizer=adamw:learning_rate=0.0005..0.5")
    assert given.space["learning_rate"] == Range(0.0005, 0.5, "training.learning_rate")
    for name, own in (("fedhp_plus", 0.3), ("free_links", 0.05)):
        rate = {"training": {"learning_rate": 0.002, "optimizer": "adamw"}}
        defaults = planned(name, **rate).defaults
        assert defaults is not None
        assert defaults["learning_rate"] == 0.002, "the default of the class is for SGD"
        defaults = planned(name, training={"learning_rate": 0.002}).defaults
        assert defaults is not None
        assert defaults["learning_rate"] == own


def test_ranges_of_an_entry_replace_or_add_to_the_declared_ones() -> None:
    entry = "adpsgd:steps=5..50,momentum=0..0.5,overlap=true,training.batch_size=8..128"
    label, _ = split_ranges(entry)
    algorithm = planned(entry)
    assert algorithm.label == label == "adpsgd:overlap=true"
    assert algorithm.space["steps"] == Range(5, 50, "training.local_steps")
    assert algorithm.space["momentum"] == Range(0.0, 0.5, "training.momentum")
    assert algorithm.space["training.batch_size"] == Range(8, 128)
    assert algorithm.space["steps"].whole
    assert not algorithm.space["momentum"].whole
    share = planned("fedhp_plus:min_share=0..1").space["min_share"]
    assert share == Range(0.0, 1.0)
    assert not share.whole, "the setting is a share, though the range is written with whole numbers"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("adpsgd:steps=50..5", "from a smaller to a larger number"),
        ("adpsgd:steps=5.5..20", "whole numbers"),
        ("adpsgd:steps=0..20", "algorithm.steps: invalid value 0"),
        ("adpsgd:momentum=0..1", "algorithm.momentum: invalid value 1"),
        ("fedhp_plus:training.learning_rate=0.1..0.2", "its own learning rate, 0.3"),
        ("fedhp_plus:training.learning_rate=0.2", "its own learning rate, 0.3"),
        ("adpsgd:stps=5..20", "algorithm.stps: unknown key"),
        ("adpsgd:steps=5..", "algorithm.steps: invalid value '5..'"),
        ("nothing", "unknown algorithm 'nothing'"),
    ],
)
def test_a_wrong_range_is_refused_before_any_trial(entry: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned(entry)


def test_the_first_trial_has_the_defaults_of_the_experiment() -> None:
    tables: dict[str, Any] = {"training": {"learning_rate": 0.2, "local_steps": 3}}
    algorithm = planned("dpsgd", **tables)
    assert algorithm.defaults == {"learning_rate": 0.2, "steps": 3}
    assert not algorithm.defaults_within  # 3 steps are fewer than the range has
    assert proposals(algorithm, budget=4, seed=0)[0] == "dpsgd"
    assert planned("fedhp_plus").defaults_within
    own = planned("adpsgd", algorithm={"name": "adpsgd", "steps": 77})
    assert own.defaults == {"learning_rate": 0.1, "steps": 77, "momentum": 0.0}
    excluded = planned("dpsgd:steps=10..20", **tables)
    assert excluded.defaults is None
    assert "dpsgd" not in proposals(excluded, budget=4, seed=0)


def test_the_target_is_the_highest_one_unless_given() -> None:
    tables = {"evaluation": {"targets": [0.7, 0.9, 0.8]}}
    assert plan("dpsgd", tables=tables).target == 0.9
    given = plan("dpsgd", tables=tables, target=0.75)
    assert given.target == 0.75
    assert given.experiment.evaluation.targets == [0.7, 0.75, 0.8, 0.9]
    assert plan("dpsgd", tables={"evaluation": {"targets": []}}).target is None
    with pytest.raises(ConfigError, match="--target: invalid value 90"):
        plan("dpsgd", target=90.0)


class Plain:
    """An algorithm of a user that says nothing about tuning."""

    def __init__(self, *, share: float = 0.5) -> None:
        self.share = share

    def start(self, federation: Any) -> int:
        return 0

    def plan(self, state: int, observation: Any, reports: Any) -> Any:
        raise NotImplementedError


class Declared(Plain):
    tunable: ClassVar[Any] = {"share": Range(0.1, 0.9), "kind": ("a", "b")}

    def __init__(self, *, share: float = 0.5, kind: str = "a") -> None:
        super().__init__(share=share)
        self.kind = kind


class Wrong(Plain):
    tunable: ClassVar[Any] = {"share": [0.1, 0.9]}


def test_an_algorithm_of_a_user_declares_what_may_be_tuned() -> None:
    here = "unit.engine.test_tune"
    assert set(planned(f"{here}:Plain").space) == {"training.learning_rate"}
    declared = planned(f"{here}:Declared:share=0.2..0.4")
    assert dict(declared.space) == {
        "training.learning_rate": Range(0.02, 1.0, "training.learning_rate"),
        "share": Range(0.2, 0.4),
        "kind": ("a", "b"),
    }
    assert declared.defaults is None
    with pytest.raises(ConfigError, match="tunable of"):
        planned(f"{here}:Wrong")


def test_the_front_is_what_nothing_beats() -> None:
    rng = generator(1, Purpose.ALGORITHM)
    for _ in range(50):
        points = [(int(a), int(b)) for a, b in rng.integers(0, 8, size=(12, 2))]
        beaten = [
            p for p in points if any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)
        ]
        assert pareto_front(points) == sorted(set(points) - set(beaten))
