"""What an algorithm declares: of every built-in one, of a user's own, and in the old form."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fedhp.algorithms import Traits, load_algorithm
from fedhp.algorithms.adpsgd import ADPSGD
from fedhp.algorithms.base import (
    ADAMW_LEARNING_RATES,
    ALGORITHMS,
    Range,
    about,
    abouts,
    built_in,
    built_ins,
    expected_rounds,
    is_asynchronous,
    is_synchronous,
    traits_of,
)
from fedhp.algorithms.dpsgd import DPSGD
from fedhp.algorithms.fedhp import FedHP
from fedhp.algorithms.fedhp_plus import FedHPPlus
from fedhp.algorithms.pens import PENS
from fedhp.algorithms.traits import About
from fedhp.errors import ConfigError
from fedhp.exchange import Scoring

HERE = "contract.test_traits"


class Plain:
    """Declares nothing."""

    def start(self, federation: Any) -> Any: ...
    def plan(self, state: Any, observation: Any, reports: Any) -> Any: ...


class Nothing:
    """Has no method of an algorithm."""


class Declared(Plain):
    traits = Traits(local_epochs=True, uses_rounds=False)


class Turns:
    def start(self, federation: Any) -> Any: ...
    def act(self, state: Any, worker: int, observation: Any, *, turn: int) -> Any: ...


class Former(Plain):
    push_sum = True
    changing_topology = True


class FormerOfOneOfOurs(DPSGD):
    """A field, as pydantic sees it."""

    uses_rounds: bool = False


class FormerOfTheInstance(Plain):
    def __init__(self) -> None:
        self.tracking = True


class NotTraits(Plain):
    traits: ClassVar = {"uses_rounds": True}


class OtherMeaning(Plain):
    """These names are a method and a number here."""

    def group_average(self) -> None: ...

    local_epochs = 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_declares_itself(name: str) -> None:
    algorithm = load_algorithm(name, {})
    assert is_synchronous(algorithm) != is_asynchronous(algorithm)
    assert isinstance(traits_of(algorithm), Traits)
    known = about(name)
    assert known is not None
    assert known == abouts()[name]
    assert known.name
    looks = [(other.color, other.dashes, other.marker) for other in abouts().values()]
    assert len(set(looks)) == len(ALGORITHMS)


def test_lists_of_names() -> None:
    assert built_ins(lambda part: part.traits.follows_changes) == ["dpsgd", "ldsgd"]
    assert built_ins(lambda part: bool(part.traits.simulated)) == ["free_links"]
    assert built_ins(is_asynchronous) == ["adpsgd", "free_links"]
    assert about("own:Thing") is None


def test_what_a_class_says_that_declares_nothing() -> None:
    """These are the defaults that docs/own-parts.md names; a change is one for users' classes."""
    assert {name: value for name, value in asdict(Traits()).items() if value} == {
        "uses_rounds": True,
        "uses_topology": True,
        "local_work": True,
        "fragments": 1,
        "serves": "model",
        "mailbox": "meet",
        "plans_by": "models",
        "distance_smoothing": 0.5,
    }
    assert not Scoring(1, 2, 0.5).symmetric
    plain = asdict(About(name="x", color="#fff", dashes="-", marker="o"))
    assert {name: value for name, value in plain.items() if value and len(str(value)) < 4} == {
        "name": "x",
        "dashes": "-",
        "marker": "o",
        "width": 1.3,
        "order": 3.0,
        "work": 1.0,
    }


def changed(declared: Traits | About, usual: Traits | About) -> dict[str, Any]:
    """What is declared, as far as it is not the default."""
    default = asdict(usual)
    return {name: value for name, value in asdict(declared).items() if value != default[name]}


