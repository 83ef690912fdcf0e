"""Lines that send and receive at different speeds, and transfers that jitter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedhp.config import WorldConfig, parse, to_tables
from fedhp.engine.events import EventLoop
from fedhp.engine.executor import EventExecutor
from fedhp.engine.loop import RoundLoop
from fedhp.errors import ConfigError
from fedhp.exchange import GroupAverage
from fedhp.rounds.context import PlanningContext, planning_context
from fedhp.types import FloatArray, IntArray, RoundRecord
from fedhp.world import World, build_world
from unit.world.test_transfers import WORKERS, Untrained

BITS = 8e6
ALGORITHMS = ["fedhp", "fedhp_plus", "dpsgd", "ldsgd", "pens", "adpsgd"]


def world(workers: int = 5, **bandwidth: Any) -> World:
    links = {"low": 2.0, "high": 9.0, "unit": "Mb/s", **bandwidth}
    config = WorldConfig.model_validate({"bandwidth": links})
    return build_world(config, workers=workers, rounds=9, seed=4, model_bits=BITS)


def context(algorithm: str, **bandwidth: Any) -> PlanningContext:
    tables = {
        "workers": WORKERS,
        "rounds": 3,
        "algorithm": {"name": algorithm, **({"peers": 3} if algorithm == "pens" else {})},
        "world": {"bandwidth": {"unit": "Mb/s", **bandwidth}},
    }
    return planning_context(parse(tables), model_bits=BITS)


def rounds(algorithm: str, **bandwidth: Any) -> list[RoundRecord]:
    built = context(algorithm, **bandwidth)
    if algorithm == "adpsgd":
        return list(EventLoop(built, EventExecutor()).rounds())
    return list(RoundLoop(built, Untrained()).rounds())


@pytest.mark.parametrize("ones", [[1.0] * WORKERS, {"low": 1.0, "high": 1.0}, 1])
@pytest.mark.parametrize("algorithm", ["pens", "dpsgd"])
def test_lines_of_one_are_the_default_however_they_are_written(algorithm: str, ones: Any) -> None:
    expected = [record.clock for record in rounds(algorithm, sharing=True)]
    for name in ("uplink", "downlink"):
        given = rounds(algorithm, sharing=True, **{name: ones})
        assert [record.clock for record in given] == expected


def naive(
    raw: FloatArray, up: FloatArray, down: FloatArray, links: IntArray, *, directed: bool
) -> list[float]:
    """Seconds of each transfer, direction by direction."""

    def seconds(sender: int, receiver: int) -> float:
        if raw.ndim == 1:
            return BITS / float(min(raw[sender] * up[sender], raw[receiver] * down[receiver]))
        return BITS / float(raw[sender, receiver] * min(up[sender], down[receiver]))

    pulls = [seconds(b, a) for a, b in links.tolist()]
    if directed:
        return pulls
    return [max(pull, seconds(a, b)) for pull, (a, b) in zip(pulls, links.tolist(), strict=True)]


@pytest.mark.parametrize("per", ["worker", "link"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("follow", [False, True])
def test_each_direction_has_its_own_speed(per: str, directed: bool, follow: bool) -> None:
    up, down = np.array([0.2, 0.5, 1.0, 0.1, 0.4]), np.array([1.0, 0.7, 0.3, 2.0, 0.9])
    lines = {"uplink": up.tolist(), "downlink": down.tolist(), "per": per, "interval": 1e6}
    built = world(during_transfer="trace" if follow else "fixed", **lines)
    raw = world(per=per, interval=1e6).network(0.0).bandwidth
    links = np.array([[0, 1], [3, 0], [2, 4], [4, 2]])
    times = built.link_time(
        links, np.zeros(5, np.int64), clock=0.0, ready=np.zeros(5), directed=directed
    )
    expected = naive(raw, up, down, links, directed=directed)
    assert times.tolist() == pytest.approx(expected, rel=1e-12)


def test_pulls_share_the_line_in_their_direction_alone() -> None:
    """Worker 0 sends to two and receives from one: each of the two has half of its uplink."""
    built = world(3, low=8.0, high=8.0, uplink=0.5, downlink=1.0, sharing=True)
    links = np.array([[1, 0], [2, 0], [0, 2]])
    transfers = np.bincount(links.ravel(), minlength=3)
    times = built.link_time(links, transfers, clock=0.0, ready=np.zeros(3), directed=True)
    assert times.tolist() == pytest.approx([BITS / 2e6, BITS / 2e6, BITS / 4e6])


def test_a_range_gives_every_worker_its_own_factor() -> None:
    first, again = (world(200, uplink={"low": 0.1, "high": 0.3}, downlink=2.0) for _ in range(2))
    assert first.lines is not None
    assert again.lines is not None
    assert first.lines.up.tolist() == again.lines.up.tolist()
    assert first.lines.down.tolist() == [2.0] * 200
    assert 0.1 <= first.lines.up.min() < 0.13
    assert 0.27 < first.lines.up.max() <= 0.3
    assert len(set(first.lines.up.tolist())) == 200


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_slow_direction_slows_every_algorithm(algorithm: str) -> None:
    """A quarter of the uplink: transfers take four times as long; a faster downlink changes
    nothing, because the other end still sends at its old speed."""
    plain, slow, fast = (
        rounds(algorithm, low=4.0, high=4.0, **lines)
        for lines in ({}, {"uplink": 0.25}, {"downlink": 8.0})
    )
    for before, after, same in zip(plain, slow, fast, strict=True):
        if not len(before.links):
            continue
        if algorithm != "fedhp_plus":  # whose deadlines follow the transfers
            assert after.link_time.max() == pytest.approx(4 * before.link_time.max())
        else:
            assert after.link_time.max() > 3.9 * before.link_time.max()
        assert same.link_time.tolist() == before.link_time.tolist()


def test_jitter_has_its_mean_and_spread_and_no_memory() -> None:
    built = world(40, jitter=0.3)
    assert built.jitter is not None
    links = np.stack(np.triu_indices(40, 1), axis=1)
    factors = np.concatenate([built.jitter.factors(links, number) for number in range(60)])
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.3, abs=0.01)
    assert factors.min() > 0
    one = built.jitter.factors(links[17:18], 5)
    assert one[0] == built.jitter.factors(links, 5)[17]  # whatever else is asked for
    each = built.jitter.factors(links, 6)
    assert abs(np.corrcoef(built.jitter.factors(links, 5), each)[0, 1]) < 0.12
    other = build_world(
        WorldConfig.model_validate({"bandwidth": {"jitter": 0.3}}),
        workers=40,
        rounds=9,
        seed=5,
        model_bits=BITS,
    )
    assert other.jitter is not None
    assert other.jitter.factors(links, 5).tolist() != built.jitter.factors(links, 5).tolist()


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_meets_jitter_that_its_planner_did_not_see(
    algorithm: str, follow: bool
) -> None:
    during = "trace" if follow else "fixed"
    links = {"low": 4.0, "high": 4.0, "latency": 0.1, "during_transfer": during}
    plain, shaken = rounds(algorithm, **links), rounds(algorithm, jitter=0.4, **links)
    assert any(len(record.links) for record in shaken)
    for record in shaken:
        if not len(record.links):
            continue
        if algorithm in ("fedhp_plus",):
            planned = record.decision.facts["planned_transfer_time"]
            assert record.decision.facts["transfer_time"] != planned
        if algorithm == "adpsgd":
            continue
        assert len(set(record.link_time.tolist())) == len(record.links)
        assert len({round(time, 9) for time in record.decision.link_time.tolist()}) == 1
    assert [record.clock for record in plain] != [record.clock for record in shaken]
    again = rounds(algorithm, jitter=0.4, **links)
    assert [record.clock for record in again] == [record.clock for record in shaken]


def test_the_slowest_link_of_a_tree_sets_the_pace_with_jitter_too() -> None:
    group = GroupAverage(
        participants=np.arange(4),
        parents=np.array([-1, 0, 0, 1]),
        returning=np.zeros(4, dtype=np.bool_),
        compression="none",
    )
    network = world(4).network(0.0)
    jitter = np.array([1.0, 3.0, 0.5])
    slowest = float((group.link_times(network) * jitter).max())
    assert group.transfer_time(network, jitter=jitter) == pytest.approx(slowest * (1 + 4 / 128))


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"bandwidth": {"uplink": 0}}, "world.bandwidth.uplink", "invalid value 0"),
    ({"bandwidth": {"uplink": [1.0, 0.5]}}, "world.bandwidth.uplink", "2 factors"),
    ({"bandwidth": {"downlink": {"low": 2, "high": 1}}}, "world.bandwidth.downlink", "above high"),
    ({"bandwidth": {"downlink": "fast"}}, "world.bandwidth.downlink", "'fast'"),
    ({"bandwidth": {"jitter": -0.1}}, "world.bandwidth.jitter", "-0.1"),
    ({"bandwidth": {"uplink": 0.5}, "trace": "t.csv"}, "world.bandwidth.uplink", "world.trace"),
]


@pytest.mark.parametrize(("tables", "key", "problem"), BAD)
def test_bad_lines_are_refused(tables: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse({"workers": 3, "world": tables})
    assert caught.value.key.startswith(key)
    assert caught.value.fix
    assert caught.value.allowed


def test_an_experiment_without_the_settings_has_the_tables_it_had() -> None:
    tables = to_tables(parse({}))["world"]
    assert not {"uplink", "downlink", "jitter"} & tables["bandwidth"].keys()
    assert not {"trace_clients", "availability_speed", "device_trace"} & tables.keys()
    lines = {"uplink": {"low": 0.1, "high": 0.2}, "downlink": 0.5, "jitter": 0.2}
    changed = parse({"world": {"bandwidth": lines}})
    assert parse(to_tables(changed)) == changed
