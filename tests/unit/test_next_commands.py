"""The hint after a run can be pasted into a shell, and its round exists."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fedhp.cli.parameters import next_commands


@pytest.mark.parametrize(("rounds", "named"), [(1, "1"), (2, "2"), (300, "2")])
def test_the_hint_names_a_round_that_exists(rounds: int, named: str) -> None:
    folder = Path("my runs/it's one")
    show, explain, dash = next_commands(folder, rounds)
    assert shlex.split(show) == ["fedhp", "show", str(folder)]
    assert shlex.split(explain) == ["fedhp", "explain", str(folder), "--round", named]
    assert shlex.split(dash) == ["fedhp", "dash", str(folder), "--open"]


def test_without_a_round_there_is_nothing_to_explain() -> None:
    assert next_commands(Path("runs/x"), 0) == ["fedhp show runs/x", "fedhp dash runs/x --open"]
