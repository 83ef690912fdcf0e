"""More workers than a stack holds: threads share the chunks, with the same results."""

from __future__ import annotations

from typing import Any

import pytest

from fedhp.engine.sharded import LocalExecutor
from unit.engine.runs import ALGORITHMS, bits, carry_out, prepared_of

MANY: dict[str, Any] = {"workers": 13, "rounds": 3, "evaluation": {"every": 2, "images": 60}}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_executor_or_two_share_the_chunks(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedhp.learn.stacked.CHUNK_WORKERS", 5)
    results = []
    for executors in (1, 2):
        engine = LocalExecutor(prepared_of(algorithm, MANY, {"executors": executors}))
        assert engine.shard.rows.stack is not None
        assert engine.shard.rows.stack.chunk(engine.prepared.device) == 5
        assert engine.prepared.executors == executors
        results.append(bits(carry_out(engine)))
    assert results[0] == results[1]
