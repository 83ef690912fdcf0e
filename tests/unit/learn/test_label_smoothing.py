"""Label smoothing against torch's cross-entropy: steps and losses, one model at a time and
stacked; tests and estimators have the plain loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedhp.config import parse, to_tables
from fedhp.engine.prepare import prepare
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.learn.local import train
from fedhp.learn.optimizer import Optimizer
from fedhp.learn.params import Replica, layout_of
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

SMOOTHING = 0.2
RATE = 0.1


@pytest.mark.parametrize("hidden", [(), (9, 7)])
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_equal_those_of_torch(
    hidden: tuple[int, ...], stacked: bool, momentum: float
) -> None:
    module, data = network(hidden), samples()
    settings = Optimizer(momentum=momentum)
    layout = layout_of(module, batch_norm="mixed", vectors=settings.vectors)
    rows = start(module, layout)
    rows[:, layout.state] = 0.0
    before = rows.clone()
    batches = batches_of([3, 1, 4, 2, 5, 1, 2])
    if stacked:
        losses = (
            stack_of(module, layout)
            .train(
                rows,
                list(range(WORKERS)),
                data,
                batches=batches,
                rates=torch.full((WORKERS,), RATE),
                stop=lambda: False,
                optimizer=settings,
                velocity=layout.state.start,
                label_smoothing=SMOOTHING,
            )
            .tolist()
        )
    else:
        losses = []
        for worker in range(WORKERS):
            replica = Replica(module, layout)
            replica.bind(rows[worker], NONE)
            losses.append(
                train(
                    replica,
                    task(),
                    data,
                    batches=batches[worker],
                    learning_rate=RATE,
                    stop=lambda: False,
                    optimizer=settings,
                    label_smoothing=SMOOTHING,
                )
            )
    for worker in range(WORKERS):
        reference = Replica(network(hidden), layout)
        reference.bind(before[worker].clone(), NONE)
        optimizer = torch.optim.SGD(reference.module.parameters(), lr=RATE, momentum=momentum)
        expected = []
        for batch in batches[worker]:
            optimizer.zero_grad()
            outputs = reference.module(data.inputs[batch])
            loss = functional.cross_entropy(outputs, data.targets[batch], label_smoothing=SMOOTHING)
            torch.autograd.backward(loss)
            optimizer.step()
            expected.append(loss.item())
        parameters = torch.cat([p.detach().reshape(-1) for p in reference.module.parameters()])
        trained = rows[worker, : layout.trainable]
        torch.testing.assert_close(trained, parameters, rtol=1e-5, atol=1e-6)
        assert losses[worker] == pytest.approx(np.mean(expected), rel=1e-5)


def test_only_training_is_smoothed() -> None:
    """The first estimates and the tests are those of a run without; the training loss is not."""
    results = {}
    for smoothing in (0.0, 0.3):
        engine = LocalExecutor(
            prepare(
                parse(
                    {
                        "workers": 3,
                        "training": {"label_smoothing": smoothing, "local_steps": 1},
                        "evaluation": {"images": 50},
                        "executors": 1,
                    }
                )
            )
        )
        tested = [score.loss for score in engine.shard.tester.evaluate()]
        training = engine.train(np.array([1, 1, 1]), round_index=1, learning_rate=0.1)
        estimates = engine.estimate(np.array([True] * 3), round_index=1)
        results[smoothing] = (tested, training.loss.tolist(), estimates.start_loss.tolist())
        engine.close()
    plain, smoothed = results[0.0], results[0.3]
    assert plain[0] == smoothed[0]
    assert plain[1] != smoothed[1]
    assert plain[2] == smoothed[2]


def test_other_tasks_and_values_are_refused() -> None:
    own = {"task": {"name": "unit.learn.tasks:Doubling"}, "training": {"label_smoothing": 0.1}}
    with pytest.raises(ConfigError, match="loss of its own") as caught:
        prepare(parse(own))
    assert caught.value.key == "training.label_smoothing"
    for value in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=r"training\.label_smoothing"):
            parse({"training": {"label_smoothing": value}})
    assert "label_smoothing" not in to_tables(parse({}))["training"]
