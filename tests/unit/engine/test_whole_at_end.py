"""After the last round, and only then, the models are tested on the whole test set as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedhp.engine.runs.run import loop_of
from fedhp.engine.sharded import LocalExecutor
from fedhp.types import RoundRecord
from unit.engine.runs import bits, prepared_of

BOTH = pytest.mark.parametrize("algorithm", ["dpsgd", "adpsgd"])
OVERLAP = pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])


def records_of(algorithm: str, evaluation: dict[str, Any], overlap: bool) -> list[RoundRecord]:
    prepared = prepared_of(algorithm, {"evaluation": evaluation}, overlap=overlap)
    engine = LocalExecutor(prepared)
    try:
        return list(loop_of(engine).rounds())
    finally:
        engine.close()


@BOTH
@OVERLAP
@pytest.mark.parametrize("every", [1, 2, 50])
def test_the_last_record_has_both(algorithm: str, overlap: bool, every: int) -> None:
    prepared = prepared_of(
        algorithm, {"evaluation": {"images": 60, "every": every}}, overlap=overlap
    )
    assert prepared.whole_at_end
    engine = LocalExecutor(prepared)
    try:
        *before, last = list(loop_of(engine).rounds())
        assert len(before) == 2
        assert all(record.final_evaluation is None for record in before)
        assert last.evaluation is not None
        assert last.evaluation.images == 60
        assert last.final_evaluation is not None
        assert last.final_evaluation.images == len(prepared.dataset.test_inputs) > 60
        if algorithm == "dpsgd":  # an asynchronous loop goes on to the next turns
            assert bits(last.final_evaluation) == bits(engine.evaluate(whole=True))
    finally:
        engine.close()


@BOTH
@OVERLAP
def test_it_is_the_test_of_a_run_on_all_images(algorithm: str, overlap: bool) -> None:
    some = records_of(algorithm, {"images": 60}, overlap)[-1]
    every = records_of(algorithm, {}, overlap)[-1]
    assert some.final_evaluation is not None
    assert bits(some.final_evaluation) == bits(every.evaluation)
    error = some.final_evaluation.standard_error
    assert 0 < error < 0.03
    assert not np.array_equal(some.final_evaluation.accuracy, np.zeros(5))


@BOTH
@OVERLAP
@pytest.mark.parametrize(
    "evaluation",
    [{}, {"images": 60, "whole_at_end": False}, {"images": 100_000}],
    ids=["all images", "not asked for", "more than there are"],
)
def test_none_otherwise(algorithm: str, overlap: bool, evaluation: dict[str, Any]) -> None:
    records = records_of(algorithm, evaluation, overlap)
    assert [record.final_evaluation for record in records] == [None] * 3
    assert all(record.evaluation is not None for record in records)
