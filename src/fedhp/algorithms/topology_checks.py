"""Which algorithm may be run with which topology: what would have no effect is refused."""

from __future__ import annotations

from collections.abc import Collection

from fedhp.algorithms.adpsgd import ADPSGD
from fedhp.algorithms.base import Algorithm, AsyncAlgorithm, Federation, Settings
from fedhp.algorithms.dpsgd import DPSGD
from fedhp.algorithms.fedhp_plus import FedHPPlus
from fedhp.algorithms.free_links import FreeLinks
from fedhp.algorithms.ldsgd import LDSGD
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.topologies import ADDED_NAMES

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
    _check_ring(algorithm, federation, experiment)
    if not uses_topology(algorithm):
        return
    if federation.changing is not None:
        _check_changing(algorithm, experiment)
    _check_weights(algorithm, federation, experiment)
    if experiment.topology.name == "star":
        _check_center(experiment, recorded_away)


def uses_topology(algorithm: Algorithm | AsyncAlgorithm) -> bool:
    """Whether [topology] has an effect: some algorithms have their own links."""
    if isinstance(algorithm, DPSGD | LDSGD | ADPSGD):
        return algorithm.neighbors == "base"
    return not isinstance(algorithm, FedHPPlus | FreeLinks)


def _check_ring(
    algorithm: Algorithm | AsyncAlgorithm,
    federation: Federation,
    experiment: Experiment,
) -> None:
    """Their ring is the default: a topology that it silently replaces is not what was meant."""
    name = experiment.topology.name
    added = name in ADDED_NAMES or federation.changing is not None
    if isinstance(algorithm, DPSGD | LDSGD) and algorithm.neighbors is None and added:
        raise ConfigError(
            f"{experiment.algorithm.name!r} mixes on its own ring by default, so topology.name = "
            f"{name!r} would have no effect",
            key="algorithm.neighbors",
            allowed="'base' (the links of [topology]) or 'ring'",
            fix=f"set algorithm.neighbors = 'base' (in a comparison: "
            f"{experiment.algorithm.name}:neighbors=base)",
            others=("topology.name",),
        )


def _check_changing(algorithm: Algorithm | AsyncAlgorithm, experiment: Experiment) -> None:
    if getattr(algorithm, "changing_topology", False):
        return
    name = experiment.topology.name
    redrawn = bool(experiment.topology.settings.get("redraw"))
    fixed = "topology.redraw = false" if redrawn else _FIXED.get(name, "a fixed topology")
    own = "" if isinstance(algorithm, Settings) else " (yours: set changing_topology = True)"
    raise ConfigError(
        f"{name!r} changes over rounds, but {experiment.algorithm.name!r} chooses among the links "
        "of a fixed base topology",
        key="topology.name",
        allowed="a fixed topology, or an algorithm that follows one that changes: dpsgd or ldsgd "
        f"with neighbors = 'base'{own}",
        fix=f"set {fixed}, or algorithm.name = 'dpsgd' with algorithm.neighbors = 'base'",
    )


def _check_weights(
    algorithm: Algorithm | AsyncAlgorithm,
    federation: Federation,
    experiment: Experiment,
) -> None:
    given = isinstance(algorithm, DPSGD | LDSGD) and "weights" in algorithm.model_fields_set
    if given and federation.topology_at(1).weights is not None:
        raise ConfigError(
            f"has no effect: {experiment.topology.name!r} has its own weights",
            key="algorithm.weights",
            allowed="no algorithm.weights with this topology",
            fix="remove algorithm.weights",
        )


def _check_center(experiment: Experiment, recorded_away: Collection[int]) -> None:
    """The center of a star has the role of a server: without it there is no link at all."""
    center = experiment.topology.settings.get("center", 0)
    world = experiment.world
    absence = next((each for each in world.away if each.worker == center), None)
    if absence is not None:
        key, problem = (
            "world.away",
            f"worker {center}, the center of the star, is away in rounds {absence.first} to "
            f"{absence.last}: there would be no link",
        )
        fix = f"set topology.center to a worker that stays, or remove the absence of {center}"
    elif world.away_probability > 0:
        key, problem = (
            "world.away_probability",
            f"worker {center}, the center of the star, would be away at times: there would be no "
            "link",
        )
        fix = "list absences of other workers in world.away, or use topology.name = 'random'"
    elif world.availability_trace:
        key, problem = (
            "world.availability_trace",
            f"worker {center}, the center of the star, would be away at times as its client is: "
            "there would be no link",
        )
        fix = "remove world.availability_trace, or use topology.name = 'random'"
    elif center in recorded_away:
        key, problem = (
            "world.trace",
            f"worker {center}, the center of the star, is not available at some times of "
            f"{world.trace}: there would be no link",
        )
        fix = "set topology.center to a worker that stays, or correct the column available"
    else:
        return
    raise ConfigError(
        problem,
        key=key,
        allowed="absences of other workers than the center",
        fix=fix,
    )
