"""Devices and availability in FedScale's form: read as JSON or CSV, never unpickled."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhp
from fedhp.config import Experiment, parse
from fedhp.engine.events import EventLoop
from fedhp.engine.executor import EventExecutor
from fedhp.engine.prepare import prepare
from fedhp.errors import ConfigError, DataError, FedhpError
from fedhp.rounds.context import planning_context
from fedhp.world import World

DEVICES = {str(i): {"computation": 10.0 + i, "communication": 1000.0 * i} for i in range(1, 9)}
# Clients 1 to 4 are there in the first half of a day of 100 s, the others in the second.
TIMES: dict[str, dict[str, Any]] = {
    str(i): {
        "duration": 50,
        "active": [0.0] if i <= 4 else [50.0],
        "inactive": [50.0] if i <= 4 else [100.0],
        "finish_time": 100,
        "model": "CPH1801",
    }
    for i in range(1, 9)
}


def save(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def settings(algorithm: str = "dpsgd", *, workers: int = 4, **world: Any) -> Experiment:
    return parse(
        {
            "workers": workers,
            "rounds": 6,
            "algorithm": {"name": algorithm},
            "model": {"name": "mlp", "hidden": [8]},
            "training": {"local_steps": 3, "batch_size": 10},
            "evaluation": {"every": 6, "images": 50},
            "world": world,
        }
    )


def world_of(**changes: Any) -> World:
    return planning_context(settings(**changes), model_bits=8e6).world


def test_devices_are_constant_and_as_fast_as_the_file_says(tmp_path: Path) -> None:
    file = save(tmp_path, "devices.json", DEVICES)
    world = world_of(device_trace=str(file), trace_clients="first")
    # Three inferences of ten samples, of 11 to 14 ms; 1000 to 4000 kbit/s.
    for time in (0.0, 77.0):
        steps = [world.step_times(worker, 3, steps=2, time=time).tolist() for worker in range(4)]
        assert steps == [pytest.approx([0.33 + 0.03 * worker] * 2) for worker in range(4)]
        assert world.network(time).bandwidth.tolist() == [1e6, 2e6, 3e6, 4e6]
    assert world.next_change(5.0) == np.inf
    assert world.devices.names == ("client",) * 4


def test_csv_says_the_same_as_json(tmp_path: Path) -> None:
    rows = [f"{i},{d['computation']},{d['communication']}" for i, d in DEVICES.items()]
    table = "\n".join(["client,computation,communication", *rows]) + "\n"
    spans = [
        f"{i},{t['active'][0]},{t['inactive'][0]},{t['finish_time']}" for i, t in TIMES.items()
    ]
    times = "\n".join(["client,active,inactive,finish_time", *spans]) + "\n"
    first = world_of(
        device_trace=str(save(tmp_path, "d.json", DEVICES)),
        availability_trace=str(save(tmp_path, "a.json", TIMES)),
    )
    second = world_of(
        device_trace=str(save(tmp_path, "d.csv", table)),
        availability_trace=str(save(tmp_path, "a.csv", times)),
    )
    assert first.devices.mean.tolist() == second.devices.mean.tolist()
    assert first.network(0.0).bandwidth.tolist() == second.network(0.0).bandwidth.tolist()
    for time in np.arange(0, 300, 7.0):
        here = first.available(1, float(time)).tolist()
        assert here == second.available(1, float(time)).tolist()


def test_the_seed_chooses_the_clients_and_the_same_ones_in_both_files(tmp_path: Path) -> None:
    devices = str(save(tmp_path, "d.json", DEVICES))
    times = str(save(tmp_path, "a.json", TIMES))
    world = world_of(device_trace=devices, availability_trace=times, workers=8)
    clients = np.round(world.devices.mean / 0.03 - 10).astype(int)
    assert sorted(clients.tolist()) == list(range(1, 9))
    assert world.available(1, 10.0).tolist() == (clients <= 4).tolist()
    assert world.available(1, 60.0).tolist() == (clients > 4).tolist()


def test_presence_follows_virtual_time_and_repeats(tmp_path: Path) -> None:
    file = str(save(tmp_path, "a.json", TIMES))
    world = world_of(availability_trace=file, trace_clients="first", workers=8)
    early = [True] * 4 + [False] * 4
    expected = {0.0: early, 49.9: early, 50.0: early[::-1], 99.0: early[::-1], 120.0: early}
    for time, here in expected.items():
        assert world.available(1, time).tolist() == here
    fast = world_of(
        availability_trace=file, availability_speed=10.0, trace_clients="first", workers=8
    )
    assert fast.available(1, 5.0).tolist() == early[::-1]
    assert fast.available(1, 12.0).tolist() == early


def test_somebody_is_always_there(tmp_path: Path) -> None:
    """Where all are away, the one that comes back first is taken as there."""
    times = {
        name: {"active": [start], "inactive": [start + 10], "finish_time": 100}
        for name, start in (("a", 30), ("b", 20), ("c", 60))
    }
    file = str(save(tmp_path, "a.json", times))
    world = world_of(availability_trace=file, trace_clients="first", workers=3)
    seen = [int(np.argmax(world.available(1, time))) for time in (0.0, 25.0, 45.0, 75.0)]
    assert seen == [1, 1, 2, 1]
    assert all(world.available(1, float(time)).sum() >= 1 for time in range(200))
    never = {name: {"active": [], "inactive": [], "finish_time": 100} for name in "abc"}
    world = world_of(
        availability_trace=str(save(tmp_path, "n.json", never)), trace_clients="first", workers=3
    )
    assert world.available(1, 5.0).sum() == 1


def test_a_phone_that_was_active_from_the_start_or_to_the_end(tmp_path: Path) -> None:
    times = {
        "a": {"active": [40], "inactive": [10, 60], "finish_time": 100},
        "b": {"active": [40, 90], "inactive": [60], "finish_time": 100},
    }
    file = str(save(tmp_path, "a.json", times))
    world = world_of(availability_trace=file, trace_clients="first", workers=2)
    assert world.available(1, 5.0).tolist() == [True, False]
    assert world.available(1, 95.0).tolist() == [False, True]
    assert world.available(1, 50.0).tolist() == [True, True]


def test_a_phone_that_was_active_at_both_ends(tmp_path: Path) -> None:
    """The recording begins within a time of activity and ends within another: each list has as
    many times as the other, and the first time is an end."""
    times = {
        "a": {"active": [40, 90], "inactive": [10, 60], "finish_time": 100},
        "b": {"active": [90], "inactive": [10], "finish_time": 100},
        "c": {"active": [0, 90], "inactive": [10, 100], "finish_time": 100},
        "d": {"active": [0], "inactive": [100], "finish_time": 100},
    }
    rows = [
        "a,40,60,100",
        "a,90,10,100",
        "b,90,10,100",
        "c,0,10,100",
        "c,90,100,100",
        "d,0,100,100",
    ]
    table = "\n".join(["client,active,inactive,finish_time", *rows])
    for name, content in (("a.json", times), ("a.csv", table)):
        file = str(save(tmp_path, name, content))
        world = world_of(availability_trace=file, trace_clients="first", workers=4)
        expected = {
            0.0: [True, True, True, True],
            9.9: [True, True, True, True],
            10.0: [False, False, False, True],
            50.0: [True, False, False, True],
            60.0: [False, False, False, True],
            90.0: [True, True, True, True],
            99.9: [True, True, True, True],
            105.0: [True, True, True, True],
            120.0: [False, False, False, True],
        }
        for time, here in expected.items():
            assert world.available(1, time).tolist() == here, (name, time)
        recorded = world.availability.recorded
        assert recorded is not None
        assert recorded.seconds_away(70.0).tolist() == [20.0, 20.0, 20.0, 0.0]


@pytest.mark.parametrize("algorithm", ["fedhp", "fedhp_plus", "dpsgd", "ldsgd", "pens", "adpsgd"])
def test_every_algorithm_runs_on_the_recorded_clients(algorithm: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "device_trace": str(save(tmp_path, "d.json", DEVICES)),
        "availability_trace": str(save(tmp_path, "a.json", TIMES)),
        "availability_speed": 30.0,
        "model_megabits": 1.0,
        "workers": 8,
    }
    experiment = settings(algorithm, **changes)
    world = prepare(experiment).world
    with fedhp.run(experiment, tmp_path / "run") as run:
        whole = run.digest()
        clock = [0.0, *run.array("rounds", "clock").tolist()]
        if algorithm != "adpsgd":
            for number, start in enumerate(clock[:-1], start=1):
                here = run.table("workers", round_index=number)
                present = [time is not None for time in here["worker_time"]]
                assert present == world.available(number, start).tolist()
    with fedhp.run(experiment, tmp_path / "again") as run:
        assert run.digest() == whole


def test_asynchronous_workers_wake_up_when_all_have_gone(tmp_path: Path) -> None:
    """Two that are there in turn for a moment: each goes while the other is away."""
    times = {
        "a": {"active": [0.0], "inactive": [0.2], "finish_time": 1.0},
        "b": {"active": [0.5], "inactive": [0.7], "finish_time": 1.0},
    }
    file = str(save(tmp_path, "a.json", times))
    experiment = settings("adpsgd", workers=2, availability_trace=file, trace_clients="first")
    loop = EventLoop(planning_context(experiment, model_bits=1e4), EventExecutor())
    clocks = [record.clock for record in loop.rounds()]
    assert len(clocks) == 6
    assert np.isfinite(clocks).all()


NAN = float("nan")
BAD: list[tuple[str, Any, str]] = [
    ("device", {"1": {"computation": NAN, "communication": 1.0}}, "computation is nan"),
    ("device", {"1": {"computation": -5, "communication": 1.0}}, "computation is -5"),
    ("device", {"1": {"computation": "fast", "communication": 1.0}}, "computation is 'fast'"),
    ("device", {"1": {"communication": 1.0}}, "computation is missing"),
    ("device", {"1": {"computation": 5, "communication": 0}}, "communication is 0"),
    ("device", {"1": {"computation": True, "communication": 5}}, "computation is True"),
    ("device", {"1": {"computation": 1e7, "communication": 5}}, "would take 300000 s"),
    ("device", {"1": {"computation": 10**400, "communication": 5}}, "computation is 1000"),
    ("device", {"1": [5, 5]}, r"client 1 is \[5, 5\]"),
    ("device", {}, "the file has 0 clients, but workers = 1"),
    ("device", "client,computation\n1,5\n", "the columns are client, computation"),
    ("device", "client,computation,communication\n1,x,5\n", "line 2: computation is 'x'"),
    ("device", "", "the file has no clients"),
    ("device", "{", "cannot be read"),
    ("availability", {"1": {"active": [1], "inactive": [2]}}, "finish_time is missing"),
    ("availability", {"1": {"active": 1, "inactive": [2], "finish_time": 9}}, "active is 1"),
    (
        "availability",
        {"1": {"active": [1, NAN], "inactive": [2, 3], "finish_time": 9}},
        "the active time nan",
    ),
    (
        "availability",
        {"1": {"active": [1], "inactive": [12], "finish_time": 9}},
        "the inactive time 12",
    ),
    (
        "availability",
        {"1": {"active": [5, 2], "inactive": [6, 8], "finish_time": 9}},
        "begins before",
    ),
    (
        "availability",
        {"1": {"active": [1, 3, 5], "inactive": [2], "finish_time": 9}},
        "do not alternate",
    ),
    (
        "availability",
        {"1": {"active": [4, 5], "inactive": [2, 3], "finish_time": 9}},
        "do not alternate",
    ),
    (
        "device",
        '{"7": {"computation": 5, "communication": 5}, "7": {"computation": 6}}',
        "'7' is listed twice",
    ),
    (
        "device",
        "client,computation,communication\n7,5,5\n8,5,5\n7,6,6\n",
        "line 4: client 7 is listed twice",
    ),
    (
        "availability",
        '{"7": {"active": [1], "inactive": [2], "finish_time": 9, "active": [3]}}',
        "'active' is listed twice",
    ),
    (
        "availability",
        "client,active,inactive,finish_time\n7,1,2,9\n7,3,4,8\n",
        "line 3: finish_time is 8, but 9 in an earlier line of client 7",
    ),
    (
        "availability",
        "client,active,inactive,finish_time\n7,1,4,9\n7,3,5,9\n",
        "client 7: a time of activity begins before",
    ),
]


@pytest.mark.parametrize(("kind", "content", "problem"), BAD)
def test_a_bad_file_is_refused_with_the_client_and_the_fix(
    kind: str, content: Any, problem: str, tmp_path: Path
) -> None:
    file = save(tmp_path, "bad.txt", content)
    with pytest.raises(FedhpError, match=problem) as caught:
        world_of(workers=1, **{f"{kind}_trace": str(file)})
    assert isinstance(caught.value, DataError | ConfigError)
    assert caught.value.allowed
    assert caught.value.fix


class Bomb:
    """A pickle that would leave a mark if it were read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    file, mark = tmp_path / "client_device_capacity", tmp_path / "mark"
    file.write_bytes(pickle.dumps({1: Bomb(mark)}))
    with pytest.raises(DataError, match="is a pickle") as caught:
        world_of(workers=1, device_trace=str(file))
    assert "docs/experiments.md" in str(caught.value)
    assert not mark.exists()


