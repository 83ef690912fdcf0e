"""Averages over a server: clock, bytes, weights, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedhp
from fedhp import Decision, Federation, Observation, Plan, Reports, ServerAverage
from fedhp.config import parse, to_tables
from fedhp.engine.prepare import prepare
from fedhp.engine.runs.run import loop_of
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import BadPlan, ConfigError
from fedhp.exchange.facts import from_facts
from fedhp.rounds.planner import next_plan
from fedhp.tables import merge_tables
from fedhp.types import FloatArray, IntArray, RoundRecord
from unit.engine.runs import bits

N = 5
WEIGHTS = np.array([3.0, 0.0, 1.0, 0.0, 0.0])
STEPS = np.array([2, 0, 3, 0, 0])


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to remember."""


class OverServer:
    """The same participants in every round."""

    weights: ClassVar[FloatArray] = WEIGHTS
    steps: ClassVar[IntArray | None] = STEPS

    def start(self, federation: Federation) -> Nothing:
        return Nothing()

    def plan(
        self, state: Nothing, observation: Observation, reports: Reports
    ) -> tuple[Nothing, Plan]:
        decision = Decision.without_links("over the server")
        deadline = 1.0 if self.steps is None else None
        return state, Plan(ServerAverage(self.weights), decision, self.steps, deadline)


def tables(**changes: Any) -> dict[str, Any]:
    base = {
        "workers": N,
        "rounds": 2,
        "algorithm": {"name": f"{__name__}:OverServer"},
        "model": {"name": "mlp", "hidden": [4]},
        "data": {"name": "digits", "skew": 0.5},
        "training": {"batch_size": 4, "decay": 1.0, "mixing": "ordered"},
        "evaluation": {"every": 2, "images": 40},
        "world": {
            "model_megabits": 12.0,
            "server": {"uplink": 8.0, "downlink": 3.0},
            "bandwidth": {"unit": "Mb/s", "low": 2.0, "high": 9.0, "latency": 0.5},
        },
    }
    return merge_tables(base, changes)


def carried_out(**changes: Any) -> tuple[LocalExecutor, list[RoundRecord]]:
    engine = LocalExecutor(prepare(parse(tables(**changes))))
    return engine, list(loop_of(engine).rounds())


def test_a_round_lasts_from_the_download_to_the_last_upload() -> None:
    engine, (record, _) = carried_out()
    network = engine.prepared.world.network(0.0)
    own = network.bandwidth[[0, 2]]
    assert (own > 1.5e6).all()  # half of the server's downlink: the uploads wait for it
    down = 12e6 / np.minimum(own, 8e6 / 2) + 0.5
    up = 12e6 / 1.5e6 + 0.5
    times = record.timing
    np.testing.assert_allclose(times.communication_time, [down[0] + up, 0, down[1] + up, 0, 0])
    np.testing.assert_allclose(record.link_time, down + up)
    assert record.links.tolist() == [[0, 0], [2, 2]]
    assert record.link_bytes.tolist() == [3_000_000, 3_000_000]
    compute = engine.prepared.world.compute_times(STEPS, 1, time=0.0)
    np.testing.assert_allclose(times.round_time, (compute[[0, 2]] + down + up).max())
    assert np.isnan(record.link_distance).all()
    engine.close()


def test_lines_with_two_directions_and_links_that_change() -> None:
    lines = {"uplink": 0.5, "downlink": 1.0, "during_transfer": "trace", "correlation": 1.0}
    engine, (record, _) = carried_out(
        world={"bandwidth": lines, "server": {"uplink": 1e6, "downlink": 1e6}}
    )
    world = engine.prepared.world
    line = world.network(0.0).bandwidth[[0, 2]] / 0.5
    np.testing.assert_allclose(record.link_time, 12e6 / line + 12e6 / (0.5 * line) + 1.0)
    engine.close()


def test_links_that_are_known_one_by_one_count_with_their_mean() -> None:
    engine, (record, _) = carried_out(
        world={"bandwidth": {"per": "link"}, "server": {"uplink": 1e6, "downlink": 1e6}}
    )
    links = engine.prepared.world.network(0.0).bandwidth
    line = (links.sum(axis=1) - links.diagonal())[[0, 2]] / (N - 1)
    np.testing.assert_allclose(record.link_time, 2 * 12e6 / line + 1.0)
    engine.close()


def test_jitter_counts_once_for_both_ways() -> None:
    _, plain = carried_out()
    engine, shaken = carried_out(world={"bandwidth": {"jitter": 0.5}})
    jitter = engine.prepared.world.jitter
    assert jitter is not None
    factor = jitter.factors(shaken[0].links, 1)
    np.testing.assert_allclose(shaken[0].link_time, factor * plain[0].link_time)
    engine.close()


