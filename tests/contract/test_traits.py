"""What an algorithm declares: of every built-in one, of a user's own, and in the old form."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fedhp.algorithms import Traits, load_algorithm
from fedhp.algorithms.adpsgd import ADPSGD
from fedhp.algorithms.base import (
    ALGORITHMS,
    about,
    abouts,
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
