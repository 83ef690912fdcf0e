"""The words name the workers and numbers that the tables hold, read here by plain SQL."""

from __future__ import annotations

from pathlib import Path

import networkx
import pytest

from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.report.describe import describe_run
from fedhp.report.explain import explain_round
from fedhp.report.formatting import number, seconds
from fedhp.report.rounds import bridges_of
from fedhp.types import LinkVerdict, StepReason, StepRule
from unit.report.conftest import Runs
from unit.report.runs import make_run, query, wide_run

LOCAL_EPOCHS = {"local_epochs": 0.2, "batch_size": 8}


def said(folder: Path, round_index: int) -> dict[str, str]:
    with RunReader(folder) as run:
        return {part.heading: part.text for part in explain_round(run, round_index)}


def fact(folder: Path, round_index: int, name: str) -> float:
    rows = query(folder, "SELECT value FROM facts WHERE round=? AND name=?", round_index, name)
    return float(rows[0][0])


def devices(folder: Path) -> list[str]:
    with RunReader(folder) as run:
        names: list[str] = run.meta("devices")
        return names


@pytest.mark.parametrize("round_index", [2, 4, 6])
def test_fedhp_deadline_pace_setter_and_objective(runs: Runs, round_index: int) -> None:
    folder = runs.fedhp[0]
    text = said(folder, round_index)
    assert f"into {seconds(fact(folder, round_index, 'deadline'))}" in text["Steps"]
    [(setter,)] = query(folder, "SELECT pace_setter FROM rounds WHERE round=?", round_index)
    [(steps,)] = query(
        folder, "SELECT local_steps FROM workers WHERE round=? AND worker=?", round_index, setter
    )
    [(slowest,)] = query(
        folder,
        "SELECT max(planned_link_time) FROM links WHERE round=?1 AND used AND (a=?2 OR b=?2)",
        round_index,
        setter,
    )
    assert f"worker {setter} ({devices(folder)[setter]})" in text["Pace"]
    assert f"{steps} step" in text["Pace"]
    assert f"{seconds(slowest)} for its slowest link" in text["Pace"]
    assert seconds(fact(folder, round_index, "objective")) in text["Pace"]
    base = fact(folder, round_index, "base_objective")
    assert (
        seconds(base) in text["Pace"] or "the same as with the whole base topology" in text["Pace"]
    )
    assert number(fact(folder, round_index, "distance_bound")) in text["Distance"]


@pytest.mark.parametrize("which", ["fedhp", "fill", "per_link"])
def test_links_are_counted_by_verdict_and_the_slowest_cut_is_named(runs: Runs, which: str) -> None:
    folder = runs.fedhp[0] if which == "fedhp" else getattr(runs, which)
    cuts = 0
    for (index,) in query(folder, "SELECT round FROM rounds WHERE round > 1"):
        text = said(folder, index)["Links"]
        counts = dict(
            query(folder, "SELECT verdict, count(*) FROM links WHERE round=? GROUP BY 1", index)
        )
        total, cut = sum(counts.values()), counts.get(LinkVerdict.CUT, 0)
        if LinkVerdict.KEPT_ALL in counts:
            assert "nothing may be cut" in text
            continue
        assert f"{total - cut} of {total} links kept, {cut} cut" in text
        for verdict, words in (
            (LinkVerdict.KEPT_BOUND, "broken the distance bound"),
            (LinkVerdict.KEPT_NO_GAIN, "the objective did not fall"),
            (LinkVerdict.KEPT_UNTRIED, "never tried"),
        ):
            assert (words in text) == (verdict in counts)
            if verdict in counts:
                noun = "link" if counts[verdict] == 1 else "links"
                assert f"{counts[verdict]} {noun} kept" in text
        bridges = query(
            folder,
            "SELECT a, b FROM links WHERE round=? AND verdict=?",
            index,
            int(LinkVerdict.KEPT_BRIDGE),
        )
        assert bool(bridges) == ("would fall apart" in text or "Kept as the last link" in text)
        if cut:
            cuts += cut
            a, b, time, distance = query(
                folder,
                "SELECT a, b, planned_link_time, estimated_distance FROM links WHERE round=? "
                "AND verdict=0 ORDER BY planned_link_time DESC, a, b LIMIT 1",
                index,
            )[0]
            assert f"{a}–{b} ({seconds(time)}, distance {number(distance)})" in text
    assert cuts > 0, "this world should make the planner cut something"


