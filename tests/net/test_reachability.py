"""Silent members and broken links: in the log once, in the status and the metrics by name."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from attacks.members import start_attacker
from faults.in_process import experiment, in_process_federation, run, until
from fedhp.cluster.coordinator import reachability
from fedhp.cluster.coordinator.conductor import Conductor, ConductorSettings, MemberStatus
from fedhp.cluster.coordinator.process.metrics import Metrics, broken_by_name, snapshot_of
from fedhp.cluster.coordinator.reachability import Reachability
from fedhp.cluster.events import Event
from fedhp.cluster.history import facts_of, read_history
from fedhp.cluster.ops import operator
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.console.cluster import MOST_TROUBLES, trouble_lines


def three_members() -> Conductor[wire.RoundReport]:
    settings = ConductorSettings(workers=3, min_workers=1, suspect_after=5.0, dead_after=20.0)
    conductor: Conductor[wire.RoundReport] = Conductor(settings, epoch=1)
    for worker in range(3):
        address = f"10.0.0.{worker}:7710"
        conductor.join(f"w{worker}", address, incarnation=1, models=(), now=0.0)
    return conductor


def tell(
    links: Reachability, conductor: Conductor[wire.RoundReport], why: str, *, round_index: int
) -> None:
    """w0 reports on its link to w2; empty: it worked."""
    report = [wire.LinkReport(worker=2, lost=why), wire.LinkReport(worker=1)]
    links.tried(conductor.members[0], report, round_index, now=0.0)


def test_a_link_is_logged_when_it_breaks_and_when_it_works_again(log_lines: list[str]) -> None:
    conductor = three_members()
    links = Reachability(conductor)
    for index in (4, 5, 6):
        tell(links, conductor, "unreachable", round_index=index)
    (failure,) = links.broken(round_index=6)
    assert (failure.worker, failure.peer, failure.why) == (0, 2, "unreachable")
    assert (failure.since, failure.last, failure.failures) == (4, 6, 3)
    for index in (7, 8):
        tell(links, conductor, "", round_index=index)
    assert not links.broken(round_index=8)
    broken, works = log_lines
    assert "w0 gets no model from w2 at 10.0.0.2:7710: unreachable, in round 4" in broken
    assert "w0 got a model from w2 in round 7; it failed 3 times since round 4" in works


@pytest.mark.parametrize("why", sorted(reachability.NOT_BROKEN))
def test_what_happens_between_machines_that_reach_each_other_breaks_no_link(why: str) -> None:
    conductor = three_members()
    links = Reachability(conductor)
    tell(links, conductor, why, round_index=1)
    assert len(links) == 0


def test_a_member_that_joins_again_or_leaves_starts_over() -> None:
    conductor = three_members()
    links = Reachability(conductor)
    for worker in (0, 2):
        tell(links, conductor, "deadline", round_index=1)
        assert len(links) == 1
        links.forget(worker)
        assert len(links) == 0


def test_a_link_that_was_not_tried_for_long_is_not_shown() -> None:
    conductor = three_members()
    links = Reachability(conductor)
    tell(links, conductor, "unreachable", round_index=1)
    assert links.broken(round_index=1 + reachability.RECENT_ROUNDS)
    assert not links.broken(round_index=2 + reachability.RECENT_ROUNDS)


def test_a_flapping_link_does_not_fill_the_log(log_lines: list[str]) -> None:
    conductor = three_members()
    links = Reachability(conductor)
    for index in range(200):
        tell(links, conductor, "unreachable" if index % 2 else "", round_index=index)
    # The first ten of each kind, one after the other; the rest is counted.
    assert len(log_lines) == 20
    pairs = zip(log_lines[::2], log_lines[1::2], strict=True)
    for round_index, (broken, works) in zip(range(1, 20, 2), pairs, strict=True):
        assert broken.endswith(f"10.0.0.2:7710: unreachable, in round {round_index}")
        assert works.startswith(
            f"link works again: w0 got a model from w2 in round {round_index + 1}"
        )


def test_silence_is_logged_once_and_so_is_its_end(log_lines: list[str]) -> None:
    conductor = three_members()
    links = Reachability(conductor)
    for worker in (0, 1):
        conductor.members[worker].beat("training", 28.0)
    conductor.members[2].beat("training", 10.0)
    for now in (12.0, 16.0, 17.0):
        links.watch(now)
    conductor.members[2].beat("training", 17.5)
    for now in (18.0, 19.0, 24.0, 30.0, 38.0, 39.0):
        for worker in (0, 1):
            conductor.members[worker].beat("training", now)
        links.watch(now)
    assert [line.partition(": ")[0] for line in log_lines] == [
        "no heartbeat of w2 at 10.0.0.2:7710 for 6 s",
        "w2 sends heartbeats again",
        "no heartbeat of w2 at 10.0.0.2:7710 for 6 s",
        "no heartbeat of w2 at 10.0.0.2:7710 for 20 s",
    ]
    assert "dead" in log_lines[-1]


def test_a_member_whose_call_broke_off_is_lost_unless_it_calls_again(log_lines: list[str]) -> None:
    noted: list[tuple[str, object, object]] = []

    def note(event: Event) -> None:
        facts = facts_of(event)
        noted.append((event.event, facts["worker"], facts.get("why")))

    conductor = three_members()
    links = Reachability(conductor, note)
    for worker in range(3):
        conductor.members[worker].beat("waiting", 2.0)
    links.closed(conductor.members[1], 2.1)
    links.closed(conductor.members[2], 2.1)
    conductor.members[1].beat("waiting", 2.5)
    links.watch(2.6)
    assert noted == []
    links.watch(3.2)
    links.watch(3.7)
    assert noted == [("lost", 2, "its connection closed")]
    assert log_lines == ["w2 at 10.0.0.2:7710 is lost: its connection closed"]
    conductor.members[2].beat("waiting", 4.0)  # only its connection was lost
    links.watch(4.1)
    assert noted[1:] == [("heard", 2, None)]


def test_the_history_tells_of_a_process_that_ended_without_leaving(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment(rounds=1000, cluster={"gather": 60.0, "suspect_after": 30.0})

    def losses() -> list[str]:
        lines = read_history(tmp_path / "history-boss.jsonl")
        return [line["why"] for line in lines if line["event"] == "lost"]

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            state = await federation.start_coordinator()
            federation.start_worker("w0")
            await until(lambda: state.context.waiting.workers() == [0])
            await federation.stop_worker("w0")
            await until(losses)
            assert losses() == [reachability.CLOSED]
            joined = {state.conductor.members[0].incarnation}
            for deaths in (1, 2, 3):  # the next process joins, however soon
                federation.start_worker("w0")
                await until(lambda: state.conductor.members[0].incarnation not in joined)
                joined.add(state.conductor.members[0].incarnation)
                assert len(losses()) == deaths
                await federation.stop_worker("w0")
            assert set(losses()) <= {reachability.CLOSED, reachability.REPLACED}

    run(scenario())


def test_the_status_and_the_metrics_name_them(certificates: Path, tmp_path: Path) -> None:
    settings = experiment(
        rounds=1000, cluster={"gather": 60.0, "suspect_after": 0.5, "dead_after": 60.0}
    )

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            state = await federation.start_coordinator()
            for name in ("w0", "w2"):
                federation.start_worker(name)
            liar = start_attacker(federation, "w1", lost=(0,))
            await until(lambda: len(state.reachability) == 1)
            await federation.stop_worker("w2")
            silent = state.conductor.by_name.get("w2")
            assert silent is not None
            await until(
                lambda: (
                    state.members.status_of(silent, now=time.monotonic()) is MemberStatus.SUSPECT
                )
            )
            target = operator.Target(federation.address, certificates)
            reply = (await asyncio.to_thread(operator.leader_status, target)).reply
            facts = operator.status_json(reply)
            (member,) = facts["unreachable"]
            assert (member["name"], member["status"]) == ("w2", "suspect")
            (link,) = facts["broken_links"]
            assert (link["worker"], link["peer"], link["why"]) == ("w1", "w0", "deadline")
            assert link["failures"] >= 1
            assert link["since_round"] <= link["last_round"]
            assert facts["broken_link_count"] == 1
            text = "\n".join(trouble_lines(reply))
            assert "w2 at 127.0.0.1:1 is suspect, silent for" in text
            assert "w1 gets no model from w0: it did not come in time (" in text
            numbers = Metrics()
            assert federation.coordinator is not None
            numbers.snapshot = snapshot_of(federation.coordinator)
            page = generate_latest(numbers.registry).decode()
            assert 'fedhp_member_up{name="w2"} 0.0' in page
            assert 'fedhp_member_up{name="w1"} 1.0' in page
            assert 'fedhp_member_silent_seconds{name="w2"}' in page
            assert 'fedhp_broken_link_failures{peer="w0",why="deadline",worker="w1"}' in page
            assert "fedhp_broken_links 1.0" in page
            liar.lost = ()
            await until(lambda: len(state.reachability) == 0)

    run(scenario())


def test_the_label_of_a_metric_is_never_the_text_of_a_member() -> None:
    causes = {"unreachable": "unreachable", "refused: ticket": "refused", "9f3a": "other"}
    for why, label in causes.items():
        link = wire.BrokenLink(worker=0, peer=1, why=why, failures=3)
        assert broken_by_name(wire.StatusReply(broken=[link])) == {("0", "1", label): 3}


def test_a_long_list_is_cut_and_counted() -> None:
    members = [
        wire.MemberStatus(
            worker=index, name=f"w{index}", status="left", silent_seconds=limits.FOREVER
        )
        for index in range(MOST_TROUBLES + 5)
    ]
    links = [wire.BrokenLink(worker=0, peer=1, why="unreachable", since=1, last=1, failures=1)]
    lines = trouble_lines(wire.StatusReply(members=members, broken=links, broken_links=1500))
    assert "w0 was not seen since this coordinator leads" in lines[1]
    assert "  ... and 5 more" in lines
    assert lines[-2:] == [
        "  w0 gets no model from w1: cannot reach it (once, in round 1)",
        "  ... and 1499 more",
    ]
    assert trouble_lines(wire.StatusReply()) == []
