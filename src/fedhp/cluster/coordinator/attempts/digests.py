"""Digests of the models of the committed round, for those that catch up."""

from __future__ import annotations

from collections import Counter

from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.conductor import Conductor, Member
from fedhp.cluster.coordinator.planning.outliers import LEAST_VALUES
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.message_checks import DIGEST_BYTES


class ModelDigests:
    """The digests that were reported, by worker; of late reports too."""

    def __init__(self, conductor: Conductor[wire.RoundReport], committed: CommittedState) -> None:
        self._conductor = conductor
        self.by_worker: dict[int, bytes] = dict(committed.digests)
        self._took_part: frozenset[int] = frozenset()  # in the committed round, if this one led it

    def after_commit(self) -> dict[int, bytes]:
        """Of the models that the running attempt made."""
        running = self._conductor.running
        reports = {} if running is None else running.reports
        return {worker: report.digest for worker, report in reports.items() if report.digest}

    def committed(self) -> None:
        """The running attempt is durable."""
        running = self._conductor.running
        if running is not None and not self._conductor.settings.asynchronous:
            self._took_part = running.participants
        self.by_worker = self.after_commit()

    def wanted(self) -> list[bytes]:
        """What a worker that catches up may take: the model that most have, where there is a
        common one; else any that was reported."""
        digests = self.by_worker
        digest, count = max(
            Counter(digests.values()).items(), key=lambda each: each[1], default=(b"", 0)
        )
        common = 2 * count > len(digests) and len(digests) >= LEAST_VALUES
        return [digest] if common else sorted(set(digests.values()))

    def late_report(self, member: Member, report: wire.RoundReport) -> None:
        """A report that does not count any more: the member may still hold a model of the round,
        which others may take if nobody else has one. The first digest that it names stays."""
        committed = Attempt.from_envelope(report.envelope) == self._conductor.committed
        took_part = member.worker in self._took_part
        if committed and took_part and len(report.digest) == DIGEST_BYTES:
            self.by_worker.setdefault(member.worker, report.digest)
