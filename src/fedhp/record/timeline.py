"""Time in a round, read back: who finished last and over which link, how long models were on their
way, when each turn without a barrier began and ended. Every page, text and figure reads it here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedhp.record.reader import Columns, RunReader
from fedhp.types import GroupRole, StepReason, StepRule, TurnPhase

ROUNDING = 1e-9  # of a round's length: nobody waits for less
OUTSIDE = (str(GroupRole.LEFT_OUT), str(GroupRole.AWAY))  # of a group average
TURNS_SHOWN = 3  # of a worker, about, in a window of virtual time
ROUNDS_FOR_A_TURN = 5  # before and after a round, in which its usual turn is looked for


@dataclass(frozen=True, slots=True)
class Pace:
    """Who set the pace of a round: the worker that finished last, as measured."""

    round: int
    last_worker: int | None  # None: nobody waits for anybody
    worker_time: float | None  # s, until it was done
    compute_time: float | None
    communication_time: float | None
    link_with: int | None  # the other end of its slowest link
    link_time: float | None
    directed: bool  # whether it is the one that receives over this link
    waited: int  # how many workers waited for it
    planned_worker: int | None  # whom the plan expected to finish last
    plan_was_right: bool | None  # None: the plan named nobody, or nobody was last

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def read_paces(
    run: RunReader, *, first_round: int = 1, last_round: int | None = None
) -> list[Pace]:
    """Who set the pace in these rounds, one entry per round."""
    last = run.rounds_done if last_round is None else last_round
    table = run.last_workers(first_round=first_round, last_round=last)
    barrier = not run.meta("asynchronous")
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    return [_pace(row, barrier=barrier) for row in rows]


def read_pace(run: RunReader, round_index: int) -> Pace:
    return read_paces(run, first_round=round_index, last_round=round_index)[0]


def _pace(row: dict[str, Any], *, barrier: bool) -> Pace:
    waits = barrier and row["mean_waiting_time"] > ROUNDING * row["round_time"]
    worker = row["worker"] if waits else None
    planned, times = row["pace_setter"], ("worker_time", "compute_time", "communication_time")
    last: dict[str, Any] = row if worker is not None else {**dict.fromkeys(row), "waited": 0}
    return Pace(
        round=row["round"],
        last_worker=worker,
        **{name: last[name] for name in (*times, "link_time", "waited")},
        link_with=last["b"] if last["a"] == worker else last["a"],
        directed=bool(row["directed"]),
        planned_worker=planned,
        plan_was_right=None if worker is None or planned is None else bool(row["plan_right"]),
    )


def most_often_last(paces: Sequence[Pace]) -> list[tuple[int, int]]:
    """The workers that finished last in some round, and in how many; the most frequent first."""
    counts = Counter(pace.last_worker for pace in paces if pace.last_worker is not None)
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


def plan_hits(paces: Sequence[Pace]) -> tuple[int, int]:
    """In how many rounds the plan named the worker that finished last, and in how many it named
    one."""
    judged = [pace.plan_was_right for pace in paces if pace.plan_was_right is not None]
    return sum(judged), len(judged)


def overlaps(run: RunReader, round_index: int) -> bool:
    """Whether everyone trains while the models of a group average are on their way."""
    return round_index in _overlapping(run, round_index, round_index)


def transfer_times(run: RunReader, rows: Columns) -> list[float | None]:
    """Seconds for which the model of each of these rows of `workers` was on its way: the time that
    is part of the worker's, or the time of a group average that goes on while it trains."""
    times: list[float | None] = list(rows["communication_time"])
    if not times or run.last_row("participation") is None:
        return times
    first, last = min(rows["round"]), max(rows["round"])
    overlapping = _overlapping(run, first, last)
    workers = set(rows["worker"])
    columns = ("round", "worker", "role")
    if len(workers) == 1:
        group = run.worker_rows("participation", *workers, columns=columns)
    else:
        group = run.table("participation", first_round=first, last_round=last, columns=columns)
    members = {
        (index, worker)
        for index, worker, role in zip(*group.values(), strict=True)
        if role not in OUTSIDE
    }
    return [
        overlapping[index] if index in overlapping and (index, worker) in members else time
        for index, worker, time in zip(rows["round"], rows["worker"], times, strict=True)
    ]


