"""Every optimizer against torch.optim, step by step: one model at a time and stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedhp.learn.local import train
from fedhp.learn.optimizer import PLAIN_SGD, Optimizer
from fedhp.learn.params import (
    FIRST_MOMENT,
    SECOND_MOMENT,
    STEP_COUNT,
    VELOCITY,
    Layout,
    Replica,
    layout_of,
)
from unit.learn.test_stacked import (
    NONE,
    WORKERS,
    batches_of,
    network,
    samples,
    stack_of,
    start,
    task,
)

MakeTorch = Callable[[Iterator[nn.Parameter], float], torch.optim.Optimizer]


def sgd(**settings: Any) -> MakeTorch:
    return lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, **settings)


def adamw(**settings: Any) -> MakeTorch:
    return lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate, **settings)


CASES: dict[str, tuple[Optimizer, MakeTorch]] = {
    "sgd": (PLAIN_SGD, sgd()),
    "decay": (Optimizer(weight_decay=0.3), sgd(weight_decay=0.3)),
    "momentum": (Optimizer(momentum=0.9), sgd(momentum=0.9)),
    "momentum, decay": (
        Optimizer(momentum=0.8, weight_decay=0.3),
        sgd(momentum=0.8, weight_decay=0.3),
    ),
    "nesterov": (Optimizer(momentum=0.9, nesterov=True), sgd(momentum=0.9, nesterov=True)),
    "nesterov, decay": (
        Optimizer(momentum=0.9, nesterov=True, weight_decay=0.3),
        sgd(momentum=0.9, nesterov=True, weight_decay=0.3),
    ),
    "clip": (Optimizer(clip_norm=0.3), sgd()),
    "clip, momentum, decay": (
        Optimizer(momentum=0.9, weight_decay=0.1, clip_norm=0.3),
        sgd(momentum=0.9, weight_decay=0.1),
    ),
    "adamw": (Optimizer(adamw=True), adamw(weight_decay=0.0)),
    "adamw, all": (
        Optimizer(adamw=True, weight_decay=0.5, beta1=0.8, beta2=0.95, epsilon=1e-5, clip_norm=0.3),
        adamw(weight_decay=0.5, betas=(0.8, 0.95), eps=1e-5),
    ),
}
STACKED = [name for name, (optimizer, _) in CASES.items() if optimizer.stacks]
OF_TORCH = {VELOCITY: "momentum_buffer", FIRST_MOMENT: "exp_avg", SECOND_MOMENT: "exp_avg_sq"}


class Reference:
    """One worker that torch trains."""

    def __init__(self, module: nn.Module, row: Tensor, layout: Layout, make: MakeTorch) -> None:
        self.module = module
        Replica(module, layout).bind(row.clone(), NONE)
        self.optimizer = make(module.parameters(), 1.0)

    def train(self, picks: Tensor, rate: float, clip_norm: float | None) -> None:
        self.optimizer.param_groups[0]["lr"] = rate
        data = samples()
        for batch in picks:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.module(data.inputs[batch]), data.targets[batch])
            torch.autograd.backward(loss)
            if clip_norm is not None:
                norm = nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm)
                assert norm > clip_norm  # else the case would not show anything
            self.optimizer.step()

    def columns(self, kept: str | None = None) -> Tensor:
        """The parameters, or what the optimizer keeps for each, as one vector."""
        parts = [
            parameter.detach() if kept is None else self.optimizer.state[parameter][kept]
            for parameter in self.module.parameters()
        ]
        return torch.cat([part.reshape(-1) for part in parts])


def state_layout(module: nn.Module, optimizer: Optimizer) -> Layout:
    return layout_of(module, batch_norm="mixed", vectors=optimizer.vectors)


def fresh(module: nn.Module, layout: Layout) -> Tensor:
    """Different models, whose optimizers begin."""
    rows = start(module, layout)
    rows[:, layout.state] = 0.0
    return rows


def train_one(
    module: nn.Module, layout: Layout, row: Tensor, picks: Tensor, rate: float, kind: Optimizer
) -> None:
    replica = Replica(module, layout)
    replica.bind(row, NONE)
    train(
        replica,
        task(),
        samples(),
        batches=picks,
        learning_rate=rate,
        stop=lambda: False,
        optimizer=kind,
    )


@pytest.mark.parametrize("hidden", [(), (9, 7)])
@pytest.mark.parametrize(
    ("name", "stacked"), [*((n, False) for n in CASES), *((n, True) for n in STACKED)]
)
def test_steps_equal_those_of_torch(hidden: tuple[int, ...], name: str, stacked: bool) -> None:
    """Ragged steps in three trainings: the state is kept from one to the next."""
    optimizer, make = CASES[name]
    module = network(hidden)
    layout = state_layout(module, optimizer)
    rows = fresh(module, layout)
    references = [Reference(network(hidden), row, layout, make) for row in rows]
    rates = torch.linspace(0.01, 0.05, WORKERS)
    velocity = layout.columns(VELOCITY)
    for round_index in range(3):
        batches = batches_of([(worker + round_index) % 4 + 1 for worker in range(WORKERS)])
        if stacked:
            stack_of(module, layout).train(
                rows,
                list(range(WORKERS)),
                samples(),
                batches=batches,
                rates=rates,
                stop=lambda: False,
                optimizer=optimizer,
                velocity=0 if velocity is None else velocity.start,
            )
        for worker, reference in enumerate(references):
            rate, row = float(rates[worker]), rows[worker]
            if not stacked:
                train_one(module, layout, row, batches[worker], rate, optimizer)
            reference.train(batches[worker], rate, optimizer.clip_norm)
            expected = reference.columns()
            torch.testing.assert_close(row[: layout.trainable], expected, rtol=1e-6, atol=1e-6)
            for slot in layout.carried:
                kept = row[slot.start : slot.stop]
                if slot.vector.name == STEP_COUNT:
                    states = reference.optimizer.state.values()
                    assert {float(kept)} == {float(state["step"]) for state in states}
                else:
                    of_torch = reference.columns(OF_TORCH[slot.vector.name])
                    torch.testing.assert_close(kept, of_torch, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_proximal_term_is_that_of_fedprox(momentum: float) -> None:
    """Against the loss of FedProx itself: f(x) + mu/2 ||x - x_start||^2."""
    mu, rate = 0.7, 0.05
    module = network((9,))
    optimizer = Optimizer(proximal=mu, momentum=momentum)
    layout = state_layout(module, optimizer)
    row = fresh(module, layout)[0]
    reference = Reference(network((9,)), row, layout, sgd(momentum=momentum))
    reference.optimizer.param_groups[0]["lr"] = rate
    parameters = list(reference.module.parameters())
    data = samples()
    plain = row.clone()
    for steps in (4, 3):  # the second training starts elsewhere
        [picks] = batches_of([steps])
        begin = [parameter.detach().clone() for parameter in parameters]
        for batch in picks:
            reference.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                reference.module(data.inputs[batch]), data.targets[batch]
            )
            for parameter, first in zip(parameters, begin, strict=True):
                loss = loss + mu / 2 * (parameter - first).square().sum()
            torch.autograd.backward(loss)
            reference.optimizer.step()
        train_one(module, layout, row, picks, rate, optimizer)
        train_one(module, layout, plain, picks, rate, Optimizer(momentum=momentum))
        trained = row[: layout.trainable]
        torch.testing.assert_close(trained, reference.columns(), rtol=1e-6, atol=1e-6)
        assert not torch.allclose(trained, plain[: layout.trainable], atol=1e-4)


class Detour(nn.Module):
    """Its second layer is used by some batches only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 5)
        self.second = nn.Linear(5, 5)
        self.used = False

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.first(inputs.flatten(1))
        return self.second(outputs) if self.used else outputs


