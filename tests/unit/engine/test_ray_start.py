"""Ray and its actors may take long to start; a process that hangs is given up with an error."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from fedhp.engine import ray as engine_ray
from fedhp.engine.executor import ShardLost
from fedhp.engine.ray import RayShards, start_ray
from fedhp.errors import ConfigError, Interrupted

TIMED_OUT = "The current node timed out during startup."


class FakeRay:
    """Its start fails so many times, each time with a process left behind."""

    def __init__(self, failures: int, message: str = TIMED_OUT) -> None:
        self.failures, self.message = failures, message
        self.left: list[subprocess.Popen[bytes]] = []
        self.settings: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, **settings: Any) -> None:
        self.settings = settings
        if self.failures:
            self.failures -= 1
            code = "import sys; sys.stdin.read()"
            self.left.append(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE))
            raise Exception(self.message)

    def close(self) -> None:
        for process in self.left:
            process.kill()
            process.communicate()


def test_a_start_that_times_out_is_repeated() -> None:
    """And the processes of the failed start are ended."""
    ray = FakeRay(failures=2)
    try:
        assert start_ray(ray, None, cores=3)
        assert ray.settings["num_cpus"] == 3
        if sys.platform == "linux":
            assert [process.wait(timeout=60) for process in ray.left] == [-9, -9]
    finally:
        ray.close()


def test_a_start_that_never_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_ray, "START_TIMEOUT", 0.0)
    ray = FakeRay(failures=100)
    try:
        with pytest.raises(ConfigError, match="did not start within") as caught:
            start_ray(ray, None)
        assert caught.value.key == "ray.address"
        assert len(ray.left) == 1
    finally:
        ray.close()


def test_a_stop_while_ray_starts() -> None:
    ray = FakeRay(failures=100)
    try:
        with pytest.raises(Interrupted):
            start_ray(ray, None, stop=lambda: True)
    finally:
        ray.close()


def test_another_error_is_not_repeated() -> None:
    ray = FakeRay(failures=1, message="no room for the object store")
    try:
        with pytest.raises(Exception, match="no room"):
            start_ray(ray, None)
    finally:
        ray.close()


class HungActors:
    """Answers never come."""

    exceptions = type("exceptions", (), {"RayTaskError": OSError, "RayActorError": OSError})

    def wait(self, references: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return [], references


def waiting_shards() -> RayShards:
    shards = RayShards.__new__(RayShards)
    shards.ray, shards._stop = HungActors(), lambda: False
    return shards


def test_an_actor_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And until then it is said what is being waited for."""
    monkeypatch.setattr(engine_ray, "START_NOTICE", 0.01)
    monkeypatch.setattr(engine_ray, "START_TIMEOUT", 0.05)
    with caplog.at_level(logging.WARNING), pytest.raises(ShardLost, match="no answer within"):
        waiting_shards().wait(["answer"], starting=True)
    assert "waiting for Ray's actors to start" in caplog.text


def test_a_stop_while_actors_start() -> None:
    shards = waiting_shards()
    shards._stop = lambda: True
    with pytest.raises(Interrupted):
        shards.wait(["answer"], starting=True)
