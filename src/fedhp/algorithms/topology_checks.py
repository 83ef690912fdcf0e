"""Which algorithm may be run with which topology: what would have no effect is refused.

What only one algorithm refuses is in its file (`check_experiment`).
"""

from __future__ import annotations

from collections.abc import Collection

from fedhp.algorithms.base import (
    Algorithm,
    AsyncAlgorithm,
    Federation,
    built_ins,
    rule_of,
    traits_of,
)
from fedhp.components import is_dotted
from fedhp.config import Experiment
from fedhp.errors import ConfigError

# A fixed topology with the links of one that changes, or with as few.
_FIXED = {
    "one_peer_exponential": "topology.name = 'hypercube', which has all its links",
    "base_k": "topology.name = 'exponential'",
}


def check_topology(
    algorithm: Algorithm | AsyncAlgorithm,
    federation: Federation,
    experiment: Experiment,
    *,
    recorded_away: Collection[int] = (),
) -> None:
    """Refuse a topology that the algorithm does not follow, or that would fall apart.
    recorded_away: workers that are away at some time of world.trace."""
    traits = traits_of(algorithm)
    if rule_of(algorithm).per_link():
        changes = federation.changing is not None and traits.uses_topology
        _check_per_link(experiment, changes, recorded_away)
    if check := getattr(algorithm, "check_experiment", None):  # by the algorithm itself
        check(experiment, federation)
    if not traits.uses_topology:
        return
    if federation.changing is not None and not traits.follows_changes:
        _refuse_changing(experiment)
    if experiment.topology.name == "star":
        _check_center(experiment, recorded_away)


def _check_per_link(experiment: Experiment, changes: bool, recorded_away: Collection[int]) -> None:
    """A worker keeps the last message of each neighbor: the links have to stay."""
    world, name = experiment.world, experiment.algorithm.name
    values = {
        "topology.name": f"is {experiment.topology.name!r}" if changes else "",
        "world.away": f"worker {world.away[0].worker} is away at times" if world.away else "",
        "world.away_probability": f"is {away:g}" if (away := world.away_probability) else "",
        "world.availability_trace": "workers are away at times" if world.availability_trace else "",
        "world.trace": f"worker {min(recorded_away)} is away at times" if recorded_away else "",
    }
    for key, value in values.items():
        if value:
            raise ConfigError(
                f"{value}, but the workers of {name!r} pass on what they have heard over each "
                "link, and links would come and go",
                key=key,
                allowed="a fixed topology and workers that are always there, with this algorithm",
                fix="choose a fixed topology, such as 'star'"
                if key == "topology.name"
                else f"remove {key}, or choose another algorithm",
            )


def _refuse_changing(experiment: Experiment) -> None:
    name = experiment.topology.name
    redrawn = bool(experiment.topology.settings.get("redraw"))
    fixed = "topology.redraw = false" if redrawn else _FIXED.get(name, "a fixed topology")
    yours = (
        " (yours: set traits = Traits(follows_changes=True))"
        if is_dotted(experiment.algorithm.name)
        else ""
    )
    following = built_ins(lambda part: part.traits.follows_changes)
    raise ConfigError(
        f"{name!r} changes over rounds, but {experiment.algorithm.name!r} chooses among the links "
        "of a fixed base topology",
        key="topology.name",
        allowed="a fixed topology, or an algorithm that follows one that changes: "
        f"{' or '.join(following)} with neighbors = 'base'{yours}",
        fix=f"set {fixed}, or algorithm.name = {following[0]!r} with algorithm.neighbors = 'base'",
    )


def _check_center(experiment: Experiment, recorded_away: Collection[int]) -> None:
    """The center of a star has the role of a server: without it there is no link at all."""
    center = experiment.topology.settings.get("center", 0)
    world = experiment.world
    absence = next((each for each in world.away if each.worker == center), None)
    rounds = "" if absence is None else f"{absence.first} to {absence.last}"
    stays = "set topology.center to a worker that stays"
    absences = (
        (
            rounds,
            "away",
            f"is away in rounds {rounds}",
            f"{stays}, or remove the absence of {center}",
        ),
        (
            world.away_probability > 0,
            "away_probability",
            "would be away at times",
            "list absences of other workers in world.away, or use topology.name = 'random'",
        ),
        (
            world.availability_trace,
            "availability_trace",
            "would be away at times as its client is",
            "remove world.availability_trace, or use topology.name = 'random'",
        ),
        (
            center in recorded_away,
            "trace",
            f"is not available at some times of {world.trace}",
            f"{stays}, or correct the column available",
        ),
    )
    for leaves, name, why, fix in absences:
        if leaves:
            raise ConfigError(
                f"worker {center}, the center of the star, {why}: there would be no link",
                key=f"world.{name}",
                allowed="absences of other workers than the center",
                fix=fix,
            )
