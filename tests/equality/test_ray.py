"""On Ray the same bits as in one process; an actor may die at any moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedhp.config import Experiment, parse, to_tables
from fedhp.config.origins import Origins
from fedhp.engine.executor import StateLost
from fedhp.engine.runs.run import start_run
from fedhp.errors import ConfigError
from fedhp.record.reader import RunReader
from fedhp.types import IntArray

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

from fedhp.engine.ray import START_TIMEOUT, RayShards, import_ray, start_ray  # noqa: E402
from waiting import wait_until  # noqa: E402

CORES = 3
# A start is waited for as long as it takes, on a busy machine for minutes.
pytestmark = pytest.mark.timeout(3 * START_TIMEOUT)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One small Ray for all tests of this file."""
    assert start_ray(ray, None, cores=CORES)
    yield
    ray.shutdown()


@pytest.fixture
def small_ray(cluster: None) -> Iterator[None]:
    """That Ray; a test that leaves actors behind or breaks it fails alone: it is started again."""
    yield
    try:
        wait_until(lambda: ray.available_resources().get("CPU") == CORES, "actors end", seconds=30)
    except Exception:
        ray.shutdown()
        start_ray(ray, None, cores=CORES)


def experiment(algorithm: str, engine: str, **more: Any) -> Experiment:
    tables: dict[str, Any] = {
        "workers": 7,
        "rounds": 4,
        "seed": 5,
        "engine": engine,
        "executors": 1,
        "ray": {"actors": 2},
        "algorithm": {"name": algorithm},
        "data": {"name": "digits", "skew": 0.8},
        "model": {"name": "mlp", "hidden": [6]},
        "training": {
            "local_steps": 4,
            "batch_size": 8,
            "kernel": "worker",
            "mixing": "ordered",
        },
        "evaluation": {"every": 2, "images": 100},
        "world": {"profile": "slow_links", "model_megabits": 12.0},
        "checkpoint": {"seconds": 0.0},
    }
    return parse({**tables, **more})


def digest(settings: Experiment, folder: Path) -> str:
    """Carry the run out; the hash of all its numbers."""
    for _ in start_run(settings, folder).rounds():
        pass
    with RunReader(folder) as run:
        assert run.meta("status") == "finished"
        return run.digest()


SLOW = pytest.mark.slow
NEEDS_RAY = pytest.mark.usefixtures("small_ray")


@NEEDS_RAY
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param("adpsgd", marks=SLOW),
        pytest.param("pens", marks=SLOW),
        "fedhp",
        pytest.param("fedhp_plus", marks=SLOW),
        pytest.param("dpsgd", marks=SLOW),
        pytest.param("ldsgd", marks=SLOW),
        pytest.param("free_links", marks=SLOW),
    ],
)
def test_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    local = digest(experiment(algorithm, "local"), tmp_path / "local")
    remote = digest(experiment(algorithm, "ray"), tmp_path / "ray")
    # The settings differ in one word, which is not part of the result.
    assert local == remote
    with RunReader(tmp_path / "ray") as run:
        assert run.meta("moved_bytes") > 0


@SLOW
@NEEDS_RAY
@pytest.mark.parametrize("algorithm", ["dpsgd", "fedhp_plus"])
def test_the_same_bits_with_shuffled_epochs_and_augmented_images(
    algorithm: str, tmp_path: Path
) -> None:
    training = {"batch_size": 8, "batches": "epochs", "mixing": "ordered", "label_smoothing": 0.1}
    if algorithm == "dpsgd":
        training["local_epochs"] = 0.1
    samples = {"training": training, "augmentation": {"crop": 1, "flip": True}}
    local = digest(experiment(algorithm, "local", **samples), tmp_path / "local")
    assert digest(experiment(algorithm, "ray", **samples), tmp_path / "ray") == local


@SLOW
@NEEDS_RAY
def test_the_same_bits_on_a_topology_that_changes(tmp_path: Path) -> None:
    """With its own weights, and links that jitter."""
    digests = []
    for engine in ("local", "ray"):
        tables = to_tables(experiment("dpsgd", engine))
        tables["algorithm"] = {"name": "dpsgd", "neighbors": "base"}
        tables["topology"] = {"name": "base_k", "k": 2}
        tables["world"]["bandwidth"] |= {"jitter": 0.2, "uplink": 0.5}
        digests.append(digest(parse(tables), tmp_path / engine))
    assert digests[0] == digests[1]


