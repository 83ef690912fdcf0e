"""The shape of every answer of the API; OpenAPI is made from it.

Numbers have the names and units of the record (docs/api.md). NaN and infinity are null. Columns
are lists of equal length, one value per row.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Values = list[Any]


class Answer(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True)


class Problem(Answer):
    """Why a request was refused."""

    error: str
    allowed: str = ""
    fix: str = ""


class ListedRun(Answer):
    """A run in the list."""

    run: str = Field(description="The run's folder, relative to the folder that is served.")
    label: str = Field(description="The name that reports show.")
    algorithm: str
    seed: int | None
    status: str = Field(
        description="created, running, interrupted, finished, diverged, or damaged: see problem"
    )
    live: bool = Field(description="Whether a process works on it now.")
    network: bool = Field(description="A run of several machines: its time is real.")
    metric: str = Field(description="What accuracy means.")
    workers: int
    rounds: int = Field(description="Committed rounds.")
    planned_rounds: int | None
    horizon: float | None = Field(description="Virtual seconds, if they end the run.")
    clock: float = Field(description="Virtual seconds; of a network run real ones.")
    accuracy: float | None = Field(description="Of the last test, mean of the workers.")
    changed: float = Field(description="When the record changed last, seconds since 1970.")
    problem: str | None = Field(default=None, description="Why the record cannot be read.")


class RunList(Answer):
    """All runs, live ones first, then the newest."""

    folder: str
    runs: list[ListedRun]
    most_watched: int = Field(description="Runs that one stream takes, and one page compares.")


class NamedFact(Answer):
    """A line of the description."""

    name: str
    value: str


class RunDetails(ListedRun):
    """A run with what its views need once."""

    names: list[str] = Field(description="Of the workers; of a network run as in certificates.")
    devices: list[str]
    samples: list[int] = Field(description="Of every worker, if known.")
    targets: list[float]
    asynchronous: bool
    group_average: bool
    description: list[NamedFact]
    missing: list[str] = Field(
        description="Workers of a live network run that take no part now, with their state."
    )
    actions: list[str] = Field(description="stop and drain, where this server can do that.")


class WorkersBehind(Answer):
    """The workers that are far behind at the last test, the worst first."""

    text: str = Field(description="The sentence of `fedhp show`.")
    workers: list[int]
    tests: dict[str, Values] = Field(
        description="All tests of the first of them: round, clock, worker, accuracy."
    )


class ProgressColumns(Answer):
    """Rounds and tests after a round."""

    rounds: dict[str, Values]
    tests: dict[str, Values] = Field(
        description="worst and best are of one worker; low and high, of many workers, are the "
        "10 % and the 90 % quantile."
    )
    behind: WorkersBehind | None = Field(description="At the last test; null: nobody.")
    bytes_before: int = Field(description="Sent up to the round `after`.")


class Differences(Answer):
    """In which settings runs differ."""

    text: str = Field(description="Empty if only their seeds differ.")


class ClassCounts(Answer):
    """The object of `fedhp data split EXPERIMENT.toml --json`."""

    classes: list[str] = Field(description="Their names; none if the task has no classes.")
    samples: list[int] = Field(description="Of every worker.")
    counts: list[list[int]] = Field(description="Of every worker, by class.")


class ExplainedParagraph(Answer):
    """A few sentences under a title."""

    title: str
    text: str


class Explanation(Answer):
    """A round in words."""

    round: int
    paragraphs: list[ExplainedParagraph]


class Decisions(Answer):
    """What was planned, by round."""

    round: list[int]
    mean_distance: list[float | None]
    distance_bound: list[float | None]
    planned_round_time: list[float | None]
    deadline: list[float | None]
    planned_transfer_time: list[float | None] = Field(description="Of a group average.")
    transfer_time: list[float | None]
    round_time: list[float]
    links: list[int] = Field(description="In use.")
    verdicts: dict[str, list[int]] = Field(description="Links with this verdict, per round.")
    words: dict[str, str] = Field(description="What each verdict means.")


class Turns(Answer):
    """What every worker did when, around a round of a run without a barrier."""

    round: int
    began: float = Field(description="The round, in virtual seconds.")
    ended: float
    left: float = Field(description="The window: some turns around the round.")
    right: float
    phases: dict[str, Values] = Field(
        description="Columns worker, start, finish and partner (null: it trains, else a transfer)."
    )
    recorded: bool = Field(description="Runs over a network do not record when a turn began.")
    complete: bool = Field(description="Of very many phases the first of every round are kept.")


class WorkerRow(Answer):
    """A worker in one round."""

    worker: int
    name: str
    device: str
    state: str
    steps: int | None
    step_time: float | None
    bandwidth: float | None = Field(
        description="Null in a round of a network run in which it took no part."
    )
    compute_time: float | None
    communication_time: float | None
    transfer_time: float | None = Field(
        description="As communication_time, or of a group average during which it trains on."
    )
    waiting_time: float | None
    worker_time: float | None
    train_loss: float | None
    accuracy: float | None = Field(description="Of its last test up to this round.")
    tested: int | None = Field(description="The round of that test.")
    links: int | None
    role: str | None = Field(default=None, description="In a group average.")
    samples: int | None = None
    measures: dict[str, float | None] = Field(
        default_factory=dict, description="Further columns of the record, by name."
    )


class WorkerTable(Answer):
    """All workers in one round."""

    round: int
    workers: list[WorkerRow]


class RunEvent(Answer):
    """Something that happened."""

    at: float | None = Field(description="Seconds since 1970; null in virtual time.")
    clock: float | None
    round: int | None
    kind: str
    worker: int | None
    text: str


class EventList(Answer):
    """The events from a position on."""

    next: int = Field(description="The position after the last one, for the next request.")
    log: str = Field(description="Positions count in this list; another value: start at 0.")
    reset: bool = Field(description="`after` was not a position of this list; this is all of it.")
    events: list[RunEvent]


class WorkerHistory(Answer):
    """One worker over all rounds."""

    worker: int
    name: str
    device: str
    state: str
    rounds: dict[str, Values]
    tests: dict[str, Values]
    events: list[RunEvent]


class DashHealth(Answer):
    """This server."""

    status: str
    fedhp: str
    viewers: int


class Command(Answer):
    """An operator's command to the coordinator of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(min_length=1, max_length=4096)
    worker: str | None = Field(default=None, min_length=1, max_length=200)


class Done(Answer):
    """What the coordinator will do."""

    text: str
