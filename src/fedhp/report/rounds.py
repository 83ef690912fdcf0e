"""One round of a run, read back: which rounds there are, what each worker did, over which links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.record.timeline import Pace, most_often_last, plan_hits, read_pace, transfers_of_pairs
from fedhp.report.formatting import count, seconds, worker_name
from fedhp.types import GroupRole, LinkVerdict, StepReason


def check_round(run: RunReader, round_index: int | None) -> int:
    """The round if it is in the record (the last one for None), or a clear error."""
    last = run.rounds_done
    if last == 0:
        raise RunError(
            f"{run.folder}: no round is committed yet (status: {run.meta('status')})",
            allowed="a run with at least one committed round",
            fix="let it run longer, with rounds of at least 1",
        )
    if round_index is None:
        return last
    if not 1 <= round_index <= last:
        raise RunError(
            f"{run.folder}: round {round_index} is not in the record",
            allowed=f"a round from 1 to {last}",
            fix=f"use --round {min(max(round_index, 1), last)}",
        )
    return round_index


@dataclass(frozen=True, slots=True)
class Link:
    """A row of the links table; in a directed exchange a is the receiver."""

    a: int
    b: int
    used: bool
    verdict: LinkVerdict | None
    link_time: float | None
    planned_link_time: float | None
    estimated_distance: float | None

    @property
    def name(self) -> str:
        return f"{self.a}–{'server' if self.server else self.b}"

    @property
    def server(self) -> bool:
        return self.a == self.b


@dataclass(frozen=True, slots=True)
class WorkerRound:
    """What one worker did in a round; its row of the workers table."""

    worker: int
    device: str
    local_steps: int
    step_time: float | None
    compute_time: float
    communication_time: float
    worker_time: float
    waiting_time: float

    @property
    def name(self) -> str:
        return worker_name(self.worker, self.device)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A worker in a round with a group average; its row of the participation table."""

    worker: int
    role: GroupRole
    left_out: int  # averages of the fragment in a row without it, before this round
    returns: bool
    root: bool

    @property
    def takes_part(self) -> bool:
        return self.role not in (GroupRole.LEFT_OUT, GroupRole.AWAY)


@dataclass(frozen=True, slots=True)
class RoundView:
    round_index: int
    num_rounds: int | None  # None: the run has a horizon
    label: str
    seed: int
    metric: str
    asynchronous: bool
    algorithm: dict[str, Any]  # the run's [algorithm] settings
    absences: bool  # whether workers may be away by chance
    attackers: tuple[int, ...]  # whose tests do not count
    started: float  # virtual time
    clock: float
    round_time: float
    mean_waiting_time: float
    learning_rate: float
    bytes_sent: int
    reason: StepReason | None  # what set the steps; None: a user's algorithm gave its own words
    reason_text: str  # as recorded
    pace: Pace
    accuracy: float | None
    mean_model_accuracy: float | None
    facts: dict[str, float | None]
    workers: list[WorkerRound]  # those present
    away: list[str]  # names of those absent
    directed: bool  # a link is one transfer, from b to a
    links_used: int
    links_known: int  # used or considered
    verdicts: dict[
        LinkVerdict, tuple[int, int]
    ]  # how many links have it, and how many of them carried models
    links: list[Link]  # all, or a selection with the slowest of every worker and verdict
    network: bool  # a run on machines: time is real, and nobody sees all models
    group: list[GroupMember]  # every worker, in a round with a group average
    averagings: int | None  # without a barrier; None: the record does not have all of them

    @property
    def complete(self) -> bool:
        """Whether every link has a row in the record."""
        return len(self.links) == self.links_known

    @property
    def used(self) -> list[Link]:
        """The links that carried models, as far as they are recorded."""
        return [link for link in self.links if link.used]

    @property
    def used_verdicts(self) -> set[LinkVerdict | None]:
        """The verdicts of the links in use; None among them if one was not considered."""
        used = {verdict for verdict, (_, used) in self.verdicts.items() if used}
        considered = sum(used for _, used in self.verdicts.values())
        return used | {None} if considered < self.links_used else {*used}

    def count(self, verdict: LinkVerdict) -> int:
        """How many links got this verdict, recorded or not."""
        return self.verdicts.get(verdict, (0, 0))[0]

    def worker(self, worker: int) -> WorkerRound | None:
        return next((each for each in self.workers if each.worker == worker), None)

    def with_verdict(self, verdict: LinkVerdict) -> list[Link]:
        """The recorded links with this verdict, slowest first as the planner saw them."""
        links = [link for link in self.links if link.verdict == verdict]
        return sorted(links, key=lambda link: (-(link.planned_link_time or 0.0), link.a, link.b))

    def slowest_link(self, worker: int, *, planned: bool = False) -> Link | None:
        """The used link that keeps this worker busy longest."""

        def time(link: Link) -> float:
            return (link.planned_link_time if planned else link.link_time) or 0.0

        ends = (lambda link: (link.a,)) if self.directed else (lambda link: (link.a, link.b))
        return max((link for link in self.used if worker in ends(link)), key=time, default=None)