def _overlapping(run: RunReader, first: int, last: int) -> dict[int, float]:
    """The rounds with a group average during which everyone trains, and how long it takes."""
    rules = run.table("rounds", first_round=first, last_round=last, columns=("round", "rule"))
    facts = run.table("facts", first_round=first, last_round=last)
    times = {
        index: value
        for index, name, value in zip(facts["round"], facts["name"], facts["value"], strict=True)
        if name == "transfer_time" and value is not None
    }
    return {
        index: times[index]
        for index, rule in zip(rules["round"], rules["rule"], strict=True)
        if index in times
        and (reason := StepReason.parse(rule)) is not None
        and reason.rule is StepRule.GROUP_OVERLAP
    }


@dataclass(frozen=True, slots=True)
class TurnWindow:
    """A stretch of virtual time around a round without a barrier, and what was done in it."""

    round: int
    began: float  # the round, s
    ended: float
    left: float  # the window, s
    right: float
    phases: list[TurnPhase]  # that touch the window, by their ends
    recorded: bool  # whether the record says when turns began: not over a network
    complete: bool  # whether it has all of them: of very many it keeps the first of every round


def read_turns(run: RunReader, round_index: int) -> TurnWindow:
    """Some turns of every worker around a round; what is under way at the end of the record, or was
    when it ended, is not in it."""
    clocks = dict(zip(*run.table("rounds", columns=("round", "clock")).values(), strict=True))
    last = max(clocks)
    began, ended = clocks.get(round_index - 1, 0.0), clocks[round_index]
    near = _phases(run, round_index - ROUNDS_FOR_A_TURN, round_index + ROUNDS_FOR_A_TURN)
    width = max(ended - began, TURNS_SHOWN * _turn_length(near))
    left = max(0.0, (began + ended - width) / 2)
    right = min(clocks[last], left + width)
    left = max(0.0, right - width)
    first = min(index for index, clock in clocks.items() if clock >= left)
    until = min(index for index, clock in clocks.items() if clock >= right)
    phases = _phases(run, first, until)
    # A phase is recorded where it ends, which may be some rounds later.
    missing = set(range(int(run.meta("workers"))))
    missing -= {phase.worker for phase in phases if phase.finish >= right}
    for index in range(until + 1, last + 1):
        if not missing:
            break
        later = _phases(run, index, index)
        phases += [phase for phase in later if phase.start < right]
        missing -= {phase.worker for phase in later}
    complete = all(_is_complete(run, index) for index in range(first, until + 1))
    return TurnWindow(
        round=round_index,
        began=began,
        ended=ended,
        left=left,
        right=right,
        phases=[phase for phase in phases if phase.finish > left and phase.start < right],
        recorded=bool(phases) or complete,
        complete=complete,
    )


def transfers_of_pairs(run: RunReader, round_index: int) -> dict[tuple[int, int], int] | None:
    """How many transfers of each pair ended in a round without a barrier, smaller worker first;
    None if the record does not have all of them."""
    if not _is_complete(run, round_index):
        return None
    return Counter(
        (min(phase.worker, phase.partner), max(phase.worker, phase.partner))
        for phase in _phases(run, round_index, round_index)
        if phase.partner is not None
    )


def _phases(run: RunReader, first: int, last: int) -> list[TurnPhase]:
    names = ("worker", "start", "finish", "partner")
    table = run.table("phases", first_round=first, last_round=last, columns=names)
    return [TurnPhase(*row) for row in zip(*table.values(), strict=True)]


def _turn_length(phases: Sequence[TurnPhase]) -> float:
    """The mean length of training and of a transfer, together."""
    parts = [
        [phase.finish - phase.start for phase in phases if (phase.partner is None) is training]
        for training in (True, False)
    ]
    return sum(sum(part) / len(part) for part in parts if part)


def _is_complete(run: RunReader, round_index: int) -> bool:
    """Whether the phases of a round add up to the times of its workers."""
    workers = run.table("workers", round_index=round_index)
    times = (*workers["compute_time"], *workers["communication_time"])
    busy: float = sum(time for time in times if time is not None)  # None: it was away
    known: float = sum(p.finish - p.start for p in _phases(run, round_index, round_index))
    return known >= busy * (1 - 1e-6)
