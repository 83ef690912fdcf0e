"""Many runs as one campaign: algorithms x seeds in the same worlds, in processes or on Ray.

Each job process gets cells from the parent on its standard input and reports every round on its
standard output (job.py); it ends when the parent dies. On Ray a cell is a task (ray_job.py).
Finished cells never run again; unfinished ones are resumed from their checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedhp.algorithms import load_algorithm
from fedhp.algorithms.rates import check_rate_has_effect, ignored_rate, is_rate_overridden
from fedhp.children import module_command
from fedhp.components import is_dotted
from fedhp.config import (
    Draft,
    Experiment,
    check_origin,
    log_notes,
    parse,
    parse_change,
    to_tables,
)
from fedhp.config.origins import Origins
from fedhp.engine.prepare import cores, prepare
from fedhp.engine.runs.job import Event
from fedhp.engine.runs.run import check_folder, is_complete
from fedhp.engine.runs.variants import parse_variant, tables_of, with_colons
from fedhp.engine.trial import try_algorithm
from fedhp.errors import ConfigError, DataError, FedhpError, Interrupted, RunError
from fedhp.tables import COMMAND_LINE, parse_override
from fedhp.trust import granted

if TYPE_CHECKING:
    from fedhp.engine.runs.ray_job import RayJob

Job: TypeAlias = "ProcessJob | RayJob"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a campaign."""

    label: str
    seed: int
    experiment: Experiment
    folder: Path


Report = Callable[[Cell, Event], None]


def plan_cells(
    draft: Draft,
    *,
    overrides: Sequence[str],
    algorithms: Sequence[str] | None,
    seeds: Sequence[int] | None,
    out: Path,
) -> list[Cell]:
    """All runs of a comparison, every configuration checked; dropped settings are logged."""
    refuse_seed(overrides, fix="write --seeds instead, such as --seeds 0-4")
    notes: list[str] = []
    base = draft.experiment(overrides, notes=notes)
    own = base.algorithm
    if not is_dotted(own.name):  # a mistake in it counts, even if it is not compared
        with base.origins.named():
            load_algorithm(own.name, own.settings)
    entries = base.compare.algorithms if algorithms is None else algorithms
    labels = [with_colons(entry) for entry in entries]
    numbers = list(base.compare.seeds if seeds is None else seeds)
    listed_in = base.origins if algorithms is None else Origins(COMMAND_LINE)
    with listed_in.named():
        refuse_repeated(labels, key="compare.algorithms")
    with (base.origins if seeds is None else Origins(COMMAND_LINE)).named():
        refuse_repeated(numbers, key="compare.seeds")
    with listed_in.named():
        variants = [parse_variant(label) for label in labels]
    cells = []
    for variant in variants:
        changed = tables_of(variant, base, notes=notes)
        origins = base.origins.with_label(
            variant.label, variant.keys, listed=algorithms is not None
        )
        for seed in numbers:
            changed["seed"] = seed
            experiment = parse(changed, origins=origins)
            run_folder = out / folder_name(variant.label) / f"seed-{seed}"
            cells.append(Cell(variant.label, seed, experiment, run_folder))
        if is_rate_overridden(variant.overrides.items()):
            check_rate_has_effect(experiment)
    if is_rate_overridden(map(parse_change, overrides)):
        experiments = [cell.experiment for cell in cells]
        if all(ignored_rate(experiment) is not None for experiment in experiments):
            check_rate_has_effect(experiments[0])  # which refuses it
    log_notes(notes)
    return cells


def refuse_repeated(values: Sequence[object], *, key: str, fix: str = "", what: str = "") -> None:
    """Refuse a list that is empty, or of which two entries would share a folder; the key is that of
    a setting, or an option."""
    folders = [folder_name(str(value)) for value in values]
    repeated = [value for i, value in enumerate(values) if folders[i] in folders[:i]]
    if repeated or not values:
        name = key.removeprefix("compare.")
        raise ConfigError(
            f"{what}{repeated[0]!r} is given twice" if repeated else "the list is empty",
            key=key,
            source=COMMAND_LINE if key.startswith("--") else "",
            allowed="a list that is not empty and has no entry twice",
            fix=fix or f"correct --{name}, or [compare] in the file",
        )


def refuse_seed(overrides: Sequence[str], *, fix: str) -> None:
    """Refuse seed=N where every run has its seed from a list."""
    if any(parse_override(override)[0] == "seed" for override in overrides):
        raise ConfigError(
            "would have no effect: the seeds are a list here",
            key="seed",
            source=COMMAND_LINE,
            allowed="settings other than seed",
            fix=fix,
        )


def check_cells(cells: Sequence[Cell], *, resume: bool) -> None:
    """Find every mistake before the first run: settings, data, models, folders."""
    seen: set[str] = set()
    for cell in cells:
        check_origin(cell.experiment)
        check_folder(cell.experiment, cell.folder, resume=resume)
        if cell.label not in seen:
            seen.add(cell.label)
            try_algorithm(prepare(cell.experiment))


