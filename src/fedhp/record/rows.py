"""A round as columns for the tables of the record, the round itself left out.

NaN stands for what is missing: SQLite stores it as NULL.
"""

from __future__ import annotations

import numpy as np

from fedhp.record.links import Columns, link_table, to_record
from fedhp.types import RoundRecord


def round_columns(record: RoundRecord) -> dict[str, Columns]:
    """The columns of every table that gets rows, in the order of the schema."""
    timing, decision = record.timing, record.decision
    workers = len(record.local_steps)
    losses = record.train_loss[np.isfinite(record.train_loss)]
    links = link_table(record)
    kept = to_record(links, workers, pace_setter=decision.pace_setter)
    facts, wall = sorted(decision.facts.items()), sorted(record.wall.items())
    columns: dict[str, Columns] = {
        "rounds": _single(
            record.clock,
            timing.round_time,
            timing.mean_waiting_time,
            record.mean_local_steps,
            record.learning_rate,
            len(record.links),
            record.bytes_sent,
            float(losses.mean()) if losses.size else None,
            str(decision.rule),
            decision.pace_setter,
            int(links.directed),
            len(links),
            len(kept),
        ),
        "workers": [
            range(workers),
            record.local_steps.tolist(),
            *(
                array.tolist()
                for array in (
                    record.step_time,
                    timing.compute_time,
                    timing.communication_time,
                    timing.worker_time,
                    timing.waiting_time,
                    record.train_loss,
                    record.update_norm,
                    record.smoothness,
                    record.gradient_variance,
                    record.bandwidth,
                )
            ),
            links.peers(workers).tolist(),
        ],
        "links": kept.columns(),
        "verdicts": links.verdict_columns(),
        "facts": [[name for name, _ in facts], [float(value) for _, value in facts]],
        "wall": [[phase for phase, _ in wall], [seconds for _, seconds in wall]],
    }
    for prefix, tested in (("", record.evaluation), ("final_", record.final_evaluation)):
        if tested is None:
            continue
        known = np.isfinite(tested.accuracy)  # on a real network some may be away
        columns[f"{prefix}evaluations"] = _single(
            record.clock,
            tested.mean_accuracy,
            tested.mean_model_accuracy,
            tested.images,
            float(tested.standard_error),
        )
        columns[f"{prefix}worker_evaluations"] = [
            np.flatnonzero(known).tolist(),
            tested.accuracy[known].tolist(),
        ]
    return columns


def _single(*values: float | str | None) -> Columns:
    return [[value] for value in values]
