"""Rounds with a group average: overlap, carried-over steps, the consensus, times, the record."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhp
from fedhp.algorithms import Traits
from fedhp.algorithms.fedhp_plus import FedHPPlus
from fedhp.cluster.coordinator.process.network_checks import _check_groups, check_network
from fedhp.config import parse
from fedhp.engine.loop import RoundLoop
from fedhp.engine.memory import plan_memory
from fedhp.engine.replay.whatif import whatif
from fedhp.engine.runs.run import loop_of
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError, RunError
from fedhp.exchange import GroupAverage
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE
from fedhp.record.tensors import pack, unpack
from fedhp.report.explain import explain_text
from fedhp.types import Reports
from unit.engine.runs import EXACT, NORMED, prepared_of

SIZE: dict[str, Any] = {
    "workers": 7,
    "rounds": 8,
    "evaluation": {"every": 8, "images": 50},
    "world": {"devices": ["xavier_nx", "jetson_tx2"]},
}
STEADY: dict[str, Any] = {  # a step takes 0.1 s, always
    "world": {
        "device": {"steady": {"step_time": 0.1, "sd": 0.0}},
        "devices": ["steady"],
        "drift": 0.0,
    }
}


def plus(*changes: dict[str, Any], **settings: Any) -> LocalExecutor:
    return LocalExecutor(prepared_of("fedhp_plus", SIZE, EXACT, *changes, **settings))


def round_loop(engine: LocalExecutor) -> RoundLoop:
    loop = loop_of(engine)
    assert isinstance(loop, RoundLoop)
    return loop


@pytest.mark.parametrize("compression", ["int8", "none"])
def test_participants_hold_the_same_consensus(compression: str) -> None:
    """Bit by bit; with int8 those that returned at some time have it in 8 bits."""
    engine = plus({"rounds": 12}, compression=compression)
    loop = round_loop(engine)
    returned: set[tuple[int, int]] = set()
    columns = engine.prepared.layout.mixed
    for record in loop.rounds():
        state = loop.planner.state
        consensus = engine.state()["consensus"]
        group = record.decision.participation
        assert group is not None
        for fragment, part in enumerate((slice(columns // 2), slice(columns // 2, columns))):
            newest = np.flatnonzero(state.held[fragment] == state.held[fragment].max())
            if record.round_index % 2 == fragment:
                returned |= {(fragment, int(worker)) for worker in np.flatnonzero(group.returning)}
            exact = [w for w in newest.tolist() if (fragment, w) not in returned]
            rows = consensus[newest if compression == "none" else exact, part]
            assert (rows == rows[0]).all()
            np.testing.assert_allclose(
                consensus[newest, part],
                rows[:1].repeat(len(newest), 0),
                rtol=0,
                atol=0 if compression == "none" else 1e-2,
            )
    assert returned
    engine.close()


def test_what_is_learned_during_the_transfer_is_added_to_the_consensus() -> None:
    """x = c' + (x after - x before) for participants and fragment, the trained model elsewhere."""
    engine = plus()
    loop = round_loop(engine)
    rounds = loop.rounds()
    next(rounds)
    planned = loop._plan()
    assert planned.group is not None
    exchange = planned.planned.plan.exchange
    assert isinstance(exchange, GroupAverage)
    before = engine.state()["models"].copy()
    held = engine.state()["consensus"].copy()
    engine.train(planned.first_steps, round_index=2, learning_rate=0.1)
    exchange.carry_out(engine, round_index=2)
    shard = engine.shard
    after, mixed = shard.rows.after.numpy().copy(), shard.rows.mixed.numpy().copy()
    engine.advance()
    new = engine.state()["consensus"]
    part = slice(0, engine.prepared.layout.mixed // 2)  # round 2 averages fragment 0
    taking = exchange.participants
    assert 0 < len(taking) < 7
    assert (after[taking] != before[taking]).any()
    expected = after.copy()
    expected[taking, part] = new[taking, part] + (after[taking, part] - before[taking, part])
    np.testing.assert_array_equal(mixed, expected)
    others = np.setdiff1d(np.arange(7), taking)
    np.testing.assert_array_equal(new[others], held[others])
    np.testing.assert_array_equal(new[:, part.stop :], held[:, part.stop :])
    mean = (before[taking, part] - held[taking, part]).astype(np.float64).mean(axis=0)
    change = new[taking[0], part] - held[taking[0], part]
    np.testing.assert_allclose(change, 1.7 * mean, atol=0.02 * np.abs(mean).max() + 1e-4)
    engine.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_no_time_is_lost_between_rounds(overlap: bool) -> None:
    """Steps of 0.1 s: after t seconds of training everyone has made floor(t / 0.1)."""
    more = {"training": {"batch_size": 1}, "algorithm": {"overlap": overlap}}
    engine = plus(STEADY, more, first_deadline=0.37)
    trained, steps = 0.0, np.zeros(7)
    for record in round_loop(engine).rounds():
        times, facts = record.timing, record.decision.facts
        transfer = facts.get("transfer_time", 0.0)
        assert times.round_time == pytest.approx(transfer + facts["deadline"], rel=1e-12)
        trained += times.round_time if overlap else facts["deadline"]
        steps += record.local_steps
        assert steps.tolist() == [np.floor(trained / 0.1 + 1e-6)] * 7
        if overlap:
            assert not times.waiting_time.any()
            assert not times.communication_time.any()
        elif transfer:
            taking = np.unique(record.links)
            assert times.communication_time[taking] == pytest.approx(transfer)
            left = np.setdiff1d(np.arange(7), taking)
            assert times.waiting_time[left] == pytest.approx(transfer)
    engine.close()


@pytest.mark.parametrize("monitor", [{"monitor_delay": 1}, {"monitor_error": 0.3}])
@pytest.mark.parametrize("per", ["worker", "link"])
def test_the_true_network_sets_the_time_not_the_monitored_one(
    monitor: dict[str, float], per: str
) -> None:
    links = {"interval": 0.5, "correlation": 0.0, "per": per}
    engine = plus({"world": {**monitor, "bandwidth": links}})
    loop = round_loop(engine)
    different = 0
    for planned_before, record in enumerate(loop.rounds()):
        facts = record.decision.facts
        if planned_before == 0:
            continue
        different += facts["transfer_time"] != facts["planned_transfer_time"]
        assert loop.planner.last_reports.transfer_time == facts["transfer_time"]
        started = record.clock - record.timing.round_time
        network = engine.prepared.world.network(started)
        assert record.bytes_sent == record.link_bytes.sum() > 0
        assert facts["transfer_time"] >= (record.link_time - network.latency).max()
    assert different
    engine.close()


def test_phases_have_different_batches() -> None:
    engine = plus(STEADY)
    shard = engine.shard
    from fedhp.engine.executor import LocalTraining

    first = shard.trainer.batches(0, LocalTraining(2, 5, 0.1))
    second = shard.trainer.batches(0, LocalTraining(2, 5, 0.1, phase=1))
    assert (first != second).any()
    engine.close()


def test_statistics_stay_positive_and_are_the_groups_mean() -> None:
    engine = plus(NORMED, fragments=1)
    list(round_loop(engine).rounds())
    layout = engine.prepared.layout
    slot = next(slot for slot in layout.slots if slot.name.endswith("running_var"))
    state = engine.state()
    assert (state["consensus"][:, slot.start : slot.stop] > 0).all()
    assert (state["models"][:, slot.start : slot.stop] > 0).all()
    assert state["momentum"].shape[1] == layout.trainable < layout.mixed
    engine.close()


def test_the_consensus_is_tested_and_served(tmp_path: Path) -> None:
    """After round 1 everyone still serves the initial model."""
    tables = {
        "workers": 5,
        "rounds": 5,
        "algorithm": {"name": "fedhp_plus"},
        "evaluation": {"images": 60},
        "data": {"skew": 0.8},
        "world": {"profile": "slow_links", "model_megabits": 12.0},
    }
    with fedhp.run(fedhp.make_experiment(tables), tmp_path / "run") as run:
        accuracy = run.array("worker_evaluations", "accuracy")
        assert len(set(accuracy[0].tolist())) == 1
        served = run.models()
        assert served is not None
        state = {name: tensor.numpy() for name, tensor in run.state_dict(2).items()}
        flat = np.concatenate([value.reshape(-1) for value in state.values()])
        np.testing.assert_array_equal(flat, served[2])


# --- the record and the words -----------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plus") / "run"
    tables = {
        "workers": 8,
        "rounds": 14,
        "algorithm": {"name": "fedhp_plus", "patience": 2},
        "evaluation": {"every": 7, "images": 50},
        "world": {
            "profile": "slow_links",
            "model_megabits": 12.0,
            "away": [{"worker": 3, "first": 4, "last": 6}],
        },
    }
    fedhp.run(fedhp.make_experiment(tables), folder).close()
    return folder


def test_the_record_says_who_took_part_and_why(recorded: Path) -> None:
    with RunReader(recorded) as run:
        table = run.table("participation")
        rounds = run.table("rounds")
        assert len(table["round"]) == 14 * 8
        for index in range(1, 15):
            rows = [row for row, number in enumerate(table["round"]) if number == index]
            taking = [row for row in rows if table["role"][row] in ("fast", "overdue", "added")]
            assert len(taking) == (0 if index == 1 else rounds["links"][index - 1] + 1)
            assert sum(table["root"][row] for row in rows) == (index > 1)
            facts = run.table("facts", round_index=index)
            names = dict(zip(facts["name"], facts["value"], strict=True))
            assert names["deadline"] > 0
            assert index == 1 or names["participants"] == len(taking)
        assert "overdue" in table["role"]
        away = [table["round"][r] for r, role in enumerate(table["role"]) if role == "away"]
        assert away == [4, 5, 6]
        present = [
            left
            for left, role in zip(table["left_out"], table["role"], strict=True)
            if role == "left_out"
        ]
        assert max(present) < 2


def test_explain_says_it_in_words(recorded: Path) -> None:
    with RunReader(recorded) as run:
        table = run.table("participation")
        overdue = next(r for r, role in enumerate(table["role"]) if role == "overdue")
        text = " ".join(explain_text(run, table["round"][overdue]).split())
        facts = run.table("facts", round_index=table["round"][overdue])
        values = dict(zip(facts["name"], facts["value"], strict=True))
        assert f"Fragment {values['fragment'] + 1:.0f} of 2" in text
        assert "Overdue, because they were left out as often as is allowed:" in text
        assert f"among {values['participants']:.0f} of" in text
        assert "The transfer was predicted to take" in text
        assert "Nobody waits" in text
        assert "nothing is exchanged yet" in explain_text(run, 1)
        assert "Left out because of their slow links" in " ".join(
            explain_text(run, index) for index in range(2, 15)
        ).replace("\n  ", " ")


def test_a_replay_gives_the_recorded_rounds(recorded: Path) -> None:
    """Its decisions need the world only, so other settings are exact too."""
    result = whatif(recorded, ["fedhp_plus:min_share=1.0", "dpsgd"])
    assert result.first_difference is None
    assert [outcome.sure for outcome in result.planners] == ["exact", "exact"]


def test_records_and_checkpoints_from_before_still_open(recorded: Path, tmp_path: Path) -> None:
    tables = {
        "workers": 3,
        "rounds": 2,
        "algorithm": {"name": "dpsgd"},
        "evaluation": {"images": 9},
    }
    with fedhp.run(fedhp.make_experiment(tables), tmp_path / "old") as run:
        digest = run.digest()
    with closing(sqlite3.connect(tmp_path / "old" / RECORD_FILE)) as connection:
        connection.execute("DROP TABLE participation")
    with RunReader(tmp_path / "old") as run:
        run.check()
        assert run.digest() == digest
        assert run.table("participation")["round"] == []
    with RunReader(recorded) as run:
        run.check()
    engine = plus()
    arrays, scalars = pack("reports", round_loop(engine).planner.last_reports)
    del scalars["reports.transfer_time"]
    assert np.isnan(unpack("reports", Reports, arrays, scalars).transfer_time)
    engine.close()


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"fragments": 1000}, "algorithm.fragments"),
        ({"fragments": 0}, "algorithm.fragments"),
        ({"momentum": 1.0}, "algorithm.momentum"),
        ({"compression": "int4"}, "algorithm.compression"),
        ({"patience": -1}, "algorithm.patience"),
        ({"min_share": 1.5}, "algorithm.min_share"),
        ({"first_deadline": 0.0}, "algorithm.first_deadline"),
    ],
)
def test_bad_settings(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared_of("fedhp_plus", {"model": {"name": "mlp", "hidden": [2]}}, **settings)
    assert caught.value.key == key
    assert caught.value.allowed
    assert caught.value.fix


class NeverRestarts:
    """An own algorithm that was written for simulations."""

    traits = Traits(group_average=True)


def test_a_network_needs_a_way_to_begin_again() -> None:
    settings = parse({"algorithm": {"name": "fedhp_plus"}})
    check_network(settings)
    with pytest.raises(ConfigError, match="lost its models") as caught:
        _check_groups(settings, NeverRestarts())
    assert caught.value.key == "algorithm.name"


def test_a_group_average_must_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = plus()
    monkeypatch.setattr(FedHPPlus, "traits", replace(FedHPPlus.traits, group_average=False))
    with pytest.raises(RunError, match="does not say so"):
        list(round_loop(engine).rounds())
    engine.close()


def test_it_needs_memory_for_what_workers_keep() -> None:
    experiment = prepared_of("fedhp_plus").experiment
    size: dict[str, Any] = {
        "model_size": 1000,
        "data_bytes": 0,
        "asynchronous": False,
        "executors": 1,
    }
    models = plan_memory(experiment, **size).models
    assert (
        plan_memory(experiment, traits=Traits(group_average=True), **size).models == models // 3 * 7
    )


def test_too_many_steps_are_refused() -> None:
    tiny_steps = {
        "world": {"device": {"tiny": {"step_time": 1e-6, "sd": 0.0}}, "devices": ["tiny"]}
    }
    engine = plus(tiny_steps, first_deadline=100.0)
    with pytest.raises(RunError, match="more than 1,000,000 steps"):
        list(round_loop(engine).rounds())
    engine.close()
