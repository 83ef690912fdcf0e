"""The workers of a run: a table of one round, and the history of one worker."""

from __future__ import annotations

from fedhp.columns import WORKER_COLUMNS, added_columns
from fedhp.dash.events import AWAY, WORKING, EventLog
from fedhp.dash.history import JOINING
from fedhp.dash.progress import NoSuchRound
from fedhp.dash.schema import WorkerHistory, WorkerRow, WorkerTable
from fedhp.record.reader import RunReader
from fedhp.record.timeline import transfer_times

SHOWN = tuple(column.name for column in WORKER_COLUMNS if column.shown)


def worker_table(run: RunReader, log: EventLog, *, round_index: int, last: int) -> WorkerTable:
    """Every worker in a round; without a round yet, only who there is."""
    workers = int(run.meta("workers"))
    with run.snapshot():
        table = run.table("workers", round_index=round_index)
        roles = run.table("participation", round_index=round_index)
        table["transfer_time"] = transfer_times(run, table)
        tests = run.last_of_workers("worker_evaluations", "accuracy", last_round=round_index)
    rows = {worker: row for row, worker in enumerate(table["worker"])}
    role = dict(zip(roles["worker"], roles["role"], strict=True))
    results = zip(tests["accuracy"], tests["round"], strict=True)
    tested = dict(zip(tests["worker"], results, strict=True))
    names, devices = log.names(workers), list(run.meta("devices") or ())
    samples = list(run.meta("samples") or ())
    states = log.states(round_index, last=round_index >= last)
    network = bool(run.meta("network"))

    def row_of(worker: int) -> WorkerRow:
        row = rows.get(worker)
        values = {} if row is None else {name: column[row] for name, column in table.items()}
        present = values.get("worker_time") is not None
        simulated = WORKING if present or row is None else AWAY
        if network and not present:
            values["bandwidth"] = None  # measured in an earlier round
        accuracy, tested_in = tested.get(worker, (None, None))
        return WorkerRow(
            worker=worker,
            name=names[worker],
            device=devices[worker] if worker < len(devices) else "",
            state=states.get(worker, JOINING) if network else simulated,
            steps=values.get("local_steps"),
            transfer_time=values.get("transfer_time"),
            **{name: values.get(name) for name in SHOWN if name in WorkerRow.model_fields},
            measures={
                column.name: values.get(column.name)
                for column in added_columns()
                if column.shown and values.get(column.name) is not None
            },
            accuracy=accuracy,
            tested=tested_in,
            role=role.get(worker),
            samples=samples[worker] if worker < len(samples) else None,
        )

    return WorkerTable(round=round_index, workers=[row_of(worker) for worker in range(workers)])


def worker_history(run: RunReader, log: EventLog, worker: int) -> WorkerHistory:
    workers = int(run.meta("workers"))
    if not 0 <= worker < workers:
        raise NoSuchRound(
            f"there is no worker {worker}",
            allowed=f"a worker from 0 to {workers - 1}",
            fix="choose one of /api/workers",
        )
    with run.snapshot():
        rounds = run.worker_rows("workers", worker, columns=("round", "worker", *SHOWN))
        rounds["transfer_time"] = transfer_times(run, rounds)
        tests = run.worker_rows("worker_evaluations", worker, columns=("round", "accuracy"))
        clocks = run.table("rounds", columns=("round", "clock"))
        last = run.rounds_done
    clock = dict(zip(*clocks.values(), strict=True))
    devices = list(run.meta("devices") or ())
    away = bool(rounds["worker_time"]) and rounds["worker_time"][-1] is None
    state = log.states(last, last=True).get(worker, JOINING)
    return WorkerHistory(
        worker=worker,
        name=log.names(workers)[worker],
        device=devices[worker] if worker < len(devices) else "",
        state=state if run.meta("network") else (AWAY if away else WORKING),
        rounds={**rounds, "clock": [clock.get(index) for index in rounds["round"]]},
        tests={**tests, "clock": [clock.get(index) for index in tests["round"]]},
        events=log.about(worker),
    )
