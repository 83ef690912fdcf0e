"""Replays: of a run's own planner the run itself, of another what that one really does."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.algorithms.pens import PENS
from fedhp.config import Experiment, parse
from fedhp.engine.replay.executor import ReplayExecutor, replay_loop
from fedhp.engine.replay.whatif import whatif
from fedhp.errors import ConfigError, RunError
from fedhp.record.measured import Distances, MeasuredRounds
from fedhp.record.reader import RunReader
from fedhp.record.store import round_columns
from fedhp.report.export import trace_csv
from fedhp.rounds.context import planning_context
from fedhp.types import LinkVerdict, RoundRecord
from unit.engine.whatif_runs import OWN, ROUNDS, WORLDS, recorded, settings_of
from unit.report.runs import WORLD, make_run

EVERY_OWN = pytest.mark.parametrize("own", OWN)
EVERY_WORLD = pytest.mark.parametrize("world", WORLDS)
PLANNERS = (
    "fedhp:deadline=opt",
    "fedhp:deadline=fill",
    "dpsgd",
    "ldsgd",
    "adpsgd",
    "adpsgd:steps=100",
    "pens",
)
UNUSED = {"train_loss", "update_norm", "distance"}  # an asynchronous replay has no use for them


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Real runs, all of one seed: every planner in every world."""
    top = tmp_path_factory.mktemp("runs")
    return {
        (own, world): recorded(top / own / world, own, world) for own in OWN for world in WORLDS
    }


def replayed(run: RunReader, experiment: Experiment | None = None) -> list[RoundRecord]:
    """The rounds of a record, through its own planner or another's."""
    measured = MeasuredRounds(run)
    context = planning_context(
        experiment or parse(run.meta("experiment")), model_bits=8.0 * measured.model_bytes
    )
    smoothing = run.meta("experiment")["algorithm"].get("distance_smoothing", 0.5)
    base = context.federation.base_topology
    own = experiment is None and isinstance(context.algorithm, PENS)
    executor = ReplayExecutor(
        context,
        measured,
        distances=Distances(measured, base, smoothing=smoothing),
        kept=measured.kept_peers() if own else None,
    )
    return list(islice(replay_loop(executor).rounds(), measured.rounds))


def rows_of(record: RoundRecord, run: RunReader, table: str) -> dict[str, list[Any]]:
    """What the record of a round would be, table by table."""
    columns = round_columns(record)[table]
    _, *names = run.table(table, round_index=record.round_index)
    missing = [[None if value != value else value for value in column] for column in columns]
    rows = dict(zip(names, missing, strict=True))
    if "verdict" in rows:  # a reader gets the words
        rows["verdict"] = [v if v is None else LinkVerdict(v).word for v in rows["verdict"]]
    return rows


def without(table: Mapping[str, list[Any]], names: set[str]) -> dict[str, list[Any]]:
    return {name: list(column) for name, column in table.items() if name not in names}


@EVERY_OWN
@EVERY_WORLD
def test_its_own_planner_is_the_run(
    own: str, world: str, runs: dict[tuple[str, str], Path]
) -> None:
    """Every number of every table, bit for bit: plans, times, links, verdicts, facts."""
    with RunReader(runs[own, world]) as run:
        unused = UNUSED if run.meta("asynchronous") else set()
        records = replayed(run)
        assert [record.round_index for record in records] == list(range(1, ROUNDS + 1))
        for record in records:
            for table in ("rounds", "workers", "links", "verdicts", "facts"):
                was = run.table(table, round_index=record.round_index)
                assert without(rows_of(record, run, table), unused) == without(
                    was, {"round", *unused}
                ), (table, record.round_index)
    result = whatif(runs[own, world], [OWN[own][0]])
    assert result.first_difference is None
    assert result.planners[0].sure == "recorded"


@EVERY_WORLD
@pytest.mark.parametrize("source", ["fedhp", "adpsgd", "pens"])
@pytest.mark.parametrize("other", ["dpsgd", "ldsgd", "adpsgd", "adpsgd-ring"])
def test_another_planner_is_what_it_really_does(
    source: str, other: str, world: str, runs: dict[tuple[str, str], Path]
) -> None:
    """Those that learn nothing take exactly the time of a run of their own, to the last round."""
    name, settings = OWN[other]
    label = ":".join([name, *(f"{key}={value}" for key, value in settings.items())])
    (outcome,) = whatif(runs[source, world], [label]).planners
    with RunReader(runs[other, world]) as run:
        assert outcome.rounds.first_difference(MeasuredRounds(run).outcome()) is None
    assert outcome.sure == ("recorded" if source == other else "exact")


