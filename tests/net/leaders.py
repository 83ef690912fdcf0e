"""Folders of coordinators, made without a network by RunRecordWriter and History."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedhp.cluster.coordinator.committed_state import CommittedState, RunRecordWriter
from fedhp.cluster.history import History
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.config import Experiment
from fedhp.types import RoundRecord
from net.clusters import tiny
from unit.record.rounds import mesh, planned_round

RUN = "a" * 32
WORKERS = 3
ROUNDS = 6
EXPERIMENT = tiny(workers=WORKERS, rounds=ROUNDS)


def round_record(index: int, *, bandwidth: float = 1.0) -> RoundRecord:
    """A round's record; another bandwidth marks another attempt at the same round."""
    record = planned_round(WORKERS, mesh(WORKERS), round_index=index)
    whole = record.evaluation if index == ROUNDS else None
    return replace(record, bandwidth=record.bandwidth * bandwidth, final_evaluation=whole)


class Leader:
    """A coordinator, its record and its history; it may lead again and again."""

    def __init__(self, folder: Path, name: str, *, experiment: Experiment = EXPERIMENT) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name, self.experiment = folder, name, experiment
        self.file = folder / f"history-{name}.jsonl"
        self.epoch = 0

    def lead(
        self,
        epoch: int,
        committed: Attempt = INITIAL,
        *,
        run: str = RUN,
        joined: tuple[int, ...] = (),
    ) -> Leader:
        """Take the lead after the committed attempt."""
        self.epoch = epoch
        content = CommittedState(
            run=run,
            experiment=self.experiment,
            attempt=committed,
            model_bytes=4000 if committed != INITIAL else 0,
        )
        self._record = RunRecordWriter.open(self.folder, content, asynchronous=False)
        self._history = History(self.folder, self.name)
        self._history.append(
            "lead",
            {
                "run": run,
                "epoch": epoch,
                "stand": committed.to_list(),
                "min_workers": 1,
                "asynchronous": False,
            },
        )
        for worker in joined or range(WORKERS):
            self._record.note_samples(worker, 100 + worker)
            self._history.append("join", {"worker": worker, "name": f"w{worker}"})
        if committed == INITIAL:
            self._record.note(model_bytes=4000, parameters=1000)
        return self

    def rounds(self, first: int, last: int) -> Leader:
        """Rounds as they should be."""
        for index in range(first, last + 1):
            facts = self.write(round_record(index))
            for worker in range(WORKERS):
                self._history.append("report", {**facts, "worker": worker, "digest": f"{worker}"})
            self._history.append("commit", {**facts, "reported": list(range(WORKERS))})
        return self

    def write(self, record: RoundRecord) -> dict[str, int]:
        """A round on record, without a commit."""
        facts = {"epoch": self.epoch, "round": record.round_index, "attempt": 1}
        self._history.append(
            "attempt", {**facts, "participants": list(range(WORKERS)), "deadline": 5.0}
        )
        self._record.write(record)
        return facts

    def finish(self, status: str = "finished") -> Leader:
        """The run is over."""
        self._history.append("finished", {"round": ROUNDS, "why": "done"})
        self._record.finish(status)
        return self.end()

    def end(self) -> Leader:
        """As a kill would: nothing more is written."""
        self._record.close()
        self._history.close()
        return self

    def at(self, index: int) -> Attempt:
        """The attempt by which it committed a round."""
        return Attempt(self.epoch, index, 1)

    def forget(self, *events: tuple[str, int]) -> None:
        """Take lines out of the history: (event, round)."""
        lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
        for event, index in events:
            words = f'"event": "{event}"', f'"round": {index},'
            kept = [line for line in lines if not all(word in line for word in words)]
            assert len(kept) < len(lines)
            lines = kept
        self.file.write_text("".join(lines), encoding="utf-8")


def whole_run(folder: Path) -> Path:
    """The same rounds under one coordinator, to compare with."""
    Leader(folder, "only").lead(1).rounds(1, ROUNDS).finish()
    return folder


def two_leaders(folder: Path) -> tuple[Leader, Leader]:
    """c0 dies with round 4 written, but not committed; c1 continues from round 3."""
    first = Leader(folder / "c0", "c0").lead(3).rounds(1, 3)
    first.write(round_record(4, bandwidth=9.0))
    first.end()
    second = Leader(folder / "c1", "c1").lead(8, first.at(3), joined=(0, 2))
    return first, second.rounds(4, ROUNDS).finish()


def files_below(folder: Path) -> dict[str, bytes]:
    """The content of every file, except those that come and go with a reader."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.endswith(("-shm", "-wal"))
    }
