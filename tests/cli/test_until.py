"""until: a run ends after the first round that reaches an accuracy, a time or an amount of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedhp
from cli.support import Command, digest_of, write


def numbers(folder: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """Clock, bytes and accuracy after every round."""
    with fedhp.open_run(folder) as run:
        rounds = run.table("rounds")
        return rounds["clock"], rounds["bytes_sent"], run.table("evaluations")["accuracy"]


@pytest.mark.parametrize("algorithm", ["dpsgd", "adpsgd"])
def test_a_run_ends_when_a_condition_is_reached(
    command: Command, tmp_path: Path, algorithm: str
) -> None:
    file = write(tmp_path, rounds=4, algorithm={"name": algorithm})
    assert command("run", file, "--out", tmp_path / "four").code == 0
    assert command("run", file, "rounds=2", "--out", tmp_path / "two").code == 0
    clock, sent, accuracy = numbers(tmp_path / "four")
    conditions = [f"until.clock={clock[1]!r}", f"until.bytes={sent[0] + 1}"]
    if accuracy[1] > accuracy[0]:
        conditions.append(f"until.accuracy={accuracy[1]!r}")
    for number, condition in enumerate(conditions):
        out = tmp_path / str(number)
        ended = command("run", file, condition, "--out", out)
        assert ended.code == 0, ended.err
        assert digest_of(out) == digest_of(tmp_path / "two")
        shown = command("show", out).out
        assert f"finished, 2 of 4 rounds: {condition.split('=')[0]} = " in shown
        # A finished run stays as it is, and continues when the condition is dropped.
        assert command("run", file, condition, "--out", out, "--resume").code == 0
        assert digest_of(out) == digest_of(tmp_path / "two")
        more = command("run", file, "--out", out, "--resume")
        assert more.code == 0, more.err
        assert digest_of(out) == digest_of(tmp_path / "four")


def test_the_round_that_ends_a_run_is_tested(command: Command, tmp_path: Path) -> None:
    file, out = write(tmp_path, rounds=9, evaluation={"every": 4}), tmp_path / "run"
    assert command("run", file, "until.clock=0.001", "--out", out).code == 0
    with fedhp.open_run(out) as run:
        assert run.table("evaluations")["round"] == [1]
        assert run.table("final_evaluations")["round"] == [1]


def test_a_condition_that_is_still_reached_changes_nothing(
    command: Command, tmp_path: Path
) -> None:
    file, out = write(tmp_path, rounds=9), tmp_path / "run"
    assert command("run", file, "until.clock=0.001", "--out", out).code == 0
    before = digest_of(out)
    assert command("run", file, "until.clock=0.002", "--out", out, "--resume").code == 0
    assert digest_of(out) == before
    refused = command("run", file, "until.clock=0.0005", "--out", out, "--resume")
    assert refused.code == 2
    assert "until.clock is 0.0005, but the run was started with 0.002" in refused.err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("until.accuracy=90", "a share above 0 and at most 1"),
        ("until.clock=0", "until.clock"),
        ("until.bytes=0", "until.bytes"),
        ("until.bytes=1.5", "until.bytes"),
        ("until.rounds=3", "until.rounds"),
    ],
)
def test_bad_conditions_are_refused_before_work(
    command: Command, tmp_path: Path, override: str, words: str
) -> None:
    refused = command("run", write(tmp_path), override, "--out", tmp_path / "run")
    assert refused.code == 2
    assert words in refused.err
    assert not (tmp_path / "run").exists()
