"""The memory budget: known before the start, models in a file, refusals with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedhp.config import Experiment, parse
from fedhp.engine.memory import count_links, peak_memory, plan_memory
from fedhp.engine.prepare import prepare
from fedhp.engine.runs.run import start_run
from fedhp.errors import ConfigError
from fedhp.graph import base_topology
from fedhp.machine import available
from fedhp.record.reader import RunReader


def experiment(**more: Any) -> Experiment:
    tables: dict[str, Any] = {
        "workers": 6,
        "rounds": 3,
        "executors": 1,
        "training": {"local_steps": 2, "batch_size": 4},
    }
    return parse({**tables, **more})


def plan(size: int, **more: Any) -> Any:
    return plan_memory(
        experiment(**more), model_size=size, data_bytes=1000, asynchronous=False, executors=1
    )


def test_it_fits() -> None:
    needed = plan(1000, memory=2.0)
    assert not needed.mapped
    assert needed.models == 3 * 4 * 6 * 1000
    assert needed.total < needed.allowed == 2_000_000_000


def test_what_arrives_is_counted() -> None:
    """With topk a copy for each way over a link, twice, since a round can be given up."""
    plain = plan(1000, memory=2.0).rest
    rows = {
        name: (plan(1000, memory=2.0, exchange={"compression": name}).rest - plain) // 4000
        for name in ("fp16", "topk")
    }
    assert rows == {"fp16": 6, "topk": 6 + 2 * 6 * 5}
    assert plan(1000, memory=2.0, attack={"kind": "noise"}).rest - plain == 4000 * 6


def test_models_that_do_not_fit_are_mapped() -> None:
    assert plan(2_000_000, workers=100, memory=2.0).mapped


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ({"workers": 10_000, "memory": 4.0}, "topology.name", "random_regular"),
        (
            {"workers": 10_000, "memory": 2.0, "world": {"bandwidth": {"per": "link"}}}
            | {"topology": {"name": "ring"}},
            "world.bandwidth.per",
            "worker",
        ),
        ({"memory": 0.1}, "workers", "raise memory"),
    ],
)
def test_a_refusal_names_the_figure_and_the_way_out(
    more: dict[str, Any], key: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=r"need about [0-9.]+ GB") as caught:
        plan(1000, **more)
    assert caught.value.key == key
    assert words in caught.value.fix


def test_a_model_too_large_for_one_executor() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(500_000_000, memory=4.0)
    assert caught.value.key == "model.name"


def test_ray_keeps_models_in_memory() -> None:
    with pytest.raises(ConfigError):
        plan(2_000_000, workers=100, memory=2.0, engine="ray")


@pytest.mark.parametrize(
    "topology",
    [
        {"name": "full"},
        {"name": "random_regular", "degree": 4},
        {"name": "ring"},
        {"name": "star"},
        {"name": "grid"},
        {"name": "random", "probability": 0.2},
        {"name": "links", "pairs": [[0, i] for i in range(1, 40)]},
    ],
)
def test_links_are_not_underestimated(topology: dict[str, Any]) -> None:
    settings = {key: value for key, value in topology.items() if key != "name"}
    built = base_topology(topology["name"], settings, workers=40, seed=0)
    assert count_links(experiment(workers=40, topology=topology)) >= len(built.links)


def test_the_machine_is_asked() -> None:
    assert available() > 100_000_000
    assert peak_memory() > 10_000_000


def test_a_run_with_mapped_models_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment()
    for _ in start_run(settings, tmp_path / "memory").rounds():
        pass
    # A budget just below what the run needs: the rest fits, the models do not.
    needed = prepare(settings).memory
    tight = settings.model_copy(update={"memory": (needed.rest + 1) / 1e9})
    run = start_run(tight, tmp_path / "mapped")
    assert run.prepared.memory.mapped
    for _ in run.rounds():
        pass
    with RunReader(tmp_path / "memory") as one, RunReader(tmp_path / "mapped") as other:
        assert one.digest() == other.digest()
        assert other.meta("peak_memory") > 0
        assert other.meta("seconds") > 0
    names = {path.name for path in (tmp_path / "mapped").iterdir()}
    assert names == {path.name for path in (tmp_path / "memory").iterdir()}
