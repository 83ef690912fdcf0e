"""Tables fit the terminal: columns are dropped, and neither words nor numbers are cut."""

from __future__ import annotations

import re

import numpy as np
import pytest
from rich.console import Console, RenderableType

from fedhp.cli.commands.data import split_tables
from fedhp.report.tables import comparison_table
from fedhp.terminal import FittingTable, ProseTable, shorten
from unit.report.test_tables import summary

WIDTHS = (40, 60, 80, 100, 160)
LONG = "adpsgd:steps=100:training.learning_rate=0.4"
PIECE = re.compile(r"[A-Za-z0-9.]+")


def rendered(*parts: RenderableType, width: int, color: bool = False) -> str:
    console = Console(
        width=width,
        force_terminal=True,
        color_system="standard" if color else None,
        highlight=False,
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    text = capture.get()
    assert color or max(map(len, text.splitlines())) <= width
    return text


def twelve_runs() -> FittingTable:
    labels = ("fedhp", "dpsgd", "adpsgd", LONG)
    runs = [
        summary(label, seed, final_accuracy=0.8 + 0.01 * seed + 0.02 * index)
        for index, label in enumerate(labels)
        for seed in range(3)
    ]
    table = comparison_table(runs)
    assert isinstance(table, FittingTable)
    return table


def test_shortened_labels_keep_both_ends() -> None:
    assert shorten("fedhp", 5) == "fedhp"
    assert shorten(LONG, 15) == "adpsgd:…ate=0.4"
    assert [len(shorten(LONG, width)) for width in range(12)] == list(range(12))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_drops_columns_and_cuts_no_number(width: int) -> None:
    text = rendered(twelve_runs(), width=width)
    shown, hidden, *_ = [*re.split(r"no\s+room\s+for:", text), ""]
    rows = [line for line in shown.splitlines() if re.match(r"(FedHP|D-PSGD|AD-PSGD)", line)]
    assert [row.split()[0] for row in rows] == ["FedHP", "D-PSGD", "AD-PSGD", "AD-PSGD"]
    long = " ".join(line[:26] for line in shown.splitlines()[shown.splitlines().index(rows[3]) :])
    assert all(word in long.split() for word in ("100", "steps,", "lr", "0.4"))
    finals = ("81.0 ± 2.5", "83.0 ± 2.5", "85.0 ± 2.5", "87.0 ± 2.5")
    for row, final in zip(rows, finals, strict=True):
        assert final in row
        numbers = row.split(final)[1].split()
        assert set(numbers) <= {"92.0", "50.00", "10.00", "2.00", "30.0", "1.50", "MB", "–"}
    missing = " ".join(hidden.split())
    assert missing.count(",") >= 5 if width == 40 else "round (s)" not in missing
    assert "to 80 %" not in missing
    assert not missing or width < 160


def test_bold_is_named_only_where_it_is_seen() -> None:
    assert "bold" in rendered(twelve_runs(), width=80, color=True)
    assert "bold" not in rendered(twelve_runs(), width=80)  # NO bold in plain text
    console = Console(width=120)
    with console.capture() as capture:
        console.print(twelve_runs())
    assert "bold" not in capture.get()


@pytest.mark.parametrize("width", WIDTHS)
def test_sentences_break_between_words(width: int) -> None:
    claim = "FedHP reaches the target accuracy first among all synchronous algorithms"
    table = ProseTable(
        *("claim", "bar", "verdict", "values"),
        rows=[[claim, "at least 1.2 times", "does not hold", "1.13 [1.02, 1.24]\n2.5 [1.5, 3.5]"]],
        title="What we require: does it hold?",
        caption="The paper's own claims: 3 hold, 1 does not hold",
    )
    text = rendered(table, width=width)
    pieces = set(PIECE.findall(text))
    expected = PIECE.findall(f"{claim} at least 1.2 times does not hold 1.13 1.02 1.24 2.5 1.5 3.5")
    assert set(expected) <= pieces
    assert pieces <= {
        *expected,
        *("bar", "verdict", "values", "claim", "What", "we", "require", "it"),
        *("The", "paper", "s", "own", "claims", "3", "1"),
    }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("classes", [10, 62])
def test_a_split_fits(width: int, classes: int) -> None:
    counts = np.arange(1, 30 * classes + 1).reshape(30, classes) + 1000
    sizes = counts.sum(axis=1)
    names = tuple(f"airplane-{label}" for label in range(classes))
    text = rendered(*split_tables(sizes, counts, names=names, width=width), width=width)
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    known = set(map(str, [*counts.ravel(), *sizes, *range(30), classes]))
    for worker in range(30):
        row = lines[str(worker)]
        assert row[1] == str(sizes[worker])
        assert {word.rstrip(",") for word in row} <= known | set(names)
    columns = [line for line in text.splitlines() if str(counts[0, 0]) in line.split()]
    assert bool(columns) == (classes == 10 and width >= 80)


def test_a_split_without_classes_and_with_short_names() -> None:
    sizes = np.array([3, 40])
    assert "40" in rendered(*split_tables(sizes, None, names=(), width=40), width=40)
    counts = np.array([[3, 0], [20, 20]])
    text = rendered(*split_tables(sizes, counts, names=("cat", "[b]"), width=40), width=40)
    assert "cat" in text
    assert "[b]" in text
    assert "·" in text
