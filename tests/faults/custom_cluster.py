"""A federation like launch.Cluster, with a network namespace for each process."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from faults.namespaces import Net, enter
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings
from fedhp.cluster.history import History, read_history
from fedhp.cluster.ops import processes
from fedhp.cluster.ops.processes import ProcessEnvironment
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.worker.worker import WorkerSettings
from fedhp.config import Experiment
from waiting import wait_until

COORDINATOR = "coordinator"
PORT = 7070


@dataclass(frozen=True, slots=True)
class ProcessTraits:
    """What is special about a process."""

    namespace: str | None = None


class CustomCluster:
    """The processes of a federation; a context manager that kills them."""

    def __init__(
        self,
        settings: Experiment,
        folder: Path,
        *,
        net: Net | None = None,
    ) -> None:
        self.settings, self.folder = settings, folder
        self.workers = [f"w{worker}" for worker in range(settings.workers)]
        self._net = net
        self.processes: dict[str, BaseProcess] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.faults = History(folder, "faults")

    def __enter__(self) -> CustomCluster:
        return self

    def __exit__(self, *details: object) -> None:
        for process in self.processes.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
        for process in self.processes.values():
            process.join()
        self.faults.close()

    def host(self, name: str) -> str:
        """The address of a process."""
        return "127.0.0.1" if self._net is None else self._net.address(name)

    def start(self) -> None:
        """Make certificates, start the coordinator and all workers."""
        certificates = self.folder / "certs"
        init_authority(certificates)
        issue(certificates, COORDINATOR, hosts=[self.host(COORDINATOR)], roles=["coordinator"])
        for name in self.workers:
            issue(certificates, name, hosts=[self.host(name)])
        processes.warm_up()
        port = PORT if self._net is not None else 0
        settings = CoordinatorProcessSettings(
            experiment=self.settings,
            certificates=certificates,
            folder=self.folder,
            listen=f"{self.host(COORDINATOR)}:{port}",
        )
        self._start(COORDINATOR, _coordinate, settings)
        announced = self.folder / "coordinator.json"
        coordinator = self.processes[COORDINATOR]
        wait_until(lambda: announced.exists() or not coordinator.is_alive(), "a coordinator")
        if not announced.exists():
            raise RuntimeError(f"no coordinator: {self.log(COORDINATOR)}")
        for name in self.workers:
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        """Start a worker, for the first time or again."""
        address = json.loads((self.folder / "coordinator.json").read_bytes())["address"]
        trace = self.settings.world.trace
        self._start(
            name,
            _work,
            WorkerSettings(
                name=name,
                coordinator=address,
                certificates=self.folder / "certs",
                state=self.folder / "workers" / name,
                listen=f"{self.host(name)}:0",
                trace=None if trace is None else Path(trace),
            ),
        )

    def wait(self, seconds: float) -> None:
        """Wait until all have ended without error; TimeoutError if that takes longer."""
        deadline = time.monotonic() + seconds
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
        codes = {name: process.exitcode for name, process in self.processes.items()}
        if any(code is None for code in codes.values()):
            raise TimeoutError(f"not over after {seconds:.0f} s: {codes}")
        if any(codes.values()):
            raise RuntimeError(f"processes failed: {codes}; {self.log(COORDINATOR)}")

    def until_round(self, round_index: int, *, seconds: float) -> None:
        """Wait until this round is committed."""
        wait_until(
            lambda: self.committed() >= round_index,
            lambda: f"the commit of round {round_index}: {self.log(COORDINATOR)}",
            seconds=seconds,
        )

    def committed(self) -> int:
        """The last committed round."""
        return max((int(event["round"]) for event in self.events("commit")), default=0)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind in the coordinator's history."""
        file = self.folder / f"history-{COORDINATOR}.jsonl"
        if not file.exists():
            return []
        return [event for event in read_history(file) if event["event"] == kind]

    def note(self, kind: str, targets: list[str]) -> None:
        """Note a fault for the checker."""
        self.faults.append("fault", {"kind": kind, "target": targets})

    def log(self, name: str) -> str:
        """The end of a process's log."""
        file = self.folder / "logs" / f"{name}.log"
        return file.read_text(errors="replace")[-1500:] if file.exists() else "there is no log"

    def _start(self, name: str, target: Callable[..., None], task: object) -> None:
        traits = ProcessTraits(
            namespace=None if self._net is None else self._net.namespace(name),
        )
        environment = ProcessEnvironment(self.folder / "logs" / f"{name}.log")
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=target, args=(task, environment, traits), daemon=True)
        process.start()
        self.processes[name] = process


# --- inside the new process ----------------------------------------------------------------


def _coordinate(
    settings: CoordinatorProcessSettings, environment: ProcessEnvironment, traits: ProcessTraits
) -> None:
    if traits.namespace is not None:
        enter(traits.namespace)
    processes.run_coordinator(settings, environment)


def _work(settings: WorkerSettings, environment: ProcessEnvironment, traits: ProcessTraits) -> None:
    if traits.namespace is not None:
        enter(traits.namespace)

    async def main(stop: asyncio.Event) -> int:
        import torch

        from fedhp.cluster.worker.worker import run_worker

        torch.set_num_threads(1)
        return await run_worker(settings, stop=stop)

    processes.run_process(settings.name, environment, main)
