"""horizon and evaluation.seconds: a run of so many seconds of virtual time, tested by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhp
from cli.support import Command, digest_of, write
from fedhp.config import load, parse, to_tables
from fedhp.config.schema import MOST_ROUNDS
from fedhp.errors import ConfigError
from fedhp.record.reader import time_to


def timed(folder: Path, **changes: Any) -> Path:
    """The tiny experiment without rounds: rounds take some 10 s."""
    file = write(folder, horizon=60.0, **changes)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("rounds = 3\n", ""), encoding="utf-8")
    return file


def clocks(folder: Path) -> tuple[list[float], list[float]]:
    """The ends of all rounds and of the tested ones."""
    with fedhp.open_run(folder) as run:
        return run.table("rounds")["clock"], run.table("evaluations")["clock"]


@pytest.mark.parametrize("algorithm", ["dpsgd", "fedhp", "pens"])
def test_a_synchronous_run_ends_with_the_round_that_passes_the_horizon(
    command: Command, tmp_path: Path, algorithm: str
) -> None:
    file = timed(tmp_path, algorithm={"name": algorithm}, evaluation={"seconds": 20.0})
    ended = command("run", file, "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    assert "/60 s" in ended.err
    ends, tested = clocks(tmp_path / "run")
    assert ends[-2] < 60 <= ends[-1]
    assert tested == [min(end for end in ends if end >= grid) for grid in (20, 40, 60)]
    shown = command("show", tmp_path / "run").out
    assert f"{ends[-1]:.6g} of 60 s of virtual time" in shown
    assert "every 20 s of virtual time" in shown
    explained = command("explain", tmp_path / "run", "--round", 1).out
    assert "Round 1" in explained
    assert "Round 1 of" not in explained


@pytest.mark.parametrize("algorithm", ["dpsgd", "fedhp_plus", "adpsgd"])
def test_a_longer_horizon_continues_a_run_bit_for_bit(
    command: Command, tmp_path: Path, algorithm: str
) -> None:
    file = timed(tmp_path, algorithm={"name": algorithm}, evaluation={"seconds": 25.0})
    out = tmp_path / "run"
    assert command("run", file, "horizon=31", "--out", out).code == 0
    short = clocks(out)[1]
    ended = command("run", file, "--out", out, "--resume")
    assert ended.code == 0, ended.err
    assert command("run", file, "--out", tmp_path / "whole").code == 0
    assert digest_of(out) == digest_of(tmp_path / "whole")
    assert clocks(out)[1][0] == short[0]
    refused = command("run", file, "horizon=40", "--out", out, "--resume")
    assert refused.code == 2
    assert "horizon is 40" in refused.err
    other = command("run", file, "rounds=40", "--out", out, "--resume")
    assert other.code == 2
    assert "but the run was started with 60.0" in other.err


def test_the_first_stage_of_pens_is_a_share_of_the_horizon(
    command: Command, tmp_path: Path
) -> None:
    file = timed(tmp_path, algorithm={"name": "pens", "stage_share": 0.4})
    assert command("run", file, "--out", tmp_path / "run").code == 0
    with fedhp.open_run(tmp_path / "run") as run:
        rounds = run.table("rounds")
    starts = [0.0, *rounds["clock"][:-1]]
    scored = ["scored" in rule for rule in rounds["rule"]]
    assert scored == [start < 0.4 * 60 for start in starts]
    refused = command("run", file, "horizon=600", "--out", tmp_path / "run", "--resume")
    assert refused.code == 2
    assert "the algorithm 'pens' may use the length of the run" in refused.err


def test_an_asynchronous_round_is_the_time_between_two_tests(
    command: Command, tmp_path: Path
) -> None:
    file = timed(tmp_path, algorithm={"name": "adpsgd"}, evaluation={"seconds": 7.5})
    assert command("run", file, "--out", tmp_path / "run").code == 0
    ends, tested = clocks(tmp_path / "run")
    assert ends == tested == [7.5 * k for k in range(1, 9)]
    by_events = command("run", file, "evaluation.seconds=none", "--out", tmp_path / "events")
    assert by_events.code == 0
    # The same events in the same order: only the borders of the rounds are elsewhere.
    sums = []
    for folder in ("run", "events"):
        with fedhp.open_run(tmp_path / folder) as run:
            rounds, workers = run.table("rounds"), run.array("workers", "local_steps")
            sums.append((workers[np.array(rounds["clock"]) <= 60].sum(), rounds["clock"][-1]))
    assert sums[1][1] > 60
    assert 0 < sums[1][0] <= sums[0][0]


def test_times_to_a_target_are_interpolated(command: Command, tmp_path: Path) -> None:
    clock, values = [6.0, 12.0, 18.0], [0.2, 0.5, 0.9]
    assert time_to(0.6, clock, values) == 18.0
    assert time_to(0.6, clock, values, interpolated=True) == pytest.approx(13.5)
    assert time_to(0.1, clock, values, interpolated=True) == 6.0
    assert time_to(0.95, clock, values, interpolated=True) is None
    file = timed(tmp_path, evaluation={"seconds": 12.0})
    assert command("run", file, "horizon=36", "--out", tmp_path / "run").code == 0
    with fedhp.open_run(tmp_path / "run") as run:
        tests, rounds = run.table("evaluations"), run.table("rounds")
    sent = [
        sum(
            size for r, size in zip(rounds["round"], rounds["bytes_sent"], strict=True) if r <= test
        )
        for test in tests["round"][:2]
    ]
    assert 0 < sent[0] < sent[1]
    (before, low), (after, high) = zip(tests["clock"][:2], tests["accuracy"][:2], strict=True)
    assert low < high
    target = (low + high) / 2
    shown = command(
        "run", file, "horizon=36", f"evaluation.targets=[{target!r}]", "--out", tmp_path / "run",
        "--resume", "--json",
    )  # fmt: skip
    [summary] = shown.json()["runs"]
    assert list(summary["time_to_target"].values()) == [pytest.approx((before + after) / 2)]
    assert list(summary["bytes_to_target"].values()) == [pytest.approx(sum(sent) / 2, abs=1)]


def test_a_comparison_shows_the_virtual_time(command: Command, tmp_path: Path) -> None:
    file = timed(tmp_path)
    compared = command(
        "compare", file, "horizon=15", "--algorithms", "dpsgd,ldsgd", "--jobs", 1, "--no-figures",
        "--out", tmp_path / "all",
    )  # fmt: skip
    assert compared.code == 0, compared.err
    assert "/15 s" in compared.err
    assert str(MOST_ROUNDS) not in compared.out + compared.err


def test_one_or_the_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="horizon is 60") as caught:
        parse({"rounds": 3, "horizon": 60.0})
    assert caught.value.key == "rounds"
    with pytest.raises(ConfigError, match=r"evaluation\.seconds is 6"):
        parse({"evaluation": {"every": 2, "seconds": 6.0}})
    with pytest.raises(ConfigError, match="above 0"):
        parse({"horizon": 0})
    notes: list[str] = []
    by_time = load(write(tmp_path), ["horizon=40"], notes=notes)
    assert notes == [f"horizon=40 replaces rounds = 3 in {tmp_path / 'tiny.toml'}"]
    assert (by_time.horizon, by_time.rounds) == (40.0, MOST_ROUNDS)
    assert "rounds" not in to_tables(by_time)
    assert parse(to_tables(by_time)) == by_time
    by_rounds = parse(to_tables(by_time), ["rounds=100"])
    assert (by_rounds.horizon, by_rounds.rounds) == (None, 100)
    assert parse({"evaluation": {"every": 2}}, ["evaluation.seconds=6"]).evaluation.every == 1


def test_a_replay_has_the_rounds_of_the_record(command: Command, tmp_path: Path) -> None:
    file = timed(tmp_path, algorithm={"name": "fedhp"}, evaluation={"seconds": 20.0})
    assert command("run", file, "--out", tmp_path / "run").code == 0
    result = command("whatif", tmp_path / "run", "--planner", "dpsgd,adpsgd,pens", "--json")
    assert result.code == 0, result.err
    rounds = len(clocks(tmp_path / "run")[0])
    assert {row["rounds"] for row in result.json()["planners"]} == {rounds}
    refused = command("whatif", tmp_path / "run", "horizon=90")
    assert refused.code == 2
    assert "a replay has the rounds of the record" in refused.err
