"""The round loop of asynchronous algorithms: events instead of a barrier.

Snapshot, train, add the change to the current model, then what exchange/mailbox.py says of the end
of a turn, such as a transfer to a partner: no locks, no waiting. A "round" is N such ends, or one
interval of evaluation.seconds. Every worker has exactly one event ahead of it, so the event heap is
two columns of a table of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from fedhp.algorithms.base import is_asynchronous
from fedhp.engine.accounting import Stopwatch, check_clock, mean_bandwidth
from fedhp.engine.executor import (
    EventExecutor,
    LocalTraining,
    ModelTester,
    ShardLost,
    check_finite,
)
from fedhp.engine.testing import with_results
from fedhp.engine.until import StopCondition
from fedhp.exchange.mailbox import RULE, Mail, mail_of, stored_mail
from fedhp.record.checkpoint import Checkpoint
from fedhp.record.tensors import pack, unpack
from fedhp.rounds.context import PlanningContext, serving_of
from fedhp.rounds.planner import Measured, Observed, Planner, rate_at
from fedhp.types import (
    BoolArray,
    FloatArray,
    IntArray,
    RoundRecord,
    Timing,
    TurnPhase,
)

COMPUTING, TRANSFERRING, AWAY = 0, 1, 2
SERVED_SHARE = 0.1  # of the elapsed time that a served average covers
SERVED_STEP = 0.002  # of the elapsed time, between two moves of a shared model's average


@dataclass(slots=True)
class EventTable:
    """What every worker is doing, one row each."""

    due: FloatArray  # [N] virtual time of its next event
    phase: IntArray  # [N] COMPUTING, TRANSFERRING or AWAY
    turn: IntArray  # [N] how many turns it has begun, minus one
    partner: IntArray  # [N] a worker, or what mailbox.py has instead
    steps: IntArray  # [N] of the turn
    duration: FloatArray  # [N] of the current phase, s
    rate: FloatArray  # [N] learning rate of the turn
    untrained: BoolArray  # [N] in_flight holds a snapshot; else the change made by training
    loss: FloatArray  # [N] of the last trained turn

    def copy(self) -> EventTable:
        """An independent copy."""
        return EventTable(*(getattr(self, field.name).copy() for field in fields(self)))


@dataclass(slots=True)
class SideTable:
    """What a worker's event does not say: how its exchange goes, a transfer that it does not wait
    for, and when it last served its model. One row per worker."""

    overlap: BoolArray  # [N] of the turn
    int8: BoolArray  # [N] of the turn
    due: FloatArray  # [N] arrival of the transfer that is on its way while the worker trains
    partner: IntArray  # [N] of that transfer
    duration: FloatArray  # [N] of that transfer, s
    coded: BoolArray  # [N] whether that transfer is compressed to int8
    following: IntArray  # [N] the partner to meet as soon as it has arrived; -1: nobody yet
    served: FloatArray  # [N] virtual time at which the served model last moved

    @classmethod
    def of(cls, workers: int) -> SideTable:
        """Nothing is on its way."""
        return cls(
            overlap=np.zeros(workers, dtype=np.bool_),
            int8=np.zeros(workers, dtype=np.bool_),
            due=np.full(workers, np.inf),
            partner=np.full(workers, -1, dtype=np.int64),
            duration=np.zeros(workers),
            coded=np.zeros(workers, dtype=np.bool_),
            following=np.full(workers, -1, dtype=np.int64),
            served=np.zeros(workers),
        )

    def copy(self) -> SideTable:
        """An independent copy."""
        return SideTable(*(getattr(self, field.name).copy() for field in fields(self)))


class _RoundTotals:
    """What happened in the current round."""

    def __init__(self, workers: int) -> None:
        self.events = 0
        self.rule = RULE  # of the turns' ends
        self.steps = np.zeros(workers, dtype=np.int64)
        self.compute = np.zeros(workers)
        self.communication = np.zeros(workers)
        self.norm = np.full(workers, np.nan)
        # Time, distance and bytes of every exchange of a pair.
        self.links: dict[tuple[int, int], list[tuple[float, float, int]]] = {}
        self.phases: list[TurnPhase] = []


class EventLoop:
    """Drives an asynchronous algorithm."""

    def __init__(
        self,
        context: PlanningContext,
        executor: EventExecutor,
        *,
        tester: ModelTester | None = None,
    ) -> None:
        assert is_asynchronous(context.algorithm)
        self.context = context
        self.executor = executor
        self.tester = tester
        self.algorithm = context.algorithm
        self.world = context.world
        self.experiment = context.experiment
        self.stop_condition = StopCondition(context.experiment, tested=tester is not None)
        self.workers = n = self.experiment.workers
        self.seconds = self.experiment.evaluation.seconds
        # Of a round: without limit where it has a fixed length.
        self.most_events = n if self.seconds is None else np.inf
        self.round_index = 0
        self.clock = 0.0
        self.planner = Planner(context)
        self.table = EventTable(
            due=np.full(n, np.inf),
            phase=np.full(n, AWAY, dtype=np.int64),
            turn=np.full(n, -1, dtype=np.int64),
            partner=np.full(n, -1, dtype=np.int64),
            steps=np.zeros(n, dtype=np.int64),
            duration=np.zeros(n),
            rate=np.zeros(n),
            untrained=np.zeros(n, dtype=np.bool_),
            loss=np.full(n, np.nan),
        )
        self.side = SideTable.of(n)
        self.serving = serving_of(self.experiment, context.algorithm)
        executor.keep()
        self._round_end = self._capture()

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left; the state at each yield is that of a round's end."""
        while self.round_index < self.stop_condition.last_round:
            try:
                self._wake()
                record = self._round()
                self.executor.keep()
            except ShardLost:
                self.executor.recover()
                self._return_to(self._round_end)
                continue
            self._round_end = self._capture()
            yield record

    def _round(self) -> RoundRecord:
        """N averaging events, or those of one interval between tests; then the tests."""
        watch = Stopwatch()
        started, totals = self.clock, _RoundTotals(self.workers)
        bandwidth = mean_bandwidth(self.world.network(started))
        rate = rate_at(self.context, self.round_index + 1, started)
        last = -1
        end = np.inf if self.seconds is None else self.seconds * (self.round_index + 1)
        with watch.phase("train"):
            while totals.events < self.most_events and self._next_event() <= end:
                if np.isinf(self._next_event()):
                    self._wake()  # all have gone meanwhile: someone is always there
                    continue
                last = self._step(totals)
        if self.seconds is not None:
            self.clock = end
        self.round_index += 1
        record = self._record(totals, started, rate=rate, bandwidth=bandwidth, wall=watch.seconds)
        check_clock(record.clock, record.timing, self.experiment, round_index=record.round_index)
        record = self._tested(record)
        if last >= 0:
            self._begin(last)
        self._wake()
        return record

    def _tested(self, record: RoundRecord) -> RoundRecord:
        """The record with its tests, those of the last round included."""
        if self.tester is None:
            return record
        last, tested = self.stop_condition.is_last(record), record
        if last:
            self.tester.end_at(record.round_index)
        if self.tester.is_tested(record):
            tested = with_results(record, self.tester.start_tests(record.round_index))
            if not last and self.stop_condition.is_last(tested):
                self.tester.end_at(record.round_index)
                tested = with_results(record, self.tester.start_tests(record.round_index))
        return tested

    def _next_event(self) -> float:
        return float(min(self.table.due.min(), self.side.due.min()))

    def _step(self, totals: _RoundTotals) -> int:
        """Handle the next event; the worker that begins its next turn in the next round, or -1."""
        table, side = self.table, self.side
        worker, sender = int(np.argmin(table.due)), int(np.argmin(side.due))
        if side.due[sender] < table.due[worker]:
            self._arrive(sender, totals)
            return -1
        self.clock = float(table.due[worker])
        if table.phase[worker] == COMPUTING:
            mail = self._mail(worker)
            self._finish_training(worker, mail, totals)
            if mail.travels:
                if not mail.overlap:
                    self._send(worker, mail)
                else:
                    side.following[worker] = table.partner[worker]
                    if np.isinf(side.due[worker]):
                        self._send_aside(worker)
                    self._begin(worker)
                return -1
        else:
            self._meet(worker, self._mail(worker), float(table.duration[worker]), totals)
        totals.events += 1
        if totals.events < self.most_events:
            self._begin(worker)
            return -1
        return worker

    def _arrive(self, sender: int, totals: _RoundTotals) -> None:
        """A transfer arrives whose sender has been training meanwhile."""
        side = self.side
        self.clock = float(side.due[sender])
        mail = stored_mail(int(side.partner[sender]), True, bool(side.coded[sender]))
        side.due[sender] = np.inf
        self._meet(sender, mail, float(side.duration[sender]), totals)
        totals.events += 1
        if side.following[sender] >= 0:  # steps were done meanwhile
            self._send_aside(sender)

    def _begin(self, worker: int) -> None:
        """Take a snapshot and start a turn, if the worker is available."""
        table, round_index = self.table, self.round_index + 1
        available = self.world.available(round_index, self.clock)
        if not available[worker]:
            table.phase[worker], table.due[worker] = AWAY, np.inf
            return
        table.turn[worker] += 1
        turn = int(table.turn[worker])
        rate = rate_at(self.context, round_index, self.clock)
        observed = Observed(
            round_index=round_index,
            clock=self.clock,
            available=available,
            network=self.world.network(self.clock),
            epoch_steps=self.context.epoch_steps,
            share_done=self.context.share_done(self.clock),
        )
        action = self.planner.act(worker, observed, turn=turn)
        times = self.world.step_times(worker, turn + 1, steps=action.local_steps, time=self.clock)
        mail = mail_of(action)
        table.phase[worker] = COMPUTING
        table.partner[worker] = mail.partner
        table.steps[worker] = action.local_steps
        table.rate[worker] = rate
        table.duration[worker] = times.sum()
        table.due[worker] = self.clock + float(times.sum())
        table.untrained[worker] = True
        self.side.overlap[worker] = mail.overlap
        self.side.int8[worker] = mail.int8
        self.executor.snapshot(worker)

    def _wake(self) -> None:
        """Start the workers that were away and may be back."""
        for worker in np.flatnonzero(self.table.phase == AWAY).tolist():
            self._begin(worker)

    def _mail(self, worker: int) -> Mail:
        """How the worker's turn ends."""
        side = self.side
        return stored_mail(
            int(self.table.partner[worker]), bool(side.overlap[worker]), bool(side.int8[worker])
        )

    def _finish_training(self, worker: int, mail: Mail, totals: _RoundTotals) -> None:
        """Add the change that training made to the current model."""
        table = self.table
        if table.untrained[worker]:
            self._train_waiting()
        norm = mail.end_steps(self.executor, worker)
        self._check(worker, norm)
        totals.steps[worker] += table.steps[worker]
        took = float(table.duration[worker])
        totals.compute[worker] += took
        totals.phases.append(TurnPhase(worker, self.clock - took, self.clock))
        totals.norm[worker] = norm
        totals.rule = mail.rule
        since = self.clock - float(self.side.served[worker])
        if self.serving and since >= SERVED_STEP * self.clock:
            for each in mail.moved(self.workers):
                self._serve(each)

    def _train_waiting(self) -> None:
        """Train all snapshots taken so far in one go: they depend on nothing later."""
        table = self.table
        trainings = {
            worker: LocalTraining(
                int(table.turn[worker]) + 1, int(table.steps[worker]), float(table.rate[worker])
            )
            for worker in np.flatnonzero(table.untrained).tolist()
        }
        for worker, loss in self.executor.train_snapshots(trainings).items():
            table.loss[worker] = loss
            table.untrained[worker] = False

    def _check(self, worker: int, norm: float) -> None:
        only_worker = np.arange(self.workers) == worker
        check_finite(
            self.table.loss,
            np.where(only_worker, norm, 0.0),
            worked=only_worker,
            round_index=self.round_index + 1,
            learning_rate=float(self.table.rate[worker]),
            training=self.context.experiment.training,
        )

    def _send(self, worker: int, mail: Mail) -> None:
        """Start the transfer to the partner, and wait for it."""
        table = self.table
        table.phase[worker] = TRANSFERRING
        time = self._transfer_time(worker, mail)
        table.duration[worker] = time
        table.due[worker] = self.clock + time

    def _send_aside(self, worker: int) -> None:
        """Start the transfer to the partner of the last steps, while the next ones run."""
        side = self.side
        mail = stored_mail(int(side.following[worker]), True, bool(side.int8[worker]))
        side.partner[worker], side.following[worker] = mail.partner, -1
        side.coded[worker] = mail.int8
        side.due[worker] = self.clock  # it takes part of shared links from now on
        time = self._transfer_time(worker, mail)
        side.duration[worker] = time
        side.due[worker] = self.clock + time

    def _transfer_time(self, worker: int, mail: Mail) -> float:
        """Of a transfer that starts now; shared links are divided as of now."""
        table, side = self.table, self.side
        pair = np.array([[worker, mail.partner]], dtype=np.int64)
        waited = np.flatnonzero(table.phase == TRANSFERRING)
        aside = np.flatnonzero(np.isfinite(side.due))
        ends = np.concatenate([waited, table.partner[waited], aside, side.partner[aside]])
        transfers = np.bincount(ends, minlength=self.workers)
        times = self.world.link_time(
            pair,
            transfers,
            clock=self.clock,
            ready=np.zeros(self.workers),
            size=mail.size,
            event=int(table.turn[worker]),
        )
        return float(times[0])

    def _meet(self, worker: int, mail: Mail, time: float, totals: _RoundTotals) -> None:
        """A transfer has arrived that took so long."""
        partner = mail.partner
        distance = mail.arrive(self.executor, worker)
        totals.communication[worker] += time
        totals.phases.append(TurnPhase(worker, self.clock - time, self.clock, partner))
        key = (min(worker, partner), max(worker, partner))
        sent = mail.sent_bytes(self.context.model_bytes)
        totals.links.setdefault(key, []).append((time, distance, sent))
        if self.serving:
            for end in (worker, partner):
                self._serve(end)

    def _serve(self, worker: int) -> None:
        """The mixed model, or its moving average over a tenth of the elapsed time."""
        factor = 1.0
        if self.serving == "average":
            passed = self.clock - float(self.side.served[worker])
            factor = float(-np.expm1(-passed / (SERVED_SHARE * self.clock)))
        self.executor.serve(worker, factor)
        self.side.served[worker] = self.clock

    def _record(
        self,
        totals: _RoundTotals,
        started: float,
        *,
        rate: float,
        bandwidth: FloatArray,
        wall: dict[str, float],
    ) -> RoundRecord:
        n = self.workers
        took = self.clock - started
        pairs = sorted(totals.links)
        links = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        events = [totals.links[pair] for pair in pairs]
        times = np.array([np.mean([time for time, _, _ in transfers]) for transfers in events])
        worked = totals.steps > 0
        with np.errstate(invalid="ignore"):
            step_time = np.where(worked, totals.compute / np.maximum(totals.steps, 1), np.nan)
        measured = Measured(
            local_steps=totals.steps,
            step_time=step_time,
            timing=Timing(
                compute_time=totals.compute,
                communication_time=totals.communication,
                worker_time=np.full(n, took),
                waiting_time=np.zeros(n),
                round_time=took,
            ),
            links=links,
            link_time=times,
            link_bytes=np.array(
                [sum(sent for _, _, sent in transfers) for transfers in events], dtype=np.int64
            ),
            link_distance=np.array([transfers[-1][1] for transfers in events]),
            train_loss=np.where(worked, self.table.loss, np.nan),
            update_norm=totals.norm,
            bandwidth=bandwidth,
            wall=wall,
            phases=tuple(totals.phases),
        )
        return self.planner.finish_turns(
            measured, totals.rule, round_index=self.round_index, clock=self.clock, rate=rate
        )

    def _capture(self) -> Checkpoint:
        """A copy of all but the models, which the executor keeps."""
        table_arrays, _ = pack("table", self.table.copy())
        side_arrays, _ = pack("side", self.side.copy())
        state_arrays, state_scalars = pack("state", self.planner.state)
        return Checkpoint(
            round_index=self.round_index,
            arrays={**table_arrays, **side_arrays, **state_arrays},
            scalars={"clock": self.clock, **state_scalars},
        )

    def checkpoint(self) -> Checkpoint:
        """Everything needed to resume from the last round's end, without the models."""
        return self._round_end

    def restore(self, saved: Checkpoint) -> None:
        """Resume from a checkpoint."""
        self._return_to(saved)
        self._round_end = self._capture()

    def _return_to(self, saved: Checkpoint) -> None:
        # A copy: the table changes in place, the checkpoint must not.
        self.table = unpack("table", EventTable, saved.arrays, saved.scalars).copy()
        self.side = unpack("side", SideTable, saved.arrays, saved.scalars).copy()
        self.planner.state = unpack("state", type(self.planner.state), saved.arrays, saved.scalars)
        self.round_index = saved.round_index
        self.clock = saved.scalars["clock"]
