"""The optimizers of local training: settings, the state they keep for a worker, and one step.

The state is a part of the worker's row (params.py). The arithmetic is that of torch.optim.SGD and
AdamW; the gradient gets the proximal term of FedProx first, then it is clipped by its norm.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedhp.config import TrainingConfig
from fedhp.learn.params import (
    FIRST_MOMENT,
    PER_PARAMETER,
    SECOND_MOMENT,
    STATE_RESET,
    STEP_COUNT,
    VELOCITY,
    Replica,
)
from fedhp.rule import Vector

_CLIP_EPSILON = 1e-6  # that of torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True, slots=True)
class Optimizer:
    """How local steps turn gradients into changes; by default plain SGD."""

    adamw: bool = False
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float | None = None
    proximal: float = 0.0
    reset: bool = False  # the state becomes zero when a worker exchanges its model
    travels: bool = False  # the state is exchanged and mixed together with the model
    # Whether a step subtracts the gradient times the learning rate, and nothing else.
    is_plain: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        changes = self.adamw or self.momentum or self.weight_decay or self.proximal
        object.__setattr__(self, "is_plain", not changes and self.clip_norm is None)

    @classmethod
    def of(cls, training: TrainingConfig, momentum: float) -> Optimizer:
        """The optimizer of an experiment; momentum is that of its algorithm."""
        return cls(
            adamw=training.optimizer == "adamw",
            momentum=momentum,
            nesterov=training.nesterov,
            weight_decay=training.weight_decay,
            beta1=training.beta1,
            beta2=training.beta2,
            epsilon=training.epsilon,
            clip_norm=training.clip_norm,
            proximal=training.proximal,
            reset=training.optimizer_state == "reset",
            travels=training.optimizer_state == "mix",
        )

    @property
    def stacks(self) -> bool:
        """Whether many small models can be trained at once (stacked.py)."""
        return not self.adamw and not self.proximal and self.clip_norm is None

    @property
    def state(self) -> tuple[str, ...]:
        """What is kept for a worker, by the names of its columns."""
        if self.adamw:
            kept: tuple[str, ...] = (FIRST_MOMENT, SECOND_MOMENT, STEP_COUNT)
        else:
            kept = (VELOCITY,) if self.momentum else ()
        return (*kept, STATE_RESET) if kept and self.reset else kept

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The same as vectors of a worker's row. On another's model an optimizer begins again."""
        return tuple(
            Vector(name, scalar=name not in PER_PARAMETER, travels=self.travels, returning="start")
            for name in self.state
        )


PLAIN_SGD = Optimizer()


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a row, one for each trained one: by parameter, and all in one tensor."""

    parts: list[Tensor]
    together: Tensor

    def of(self, reached: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """The parts of these parameters; and the same in one tensor if these are all: what needs no
        gradient is then one operation instead of one for each parameter."""
        if len(reached) == len(self.parts):
            return self.parts, [self.together]
        parts = [self.parts[index] for index in reached]
        return parts, parts


class LocalSteps:
    """The steps of one training, on the row to which a replica is bound."""

    def __init__(self, optimizer: Optimizer, replica: Replica, learning_rate: float) -> None:
        self._optimizer = optimizer
        self._rate = learning_rate
        self._trained = replica.trained
        everything = replica.row[: replica.layout.trainable]
        self._weights = _Columns([tensor.data for tensor in replica.trained], everything)
        self._start = replica.views(everything.clone()) if optimizer.proximal else []
        self._state = {
            name: _Columns(replica.views(replica.carried(name)), replica.carried(name))
            for name in optimizer.state
            if name in PER_PARAMETER
        }
        self._counter = replica.carried(STEP_COUNT) if optimizer.adamw else None
        self._count = 0.0 if self._counter is None else float(self._counter)

    def take(self) -> None:
        """One step with the gradients that the parameters have now, which it may change. A
        parameter that the loss does not reach stays as it is, and so does its state."""
        gradients = [tensor.grad for tensor in self._trained]
        reached = [index for index, gradient in enumerate(gradients) if gradient is not None]
        slopes = [gradient for gradient in gradients if gradient is not None]
        if not slopes:
            return
        settings = self._optimizer
        if settings.proximal:
            weights, _ = self._weights.of(reached)
            moved = torch._foreach_sub(weights, [self._start[index] for index in reached])
            torch._foreach_add_(slopes, moved, alpha=settings.proximal)
        if settings.clip_norm is not None:
            total = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(slopes))))
            factor = settings.clip_norm / (total + _CLIP_EPSILON)
            torch._foreach_mul_(slopes, factor.clamp(max=1.0))
        if settings.adamw:
            self._adamw(slopes, reached)
        else:
            self._sgd(slopes, reached)

    def _sgd(self, slopes: list[Tensor], reached: list[int]) -> None:
        settings, rate = self._optimizer, self._rate
        weights, all_weights = self._weights.of(reached)
        if settings.weight_decay:
            torch._foreach_add_(slopes, weights, alpha=settings.weight_decay)
        if not settings.momentum:
            torch._foreach_add_(weights, slopes, alpha=-rate)
            return
        velocities, all_velocities = self._state[VELOCITY].of(reached)
        torch._foreach_mul_(all_velocities, settings.momentum)
        torch._foreach_add_(velocities, slopes)
        if settings.nesterov:
            torch._foreach_add_(slopes, velocities, alpha=settings.momentum)
            torch._foreach_add_(weights, slopes, alpha=-rate)
        else:
            torch._foreach_add_(all_weights, all_velocities, alpha=-rate)

    def _adamw(self, slopes: list[Tensor], reached: list[int]) -> None:
        settings, rate = self._optimizer, self._rate
        assert self._counter is not None
        self._count += 1.0
        self._counter.fill_(self._count)
        _, weights = self._weights.of(reached)
        firsts, all_firsts = self._state[FIRST_MOMENT].of(reached)
        seconds, all_seconds = self._state[SECOND_MOMENT].of(reached)
        torch._foreach_lerp_(firsts, slopes, 1 - settings.beta1)
        torch._foreach_mul_(all_seconds, settings.beta2)
        torch._foreach_addcmul_(seconds, slopes, slopes, value=1 - settings.beta2)
        if settings.weight_decay:
            torch._foreach_mul_(weights, 1 - rate * settings.weight_decay)
        scale = torch._foreach_sqrt(all_seconds)
        torch._foreach_div_(scale, (1 - settings.beta2**self._count) ** 0.5)
        torch._foreach_add_(scale, settings.epsilon)
        step = rate / (1 - settings.beta1**self._count)
        torch._foreach_addcdiv_(weights, all_firsts, scale, value=-step)
