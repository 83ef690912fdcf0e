"""Links that follow the trace within a transfer, against an integration in small steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.algorithms import Observation
from fedhp.config import parse, to_tables
from fedhp.engine.events import EventLoop
from fedhp.engine.executor import Estimates, EventExecutor, Training
from fedhp.engine.loop import RoundLoop
from fedhp.exchange import (
    DirectedMixing,
    Exchanged,
    GroupAverage,
    Mixing,
    Scoring,
    ServerAverage,
)
from fedhp.rounds.context import PlanningContext, planning_context
from fedhp.types import BoolArray, IntArray, RoundRecord
from fedhp.world import World
from fedhp.world.world import build_world

WORKERS = 6
BITS = 40e6
STEP = 1e-3  # s of the naive integration


class Untrained:
    """Carries out plans without models."""

    workers = WORKERS

    def train(
        self,
        local_steps: IntArray,
        *,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
        continued: bool = False,
    ) -> Training:
        return Training(np.zeros(WORKERS), np.zeros(WORKERS))

    def estimate(self, chosen: BoolArray, *, round_index: int) -> Estimates:
        return Estimates(np.ones(WORKERS), np.ones(WORKERS), np.ones(WORKERS))

    def mix(self, mixing: Mixing, *, round_index: int) -> Exchanged:
        return self._over(mixing.links, directed=mixing.directed)

    def score(self, mixing: DirectedMixing, scoring: Scoring, *, round_index: int) -> Exchanged:
        selected = mixing.sources[:, : scoring.keep]
        return self._over(mixing.kept_links(selected), directed=True, selected=selected)

    def average_over_server(self, average: ServerAverage) -> Exchanged:
        return self._over(average.lines, directed=True)

    def average_groups(self, groups: Sequence[GroupAverage]) -> None:
        pass

    def proceed(self) -> None:
        pass

    def _over(
        self, links: IntArray, *, directed: bool, selected: IntArray | None = None
    ) -> Exchanged:
        if selected is None:
            selected = np.empty((WORKERS, 0), dtype=np.int64)
        return Exchanged(links, directed, np.zeros(len(links)), selected)

    def advance(self) -> None:
        pass

    def recover(self) -> None:
        pass


def context(algorithm: str, *, follow: bool = True, **bandwidth: Any) -> PlanningContext:
    links = {
        "unit": "Mb/s",
        "interval": 0.7,
        "correlation": 0.5,
        "during_transfer": "trace" if follow else "fixed",
        **bandwidth,
    }
    tables = {
        "workers": WORKERS,
        "rounds": 4,
        "algorithm": {"name": algorithm, **({"peers": 3} if algorithm == "pens" else {})},
        "world": {"bandwidth": links},
    }
    return planning_context(parse(tables), model_bits=BITS)


def naive(
    world: World, link: IntArray, *, start: float, transfers: IntArray, seconds: float
) -> float:
    """Bits that arrive over a link within so many seconds, in steps of a millisecond."""
    share = np.maximum(transfers[link], 1) if world.sharing else np.ones(2)
    arrived = 0.0
    for time in np.arange(start + STEP / 2, start + seconds, STEP):
        bandwidth = world.network(float(time)).bandwidth
        ends = bandwidth[link] if bandwidth.ndim == 1 else np.full(2, bandwidth[link[0], link[1]])
        arrived += STEP * float((ends / share).min())
    return arrived


FORMS = [{"per": "worker"}, {"per": "link"}, {"sharing": True}, {"latency": 0.3}]


@pytest.mark.parametrize("algorithm", ["dpsgd", "pens", "ldsgd", "fedhp"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_round_takes_as_long_as_its_bits_need(algorithm: str, form: dict[str, Any]) -> None:
    """PENS scores in its first round: pulled models, an own cost of computing."""
    built = context(algorithm, **form)
    clock = 0.0
    for record in RoundLoop(built, Untrained()).rounds():
        world, links = built.world, record.links
        ready = world.compute_times(record.local_steps, record.round_index, time=clock)
        transfers = np.bincount(links.ravel(), minlength=WORKERS)
        for index in (0, len(links) - 1):
            link = links[index]
            start = clock + float(ready[link].max())
            seconds = float(record.link_time[index]) - world.latency
            assert seconds > 1.4  # some changes of the links
            arrived = naive(world, link, start=start, transfers=transfers, seconds=seconds)
            assert arrived == pytest.approx(BITS, rel=2e-3)
        ends = record.timing.compute_time + record.timing.communication_time
        assert record.timing.round_time == ends.max()
        clock = record.clock
        if record.round_index == 2:
            break


@pytest.mark.parametrize("form", FORMS[:1] + FORMS[2:], ids=str)
def test_an_asynchronous_transfer_follows_the_trace(
    form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = context("adpsgd", **form)
    loop = EventLoop(built, EventExecutor())
    sent: list[tuple[IntArray, IntArray, float, float]] = []
    link_time = World.link_time

    def noted(world: World, links: IntArray, transfers: IntArray, **when: Any) -> Any:
        seconds = link_time(world, links, transfers, **when)
        sent.append((links[0], transfers, when["clock"], float(seconds[0])))
        return seconds

    monkeypatch.setattr(World, "link_time", noted)
    record = next(loop.rounds())
    assert record.link_time.max() > 1.4
    for link, transfers, clock, seconds in sent[:4]:
        arrived = naive(
            built.world,
            link,
            start=clock,
            transfers=transfers,
            seconds=seconds - built.world.latency,
        )
        assert arrived == pytest.approx(BITS, rel=2e-3)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_group_average_follows_the_trace(form: dict[str, Any]) -> None:
    """The share of the fragment that arrives, in small steps, on the links of each moment."""
    built = context("fedhp_plus", interval=0.2, **form)
    loop = RoundLoop(built, Untrained())
    rounds = loop.rounds()
    next(rounds)
    state, start = loop.planner.state, loop.progress.clock
    observation = Observation(
        2, start, 0.3, np.ones(WORKERS, dtype=np.bool_), built.world.network(start)
    )
    group = loop.algorithm.plan(state, observation, loop.planner.last_reports)[1].exchange
    assert isinstance(group, GroupAverage)
    seconds = next(rounds).decision.facts["transfer_time"]
    seconds -= group.tree_latency(built.world.latency)
    assert seconds > 0.4  # some changes of the links
    arrived = sum(
        STEP / group.streaming_time(built.world.network(float(time)))
        for time in np.arange(start + STEP / 2, start + seconds, STEP)
    )
    assert arrived == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize("algorithm", ["fedhp", "fedhp_plus", "dpsgd", "pens", "adpsgd"])
def test_links_that_never_change_take_the_same_time(algorithm: str) -> None:
    def rounds(*, follow: bool) -> list[RoundRecord]:
        built = context(algorithm, follow=follow, low=4.0, high=4.0, sharing=True, latency=0.1)
        if algorithm == "adpsgd":
            return list(EventLoop(built, EventExecutor()).rounds())
        return list(RoundLoop(built, Untrained()).rounds())

    for fixed, followed in zip(rounds(follow=False), rounds(follow=True), strict=True):
        np.testing.assert_allclose(followed.link_time, fixed.link_time, rtol=1e-12)
        assert followed.clock == pytest.approx(fixed.clock, rel=1e-12)


def test_fixed_links_are_those_of_the_start_of_the_round() -> None:
    built = context("dpsgd", follow=False)
    first = next(iter(RoundLoop(built, Untrained()).rounds()))
    assert (first.link_time == built.world.network(0.0).link_time(first.links)).all()


def test_a_recorded_trace_is_followed_row_by_row(tmp_path: Path) -> None:
    """1 Mb/s until 10 s, then 4 Mb/s for ever: 12 Mbit from 4 s need 6 s and 1.5 s."""
    rows = [f"{time},{worker},{rate}" for time, rate in ((0, 1), (10, 4)) for worker in (0, 1)]
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(["time,worker,bandwidth", *rows]) + "\n", encoding="utf-8")
    tables = {
        "workers": 2,
        "world": {
            "trace": str(file),
            "model_megabits": 12.0,
            "bandwidth": {"unit": "Mb/s", "during_transfer": "trace"},
        },
    }
    world = planning_context(parse(tables), model_bits=BITS).world
    pair = np.array([[0, 1]])
    times = [
        float(world.link_time(pair, np.ones(2, np.int64), clock=clock, ready=np.array([0.0, 1]))[0])
        for clock in (3.0, 9.0, 40.0)
    ]
    assert times == pytest.approx([7.5, 3.0, 3.0])


def test_an_experiment_without_the_setting_has_the_tables_it_had() -> None:
    assert "during_transfer" not in to_tables(parse({}))["world"]["bandwidth"]
    followed = parse({"world": {"bandwidth": {"during_transfer": "trace"}}})
    assert to_tables(followed)["world"]["bandwidth"]["during_transfer"] == "trace"
    assert parse(to_tables(followed)) == followed


@pytest.mark.parametrize("per", ["worker", "link"])
def test_a_planner_sees_links_with_errors(per: str) -> None:
    """Up to the share that is set, other in every round, the same for the same seed."""
    config = parse({"world": {"monitor_error": 0.3, "bandwidth": {"per": per}}}).world
    world = build_world(config, workers=6, rounds=5, seed=3, model_bits=1e6)
    true, first, second = world.network(4.0), world.monitored(4.0, 1), world.monitored(4.0, 2)
    for seen in (first, second):
        ratio = seen.bandwidth / true.bandwidth
        off = ratio[~np.eye(6, dtype=np.bool_)] if ratio.ndim == 2 else ratio
        assert off.min() >= 0.7
        assert off.max() <= 1.3
        np.testing.assert_array_equal(seen.bandwidth, seen.bandwidth.T)
    assert (first.bandwidth != second.bandwidth).any()
    np.testing.assert_array_equal(first.bandwidth, world.monitored(4.0, 1).bandwidth)
