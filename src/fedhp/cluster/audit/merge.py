"""One whole record of a run that several coordinators led, from the folders of all of them.

Each recorded the rounds it led; the histories tell whose row of a round counts. The folders given
are only read; the new one appears whole, by a rename.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedhp.cluster.audit.pieces import FOLDERS, Piece, pieces_of
from fedhp.cluster.audit.timeline import HISTORIES, Event, LeadershipTerm, put_together
from fedhp.cluster.coordinator.run_record import EXPERIMENT
from fedhp.cluster.history import events_in
from fedhp.config import differences, parse, to_tables
from fedhp.errors import RunError, StorageFull
from fedhp.files import UNFINISHED, new_folder, storage_errors, write_file
from fedhp.record.store import FILE, Store

WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class Gathered:
    """The whole record, and whose rounds it has."""

    folder: Path
    run: str
    status: str
    rounds: int  # that it has
    planned: int  # that the experiment has
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class _History:
    """A file as it was read, once: a coordinator may still be writing it."""

    path: Path
    content: bytes
    events: list[Event]
    leads: bool


def gather(folders: Sequence[Path], out: Path) -> Gathered:
    """Write the whole record of the run in these folders into a new one."""
    _check_places(folders, out)
    histories = list(_histories(folders))
    terms = put_together((each.path, each.events) for each in histories).terms
    if not terms:
        raise RunError(
            f"{_several(folders)}: no history tells of a coordinator that led",
            allowed=FOLDERS,
            fix="check the paths",
        )
    _check_epochs(terms)
    _check_run(terms, histories)
    with contextlib.ExitStack() as stack:
        records: dict[Path, Store] = {}
        # Who led more than once stands where it led last: the last one's word on the run counts.
        for folder in reversed(dict.fromkeys(term.folder for term in reversed(terms))):
            if (folder / FILE).is_file():
                records[folder] = Store.open(folder)
                stack.callback(records[folder].close)
        return _gather(terms, histories, records, out=out)


# --- reading -------------------------------------------------------------------------------


def _check_places(folders: Sequence[Path], out: Path) -> None:
    for folder in folders:
        if not os.path.isdir(folder):
            there = os.path.lexists(folder)
            raise RunError(
                f"{folder} is no folder" if there else f"{folder} does not exist",
                allowed=FOLDERS,
                fix="check the path",
            )
    if os.path.lexists(out):
        raise RunError(
            f"--out {out}: exists already",
            allowed="a folder that does not exist yet",
            fix="choose another --out, or delete it",
        )
    for folder in folders:
        if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(folder)):
            raise RunError(
                f"--out {out}: is inside {folder}, which is read",
                allowed="a folder beside those that are read",
                fix="choose another --out",
            )


def _histories(folders: Sequence[Path]) -> Iterator[_History]:
    """All histories in the folders and below, each once."""
    owner: dict[str, Path] = {}
    for folder in folders:
        files = [
            file
            for file in sorted(folder.rglob(HISTORIES))
            if UNFINISHED not in file.relative_to(folder).parts
        ]
        if not files:
            raise RunError(
                f"{folder} holds no history-NAME.jsonl: no coordinator wrote here",
                allowed=FOLDERS,
                fix="check the path, or copy the folder anew with all its files",
            )
        for file in files:
            first = owner.setdefault(os.path.realpath(file), folder)
            if first is not folder:
                same = os.path.realpath(first) == os.path.realpath(folder)
                raise RunError(
                    f"{folder} is given twice" if same else f"{file} is in {first}, too",
                    allowed="every folder once",
                    fix="leave one of them out",
                )
            yield _history(file)


def _history(file: Path) -> _History:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RunError(
            f"{file}: cannot be read: {error.strerror or error}",
            allowed="files that this user can read",
            fix="mend the permissions, or copy the folder anew",
        ) from None
    events = list(events_in(content))
    try:
        found = put_together([(file, events)])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise RunError(
            f"{file}: has a line that no coordinator or worker writes ({error})",
            allowed="a file as a coordinator or a worker wrote it",
            fix="copy it anew from its machine, or take it out of the folder",
        ) from None
    return _History(file, content, events, leads=bool(found.terms))


def _check_epochs(terms: Sequence[LeadershipTerm]) -> None:
    """Two folders of one epoch are copies of one: which of them is the later, nobody knows."""
    owner: dict[int, LeadershipTerm] = {}
    for term in terms:
        other = owner.setdefault(term.epoch, term)
        if other is not term and other.run == term.run:
            raise RunError(
                f"{other.folder} and {term.folder} both tell of epoch {term.epoch} "
                f"({other.who}, {term.who}): they are copies",
                allowed="one folder for every coordinator",
                fix="leave out the older copy",
            )


def _check_run(terms: Sequence[LeadershipTerm], histories: Iterable[_History]) -> None:
    """That all histories are of one run."""
    first = terms[0]
    runs = [(term.folder, {term.run}) for term in terms]
    for each in histories:
        joined = {str(event["run"]) for event in each.events if "run" in event}
        if joined and not each.leads:
            runs.append((each.path, joined))
    for place, found in runs:
        if first.run not in found:
            raise RunError(
                f"{place} is of another run ({', '.join(sorted(found))}) than {first.folder} "
                f"({first.run})",
                allowed="folders of one run",
                fix="leave the folders of the other run out",
            )


def _check_records(run: str, about: Mapping[Path, dict[str, Any]]) -> dict[str, Any]:
    """That all records are of this run and one experiment; the experiment."""
    previous: tuple[Path, dict[str, Any]] | None = None
    for folder, meta in about.items():
        if meta.get("run") != run:
            raise RunError(
                f"{folder / FILE} is of another run ({meta.get('run')}) than the history "
                f"beside it ({run})",
                allowed="a folder as its coordinator wrote it",
                fix="copy the folder anew from its machine",
            )
        tables = meta.get("experiment")
        if not isinstance(tables, dict):
            raise RunError(
                f"{folder / FILE}: the record is damaged: it has no experiment",
                allowed="a record this program wrote, unchanged",
                fix="copy the folder anew from its machine",
            )
        experiment = to_tables(parse(tables, source=str(folder / FILE)))
        changed = differences(previous[1], experiment) if previous else []
        if previous and changed:
            key, old, new = changed[0]
            raise RunError(
                f"{folder}: {key} is {new!r}, but {old!r} in {previous[0]}",
                allowed="records of one experiment",
                fix="leave the folder out that is not of this run",
            )
        previous = folder, experiment
    assert previous is not None
    return previous[1]


# --- the whole -----------------------------------------------------------------------------


def _gather(
    terms: Sequence[LeadershipTerm],
    histories: Sequence[_History],
    records: Mapping[Path, Store],
    *,
    out: Path,
) -> Gathered:
    about = {folder: _meta(store) for folder, store in records.items()}
    recorded = {
        folder: set(store.columns("rounds", names=("round",))["round"])
        for folder, store in records.items()
    }
    if not about:
        raise RunError(
            f"{_several(dict.fromkeys(term.folder for term in terms))}: there is no {FILE}",
            allowed="folders with the records and the histories",
            fix="copy the folders anew with all their files",
        )
    experiment = _check_records(terms[0].run, about)
    _check_rounds(terms, int(experiment["rounds"]))
    meta = _merged(list(about.values()))
    over = meta.get("status") == "finished"
    pieces = pieces_of(terms, recorded, rounds=int(experiment["rounds"]) if over else 0)
    for term in terms:
        if term.folder not in records:
            raise RunError(
                f"{term.folder} has the history of {term.who}, but no {FILE}",
                allowed="a folder as its coordinator wrote it",
                fix="copy the folder anew with all its files",
            )
    meta["gathered"] = [[each.first, each.last, each.coordinator, each.epoch] for each in pieces]
    with _folder(out) as new:
        store = Store.create(new)
        with contextlib.closing(store):
            for key, value in meta.items():
                store.set_meta(key, value)
            for piece in pieces:
                store.copy_rounds(records[piece.folder], first=piece.first, last=piece.last)
            store.leave_wal_mode()
        write_file(new / EXPERIMENT, tomli_w.dumps(experiment).encode())
        _copy(histories, new)
    return Gathered(
        folder=out,
        run=terms[0].run,
        status=str(meta.get("status")),
        rounds=pieces[-1].last if pieces else 0,
        planned=int(experiment["rounds"]),
        pieces=pieces,
    )


def _meta(store: Store) -> dict[str, Any]:
    return {key: store.meta(key) for key in store.columns("meta", names=("key",))["key"]}


def _check_rounds(terms: Sequence[LeadershipTerm], rounds: int) -> None:
    for term in terms:
        told = [term.stand.round_index, *(int(event["round"]) for event in term.named("commit"))]
        wrong = [index for index in told if not 0 <= index <= rounds]
        if wrong:
            raise RunError(
                f"{term.folder}: the history of {term.who} tells of round {wrong[0]}, "
                f"but the experiment has {rounds}",
                allowed="a history as its coordinator wrote it",
                fix="copy the folder anew from its machine",
            )


def _merged(about: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the whole record says of itself: as the last leader's, with what only others know."""
    meta = dict(about[-1])
    samples: dict[int, int] = {}
    for each in about:
        for worker, count in enumerate(each.get("samples") or ()):
            samples[worker] = count or samples.get(worker, 0)
    meta["samples"] = [samples[worker] for worker in sorted(samples)]
    for key in ("model_bytes", "parameters"):
        meta[key] = next((each[key] for each in reversed(about) if each.get(key)), 0)
    peaks = [each["peak_memory"] for each in about if each.get("peak_memory")]
    if peaks:
        meta["peak_memory"] = max(peaks)
    # A finished run stays so, also when another one took the lead afterwards and was killed.
    if any(each.get("status") == "finished" for each in about):
        meta["status"] = "finished"
    return meta


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """A folder that gets this name when all is written; before that it is not taken for a run."""
    with (
        storage_errors(f"--out {out}", option="--out", recovery="gather again"),
        new_folder(out) as folder,
    ):
        try:
            yield folder
        except StorageFull as error:  # of the record: its advice would be to resume
            raise OSError(errno.ENOSPC, error.problem) from None


def _copy(histories: Iterable[_History], new: Path) -> None:
    """Those of coordinators beside the record, where they are looked for; others apart."""
    for each in histories:
        name = each.path.name
        folder = new if each.leads else new / WORKERS / name[len("history-") : -len(".jsonl")]
        folder.mkdir(parents=True, exist_ok=True)
        place, number = folder / name, 1
        while place.exists():  # two machines may have used one name
            number += 1
            place = folder / f"{each.path.stem}-{number}.jsonl"
        write_file(place, each.content)


# --- words ---------------------------------------------------------------------------------


def _several(folders: Iterable[Path]) -> str:
    return ", ".join(map(str, folders))
