"""The only module that uses fedhp: builds experiments and drives the engine round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.work import BATCH, DEGREE, LEARNING_RATE, SEED, TEST_IMAGES, data_file
from fedhp.algorithms import Algorithm, Federation, Observation, load_algorithm
from fedhp.config import parse
from fedhp.engine.prepare import prepare
from fedhp.engine.sharded import LocalExecutor
from fedhp.exchange import NeighborMixing
from fedhp.graph import base_topology, mixing_weights
from fedhp.learn.mix import mix
from fedhp.timing import Network
from fedhp.types import FloatArray, LinkVerdict, Plan, Reports

MODELS = {"cnn": {"name": "cnn"}, "mlp": {"name": "mlp", "hidden": [128]}}


class Ours:
    """An experiment whose rounds are driven from here: the same steps for every algorithm."""

    def __init__(
        self,
        model: str,
        folder: Path,
        *,
        workers: int,
        executors: int,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        regular = {"name": "random_regular", "degree": DEGREE}
        experiment = parse(
            {
                "workers": workers,
                "rounds": 1_000_000,
                "seed": SEED,
                "device": "cpu",
                "executors": executors,
                "algorithm": {"name": "dpsgd"},
                "model": MODELS.get(model, {"name": model}),
                "topology": regular if workers > DEGREE else {"name": "full"},
                "data": {
                    "name": "npz",
                    "path": str(data_file(folder, model)),
                    "standardize": False,
                    "partition": "iid",
                },
                "training": {
                    "batch_size": BATCH,
                    "learning_rate": LEARNING_RATE,
                    **(training or {}),
                },
                "evaluation": {"images": TEST_IMAGES},
            }
        )
        prepared = prepare(experiment)
        self.engine = LocalExecutor(prepared)
        self.parameters = prepared.layout.trainable
        self._exchange = NeighborMixing(prepared.federation.base_topology)
        self._round = 0

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def train(self, local_steps: list[int], *, estimates: bool = False) -> float:
        """Local steps of all workers; the mean loss."""
        self._round += 1
        results = self.engine.train(
            np.array(local_steps, dtype=np.int64),
            round_index=self._round,
            learning_rate=LEARNING_RATE,
        )
        if estimates:
            # Like FedHP after round 1: ten of thirty workers measure, in turn.
            chosen = np.arange(len(local_steps)) < -(-len(local_steps) // 3)
            self.engine.estimate(chosen, round_index=self._round)
        return float(np.nanmean(results.loss))

    def exchange(self) -> None:
        """Distances on the links, then mixing; the mixed models are used in the next round."""
        self._exchange.carry_out(self.engine, round_index=self._round)
        self.engine.advance()

    def round(self, local_steps: list[int], *, estimates: bool = False) -> float:
        """One whole round; the mean loss."""
        loss = self.train(local_steps, estimates=estimates)
        self.exchange()
        return loss

    def evaluate(self) -> float:
        """Test every worker's model and their mean; the mean accuracy."""
        return float(self.engine.evaluate().accuracy.mean())

    def evaluate_mean(self) -> float:
        """Test only the mean model, like a side with one global model; its accuracy."""
        shard = self.engine.shard
        mean = (shard.tester.sum_models(None) / len(shard.rows.workers)).astype(np.float32)
        [tested] = shard.tester.evaluate(mean, everyone=False)
        return tested.metric


def mixing(workers: int, parameters: int, *, threads: int) -> Callable[[], torch.Tensor]:
    """A call that mixes random rows over a random regular graph once, with so many executors."""
    settings = {"degree": DEGREE}
    topology = base_topology("random_regular", settings, workers=workers, seed=SEED)
    weights = mixing_weights(topology, "max_degree")
    torch.set_num_threads(1)
    rows = torch.randn(workers, parameters)
    out = torch.empty_like(rows)

    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def once() -> torch.Tensor:
        mix(rows, weights, mixed=parameters, out=out, run=map if threads == 1 else pool.map)
        return out

    return once


@dataclass(frozen=True, slots=True)
class PlanBenchmark:
    """A call that plans a later round of FedHP, with the numbers of links and of cut links."""

    once: Callable[[], Plan]
    links: int
    cut: int


def planning(workers: int) -> PlanBenchmark:
    """Round 3 of FedHP on a full mesh: all distances are known, and the bound allows many cuts."""
    rng = np.random.default_rng([SEED, workers])
    algorithm = load_algorithm("fedhp", {})
    assert isinstance(algorithm, Algorithm)
    base = base_topology("full", {}, workers=workers, seed=SEED)
    state = algorithm.start(
        Federation(workers=workers, rounds=100, seed=SEED, local_steps=30, base_topology=base)
    )
    points = rng.standard_normal((workers, 16))
    # With half the mean distance the bound binds midway, after many links were cut.
    distances = np.linalg.norm(points[base.links[:, 0]] - points[base.links[:, 1]], axis=1)
    norm = float(distances.mean())
    step_time = rng.choice([0.05, 0.1, 0.2], workers) * rng.uniform(0.8, 1.2, workers)
    missing = np.full(workers, np.nan)

    def observe(round_index: int) -> Observation:
        megabytes = np.random.default_rng([SEED, workers, round_index]).uniform(1, 10, workers)
        return Observation(
            round_index=round_index,
            clock=10.0 * round_index,
            learning_rate=0.1,
            available=np.ones(workers, dtype=np.bool_),
            network=Network(bandwidth=8e6 * megabytes, model_bits=54e6),
        )

    def report(round_index: int, links: Any) -> Reports:
        measured = np.linalg.norm(points[links[:, 0]] - points[links[:, 1]], axis=1)
        first = round_index == 0
        norms: FloatArray = missing if first else np.full(workers, norm)
        return Reports(
            round_index=round_index,
            step_time=step_time,
            update_norm=norms,
            links=links[:0] if first else links,
            distance=measured[:0] if first else measured,
            smoothness=missing if first else np.full(workers, 5.0),
            gradient_variance=missing if first else np.full(workers, 2.0),
            start_loss=missing if first else np.full(workers, 4.1),
            selected=np.empty((workers, 0), dtype=np.int64),
        )

    state, plan = algorithm.plan(state, observe(1), report(0, base.links))
    for round_index in (1, 2):
        assert isinstance(plan.exchange, NeighborMixing)
        reports = report(round_index, plan.exchange.topology.links)
        observation, before = observe(round_index + 1), state
        state, plan = algorithm.plan(before, observation, reports)
    cut = int((plan.decision.verdicts == LinkVerdict.CUT).sum())
    return PlanBenchmark(
        once=lambda: algorithm.plan(before, observation, reports)[1],
        links=len(base.links),
        cut=cut,
    )
