"""Workers on Ray: a few actors, each hosting a shard of the workers and its data.

Only models that cross from one shard to another move, from actor to actor. After every
round each shard's state is kept in the object store of its machine: an actor that dies is
started anew from there. If that is gone as well, the run goes back to its checkpoint.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedhp import components
from fedhp.engine.executor import ShardLost, StateLost
from fedhp.engine.prepare import Prepared
from fedhp.engine.shard_spec import ShardSpec, shard_spec_of
from fedhp.engine.sharded import Engine
from fedhp.errors import ConfigError, RunError
from fedhp.learn.local import check
from fedhp.record.packing import Arrays
from fedhp.types import IntArray

LOOK = 0.5  # s between two looks at whether the user wants to stop
REACHING = 5.0  # s until a cluster must have answered
STARTING = 120.0  # s until an actor must have answered
MOST_LOSSES = 5  # of actors in one round: then it is not bad luck


class Host:
    """What an actor runs: one shard. Models arrive as read-only views of the object store."""

    def __init__(self, folders: list[str], holding: bytes) -> None:
        warnings.filterwarnings("ignore", message=".*not writable.*")
        # The user's own parts are looked for where the driver found them.
        components.make_importable(*folders)
        from ray import cloudpickle

        from fedhp.engine.shard import Shard

        unpacked: ShardSpec = cloudpickle.loads(holding)
        self.shard = Shard(unpacked)

    def process(self) -> int:
        """The number of the actor's process."""
        return os.getpid()

    def call(self, method: str, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Any method of the shard."""
        return getattr(self.shard, method)(*arguments, **settings)

    def receive(self, *parcels: Any) -> None:
        """Models of other shards."""
        self.shard.receive(*parcels)

    def state(self, flying: bool) -> tuple[bool, Arrays]:
        """That all went well, and the state, which stays in the object store."""
        return True, self.shard.state(flying=flying)

    def load(self, state: Arrays) -> None:
        """Take over a state."""
        self.shard.load(state)


class RayShards:
    """Shards in actors."""

    def __init__(self, prepared: Prepared, *, stop: Callable[[], bool]) -> None:
        self._ray = import_ray()
        self._prepared, self._stop = prepared, stop
        self._started = start_ray(self._ray, prepared.experiment.ray.address)
        self.moved = 0
        experiment = prepared.experiment
        count = min(experiment.workers, experiment.ray.actors)
        self.groups: list[IntArray] = list(np.array_split(np.arange(experiment.workers), count))
        self._kept: list[Any] = []
        self._losses = 0
        self._actors: list[Any] = []
        try:
            self._room(count)
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
        """All shards anew, as at the start of a run."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = [self._start(group) for group in self.groups]
        self._wait([actor.process.remote() for actor in self._actors], deadline=STARTING)
        self.keep(flying=False)

    def processes(self) -> list[int]:
        """The process of every actor."""
        found = self._wait([actor.process.remote() for actor in self._actors], deadline=STARTING)
        return [int(each) for each in found]

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], **common: Any) -> list[Any]:
        """Call a method of every shard, side by side."""
        return self._wait(
            [
                actor.call.remote(method, given, common)
                for actor, given in zip(self._actors, arguments, strict=True)
            ]
        )

    def one(self, shard: int, method: str, *arguments: Any, **settings: Any) -> Any:
        """Call a method of one shard."""
        return self._wait([self._actors[shard].call.remote(method, arguments, settings)])[0]

    def deliver(self, wanted: list[dict[int, IntArray]]) -> None:
        """From actor to actor; only references pass through here."""
        width = 4 * self._prepared.layout.mixed
        parcels = [
            [
                self._actors[origin].call.remote("rows", (workers,), {})
                for origin, workers in origins.items()
            ]
            for origins in wanted
        ]
        self.moved += sum(width * len(each) for origins in wanted for each in origins.values())
        self._wait(
            [
                actor.receive.remote(*given)
                for actor, given in zip(self._actors, parcels, strict=True)
            ]
        )

    def evaluate_later(self, arguments: Sequence[tuple[Any, ...]], *, whole: bool) -> _Answer:
        """An actor tests as soon as it has nothing else to do."""
        return _Answer(
            self,
            [
                actor.call.remote("evaluate", given, {"whole": whole})
                for actor, given in zip(self._actors, arguments, strict=True)
            ],
        )

    def keep(self, *, flying: bool) -> None:
        """A copy in the object store; the one before is let go when this one is whole."""
        answers = [actor.state.options(num_returns=2).remote(flying) for actor in self._actors]
        self._wait([well for well, _ in answers])
        self._kept, self._losses = [state for _, state in answers], 0

    def kept(self) -> list[Arrays]:
        """The state of the last round's end."""
        states: list[Arrays] = self._ray.get(self._kept)
        return states

    def recover(self) -> None:
        """Start what is dead anew, and bring everyone back to the last round's end."""
        errors = self._ray.exceptions
        while True:
            self._losses += 1
            if self._losses > MOST_LOSSES:
                raise RunError(
                    f"{MOST_LOSSES} actors were lost in one round",
                    allowed="actors that live through a round",
                    fix="give each actor more memory, or more actors (ray.actors) less to do",
                )
            try:
                for index, actor in enumerate(self._actors):
                    if not self._alive(actor):
                        self._actors[index] = self._start(self.groups[index])
                self._wait(
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
            self._ray.kill(actor)
        self._actors, self._kept = [], []
        if self._started:
            self._ray.shutdown()

    def _start(self, group: IntArray) -> Any:
        from ray import cloudpickle

        holding = cloudpickle.dumps(shard_spec_of(self._prepared, group))  # type: ignore[no-untyped-call]
        gpus = 1 if self._prepared.device.type == "cuda" else 0
        remote = self._ray.remote(num_cpus=self._prepared.executors, num_gpus=gpus, max_restarts=0)(
            Host
        )
        return remote.remote(list(self._prepared.folders), holding)

    def _alive(self, actor: Any) -> bool:
        try:
            self._ray.get(actor.process.remote(), timeout=STARTING)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            return False
        return True

    def _room(self, count: int) -> None:
        """Refuse before anything waits for a place that never comes."""
        there = float(self._ray.cluster_resources().get("CPU", 0))
        needed = count * self._prepared.executors
        if needed > there:
            raise ConfigError(
                f"{count} actors with {self._prepared.executors} executors each need {needed} "
                f"cores, but Ray has {there:g}",
                key="ray.actors",
                allowed=f"at most {max(1, int(there // self._prepared.executors))}",
                fix="lower ray.actors or executors, or add machines to the cluster",
            )

    def _wait(self, references: list[Any], *, deadline: float | None = None) -> list[Any]:
        """The answers; looks up now and then whether the user wants to stop."""
        errors = self._ray.exceptions
        started, left = time.monotonic(), list(references)
        while left:
            _, left = self._ray.wait(left, num_returns=len(left), timeout=LOOK)
            check(self._stop)
            if deadline is not None and time.monotonic() - started > deadline:
                raise ShardLost(f"no answer within {deadline:g} s")
        try:
            return list(self._ray.get(references))
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayActorError):
                raise ShardLost(str(error)) from error
            raise (error.cause or error) from None
        except errors.RayActorError as error:
            raise ShardLost(str(error)) from error