def test_the_conversion_of_the_documentation_works(tmp_path: Path) -> None:
    """The code block in docs/experiments.md, run on files as FedScale has them."""
    text = Path(__file__).parents[3].joinpath("docs/experiments.md").read_text(encoding="utf-8")
    code = text.split("```python\nimport json, pickle")[1].split("```")[0]
    originals = {"client_device_capacity": DEVICES, "client_behave_trace": TIMES}
    for name, content in originals.items():
        by_number = {int(client): facts for client, facts in content.items()}
        (tmp_path / name).write_bytes(pickle.dumps(by_number))
    script = f"import os\nos.chdir({str(tmp_path)!r})\nimport json, pickle{code}"
    exec(compile(script, "docs/experiments.md", "exec"), {})
    for name, content in originals.items():
        assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")) == content


def test_what_cannot_be_together_is_refused(tmp_path: Path) -> None:
    file = str(save(tmp_path, "d.json", DEVICES))
    with pytest.raises(ConfigError, match=r"so is world\.trace"):
        world_of(device_trace=file, trace=str(tmp_path / "t.csv"))
    with pytest.raises(ConfigError, match="one bandwidth for each worker"):
        world_of(device_trace=file, bandwidth={"per": "link"})
    both = save(tmp_path, "t.csv", "time,worker,available\n0,0,1\n5,0,0\n")
    with pytest.raises(ConfigError, match="who is available as well"):
        world_of(trace=str(both), availability_trace=str(save(tmp_path, "a.json", TIMES)))
    with pytest.raises(ConfigError, match="8 clients, but workers = 9"):
        world_of(device_trace=file, workers=9)
    with pytest.raises(DataError, match="cannot be read"):
        world_of(device_trace=str(tmp_path / "nowhere.json"))
