"""Workers on Ray: a few actors, each hosting a shard of the workers and its data.

Only models that cross from one shard to another move, from actor to actor. After every round
each shard's state is kept in the object store of its machine: a new actor takes over from there
if one dies. If that is lost as well, the run goes back to its checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhp import components
from fedhp.engine.executor import Pending, ShardLost, StateLost
from fedhp.engine.prepare import Prepared, ShardSpec, shard_spec_of
from fedhp.engine.shard.mixer import Mixer
from fedhp.engine.shard.shard import Shard
from fedhp.engine.shard.tester import Tester
from fedhp.errors import ConfigError, RunError, install_extra
from fedhp.learn.evaluate import ModelScore
from fedhp.learn.local import check
from fedhp.record.tensors import Arrays
from fedhp.types import IntArray

POLL_INTERVAL = 0.5  # s between two checks of whether the user wants to stop
CONNECT_TIMEOUT = 5.0  # s until a cluster must have accepted a connection
# Starting takes minutes on a busy machine. Ray reports a process that dies; one that hangs is
# given up after this time.
START_TIMEOUT = 900.0  # s
START_NOTICE = 30.0  # s between two lines that say what is being waited for
MAX_LOSSES = 5  # of actors in one round: then it is not bad luck

T = TypeVar("T")
log = logging.getLogger(__name__)


class ShardActor(Shard):
    """A shard in an actor. Models arrive as read-only views of the object store."""

    def __init__(self, folders: list[str], packed_spec: bytes) -> None:
        warnings.filterwarnings("ignore", message=".*not writable.*")
        # The user's own parts are looked for where the driver found them.
        components.make_importable(*folders)
        from ray import cloudpickle

        spec: ShardSpec = cloudpickle.loads(packed_spec)
        super().__init__(spec)

    def process(self) -> int:
        return os.getpid()

    def stored_state(self, in_flight: bool) -> tuple[bool, Arrays]:
        """True once the state is complete, and the state, which stays in the object store."""
        return True, self.state(in_flight=in_flight)


class RayResult(Generic[T]):
    """The result of an actor's method."""

    def __init__(self, shards: RayShards, reference: Any) -> None:
        self._shards = shards
        self._reference = reference

    def done(self) -> bool:
        return bool(self._shards.ray.wait([self._reference], timeout=0)[0])

    def result(self) -> T:
        result: T = self._shards.wait([self._reference])[0]
        return result


class RayShards:
    """Shards in actors."""

    def __init__(self, prepared: Prepared, *, stop: Callable[[], bool]) -> None:
        self.ray = import_ray()
        self._prepared, self._stop = prepared, stop
        self._started = start_ray(self.ray, prepared.experiment.ray.address, stop=stop)
        self.moved = 0
        experiment = prepared.experiment
        count = min(experiment.workers, experiment.ray.actors)
        self.groups: list[IntArray] = list(np.array_split(np.arange(experiment.workers), count))
        self._kept: list[Any] = []  # references to the state of every shard
        self._losses = 0
        self._actors: list[Any] = []
        try:
            self._check_cores(count)
            self.restart()
        except ShardLost as error:
            self.close()
            raise RunError(
                f"an actor did not start: {error.__cause__ or error}",
                allowed="machines with the same fedhp, the same own parts and enough memory",
                fix="read the actor's log in Ray's session folder, or lower ray.actors",
            ) from None
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        for actor in self._actors:
            self.ray.kill(actor)
        self._actors = [self._start(group) for group in self.groups]
        self.processes()
        self.keep(in_flight=False)

    def processes(self) -> list[int]:
        references = [actor.process.remote() for actor in self._actors]
        return [int(process) for process in self.wait(references, starting=True)]

    def map(
        self,
        method: Callable[..., T],
        calls: Iterable[tuple[int, tuple[Any, ...]]],
        /,
        **settings: Any,
    ) -> list[T]:
        return self.wait(
            [
                self._actors[shard].call.remote(method.__qualname__, *given, **settings)
                for shard, given in calls
            ]
        )

    def start_tests(
        self, shard: int, mean: NDArray[np.float32] | None, *, whole: bool
    ) -> Pending[list[ModelScore]]:
        """An actor tests as soon as it has nothing else to do."""
        call = self._actors[shard].call
        return RayResult(self, call.remote(Tester.evaluate.__qualname__, mean, whole=whole))

    def deliver(self, wanted: list[dict[int, IntArray]]) -> None:
        """From actor to actor; only references pass through here."""
        row_bytes = 4 * self._prepared.layout.mixed
        received = []
        for actor, origins in zip(self._actors, wanted, strict=True):
            sent = [
                self._actors[origin].call.remote(Mixer.send.__qualname__, workers)
                for origin, workers in origins.items()
            ]
            received.append(actor.call.remote(Mixer.receive.__qualname__, *sent))
            self.moved += row_bytes * sum(len(workers) for workers in origins.values())
        self.wait(received)

    def keep(self, *, in_flight: bool) -> None:
        """A copy in the object store; the one before is released when this one is complete."""
        answers = [
            actor.stored_state.options(num_returns=2).remote(in_flight) for actor in self._actors
        ]
        self.wait([complete for complete, _ in answers])
        self._kept, self._losses = [state for _, state in answers], 0

    def kept(self) -> list[Arrays]:
        states: list[Arrays] = self.ray.get(self._kept)
        return states

    def recover(self) -> None:
        """Replace dead actors, and bring all back to the last round's end."""
        errors = self.ray.exceptions
        while True:
            self._losses += 1
            if self._losses > MAX_LOSSES:
                raise RunError(
                    f"{MAX_LOSSES} actors were lost in one round",
                    allowed="actors that live through a round",
                    fix="give each actor more memory, or use more actors (ray.actors)",
                )
            try:
                for index, actor in enumerate(self._actors):
                    try:
                        self.wait([actor.process.remote()], starting=True)
                    except ShardLost:
                        self.ray.kill(actor)
                        self._actors[index] = self._start(self.groups[index])
                self.wait(
                    [
                        actor.load.remote(state)
                        for actor, state in zip(self._actors, self._kept, strict=True)
                    ]
                )
                return
            except ShardLost:
                continue
            except errors.ObjectLostError as error:
                raise StateLost(str(error)) from None

    def close(self) -> None:
        """End the actors, and Ray itself if it was started here."""
        for actor in self._actors:
            self.ray.kill(actor)
        self._actors, self._kept = [], []
        if self._started:
            self.ray.shutdown()

    def wait(self, references: list[Any], *, starting: bool = False) -> list[Any]:
        """The results; checks now and then whether the user wants to stop.

        starting: these are the first answers of actors, which may hang.
        """
        errors = self.ray.exceptions
        missing, notice = list(references), _StartNotice("Ray's actors")
        while missing:
            _, missing = self.ray.wait(missing, num_returns=len(missing), timeout=POLL_INTERVAL)
            check(self._stop)
            if missing and starting and notice.timed_out():
                raise ShardLost(f"no answer within {START_TIMEOUT / 60:.0f} minutes")
        try:
            return list(self.ray.get(references))
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayActorError):
                raise ShardLost(str(error)) from error
            raise (error.cause or error) from None
        except errors.RayActorError as error:
            raise ShardLost(str(error)) from error

    def _start(self, group: IntArray) -> Any:
        from ray import cloudpickle

        spec = shard_spec_of(self._prepared, group)
        packed_spec = cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]
        gpus = 1 if self._prepared.device.type == "cuda" else 0
        remote = self.ray.remote(num_cpus=self._prepared.executors, num_gpus=gpus, max_restarts=0)
        return remote(ShardActor).remote(list(self._prepared.folders), packed_spec)

    def _check_cores(self, count: int) -> None:
        """Refuse actors that would wait for ever for a core."""
        cores = float(self.ray.cluster_resources().get("CPU", 0))
        needed = count * self._prepared.executors
        if needed > cores:
            raise ConfigError(
                f"{count} actors with {self._prepared.executors} executors each need {needed} "
                f"cores, but Ray has {cores:g}",
                key="ray.actors",
                allowed=f"at most {max(1, int(cores // self._prepared.executors))}",
                fix="lower ray.actors or executors, or add machines to the cluster",
            )