class _Answer:
    """Tests under way in the actors."""

    def __init__(self, shards: RayShards, references: list[Any]) -> None:
        self._shards = shards
        self._references = references

    def done(self) -> bool:
        """Whether all are there."""
        ready, _ = self._shards._ray.wait(
            self._references, num_returns=len(self._references), timeout=0
        )
        return len(ready) == len(self._references)

    def __call__(self) -> list[list[float]]:
        """Wait for all."""
        return self._shards._wait(self._references)


class RayEngine(Engine):
    """The engine of many processes or machines."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(prepared, RayShards(prepared, stop=stop))


def import_ray() -> Any:
    """Ray, or how to get it."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError(
            f"'ray' was asked for, but it is not installed ({error})",
            key="engine",
            allowed="local, or ray with Ray installed",
            fix="pip install 'fedhp[ray]', or set engine = 'local'",
        ) from None
    return ray


def check_cluster(address: str | None, *, source: str = "") -> None:
    """Before a run starts: Ray is installed, and somebody listens at its address."""
    import_ray()
    place = (address or "").removeprefix("ray://")
    if address is None or address in ("auto", "local"):
        return
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACHING):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"nobody answers at {address!r}: {error}",
            key="ray.address",
            source=source,
            allowed="HOST:PORT of a running cluster, 'auto' for the one of this machine, or none",
            fix="start it with `ray start --head`, or remove ray.address to start one here",
        ) from None


def start_ray(ray: Any, address: str | None) -> bool:
    """Join the cluster at this address, or start one here; whether it was started here."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if address is None:
            ray.init(include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        words = " ".join(str(error).split())
        raise ConfigError(
            f"Ray cannot be reached at {address or 'this machine'}: {words[:200]}",
            key="ray.address",
            allowed="HOST:PORT of a running cluster, 'auto' for the one of this machine, or none",
            fix="start it with `ray start --head`, or remove ray.address to start one here",
        ) from None
    return True
