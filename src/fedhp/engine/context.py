"""Who plans, among whom, in which world: all that decisions and time need, no data, no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedhp.algorithms import Algorithm, AsyncAlgorithm, Federation, load_algorithm
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.graph import base_topology
from fedhp.world import World, build_world

MOST_INTERVALS = 100_000  # of the links' changes in one transfer


class Stage(Protocol):
    """What the loops need of an experiment: that of a run (prepare.py), or a bare one."""

    @property
    def experiment(self) -> Experiment:
        """Its settings."""

    @property
    def algorithm(self) -> Algorithm | AsyncAlgorithm:
        """Who plans."""

    @property
    def federation(self) -> Federation:
        """What the algorithm knows before the first round."""

    @property
    def world(self) -> World:
        """Devices, links and presence."""

    @property
    def model_bytes(self) -> int:
        """What one transfer counts."""

    @property
    def overlap(self) -> bool:
        """Whether tests run beside the next round's training."""

    @property
    def whole_at_end(self) -> bool:
        """Whether the last models are tested on the whole test set as well."""


@dataclass(frozen=True, slots=True)
class BareStage:
    """A stage on which nothing is trained and nothing tested."""

    experiment: Experiment
    algorithm: Algorithm | AsyncAlgorithm
    federation: Federation
    world: World
    overlap: bool = False
    whole_at_end: bool = False

    @property
    def model_bytes(self) -> int:
        """What one transfer counts, by the world's size of the model."""
        return round(self.world.model_bits / 8)


def bare_stage(experiment: Experiment, *, model_bits: float, source: str = "") -> BareStage:
    """The stage of an experiment whose model is not built; model_bits is its size."""
    part = experiment.algorithm
    return BareStage(
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
    """The world, checked: links move from interval to interval, so that time must not run far
    ahead of them."""
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
    if slowest > MOST_INTERVALS * links.interval:
        raise ConfigError(
            f"a transfer may take {slowest:.3g} s, but links change every {links.interval:g} s",
            key="world.bandwidth.interval",
            source=source,
            allowed=f"at least {slowest / MOST_INTERVALS:.3g} with links that slow",
            fix="raise world.bandwidth.interval or low, or lower world.model_megabits or latency",
        )
    return world
