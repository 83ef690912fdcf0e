"""One complete record of a run that several coordinators led, from the folders of all of them.

Each recorded the rounds that it led; the histories say whose row of a round counts. The given
folders are only read; the new one appears complete, by a rename.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedhp.cluster.audit.timeline import (
    HISTORIES,
    LeadershipTerm,
    RunTimeline,
    build_timeline,
    missing_beginning,
)
from fedhp.cluster.coordinator.committed_state import EXPERIMENT, OPERATOR_STOP
from fedhp.cluster.events import Committed
from fedhp.cluster.history import events_in, history_content
from fedhp.cluster.protocol.attempt import INITIAL
from fedhp.config import differences, parse, to_tables
from fedhp.config.origins import Origins
from fedhp.errors import RunError, StorageFull
from fedhp.files import UNFINISHED, new_folder, restrict, storage_errors, write_file
from fedhp.record.store import RECORD_FILE, Store

WORKERS_FOLDER = "workers"
FOLDERS = "the --out folders of `fedhp coordinator`, workers/NAME/coordinator of a standby"
COPY_AGAIN = "copy the folder again with all its files"


@dataclass(frozen=True, slots=True)
class RecordPiece:
    """Consecutive rounds that one coordinator led in one epoch."""

    first: int
    last: int
    coordinator: str
    epoch: int
    folder: Path  # of its record

    @property
    def rounds(self) -> str:
        return _rounds(self.first, self.last)


@dataclass(frozen=True, slots=True)
class GatheredRun:
    """The complete record, and who led its rounds."""

    folder: Path
    run: str
    status: str
    rounds: int  # in the record
    planned: int  # in the experiment
    pieces: tuple[RecordPiece, ...]
    stopped: str = ""  # why an operator ended the run; empty: nobody did
    missing: str = ""  # which rounds the histories no longer have; the record has them


@dataclass(frozen=True, slots=True)
class _History:
    """A file as it was read, once: a coordinator may still be writing to it."""

    path: Path
    content: bytes
    events: list[dict[str, Any]]
    of_coordinator: bool


def gather(folders: Sequence[Path], out: Path) -> GatheredRun:
    """Write the complete record of the run in these folders to a new one."""
    _check_folders(folders, out)
    histories = list(_read_histories(folders))
    timeline = build_timeline((history.path, history.events) for history in histories)
    terms = timeline.terms
    if not terms:
        raise RunError(
            f"{', '.join(map(str, folders))}: no history of a coordinator that led",
            allowed=FOLDERS,
            fix="check the paths",
        )
    _check_no_copies(terms)
    _check_same_run(terms, histories)
    with contextlib.ExitStack() as stack:
        records: dict[Path, Store] = {}
        # In the order in which each led last: what the last one says about the run counts.
        for folder in reversed(dict.fromkeys(term.folder for term in reversed(terms))):
            if (folder / RECORD_FILE).is_file():
                records[folder] = Store.open(folder)
                stack.callback(records[folder].close)
        return _gather(timeline, histories, records, out=out)


def _changed(problem: str) -> RunError:
    return RunError(problem, allowed="a folder as its coordinator wrote it", fix=COPY_AGAIN)


def _check_folders(folders: Sequence[Path], out: Path) -> None:
    for folder in folders:
        if not os.path.isdir(folder):
            why = "is not a folder" if os.path.lexists(folder) else "does not exist"
            raise RunError(f"{folder} {why}", allowed=FOLDERS, fix="check the path")
    if os.path.lexists(out):
        raise RunError(
            f"--out {out}: exists already",
            allowed="a folder that does not exist yet",
            fix="choose another --out, or delete it",
        )
    for folder in folders:
        if out.resolve().is_relative_to(folder.resolve()):
            raise RunError(
                f"--out {out}: is inside {folder}, which is read",
                allowed="a folder outside those that are read",
                fix="choose another --out",
            )


def _read_histories(folders: Sequence[Path]) -> Iterator[_History]:
    owners: dict[str, Path] = {}
    for folder in folders:
        below = sorted(folder.rglob(HISTORIES))
        files = [file for file in below if UNFINISHED not in file.relative_to(folder).parts]
        if not files:
            raise RunError(
                f"{folder} has no history-NAME.jsonl: no coordinator wrote there",
                allowed=FOLDERS,
                fix=f"check the path, or {COPY_AGAIN}",
            )
        for file in files:
            owner = owners.setdefault(os.path.realpath(file), folder)
            if owner is not folder:
                same = os.path.realpath(owner) == os.path.realpath(folder)
                raise RunError(
                    f"{folder} is given twice" if same else f"{file} is also in {owner}",
                    allowed="every folder once",
                    fix="leave one of them out",
                )
            content = history_content(file)
            events = list(events_in(content))
            try:
                terms = build_timeline([(file, events)]).terms
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                why = f"{file}: has a line that no coordinator or worker writes ({error})"
                raise _changed(why) from None
            yield _History(file, content, events, of_coordinator=bool(terms))


def _check_no_copies(terms: Sequence[LeadershipTerm]) -> None:
    """Two folders with one epoch are copies of one, and it is unknown which is the later."""
    leaders: dict[int, LeadershipTerm] = {}
    for term in terms:
        other = leaders.setdefault(term.epoch, term)
        if other is not term and other.run == term.run:
            raise RunError(
                f"{other.folder} and {term.folder} both have epoch {term.epoch} "
                f"({other.coordinator}, {term.coordinator}): they are copies",
                allowed="one folder for every coordinator",
                fix="leave out the older copy",
            )


def _check_same_run(terms: Sequence[LeadershipTerm], histories: Iterable[_History]) -> None:
    first = terms[0]
    runs = [(term.folder, {term.run}) for term in terms]
    for history in histories:
        joined = {str(event["run"]) for event in history.events if "run" in event}
        if joined and not history.of_coordinator:
            runs.append((history.path, joined))
    for path, names in runs:
        if first.run not in names:
            raise RunError(
                f"{path} belongs to another run ({', '.join(sorted(names))}) than "
                f"{first.folder} ({first.run})",
                allowed="folders of one run",
                fix="leave out the folders of the other run",
            )


def _check_records(run: str, metas: Mapping[Path, dict[str, Any]]) -> dict[str, Any]:
    experiments: dict[Path, dict[str, Any]] = {}
    for folder, meta in metas.items():
        if meta.get("run") != run:
            raise _changed(
                f"{folder / RECORD_FILE} belongs to another run ({meta.get('run')}) than the "
                f"history next to it ({run})"
            )
        tables = meta.get("experiment")
        if not isinstance(tables, dict):
            raise _changed(f"{folder / RECORD_FILE}: the record is damaged: it has no experiment")
        origins = Origins(str(folder / RECORD_FILE))
        experiment = to_tables(parse(tables, origins=origins, stored=True))
        for other, earlier in experiments.items():
            for key, old, new in differences(earlier, experiment):
                raise RunError(
                    f"{folder}: {key} is {new!r}, but {old!r} in {other}",
                    allowed="records of one experiment",
                    fix="leave out the folder that does not belong to this run",
                )
        experiments = {folder: experiment}  # the others are equal
    return experiment


def _check_rounds(terms: Sequence[LeadershipTerm], rounds: int) -> None:
    for term in terms:
        attempts = [term.resumed_from, *(event.attempt for event in term.events_of(Committed))]
        indices = [attempt.round_index for attempt in attempts]
        wrong = [index for index in indices if not 0 <= index <= rounds]
        if wrong:
            raise _changed(
                f"{term.folder}: the history of {term.coordinator} has a round {wrong[0]}, "
                f"but the experiment has only {rounds}"
            )


def _merge_meta(metas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """That of the last leader, completed with what only others know."""
    merged = dict(metas[-1])
    samples: dict[int, int] = {}
    for meta in metas:
        for worker, count in enumerate(meta.get("samples") or ()):
            samples[worker] = count or samples.get(worker, 0)
    merged["samples"] = [samples[worker] for worker in sorted(samples)]
    for key in ("model_bytes", "parameters"):
        merged[key] = next((meta[key] for meta in reversed(metas) if meta.get(key)), 0)
    private = {worker for meta in metas for worker in meta.get("private") or ()}
    if private:
        merged["private"] = sorted(private)
    peaks = [meta["peak_memory"] for meta in metas if meta.get("peak_memory")]
    if peaks:
        merged["peak_memory"] = max(peaks)
    # A finished run stays finished, even if another one took the lead afterwards and was killed.
    finished = [meta for meta in metas if meta.get("status") == "finished"]
    if finished:
        merged["status"] = "finished"
        merged["stopped"] = finished[-1].get("stopped") or ""
    return merged


def _find_pieces(
    terms: Sequence[LeadershipTerm], recorded: Mapping[Path, Collection[int]], *, rounds: int
) -> tuple[RecordPiece, ...]:
    """Whose row of every round counts; `recorded` are the rounds in the record of each folder.

    The terms are in the order of their epochs. There must be at least `rounds`. RunError names
    the missing rounds and who led them.
    """
    epochs, leaders = _committing_epochs(terms), {term.epoch: term for term in terms}
    led = {index: leaders[epoch] for index, epoch in epochs.items() if epoch in leaders}
    pieces: list[RecordPiece] = []
    missing: list[int] = []
    for index in range(1, max(rounds, *epochs, 0) + 1):
        term = led.get(index)
        if term is None or index not in recorded.get(term.folder, ()):
            missing.append(index)
        elif pieces and (pieces[-1].epoch, pieces[-1].last) == (term.epoch, index - 1):
            pieces[-1] = replace(pieces[-1], last=index)
        else:
            pieces.append(RecordPiece(index, index, term.coordinator, term.epoch, term.folder))
    if missing:
        raise _missing_rounds(missing, epochs, terms, led=led)
    return tuple(pieces)


def _committing_epochs(terms: Sequence[LeadershipTerm]) -> dict[int, int]:
    """The epoch in which every round was committed, as far as the histories say.

    A round counts if its coordinator wrote the commit, or another one continued from it; so do
    all rounds before it in the same term, whose lines a power cut may have destroyed. Of several
    epochs the largest counts.
    """
    committed = {event.attempt for term in terms for event in term.events_of(Committed)}
    committed |= {term.resumed_from for term in terms} - {INITIAL}
    start = {term.epoch: term.resumed_from.round_index for term in terms}
    rounds_by_epoch: dict[int, list[int]] = {}
    for attempt in committed:
        rounds_by_epoch.setdefault(attempt.epoch, []).append(attempt.round_index)
    return {
        index: epoch
        for epoch, rounds in sorted(rounds_by_epoch.items())
        for index in range(start.get(epoch, min(rounds) - 1) + 1, max(rounds) + 1)
    }


def _missing_rounds(
    missing: Sequence[int],
    epochs: Mapping[int, int],
    terms: Sequence[LeadershipTerm],
    *,
    led: Mapping[int, LeadershipTerm],
) -> RunError:
    gaps: list[list[int]] = []
    for index in missing:
        if not (gaps and gaps[-1][-1] == index - 1 and led.get(index) is led.get(index - 1)):
            gaps.append([])
        gaps[-1].append(index)
    descriptions = []
    for gap in gaps:
        term, hints = led.get(gap[0]), list[str]()
        before, epoch = led.get(gap[0] - 1), epochs.get(gap[-1])
        if before is not None:
            hints.append(f"after {before.coordinator} (epoch {before.epoch})")
        if epoch is not None:
            after = next((term for term in terms if term.epoch > epoch), None)
            if after is not None:
                hints.append(f"before {after.coordinator} (epoch {after.epoch})")
            same = all(epochs.get(index) == epoch for index in gap)
            hints.append(f"in epoch {epoch}" if same else f"the last of them in epoch {epoch}")
        leader = "a coordinator whose folder is not given" + f" ({', '.join(hints)})" * bool(hints)
        if term is not None:
            leader = f"{term.coordinator} (epoch {term.epoch}), not in {term.folder / RECORD_FILE}"
        descriptions.append(f"{_rounds(gap[0], gap[-1])}, led by {leader}")
    return RunError(
        f"the folders do not have all rounds: {'; '.join(descriptions)}",
        allowed=f"the folders of all coordinators that led a round: {FOLDERS}",
        fix=f"add the missing folder, or {COPY_AGAIN} (also {RECORD_FILE}-wal)",
    )


def _gather(
    timeline: RunTimeline,
    histories: Sequence[_History],
    records: Mapping[Path, Store],
    *,
    out: Path,
) -> GatheredRun:
    terms = timeline.terms
    if not records:
        folders = dict.fromkeys(str(term.folder) for term in terms)
        raise _changed(f"{', '.join(folders)}: there is no {RECORD_FILE}")
    metas = {
        folder: {key: store.meta(key) for key in store.columns("meta", names=("key",))["key"]}
        for folder, store in records.items()
    }
    experiment = _check_records(terms[0].run, metas)
    planned = int(experiment["rounds"])
    _check_rounds(terms, planned)
    meta = _merge_meta(list(metas.values()))
    recorded = {
        folder: set(store.columns("rounds", names=("round",))["round"])
        for folder, store in records.items()
    }
    finished = meta.get("status") == "finished"
    # A condition of [until] may have ended it before its last round.
    complete = finished and not meta.get("stopped")
    pieces = _find_pieces(terms, recorded, rounds=planned if complete else 0)
    for term in terms:
        if term.folder not in records:
            raise _changed(
                f"{term.folder} has the history of {term.coordinator}, but no {RECORD_FILE}"
            )
    meta["gathered"] = [[p.first, p.last, p.coordinator, p.epoch] for p in pieces]
    with _new_run_folder(out) as folder:
        with contextlib.closing(Store.create(folder)) as store:
            for key, value in meta.items():
                store.set_meta(key, value)
            for piece in pieces:
                store.copy_rounds(records[piece.folder], first=piece.first, last=piece.last)
            if finished:
                store.seal()
            store.leave_wal_mode()
        write_file(folder / EXPERIMENT, tomli_w.dumps(experiment).encode())
        _copy_histories(histories, folder)
        for path in (folder, *folder.rglob("*")):
            restrict(path)
    return GatheredRun(
        folder=out,
        run=terms[0].run,
        status=str(meta.get("status")),
        rounds=pieces[-1].last if pieces else 0,
        planned=planned,
        pieces=pieces,
        stopped=str(meta.get(OPERATOR_STOP) or ""),
        missing=missing_beginning(timeline.dropped),
    )


@contextlib.contextmanager
def _new_run_folder(out: Path) -> Iterator[Path]:
    with storage_errors(f"--out {out}", option="--out", recovery="gather again"):
        try:
            with new_folder(out) as folder:
                yield folder
        except StorageFull as error:  # of the record: its advice would be to resume
            raise OSError(errno.ENOSPC, error.problem) from None


def _copy_histories(histories: Iterable[_History], target: Path) -> None:
    """Those of coordinators next to the record, where readers look for them; others below."""
    for history in histories:
        folder, stem = target, history.path.stem
        if not history.of_coordinator:
            folder = target / WORKERS_FOLDER / stem.removeprefix("history-")
        folder.mkdir(parents=True, exist_ok=True)
        path, number = folder / history.path.name, 1
        while path.exists():  # two machines may have used one name
            number += 1
            path = folder / f"{stem}-{number}.jsonl"
        write_file(path, history.content)


def _rounds(first: int, last: int) -> str:
    return f"round {first}" if first == last else f"rounds {first} to {last}"