@EVERY_WORLD
def test_pens_is_exact_while_it_scores(world: str, runs: dict[tuple[str, str], Path]) -> None:
    label = "pens:stage_share=0.5:peers=3:keep=2"
    (outcome,) = whatif(runs["fedhp", world], [label]).planners
    with RunReader(runs["pens", world]) as run:
        real = MeasuredRounds(run).outcome()
    np.testing.assert_array_equal(outcome.rounds.round_time[:3], real.round_time[:3])
    np.testing.assert_array_equal(outcome.rounds.local_steps, real.local_steps)
    assert outcome.sure == "assumed"
    assert "as if by chance" in outcome.assumptions[0]
    (outcome,) = whatif(runs["fedhp", world], ["pens:stage_share=1.0"]).planners
    assert outcome.sure == "exact"


@pytest.mark.parametrize("source", ["dpsgd", "adpsgd", "fill"])
def test_fedhp_is_exact_where_nothing_is_learned(
    source: str, runs: dict[tuple[str, str], Path]
) -> None:
    """Its first round; later ones rest on measurements of the recorded models, and say so."""
    (outcome,) = whatif(
        runs[source, "plain"], ["fedhp:deadline=opt:distance_smoothing=0.5"]
    ).planners
    with RunReader(runs["fedhp", "plain"]) as run:
        real = MeasuredRounds(run).outcome()
    assert outcome.rounds.round_time[0] == real.round_time[0]
    assert outcome.sure == "assumed"
    assert "update norms and distances of the recorded models" in outcome.assumptions[0]
    # The topology is planned by distances, but steps and times mostly follow the world.
    assert outcome.round_time == pytest.approx(real.round_time.mean(), rel=0.05)


def test_without_smoothness_the_pace_stays(runs: dict[tuple[str, str], Path]) -> None:
    fill, best = whatif(
        runs["dpsgd", "plain"], ["fedhp:deadline=fill", "fedhp:deadline=opt"]
    ).planners
    assert "a rough guess" in fill.assumptions[0]  # a ring measures 6 of 15 pairs
    assert any("no smoothness" in text for text in fill.assumptions)
    assert not any("no smoothness" in text for text in best.assumptions)


@pytest.mark.parametrize(
    ("overrides", "tables"),
    [
        (["training.local_steps=4"], {"training": {"local_steps": 4}}),
        (
            ["world.bandwidth.low=3", "world.bandwidth.high=5.0", "world.drift=0.2"],
            {"world": {**WORLD, "bandwidth": {"low": 3.0, "high": 5.0}, "drift": 0.2}},
        ),
        (
            ["world.away=[{worker = 2, first = 2, last = 4}]", "world.model_megabits=3"],
            {
                "world": {
                    **WORLD,
                    "model_megabits": 3,
                    "away": [{"worker": 2, "first": 2, "last": 4}],
                }
            },
        ),
        (["topology.name=star", "topology.center=1"], {"topology": {"name": "star", "center": 1}}),
    ],
)
@pytest.mark.parametrize("other", ["dpsgd", "adpsgd"])
def test_changed_settings_are_those_of_a_real_run(
    overrides: list[str],
    tables: dict[str, Any],
    other: str,
    runs: dict[tuple[str, str], Path],
    tmp_path: Path,
) -> None:
    (outcome,) = whatif(runs["fedhp", "plain"], [other], overrides=overrides).planners
    with RunReader(recorded(tmp_path / "real", other, **tables)) as run:
        assert outcome.rounds.first_difference(MeasuredRounds(run).outcome()) is None


def test_changed_settings_show_the_own_planner_first(runs: dict[tuple[str, str], Path]) -> None:
    result = whatif(runs["fill", "plain"], overrides=["algorithm.max_steps=5"])
    labels = [outcome.planner for outcome in result.planners]
    assert labels == ["fedhp", *(label for label in PLANNERS if label != "fedhp:deadline=fill")]
    assert result.planners[0].rounds.local_steps.max() == 5
    assert result.first_difference is None  # the check is of the run as it was


def test_the_default_planners_leave_out_the_recorded_one(
    runs: dict[tuple[str, str], Path],
) -> None:
    labels = [outcome.planner for outcome in whatif(runs["fedhp", "plain"]).planners]
    assert labels == list(PLANNERS[1:])
    labels = [outcome.planner for outcome in whatif(runs["dpsgd", "plain"]).planners]
    assert labels == [label for label in PLANNERS if label != "dpsgd"]


