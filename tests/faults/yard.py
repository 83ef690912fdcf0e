"""A federation like launch.Cluster, each process in a network of its own if there is one.

For what the launcher does not offer: namespaces, and workers that send poisoned models.
"""

from __future__ import annotations

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
from fedhp.cluster.coordinator.leadership import CoordinatorProcessSettings
from fedhp.cluster.history import History, read_history
from fedhp.cluster.ops import processes
from fedhp.cluster.ops.processes import ProcessEnvironment
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.worker.worker import WorkerSettings
from fedhp.config import Experiment
from waiting import wait_until

BOSS = "coordinator"
PORT = 7070
ENDING = 20.0  # s for the workers after the coordinator


@dataclass(frozen=True, slots=True)
class Nature:
    """What is special about a process."""

    namespace: str | None = None
    poison: bool = False  # gives its model away with all signs turned


class Yard:
    """The processes, all ended at the end."""

    def __init__(
        self,
        settings: Experiment,
        folder: Path,
        *,
        net: Net | None = None,
        poisoned: frozenset[int] = frozenset(),
    ) -> None:
        self.settings, self.folder = settings, folder
        self.workers = [f"w{worker}" for worker in range(settings.workers)]
        self._net, self._poisoned = net, poisoned
        self.processes: dict[str, BaseProcess] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.faults = History(folder, "faults")

    def __enter__(self) -> Yard:
        return self

    def __exit__(self, *details: object) -> None:
        for process in self.processes.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
        for process in self.processes.values():
            process.join()
        self.faults.close()

    def host(self, name: str) -> str:
        """Where a process is reached."""
        return "127.0.0.1" if self._net is None else self._net.address(name)

    def start(self) -> None:
        """Certificates, the coordinator, all workers."""
        certificates = self.folder / "certs"
        init_authority(certificates)
        issue(certificates, BOSS, hosts=[self.host(BOSS)], roles=["coordinator"])
        for name in self.workers:
            issue(certificates, name, hosts=[self.host(name)])
        processes.warm_up()
        port = PORT if self._net is not None else 0
        settings = CoordinatorProcessSettings(
            experiment=self.settings,
            certificates=certificates,
            folder=self.folder,
            listen=f"{self.host(BOSS)}:{port}",
        )
        self._begin(BOSS, _coordinate, settings)
        announced = self.folder / "coordinator.json"
        boss = self.processes[BOSS]
        wait_until(lambda: announced.exists() or not boss.is_alive(), "a coordinator")
        if not announced.exists():
            raise RuntimeError(f"no coordinator: {self.log(BOSS)}")
        address = json.loads(announced.read_bytes())["address"]
        for name in self.workers:
            self._begin(
                name,
                _work,
                WorkerSettings(
                    name=name,
                    coordinator=address,
                    certificates=certificates,
                    state=self.folder / "workers" / name,
                    listen=f"{self.host(name)}:0",
                ),
            )

    def wait(self, seconds: float) -> None:
        """Until all have ended well; TimeoutError if that takes longer."""
        deadline = time.monotonic() + seconds
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
        codes = {name: process.exitcode for name, process in self.processes.items()}
        if any(code is None for code in codes.values()):
            raise TimeoutError(f"not over after {seconds:.0f} s: {codes}")
        if any(codes.values()):
            raise RuntimeError(f"processes failed: {codes}; {self.log(BOSS)}")

    def until_round(self, round_index: int, *, seconds: float) -> None:
        """So many rounds are committed."""
        wait_until(
            lambda: self.committed() >= round_index,
            lambda: f"the commit of round {round_index}: {self.log(BOSS)}",
            seconds=seconds,
        )

    def committed(self) -> int:
        """The last committed round."""
        return max((int(each["round"]) for each in self.events("commit")), default=0)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the coordinator wrote."""
        file = self.folder / f"history-{BOSS}.jsonl"
        if not file.exists():
            return []
        return [event for event in read_history(file) if event["event"] == kind]

    def note(self, kind: str, targets: list[str]) -> None:
        """A fault, for the checker."""
        self.faults.note("fault", {"kind": kind, "target": targets})

    def log(self, name: str) -> str:
        """The last words of a process."""
        file = self.folder / "logs" / f"{name}.log"
        return file.read_text(errors="replace")[-1500:] if file.exists() else "it said nothing"

    def _begin(self, name: str, target: Callable[..., None], task: object) -> None:
        nature = Nature(
            namespace=None if self._net is None else self._net.namespace(name),
            poison=name.startswith("w") and int(name[1:]) in self._poisoned,
        )
        environment = ProcessEnvironment(self.folder / "logs" / f"{name}.log")
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=target, args=(task, environment, nature), daemon=True)
        process.start()
        self.processes[name] = process


# --- inside the new process ----------------------------------------------------------------


def _coordinate(
    settings: CoordinatorProcessSettings, environment: ProcessEnvironment, nature: Nature
) -> None:
    if nature.namespace is not None:
        enter(nature.namespace)
    processes.run_coordinator(settings, environment)


def _work(settings: WorkerSettings, environment: ProcessEnvironment, nature: Nature) -> None:
    if nature.namespace is not None:
        enter(nature.namespace)
    if nature.poison:
        _turn_signs()

    async def main() -> int:
        import torch

        from fedhp.cluster.worker.worker import run_worker

        torch.set_num_threads(1)
        return await run_worker(settings)

    processes.run_process(settings.name, environment, main)


def _turn_signs() -> None:
    """From now on this process gives away its model with all signs turned; its own stays."""
    from fedhp.cluster.protocol.model_exchange import OutgoingModel

    honest = OutgoingModel.offer

    def offer(self: OutgoingModel, row: Any) -> None:
        honest(self, -row)

    OutgoingModel.offer = offer  # type: ignore[method-assign]
