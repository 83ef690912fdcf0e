"""The comparison table says what the runs say, and marks what did not finish."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from fedhp.record.reader import RunReader, RunSummary
from fedhp.report.limit import find_limit
from fedhp.report.tables import (
    comparison_grid,
    comparison_markdown,
    comparison_table,
    paired_lines,
    round_table,
    spread_evenly,
    worker_table,
)
from unit.report.conftest import Runs
from unit.report.runs import make_run, query


def summary(algorithm: str, seed: int = 0, **changes: Any) -> RunSummary:
    base = RunSummary(
        algorithm=algorithm,
        seed=seed,
        metric="accuracy",
        status="finished",
        rounds=10,
        final_accuracy=0.9,
        best_accuracy=0.91,
        whole_test_accuracy=None,
        mean_model_accuracy=0.92,
        completion_time=100.0,
        round_time=10.0,
        mean_waiting_time=2.0,
        mean_local_steps=30.0,
        bytes_sent=1_500_000,
        time_to_target={"0.80": 50.0},
        digest="d",
    )
    return replace(base, **changes)


def test_every_heading_has_a_meaning() -> None:
    runs = [summary("fedhp", final_tests=3, own_accuracy=0.8, accuracy_at_time={"60": 0.7})]
    grid = comparison_grid(runs)
    assert len(grid.meanings) == len(grid.headers)
    assert all(grid.meanings)
    assert "mean of the last 3 tests" in grid.meanings[grid.headers.index("final\n%")]


def rendered(table: Table, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def read_summaries(folders: list[Path]) -> list[RunSummary]:
    found = []
    for folder in folders:
        with RunReader(folder) as run:
            found.append(run.summary())
    return found


def cells(summaries: list[RunSummary], **options: Any) -> dict[str, dict[str, str]]:
    """Row name -> header -> text of the Markdown form."""
    lines = comparison_markdown(summaries, **options).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    headers = rows[0]
    found = {}
    for line, row in zip(lines[2:], rows[2:], strict=True):
        if line.startswith("|"):
            found[row[0]] = dict(zip(headers, row, strict=True))
    return found


def test_rows_come_in_the_given_order_with_means_and_half_widths() -> None:
    finals = [0.90, 0.92, 0.94]
    runs = [summary("dpsgd", seed, final_accuracy=f) for seed, f in enumerate(finals)]
    sure = [summary("fedhp", seed, final_accuracy=f + 0.03) for seed, f in enumerate(finals)]
    table = cells([*runs, *sure])
    assert list(table) == ["D-PSGD", "FedHP"]
    # Student's t for 2 degrees of freedom is 4.303; sd 0.02, so 4.303 * 2 / sqrt(3) points.
    assert table["D-PSGD"]["final %"] == "92.0 ± 5.0"
    # The intervals overlap, but every seed has the same difference.
    assert table["FedHP"]["final %"] == "**95.0 ± 5.0**"


def test_one_seed_has_no_interval_and_one_row_no_best() -> None:
    table = cells([summary("fedhp")])
    assert table["FedHP"]["final %"] == "90.0"
    assert "**" not in "".join(table["FedHP"].values())


def test_best_is_bold_and_means_the_right_direction() -> None:
    first: dict[str, Any] = {"final_accuracy": 0.8, "round_time": 5.0}
    second: dict[str, Any] = {"final_accuracy": 0.9, "round_time": 6.0}
    first |= {"mean_waiting_time": 3.0, "bytes_sent": 10**9}
    second |= {"mean_waiting_time": 1.0, "bytes_sent": 10**6}
    a = [summary("a", seed, **first) for seed in range(3)]
    b = [summary("b", seed, **second) for seed in range(3)]
    table = cells([*a, *b])
    assert table["b"]["final %"] == "**90.0**"
    assert table["a"]["round (s)"] == "**5.00**"
    assert table["b"]["waiting (s)"] == "**1.00**"
    assert table["b"]["data sent"] == "**1.00 MB**"
    assert table["a"]["final %"] == "80.0"
    assert [row["mean steps"] for row in table.values()] == ["30.0", "30.0"]  # no best there
    grid = comparison_grid([*a, *b])
    bold = [cell.text for row in grid.rows for cell in row if cell.best]
    assert "90.0" in bold
    assert "\x1b[1m90.0\x1b[0m" in _ansi(comparison_table([*a, *b]))


def _ansi(table: Table) -> str:
    console = Console(width=120, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_targets_say_how_many_reached_them() -> None:
    times: list[float | None] = [40.0, 60.0, None]
    some = [summary("some", seed, time_to_target={"0.80": t}) for seed, t in enumerate(times)]
    none = [summary("none", seed, time_to_target={"0.80": None}) for seed in range(3)]
    # 50 s is less, but not every seed got there, so nothing is certain.
    all_ = [summary("all", seed, time_to_target={"0.80": 70.0}) for seed in range(3)]
    more = [summary("more", seed, time_to_target={"0.80": 90.0}) for seed in range(3)]
    table = cells([*some, *none, *all_, *more])
    assert table["some"]["to 80 % (s)"] == "50.00 (2/3 reached)"
    assert table["none"]["to 80 % (s)"] == "not reached"
    assert table["all"]["to 80 % (s)"] == "70.00"
    assert cells([*none, *all_, *more])["all"]["to 80 % (s)"] == "**70.00**"


@pytest.mark.parametrize("status", ["diverged", "interrupted", "running"])
def test_unfinished_runs_have_their_own_rows_and_are_not_averaged(status: str) -> None:
    good = [summary("fedhp", seed, final_accuracy=0.9) for seed in range(3)]
    bad = summary("fedhp", 3, final_accuracy=0.99, status=status, rounds=7)
    low = [summary("dpsgd", seed, final_accuracy=0.5) for seed in range(3)]
    table = cells([*good, bad, *low])
    assert table["FedHP (3 of 4 seeds)"]["final %"] == "**90.0**"
    name = {"running": "still running"}.get(status, status)
    alone = table[f"FedHP, seed 3: {name} after 7 rounds"]
    assert alone["final %"] == "99.0"  # its own number, marked by its row, never the best
    assert "unfinished runs have their own rows" in comparison_markdown([*good, bad])


def test_other_metrics_are_plain_numbers() -> None:
    runs = [
        summary("a", metric="R2", final_accuracy=0.5123, time_to_target={"0.40": 3.5}),
        summary("b", metric="R2", final_accuracy=-0.25, time_to_target={"0.40": None}),
    ]
    table = cells(runs)
    assert table["a"]["final R2"] == "0.512"
    assert table["b"]["final R2"] == "-0.250"
    assert table["b"]["to 0.4 (s)"] == "not reached"
    assert "%" not in "".join(header for header in table["a"] if header != "algorithm")


def test_the_table_shows_what_markdown_shows(runs: Runs) -> None:
    summaries = read_summaries(runs.comparison)
    shown = rendered(comparison_table(summaries))
    for row in comparison_grid(summaries).rows:
        for cell in row:
            assert cell.text in shown
            assert cell.text in comparison_markdown(summaries)


def test_a_narrow_terminal_cuts_nothing(runs: Runs) -> None:
    summaries = read_summaries(runs.comparison)
    shown = rendered(comparison_table(summaries), width=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert all(name in shown for name in ("FedHP", "D-PSGD", "AD-PSGD", "LD-SGD", "PENS"))


def test_labels_with_brackets_are_no_markup() -> None:
    shown = rendered(comparison_table([summary("fedhp:x=[bold]"), summary("b|c")]))
    assert "FedHP x [bold]" in shown
    assert "b\\|c" in comparison_markdown([summary("b|c")])


@pytest.mark.parametrize("length", [0, 1, 2, 19, 20, 21, 100, 1001])
def test_rounds_are_chosen_evenly_with_both_ends(length: int) -> None:
    chosen = spread_evenly(length, 20)
    assert len(chosen) == min(length, 20)
    assert chosen == sorted(set(chosen))
    if length:
        assert (chosen[0], chosen[-1]) == (0, length - 1)
    gaps = [b - a for a, b in itertools.pairwise(chosen)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_round_table_has_the_records_numbers(runs: Runs) -> None:
    folder = runs.fedhp[0]
    with RunReader(folder) as run:
        shown = rendered(round_table(run))
    rows = query(folder, "SELECT round, accuracy FROM evaluations")
    for index, accuracy in rows:
        assert re.search(rf"^\s*{index} .* {100 * accuracy:.1f} ", shown, re.MULTILINE)


def test_worker_table_shows_steps_waiting_and_who_is_away(runs: Runs) -> None:
    with RunReader(runs.away) as run:
        shown = rendered(worker_table(run, 3)).splitlines()
    rows = query(runs.away, "SELECT worker, local_steps, waiting_time FROM workers WHERE round=3")
    lines = {int(line.split()[0]): line for line in shown if re.match(r"\s*\d+ ", line)}
    assert len(lines) == 6
    assert "away" in lines[2]
    for worker, steps, waiting in rows:
        if worker != 2:
            assert f" {steps} " in lines[worker]
            assert any(f" {waiting:.{digits}f} " in lines[worker] for digits in (2, 3))


def test_worker_table_of_an_attacked_run(tmp_path: Path) -> None:
    """Workers that attack are not tested."""
    folder = make_run(tmp_path / "run", "dpsgd", rounds=2, attack={"kind": "label_flip"})
    with RunReader(folder) as run:
        shown = rendered(worker_table(run, 2)).splitlines()
    tested = dict(query(folder, "SELECT worker, accuracy FROM worker_evaluations WHERE round=2"))
    lines = [line.split() for line in shown if re.match(r"\s*\d+ ", line)]
    assert len(lines) == 6
    assert len(tested) == 5
    for worker, *_, test, _ in lines:
        value = tested.get(int(worker))
        assert test == ("–" if value is None else f"{100 * value:.1f}")


def test_the_caption_says_what_final_is() -> None:
    three = summary("fedhp", final_tests=3)
    assert "final: mean of the last 3 tests" in comparison_markdown([three])
    assert "final: the last test" in comparison_markdown([summary("fedhp")])
    mixed = comparison_markdown([three, summary("dpsgd", final_tests=1)])
    assert "final: mean of the last 1 to 3 tests" in mixed


def test_bytes_to_a_target_are_next_to_its_time() -> None:
    """Also where only some seeds reached it, and not where a narrow terminal has no room."""
    runs = [
        summary("a", seed, time_to_target={"0.80": t}, bytes_to_target={"0.80": b})
        for seed, (t, b) in enumerate([(50.0, 2_000_000), (60.0, 4_000_000), (None, None)])
    ]
    rows = cells(runs)
    assert rows["a"]["sent to 80 %"] == "3.00 MB (2/3 reached)"
    assert cells(runs[2:])["a"]["sent to 80 %"] == "not reached"
    assert "sent to" in rendered(comparison_table(runs), 200)
    assert "sent to 80 %" in rendered(comparison_table(runs), 60).split("no room for:")[1]


def test_the_limit_gives_every_algorithm_its_share() -> None:
    """Of several variants the fastest counts, seed by seed; it is never called the best."""
    limit = [summary("free_links", s, time_to_target={"0.80": 10.0 + s}) for s in range(3)]
    slower = [summary("free_links:serve=model", s, time_to_target={"0.80": 30.0}) for s in range(3)]
    fast = [summary("fedhp_plus", s, time_to_target={"0.80": 20.0 + 2 * s}) for s in range(3)]
    slow = [summary("adpsgd", s, time_to_target={"0.80": 100.0 + 10 * s}) for s in range(3)]
    runs = [*slower, *limit, *fast, *slow]
    rows = cells(runs)
    assert rows["FedHP+"]["share of limit %"] == "**50**"
    assert rows["AD-PSGD"]["share of limit %"] == "10"
    assert rows["FedHP+"]["to 80 % (s)"].startswith("**")
    assert [line.split(" (")[0] for line in paired_lines(runs)] == [
        "To 80 %, FedHP+ is faster than AD-PSGD",
        "At the end, FedHP+ against AD-PSGD: cannot tell",
    ]
    found = find_limit(runs)
    assert found is not None
    assert found.label == "free_links"
    assert found.as_json(runs)["shares"]["adpsgd"]["mean"] == pytest.approx(0.1)
    assert find_limit([*fast, *slow]) is None
    assert find_limit(limit) is None
    unreached = [summary("fedhp_plus", s, time_to_target={"0.80": None}) for s in range(3)]
    assert cells([*limit, *unreached, *slow])["FedHP+"]["share of limit %"] == "–"