def run_cells(
    cells: Sequence[Cell],
    *,
    jobs: int | None = None,
    ray: str | None = None,
    report: Report = lambda cell, event: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[FedhpError]:
    """Run what is not finished yet; the errors of runs that failed. Raises Interrupted.

    `ray` is the address of a Ray cluster that runs them, or "local" to start Ray here.
    """
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    unfinished = []
    for cell in cells:
        if is_complete(cell.experiment, cell.folder):
            report(cell, {"event": "finished"})
        else:
            unfinished.append(cell)
            waiting.put(cell)
    errors: list[FedhpError] = []
    with contextlib.ExitStack() as stack:
        new_job: Callable[[], Job] = ProcessJob
        slots = cores()
        if ray is not None and unfinished:
            from fedhp.engine.runs.ray_job import ray_jobs

            runs = [(cell.experiment, cell.folder) for cell in unfinished]
            new_job, slots = stack.enter_context(ray_jobs(ray, runs, stop=stop))
        count = min(jobs or slots, len(unfinished))
        executors = 1 if ray is not None else max(1, cores() // max(1, count))
        threads = [
            _JobThread(waiting, report, errors, new_job=new_job, executors=executors)
            for _ in range(count)
        ]
        _join(threads, stop)
    if stop():
        raise Interrupted("stopped; every run is saved", fix="run the same command with --resume")
    return errors


def _join(threads: Sequence[_JobThread], stop: Callable[[], bool]) -> None:
    """Start the threads and wait for their end; halt them if the user wants to stop."""
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(timeout=0.1)
        if stop():
            for thread in threads:
                thread.halt()


class ProcessJob:
    """A job process on this machine, which runs one cell after another (job.py says what a message
    holds). One that died sends no last event, and is replaced."""

    def __init__(self) -> None:
        self._process = _start_job()

    def run(self, message: Mapping[str, Any]) -> Iterator[Event]:
        self._send(message)
        assert self._process.stdout is not None
        yield from map(json.loads, self._process.stdout)
        # Its output ended: it died. Another one is for the cells that are left.
        self.close()
        self._process = _start_job()

    def stop(self) -> None:
        self._send({"stop": True})

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may have died
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        # If the job has died, its output ends: that is noticed there.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()


class _JobThread(threading.Thread):
    """Hands cells to one job and passes on what it reports."""

    def __init__(
        self,
        waiting: queue.SimpleQueue[Cell],
        report: Report,
        errors: list[FedhpError],
        *,
        new_job: Callable[[], Job],
        executors: int,
    ) -> None:
        super().__init__(daemon=True)
        self._waiting, self._report, self._errors = waiting, report, errors
        self._executors = executors
        self._trust = granted()  # here, since a thread has a context of its own
        self._halted = threading.Event()
        self._job = new_job()

    def halt(self) -> None:
        if not self._halted.is_set():
            self._halted.set()
            self._job.stop()

    def run(self) -> None:
        try:
            while not self._halted.is_set():
                try:
                    cell = self._waiting.get_nowait()
                except queue.Empty:
                    break
                self._run_cell(cell)
        finally:
            self._job.close()

    def _run_cell(self, cell: Cell) -> None:
        self._report(cell, {"event": "started"})
        orders: dict[str, Any] = {
            "experiment": to_tables(cell.experiment),
            "folder": str(cell.folder),
            "label": cell.label,
            "file": cell.experiment.origins.file,
            "executors": self._executors,
            "trust": list(self._trust),
        }
        for event in self._job.run(orders):
            self._report(cell, event)
            if event["event"] == "failed":
                message = f"{cell.label}, seed {cell.seed}: {event['message']}"
                self._errors.append(rebuild_error(event["kind"], message))
            if event["event"] in ("finished", "failed", "interrupted"):
                return
        if not self._halted.is_set():
            message = f"{cell.label}, seed {cell.seed}: the job process ended unexpectedly"
            fix = "it was killed, perhaps for lack of memory; run it again with --resume --jobs 1"
            self._errors.append(RunError(message, fix=fix))
            self._report(cell, {"event": "failed", "message": message, "kind": "RunError"})


def _start_job() -> subprocess.Popen[str]:
    return subprocess.Popen(
        module_command("fedhp.engine.runs.job"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the parent alone, which then asks the job to stop
    )


def rebuild_error(kind: str, message: str) -> FedhpError:
    """An error of the same class, from its name and text."""
    for known in (*FedhpError.__subclasses__(), *DataError.__subclasses__()):
        if known.__name__ == kind and known is not ConfigError:
            return known(message)
    return FedhpError(message)


def folder_name(label: str) -> str:
    name = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-=+") else ","
        for letter in label
    )
    name = "," + name[1:] if name.startswith(".") else name
    return name if len(name) <= 100 else f"{name[:90]},{zlib.crc32(label.encode()):08x}"
