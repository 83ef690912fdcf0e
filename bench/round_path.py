"""How many functions and modules of fedhp one round passes: python -m bench.round_path [-v].

Counted are the functions (comprehensions included) that are called in two rounds in the middle of
a small run with D-PSGD, between two tests: a simulated one in one thread, and one over TLS with a
coordinator and workers in one process. -v lists them by module.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import fedhp
from fedhp import api
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings, coordinate
from fedhp.cluster.ops.launch import ensure_certificates
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.types import RoundRecord

ROOT = Path(fedhp.__file__).parent
EXPERIMENT = {
    "workers": 4,
    "rounds": 8,
    "executors": 1,
    "algorithm": {"name": "dpsgd"},
    "evaluation": {"every": 100},
    "data": {"name": "digits"},
}

Functions = set[tuple[str, str]]  # module below src/fedhp, name inside of it


@contextmanager
def counting() -> Iterator[Functions]:
    """The functions of fedhp called inside, in this thread and those that it starts."""
    functions: Functions = set()
    start = f"{ROOT}/"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(start):
            functions.add((code.co_filename[len(start) :], code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield functions
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def simulated(model: str = "mlp") -> Functions:
    """Of a simulated round: plan, train, exchange, account, commit."""
    experiment = api.make_experiment({**EXPERIMENT, "model": {"name": model}})
    with tempfile.TemporaryDirectory() as folder:
        rounds = api.start(experiment, Path(folder) / "run").rounds()
        for _ in range(3):
            next(rounds)
        with counting() as functions:
            next(rounds)
            next(rounds)
        for _ in rounds:
            pass
    return functions


def named(functions: Functions) -> Functions:
    """Without comprehensions and lambdas."""
    return {(module, name) for module, name in functions if "<" not in name.rpartition(".")[2]}


def modules_of(functions: Functions) -> dict[str, list[str]]:
    """The names of the functions, by module."""
    modules: dict[str, list[str]] = {}
    for module, name in sorted(functions):
        modules.setdefault(module, []).append(name)
    return modules


def network() -> Functions:
    """Of a round over the network, in the coordinator and in the workers together.

    Counted is what is called in every one of some rounds, from commit to commit: signs of life
    and other calls by the clock fall into some of them only.
    """
    rounds: list[Functions] = []
    start = f"{ROOT}/"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and rounds and code.co_filename.startswith(start):
            rounds[-1].add((code.co_filename[len(start) :], code.co_qualname))

    # Threads that train and threads that plan outlive a round, so all are profiled from their
    # start on.
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        asyncio.run(_federation(lambda record: rounds.append(set())))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return set.intersection(*rounds[2:-2])


async def _federation(on_round: Callable[[RoundRecord], None]) -> None:
    """A coordinator and its workers, until their run is over."""
    # On a busy machine rounds take long; signs of life and judgements by the clock are not counted.
    patience = {"beat": 60.0, "suspect_after": 600.0, "dead_after": 900.0, "least_deadline": 600.0}
    experiment = api.make_experiment({**EXPERIMENT, "rounds": 30, "cluster": patience})
    names = [f"w{worker}" for worker in range(experiment.workers)]
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        folder, certificates = Path(name), Path(name) / "certificates"
        ensure_certificates(
            certificates, {"coordinator": ("coordinator",), **dict.fromkeys(names, ("worker",))}
        )
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        coordinating = coordinate(
            CoordinatorProcessSettings(
                experiment, certificates, folder / "coordinator", listen=address
            ),
            stop=asyncio.Event(),
            on_round=on_round,
        )
        working = (
            run_worker(
                WorkerSettings(name, address, certificates, folder / name, listen="127.0.0.1:0")
            )
            for name in names
        )
        await asyncio.gather(coordinating, *working)


PATHS = {"simulated": simulated, "network": network}


def main() -> None:
    """Print the counts of every path."""
    parser = argparse.ArgumentParser(prog="python -m bench.round_path", description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="list the functions")
    options = parser.parse_args()
    for name, path in PATHS.items():
        functions = path()
        modules = modules_of(functions)
        print(
            f"{name} round: {len(functions)} functions ({len(named(functions))} without "
            f"comprehensions and lambdas) in {len(modules)} modules"
        )
        for module, names in modules.items() if options.verbose else ():
            print(f"  {module} {len(names)}: {' '.join(names)}")


if __name__ == "__main__":
    main()
