"""gossipy: the same model, batches and local steps; one push per node and round, merged.

With a directed ring, every node receives exactly one model per round and takes exactly its own
number of steps. Prints seconds per round and per evaluation of all nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

# gossipy imports torchvision for data sets that are not used here.
sys.modules["torchvision"] = types.ModuleType("torchvision")

from gossipy import LOG, set_seed
from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
from gossipy.model import TorchModel
from gossipy.model.handler import TorchModelHandler
from gossipy.node import GossipNode
from gossipy.simul import GossipSimulator, SimulationEventReceiver

from bench.work import (
    BATCH,
    LEARNING_RATE,
    SEED,
    SHARE,
    WORKERS,
    local_steps,
    plain_model,
    read_data,
)


class Network(TorchModel):  # type: ignore[misc]
    """The plain model with gossipy's interface."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.layers = plain_model(model)

    def init_weights(self) -> None:
        """Keep torch's initial values."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.layers(inputs)
        return logits


class Tests:
    """The test images, given to the simulator only after its last round; notes the times."""

    def __init__(self, data: tuple[torch.Tensor, torch.Tensor], *, rounds: int) -> None:
        self.data = data
        self.rounds_left = rounds
        self.asked: list[float] = []

    def has_test(self) -> bool:
        """Asked once at the end of every round."""
        self.asked.append(time.perf_counter())
        self.rounds_left -= 1
        return self.rounds_left == 0

    def get_eval_set(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The test images of all nodes."""
        return self.data


class Evaluations(SimulationEventReceiver):  # type: ignore[misc]
    """Notes the time and the accuracy of the evaluation."""

    def __init__(self) -> None:
        self.done = float("nan")
        self.accuracy = float("nan")

    def update_message(self, failed: bool, msg: Any = None) -> None:
        """Nothing to note."""

    def update_evaluation(self, round: int, on_user: bool, evaluation: list[Any]) -> None:
        """All nodes were tested."""
        self.done = time.perf_counter()
        self.accuracy = float(np.mean([result["accuracy"] for result in evaluation]))

    def update_end(self) -> None:
        """Nothing to note."""

    def update_timestep(self, t: int) -> None:
        """Nothing to note."""


def main() -> int:
    """One round to warm up, then measured rounds, then one evaluation of all nodes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    LOG.setLevel("ERROR")
    set_seed(SEED)  # gossipy ignores the seeds that its calls take
    arrays = read_data(arguments.data, arguments.model)
    ring = StaticP2PNetwork(WORKERS, np.roll(np.eye(WORKERS), 1, axis=1))
    prototype = Network(arguments.model)
    nodes = {}
    for worker, steps in enumerate(local_steps(arguments.model)):
        own = slice(worker * SHARE, worker * SHARE + steps * BATCH)  # one epoch is this many steps
        handler = TorchModelHandler(
            net=prototype,
            optimizer=torch.optim.SGD,
            optimizer_params={"lr": LEARNING_RATE},
            criterion=torch.nn.CrossEntropyLoss(),
            local_epochs=1,
            batch_size=BATCH,
            create_model_mode=CreateModelMode.MERGE_UPDATE,
        )
        data = ((arrays.x_train[own], arrays.y_train[own]), None)
        nodes[worker] = GossipNode(worker, data, 1, handler, ring)
    tests = Tests((arrays.x_test, arrays.y_test), rounds=arguments.rounds + 1)
    simulator = GossipSimulator(nodes, tests, 1, AntiEntropyProtocol.PUSH)
    watch = Evaluations()
    simulator.add_receiver(watch)
    for node in nodes.values():
        node.init_model(local_train=False)
    simulator.initialized = True
    simulator.start(arguments.rounds + 1)
    print()  # gossipy's progress bar does not end its line
    result = {
        "round": (tests.asked[-1] - tests.asked[0]) / arguments.rounds,
        "evaluation": watch.done - tests.asked[-1],
        "accuracy": watch.accuracy,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
