"""One measurement in its own process: warm up, measure, print one line of JSON.

python -m bench.measurements NAME --data FOLDER [--threads N] [--model M] [--workers N] [--quick]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from bench.hardware import copy_bandwidth, gemm_peak
from bench.naive import NaiveFederation, mix_rows, regular_neighbors
from bench.work import DEGREE, TEST_IMAGES, WORKERS, local_steps, read_data

CNN_PARAMETERS = 1_690_046
DEFAULT_STEPS = 30  # training.local_steps of an experiment that sets none

Result = dict[str, float]
T = TypeVar("T")


def main() -> int:
    """Run the measurement that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.measurements")
    parser.add_argument("name", choices=sorted(MEASUREMENTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(json.dumps(MEASUREMENTS[arguments.name](arguments)))
    return 0


def gemm(arguments: argparse.Namespace) -> Result:
    """The fp32 GEMM peak."""
    seconds = 1.5 if arguments.quick else 3.0
    return gemm_peak(threads=arguments.threads, seconds=seconds)


def bandwidth(arguments: argparse.Namespace) -> Result:
    """The memory bandwidth of a big copy."""
    seconds = 1.0 if arguments.quick else 2.0
    return copy_bandwidth(threads=arguments.threads, seconds=seconds)


def ours_steps(arguments: argparse.Namespace) -> Result:
    """CPU seconds of one training step through the engine, one executor."""
    from bench.ours import Ours

    steps = 20 if arguments.quick else 60
    with Ours(arguments.model, arguments.data, workers=2, executors=1) as ours:
        ours.train([10, 0])
        spent, loss = _once(lambda: ours.train([steps, 0]), time.process_time)
    return {"seconds": spent / steps, "loss": loss}


def naive_steps(arguments: argparse.Namespace) -> Result:
    """CPU seconds of one training step of the naive loop."""
    steps = 20 if arguments.quick else 60
    naive = NaiveFederation(arguments.model, read_data(arguments.data, arguments.model), workers=1)
    naive.train(0, 10)
    spent, loss = _once(lambda: naive.train(0, steps), time.process_time)
    return {"seconds": spent / steps, "loss": loss}


def ours_rounds(arguments: argparse.Namespace) -> Result:
    """Wall seconds of a round (training and mixing) and of an evaluation."""
    from bench.ours import Ours

    steps = local_steps(arguments.model)
    with Ours(arguments.model, arguments.data, workers=WORKERS, executors=2) as ours:
        ours.round(steps)
        result = _rounds(arguments, lambda: ours.round(steps))
        if arguments.model == "cnn":
            result["evaluation"], result["accuracy"] = _once(ours.evaluate, time.perf_counter)
            result["mean_evaluation"], _ = _once(ours.evaluate_mean, time.perf_counter)
    return result


def naive_rounds(arguments: argparse.Namespace) -> Result:
    """Wall seconds of a round of the naive federation."""
    arrays = read_data(arguments.data, arguments.model)
    naive = NaiveFederation(arguments.model, arrays, workers=WORKERS)
    steps = local_steps(arguments.model)
    naive.round(steps)
    return _rounds(arguments, lambda: naive.round(steps))


def ours_mixing(arguments: argparse.Namespace) -> Result:
    """Wall seconds of one mixing."""
    from bench.ours import mixing

    once = mixing(WORKERS, CNN_PARAMETERS, threads=arguments.threads)
    return {"seconds": _typical(once, arguments)}


def naive_mixing(arguments: argparse.Namespace) -> Result:
    """Wall seconds of one mixing by a loop over neighbours."""
    rows = torch.randn(WORKERS, CNN_PARAMETERS)
    out = torch.empty_like(rows)
    neighbors = regular_neighbors(WORKERS, DEGREE)
    weight = 1 / (DEGREE + 1)
    return {"seconds": _typical(lambda: mix_rows(rows, neighbors, weight, out), arguments)}


def ours_exchange(arguments: argparse.Namespace) -> Result:
    """Wall seconds of a whole exchange: distances on all links, then mixing."""
    from bench.ours import Ours

    with Ours("cnn", arguments.data, workers=WORKERS, executors=2) as ours:
        ours.train([1] * WORKERS)
        return {"seconds": _typical(ours.exchange, arguments)}


def ours_evaluation(arguments: argparse.Namespace) -> Result:
    """CPU seconds per image: two workers' models and their mean, one executor."""
    from bench.ours import Ours

    models = 3
    with Ours(arguments.model, arguments.data, workers=models - 1, executors=1) as ours:
        ours.evaluate()
        spent, accuracy = _once(ours.evaluate, time.process_time)
    return {"seconds": spent / (models * TEST_IMAGES), "accuracy": accuracy}


def naive_evaluation(arguments: argparse.Namespace) -> Result:
    """CPU seconds per image of a plain model in batches of 32."""
    models = 3
    naive = NaiveFederation(
        arguments.model, read_data(arguments.data, arguments.model), workers=models
    )
    naive.evaluate(0)
    spent, accuracy = _once(
        lambda: sum(naive.evaluate(worker) for worker in range(models)) / models,
        time.process_time,
    )
    return {"seconds": spent / (models * TEST_IMAGES), "accuracy": accuracy}


def ours_plan(arguments: argparse.Namespace) -> Result:
    """Wall seconds of FedHP's plan in a later round."""
    from bench.ours import planning

    plan = planning(arguments.workers)
    return {"seconds": _typical(plan.once, arguments), "links": plan.links, "cut": plan.cut}


def ours_coordinator(arguments: argparse.Namespace) -> Result:
    """CPU seconds and bytes of a round of a coordinator with scripted workers."""
    from bench.coordinator import measure

    return measure(arguments.workers)


def ours_estimators(arguments: argparse.Namespace) -> Result:
    """CPU seconds of a round of 30 steps per worker without and with the estimators."""
    from bench.ours import Ours

    workers, executors = (3, 1) if arguments.model == "cnn" else (WORKERS, 1)
    steps = [DEFAULT_STEPS] * workers
    repeats = 1 if arguments.quick or arguments.model == "cnn" else 20
    with Ours(arguments.model, arguments.data, workers=workers, executors=executors) as ours:
        ours.round([2] * workers, estimates=True)
        plain, extra = 0.0, 0.0
        for _ in range(repeats):
            plain += _once(lambda: ours.round(steps), time.process_time)[0]
            extra += _once(lambda: ours.round(steps, estimates=True), time.process_time)[0]
    return {"plain": plain / repeats, "with_estimates": extra / repeats}


def _rounds(arguments: argparse.Namespace, action: Callable[[], float]) -> Result:
    """Mean wall seconds over some rounds; more rounds for the cheap models."""
    few, many = (2, 3) if arguments.model == "cnn" else (5, 20)
    count = few if arguments.quick else many
    started = time.perf_counter()
    loss = float("nan")
    for _ in range(count):
        loss = action()
    return {"round": (time.perf_counter() - started) / count, "loss": loss}


def _typical(action: Callable[[], object], arguments: argparse.Namespace) -> float:
    """Median wall seconds of a call, after a warm-up call."""
    action()
    until = time.perf_counter() + (1.0 if arguments.quick else 2.0)
    spent: list[float] = []
    while len(spent) < 3 or time.perf_counter() < until:
        spent.append(_once(action, time.perf_counter)[0])
    return sorted(spent)[len(spent) // 2]


def _once(action: Callable[[], T], clock: Callable[[], float]) -> tuple[float, T]:
    started = clock()
    value = action()
    return clock() - started, value


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "gemm": gemm,
    "bandwidth": bandwidth,
    "ours-steps": ours_steps,
    "naive-steps": naive_steps,
    "ours-rounds": ours_rounds,
    "naive-rounds": naive_rounds,
    "ours-mixing": ours_mixing,
    "naive-mixing": naive_mixing,
    "ours-exchange": ours_exchange,
    "ours-evaluation": ours_evaluation,
    "naive-evaluation": naive_evaluation,
    "ours-plan": ours_plan,
    "ours-coordinator": ours_coordinator,
    "ours-estimators": ours_estimators,
}


if __name__ == "__main__":
    sys.exit(main())
