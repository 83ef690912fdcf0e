"""Which learning rate counts: that of the algorithm, or that of the experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedhp.algorithms.base import load_algorithm, traits_of
from fedhp.components import is_dotted
from fedhp.config import UNSET, Experiment, parse_change
from fedhp.errors import ConfigError

KEY = "training.learning_rate"


def own_learning_rate(algorithm: object, *, optimizer: str) -> float | None:
    """The rate that an algorithm has itself; None: training.learning_rate counts.

    The defaults of the classes are rates of SGD: with another optimizer only a rate that is set
    counts.
    """
    traits = traits_of(algorithm)
    return traits.learning_rate if optimizer == "sgd" or not traits.sgd_rate else None


def is_rate_overridden(changes: Iterable[tuple[str, Any]]) -> bool:
    """Whether one of these keys and values sets training.learning_rate."""
    return any(
        (key == KEY and value is not UNSET)
        or (key == "training" and isinstance(value, Mapping) and "learning_rate" in value)
        for key, value in changes
    )


def ignored_rate(experiment: Experiment) -> float | None:
    """The own rate of a built-in algorithm because of which training.learning_rate has no effect;
    None: it has one. An experiment file may have it nevertheless, for other algorithms."""
    part = experiment.algorithm
    if is_dotted(part.name):
        return None
    algorithm = load_algorithm(part.name, part.settings)
    own = own_learning_rate(algorithm, optimizer=experiment.training.optimizer)
    return None if own == experiment.training.learning_rate else own


def check_rate_has_effect(experiment: Experiment) -> None:
    """Refuse a training.learning_rate that somebody set for this algorithm alone, and which its
    own rate replaces."""
    own, wanted = ignored_rate(experiment), experiment.training.learning_rate
    if own is None:
        return
    name = experiment.algorithm.name
    with experiment.origins.named():
        raise ConfigError(
            f"the value {wanted:g} has no effect: {name!r} has its own learning rate, {own:g}",
            key=KEY,
            allowed=f"algorithm.learning_rate for the rate of {name!r}",
            fix=f"set algorithm.learning_rate={wanted:g} instead",
        )


def check_rate_of_command_line(experiment: Experiment, overrides: Iterable[str]) -> None:
    """Refuse it among the key=value overrides of a single run."""
    if is_rate_overridden(map(parse_change, overrides)):
        check_rate_has_effect(experiment)
