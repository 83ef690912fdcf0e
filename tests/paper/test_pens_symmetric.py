"""PENS, symmetric, first stage: a worker averages only models that were sent to it."""

from __future__ import annotations

import numpy as np

from fedhp.graph import mixing_matrix, topology_from
from paper.tiny import engine_of, loop_of, tiny


def test_every_averaged_model_was_transferred() -> None:
    more = {"workers": 8, "rounds": 4}
    with engine_of(tiny("pens", more, peers=3, keep=2, symmetric=True)) as engine:
        loop = loop_of(engine)
        record = next(loop.rounds())
        selected = loop.planner.last_reports.selected
        kept = [(i, int(j)) for i, row in enumerate(selected) for j in row if j >= 0]
        weights = mixing_matrix(topology_from(8, kept), "metropolis")
        sent = {(int(a), int(b)) for a, b in record.links}  # (receiver, sender)
        used = {(int(i), int(j)) for i, j in np.argwhere(weights > 0) if i != j}
        np.testing.assert_allclose(
            engine.shard.rows.models, weights @ engine.shard.rows.after.numpy(), atol=1e-5
        )
        assert used <= sent, sorted(used - sent)
