"""What all objects of a coordinator that leads have in common.

All of them run in one event loop, so nothing needs a lock; none of them looks at a clock: whoever
calls passes the time.
"""

from __future__ import annotations

from fedhp.cluster.coordinator.conductor import Conductor
from fedhp.cluster.coordinator.run_record import RunRecordWriter
from fedhp.cluster.coordinator.waiting import RoundLoopWaker, WaitingMembers
from fedhp.cluster.coordinator.warnings import Warnings
from fedhp.cluster.history import History
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.config import Experiment


class LeaderContext:
    """The experiment, the round protocol, and where to write, warn and wake."""

    def __init__(
        self,
        experiment: Experiment,
        conductor: Conductor[wire.RoundReport],
        *,
        record: RunRecordWriter,
        history: History,
    ) -> None:
        self.experiment = experiment
        self.conductor = conductor
        self.asynchronous = conductor.settings.asynchronous
        self.groups = conductor.settings.groups
        self.record = record
        self.history = history
        self.warnings = Warnings(history)
        self.waiting = WaitingMembers()
        self.round_loop = RoundLoopWaker()

    @property
    def round_index(self) -> int:
        """The last committed round."""
        return self.conductor.committed.round_index
