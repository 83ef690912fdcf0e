"""The obvious implementation: a module per worker, torch.optim.SGD, Python loops over neighbors."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from bench.work import BATCH, DEGREE, LEARNING_RATE, SEED, SHARE, Arrays, plain_model


class NaiveFederation:
    """Workers with a module and an optimizer each."""

    def __init__(self, model: str, arrays: Arrays, *, workers: int) -> None:
        torch.manual_seed(SEED)
        self.arrays = arrays
        self.modules = [plain_model(model) for _ in range(workers)]
        for module in self.modules[1:]:
            module.load_state_dict(self.modules[0].state_dict())
        self.optimizers = [
            torch.optim.SGD(module.parameters(), lr=LEARNING_RATE) for module in self.modules
        ]
        self.criterion = nn.CrossEntropyLoss()
        self.neighbors = regular_neighbors(workers, DEGREE) if workers > DEGREE else []

    def train(self, worker: int, steps: int) -> float:
        """Local SGD; the last loss."""
        module, optimizer = self.modules[worker], self.optimizers[worker]
        module.train()
        loss = torch.tensor(torch.nan)
        for _ in range(steps):
            index = worker * SHARE + torch.randint(SHARE, (BATCH,))
            optimizer.zero_grad()
            loss = self.criterion(module(self.arrays.x_train[index]), self.arrays.y_train[index])
            loss.backward()
            optimizer.step()
        return loss.item()

    def mix(self) -> None:
        """Average every parameter over the worker and its neighbors."""
        states = [module.state_dict() for module in self.modules]
        weight = 1 / (DEGREE + 1)
        with torch.no_grad():
            mixed = [
                {
                    name: weight * (own[name] + sum(states[j][name] for j in self.neighbors[i]))
                    for name in own
                }
                for i, own in enumerate(states)
            ]
        for module, state in zip(self.modules, mixed, strict=True):
            module.load_state_dict(state)

    def round(self, local_steps: list[int]) -> float:
        """All workers train, then all mix; the mean of the last losses."""
        losses = [self.train(worker, steps) for worker, steps in enumerate(local_steps)]
        self.mix()
        return sum(losses) / len(losses)

    def evaluate(self, worker: int) -> float:
        """Accuracy on the test images, in batches of 32."""
        module = self.modules[worker]
        module.eval()
        correct = 0
        with torch.no_grad():
            for start in range(0, len(self.arrays.x_test), BATCH):
                batch = slice(start, start + BATCH)
                predicted = module(self.arrays.x_test[batch]).argmax(dim=1)
                correct += int((predicted == self.arrays.y_test[batch]).sum())
        return correct / len(self.arrays.x_test)


def regular_neighbors(workers: int, degree: int) -> list[list[int]]:
    """A ring of workers in random order, each linked to the nearest degree / 2 on both sides."""
    order = list(range(workers))
    random.Random(SEED).shuffle(order)
    positions = {worker: position for position, worker in enumerate(order)}
    reach = [shift for shift in range(-degree // 2, degree // 2 + 1) if shift]
    return [[order[(positions[i] + s) % workers] for s in reach] for i in range(workers)]


def mix_rows(rows: Tensor, neighbors: list[list[int]], weight: float, out: Tensor) -> None:
    """out_i = w * (x_i + sum over neighbors x_j), one neighbor at a time."""
    for worker, peers in enumerate(neighbors):
        total = weight * rows[worker]
        for neighbor in peers:
            total += weight * rows[neighbor]
        out[worker] = total
