"""A whole federation on one machine: certificates, a coordinator and workers as processes.

Used by `fedhp cluster up` and by tests, which may kill and freeze any process. Everything is in
one folder; started in the same folder again, it continues the run.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from fedhp.cluster import events
from fedhp.cluster.audit.merge import WORKERS_FOLDER
from fedhp.cluster.audit.timeline import final_digests
from fedhp.cluster.coordinator.committed_state import OPERATOR_STOP, check_same_settings
from fedhp.cluster.coordinator.process.announcements import read_announcement
from fedhp.cluster.coordinator.process.finders import find_in_folder, leader_finder
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings
from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.cluster.history import History
from fedhp.cluster.ops import logs, operator, processes
from fedhp.cluster.ops.progress import RoundFacts, read_rounds
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import parse_address
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.security.identity import load_identity
from fedhp.config import Experiment, differences, own_modules, to_tables
from fedhp.errors import FedhpError, IdentityError, Interrupted, RunError, restart_helps
from fedhp.files import make_folder
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE

if TYPE_CHECKING:
    from fedhp.cluster.worker.worker import WorkerSettings

HOST = "127.0.0.1"
COORDINATOR_NAME = "coordinator"
LAUNCHER_NAME = "launcher"
LOGS_FOLDER = "logs"  # below the folder of a run
SUPERVISE_SECONDS = 0.1  # between two checks of the processes
RESTART_SECONDS = 60.0  # between two restarts of the same process
WORKER_END_SECONDS = 20.0  # for the workers to end after the run is over
STOP_SECONDS = 15.0  # for all processes to end after SIGTERM


class EtcdSettings(TypedDict, total=False):
    """The ledger of coordinators that share one, as CoordinatorProcessSettings has it."""

    ha: str | None
    insecure_etcd: bool
    lease: float


@dataclass(slots=True)
class _StartedProcess:
    process: BaseProcess
    restarted: float = -math.inf  # when, by the cluster's clock
    noted: bool = False  # that it ended


class Cluster:
    """The processes of one federation; a context manager that ends them all."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        *,
        coordinators: Sequence[str] = (COORDINATOR_NAME,),
        standbys: Sequence[str] = (),  # coordinators that only take over what others began
        resume: bool = False,  # see CoordinatorProcessSettings, as of the next one
        moved: bool = False,
        restart: bool = True,
        log_format: logs.Format = "text",
        clock: Callable[[], float] = time.monotonic,  # for the restarts
        **etcd: Unpack[EtcdSettings],
    ) -> None:
        self.experiment = experiment
        self.folder = folder.resolve()
        self.workers = tuple(f"w{worker}" for worker in range(experiment.workers))
        self.coordinators = (*coordinators, *standbys)
        self.standbys = frozenset(standbys)
        self._own_modules = own_modules(experiment)
        self.notes: list[str] = []  # what happened to processes, for the user
        self.resume = resume
        self._etcd, self._moved, self._clock = etcd, moved, clock
        self._restart, self._log_format = restart, log_format
        self._started: dict[str, _StartedProcess] = {}
        self._ports: dict[str, int] = {}
        self._over: float | None = None  # when the coordinators had ended

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    def start(self, *, environment: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Start all processes; environment: additional variables by name of the process."""
        self.prepare()
        for name in (*self.coordinators, *self.workers):
            self.start_process(name, environment=(environment or {}).get(name))

    def prepare(self) -> None:
        """Check the experiment, make the folder and everyone's certificates."""
        with self.experiment.origins.named():
            check_network(self.experiment)
        if (recorded := self._recorded("experiment")) is not None:
            check_same_settings(recorded, self.experiment)
        processes.warm_up()
        for folder in (self.folder, self.folder / WORKERS_FOLDER, self.folder / LOGS_FOLDER):
            make_folder(folder, option="--out", private=True)
        roles = dict.fromkeys(self.workers, ("worker",))
        roles |= dict.fromkeys(self.coordinators, ("coordinator",))
        roles[operator.OPERATOR_NAME] = ("operator",)
        ensure_certificates(self.certificates, roles)

    def start_process(self, name: str, *, environment: Mapping[str, str] | None = None) -> None:
        """Start a coordinator or a worker, also one that has ended; its earlier environment is
        not kept. With etcd a coordinator waits for the lead."""
        log, variables = self.log(name), tuple((environment or {}).items())
        around = processes.ProcessEnvironment(log, self._log_format, variables)
        if name in self.coordinators:
            coordinator = self._coordinator_settings(name)
            process = processes.start(processes.run_coordinator, coordinator, around)
        else:
            process = processes.start(processes.run_worker, self._worker_settings(name), around)
        self._started[name] = _StartedProcess(process)

    def _coordinator_settings(self, name: str) -> CoordinatorProcessSettings:
        return CoordinatorProcessSettings(
            experiment=None if name in self.standbys else self.experiment,
            certificates=self.certificates,
            folder=self.record_folder(name),
            name=name,
            listen=f"{HOST}:{self._port_of(name)}",
            resume=self.resume,
            moved=self._moved,
            trust=self._own_modules,
            **self._etcd,
        )

    def _worker_settings(self, name: str) -> WorkerSettings:
        # The experiment is this operator's own: its workers trust its parts and paths.
        from fedhp.cluster.worker.worker import WorkerSettings

        data, trace = self.experiment.data.path, self.experiment.world.trace
        finder: Any = functools.partial(find_in_folder, self.record_folder(self.coordinators[0]))
        if (url := self._etcd.get("ha")) is not None:
            authority = load_identity(self.certificates, name).authority
            insecure = self._etcd.get("insecure_etcd", False)
            finder = leader_finder(url, insecure=insecure, authority=authority)
        return WorkerSettings(
            name=name,
            coordinator="",
            certificates=self.certificates,
            state=self.folder / WORKERS_FOLDER / name,
            listen=f"{HOST}:0",
            finder=finder,
            data_path=None if data is None else Path(data),
            trace=None if trace is None else Path(trace),
            trust=self._own_modules,
        )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal; after SIGKILL, wait until the process is gone."""
        os.kill(self.pid(name), number)
        if number == signal.SIGKILL:
            self._started[name].process.join()

    def pid(self, name: str) -> int:
        started = self._started.get(name)
        if started is None or started.process.pid is None or not started.process.is_alive():
            raise RunError(f"there is no running process {name!r}")
        return started.process.pid

    def exit_codes(self) -> dict[str, int | None]:
        """How each process ended (errors.py; negative: the signal); None while it runs."""
        return {name: started.process.exitcode for name, started in self._started.items()}

    def supervise(self) -> None:
        """Check the processes once: note those that died, and restart where that may help."""
        for name, started in list(self._started.items()):
            if not (code := started.process.exitcode):
                continue
            if not started.noted:
                started.noted = True
                self.notes.append(f"{name} {_ended(code)}; see {self.log(name)}")
                # At once what the coordinator learns later, or never.
                with contextlib.suppress(OSError, FedhpError):  # of a full disk it tells
                    history = History(self.record_folder(), LAUNCHER_NAME)
                    history.note(events.Ended(name, _ended(code)))
                    history.close()
            rested = self._clock() - started.restarted >= RESTART_SECONDS
            if rested and self._may_restart(code):
                self.notes.append(f"{name} is restarted")
                self.start_process(name)
                self._started[name].restarted = self._clock()

    def check_alive(self, *, count_killed: bool = True) -> None:
        """Fail when no coordinator, or no worker, is left that could continue.

        Without count_killed, a process that a signal ended is still expected back: a test will
        restart it.
        """
        codes = self.exit_codes()
        for group in (self.coordinators, self.workers):
            failed = [
                name
                for name in group
                if (code := codes.get(name)) and (code > 0 or count_killed)
                if not self._may_restart(code)
            ]
            if failed and all(name in failed or name not in codes for name in group):
                name, kind = failed[-1], "coordinator" if group is self.coordinators else "worker"
                raise RunError(
                    f"{name} {_ended(codes[name] or 0)}, and no {kind} is left:\n"
                    f"{logs.last_error(self.log(name))}",
                    fix=f"see {self.log(name)}; the same command continues the run",
                )

    def _recorded(self, key: str) -> Any:
        """What the record in this folder says about the run; None if there is no record."""
        folder = self.record_folder(self.coordinators[0])
        if not (folder / RECORD_FILE).is_file():
            return None
        with RunReader(folder) as run:
            return run.meta(key)

    def is_over(self) -> bool:
        """Whether the folder holds this very run, finished: there is nothing to start."""
        if self._recorded("status") != "finished":
            return False
        return not differences(self._recorded("experiment"), to_tables(self.experiment))

    def stopped(self) -> str:
        """Why an operator ended the run in this folder; empty if nobody did."""
        return str(self._recorded(OPERATOR_STOP) or "")

    def check_not_stopped(self) -> None:
        """Refuse to go on after an operator's stop unless that is wanted."""
        reason = self.stopped()
        if reason and not self.resume:
            raise RunError(
                f"{self.folder}: the run was {reason}",
                allowed="a run that was not stopped, or --resume",
                fix="add --resume to continue it",
            )

    def finished(self) -> bool:
        """Whether the run is over and all processes have ended; workers that hang are stopped."""
        codes = self.exit_codes()
        if any(codes.get(name) != 0 for name in self.coordinators):
            return False
        self._over = time.monotonic() if self._over is None else self._over
        if time.monotonic() - self._over > WORKER_END_SECONDS:
            self.stop()
            return True
        return all(code is not None for code in codes.values())

    def wait(self, timeout: float) -> None:
        """Wait until the run is over; TimeoutError if that takes longer."""
        deadline = time.monotonic() + timeout
        while not self.finished():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run is not over after {timeout:g} s: {self.exit_codes()}")
            self.supervise()
            self.check_alive(count_killed=False)
            time.sleep(SUPERVISE_SECONDS)

    def stop(self) -> None:
        alive = [s.process for s in self._started.values() if s.process.is_alive()]
        for process in alive:
            process.terminate()
            with contextlib.suppress(ProcessLookupError):
                assert process.pid is not None
                os.kill(process.pid, signal.SIGCONT)
        deadline = time.monotonic() + STOP_SECONDS
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()

    @property
    def certificates(self) -> Path:
        return self.folder / operator.CERTIFICATES

    def log(self, name: str) -> Path:
        return self.folder / LOGS_FOLDER / f"{name}.log"

    def record_folder(self, name: str = COORDINATOR_NAME) -> Path:
        """Where a coordinator writes: the folder itself, or a subfolder if there are several."""
        return self.folder if len(self.coordinators) == 1 else self.folder / name

    def status(self, *, seconds: float = 5.0) -> wire.StatusReply:
        return operator.leader_status(operator.target_of(self.folder), seconds=seconds).reply

    def rounds(self, *, after: int = 0) -> Iterator[RoundFacts]:
        """The committed rounds after this one, from the records."""
        rounds = {
            facts.round_index: facts
            for folder in map(self.record_folder, self.coordinators)
            if (folder / RECORD_FILE).is_file()
            for facts in read_rounds(folder, after=after)
        }
        yield from (rounds[index] for index in sorted(rounds))

    def digests(self) -> dict[str, str]:
        """SHA-256 of every worker's model after the last committed round, by name."""
        files = [self.record_folder(name) / f"history-{name}.jsonl" for name in self.coordinators]
        return final_digests(file for file in files if file.is_file())

    def _port_of(self, name: str) -> int:
        """The port of a coordinator's earlier process, which workers know; 0: any free one."""
        if name in self._started:
            with contextlib.suppress(OSError):
                address = read_announcement(self.record_folder(name)).address
                self._ports[name] = parse_address(address, key="address").port
        elif name in self.standbys:  # others must know it before it is opened
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                self._ports[name] = int(probe.getsockname()[1])
        return self._ports.get(name, 0)

    def _may_restart(self, code: int) -> bool:
        return self._restart and restart_helps(code)


def ensure_certificates(folder: Path, roles_by_name: Mapping[str, Sequence[str]]) -> None:
    """Make an authority and an identity for each name with its roles; valid ones are kept."""
    if not (folder / "ca.crt").exists():
        init_authority(folder)
    for name, roles in roles_by_name.items():
        try:
            if load_identity(folder, name).roles >= set(roles):
                continue
        except IdentityError:
            pass  # missing, expired or damaged: issue a new one
        issue(folder, name, hosts=(HOST, "localhost"), roles=roles, replace=True)


def _ended(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    if code == Interrupted.exit_code:
        return "was stopped"
    return f"ended with an error (exit code {code})"
