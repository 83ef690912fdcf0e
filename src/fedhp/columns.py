"""The numbers that are recorded of every worker in every round, each declared once.

The checks of reports, the record, exports, logs and the page follow this list. To add a column,
declare it with `added=True` and put its values into RoundRecord.measures where it is measured
(in a simulation) and into RoundReport.measures (on a network). A record without it is still read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from fedhp.types import Timing

LARGEST_MEASURE = 3.5e38  # of losses and norms: what a 32-bit float can hold
LONGEST_STEP = 3600.0  # s of one local step


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a worker may report: a finite number from least to most."""

    least: float
    most: float
    positive: bool = False  # 0 is not allowed
    unmeasured: bool = False  # NaN is


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    unit: str = ""
    whole: bool = False  # whole numbers, never missing
    reported: Bounds | None = None  # by the worker itself, under this name
    logged: bool = False  # by sinks, with --per-worker
    shown: bool = True  # on the page
    added: bool = False  # later than the first records; part of the digest where it has values


TIMES = frozenset(part.name for part in fields(Timing))
_MEASURED = Bounds(0.0, LARGEST_MEASURE)
_ESTIMATED = Bounds(0.0, LARGEST_MEASURE, unmeasured=True)

# In the order of the record's table; added ones come last.
WORKER_COLUMNS = (
    Column("local_steps", whole=True, logged=True),
    Column("step_time", "s", reported=Bounds(0.0, LONGEST_STEP, positive=True), logged=True),
    Column("compute_time", "s"),
    Column("communication_time", "s", logged=True),
    Column("worker_time", "s", logged=True),
    Column("waiting_time", "s", logged=True),
    Column("train_loss", reported=Bounds(-LARGEST_MEASURE, LARGEST_MEASURE), logged=True),
    Column("update_norm", reported=_MEASURED, shown=False),
    Column("smoothness", reported=_ESTIMATED, shown=False),
    Column("gradient_variance", reported=_ESTIMATED, shown=False),
    Column("bandwidth", "bytes/s", logged=True),
    Column("links", whole=True, logged=True),
)


def added_columns() -> tuple[Column, ...]:
    """Those that a record may lack."""
    return tuple(column for column in WORKER_COLUMNS if column.added)