def test_real_bridges_are_told_from_those_of_a_try(runs: Runs) -> None:
    for index in (2, 3):
        pairs = query(runs.per_link, "SELECT a, b FROM links WHERE round=? AND used", index)
        real = set(networkx.bridges(networkx.Graph(pairs)))
        judged = query(
            runs.per_link,
            "SELECT a, b FROM links WHERE round=? AND verdict=1 ORDER BY planned_link_time DESC",
            index,
        )
        first = next((a, b) for a, b in judged if (a, b) in real or (b, a) in real)
        _, _, needed = said(runs.per_link, index)["Links"].partition("would fall apart")
        assert f"{first[0]}–{first[1]} (" in needed


def test_bridges_are_those_of_networkx() -> None:
    for seed in range(20):
        graph = networkx.gnm_random_graph(8, 9, seed=seed)
        bridges = {(min(pair), max(pair)) for pair in networkx.bridges(graph)}
        assert bridges_of(graph.edges) == bridges
    chain = [(i + 1, i) for i in range(5000)]
    assert bridges_of(chain) == {(i, i + 1) for i in range(5000)}
    assert bridges_of([*chain, (0, 5000)]) == set()


def test_first_round_keeps_all_links_and_says_why(runs: Runs) -> None:
    text = said(runs.fedhp[0], 1)
    assert "All 15 links of the base topology are kept" in text["Links"]
    assert "measures every pair once" in text["Links"]
    assert "Distance" not in text


@pytest.mark.parametrize("which", ["fedhp", "dpsgd", "pens", "away"])
def test_who_waits_longest_and_for_whom(runs: Runs, which: str) -> None:
    folder = getattr(runs, which)
    folder = folder[0] if isinstance(folder, tuple) else folder
    text = said(folder, 4)["Waiting"]
    order = query(
        folder,
        "SELECT worker, waiting_time, compute_time, communication_time FROM workers "
        "WHERE round=4 AND worker_time IS NOT NULL ORDER BY waiting_time DESC",
    )
    kinds = devices(folder)
    longest, last = order[0], order[-1]
    assert f"orker {longest[0]} ({kinds[longest[0]]}) waits longest" in text
    assert f"waits longest, {seconds(longest[1])}" in text
    assert f"took {seconds(longest[2])}" in text
    assert f"Everyone waits for worker {last[0]} ({kinds[last[0]]})" in text
    assert seconds(last[3]) in text
    [(mean,)] = query(folder, "SELECT mean_waiting_time FROM rounds WHERE round=4")
    assert f"On average {seconds(mean)}" in text


def test_steps_by_device_are_those_of_the_table(runs: Runs) -> None:
    folder = runs.fedhp[0]
    text = said(folder, 5)["Steps"]
    rows = query(folder, "SELECT worker, local_steps FROM workers WHERE round=5")
    kinds = devices(folder)
    for kind in set(kinds):
        steps = [count for worker, count in rows if kinds[worker] == kind]
        spread = (
            f"{kind} {steps[0]}"
            if min(steps) == max(steps)
            else f"{kind} {min(steps)} to {max(steps)}, mean {number(sum(steps) / len(steps))}"
        )
        assert spread in text


def test_away_workers_are_named_and_only_then(runs: Runs) -> None:
    name = f"Worker 2 ({devices(runs.away)[2]})"
    assert said(runs.away, 3)["Away"].startswith(name)
    assert "Away" not in said(runs.away, 5)


def test_fixed_topology(runs: Runs) -> None:
    text = said(runs.dpsgd[0], 3)
    assert "Every worker takes 10 steps" in text["Steps"]
    assert "The topology is fixed: 6 links" in text["Links"]
    a, b, time = query(
        runs.dpsgd[0],
        "SELECT a, b, link_time FROM links WHERE round=3 ORDER BY link_time DESC, a, b LIMIT 1",
    )[0]
    assert f"{a}–{b}, took {seconds(time)}" in text["Links"]
    assert "Pace" not in text
    assert "one step, then the exchange" in said(runs.ldsgd, 2)["Steps"]


def test_asynchronous(runs: Runs) -> None:
    text = said(runs.adpsgd, 3)
    assert "6 averagings" in text["Links"]
    assert "Nobody waits" in text["Waiting"]
    idle = query(runs.adpsgd, "SELECT worker FROM workers WHERE round=3 AND local_steps=0")
    for (worker,) in idle:
        assert f"worker {worker} " in text["Steps"]


def test_pens_scores_first_and_pulls_later(runs: Runs) -> None:
    assert "18 models were pulled and scored" in said(runs.pens, 1)["Links"]
    assert "and scoring took" in said(runs.pens, 1)["Waiting"]
    later = said(runs.pens, 6)["Links"]
    [(count,)] = query(runs.pens, "SELECT count(*) FROM links WHERE round=6 AND used")
    assert f"{count} models were pulled" in later


