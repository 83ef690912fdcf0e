"""Every answer is made of the numbers that the commands print."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.support import Command
from dash.conftest import FIRST, SECOND
from dash.serving import AppClient, client_of
from fedhp.record.reader import RunReader
from fedhp.report.describe import describe_run
from fedhp.report.explain import explain_round
from fedhp.types import LinkVerdict


def get(client: AppClient, path: str, **parameters: Any) -> Any:
    response = client.get(f"/api/{path}", params=parameters)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def test_the_list_has_every_run_with_its_last_test(client: AppClient, real_runs: Path) -> None:
    answer = get(client, "runs")
    assert answer["folder"] == "runs"
    entries = {entry["run"]: entry for entry in answer["runs"]}
    assert set(entries) == {FIRST, SECOND}
    for name, entry in entries.items():
        with RunReader(real_runs / name) as run:
            summary = run.summary()
            assert entry["accuracy"] == run.table("evaluations")["accuracy"][-1]
        assert entry["clock"] == summary.completion_time
        assert (entry["rounds"], entry["status"]) == (summary.rounds, "finished")
        assert (entry["seed"], entry["workers"], entry["live"]) == (summary.seed, 6, False)
    assert entries[FIRST]["label"] == "FedHP"
    assert entries[SECOND]["algorithm"] == "adpsgd"


def test_a_folder_that_is_a_run_has_one_run(real_runs: Path) -> None:
    with client_of(real_runs / FIRST) as client:
        assert [entry["run"] for entry in get(client, "runs")["runs"]] == ["."]
        assert get(client, "run", run=".")["algorithm"] == "fedhp"


def test_the_labels_of_a_comparison_are_those_of_its_report(
    real_runs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "compared"
    shutil.copytree(real_runs / FIRST, folder / "fedhp" / "seed-3")
    (folder / "comparison.json").write_text('{"labels": {"fedhp": "ours <b>"}}')
    with client_of(folder) as client:
        assert get(client, "runs")["runs"][0]["label"] == "ours <b>"


def test_the_details_are_those_of_show(client: AppClient, real_runs: Path) -> None:
    answer = get(client, "run", run=FIRST)
    with RunReader(real_runs / FIRST) as run:
        assert answer["description"] == [
            {"name": name, "value": value} for name, value in describe_run(run)
        ]
        assert answer["devices"] == run.meta("devices")
        assert answer["samples"] == run.meta("samples")
    assert answer["names"] == [f"worker {worker}" for worker in range(6)]
    assert (answer["planned_rounds"], answer["horizon"]) == (5, None)
    assert (answer["asynchronous"], answer["group_average"]) == (False, False)
    assert answer["actions"] == []
    assert get(client, "run", run=SECOND)["asynchronous"] is True


def test_the_summary_is_that_of_show(client: AppClient, real_runs: Path, command: Command) -> None:
    printed = command("show", real_runs / FIRST, "--json").json()
    assert get(client, "summary", run=FIRST) == printed
    assert get(client, "summary", run=FIRST) == printed  # the second one is kept


@pytest.mark.parametrize("run", [FIRST, SECOND])
def test_a_round_is_that_of_show(
    client: AppClient, real_runs: Path, command: Command, run: str
) -> None:
    printed = command("show", real_runs / run, "--round", 2, "--json").json()
    assert get(client, "round", run=run, round=2) == printed


def test_an_explanation_has_the_words_of_explain(client: AppClient, real_runs: Path) -> None:
    answer = get(client, "explain", run=FIRST, round=3)
    with RunReader(real_runs / FIRST) as run:
        words = [
            {"title": paragraph.heading, "text": paragraph.text}
            for paragraph in explain_round(run, 3)
        ]
    assert answer == {"round": 3, "paragraphs": words}


def test_progress_has_the_columns_of_the_record(client: AppClient, real_runs: Path) -> None:
    answer, later = (get(client, "progress", run=FIRST, after=after) for after in (0, 3))
    with RunReader(real_runs / FIRST) as run:
        rounds, tests = run.table("rounds"), run.table("evaluations")
        workers = run.table("worker_evaluations")
        losses = run.table("test_metrics")
        times = run.array("workers", "worker_time")
    columns = dict(answer["rounds"])
    last = columns.pop("last_worker")
    assert last == np.nanargmax(times, axis=1).tolist()
    planned = columns.pop("planned_worker")
    assert planned == rounds["pace_setter"]
    longest = np.nanmax(times, axis=1)  # workers may be away
    expected = times[range(len(planned)), planned] == longest
    assert columns.pop("plan_was_right") == expected.tolist()
    assert columns.pop("waited") == (times < longest[:, None]).sum(axis=1).tolist()
    ends = zip(last, columns.pop("link_with"), columns.pop("link_time"), strict=True)
    for index, (worker, other, time) in enumerate(ends, start=1):
        (link,) = [
            row
            for row in get(client, "round", run=FIRST, round=index)["links"]
            if {row["a"], row["b"]} == {worker, other}
        ]
        assert link["link_time"] == time
    assert {name: rounds[name] for name in columns} == columns
    assert later["rounds"] == {name: column[3:] for name, column in answer["rounds"].items()}
    assert later["bytes_before"] == sum(rounds["bytes_sent"][:3])
    assert answer["bytes_before"] == 0
    by_round = {index: [] for index in tests["round"]}  # type: dict[int, list[float]]
    for index, accuracy in zip(workers["round"], workers["accuracy"], strict=True):
        by_round[index].append(accuracy)
    assert answer["tests"]["worst"] == [min(values) for values in by_round.values()]
    assert answer["tests"]["best"] == [max(values) for values in by_round.values()]
    for name in ("round", "clock", "accuracy", "mean_model_accuracy"):
        assert answer["tests"][name] == tests[name]
    rows = zip(losses["whole"], losses["loss"], strict=True)
    assert answer["tests"]["loss"] == [loss for whole, loss in rows if not whole]


def test_nobody_is_last_where_nobody_waits(client: AppClient) -> None:
    rounds = get(client, "progress", run=SECOND)["rounds"]
    assert set(rounds["last_worker"]) == set(rounds["link_with"]) == {None}


def test_classes_are_those_of_data_split(
    client: AppClient, real_runs: Path, command: Command
) -> None:
    answer = get(client, "classes", run=FIRST)
    file = real_runs / FIRST / "experiment.toml"
    assert answer == command("data", "split", file, "--json").json()
    assert [sum(counts) for counts in answer["counts"]] == answer["samples"]
    assert answer["samples"] == get(client, "run", run=FIRST)["samples"]


def test_decisions_count_the_links_of_every_verdict(client: AppClient, real_runs: Path) -> None:
    answer = get(client, "decisions", run=FIRST)
    with RunReader(real_runs / FIRST) as run:
        facts, rounds = run.table("facts"), run.table("rounds")
        known = rounds["links_known"]
    assert answer["round_time"] == rounds["round_time"]
    assert [sum(counts) for counts in zip(*answer["verdicts"].values(), strict=True)] == known
    bounds = {
        index: value
        for index, name, value in zip(facts["round"], facts["name"], facts["value"], strict=True)
        if name == "distance_bound"
    }
    assert answer["distance_bound"] == [bounds.get(index) for index in answer["round"]]
    assert answer["words"].keys() == answer["verdicts"].keys()
    later = get(client, "decisions", run=FIRST, after=4)
    assert later["round"] == [5]


def test_every_verdict_has_its_words() -> None:
    from fedhp.report.explain import VERDICT_MEANINGS

    assert set(VERDICT_MEANINGS) == {verdict.word for verdict in LinkVerdict}


def test_workers_are_those_of_the_round(client: AppClient, real_runs: Path) -> None:
    with RunReader(real_runs / FIRST) as run:
        for index in (1, 4):
            answer = get(client, "workers", run=FIRST, round=index)
            table = run.table("workers", round_index=index)
            rows = answer["workers"]
            assert [row["steps"] for row in rows] == table["local_steps"]
            for name in ("step_time", "bandwidth", "compute_time", "waiting_time", "train_loss"):
                assert [row[name] for row in rows] == table[name]
            away = [time is None for time in table["worker_time"]]
            assert [row["state"] == "away" for row in rows] == away
            tests = run.table("worker_evaluations", round_index=index)
            assert [row["accuracy"] for row in rows] == tests["accuracy"]
    assert get(client, "workers", run=FIRST)["round"] == 5


def test_the_history_of_a_worker_is_its_rows(client: AppClient, real_runs: Path) -> None:
    answer = get(client, "worker", run=FIRST, worker=2)
    with RunReader(real_runs / FIRST) as run:
        table, clocks = run.table("workers"), run.table("rounds")["clock"]
    rows = [row for row, worker in enumerate(table["worker"]) if worker == 2]
    assert answer["rounds"]["local_steps"] == [table["local_steps"][row] for row in rows]
    assert answer["rounds"]["clock"] == clocks
    assert answer["tests"]["round"] == [1, 2, 3, 4, 5]
    assert all(event["worker"] == 2 for event in answer["events"])


def test_events_are_the_absences_and_the_end(client: AppClient, real_runs: Path) -> None:
    answer = get(client, "events", run=FIRST)
    events = answer["events"]
    with RunReader(real_runs / FIRST) as run:
        table = run.table("workers")
    rows = zip(table["round"], table["worker"], table["worker_time"], strict=True)
    absences = {(index, worker) for index, worker, time in rows if time is None}
    starts = {(i, worker) for i, worker in absences if (i - 1, worker) not in absences}
    assert starts
    assert {(e["round"], e["worker"]) for e in events if e["kind"] == "away"} == starts
    assert [event["kind"] for event in events[-2:]] == ["checkpoint", "finished"]
    rest = get(client, "events", run=FIRST, after=answer["next"] - 1)
    assert rest == {**answer, "events": events[-1:]}
    assert get(client, "events", run=FIRST, after=10_000)["reset"] is True


def test_a_replay_is_that_of_whatif(client: AppClient, real_runs: Path, command: Command) -> None:
    printed = command("whatif", real_runs / FIRST, "--planner", "dpsgd", "--json").json()
    answer = get(client, "whatif", run=FIRST, planner="dpsgd")
    again = get(client, "whatif", run=FIRST, planner="dpsgd")
    assert again == answer  # also the seconds that it took: it was kept
    assert answer["run"] == FIRST  # and not where it is on this machine
    for facts in (printed, answer):
        del facts["seconds"], facts["run"]
    assert answer == printed


@pytest.mark.parametrize("planner", ["os:system", "antigravity.x", "nothing", "fedhp:" + "x" * 300])
def test_only_built_in_planners_are_replayed(client: AppClient, planner: str) -> None:
    response = client.get("/api/whatif", params={"run": FIRST, "planner": planner})
    assert response.status_code == 400
    assert "dpsgd" in response.json()["allowed"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("round?run=first/fedhp&round=6", 404),
        ("round?run=first/fedhp&round=0", 422),
        ("round?run=first/fedhp&round=many", 422),
        ("round?run=first/fedhp", 422),
        ("workers?run=first/fedhp&round=99", 404),
        ("worker?run=first/fedhp&worker=6", 404),
        ("progress?run=first/fedhp&after=-1", 422),
        ("progress?run=first/fedhp&after=99999999999999999999", 422),
        ("run?run=third", 404),
        ("run", 422),
        ("nothing", 404),
        ("stream?run=third", 404),
    ],
)
def test_what_is_not_there_is_refused_with_a_reason(
    client: AppClient, path: str, status: int
) -> None:
    response = client.get(f"/api/{path}")
    assert response.status_code == status
    assert set(response.json()) == {"error", "allowed", "fix"}
    assert response.json()["error"]


def test_the_description_of_the_api_has_every_path(client: AppClient) -> None:
    paths = get(client, "openapi.json")["paths"]
    expected = "runs run summary progress round explain decisions workers worker events whatif"
    expected += " turns differences"
    served = {
        f"/api/{name}"
        for name in (*expected.split(), "classes", "stream", "health", "stop", "drain")
    }
    assert set(paths) == served
    changing = {path for path, methods in paths.items() if set(methods) != {"get"}}
    assert changing == {"/api/stop", "/api/drain"}


def test_the_documentation_has_every_path(client: AppClient) -> None:
    text = (Path(__file__).parents[2] / "docs" / "dash.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\| `(/api/[a-z]+)", text))
    assert named == set(get(client, "openapi.json")["paths"])