def test_the_weights_are_divided_by_their_sum() -> None:
    engine, _ = carried_out(rounds=1, evaluation={"every": 1})
    state = engine.state()["models"]
    engine.close()
    assert (state == state[0]).all()
    engine = LocalExecutor(prepare(parse(tables())))
    engine.train(STEPS, round_index=1, learning_rate=engine.prepared.learning_rate)
    after = engine.shard.rows.after.double().numpy()
    np.testing.assert_allclose(state[0], 0.75 * after[0] + 0.25 * after[2], atol=1e-6)
    engine.close()


def test_three_shards_and_compressed_models() -> None:
    for compression, size in (("none", 1.0), ("int8", None)):
        change = {"exchange": {"compression": compression}}
        engine, records = carried_out(**change)
        prepared = parse(tables(**change))
        shards = LocalExecutor(prepare(prepared), shards=3)
        assert bits(list(loop_of(shards).rounds())) == bits(records)
        assert bits(shards.state()) == bits(engine.state())
        share = engine.prepared.transfer_share if size is None else size
        assert records[0].link_bytes.tolist() == [2 * round(share * 1_500_000)] * 2
        engine.close()
        shards.close()


def test_the_record_says_that_there_was_a_server(tmp_path: Path) -> None:
    with fedhp.run(parse(tables()), tmp_path / "run") as run:
        text = str(fedhp.explain(run.folder, 1))
        assert run.table("links", round_index=1)["a"] == [0, 2]
        assert run.table("rounds", round_index=1)["bytes_sent"] == [6_000_000]
    assert "2 workers took part over the server" in text
    assert "–server" in text
    assert "(to the server)" in text


def test_without_participants_everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OverServer, "weights", np.zeros(N))
    monkeypatch.setattr(OverServer, "steps", np.zeros(N, dtype=np.int64))
    engine, records = carried_out()
    assert records[-1].clock == 0
    assert records[-1].bytes_sent == 0
    assert np.array_equal(engine.state()["models"][0], engine.shard.rows.initial.numpy())
    engine.close()


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("exchange.compression", {"exchange": {"compression": "topk"}}),
        ("exchange.robust", {"exchange": {"robust": "clip", "clip": 1.0}}),
    ],
)
def test_settings_that_do_not_fit_are_named(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        carried_out(**changes)
    assert error.value.key == key


def test_without_a_server_nothing_begins() -> None:
    lacking = tables()
    del lacking["world"]["server"]
    experiment = parse(lacking)
    assert "server" not in to_tables(experiment)["world"]
    engine = LocalExecutor(prepare(experiment))
    with pytest.raises(ConfigError, match="plans averages over a server") as error:
        next(loop_of(engine).rounds())
    assert error.value.key == "world.server"
    engine.close()


@pytest.mark.parametrize("line", [{"uplink": 5.0}, {"downlink": 5.0}, {"uplink": 0, "downlink": 1}])
def test_a_line_has_two_directions_above_zero(line: dict[str, float]) -> None:
    wrong = tables()
    wrong["world"]["server"] = line
    with pytest.raises(ConfigError) as error:
        parse(wrong)
    assert error.value.key in ("world.server.uplink", "world.server.downlink")


@pytest.mark.parametrize(
    ("weights", "steps", "problem"),
    [
        (np.ones(4), STEPS, r"is float64 of the shape \(4,\)"),
        (np.ones(N, dtype=np.int64), STEPS, "is int64 of the shape"),
        (np.array([1.0, np.nan, 1, 0, 0]), STEPS, "holds nan for worker 1"),
        (-WEIGHTS, STEPS, "holds -3.0 for worker 0"),
        (WEIGHTS, np.array([2, 1, 3, 0, 0]), "worker 1 has the weight 0 .* 1 local steps"),
        (WEIGHTS, np.array([2, 0, 0, 0, 0]), "worker 2 has the weight 1 .* 0 local steps"),
        (WEIGHTS, None, "a ServerAverage and no local_steps"),
        (WEIGHTS[::-1].copy(), STEPS[::-1].copy(), "2 steps for worker 4, which is away"),
    ],
)
def test_bad_plans_are_refused(
    weights: Any, steps: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OverServer, "weights", weights)
    monkeypatch.setattr(OverServer, "steps", steps)
    nothing: Any = None
    here = np.array([True, True, True, True, False])
    with pytest.raises(BadPlan, match=problem):
        next_plan(
            OverServer(),
            Nothing(),
            observation=Observation(1, 0.0, 0.1, here, nothing),
            reports=nothing,
        )


def test_a_history_says_all_of_it() -> None:
    facts = json.loads(json.dumps(ServerAverage(WEIGHTS).to_facts()))
    again = from_facts(facts)
    assert isinstance(again, ServerAverage)
    assert again.weights.tolist() == WEIGHTS.tolist()
    parts = again.parts(N)
    assert [list(part.sources) for part in parts] == [[2], [0, 2], [0], [0, 2], [0, 2]]
    assert [part.own_weight for part in parts] == [0.75, 0.0, 0.25, 0.0, 0.0]