STEADY = {"uses_rounds": False, "local_epochs": True, "plans_by": "world"}


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("fedhp", {"local_epochs": True}),
        (
            "fedhp_plus",
            {
                "uses_rounds": False,
                "uses_topology": False,
                "local_work": False,
                "group_average": True,
                "plans_by": "world",
            },
        ),
        ("dpsgd", {**STEADY, "follows_changes": True}),
        ("ldsgd", {**STEADY, "follows_changes": True}),
        ("adpsgd", STEADY),
        ("pens", {"local_epochs": True}),
        (
            "free_links",
            {
                "uses_rounds": False,
                "uses_topology": False,
                "local_work": False,
                "single_steps": True,
                "plans_by": "world",
            },
        ),
    ],
)
def test_what_each_built_in_algorithm_declares(name: str, declared: dict[str, Any]) -> None:
    """A change of one of these is one of what the engine, the network and whatif do with it."""
    texts = ("compression", "simulated")
    found = changed(built_in(name).traits, Traits())
    assert {key: value for key, value in found.items() if key not in texts} == declared


def test_what_reports_know_of_each_built_in_algorithm() -> None:
    plain = About(name="", color="", dashes="", marker="")
    known = {
        name: {
            key: value
            for key, value in changed(look, plain).items()
            if key not in ("name", "color", "marker") and not isinstance(value, str)
        }
        for name, look in abouts().items()
    }
    assert known == {
        "fedhp": {
            "width": 2.0,
            "order": 5.0,
            "favourite": 1,
            "work": 1.8,
            "most_steps": 100,
            "planners": ("deadline=opt", "deadline=fill"),
        },
        "fedhp_plus": {"width": 1.8, "order": 4.0, "favourite": 2},
        "dpsgd": {"planners": ("",)},
        "ldsgd": {"work": 0.53, "planners": ("",)},
        "adpsgd": {"own_momentum": True, "planners": ("", "steps=100")},
        "pens": {"dashes": (0, (5, 1, 1, 1, 1, 1)), "work": 1.2, "planners": ("",)},
        "free_links": {"width": 1.0, "limit": True},
    }


def test_what_is_tried_for_the_settings_of_each_built_in_algorithm() -> None:
    steps = Range(5, 200, unset="training.local_steps")
    rate = Range(0.02, 1.0, unset="training.learning_rate")
    own: dict[str, dict[str, Any]] = {
        "fedhp": {"deadline": ("opt", "fill"), "max_steps": Range(20, 500)},
        "fedhp_plus": {"momentum": Range(0.0, 0.95), "deadline_ratio": Range(0.05, 2.0)},
        "dpsgd": {"steps": steps},
        "ldsgd": {"steps": steps},
        "adpsgd": {"steps": steps, "momentum": Range(0.0, 0.95, unset="training.momentum")},
        "pens": {"steps": steps, "stage_share": Range(0.1, 0.5)},
        "free_links": {},
    }
    for name in ALGORITHMS:
        assert dict(built_in(name).tunable) == {"learning_rate": rate, **own[name]}
    assert Range(0.0001, 0.01, unset="training.learning_rate") == ADAMW_LEARNING_RATES


@pytest.mark.parametrize(
    ("tried", "whole", "logarithmic"),
    [
        (Range(5, 50), True, True),
        (Range(5, 49), True, False),
        (Range(0, 50), True, False),
        (Range(0.5, 5), False, True),
        (Range(1, 5.0), False, False),
    ],
)
def test_how_a_range_is_searched(tried: Range, whole: bool, logarithmic: bool) -> None:
    assert (tried.whole, tried.logarithmic) == (whole, logarithmic)


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        (
            "fedhp",
            {
                "planner": "settled",
                "deadline": "opt",
                "pace": "ratio",
                "max_steps": 100,
                "weights": "max_degree",
                "distance_smoothing": 0.5,
                "bound_smoothing": 0.5,
                "bound": "update",
                "bound_scale": 0.5,
                "estimate_every": 2,
                "probe_workers": 10,
                "smoothing": 0.5,
            },
        ),
        (
            "fedhp_plus",
            {
                "learning_rate": 0.3,
                "fragments": 2,
                "compression": "int8",
                "momentum": 0.7,
                "patience": 3,
                "min_share": 0.4,
                "deadline_ratio": 0.2,
                "first_deadline": 0.3,
                "min_steps": 5,
                "max_steps": 500,
                "overlap": True,
            },
        ),
        ("dpsgd", {"weights": "max_degree"}),
        ("ldsgd", {"weights": "max_degree", "communications": 2}),
        ("adpsgd", {"neighbors": "base", "serve": "model", "compression": "none"}),
        (
            "pens",
            {"stage_share": 0.25, "peers": 10, "keep": 3, "samples": 64, "score_cost": 0.67},
        ),
        ("free_links", {"learning_rate": 0.05, "serve": "average"}),
    ],
)
def test_the_default_settings_of_each_built_in_algorithm(
    name: str, defaults: dict[str, Any]
) -> None:
    """Settings that are none or false are left out here."""
    found = built_in(name)().model_dump()
    assert {key: value for key, value in found.items() if value} == defaults


