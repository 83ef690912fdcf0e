"""TensorBoard: one event file per run, written with TensorBoard's own protocol buffers.

The step is the round. The time of an event is the virtual time after the moment at which the log
was begun, so that the axis RELATIVE shows virtual time. TensorBoard keeps values as float32.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhp.sinks.base import folder_for, has_mark, remove_mark, set_mark
from fedhp.sinks.points import RoundPoints, RunDescription, RunOutcome, Values

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

FOLDER = "tensorboard"
OWN_FILES = "events.out.tfevents.*.fedhp"
EVENT_FORMAT = "brain.Event:2"  # the first event of every file


def place_of(description: RunDescription, path: Path | None) -> Path:
    """A folder in that of the run, or below the one that was asked for."""
    return folder_for(description, path, inside=FOLDER)


def is_marked(description: RunDescription, place: Path, mark: str) -> bool:
    return has_mark(place, mark) and any(place.glob(OWN_FILES))


def viewing(top: Path, path: Path | None) -> str:
    return f"tensorboard --logdir {shlex.quote(str(path or top))}"


def open_log(description: RunDescription, place: Path, *, fresh: bool) -> TensorBoardLog:
    """A new event file; one of an earlier process is removed, since all rounds are written."""
    place.mkdir(parents=True, exist_ok=True)
    remove_mark(place)
    for file in place.glob(OWN_FILES):
        file.unlink()
    return TensorBoardLog(description, place)


class TensorBoardLog:
    def __init__(self, description: RunDescription, place: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._place, self._event, self._start = place, Event, time.time()
        # Files are read in the order of their names.
        seconds, rest = divmod(time.time_ns(), 10**9)
        name = OWN_FILES.replace("*", f"{seconds:010d}.{rest:09d}")
        self._file = (place / name).open("xb")
        self._writer = RecordWriter(self._file)
        about: dict[str, Any] = {"label": description.label}
        for key, value in description.settings.items():
            about[key] = value if isinstance(value, bool | str) else float(value)
        parameters = hparams_pb(about, trial_id=description.name, start_time_secs=self._start)
        try:
            self._add(0.0, 0, file_version=EVENT_FORMAT)
            # A TensorBoard that shows an earlier file drops what it has read of it.
            self._add(0.0, 0, session_log=SessionLog(status=SessionLog.START))
            self._add(0.0, 0, summary=parameters)
            self._add(0.0, 0, summary=_text("settings", description.tables))
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def write(self, rounds: Sequence[RoundPoints]) -> None:
        for points in rounds:
            self._add(points.clock, points.round_index, summary=_scalars(points.values))
        self._file.flush()

    def finish(self, outcome: RunOutcome, *, mark: str) -> None:
        last, clock = outcome.round_index, outcome.clock
        self._add(clock, last, summary=_scalars(outcome.numbers))
        self._add(clock, last, summary=_text("summary", outcome.summary.as_json()))
        self.close(outcome.summary.status)
        set_mark(self._place, mark)

    def close(self, status: str) -> None:
        self._file.close()

    def _add(self, clock: float, step: int, **content: Any) -> None:
        event = self._event(wall_time=self._start + clock, step=step, **content)
        self._writer.write(event.SerializeToString())


def _scalars(values: Values) -> Summary:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()])


def _text(tag: str, tables: Any) -> Summary:
    """A JSON object as text that TensorBoard shows as it is."""
    from tensorboard.plugins.text.summary_v2 import text_pb

    lines = json.dumps(tables, indent=2, ensure_ascii=False).splitlines()
    return text_pb(tag, "\n".join(f"    {line}" for line in lines))
