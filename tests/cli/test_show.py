"""`fedhp show`, `explain` and `export`, called as the command line calls them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
import typer

from fedhp.cli.commands.explain import explain
from fedhp.cli.commands.export import export
from fedhp.cli.commands.show import show
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.record.store import ROUND_TABLES
from fedhp.types import LinkVerdict
from unit.report.runs import make_run, query, wide_run

Call = Callable[..., str]


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "fedhp" / "seed-0", "fedhp")
    make_run(folder / "dpsgd" / "seed-0", "dpsgd", rounds=25)
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setenv("COLUMNS", "100")
    app = typer.Typer()
    for command in (show, explain, export):
        app.command()(command)

    def run(*arguments: object) -> str:
        app([str(argument) for argument in arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_show_has_settings_status_rounds_numbers_and_digest(call: Call, top: Path) -> None:
    folder = top / "fedhp" / "seed-0"
    text = call("show", folder)
    with RunReader(folder) as run:
        summary = run.summary()
    assert "finished, 6 of 6 rounds" in text
    assert summary.digest in text
    assert f"{100 * (summary.final_accuracy or 0):.1f} %" in text
    for index, accuracy in query(folder, "SELECT round, accuracy FROM evaluations"):
        line = next(ln for ln in text.splitlines() if ln.split()[:1] == [str(index)])
        assert f"{100 * accuracy:.1f}" in line


def test_show_chooses_twenty_rounds_with_both_ends(call: Call, top: Path) -> None:
    text = call("show", top / "dpsgd" / "seed-0")
    rounds = [int(ln.split()[0]) for ln in text.splitlines() if ln[:5].strip().isdigit()]
    assert len(rounds) == 20
    assert (rounds[0], rounds[-1]) == (1, 25)
    assert "20 of 25 evaluated rounds" in text


def test_show_json_is_the_summary(call: Call, top: Path, tmp_path: Path) -> None:
    folder = top / "fedhp" / "seed-0"
    with RunReader(folder) as run:
        assert json.loads(call("show", folder, "--json")) == run.summary().as_json()
    for seed in (0, 1):
        make_run(tmp_path / f"seed-{seed}", "dpsgd", seed=seed, rounds=2)
    make_run(tmp_path / "fedhp", "fedhp", rounds=2)
    several = json.loads(call("show", tmp_path, "--json"))
    assert [run["algorithm"] for run in several["runs"]] == ["fedhp", "dpsgd", "dpsgd"]
    assert set(several["summary"]) == {"dpsgd", "fedhp"}
    assert several["summary"]["dpsgd"]["seeds"] == [0, 1]


def test_only_runs_of_the_same_settings_are_averaged(call: Call, top: Path) -> None:
    both = json.loads(call("show", top, "--json"))
    assert [run["algorithm"] for run in both["runs"]] == ["dpsgd", "fedhp"]
    assert "summary" not in both
    names = [batch["settings"] for batch in both["batches"]]
    assert names == [
        "rounds = 25 and algorithm.name = dpsgd",
        "rounds = 6 and algorithm.name = fedhp",
    ]
    assert [set(batch["summary"]) for batch in both["batches"]] == [{"dpsgd"}, {"fedhp"}]
    text = call("show", top)
    assert text.index("rounds = 25") < text.index("D-PSGD") < text.index("rounds = 6")


def test_show_lists_every_run_below_a_folder(call: Call, top: Path) -> None:
    text = call("show", top)
    assert "dpsgd/seed-0: finished, 25 rounds" in text
    assert "fedhp/seed-0: finished, 6 rounds" in text
    assert "algorithm" in text


def test_show_one_round(call: Call, top: Path) -> None:
    folder = top / "fedhp" / "seed-0"
    lines = call("show", folder, "--round", 4).splitlines()
    rows = [line.split() for line in lines if line[:6].strip().isdigit()]
    expected = query(folder, "SELECT worker, local_steps FROM workers WHERE round = 4")
    assert [(int(row[0]), int(row[3])) for row in rows] == expected


def test_show_draws(call: Call, top: Path, tmp_path: Path) -> None:
    text = call("show", top / "fedhp" / "seed-0", "--figures", tmp_path / "pictures")
    assert (tmp_path / "pictures" / "topology.png").stat().st_size > 1000
    assert "9 files" in text


def test_explain_takes_the_last_round_by_default(call: Call, top: Path) -> None:
    folder = top / "fedhp" / "seed-0"
    assert call("explain", folder).startswith("Round 6 of 6")
    text = call("explain", folder, "--round", 2)
    assert text.startswith("Round 2 of 6")
    for heading in ("Steps", "Pace", "Links", "Waiting"):
        assert f"\n{heading}\n" in text


def test_export_one_table_all_tables_and_a_trace(call: Call, top: Path, tmp_path: Path) -> None:
    folder = top / "fedhp" / "seed-0"
    assert call("export", folder, "--table", "rounds").startswith("round,clock,")
    file = tmp_path / "links.csv"
    assert str(file) in call("export", folder, "--table", "links", "--out", file)
    assert file.read_text().startswith("round,a,b,used")
    call("export", folder, "--out", tmp_path / "all")
    assert len(list((tmp_path / "all").glob("*.csv"))) == 16
    text = call("export", folder, "--trace", tmp_path / "trace.csv")
    assert "world.bandwidth.unit=Mb/s" in text
    assert (tmp_path / "trace.csv").read_text().startswith("time,worker,bandwidth,step_time\n")


def test_parquet_by_the_ending_of_the_file(call: Call, top: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    folder = top / "fedhp" / "seed-0"
    file = tmp_path / "new" / "links.parquet"
    assert str(file) in call("export", folder, "--table", "links", "--out", file)
    with RunReader(folder) as run:
        assert pyarrow.parquet.read_table(file).to_pydict() == run.table("links")
    with pytest.raises(RunError, match="holds one table") as caught:
        call("export", folder, "--out", tmp_path / "all.parquet")
    assert "--table" in caught.value.fix
    assert not (tmp_path / "all.parquet").exists()


@pytest.mark.parametrize("ending", [".xlsx", ".json", ".csv.gz", ".TSV"])
def test_an_ending_of_another_format_is_refused(
    call: Call, top: Path, tmp_path: Path, ending: str
) -> None:
    file = tmp_path / f"links{ending}"
    with pytest.raises(RunError, match="tables are not written as") as caught:
        call("export", next(top.glob("*/seed-*"), top), "--table", "links", "--out", file)
    assert ".csv or .parquet" in caught.value.allowed
    assert not file.exists()


def test_parquet_without_pyarrow_is_refused(
    call: Call, top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedhp.report.export.has_parquet", lambda: False)
    file = tmp_path / "links.parquet"
    with pytest.raises(RunError, match="pyarrow") as caught:
        call("export", top / "fedhp" / "seed-0", "--table", "links", "--out", file)
    assert ".[parquet]" in caught.value.fix
    assert not file.exists()


def test_verdicts_are_words(call: Call, top: Path) -> None:
    folder = top / "fedhp" / "seed-0"
    recorded = query(folder, "SELECT verdict FROM links ORDER BY round, a, b")
    words = [LinkVerdict(verdict).name.lower() for (verdict,) in recorded]
    with RunReader(folder) as run:
        assert run.table("links")["verdict"] == words
        assert run.column_types("links")["verdict"] == "TEXT"
        assert set(run.table("verdicts")["verdict"]) == set(words)
    header, *rows = call("export", folder, "--table", "links").splitlines()
    column = header.split(",").index("verdict")
    assert [row.split(",")[column] for row in rows] == words


def test_show_json_obeys_round(call: Call, top: Path) -> None:
    folder = top / "fedhp" / "seed-0"
    shown = json.loads(call("show", folder, "--json", "--round", 4))
    assert shown["round"] == 4
    (clock,) = query(folder, "SELECT clock FROM rounds WHERE round = 4")
    assert (shown["clock"],) == clock
    steps = query(folder, "SELECT worker, local_steps FROM workers WHERE round = 4")
    assert [(row["worker"], row["local_steps"]) for row in shown["workers"]] == steps
    assert shown["evaluation"]["round"] == 4
    with pytest.raises(RunError, match="round 99"):
        call("show", folder, "--json", "--round", 99)
    with pytest.raises(RunError, match="contains 2 runs"):
        call("show", top, "--json", "--round", 2)


def test_the_help_of_export_lists_every_table() -> None:
    words = set(re.findall(r"\w+", signature(export).parameters["table"].default.help))
    assert set(ROUND_TABLES) <= words


def test_an_export_says_where_links_are_a_selection(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = wide_run(tmp_path / "run", 150, rounds=1)
    app = typer.Typer()
    app.command()(export)

    def said(*arguments: str) -> str:
        app([str(folder), *arguments], standalone_mode=False)
        return capfd.readouterr().err

    assert re.match(r"links: a selection of [\d,]+ of 11,175 links", said("--table", "links"))
    assert re.match(r"links: a selection of [\d,]+ of 11,175 links", said())
    assert said("--table", "workers") == ""
    assert said("--trace", str(tmp_path / "trace.csv")) == ""


def test_export_goes_below_the_run_by_default(call: Call, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "dpsgd", rounds=1)
    call("export", folder)
    assert (folder / "tables" / "workers.csv").exists()


@pytest.mark.parametrize("command", ["show", "explain", "export"])
def test_a_path_without_a_run(call: Call, command: str, tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        call(command, tmp_path / "nothing")
    assert caught.value.fix


@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_round_out_of_range_names_the_range(call: Call, command: str, top: Path) -> None:
    with pytest.raises(RunError, match="round 99 is not in the record") as caught:
        call(command, top / "fedhp" / "seed-0", "--round", 99)
    assert caught.value.allowed == "a round from 1 to 6"
    assert "--round 6" in caught.value.fix


def test_one_round_of_many_runs_is_refused(call: Call, top: Path) -> None:
    with pytest.raises(RunError, match="contains 2 runs") as caught:
        call("show", top, "--round", 2)
    assert "--round 2" in caught.value.fix