def test_a_repeated_planner_counts_once_and_a_list_is_allowed(
    runs: dict[tuple[str, str], Path],
) -> None:
    result = whatif(runs["fedhp", "plain"], ["dpsgd,adpsgd:steps=2", "dpsgd"])
    assert [outcome.planner for outcome in result.planners] == ["dpsgd", "adpsgd:steps=2"]


def test_an_unfinished_run_is_replayed_as_far_as_it_went(
    runs: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    for own in ("fedhp", "adpsgd", "pens"):
        name, settings = OWN[own]
        folder = make_run(
            tmp_path / own, name, settings=settings, stop_after=2, **settings_of("plain")
        )
        with RunReader(folder) as run:
            done = run.rounds_done
        assert 2 <= done < ROUNDS
        result = whatif(folder, ["dpsgd"])
        assert result.first_difference is None
        assert len(result.planners[0].rounds.clock) == done
        with RunReader(runs["dpsgd", "plain"]) as run:
            real = MeasuredRounds(run).outcome()
        np.testing.assert_array_equal(result.planners[0].rounds.clock, real.clock[:done])


def test_a_world_from_a_trace(runs: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    with RunReader(runs["dpsgd", "plain"]) as run:
        trace.write_text(trace_csv(run))
    tables: dict[str, Any] = {"world": {**WORLD, "trace": str(trace)}}
    folder = recorded(tmp_path / "fedhp", "fedhp", **tables)
    (outcome,) = whatif(folder, ["dpsgd"]).planners
    with RunReader(recorded(tmp_path / "dpsgd", "dpsgd", **tables)) as run:
        assert outcome.rounds.first_difference(MeasuredRounds(run).outcome()) is None
    (outcome,) = whatif(
        runs["fedhp", "plain"], ["dpsgd"], overrides=[f"world.trace={trace}"]
    ).planners
    with RunReader(tmp_path / "dpsgd") as run:
        assert outcome.rounds.first_difference(MeasuredRounds(run).outcome()) is None
    trace.write_text(trace.read_text().replace("\n0.0,2,", "\n0.0,2,1"))
    with pytest.raises(RunError, match="cannot be rebuilt"):
        whatif(folder)


def test_distances_are_measured_or_as_the_coordinator_estimated_them(
    runs: dict[tuple[str, str], Path],
) -> None:
    with RunReader(runs["fill", "plain"]) as run:
        measured = MeasuredRounds(run)
        base = planning_context(
            parse(run.meta("experiment")), model_bits=1.0
        ).federation.base_topology
        distances = Distances(measured, base, smoothing=0.3)
        estimated = 0
        for index in range(1, ROUNDS):
            distance, direct = distances.of(base.links, index)
            table = run.table("links", round_index=index)
            later = run.table("links", round_index=index + 1)
            used = np.array(table["used"], dtype=bool)
            np.testing.assert_array_equal(direct, used)
            np.testing.assert_array_equal(distance[used], np.array(table["distance"])[used])
            np.testing.assert_allclose(distance, later["estimated_distance"], rtol=1e-12)
            estimated += int((~direct).sum())
        assert estimated > 0
        outside, direct = distances.of(np.array([[4, 1], [1, 4]]), ROUNDS)
        assert outside[0] == outside[1]
        assert direct[0] == direct[1]


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("data.skew=0.5", "other models would be trained"),
        ("model.hidden=[4]", "other models would be trained"),
        ("training.learning_rate=0.2", "other models would be trained"),
        ("seed=1", "another seed is another world"),
        ("workers=7", "no measurements of other workers"),
        ("rounds=3", "the rounds of the record"),
        ("evaluation.every=3", "nothing to test"),
        ("executors=2", "changes no plan and no time"),
        ("algorithm.name=dpsgd", "chosen with --planner"),
        ("algorithm={name = 'dpsgd'}", "chosen with --planner"),
        ("world.profile=paper", "every setting of its world"),
    ],
)
def test_what_cannot_be_changed(override: str, why: str, runs: dict[tuple[str, str], Path]) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        whatif(runs["dpsgd", "plain"], overrides=[override])
    assert caught.value.key == override.split("=")[0]
    assert caught.value.source == "command line"
    assert "world.*" in caught.value.allowed
    assert caught.value.fix
    if override.partition("=")[0].count("."):
        with pytest.raises(ConfigError, match=why) as caught:
            whatif(runs["dpsgd", "plain"], [f"dpsgd:{override}"])
        assert caught.value.source.startswith("--planner dpsgd")