@SLOW
@NEEDS_RAY
@pytest.mark.parametrize(
    ("algorithm", "training"),
    [
        ("dpsgd", {"momentum": 0.9, "nesterov": True}),
        ("fedhp", {"optimizer": "adamw", "learning_rate": 0.003, "optimizer_state": "mix"}),
        ("fedhp_plus", {"momentum": 0.9, "optimizer_state": "reset", "clip_norm": 1.0}),
    ],
)
def test_the_same_bits_with_an_optimizer_that_keeps_state(
    algorithm: str, training: dict[str, Any], tmp_path: Path
) -> None:
    digests = []
    for engine in ("local", "ray"):
        tables = to_tables(experiment(algorithm, engine))
        tables["training"] |= {"learning_rate": 0.02, **training}
        digests.append(digest(parse(tables), tmp_path / engine))
    assert digests[0] == digests[1]


@SLOW
@NEEDS_RAY
def test_the_same_bits_with_everything_that_workers_may_keep(tmp_path: Path) -> None:
    """Velocities, served averages, and transfers that go on while their senders train."""
    aids = {"overlap": True, "serve": "average", "compression": "int8", "momentum": 0.9}
    digests = []
    for engine in ("local", "ray"):
        settings = experiment("adpsgd", engine)
        tables = to_tables(settings)
        tables["algorithm"] = {**tables["algorithm"], **aids}
        tables["evaluation"] = {**tables["evaluation"], "every": 1, "seconds": 2.5}
        digests.append(digest(parse(tables), tmp_path / engine))
    assert digests[0] == digests[1]


