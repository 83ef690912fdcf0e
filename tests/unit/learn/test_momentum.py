"""Local momentum against torch.optim.SGD, one model at a time and stacked, and across rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedhp
from fedhp.config import parse, to_tables
from fedhp.engine.local import LocalExecutor
from fedhp.engine.memory import plan_memory
from fedhp.engine.prepare import prepare
from fedhp.learn.local import train
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

MOMENTUM = 0.9


def by_torch(module: nn.Module, picks: torch.Tensor, rate: float, buffers: dict[Any, Any]) -> None:
    """Steps of torch's optimizer, which continues with the buffers of the last call."""
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=MOMENTUM)
    optimizer.state.update(buffers)
    data = samples()
    for batch in picks:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(data.inputs[batch]), data.targets[batch])
        torch.autograd.backward(loss)
        optimizer.step()
    buffers.update(optimizer.state)


@pytest.mark.parametrize("hidden", [(), (9, 7)])
@pytest.mark.parametrize("stacked", [True, False])
def test_steps_equal_those_of_torch(hidden: tuple[int, ...], stacked: bool) -> None:
    """Ragged steps in three trainings: the velocity is kept from one to the next."""
    module = network(hidden)
    layout = layout_of(module, batch_norm="mixed")
    rows = start(module, layout)
    velocity = torch.zeros(WORKERS, layout.trainable)
    references = []
    for worker in range(WORKERS):
        replica = Replica(network(hidden), layout)
        replica.bind(rows[worker].clone(), NONE)
        references.append((replica.module, dict[Any, Any]()))
    rates = torch.linspace(0.01, 0.05, WORKERS)
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
                momentum=MOMENTUM,
                velocity=velocity,
            )
        for worker in range(WORKERS):
            rate = float(rates[worker])
            if not stacked:
                replica = Replica(module, layout)
                replica.bind(rows[worker], NONE)
                train(
                    replica,
                    task(),
                    samples(),
                    batches=batches[worker],
                    learning_rate=rate,
                    stop=lambda: False,
                    momentum=MOMENTUM,
                    velocity=velocity[worker],
                )
            reference, buffers = references[worker]
            by_torch(reference, batches[worker], rate, buffers)
            expected = torch.cat([p.detach().reshape(-1) for p in reference.parameters()])
            torch.testing.assert_close(rows[worker], expected, rtol=1e-6, atol=1e-6)
            moving = [buffers[p]["momentum_buffer"].reshape(-1) for p in reference.parameters()]
            torch.testing.assert_close(velocity[worker], torch.cat(moving), rtol=1e-5, atol=1e-6)


def tables(algorithm: str, **training: Any) -> dict[str, Any]:
    return {
        "workers": 4,
        "rounds": 6,
        "algorithm": {"name": algorithm},
        "training": {"local_steps": 2, "momentum": MOMENTUM, "learning_rate": 0.02, **training},
        "evaluation": {"images": 30},
        "checkpoint": {"seconds": 0.0},
    }


@pytest.mark.parametrize("algorithm", ["dpsgd", "adpsgd"])
def test_a_resumed_run_has_the_same_velocities(tmp_path: Path, algorithm: str) -> None:
    experiment = fedhp.make_experiment(tables(algorithm))
    with fedhp.run(experiment, tmp_path / "whole") as whole:
        digest = whole.digest()
    for record in fedhp.start(experiment, tmp_path / "run").rounds():
        if record.round_index == 3:
            break
    with fedhp.run(experiment, tmp_path / "run", resume=True) as resumed:
        assert resumed.digest() == digest
    plain = tables(algorithm)
    del plain["training"]["momentum"]
    with fedhp.run(fedhp.make_experiment(plain), tmp_path / "plain") as without:
        assert without.digest() != digest


@pytest.mark.parametrize("algorithm", ["dpsgd", "adpsgd"])
def test_velocities_do_not_depend_on_kernel_or_shards(algorithm: str) -> None:
    """And stay at home: a round that is given up does not move them."""
    from fedhp.engine.runs.run import loop_of

    models = []
    for shards, kernel in ((1, "auto"), (2, "auto"), (1, "worker")):
        prepared = prepare(parse(tables(algorithm, kernel=kernel, mixing="ordered")))
        executor = LocalExecutor(prepared, shards=shards)
        for _, _ in zip(range(3), loop_of(executor).rounds(), strict=False):
            pass
        state = executor.state()
        models.append((state["models"].copy(), state["velocity"].copy()))
        if algorithm == "dpsgd":
            executor.train(np.full(4, 2), round_index=9, learning_rate=0.1)
            assert (executor.state()["velocity"] == models[-1][1]).all()
        executor.close()
    for model, velocity in models[1:]:
        np.testing.assert_allclose(model, models[0][0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(velocity, models[0][1], rtol=1e-3, atol=1e-4)
    assert (models[1][0] == models[0][0]).all()


def test_without_momentum_nothing_is_kept() -> None:
    experiment = parse({**tables("dpsgd"), "training": {"local_steps": 2}})
    assert "momentum" not in to_tables(experiment)["training"]
    executor = LocalExecutor(prepare(experiment))
    assert executor.shard.velocity is None
    assert "velocity" not in executor.state()
    executor.close()
    facts: dict[str, Any] = {"model_size": 10**6, "data_bytes": 0, "executors": 1}
    plain = plan_memory(experiment, asynchronous=False, **facts)
    moving = plan_memory(experiment, asynchronous=False, extra_state=1, **facts)
    assert moving.models - plain.models == 2 * 4 * 10**6 * 4