def test_what_has_neither_plan_nor_act_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not an algorithm") as caught:
        load_algorithm(f"{HERE}:Nothing", {})
    assert caught.value.key == "algorithm.name"


@pytest.mark.parametrize(
    ("round_index", "share_done", "rounds"), [(11, 0.5, 20), (11, 1.0, 10), (1, 0.5, 1), (4, 2, 2)]
)
def test_rounds_until_the_horizon(round_index: int, share_done: float, rounds: int) -> None:
    """Ten rounds in half of the time are twenty in all of it."""
    assert expected_rounds(round_index, share_done) == rounds


def test_a_class_that_declares_nothing_has_the_defaults() -> None:
    assert traits_of(load_algorithm(f"{HERE}:Plain", {})) == Traits()
    assert traits_of(load_algorithm(f"{HERE}:OtherMeaning", {})) == Traits()
    assert is_asynchronous(load_algorithm(f"{HERE}:Turns", {}))
    declared = traits_of(load_algorithm(f"{HERE}:Declared", {}))
    assert declared == Traits(local_epochs=True, uses_rounds=False)


@pytest.mark.parametrize(
    ("name", "flag", "instead"),
    [
        (
            "Former",
            "changing_topology = True",
            "traits = Traits(follows_changes=True), def rule(self): return fedhp.rule.PushSum()",
        ),
        ("FormerOfOneOfOurs", "uses_rounds = False", "traits = Traits(uses_rounds=False)"),
        ("FormerOfTheInstance", "tracking = True", "def rule(self): return fedhp.rule.Tracking()"),
        ("NotTraits", "traits = {'uses_rounds': True}", "traits = Traits(...)"),
    ],
)
def test_what_nothing_reads_is_refused(name: str, flag: str, instead: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_algorithm(f"{HERE}:{name}", {})
    assert caught.value.key == "algorithm.name"
    assert flag in str(caught.value)
    assert instead in caught.value.fix


def test_settings_change_traits() -> None:
    usual = traits_of(DPSGD())
    assert not usual.uses_topology
    assert traits_of(DPSGD(neighbors="base", steps=3)) == replace(
        usual, uses_topology=True, own_steps="steps"
    )
    asynchronous = traits_of(ADPSGD(momentum=0.5, serve="average"))
    assert (asynchronous.momentum, asynchronous.serves) == (0.5, "average")
    assert list(asynchronous.simulated_settings) == ["serve"]
    assert not traits_of(ADPSGD()).simulated_settings
    assert not traits_of(FedHP()).local_work
    assert traits_of(FedHP(deadline="fill")).uses_estimates
    scoring = traits_of(PENS(keep=2, symmetric=True)).scoring
    assert scoring is not None
    assert (scoring.keep, scoring.symmetric) == (2, True)


@pytest.mark.parametrize(
    ("ratio", "transfer_time", "step_time", "deadline"),
    [
        (0.2, 10.0, [np.nan, np.nan], 2.0),  # nobody has measured a step yet
        (0.0, 10.0, [np.nan, np.nan], 0.3),  # and no share was asked for: first_deadline
        (0.2, 10.0, [0.1, np.nan, 0.5], 2.0),
        (0.2, 10.0, [1.0, 2.0], 5.0),  # min_steps of the fastest
        (0.2, 10.0, [0.001, 2.0], 0.5),  # max_steps of the fastest
    ],
)
def test_until_when_fedhp_plus_trains(
    ratio: float, transfer_time: float, step_time: list[float], deadline: float
) -> None:
    algorithm = FedHPPlus(deadline_ratio=ratio)
    found = algorithm._deadline(transfer_time, np.array(step_time))
    assert found == pytest.approx(deadline)
