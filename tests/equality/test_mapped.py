"""Models in a file instead of in memory: the same bits, and no file left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedhp.engine.sharded import LocalExecutor
from fedhp.learn.params import matrix
from unit.engine.runs import ALGORITHMS, EXACT, NORMED, bits, carry_out, prepared_of

SIZE: dict[str, Any] = {"rounds": 2, "evaluation": {"every": 2, "images": 60}}


@pytest.mark.parametrize("kernels", [{}, EXACT], ids=["auto", "exact"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_mapped_run_is_one_in_memory(
    algorithm: str, kernels: dict[str, Any], tmp_path: Path
) -> None:
    prepared = prepared_of(algorithm, SIZE, kernels)
    mapped = LocalExecutor(prepared, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []  # not even while it runs: the files have no names
    result = carry_out(mapped)
    assert bits(result) == bits(carry_out(LocalExecutor(prepared)))
    assert list(tmp_path.iterdir()) == []


def test_mapped_shards_with_statistics_that_stay_at_home(tmp_path: Path) -> None:
    prepared = prepared_of("pens", SIZE, EXACT, NORMED, {"training": {"batch_norm": "local"}})
    result = carry_out(LocalExecutor(prepared, shards=2, scratch=tmp_path))
    assert bits(result) == bits(carry_out(LocalExecutor(prepared)))
    assert list(tmp_path.iterdir()) == []


def test_a_mapped_matrix_holds_copies_of_the_row(tmp_path: Path) -> None:
    row = torch.arange(5.0)
    rows = matrix(3, row, tmp_path)
    assert torch.equal(rows, row.repeat(3, 1))
    rows[1] += 1
    assert torch.equal(rows[0], row)
    assert torch.equal(row, torch.arange(5.0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("count", "width"), [(0, 4), (3, 0), (0, 0)])
def test_an_empty_matrix_needs_no_file(count: int, width: int, tmp_path: Path) -> None:
    assert matrix(count, torch.zeros(width), tmp_path).shape == (count, width)
