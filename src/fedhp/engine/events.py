"""The round loop of asynchronous algorithms: events instead of a barrier.

Snapshot, train, add the change to the current model, then what exchange/mailbox.py says of the end
of a turn, such as a transfer to a partner: no locks. A "round" is N such ends, or one interval of
evaluation.seconds. Every worker has at most one event ahead of it, so the event heap is two columns
of a table of workers; what is on its way into boxes has a heap of its own (exchange/post.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedhp.algorithms.base import is_asynchronous, rule_of, traits_of
from fedhp.engine.accounting import Stopwatch, check_clock
from fedhp.engine.executor import EventExecutor, LocalTraining, ShardLost
from fedhp.engine.testing import StopCondition, with_results
from fedhp.errors import RunError
from fedhp.exchange.mailbox import (
    TURN_RULES,
    Delivery,
    Gathering,
    Mail,
    Meeting,
    mail_of,
    ring,
    ring_size,
    stored_mail,
)
from fedhp.exchange.post import Post
from fedhp.record.checkpoint import Checkpoint
from fedhp.record.tensors import pack, unpack
from fedhp.rounds.context import PlanningContext, serving_of
from fedhp.rounds.planner import Measured, Observed, Planner, check_finite, rate_at
from fedhp.timing import mean_bandwidth
from fedhp.types import (
    BoolArray,
    FloatArray,
    IntArray,
    RoundRecord,
    StepReason,
    Timing,
    TurnPhase,
)

if TYPE_CHECKING:
    from fedhp.engine.sharded import ShardedExecutor

# What a worker does: PASSING is a transfer that is not to one partner, and WAITING has no end yet.
COMPUTING, TRANSFERRING, AWAY, WAITING, PASSING = range(5)
SERVED_SHARE = 0.1  # of the elapsed time that a served average covers
SERVED_STEP = 0.002  # of the elapsed time, between two moves of a shared model's average

Table = TypeVar("Table", "EventTable", "SideTable")


@dataclass(slots=True)
class EventTable:
    """What every worker is doing, one row each."""

    due: FloatArray  # [N] virtual time of its next event
    phase: IntArray  # [N] COMPUTING, ...
    turn: IntArray  # [N] how many turns it has begun, minus one
    partner: IntArray  # [N] a worker, or what mailbox.py has instead
    steps: IntArray  # [N] of the turn
    duration: FloatArray  # [N] of the current phase, s
    rate: FloatArray  # [N] learning rate of the turn
    untrained: BoolArray  # [N] in_flight holds a snapshot; else the change made by training
    loss: FloatArray  # [N] of the last trained turn


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


DTYPES: dict[Any, type[np.generic]] = {
    "FloatArray": np.float64,
    "IntArray": np.int64,
    "BoolArray": np.bool_,
}


def _table(kind: type[Table], workers: int, **start: float) -> Table:
    """A table in which every worker has these values, and 0 in the other columns."""
    columns = {
        column.name: np.full(workers, start.get(column.name, 0), dtype=DTYPES[column.type])
        for column in fields(kind)
    }
    return kind(**columns)


class _RoundTotals:
    """What happened in the current round."""

    def __init__(self, workers: int) -> None:
        self.events = 0
        self.rule: StepReason | None = None  # of the turns' ends, if it is not the mailbox's
        self.steps = np.zeros(workers, dtype=np.int64)
        self.compute = np.zeros(workers)
        self.communication = np.zeros(workers)
        self.waiting = np.zeros(workers)
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
        tester: ShardedExecutor | None = None,
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
        self.table = _table(EventTable, n, due=np.inf, phase=AWAY, turn=-1, partner=-1, loss=np.nan)
        self.side = _table(SideTable, n, due=np.inf, partner=-1, following=-1)
        self.post = Post(n)
        self.totals = _RoundTotals(n)
        # Bits of a message as a share of the model's: vectors of the rule travel along.
        travels = any(vector.travels for vector in rule_of(context.algorithm).vectors)
        self.message_share = context.transfer_share if travels else 1.0
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
        self.totals = totals
        bandwidth = mean_bandwidth(self.world.network(started))
        rate = rate_at(self.context, self.round_index + 1, started)
        last = -1
        end = np.inf if self.seconds is None else self.seconds * (self.round_index + 1)
        with watch.phase("train"):
            while totals.events < self.most_events and (due := self._next_event()) <= end:
                if np.isinf(due):
                    self._wake()  # all have gone meanwhile: someone is always there
                    continue
                last = self._step()
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
        if self.stop_condition.is_tested(record):
            tested = with_results(record, self.tester.start_tests(last=last))
            if not last and self.stop_condition.is_last(tested):
                tested = with_results(record, self.tester.start_tests(last=True))
        return tested

    def _next_event(self) -> float:
        """Its virtual time. Where all that are there wait, some of them stop waiting."""
        while True:
            due = float(min(self.table.due.min(), self.side.due.min(), self.post.due))
            if np.isfinite(due) or not self._release():
                return due

    def _step(self) -> int:
        """Handle the next event; the worker that begins its next turn in the next round, or -1."""
        table, side = self.table, self.side
        worker, sender = int(np.argmin(table.due)), int(np.argmin(side.due))
        if self.post.due < min(table.due[worker], side.due[sender]):
            self._land()
            return -1
        if side.due[sender] < table.due[worker]:
            self._arrive(sender)
            return -1
        self.clock = float(table.due[worker])
        mail = self.post.mails.get(worker) or stored_mail(
            int(table.partner[worker]), bool(side.overlap[worker]), bool(side.int8[worker])
        )
        if table.phase[worker] == COMPUTING:
            self._finish_training(worker, mail)
            if not mail.leave(self, worker):
                return -1
        else:
            mail.arrive(self, worker, float(table.duration[worker]))
        self.totals.events += 1
        if self.totals.events < self.most_events:
            self._begin(worker)
            return -1
        return worker

    def _arrive(self, sender: int) -> None:
        """A transfer arrives whose sender has been training meanwhile."""
        side = self.side
        self.clock = float(side.due[sender])
        mail = stored_mail(int(side.partner[sender]), True, bool(side.coded[sender]))
        side.due[sender] = np.inf
        mail.arrive(self, sender, float(side.duration[sender]))
        self.totals.events += 1
        if side.following[sender] >= 0:  # steps were done meanwhile
            self._send_aside(sender)

    def _land(self) -> None:
        table, totals = self.table, self.totals
        transfer = self.post.land()
        sender, receiver, time = transfer.sender, transfer.receiver, transfer.duration
        self.clock = transfer.due
        self.executor.deliver(sender, receiver, weight=transfer.weight, fragment=transfer.fragment)
        if not self.post.sending[sender]:  # of all at once the last, which took longest
            totals.communication[sender] += time
        size = self._part_size(transfer.fragment)
        self._note_transfer(sender, receiver, time, round(size * self.message_bytes))
        enough = len(self.post.landed[receiver]) >= self.post.wait[receiver]
        if table.phase[receiver] == WAITING and enough:
            self._begin(receiver)

    def _release(self) -> bool:
        """Nothing will happen any more: whether some worker need not wait any longer."""
        waiting = np.flatnonzero(self.table.phase == WAITING).tolist()
        if self.post.waiting:
            self._start_group(min(self.post.waiting))
        elif ready := [worker for worker in waiting if self.post.landed[worker]]:
            self.post.wait[ready[0]] = 0
            self._begin(ready[0])
        elif waiting and not (self.table.phase == AWAY).any():
            raise RunError(
                f"round {self.round_index + 1}: all {len(waiting)} workers wait for deliveries, "
                "and none is on its way",
                allowed="an Action with wait only where others deliver",
                fix="correct act() of the algorithm",
            )
        else:
            return False
        return True

    def _begin(self, worker: int) -> None:
        """Take a snapshot and start a turn, if the worker is available and waits for nobody."""
        table, post, round_index = self.table, self.post, self.round_index + 1
        available = self.world.available(round_index, self.clock)
        if table.phase[worker] == WAITING:
            self.totals.waiting[worker] += self.clock - post.since[worker]
        if not available[worker]:
            table.phase[worker], table.due[worker] = AWAY, np.inf
            return
        received = tuple(sorted(post.landed[worker]))
        if len(received) < post.wait[worker]:
            self._wait(worker)
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
            received=received,
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
        post.plan(worker, mail, action.wait)
        self.executor.snapshot(worker)
        if self.serving and received:
            self._serve(worker)

    def _wait(self, worker: int) -> None:
        """Until others have delivered, or come to its group."""
        self.table.phase[worker], self.table.due[worker] = WAITING, np.inf
        self.post.since[worker] = self.clock

    def _wake(self) -> None:
        """Start the workers that were away and may be back."""
        for worker in np.flatnonzero(self.table.phase == AWAY).tolist():
            self._begin(worker)

    def _finish_training(self, worker: int, mail: Mail) -> None:
        """Add the change that training made to the current model."""
        table, totals = self.table, self.totals
        if table.untrained[worker]:
            self._train_waiting()
        norm = mail.end_steps(self.executor, worker)
        if table.steps[worker]:
            self._check(worker, norm)
        totals.steps[worker] += table.steps[worker]
        took = float(table.duration[worker])
        totals.compute[worker] += took
        totals.phases.append(TurnPhase(worker, self.clock - took, self.clock))
        totals.norm[worker] = norm
        totals.rule = mail.rule or totals.rule
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

    # --- what forms of mail ask for (mailbox.Sending) --------------------------------------

    def meet(self, worker: int, meeting: Meeting) -> bool:
        """Start the transfer to the partner, and wait for it or begin the next steps."""
        table, side = self.table, self.side
        if meeting.overlap:
            side.following[worker] = meeting.partner
            if np.isinf(side.due[worker]):
                self._send_aside(worker)
            self._begin(worker)
        else:
            table.phase[worker] = TRANSFERRING
            table.duration[worker] = time = self._transfer_time(worker, meeting)
            table.due[worker] = self.clock + time
        return False

    def met(self, worker: int, meeting: Meeting, time: float) -> None:
        distance = meeting.average(self.executor, worker)
        self.totals.communication[worker] += time
        sent = meeting.sent_bytes(self.message_bytes)
        self._note_transfer(worker, meeting.partner, time, sent, distance)
        if self.serving:
            for end in (worker, meeting.partner):
                self._serve(end)

    def deliver(self, worker: int, delivery: Delivery) -> bool:
        """Send the message, unless the last one is still on its way."""
        if self.post.sending[worker] or not delivery.to:
            return True
        self.executor.post(worker, delivery.weights)
        self.post.open_lines(worker, delivery)
        links = np.array([(receiver, worker) for receiver in delivery.to], dtype=np.int64)
        size = self._part_size(delivery.parts[0][2])
        times = self._link_times(worker, links, size=size, directed=True)
        self.post.send(worker, delivery, self.clock, times)
        if not delivery.overlap:
            self._pass([worker], float(times.max()))
        return delivery.overlap

    def gather(self, worker: int, gathering: Gathering) -> bool:
        members = self.post.waiting.setdefault(gathering.group, [])
        members.append(worker)
        self._wait(worker)
        if len(members) >= gathering.size:
            self._start_group(gathering.group)
        return False

    def gathered(self, worker: int, time: float) -> None:
        """The average of the worker's group is there; its first member tells the others."""
        members = self.post.end_group(worker)
        if len(members) > 1:
            self.executor.average_group(members)
            both = 2 if len(members) == 2 else 1
            sent = both * round(ring_size(len(members)) * self.message_bytes)
            for one, other in ring(members):
                self._note_transfer(one, other, time, sent)
        for member in members:
            self.totals.communication[member] += time
            if self.serving:
                self._serve(member)

    # --- transfers -------------------------------------------------------------------------

    @property
    def message_bytes(self) -> int:
        return round(self.message_share * self.context.model_bytes)

    def _part_size(self, fragment: int) -> float:
        """Of a fragment of a message, or of the whole (-1)."""
        return 1.0 if fragment < 0 else 1.0 / traits_of(self.algorithm).fragments

    def _start_group(self, number: int) -> None:
        """Those who have come average, over a ring."""
        members = self.post.start_group(number)
        self.totals.waiting[members] += self.clock - self.post.since[members]
        links, time = np.array(ring(members), dtype=np.int64), 0.0
        if len(links):
            size = ring_size(len(members))
            time = float(self._link_times(members[0], links, size=size).max())
        self._pass(members, time)

    def _pass(self, workers: list[int], time: float) -> None:
        self.table.phase[workers] = PASSING
        self.table.duration[workers] = time
        self.table.due[workers] = self.clock + time

    def _send_aside(self, worker: int) -> None:
        """Start the transfer to the partner of the last steps, while the next ones run."""
        side = self.side
        mail = stored_mail(int(side.following[worker]), True, bool(side.int8[worker]))
        side.partner[worker], side.following[worker] = mail.partner, -1
        side.coded[worker] = mail.int8
        side.due[worker] = self.clock  # it takes part of shared links from now on
        side.duration[worker] = time = self._transfer_time(worker, mail)
        side.due[worker] = self.clock + time

    def _transfer_time(self, worker: int, mail: Mail) -> float:
        pair = np.array([[worker, mail.partner]], dtype=np.int64)
        return float(self._link_times(worker, pair, size=mail.size)[0])

    def _link_times(
        self, worker: int, links: IntArray, *, size: float, directed: bool = False
    ) -> FloatArray:
        """Of transfers that a worker starts now; shared links are divided as of now."""
        table, side = self.table, self.side
        waited = np.flatnonzero(table.phase == TRANSFERRING)
        aside = np.flatnonzero(np.isfinite(side.due))
        ends = np.concatenate([waited, table.partner[waited], aside, side.partner[aside]])
        return self.world.link_time(
            links,
            np.bincount(ends, minlength=self.workers) + self.post.transfers,
            clock=self.clock,
            ready=np.zeros(self.workers),
            size=size * self.message_share,
            directed=directed,
            event=int(table.turn[worker]),
        )

    def _note_transfer(
        self, worker: int, partner: int, time: float, sent: int, distance: float = np.nan
    ) -> None:
        phase = TurnPhase(worker, self.clock - time, self.clock, partner)
        self.totals.phases.append(phase)
        key = (min(worker, partner), max(worker, partner))
        self.totals.links.setdefault(key, []).append((time, distance, sent))

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
                waiting_time=totals.waiting,
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
        rule = totals.rule or TURN_RULES[traits_of(self.algorithm).mailbox]
        return self.planner.finish_turns(
            measured, rule, round_index=self.round_index, clock=self.clock, rate=rate
        )

    def _capture(self) -> Checkpoint:
        """A copy of all but the models, which the executor keeps."""
        table_arrays, _ = pack("table", deepcopy(self.table))
        side_arrays, _ = pack("side", deepcopy(self.side))
        sends = traits_of(self.algorithm).mailbox != "meet"
        post_arrays = self.post.stored() if sends else {}
        state_arrays, state_scalars = pack("state", self.planner.state)
        return Checkpoint(
            round_index=self.round_index,
            arrays={**table_arrays, **side_arrays, **state_arrays, **post_arrays},
            scalars={"clock": self.clock, **state_scalars},
        )

    def checkpoint(self) -> Checkpoint:
        return self._round_end

    def restore(self, saved: Checkpoint) -> None:
        self._return_to(saved)
        self._round_end = self._capture()

    def _return_to(self, saved: Checkpoint) -> None:
        # A copy: the table changes in place, the checkpoint must not.
        self.table = deepcopy(unpack("table", EventTable, saved.arrays, saved.scalars))
        self.side = deepcopy(unpack("side", SideTable, saved.arrays, saved.scalars))
        self.post = Post.restored(saved.arrays, self.workers)
        self.planner.state = unpack("state", type(self.planner.state), saved.arrays, saved.scalars)
        self.round_index = saved.round_index
        self.clock = saved.scalars["clock"]