@pytest.mark.parametrize(
    ("own", "planners", "overrides"),
    [
        ("plus", [], ["training.local_steps=9"]),
        ("fedhp", [], ["training.local_steps=9"]),  # deadline = "opt" does not use the pace
        ("fedhp", [], ["training.local_epochs=0.5"]),
        ("dpsgd", [], ["training.local_steps=9", "algorithm.steps=4"]),
        ("dpsgd", ["fedhp", "fedhp_plus"], ["training.local_steps=9"]),
        ("dpsgd", ["fedhp_plus:training.local_steps=9"], []),
        ("dpsgd", ["adpsgd:steps=5:training.local_steps=9", "dpsgd"], []),
    ],
)
def test_local_work_that_no_planner_uses_is_refused(
    own: str, planners: list[str], overrides: list[str], runs: dict[tuple[str, str], Path]
) -> None:
    with pytest.raises(ConfigError, match="would change nothing") as caught:
        whatif(runs[own, "plain"], planners, overrides=overrides)
    assert caught.value.key == (overrides or ["training.local_steps="])[0].split("=")[0]
    assert "--planner dpsgd" in caught.value.fix


def test_local_work_that_a_planner_uses_is_replayed(runs: dict[tuple[str, str], Path]) -> None:
    steps = ["training.local_steps=9"]
    for own, planners in (("fill", []), ("plus", ["fedhp_plus", "dpsgd"]), ("adpsgd", [])):
        assert whatif(runs[own, "plain"], planners, overrides=steps).first_difference is None


@pytest.mark.parametrize(
    ("own", "settings", "training", "named"),
    [
        ("dpsgd", {}, {"momentum": 0.9, "optimizer_state": "mix"}, "fedhp_plus"),
        ("adpsgd", {"momentum": 0.5}, {"nesterov": True}, "ldsgd"),
        ("adpsgd", {"momentum": 0.5}, {"optimizer_state": "reset"}, "fedhp:deadline=fill"),
    ],
)
def test_the_optimizer_of_the_run_does_not_matter(
    own: str, settings: dict[str, Any], training: dict[str, Any], named: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", own, settings=settings, training=training)
    result = whatif(run)
    assert result.first_difference is None
    assert {"adpsgd:steps=100", "fedhp:deadline=fill"} <= {row.planner for row in result.planners}
    assert [row.planner for row in whatif(run, [named]).planners] == [named]


@pytest.mark.parametrize(
    ("planners", "overrides", "words"),
    [
        (["fedph"], [], "unknown algorithm 'fedph'"),
        (["fedhp:stepz=3"], [], "algorithm.stepz: unknown key"),
        ([""], [], "names no algorithm"),
        (["no.such:Thing"], [], "cannot import"),
        ([], ["world.bandwith.low=3"], "world.bandwith: unknown key"),
        ([], ["algorithm.steps=0"], "command line: algorithm.steps: invalid value 0"),
        ([], ["drift"], "not of the form key=value"),
        (["fedhp"], ["algorithm.steps=3"], "a setting of 'dpsgd', which is not among the planners"),
        ([], ["world.bandwidth.low=1e-6", "world.bandwidth.interval=0.01"], "a transfer may take"),
    ],
)
def test_what_is_wrong(
    planners: list[str],
    overrides: list[str],
    words: str,
    runs: dict[tuple[str, str], Path],
) -> None:
    with pytest.raises(ConfigError) as caught:
        whatif(runs["dpsgd", "plain"], planners, overrides=overrides)
    assert words in str(caught.value)
    assert caught.value.allowed
    assert caught.value.fix


def test_json_is_plain(runs: dict[tuple[str, str], Path]) -> None:
    result = whatif(runs["adpsgd", "plain"], ["dpsgd", "fedhp"])
    document = result.as_json()
    assert document["check"]["exact"]
    assert document["check"]["first_difference"] is None
    assert document["check"]["round_time"] == document["recorded"]["round_time"]
    assert document["recorded"]["mean_waiting_time"] == 0
    dpsgd, fedhp = document["planners"]
    assert dpsgd["waiting_time_change"] is None  # nothing was waited for
    assert dpsgd["round_time_change"] == pytest.approx(
        dpsgd["round_time"] / document["recorded"]["round_time"] - 1
    )
    rounds = result.planners[1].rounds
    assert fedhp["steps_per_second"] == rounds.local_steps.sum() / rounds.clock[-1]
    assert document["best"] in ("dpsgd", "fedhp")
