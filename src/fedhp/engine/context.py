"""What plans and virtual time need: algorithm, federation and world, but no data and no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedhp.algorithms import Algorithm, AsyncAlgorithm, Federation, load_algorithm
from fedhp.algorithms.adpsgd import ADPSGD
from fedhp.algorithms.base import Settings
from fedhp.algorithms.free_links import FreeLinks
from fedhp.algorithms.topology_checks import check_topology
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.graph import topologies
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

    @property
    def learning_rate(self) -> float:
        """The first learning rate: the algorithm's own, or that of the experiment."""
        own = self.algorithm.learning_rate if isinstance(self.algorithm, Settings) else None
        return self.experiment.training.learning_rate if own is None else own

    def share_done(self, clock: float) -> float | None:
        """The share of the horizon that has passed; None for a run with a number of rounds."""
        horizon = self.experiment.horizon
        return None if horizon is None else clock / horizon


def momentum_of(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> float:
    """The momentum of local SGD: AD-PSGD's own, or that of the experiment."""
    own = algorithm.momentum if isinstance(algorithm, ADPSGD) else None
    return experiment.training.momentum if own is None else own


def serving_of(
    experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm
) -> Literal["", "mixed", "average"]:
    """What an asynchronous worker serves and is tested on, if that is not its current model.

    Tests by virtual time meet it between two exchanges: it serves the model of the last one.
    """
    if isinstance(algorithm, ADPSGD | FreeLinks) and algorithm.serve == "average":
        return "average"
    if isinstance(algorithm, FreeLinks):
        return ""
    by_time = experiment.evaluation.seconds is not None
    return "mixed" if by_time and not isinstance(algorithm, Algorithm) else ""


def extra_state(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> tuple[str, ...]:
    """What a worker keeps in addition to its model, in the same size, as checkpoints name it."""
    velocity = ("velocity",) if momentum_of(experiment, algorithm) else ()
    served = ("served",) if serving_of(experiment, algorithm) else ()
    return (*velocity, *served)


def planning_context(
    experiment: Experiment, *, model_bits: float, source: str = ""
) -> PlanningContext:
    """The context of an experiment whose model is not built; model_bits is its size."""
    part = experiment.algorithm
    algorithm = load_algorithm(part.name, part.settings, source=source)
    federation = federation_of(experiment, source=source)
    check_topology(algorithm, federation, experiment, source=source)
    return PlanningContext(
        experiment,
        algorithm,
        federation,
        world_of(experiment, model_bits=model_bits, source=source),
    )


def federation_of(experiment: Experiment, *, source: str = "") -> Federation:
    """The workers and their base topology, checked."""
    base, changing = topologies(
        experiment.topology.name,
        experiment.topology.settings,
        workers=experiment.workers,
        seed=experiment.seed,
        source=source,
    )
    return Federation(
        workers=experiment.workers,
        rounds=experiment.rounds,
        seed=experiment.seed,
        local_steps=experiment.training.local_steps,
        base_topology=base,
        changing=changing,
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
        batch_size=experiment.training.batch_size,
        source=source,
    )
    if world.constant is not None or (world.trace is not None and world.trace.has_links):
        return world  # its links change rarely, or never
    links = experiment.world.bandwidth
    sharing = experiment.workers if links.sharing else 1
    line = 1.0 if world.lines is None else float(world.lines.both.min())
    slowest = world.model_bits * sharing / (line * links.low * world.unit_bits) + links.latency
    if slowest > TRANSFER_INTERVALS * links.interval:
        raise ConfigError(
            f"a transfer may take {slowest:.3g} s, but links change every {links.interval:g} s",
            key="world.bandwidth.interval",
            source=source,
            allowed=f"at least {slowest / TRANSFER_INTERVALS:.3g} with links that slow",
            fix="raise world.bandwidth.interval or low, or lower world.model_megabits or latency",
        )
    return world