def import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError(
            f"'ray' is set, but it is not installed ({error})",
            key="engine",
            allowed="local, or ray with Ray installed",
            fix=f"{install_extra('ray')}; or set engine = 'local'",
        ) from None
    return ray


def check_cluster(address: str | None) -> None:
    """Before a run starts: Ray is installed, and its address accepts connections."""
    import_ray()
    if address is None or address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise _unreachable(f"nothing answers at {address!r}: it is not HOST:PORT")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise _unreachable(f"nothing answers at {address!r}: {error}") from None


def start_ray(
    ray: Any,
    address: str | None,
    *,
    stop: Callable[[], bool] = lambda: False,
    cores: int | None = None,
) -> bool:
    """Join the cluster at this address, or start one here; whether it was started here."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    quiet["job_config"] = _job_config()
    try:
        if address is None:
            _start_here(ray, stop, num_cpus=cores, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        words = " ".join(str(error).split())
        where = address or "this machine"
        raise _unreachable(f"Ray cannot be reached at {where}: {words[:200]}") from None
    return True


def _job_config() -> Any:
    """Ray puts the current folder first on the path of its workers, unless the job brings a folder
    of its own. Own parts are made importable by folder instead (ShardActor, run_task)."""
    from ray.job_config import JobConfig

    class WithoutFolder(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return WithoutFolder()


def _start_here(ray: Any, stop: Callable[[], bool], **settings: Any) -> None:
    """Start Ray, which gives up after 30 seconds whatever the machine is doing: try again."""
    for name in ("gcs_server_port_wait_time_s", "worker_register_timeout_seconds"):
        os.environ.setdefault(f"RAY_{name}", f"{START_TIMEOUT:.0f}")
    notice = _StartNotice("Ray")
    while True:
        before = _child_processes()
        try:
            ray.init(**settings)
            return
        except Exception as error:
            if "timed out" not in str(error):
                raise
            for process in _child_processes() - before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            check(stop)
            if notice.timed_out():
                minutes = f"{START_TIMEOUT / 60:.0f} minutes"
                raise TimeoutError(f"it did not start within {minutes}: {error}") from error


class _StartNotice:
    """Says what is being waited for, now and then, and when the time is up."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = self._noticed = time.monotonic()

    def timed_out(self) -> bool:
        now = time.monotonic()
        if now - self._noticed >= START_NOTICE:
            self._noticed = now
            log.warning(
                "waiting for %s to start: %.0f s so far, at most %.0f s",
                self._what,
                now - self._started,
                START_TIMEOUT,
            )
        return now - self._started > START_TIMEOUT


def _child_processes() -> set[int]:
    """The processes started by this one, where the system lists them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(process) for path in lists for process in path.read_text().split()}


def _unreachable(problem: str) -> ConfigError:
    return ConfigError(
        problem,
        key="ray.address",
        allowed="HOST:PORT of a running cluster, 'auto' for the one of this machine, or none",
        fix="start it with `ray start --head`, or remove ray.address to start one here",
    )
