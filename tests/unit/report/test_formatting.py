"""How numbers are written."""

from __future__ import annotations

import pytest

from fedhp.report.formatting import (
    count,
    data_size,
    decimals_for,
    label_name,
    listed,
    number,
    score,
    seconds,
    short_names,
    target_name,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.1817, "0.182"), (9.2699, "9.27"), (0.99961, "1.00"), (9.999, "10.0"),
     (41.11, "41.1"), (518.9, "519"),
     (1e-5, "1.00e-05"), (-3.14159, "-3.14"), (None, "–"), (float("nan"), "–")],
)  # fmt: skip
def test_numbers_keep_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (950, "950 B"), (999.6, "1.00 kB"), (1_500_000, "1.50 MB"),
     (1.35e9, "1.35 GB"), (4.2e15, "4200 TB"), (None, "–")],
)  # fmt: skip
def test_sizes_have_human_units(size: float | None, text: str) -> None:
    assert data_size(size) == text


def test_accuracies_are_percent_and_other_metrics_plain() -> None:
    assert score(0.93384) == "93.4 %"
    assert score(0.93384, unit=False) == "93.4"
    assert score(0.524, "R2") == "0.524"
    assert score(None) == "–"
    assert [target_name(key) for key in ("0.90", "0.925", "0.57")] == ["90 %", "92.5 %", "57 %"]
    assert target_name("0.40", "R2") == "0.4"
    assert seconds(9.2699) == "9.27 s"


def test_lists_and_counts_read_as_sentences() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c", "d"], most=2) == "a, b and 2 more"
    assert [count(1, "link"), count(2, "link")] == ["1 link", "2 links"]


def test_columns_get_decimals_by_their_largest_value() -> None:
    assert decimals_for([0.2, None, 0.9]) == 3
    assert decimals_for([0.2, 22.0]) == 2
    assert decimals_for([0.2, 360.0]) == 1
    assert decimals_for([0.2, 3600.0]) == 0
    assert decimals_for([0.0]) == 0


def test_labels_get_the_names_of_the_literature() -> None:
    assert label_name("adpsgd") == "AD-PSGD"
    assert label_name("fedhp:deadline=fill,max_steps=50") == "FedHP (deadline=fill, max_steps=50)"
    assert label_name("my.module:Algorithm") == "my.module:Algorithm"


def test_variants_are_named_by_what_differs() -> None:
    tuned = "adpsgd:steps=100:training.learning_rate=0.4"
    assert short_names(["fedhp", tuned]) == {"fedhp": "FedHP", tuned: "AD-PSGD 100 steps, lr 0.4"}
    shared = ["dpsgd:data.skew=0.8", "adpsgd:steps=5:data.skew=0.8"]
    assert list(short_names(shared).values()) == ["D-PSGD", "AD-PSGD 5 steps"]
    assert (
        short_names(["my.module:Mine:x=1", "dpsgd"])["my.module:Mine:x=1"] == "my.module:Mine x 1"
    )
    attacked = ["dpsgd:attack.kind=none", "dpsgd:attack.kind=noise:exchange.robust=trimmed_mean"]
    assert list(short_names(attacked).values()) == [
        "D-PSGD no attack",
        "D-PSGD attack noise, robust trimmed mean",
    ]
    alike = ["fedhp:a.x=1", "fedhp:b.x=1"]
    assert len(set(short_names(alike).values())) == 2
