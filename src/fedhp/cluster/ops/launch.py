"""A whole federation on one machine: certificates, a coordinator, workers, each a process.

Used by `fedhp cluster up` and by tests, which may kill and freeze any process. Everything is in
one folder; the same folder again goes on with the run.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedhp.cluster.audit.outcome import RoundFacts, final_digests, last_error, rounds_in
from fedhp.cluster.coordinator.leadership import (
    CoordinatorProcessSettings,
    announced,
    check_network,
)
from fedhp.cluster.ledger.etcd import LEASE
from fedhp.cluster.ops import logs, operator, processes
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import parse_address
from fedhp.cluster.security.certificates import init_authority, issue, load_identity
from fedhp.config import Experiment, differences, to_tables
from fedhp.errors import IdentityError, Interrupted, RunError, Unexpected
from fedhp.files import make_folder
from fedhp.record.reader import RunReader
from fedhp.record.store import FILE

HOST = "127.0.0.1"
COORDINATOR = "coordinator"
LOOK = 0.1  # s between two looks at the processes
RESTART_SECONDS = 60.0  # between two restarts of the same process
GOODBYE = 20.0  # s for the workers to end after the run is over
STOP_SECONDS = 15.0  # s for everyone to end when asked to
# A process that a signal or a bug ended may do better next time; one with an error will not.
WORTH_ANOTHER_TRY = (Unexpected.exit_code,)


@dataclass(slots=True)
class _Running:
    process: BaseProcess
    environment: Mapping[str, str]
    restarted: float = -math.inf
    told: bool = False  # that it ended


class Cluster:
    """The processes of one federation; a context manager that ends them all."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        *,
        source: str = "",
        coordinators: Sequence[str] = (COORDINATOR,),
        standbys: Sequence[str] = (),  # coordinators that only take over what others began
        ha: str | None = None,
        lease: float = LEASE,
        restart: bool = True,
        log_format: logs.Format = "text",
        clock: Callable[[], float] = time.monotonic,  # for the restarts
    ) -> None:
        self.experiment = experiment
        self.folder = folder.resolve()
        self.workers = tuple(f"w{worker}" for worker in range(experiment.workers))
        self.coordinators = (*coordinators, *standbys)
        self.standbys = frozenset(standbys)
        self.notes: list[str] = []  # what happened to processes, for a person
        self._source, self._ha, self._lease = source, ha, lease
        self._restart, self._log_format = restart, log_format
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._ports: dict[str, int] = {}
        self._over: float | None = None  # since when the run is over

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    # --- processes ---------------------------------------------------------------------------

    def start(self, *, environment: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Everyone; the environment is by name of the process."""
        given = environment or {}
        self.prepare()
        for name in self.coordinators:
            self.start_coordinator(name, environment=given.get(name))
        for name in self.workers:
            self.start_worker(name, environment=given.get(name))

    def prepare(self) -> None:
        """Check the experiment, make the folder and everyone's certificates."""
        check_network(self.experiment, source=self._source)
        processes.warm_up()
        make_folder(self.folder, option="--out")
        names = dict.fromkeys(self.workers, ("worker",))
        names |= dict.fromkeys(self.coordinators, ("coordinator",))
        names[operator.OPERATOR] = ("operator",)
        ensure_certificates(self.certificates, names)

    def start_coordinator(
        self, name: str = COORDINATOR, *, environment: Mapping[str, str] | None = None
    ) -> None:
        """A coordinator, or one more that waits for its turn (with etcd)."""
        seat = CoordinatorProcessSettings(
            experiment=None if name in self.standbys else self.experiment,
            certificates=self.certificates,
            folder=self.record_folder(name),
            name=name,
            listen=f"{HOST}:{self._port_of(name)}",
            source=self._source,
            ha=self._ha,
            lease=self._lease,
        )
        around = self._around(name, environment)
        self._begin(name, processes.start_coordinator(seat, around), environment)

    def start_worker(self, name: str, *, environment: Mapping[str, str] | None = None) -> None:
        """One worker."""
        task = processes.WorkerTask(
            name=name,
            certificates=self.certificates,
            state=self.folder / "workers" / name,
            coordinator=self.record_folder(self.coordinators[0]),
            ha=self._ha,
        )
        around = self._around(name, environment)
        self._begin(name, processes.start_worker(task, around), environment)

    def restart(self, name: str, *, environment: Mapping[str, str] | None = None) -> None:
        """Start a process again that has ended; without an environment of its own."""
        if name in self.coordinators:
            self.start_coordinator(name, environment=environment)
        else:
            self.start_worker(name, environment=environment)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal; after SIGKILL, wait until the process is gone."""
        os.kill(self.pid(name), number)
        if number == signal.SIGKILL:
            self._running[name].process.join()

    def pid(self, name: str) -> int:
        """The process of this name; RunError if it does not run."""
        running = self._running.get(name)
        if running is None or running.process.pid is None or not running.process.is_alive():
            raise RunError(f"there is no running process {name!r}")
        return running.process.pid

    def exit_codes(self) -> dict[str, int | None]:
        """How each process ended (errors.py; negative: the signal); None while it runs."""
        return {name: each.process.exitcode for name, each in self._running.items()}

    def tend(self) -> None:
        """Look after the processes once: note who died, start again whom that may help."""
        for name, running in list(self._running.items()):
            code = running.process.exitcode
            if code is None or code == 0:
                continue
            if not running.told:
                running.told = True
                self.notes.append(f"{name} {_ended(code)}; see {self.log(name)}")
            rested = self._clock() - running.restarted >= RESTART_SECONDS
            if rested and self._is_worth_another_try(code):
                self.notes.append(f"{name} is started again")
                self.restart(name)
                self._running[name].restarted = self._clock()

    def check_alive(self, *, killed_too: bool = True) -> None:
        """Fail when no coordinator, or no worker, is left that could go on.

        Without killed_too, those that a signal ended do not count: somebody starts them again.
        """
        codes = self.exit_codes()
        for group in (self.coordinators, self.workers):
            bad = [
                name
                for name in group
                if (code := codes.get(name)) and (code > 0 or killed_too)
                if not self._is_worth_another_try(code)
            ]
            if bad and all(name in bad or name not in codes for name in group):
                name = bad[-1]
                raise RunError(
                    f"{name} {_ended(codes[name] or 0)}, and nobody is left to go on:\n"
                    f"{last_error(self.log(name))}",
                    fix=f"see {self.log(name)}; the same command goes on with the run",
                )

    def is_over(self) -> bool:
        """Whether the folder holds this very run, finished: there is nothing to start."""
        folder = self.record_folder(self.coordinators[0])
        if not (folder / FILE).is_file():
            return False
        with RunReader(folder) as run:
            same = not differences(run.meta("experiment"), to_tables(self.experiment))
            return bool(same and run.meta("status") == "finished")

    def finished(self) -> bool:
        """Whether the run is over and everyone has ended; workers that hang are ended."""
        codes = self.exit_codes()
        if any(codes.get(name) != 0 for name in self.coordinators):
            return False
        self._over = time.monotonic() if self._over is None else self._over
        if time.monotonic() - self._over > GOODBYE:
            self.stop()
            return True
        return all(code is not None for code in codes.values())

    def wait(self, timeout: float) -> None:
        """Until the run is over; TimeoutError if that takes longer."""
        deadline = time.monotonic() + timeout
        while not self.finished():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run is not over after {timeout:g} s: {self.exit_codes()}")
            self.tend()
            self.check_alive(killed_too=False)
            time.sleep(LOOK)

    def stop(self) -> None:
        """End all processes: they are asked first, and killed if they do not."""
        living = [each.process for each in self._running.values() if each.process.is_alive()]
        for process in living:
            _signal(process, signal.SIGTERM)
            _signal(process, signal.SIGCONT)
        deadline = time.monotonic() + STOP_SECONDS
        for process in living:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                _signal(process, signal.SIGKILL)
                process.join()

    # --- what is known -----------------------------------------------------------------------

    @property
    def certificates(self) -> Path:
        """The authority and everyone's identity."""
        return self.folder / operator.CERTIFICATES

    def log(self, name: str) -> Path:
        """What a process says."""
        return self.folder / "logs" / f"{name}.log"

    def record_folder(self, name: str = COORDINATOR) -> Path:
        """Where a coordinator writes: the folder itself, or one of its own where there are more."""
        return self.folder if len(self.coordinators) == 1 else self.folder / name

    def status(self, *, seconds: float = 5.0) -> wire.StatusReply:
        """How the coordinator says it stands; RunError while none answers."""
        return operator.status(operator.target_of(self.folder), seconds=seconds)

    def rounds(self, *, after: int = 0) -> Iterator[RoundFacts]:
        """The committed rounds after this one, as the records tell."""
        found: dict[int, RoundFacts] = {}
        for name in self.coordinators:
            folder = self.record_folder(name)
            if (folder / FILE).is_file():
                found |= {facts.round_index: facts for facts in rounds_in(folder, after=after)}
        yield from (found[index] for index in sorted(found))

    def digests(self) -> dict[str, str]:
        """SHA-256 of every worker's model after the last committed round, by name."""
        files = [self.record_folder(name) / f"history-{name}.jsonl" for name in self.coordinators]
        return final_digests(file for file in files if file.is_file())

    # --- inside ------------------------------------------------------------------------------

    def _begin(
        self, name: str, process: BaseProcess, environment: Mapping[str, str] | None
    ) -> None:
        self._running[name] = _Running(process, environment or {})

    def _around(
        self, name: str, environment: Mapping[str, str] | None
    ) -> processes.ProcessEnvironment:
        given = tuple((environment or {}).items())
        return processes.ProcessEnvironment(self.log(name), self._log_format, given)

    def _port_of(self, name: str) -> int:
        """The port of its earlier life in this cluster: workers know it."""
        if name in self._running:
            with contextlib.suppress(OSError):
                address = announced(self.record_folder(name)).address
                self._ports[name] = parse_address(address, key="address").port
        elif name in self.standbys:
            self._ports[name] = free_port()  # others are told it before it is opened
        return self._ports.get(name, 0)

    def _is_worth_another_try(self, code: int) -> bool:
        return self._restart and (code < 0 or code in WORTH_ANOTHER_TRY)


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ensure_certificates(folder: Path, names: Mapping[str, Sequence[str]]) -> None:
    """An authority and an identity for each name with its roles; those that are good stay."""
    if not (folder / "ca.crt").exists():
        init_authority(folder)
    for name, roles in names.items():
        try:
            if load_identity(folder, name).roles >= set(roles):
                continue
        except IdentityError:
            pass  # missing, expired or damaged: a new one
        issue(folder, name, hosts=(HOST, "localhost"), roles=roles, replace=True)


def _ended(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    if code == Interrupted.exit_code:
        return "was stopped"
    return f"ended with an error (exit code {code})"


def _signal(process: BaseProcess, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.pid is not None:
            os.kill(process.pid, number)