def test_a_group_that_waits_says_so(runs: Runs) -> None:
    text = said(runs.plus_waiting, 3)
    assert "Everyone waits for the transfer" in text["Steps"]
    assert "The transfer was predicted to take" in text["Group"]
    assert "Nobody waits" not in text["Waiting"]
    assert "Nobody waits" in said(runs.plus, 3)["Waiting"]


def test_literal_planner_and_fill_say_their_rule(runs: Runs) -> None:
    first, later = said(runs.literal, 1)["Steps"], said(runs.literal, 4)["Steps"]
    assert "with 10 steps (the start value)" in first
    assert f"the formula gives {number(fact(runs.literal, 4, 'raw_pace'))}" in later
    assert seconds(fact(runs.literal, 4, "deadline")) in later
    assert "the fastest worker's time" in said(runs.literal, 4)["Pace"]
    fill = said(runs.fill, 4)["Steps"]
    [(rule,)] = query(runs.fill, "SELECT rule FROM rounds WHERE round=4")
    assert ("fastest worker needs this long" in fill) == (rule == StepRule.FILL_PACE)
    assert "(rule fill)" in fill


def test_a_recorded_rule_is_read_back(runs: Runs, tmp_path: Path) -> None:
    numbers = {"steps": 30, "tried": 25, "peers": 10, "keep": 3, "least": 2, "most": 9}
    for rule in StepRule:
        used = {name: value for name, value in numbers.items() if f"{{{name}}}" in rule}
        reason = StepReason(rule, used)
        assert "{" not in str(reason)
        assert StepReason.parse(str(reason)) == reason
    limit = make_run(tmp_path / "limit", "free_links", rounds=2)
    assert "every finished step of any worker moves it at once" in " ".join(said(limit, 2).values())
    in_epochs = [
        make_run(tmp_path / name, name, rounds=2, settings=settings, training=LOCAL_EPOCHS)
        for name, settings in (("dpsgd", {}), ("ldsgd", {}), ("pens", {"stage_share": 0.5}))
    ]
    for folder in in_epochs:
        assert "the local epochs of its own samples" in " ".join(said(folder, 1).values())
    every = (
        *runs.comparison,
        *in_epochs,
        runs.plus,
        runs.plus_waiting,
        runs.fill,
        runs.literal,
        limit,
    )
    texts = {text for folder in every for (text,) in query(folder, "SELECT rule FROM rounds")}
    found = [StepReason.parse(text) for text in texts]
    own_methods = {StepRule.DELIVERY, StepRule.GATHERING}  # tests/equality/test_boxes.py has them
    expected = {*StepRule} - {StepRule.FILL_PACE} - own_methods
    assert {reason.rule for reason in found if reason} >= expected
    assert None not in found


def test_a_rule_in_own_words_is_shown_as_it_is(tmp_path: Path) -> None:
    assert StepReason.parse("random pairs; steps in proportion to speed") is None
    folder = wide_run(tmp_path / "run", 6, rounds=1)
    assert said(folder, 1)["Steps"].startswith("As the battery allows. Deadline: 3.00 s.")


def test_the_bound_switched_off_is_said(runs: Runs) -> None:
    assert "switched off" in said(runs.per_link, 3)["Distance"]


def test_a_round_that_is_not_there(runs: Runs) -> None:
    for index in (0, 7, -1):
        with RunReader(runs.fedhp[0]) as run, pytest.raises(RunError) as caught:
            explain_round(run, index)
        assert caught.value.allowed == "a round from 1 to 6"
    with RunReader(runs.stopped) as run, pytest.raises(RunError) as caught:
        explain_round(run, 4)
    assert caught.value.allowed == "a round from 1 to 3"
    with RunReader(runs.empty) as run, pytest.raises(RunError, match="no round is committed"):
        explain_round(run, 1)


def test_describe_run_has_the_settings_that_matter(runs: Runs) -> None:
    with RunReader(runs.away) as run:
        facts = dict(describe_run(run))
    assert facts["algorithm"] == "fedhp"
    assert facts["status"] == "finished, 6 of 6 rounds"
    assert facts["data"].startswith("digits, skew 0.8: 400 samples on 6 workers")
    assert facts["devices"] == "2 jetson_tx2, 2 laptop, 2 xavier_nx"
    assert facts["links"] == "1 to 10 Mb/s per worker"
    assert facts["absences"] == "worker 2 in rounds 2 to 4"
    assert "1.50 MB per transfer" in facts["model"]
    with RunReader(runs.stopped) as run:
        assert dict(describe_run(run))["status"] == "diverged, 3 of 6 rounds"
    with RunReader(runs.per_link) as run:
        facts = dict(describe_run(run))
    assert facts["links"] == "1 to 10 Mb/s per link"
    assert facts["algorithm"] == "fedhp (bound=none)"