@SLOW
@NEEDS_RAY
@pytest.mark.parametrize(
    ("exchange", "kind"),
    [
        ({"compression": "int8", "robust": "trimmed_mean"}, "sign_flip"),
        ({"compression": "topk", "topk_share": 0.1}, "noise"),
    ],
)
def test_the_same_bits_when_models_are_disturbed(
    exchange: dict[str, Any],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although an actor is killed: its workers' copies come back with it."""
    more = {"exchange": exchange, "attack": {"kind": kind}}
    local = digest(experiment("fedhp", "local", **more), tmp_path / "local")
    killer = Killer("exchange", 3)
    killer.install(monkeypatch)
    assert digest(experiment("fedhp", "ray", **more), tmp_path / "killed") == local
    assert killer.killed, "the actor was not killed: the test would show nothing"


@SLOW
@NEEDS_RAY
@pytest.mark.parametrize("algorithm", ["push_sum:SGP", "push_sum:Tracking"])
def test_the_same_bits_with_what_travels_along(algorithm: str, tmp_path: Path) -> None:
    origins = Origins.of_file(Path(__file__).parents[2] / "examples/push_sum.toml")
    local, remote = (
        digest(experiment(algorithm, engine).with_origins(origins), tmp_path / engine)
        for engine in ("local", "ray")
    )
    assert local == remote


class Killer:
    """Kills the second actor while its answer to the n-th call of a method is awaited."""

    def __init__(self, method: str, number: int) -> None:
        self.method, self.left, self.killed = method, number, 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        killer = self
        called, keep, deliver = RayShards.map, RayShards.keep, RayShards.deliver
        start_tests, wait = RayShards.start_tests, RayShards.wait

        def before(shards: RayShards, method: str) -> None:
            if method != killer.method:
                return
            killer.left -= 1
            if killer.left == 0:
                killer.killed = shards.processes()[1]
                patch.setattr(RayShards, "wait", waiting)

        def waiting(shards: RayShards, references: list[Any], **settings: Any) -> list[Any]:
            patch.setattr(RayShards, "wait", wait)
            os.kill(killer.killed, signal.SIGKILL)
            return wait(shards, references, **settings)

        def calling(shards: RayShards, method: Any, calls: Any, **settings: Any) -> Any:
            calls = list(calls)
            if 1 in [shard for shard, _ in calls]:
                before(shards, method.__name__)
            return called(shards, method, calls, **settings)

        def testing(shards: RayShards, shard: int, mean: Any, *, whole: bool) -> Any:
            if shard == 1:
                before(shards, "evaluate")
            return start_tests(shards, shard, mean, whole=whole)

        def keeping(shards: RayShards, *, in_flight: bool) -> None:
            before(shards, "keep")
            keep(shards, in_flight=in_flight)

        def delivering(shards: RayShards, wanted: list[dict[int, IntArray]]) -> None:
            before(shards, "deliver")
            deliver(shards, wanted)

        patch.setattr(RayShards, "map", calling)
        patch.setattr(RayShards, "start_tests", testing)
        patch.setattr(RayShards, "keep", keeping)
        patch.setattr(RayShards, "deliver", delivering)


@NEEDS_RAY
@pytest.mark.parametrize(
    ("algorithm", "method", "number"),
    [
        pytest.param("fedhp", "train", 3, marks=SLOW),
        pytest.param("fedhp", "exchange", 2, marks=SLOW),
        pytest.param("fedhp", "keep", 3, marks=SLOW),
        pytest.param("fedhp_plus", "adopt", 3, marks=SLOW),
        pytest.param("pens", "deliver", 2, marks=SLOW),
        pytest.param("adpsgd", "apply", 5, marks=SLOW),
    ],
)
def test_an_actor_is_killed(
    algorithm: str, method: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = digest(experiment(algorithm, "local"), tmp_path / "local")
    killer = Killer(method, number)
    killer.install(monkeypatch)
    assert digest(experiment(algorithm, "ray"), tmp_path / "ray") == local
    assert killer.killed, "the actor was not killed: the test would show nothing"


@NEEDS_RAY
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedhp", "adpsgd"])
def test_the_kept_state_is_lost_as_well(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine is gone with its object store: the run repeats from the checkpoint."""
    local = digest(experiment(algorithm, "local"), tmp_path / "local")
    Killer("train", 3).install(monkeypatch)
    lost = []

    def recover(shards: RayShards) -> None:
        lost.append(True)
        raise StateLost("gone")

    monkeypatch.setattr(RayShards, "recover", recover)
    rounds = [
        record.round_index
        for record in start_run(experiment(algorithm, "ray"), tmp_path / "ray").rounds()
    ]
    assert lost
    assert rounds == [1, 2, 3, 4]
    with RunReader(tmp_path / "ray") as run:
        assert run.digest() == local


@NEEDS_RAY
def test_more_actors_than_cores(tmp_path: Path) -> None:
    settings = experiment("dpsgd", "ray", ray={"actors": 7})
    with pytest.raises(ConfigError, match=r"7 actors .* but Ray has 3") as caught:
        list(start_run(settings, tmp_path / "run").rounds())
    assert caught.value.key == "ray.actors"


def test_no_such_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**settings: Any) -> None:
        raise ConnectionError("no answer from there")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ConfigError, match="cannot be reached at somewhere:6379") as caught:
        start_ray(ray, "somewhere:6379")
    assert "ray start" in caught.value.fix


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "host:port", "127.0.0.1:99999999"])
def test_nothing_answers(address: str, tmp_path: Path) -> None:
    """Refused before a folder is made, within seconds."""
    settings = experiment("dpsgd", "ray", ray={"address": address})
    with pytest.raises(ConfigError, match="nothing answers") as caught:
        start_run(settings, tmp_path / "run")
    assert caught.value.key == "ray.address"
    assert not (tmp_path / "run").exists()


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        import_ray()
    assert ".[ray]" in caught.value.fix


@NEEDS_RAY
@pytest.mark.slow
def test_thirty_workers_twenty_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The acceptance line: undisturbed, and with an actor killed in mid-round."""
    size: dict[str, Any] = {"workers": 30, "rounds": 20}
    local = digest(experiment("fedhp", "local", **size), tmp_path / "local")
    assert digest(experiment("fedhp", "ray", **size), tmp_path / "ray") == local
    killer = Killer("train", 11)
    killer.install(monkeypatch)
    assert digest(experiment("fedhp", "ray", **size), tmp_path / "killed") == local
    assert killer.killed
