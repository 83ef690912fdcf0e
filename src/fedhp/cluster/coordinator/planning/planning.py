"""The planner, and what it has to know of the workers before there can be a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhp.algorithms.base import is_synchronous
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.planning.link_estimates import LinkSurvey
from fedhp.cluster.coordinator.planning.round_planner import (
    NetworkPlanner,
    RoundPlanner,
    usual_count,
)
from fedhp.cluster.coordinator.planning.turn_planner import TurnPlanner
from fedhp.cluster.protocol import limits
from fedhp.config import Experiment
from fedhp.rounds.context import epoch_steps_of, planning_context
from fedhp.types import FloatArray, IntArray

LARGEST_LINK_SHARE = 4  # bytes over a link at most, in models: a swap has two, with some overhead


class Planning:
    """The planner, the size of a model, and how many samples the workers have."""

    rounds: RoundPlanner  # the planner, of a synchronous algorithm
    turns: TurnPlanner  # the planner, of an asynchronous algorithm

    def __init__(self, context: LeaderContext) -> None:
        self._context, committed = context, context.taken_over
        self.model_bytes = 0
        self.largest_transfer = limits.MODEL_BYTES  # that one link can have carried in one report
        self.planner: NetworkPlanner | None = None  # until a worker says how large a model is
        self.survey: LinkSurvey | None = None  # while it runs
        if committed.model_bytes:
            self._plan_with(committed.model_bytes, packed=committed.planner)
        self.model_sizes: dict[int, int] = {}  # bytes, as each worker says
        self._samples: dict[int, int] = {}  # likewise

    def _plan_with(self, model_bytes: int, packed: bytes = b"") -> None:
        experiment = self._context.experiment
        planner = create_planner(experiment, model_bytes=model_bytes, packed=packed)
        if isinstance(planner, RoundPlanner):
            self.rounds = planner
        elif isinstance(planner, TurnPlanner):
            self.turns = planner
        self.planner, self.model_bytes = planner, model_bytes
        self.largest_transfer = max(LARGEST_LINK_SHARE * model_bytes, limits.PROBE_BYTES)

    def note_samples(self, worker: int, samples: int) -> None:
        """How much data a worker has; 0 in the Join of a process that has not read it yet."""
        known = self._samples.get(worker)
        if known is None or (samples and samples != known):
            self._samples[worker] = samples
            self._context.record.note_samples(worker, samples)

    def forget(self, worker: int) -> None:
        """The worker is refused: what it said does not count."""
        self.model_sizes.pop(worker, None)
        self._samples[worker] = 0
        self._context.record.note_samples(worker, 0)

    def settle_model_size(self, ready: Sequence[int]) -> None:
        """The first plan needs the size of a model: what most of the ready workers say counts."""
        size = usual_count(
            self.model_sizes[worker] for worker in ready if worker in self.model_sizes
        )
        if size:
            self._plan_with(size)
            self._context.record.note(model_bytes=size, parameters=size // 4)

    def has_usual_model(self, member: Member) -> bool:
        """Whether the model of a member has the size of the others', as far as is known."""
        own = self.model_sizes.get(member.worker, self.model_bytes)
        return not self.model_bytes or own == self.model_bytes

    def epoch_steps(self) -> IntArray | None:
        """The steps of training.local_epochs, [N]. Who has a step time has said its samples."""
        experiment = self._context.experiment
        if experiment.training.local_epochs is None:
            return None
        workers = range(experiment.workers)
        return epoch_steps_of(experiment, [self._samples.get(worker, 0) for worker in workers])

    def step_times(self) -> FloatArray:
        """Everyone's last step time, [N]."""
        times = np.full(self._context.experiment.workers, np.nan)
        for worker, member in self._context.conductor.members.items():
            times[worker] = member.step_time
        return times


def create_planner(
    experiment: Experiment, *, model_bytes: int, packed: bytes = b""
) -> NetworkPlanner:
    """A planner for models of this size, as new or as another coordinator packed it."""
    # The recorded world is a path that another machine may have named; plans do not need it.
    world = experiment.world.without_files()
    stage = planning_context(
        experiment.model_copy(update={"world": world}), model_bits=8.0 * model_bytes
    )
    synchronous = is_synchronous(stage.algorithm)
    planner: NetworkPlanner = RoundPlanner(stage) if synchronous else TurnPlanner(stage)
    if packed:
        planner.unpack(packed)
    return planner
