"""Flower: FedAvg over the same clients on Ray, two client actors with one torch thread each.

Prints wall seconds per round and per evaluation of the global model. Ray's start-up and
the first round are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_DEDUP_LOGS="0",
    OMP_NUM_THREADS="1",
)

import torch
from flwr.client import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from bench.peers.flower_client import Client, Weights, load, weights_of
from bench.work import BATCH, SEED, WORKERS, plain_model, read_data

ACTORS = 2


class StrictFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that stops when a client failed: Flower would continue without it, and be faster."""

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """The average of all clients, or no result at all."""
        if len(results) != WORKERS:
            raise RuntimeError(f"{len(failures)} clients failed, the first: {failures[:1]}")
        return super().aggregate_fit(server_round, results, failures)


class RoundTimer:
    """Notes when rounds end, and evaluates the global model after the last one."""

    def __init__(self, folder: str, model: str, *, last: int) -> None:
        self.arrays, self.module = read_data(Path(folder), model), plain_model(model)
        self.last = last
        self.ends: dict[int, float] = {}
        self.evaluated = float("nan")
        self.accuracy = float("nan")

    def __call__(self, server_round: int, weights: Weights, config: Any) -> Any:
        """Called by FedAvg at the end of every round (and as round 0 before the first)."""
        self.ends[server_round] = time.perf_counter()
        if server_round != self.last:
            return None
        torch.set_num_threads(ACTORS)  # the actors are idle now
        load(self.module, weights)
        with torch.inference_mode():
            batches = zip(
                torch.split(self.arrays.x_test, BATCH),
                torch.split(self.arrays.y_test, BATCH),
                strict=True,
            )
            correct = sum(int((self.module(x).argmax(1) == y).sum()) for x, y in batches)
        self.accuracy = correct / len(self.arrays.y_test)
        self.evaluated = time.perf_counter() - self.ends[server_round]
        return 0.0, {"accuracy": self.accuracy}


def main() -> int:
    """One round to warm up, then measured rounds, then one evaluation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    folder, model = str(arguments.data), arguments.model
    last = arguments.rounds + 1
    torch.manual_seed(SEED)
    timer = RoundTimer(folder, model, last=last)
    strategy = StrictFedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=WORKERS,
        min_available_clients=WORKERS,
        accept_failures=False,
        initial_parameters=ndarrays_to_parameters(weights_of(plain_model(model))),
        evaluate_fn=timer,
    )

    def server(context: Any) -> Any:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=last))

    def client(context: Any) -> Any:
        return Client(int(context.node_config["partition-id"]), folder, model).to_client()

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=WORKERS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": ACTORS,
                "include_dashboard": False,
                "logging_level": "error",
                "log_to_driver": False,
            },
        },
    )
    if last not in timer.ends:
        print("Flower ended before its last round", file=sys.stderr)
        return 1
    result = {
        "round": (timer.ends[last] - timer.ends[1]) / arguments.rounds,
        "evaluation": timer.evaluated,
        "accuracy": timer.accuracy,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
