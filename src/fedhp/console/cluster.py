"""A running federation: a table of its workers in a terminal, lines elsewhere.

Goes to standard error, so that standard output has the results only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedhp.cluster.ops.operator import unreachable
from fedhp.cluster.ops.progress import RoundFacts
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.console.heartbeat import SILENT_SECONDS, Display
from fedhp.console.progress import UNKNOWN, ProgressLines, RunState
from fedhp.terminal import FittingTable, shorten_words
from fedhp.texts import printable
from fedhp.types import RoundRecord

MOST_WORKER_ROWS = 40  # the other workers are only counted
SECONDS_PER_DAY = 86_400
MOST_TROUBLES = 20  # silent workers, and broken links; the others are only counted
MOST_NOTES = 4  # the latest are shown
STATUS_STYLES = {"ready": "green", "behind": "yellow", "draining": "yellow", "suspect": "yellow"}


def round_line(facts: RoundFacts, rounds: int) -> str:
    accuracy = "" if facts.accuracy is None else f"  {facts.metric} {facts.accuracy:.4f}"
    workers = "1 worker " if facts.workers == 1 else f"{facts.workers} workers"
    return (
        f"round {facts.round_index}/{rounds}  {facts.seconds:.2f} s  {workers}  "
        f"steps {facts.steps:.1f}  waiting {facts.waiting:.2f} s{accuracy}"
    )


def round_facts(record: RoundRecord, metric: str) -> RoundFacts:
    took_part = record.local_steps > 0
    evaluation = record.evaluation
    return RoundFacts(
        round_index=record.round_index,
        seconds=record.timing.round_time,
        workers=int(took_part.sum()),
        steps=float(record.local_steps[took_part].mean()) if took_part.any() else 0.0,
        waiting=record.timing.mean_waiting_time,
        accuracy=None if evaluation is None else evaluation.mean_accuracy,
        metric=metric,
    )


def status_table(status: wire.StatusReply) -> Table:
    table = FittingTable(
        *("worker", "status", "phase", "round", "steps", "step time", "test", "silent"),
        left=("worker", "status", "phase"),
        drop_first=("step time", "steps", "silent", "phase"),
    )
    for member in status.members[:MOST_WORKER_ROWS]:
        style = STATUS_STYLES.get(member.status, "red")
        timed = _is_known(member.step_time) and member.step_time > 0
        table.add_row(
            _plain(member.name),
            f"[{style}]{_plain(member.status)}[/]",
            _plain(member.phase),
            str(member.round),
            str(member.local_steps or "-"),
            f"{1000 * member.step_time:.1f} ms" if timed else "-",
            f"{member.accuracy:.4f}" if _is_known(member.accuracy) else "-",
            f"{member.silent_seconds:.0f} s" if _is_known(member.silent_seconds) else "-",
        )
    return table


def status_line(status: wire.StatusReply) -> str:
    why = f" ({_clean(status.why)})" if status.why else ""
    workers = "1 worker" if len(status.members) == 1 else f"{len(status.members)} workers"
    last = f", last round {status.round_seconds:.2f} s" if status.round_seconds else ""
    return (
        f"{_clean(status.state)}{why}: round {status.round} of {status.rounds}{last}, "
        f"epoch {status.epoch}, {workers}"
    )


def trouble_lines(status: wire.StatusReply) -> list[str]:
    """Warnings, silent workers, broken links and certificates to renew; none: no lines."""
    members = {member.worker: member for member in status.members}
    silent = [_silent_line(member) for member in unreachable(status)]
    broken = [_broken_line(link, members) for link in status.broken]
    expiring = [_expiring_line(certificate) for certificate in status.expiring]
    warnings = [_clean(warning.text) for warning in status.warnings]
    return [
        *_section("warnings:", warnings, count=len(warnings)),
        *_section("no heartbeat:", silent, count=len(silent)),
        *_section("broken links:", broken, count=max(status.broken_links, len(broken))),
        *_section("certificates to renew:", expiring, count=len(expiring)),
    ]


def _section(title: str, lines: Sequence[str], *, count: int) -> list[str]:
    if not lines:
        return []
    shown = [f"  {line}" for line in lines[:MOST_TROUBLES]]
    hidden = count - len(shown)
    return [title, *shown, *([f"  ... and {hidden} more"] if hidden else [])]


def _silent_line(member: wire.MemberStatus) -> str:
    name = f"{_clean(member.name)}{f' at {_clean(member.address)}' if member.address else ''}"
    if not _is_known(member.silent_seconds):
        return f"{name} was not seen since this coordinator leads"
    return f"{name} is {_clean(member.status)}, silent for {member.silent_seconds:.0f} s"


def _expiring_line(certificate: wire.ExpiringCertificate) -> str:
    days = abs(certificate.seconds) / SECONDS_PER_DAY
    if certificate.seconds < 0:
        return f"{_clean(certificate.name)}: expired {days:.1f} days ago"
    return f"{_clean(certificate.name)}: expires in {days:.1f} days"


def _broken_line(link: wire.BrokenLink, members: Mapping[int, wire.MemberStatus]) -> str:
    worker, peer = members.get(link.worker), members.get(link.peer)
    ends = [
        f"worker {index}" if member is None else _clean(member.name)
        for index, member in ((link.worker, worker), (link.peer, peer))
    ]
    why = _clean(link.why)
    if why == "unreachable" and peer is not None:
        why = f"cannot reach {_clean(peer.address) or 'it'}"
    elif why == "deadline":
        why = "it did not come in time"
    times = "once" if link.failures == 1 else f"{link.failures} times"
    when = f"in round {link.since}"
    if link.last != link.since:
        when = f"since round {link.since}, last in round {link.last}"
    return f"{ends[0]} gets no model from {ends[1]}: {why} ({times}, {when})"


class ClusterView(Display):
    """The display of a federation; call `show` whenever there is something new."""

    def __init__(
        self,
        rounds: int,
        *,
        label: str = "run",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        super().__init__(console, self._beat, seconds=silent_seconds)
        self._clock = clock
        self._run = RunState(label, rounds, 0, clock())
        self._seconds = 0.0  # that the rounds took
        self._status: wire.StatusReply | None = None  # the last one
        self._notes: list[str] = []
        self._state = ""

    def show(
        self,
        status: wire.StatusReply | None,
        *,
        rounds: Iterable[RoundFacts] = (),
        notes: Sequence[str] = (),
        over: bool = False,
    ) -> None:
        """Show what is new: rounds that ended, notes, and the present status."""
        ended = list(rounds)
        self._take_over(ended)
        self._notes += notes
        if not self._is_live:
            lines = [round_line(facts, self._run.rounds) for facts in ended]
            for line in (*lines, *notes, *self._state_change(status)):
                self._print(line)
            return
        silent = "is starting" if self._status is None else "does not answer"
        head = f"the coordinator {silent}" if status is None else status_line(status)
        parts: list[RenderableType] = [Text("the run is over" if over else head)]
        parts.append(ProgressLines([self._run], now=self._clock()))
        self._status = status or self._status
        if self._status is not None and not over:
            parts.append(status_table(self._status))
            hidden = len(self._status.members) - MOST_WORKER_ROWS
            if hidden > 0:
                workers = "worker" if hidden == 1 else "workers"
                parts.append(Text(f"... and {hidden} more {workers}"))
        width = self._console.width
        latest = self._notes[-MOST_NOTES:]
        parts += [Text(shorten_words(note, width), style="yellow") for note in latest]
        self._live.update(Group(*parts))

    def _take_over(self, ended: Sequence[RoundFacts]) -> None:
        if ended and not self._run.round:
            # These may be the rounds of an earlier start: the time left counts from here.
            self._run.first, self._run.began = ended[-1].round_index, self._clock()
        for facts in ended:
            self._seconds += facts.seconds
            names = ("waiting", "steps", "metric", "accuracy")
            numbers = {name: getattr(facts, name) for name in names}
            self._run.update({"round": facts.round_index, "clock": self._seconds, **numbers})

    def _beat(self) -> None:
        """Nothing was printed for a while: say how far the run is."""
        run = self._run
        left = run.time_left(self._clock())
        time_left = "" if left == UNKNOWN else f", about {left} left"
        self._print(f"{self._state or 'starting'}: round {run.round}/{run.rounds}{time_left}")

    def _state_change(self, status: wire.StatusReply | None) -> list[str]:
        """Without a terminal, the state is printed when it changes."""
        state = "" if status is None else status.state
        if not state or state == self._state:
            return []
        self._state = state
        return [_clean(state)]


def _is_known(value: float) -> bool:
    return math.isfinite(value) and value < limits.FOREVER


def _clean(text: str) -> str:
    return printable(text[: limits.TEXT_LENGTH])


def _plain(text: str) -> str:
    return escape(_clean(text))