def read_round(run: RunReader, round_index: int) -> RoundView:
    index = check_round(run, round_index)
    row = round_rows(run, index, "rounds")[0]
    tests = run.table("evaluations", round_index=index)
    experiment = run.meta("experiment")
    # An event loop records no absences; those in the settings are known nevertheless.
    listed_away = {
        absence["worker"]
        for absence in experiment["world"]["away"]
        if absence["first"] <= index <= absence["last"]
    }
    workers, away = _workers(round_rows(run, index, "workers"), run.meta("devices"), listed_away)
    transfers = transfers_of_pairs(run, index) if run.meta("asynchronous") else None
    of_row = ("clock", "round_time", "mean_waiting_time", "learning_rate", "bytes_sent")
    return RoundView(
        round_index=index,
        num_rounds=run.meta("rounds"),
        **{name: run.meta(name) for name in ("label", "seed", "metric")},
        asynchronous=bool(run.meta("asynchronous")),
        algorithm=experiment["algorithm"],
        absences=experiment["world"]["away_probability"] > 0
        or "availability_trace" in experiment["world"],
        attackers=tuple(run.meta("attackers") or ()),
        started=run.table("rounds", round_index=index - 1)["clock"][0] if index > 1 else 0.0,
        **{name: row[name] for name in of_row},
        reason=StepReason.parse(row["rule"]),
        reason_text=row["rule"],
        pace=read_pace(run, index),
        accuracy=next(iter(tests["accuracy"]), None),
        mean_model_accuracy=next(iter(tests["mean_model_accuracy"]), None),
        facts={row["name"]: row["value"] for row in round_rows(run, index, "facts")},
        workers=workers,
        away=away,
        directed=bool(row["directed"]),
        links_used=row["links"],
        links_known=row["links_known"],
        verdicts={
            LinkVerdict[row["verdict"].upper()]: (row["links"], row["used"])
            for row in round_rows(run, index, "verdicts")
        },
        links=[_row_as(Link, row) for row in round_rows(run, index, "links")],
        network=bool(run.meta("network")),
        group=[_row_as(GroupMember, row) for row in round_rows(run, index, "participation")],
        averagings=None if transfers is None else sum(transfers.values()),
    )


def pace_words(pace: Pace, devices: Sequence[str]) -> str:
    """Who finished last in a round, its link and who waited; whom the plan expected."""
    if pace.last_worker is None:
        return ""
    link = ""
    if pace.link_with is not None:
        way = "from" if pace.directed else "to"
        other = "the server" if pace.link_with == pace.last_worker else pace.link_with
        link = f", its link {way} {other} {seconds(pace.link_time)}"
    text = (
        f"{worker_name(pace.last_worker, devices[pace.last_worker])} finished last: its steps took "
        f"{seconds(pace.compute_time)}{link}; {count(pace.waited, 'worker')} waited"
    )
    if pace.planned_worker is None:
        return text
    if pace.plan_was_right:
        return f"{text}, as planned"
    planned = worker_name(pace.planned_worker, devices[pace.planned_worker])
    return f"{text}; the plan expected {planned}"


def paces_words(paces: Sequence[Pace], devices: Sequence[str]) -> str:
    """Who finished last most often, and how often the plan was right; empty if nobody waits."""
    often = most_often_last(paces)
    if not often:
        return ""
    worker, times = often[0]
    text = f"most often last: {worker_name(worker, devices[worker])}, in {times} of "
    text += count(len(paces), "round")
    right, judged = plan_hits(paces)
    hits = f"; the plan was right in {right} of {count(judged, 'round')}"
    return text + hits if judged else text


def selection_note(run: RunReader, round_index: int | None = None) -> str:
    """A note where not every link has its own row, in a round or in all rounds; else empty."""
    recorded, known = run.links_kept(round_index)
    if recorded == known:
        return ""
    return f"a selection of {recorded:,} of {known:,} links, see docs/api.md"


def bridges_of(pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """The links without which the graph falls apart, smaller worker first (Tarjan 1974)."""
    neighbors: dict[int, list[int]] = {}
    for a, b in {(min(pair), max(pair)) for pair in pairs}:
        neighbors.setdefault(a, []).append(b)
        neighbors.setdefault(b, []).append(a)
    order: dict[int, int] = {}
    low: dict[int, int] = {}  # the earliest worker that is reached from a worker or below it
    bridges = set()
    for root in neighbors:
        # An explicit stack: Python's own would overflow.
        stack = [] if root in order else [(root, root, iter(neighbors[root]))]
        order.setdefault(root, len(order))
        low.setdefault(root, order[root])
        while stack:
            worker, parent, rest = stack[-1]
            other = next((neighbor for neighbor in rest if neighbor != parent), None)
            if other is None:
                stack.pop()
                low[parent] = min(low[parent], low[worker])
                if low[worker] > order[parent]:
                    bridges.add((min(worker, parent), max(worker, parent)))
            elif other in order:
                low[worker] = min(low[worker], order[other])
            else:
                order[other] = low[other] = len(order)
                stack.append((other, worker, iter(neighbors[other])))
    return bridges


def round_rows(run: RunReader, round_index: int, table: str) -> list[dict[str, Any]]:
    """The rows of a table in one round, by column."""
    columns = run.table(table, round_index=round_index)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _workers(
    rows: Sequence[Mapping[str, Any]], devices: list[str], listed_away: set[int]
) -> tuple[list[WorkerRound], list[str]]:
    present, away = [], []
    for row in rows:
        worker, idle = row["worker"], row["compute_time"] == 0 == row["communication_time"]
        if row["worker_time"] is None or (worker in listed_away and idle):
            away.append(worker_name(worker, devices[worker]))
        else:
            present.append(_row_as(WorkerRound, row, device=devices[worker]))
    return present, away


def _row_as(kind: Any, row: Mapping[str, Any], **known: Any) -> Any:
    """A row of a table as one of the classes above, which have the names of its columns."""
    values = {**row, **known}
    if values.get("verdict") is not None:
        values["verdict"] = LinkVerdict[values["verdict"].upper()]
    if "role" in values:
        values["role"] = GroupRole(values["role"])
    return kind(**{field.name: values[field.name] for field in fields(kind)})
