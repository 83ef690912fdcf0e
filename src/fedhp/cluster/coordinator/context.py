"""What all objects of a coordinator that leads have in common, and who waits for a change.

All of them run in one event loop, so nothing needs a lock; none of them looks at a clock: whoever
calls passes the time. A member is woken only when its order may have changed. Whatever notices
something unusual sets a warning: status, metrics, log and history all show the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from enum import StrEnum

from fedhp.cluster import events
from fedhp.cluster.coordinator.committed_state import CommittedState, RunRecordWriter
from fedhp.cluster.coordinator.conductor import Conductor, Member
from fedhp.cluster.history import History
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.limits import LogThrottle
from fedhp.cluster.protocol.message_checks import MAX_WARNING_MEMBERS, MAX_WARNINGS, one_line
from fedhp.engine.testing import StopCondition

STOP_SECONDS = 3.0  # that a running round has to end, once the run or a member is to stop
LOG = logging.getLogger("fedhp.coordinator")
PUT_ASIDE = "put_aside"  # key of a warning


class Phase(StrEnum):
    """What a coordinator is doing, in the words that operators see."""

    WAITING = "waiting"  # for the lead
    STARTING = "starting"  # it leads, and is about to prove that with a first commit
    GATHERING = "gathering"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


class RunPhase:
    """The phase of a run, and the conditions that end it."""

    def __init__(self, committed: CommittedState) -> None:
        self.current, self.why = Phase.STARTING, ""
        self.stopping = committed.stopped  # why an operator ends the run
        self.stop_requested, self.stop_committed = asyncio.Event(), asyncio.Event()
        self.has_begun = False  # a round under this coordinator
        self.interrupted: Phase | None = None  # what it did before nothing could be written
        self.stop_condition = StopCondition(committed.experiment, tested=True, by_middle=True)
        last = committed.attempt.round_index
        self.stop_condition.resume(last, 0.0, committed.bytes_sent, None)
        if committed.ended:
            self.stop_condition.end(last, committed.ended)

    def stop(self, why: str) -> None:
        """End the run after its present round, or in a few seconds if that takes longer."""
        self.stopping = why
        self.stop_requested.set()

    @property
    def is_finished(self) -> bool:
        return self.current is Phase.FINISHED

    def has_all_rounds(self, round_index: int) -> bool:
        """Whether no round follows this one, by the experiment or a condition of it."""
        return round_index >= self.stop_condition.last_round


class WaitingCall:
    """Something that waits: one call of a member, or the round loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.notify = self._changed.set  # to be called when something changed
        self.replaced = False  # by a later call of the same member

    async def until_changed(self, seconds: float) -> None:
        """Wait until something changes, at most so long; Refused if replaced."""
        with contextlib.suppress(TimeoutError):
            # wait_for would lose a cancellation that comes together with the event.
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        if self.replaced:
            raise Refused("replaced", "a later call of this worker took the place of this one")


class WaitingMembers:
    """The waiting calls, by worker."""

    def __init__(self) -> None:
        self._calls: dict[int, WaitingCall] = {}
        self.without_model: set[int] = set()  # those that wait for a model to continue from

    @contextlib.contextmanager
    def begin(self, worker: int) -> Iterator[WaitingCall]:
        """Wait for this worker inside the block; an earlier call of it ends."""
        earlier = self._calls.get(worker)
        if earlier is not None:
            earlier.replaced = True
            earlier.notify()
        call = self._calls[worker] = WaitingCall()
        try:
            yield call
        finally:
            if self._calls.get(worker) is call:
                del self._calls[worker]
                self.without_model.discard(worker)

    def workers(self) -> list[int]:
        return list(self._calls)

    def wake(self, workers: Iterable[int]) -> None:
        """The orders of these workers may have changed."""
        for worker in workers:
            call = self._calls.get(worker)
            if call is not None:
                call.notify()

    def wake_without_model(self) -> None:
        """Somebody may have the model that some workers need."""
        workers, self.without_model = self.without_model, set()
        self.wake(workers)

    def wake_all(self) -> None:
        """Everybody's order may have changed."""
        self.wake(self.workers())


class Warnings:
    """Whatever is unusual and lasts, by key (a few lower-case words with "_" between them) and the
    names of the members that it is about, sorted."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.current: dict[tuple[str, tuple[str, ...]], wire.Warning] = {}
        self._throttle = LogThrottle()

    def set(self, key: str, *, members: Iterable[str] = (), value: float, text: str) -> None:
        """Something unusual begins, or goes on with another number: only the first is logged."""
        names = tuple(sorted(members))
        new = (key, names) not in self.current
        if new and len(self.current) >= MAX_WARNINGS:
            return
        self.current[key, names] = wire.Warning(
            key=key, members=names[:MAX_WARNING_MEMBERS], value=value, text=one_line(text)
        )
        if new and self._throttle.admit(key, *names)[0]:
            self._history.note(events.Warned(key, names, value, text))
            LOG.warning("%s", text)

    def end(self, key: str, *, members: Iterable[str] | None = None) -> None:
        """It is over: the warning of these members, or all of this key."""
        names = None if members is None else tuple(sorted(members))
        for subject in [each for each in self.current if each[0] == key]:
            if names is None or subject[1] == names:
                del self.current[subject]

    def on_wire(self) -> list[wire.Warning]:
        """All of them, for a status."""
        return [self.current[subject] for subject in sorted(self.current)]


class LeaderContext:
    """The experiment, the round protocol, the phase, and where to write, warn and wake."""

    def __init__(
        self,
        taken_over: CommittedState,
        conductor: Conductor[wire.RoundReport],
        *,
        record: RunRecordWriter,
        history: History,
    ) -> None:
        self.taken_over = taken_over  # what was committed when this coordinator took the lead
        self.experiment = taken_over.experiment
        self.phase = RunPhase(taken_over)
        self.conductor = conductor
        self.asynchronous = conductor.settings.asynchronous
        self.groups = conductor.settings.groups
        self.record = record
        self.history = history
        self.warnings = Warnings(history)
        self.waiting = WaitingMembers()
        self.round_loop = WaitingCall()

    @property
    def round_index(self) -> int:
        return self.conductor.committed.round_index

    # --- members that keep the others waiting ----------------------------------------------

    def missed(self, member: Member, why: str) -> None:
        """Count a miss; from the second one on, the member is put aside for some rounds."""
        rounds = self.conductor.missed(member)
        if rounds:
            self.history.note(events.Suspended(member.worker, rounds, why))
            LOG.warning("%s is put aside for %d rounds: %s", member.name, rounds, why)
            times = "once" if member.misses == 2 else f"{member.misses - 1} times"
            text = f"{member.name} was put aside {times}, last for {rounds} rounds: {why}"
            self.warnings.set(PUT_ASIDE, members=(member.name,), value=member.misses, text=text)

    def was_punctual(self, member: Member) -> None:
        """It did its part in time; after many such rounds a miss is forgiven."""
        member.was_punctual()
        if member.misses < 2 and self.warnings.current:
            self.warnings.end(PUT_ASIDE, members=(member.name,))