@pytest.mark.parametrize("name", ["momentum", "nesterov, decay", "clip", "adamw, all"])
def test_a_parameter_that_the_loss_does_not_reach_stays_as_it_is(name: str) -> None:
    optimizer, _ = CASES[name]
    module = Detour()
    layout = state_layout(module, optimizer)
    row = torch.zeros(layout.width)
    Replica(module, layout).bind(row, NONE)
    nn.init.normal_(module.first.weight)
    nn.init.normal_(module.second.weight)
    unreached = [
        slice(begin + slot.start, begin + slot.stop)
        for begin in [0, *(part.start for part in layout.carried if part.vector.name in OF_TORCH)]
        for slot in layout.slots
        if slot.name.startswith("second")
    ]
    data = torch.randn(8, 12), torch.randint(0, 5, (8,))
    replica = Replica(module, layout)
    for used in (True, False):
        module.used = used
        replica.bind(row, NONE)
        before = row.clone()
        inputs = type(samples())(*data)
        train(
            replica,
            task(),
            inputs,
            batches=torch.arange(8).view(2, 4),
            learning_rate=0.05,
            stop=lambda: False,
            optimizer=optimizer,
        )
        assert (row[layout.slots[0].start : layout.slots[0].stop] != before[: 12 * 5]).any()
        changed = [bool((row[part] != before[part]).any()) for part in unreached]
        assert changed == [used] * len(unreached)


def test_columns_of_the_state() -> None:
    module = network((9,))
    trained = layout_of(module, batch_norm="mixed").trainable
    plain = state_layout(module, PLAIN_SGD)
    assert (plain.width, plain.mixed, plain.state) == (trained, trained, slice(trained, trained))
    at_home = state_layout(module, Optimizer(momentum=0.9))
    assert (at_home.mixed, at_home.tested, at_home.width) == (trained, trained, 2 * trained)
    assert at_home.state == slice(trained, 2 * trained)
    moments = Optimizer(adamw=True, travels=True)
    travels = layout_of(module, batch_norm="mixed", vectors=moments.vectors)
    assert travels.mixed == travels.width == 3 * trained + 1
    assert (travels.module_columns, travels.tested) == (trained, trained)
    normed = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4))
    for batch_norm, statistics in (("mixed", 8), ("local", 0)):
        both = layout_of(normed, batch_norm=batch_norm, vectors=moments.vectors)
        assert both.mixed == 3 * both.trainable + 1 + statistics
        assert both.tested == both.width == 3 * both.trainable + 1 + 8
        assert both.state == slice(both.trainable, 3 * both.trainable + 1)
