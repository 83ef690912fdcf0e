"""What plans and virtual time need: algorithm, federation and world, but no data and no model."""

from __future__ import annotations

from dataclasses import dataclass

from fedhp.algorithms import Algorithm, AsyncAlgorithm, Federation, load_algorithm
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.graph import base_topology
from fedhp.world import World, build_world

TRANSFER_INTERVALS = 100_000  # of the links' changes in one transfer, at most


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """What the loops and planners need of an experiment; Prepared adds what training needs."""

    experiment: Experiment
    algorithm: Algorithm | AsyncAlgorithm
    federation: Federation  # what the algorithm knows before the first round
    world: World

    @property
    def model_bytes(self) -> int:
        """Bytes counted for one transfer, by the world's size of the model."""
        return round(self.world.model_bits / 8)


def planning_context(
    experiment: Experiment, *, model_bits: float, source: str = ""
) -> PlanningContext:
    """The context of an experiment whose model is not built; model_bits is its size."""
    part = experiment.algorithm
    return PlanningContext(
        experiment,
        load_algorithm(part.name, part.settings, source=source),
        federation_of(experiment, source=source),
        world_of(experiment, model_bits=model_bits, source=source),
    )


def federation_of(experiment: Experiment, *, source: str = "") -> Federation:
    """The workers and their base topology, checked."""
    return Federation(
        workers=experiment.workers,
        rounds=experiment.rounds,
        seed=experiment.seed,
        local_steps=experiment.training.local_steps,
        base_topology=base_topology(
            experiment.topology.name,
            experiment.topology.settings,
            workers=experiment.workers,
            seed=experiment.seed,
            source=source,
        ),
    )


def world_of(experiment: Experiment, *, model_bits: float, source: str = "") -> World:
    """The world, checked: links are drawn interval by interval, so that a transfer must not take
    too many of them."""
    world = build_world(
        experiment.world,
        workers=experiment.workers,
        rounds=experiment.rounds,
        seed=experiment.seed,
        model_bits=model_bits,
        source=source,
    )
    links = experiment.world.bandwidth
    sharing = experiment.workers if links.sharing else 1
    slowest = world.model_bits * sharing / (links.low * world.unit_bits) + links.latency
    if slowest > TRANSFER_INTERVALS * links.interval:
        raise ConfigError(
            f"a transfer may take {slowest:.3g} s, but links change every {links.interval:g} s",
            key="world.bandwidth.interval",
            source=source,
            allowed=f"at least {slowest / TRANSFER_INTERVALS:.3g} with links that slow",
            fix="raise world.bandwidth.interval or low, or lower world.model_megabits or latency",
        )
    return world
