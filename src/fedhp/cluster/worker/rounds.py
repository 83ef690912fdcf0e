"""How a worker carries out an order: one attempt at a round (Algorithm 1), a turn, a catch-up.

Nothing here touches the committed model before a later order says that the attempt counts. So an
attempt can be given up at any moment by cancelling its task.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ParamSpec, TypeVar

import numpy as np

from fedhp.cluster import events
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import (
    BadModel,
    IncomingModels,
    OutgoingModel,
    row_digest,
)
from fedhp.cluster.protocol.group_codec import FragmentCodec
from fedhp.cluster.worker.learner import (
    ONLY,
    Learner,
    RoundResult,
    TrainingResult,
    fragment_of,
    run_codec,
)
from fedhp.cluster.worker.pace import StepPace
from fedhp.cluster.worker.peer_client import LATE, PeerClient, PeerLost, ReceivedModel
from fedhp.cluster.worker.peer_server import ModelOffer
from fedhp.cluster.worker.session import WorkerSession, log
from fedhp.cluster.worker.tree_node import AverageLost, OpenAverage, TreeNode, rate_of
from fedhp.engine.executor import LocalTraining
from fedhp.errors import Diverged, FedhpError
from fedhp.learn.group_state import Columns, GroupUpdate
from fedhp.learn.local import Estimate
from fedhp.learn.quantize import Row
from fedhp.types import FloatArray

P = ParamSpec("P")
T = TypeVar("T")
NAN = float("nan")
PROBE_SECONDS = 5.0  # until a probe is given up
PROBE_GRACE = 1.0  # s that a report waits for probes at most
COMMITTED_MODEL_SECONDS = 600.0  # until a peer that has the committed model is given up
SHORTEST_STEP = 1e-9  # s; a clock may not see a step pass


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """One round of this worker, for the console."""

    round_index: int
    local_steps: int
    seconds: float
    accuracy: float  # NaN: not tested
    lost: int  # neighbors whose model did not come
    metric: str  # the name of `accuracy` in this task


class OrderExecutor:
    """Carries out orders with one learner."""

    def __init__(
        self,
        session: WorkerSession,
        learner: Learner,
        offer: ModelOffer,
        peers: PeerClient,
        average: OpenAverage | None = None,
    ) -> None:
        self._session = session
        self._learner = learner
        self._offer = offer
        self._open_average = average or OpenAverage()
        self._peers = peers
        settings, peers_at_most = learner.prepared.experiment.exchange, learner.workers
        self._outgoing = OutgoingModel(
            learner.codec,
            compression=settings.compression,
            share=settings.topk_share,
            readers=peers_at_most,
        )
        self._incoming = IncomingModels(
            learner.codec, compression=settings.compression, peers=peers_at_most
        )
        self._created = time.monotonic()
        self._emulates = learner.prepared.experiment.cluster.emulate
        self._gone: frozenset[int] = frozenset()
        self._pulling: dict[int, asyncio.Task[ReceivedModel]] = {}
        self.surveyed: list[wire.LinkReport] = []  # the links that the last survey timed
        self._lost_peers: set[str] = set()  # whose models did not come at the last try
        self._carried = 0.0  # s that the last round left for the next step
        self.step_time = 0.0
        self.last_round: RoundProgress | None = None

    def stop_waiting_for(self, gone: Collection[int]) -> None:
        """Give up the models of workers that the coordinator reports as gone."""
        self._gone = frozenset(gone)
        for worker in self._gone & self._pulling.keys():
            self._pulling[worker].cancel()

    async def calibrate(self) -> None:
        """Time one local step."""
        seconds = await self._learner.run(self._learner.calibrate)
        if self._emulates:
            started = time.monotonic() - seconds
            await self._emulate(0, 1, started)
            seconds = time.monotonic() - started
        self.step_time = max(seconds, SHORTEST_STEP)

    async def survey(self, order: wire.Order, *, received: float) -> None:
        """Time links before the first round, for `surveyed`."""
        self._session.enter("surveying")
        self.surveyed, links = [], list[wire.LinkReport]()
        attempt = Attempt.after(Attempt.from_wire(order.committed), epoch=order.epoch)
        until = received + order.survey.deadline
        await self._probe(order.survey.peers, attempt, links, received=received, until=until)
        self.surveyed = links

    # --- a synchronous round ---------------------------------------------------------------

    async def work(self, order: wire.Order, *, received: float) -> wire.RoundReport:
        """One attempt: train, then offer, pull, measure and mix, as often as the order says; test,
        report.

        Links that carry no model are timed meanwhile; the report hardly waits for that. The
        mixed model is stored, but only a later order makes it the current one.
        """
        session, learner, work = self._session, self._learner, order.work
        attempt = Attempt.from_order(order)
        self._gone = frozenset()
        if work.HasField("group"):
            return await self._average(work, attempt, received=received)
        if learner.prepared.experiment.exchange.compression == "topk":
            self._outgoing.copies.begin_round(work.round)
            self._incoming.copies.begin_round(work.round)
        mixes = _mixes_of(work)
        probes: list[wire.LinkReport] = []
        probe = self._probe(
            work.probes, attempt, probes, received=received, until=received + work.deadline
        )
        async with _in_background(probe) as probing:
            await self._offer.open(attempt, [mix.readers for mix in mixes])
            session.enter("training")
            training, compute_seconds = await self._train(
                work.round,
                work.local_steps,
                learner.train,
                work.local_steps,
                round_index=work.round,
                learning_rate=work.learning_rate,
            )
            session.note(events.Trained(attempt, steps=work.local_steps, seconds=compute_seconds))
            links: dict[int, wire.LinkReport] = {}
            exchange_seconds, row = 0.0, training.row
            # So much time is left for each exchange that follows if a peer does not answer.
            share = (work.deadline - work.exchange_deadline) / len(mixes)
            async with _in_background(self._estimate(work)) as estimating:
                for number, mix in enumerate(mixes):
                    following = len(mixes) - 1 - number
                    until = received + work.exchange_deadline - following * share
                    session.enter("sending")
                    try:
                        await run_codec(self._outgoing.codec, self._outgoing.offer, row, number)
                    except BadModel:  # in a buffer of the model: loss and update are finite
                        raise Diverged(
                            f"round {work.round}: the model of this worker is no longer finite",
                            fix=f"lower the learning rate (it was {work.learning_rate:g} in this "
                            "round)",
                        ) from None
                    await self._offer.put(attempt, self._outgoing, number, until=until)
                    session.enter("receiving")
                    started = time.monotonic()
                    # Of a peer whose model did not come before, no other is waited for.
                    gone = {worker for worker, link in links.items() if link.lost}
                    known = [peer for peer in mix.peers if peer.worker not in gone]
                    models, lost = await self._pull_all(known, attempt, until=until, number=number)
                    exchange_seconds += time.monotonic() - started
                    estimate = await estimating
                    session.enter("mixing")
                    rows = {worker: row for worker, (row, _) in models.items()}
                    selected: list[int] = []
                    if work.keep:
                        selected = await learner.run(
                            learner.score,
                            rows,
                            keep=work.keep,
                            samples=work.samples,
                            round_index=work.round,
                        )
                    weights = self._weights(work, mix, rows, selected)
                    if following:
                        distances, row = await learner.run(learner.mix_on, rows, weights)
                    else:
                        result = await learner.run(
                            learner.end_round,
                            rows,
                            weights,
                            attempt=attempt,
                            on_part=work.evaluate,
                            on_whole=work.whole_test,
                        )
                        distances = result.distances
                    for worker in (*models, *lost):
                        link = links.setdefault(
                            worker, wire.LinkReport(worker=worker, distance=NAN)
                        )
                        if worker in lost:
                            link.lost, link.lost_at = lost[worker], number
                            continue
                        _, transfer = models[worker]
                        if not link.bytes:  # the distance is that of its first use
                            link.started = transfer.started - received
                            link.distance = distances[worker]
                        link.bytes += transfer.bytes
                        link.seconds += transfer.seconds
            session.note(events.Mixed(attempt, digest=result.digest.hex()))
            report = self._report(
                work,
                result,
                received=received,
                local_steps=work.local_steps,
                busy=compute_seconds + exchange_seconds,
                compute_seconds=compute_seconds,
                exchange_seconds=exchange_seconds,
                train_loss=training.loss,
                update_norm=training.update_norm,
                smoothness=estimate.smoothness,
                gradient_variance=estimate.gradient_variance,
                start_loss=estimate.start_loss,
                links=[links[worker] for worker in sorted(links)],
                selected=selected,
            )
            await asyncio.wait({probing}, timeout=PROBE_GRACE)
        report.links.extend(probes)
        return report

    def _report(
        self,
        order: wire.Work | wire.Act,
        ended: RoundResult,
        /,
        *,
        received: float,
        local_steps: int,
        busy: float,
        links: Sequence[wire.LinkReport],
        **fields: Any,
    ) -> wire.RoundReport:
        """The report of an attempt or turn that ends here. busy: s of training and exchange."""
        task, seconds = self._learner.prepared.task, time.monotonic() - received
        lost = sum(bool(link.lost) and not link.probe for link in links)
        self.last_round = RoundProgress(
            order.round, local_steps, seconds, ended.accuracy, lost, task.metric_name
        )
        estimates = {"smoothness": NAN, "gradient_variance": NAN, "start_loss": NAN}
        return wire.RoundReport(
            step_time=self.step_time,
            other_seconds=max(0.0, seconds - busy),
            links=links,
            accuracy=ended.accuracy,
            whole_accuracy=ended.whole_accuracy,
            images=self._learner.prepared.test_images if order.evaluate else 0,
            digest=ended.digest,
            **{**estimates, **fields},
        )

    async def _average(
        self, work: wire.Work, attempt: Attempt, *, received: float
    ) -> wire.RoundReport:
        """One attempt with a group average: train while it is on its way, take it over, train on
        until the deadline, test, report. Without all participants there is no average: then the
        report says so, and everything is as it was."""
        session, learner, group = self._session, self._learner, work.group
        self.last_round = None
        columns = fragment_of(learner.layout, group.fragment, group.fragments)
        node = await self._join_tree(work, attempt, columns, received=received)
        probes: list[wire.LinkReport] = []
        probe = self._probe_later(work, attempt, probes, node, received=received)
        pace = self._pace(work)
        async with _in_background(probe) as probing:
            session.enter("training")
            arrival = received + group.transfer_time
            more = partial(pace.until, arrival) if node is None else pace.until_arrival
            training = learner.run(
                learner.groups.train_paced,
                ONLY,
                more if group.overlap else (lambda: False),
                round_index=work.round,
                learning_rate=work.learning_rate,
            )
            average = None
            async with _in_background(training) as first:
                if node is not None:
                    try:
                        await self._result(node, work, first, received=received)
                    except AverageLost as error:
                        return self._without_average(node, error, received=received)
                    except BadModel:  # of finite parts that are not too large
                        return self._without_model(node, attempt, received=received)
                    finally:
                        pace.arrived.set()
                    arrival = time.monotonic()
                    average = _update(group, node)
                elif not group.overlap:
                    await asyncio.sleep(max(0.0, arrival - time.monotonic()))
                during, loss = await first
            exchange_seconds = arrival - received if node is not None else 0.0
            try:
                trained = await learner.run(
                    learner.train_on,
                    average,
                    columns,
                    partial(pace.until, arrival + group.train_time),
                    round_index=work.round,
                    learning_rate=work.learning_rate,
                    before=(during, loss),
                )
            except Diverged:
                if node is None and learner.committed == INITIAL:
                    raise  # nobody else had a part in this model
                return self._without_model(node, attempt, received=received)
            self._carried = pace.carried
            if pace.steps:
                self.step_time = max(pace.seconds / pace.steps, SHORTEST_STEP)
            session.note(
                events.Trained(attempt, steps=trained.steps, during=during, seconds=pace.seconds)
            )

            session.enter("mixing")
            ended = await learner.run(
                learner.end_round,
                {},
                {},
                attempt=attempt,
                on_part=work.evaluate,
                on_whole=work.whole_test,
                fragments=group.fragments,
            )
            digest, consensus = ended.digest.hex(), ended.consensus.hex()
            session.note(events.Mixed(attempt, digest=digest, consensus=consensus))
            probing.cancel()
            # There was little time: a link that did not answer within it is not broken.
            probes = [link for link in probes if link.lost != "deadline"]
        return self._report(
            work,
            ended,
            received=received,
            local_steps=trained.steps,
            busy=max(pace.seconds, exchange_seconds),
            compute_seconds=pace.seconds,
            exchange_seconds=exchange_seconds,
            train_loss=trained.loss if trained.steps else 0.0,  # then it does not count
            update_norm=trained.update_norm,
            links=[*self._tree_links(node, {}, received=received), *probes],
            consensus=ended.consensus,
            steps=trained.steps,
            steps_during=during,
            change_norms=ended.change_norms,
            result=b"" if node is None else node.digest,
            whole=b"" if node is None else node.whole_digest,
        )

    async def _join_tree(
        self, work: wire.Work, attempt: Attempt, columns: Columns, *, received: float
    ) -> TreeNode | None:
        """This worker's node in the tree, and its link to the worker above; None if it is not a
        participant."""
        group, learner = work.group, self._learner
        if not group.members:
            await self._open_average.open(attempt, None)
            return None
        rows = await learner.run(learner.contribute, columns)
        node = TreeNode(attempt, group, FragmentCodec(columns, group.compression), rows)
        node.begin()
        await self._open_average.open(attempt, node)
        if group.HasField("parent") and node.codec.pieces:
            node.run(self._peers.climb(group.parent, node, until=received + work.deadline))
        return node

    async def _result(
        self,
        node: TreeNode,
        work: wire.Work,
        training: asyncio.Task[tuple[int, float]],
        *,
        received: float,
    ) -> None:
        """Wait for the average; a training that fails meanwhile ends the wait."""
        train_time = work.group.train_time
        # Until training on would be too late; but as long as was predicted at least.
        seconds = max(
            work.exchange_deadline - train_time,
            min(work.deadline - train_time, work.group.transfer_time),
        )
        left = max(0.0, received + seconds - time.monotonic())
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(node.wait(until=loop.time() + left))
        try:
            await asyncio.wait({waiting, training}, return_when=asyncio.FIRST_COMPLETED)
            if training.done():
                training.result()  # or its error
            await waiting
        finally:
            waiting.cancel()

    def _without_average(
        self, node: TreeNode, error: AverageLost, *, received: float
    ) -> wire.RoundReport:
        """The report of an attempt that cannot succeed."""
        self._session.note(events.LostAverage(node.attempt, str(error)))
        why = "waited in vain" if error.late else "a link broke"
        return wire.RoundReport(
            failed=why,
            step_time=self.step_time,
            links=self._tree_links(node, error.lost, received=received),
        )

    def _without_model(
        self, node: TreeNode | None, attempt: Attempt, *, received: float
    ) -> wire.RoundReport:
        """The report of an attempt after which the model would not be finite any more. It was
        before: a part of a peer may be the cause, and the coordinator knows how the others are."""
        self._session.note(events.ModelDiverged(attempt))
        log.warning(
            "the model is not finite any more after an average with peers; this round does not "
            "count for this worker. A peer may have sent a wrong part; if it happens to most "
            "workers again and again, lower the learning rate",
            extra=attempt.to_facts(),
        )
        return wire.RoundReport(
            failed="its model diverged after an average",
            diverged=True,
            step_time=max(self.step_time, SHORTEST_STEP),
            links=self._tree_links(node, {}, received=received),
        )

    def _tree_links(
        self, node: TreeNode | None, lost: Mapping[int, str], *, received: float
    ) -> list[wire.LinkReport]:
        """What came over each link of the tree, and how fast."""
        if node is None:
            return []
        links = []
        for worker in sorted({*node.children.values(), node.parent} - {-1}):
            link = wire.LinkReport(worker=worker, distance=NAN, lost=lost.get(worker, ""))
            reader = node.readers.get(worker)
            if reader is not None and reader.taken:
                link.bytes, link.seconds = reader.bytes, reader.timing.seconds
                link.started = max(0.0, reader.timing.started - received)
                link.timed_bytes, link.timed_seconds = reader.timing.busy()
            links.append(link)
        return links

    async def _probe_later(
        self,
        work: wire.Work,
        attempt: Attempt,
        links: list[wire.LinkReport],
        node: TreeNode | None,
        *,
        received: float,
    ) -> None:
        """Time other links once the tree's are idle again, until the end of the training."""
        if node is not None:
            await node.ended()
        await asyncio.sleep(max(0.0, received + work.group.transfer_time - time.monotonic()))
        until = time.monotonic() + work.group.train_time
        await self._probe(work.probes, attempt, links, received=received, until=until)

    def _pace(self, work: wire.Work) -> StepPace:
        prepared, worker = self._learner.prepared, self._learner.worker
        emulated = None
        if self._emulates:
            moment = 0.0 if prepared.world.trace is None else time.monotonic() - self._created

            @lru_cache(maxsize=1)
            def times(count: int) -> FloatArray:
                return prepared.world.step_times(worker, work.round, steps=count, time=moment)

            def emulated(count: int) -> FloatArray:
                return times(1 << max(4, (count - 1).bit_length()))  # rarely another count

        return StepPace(
            usual=self.step_time,
            emulated=emulated,
            stopped=self._learner.stopped,
            carried=self._carried,
        )

    async def catch_up(self, order: wire.Order) -> bool:
        """Take the committed model from the first peer that has it, or the middle one of the first
        few that have; whether one did.

        It must be one that a worker reported in the committed round: a peer cannot give another.
        """
        learner, session = self._learner, self._session
        committed = Attempt.from_wire(order.committed)
        wanted = frozenset(order.catch_up.digests)  # an older coordinator names none
        session.enter("catching up")
        taken: dict[str, Row] = {}  # by name of the peer
        for peer in order.catch_up.peers:
            if len(taken) >= max(1, order.catch_up.compare):
                break
            try:
                row = await self._peers.pull_committed(
                    peer,
                    committed,
                    epoch=order.epoch,
                    learner=learner,
                    patience=COMMITTED_MODEL_SECONDS,
                )
            except PeerLost as error:
                log.warning("peer lost", extra={"peer": peer.name, "why": error.reason})
                continue
            if wanted and row_digest(row) not in wanted:
                forged = BadModel(
                    "digest", f"{peer.name} sent a model that ({committed}) did not make"
                )
                session.note_refusal(peer.name, forged, what="committed model")
                continue
            taken[peer.name] = row
        if not taken:
            return False
        name = _middle_of(taken)
        model = learner.with_received(taken[name])
        await learner.run(learner.store.write, committed, model, keeping=committed)
        learner.load(committed, model)
        session.note(events.CaughtUp(committed, name, learner.position(model)))
        return True

    # --- a turn of an asynchronous algorithm -----------------------------------------------

    async def act(self, order: wire.Order, *, received: float) -> wire.RoundReport:
        """One turn: snapshot, train, add the change to the current model, swap, test, report."""
        session, learner, act = self._session, self._learner, order.act
        attempt, until = session.attempt, received + act.deadline
        learner.snapshot()
        session.enter("training")
        # As the simulation counts.
        turn = LocalTraining(act.turn + 1, act.local_steps, act.learning_rate)
        training, compute_seconds = await self._train(
            turn.key, act.local_steps, learner.train_turn, turn
        )
        norm = learner.apply(training.loss, round_index=act.round, learning_rate=act.learning_rate)
        session.note(events.Trained(attempt, turn=act.turn, steps=act.local_steps))

        links: list[wire.LinkReport] = []
        started = time.monotonic()
        if act.HasField("partner"):
            session.enter("receiving")
            links.append(await self._swap(act.partner, attempt, until=until))
        exchange_seconds = time.monotonic() - started

        session.enter("mixing")
        model = learner.label(Attempt.from_wire(order.committed))
        accuracy = NAN
        if act.evaluate:
            accuracy = await learner.run(learner.test, model, whole=False)
        committed = learner.committed
        await learner.run(learner.store.write, committed, model, keeping=committed)
        digest = row_digest(model.row[: learner.layout.mixed])
        session.note(events.Mixed(attempt, turn=act.turn, digest=digest.hex()))
        return self._report(
            act,
            RoundResult(digest, accuracy),
            received=received,
            local_steps=act.local_steps,
            busy=math.inf,  # a turn has no time of its own for mixing
            compute_seconds=compute_seconds,
            exchange_seconds=exchange_seconds,
            train_loss=training.loss,
            update_norm=norm,
            links=links,
            turn=act.turn,
        )

    # --- the steps, in their order ---------------------------------------------------------

    async def _train(
        self,
        key: int,
        steps: int,
        job: Callable[P, TrainingResult],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[TrainingResult, float]:
        """Local steps in the thread, and how many seconds they took; `step_time` becomes that of
        one. key: of the times of an emulated device."""
        started = time.monotonic()
        training = await self._learner.run(job, *args, **kwargs)
        if self._emulates:
            await self._emulate(key, steps, started)
        seconds = time.monotonic() - started if self._emulates else training.seconds
        if steps:
            self.step_time = max(seconds / steps, SHORTEST_STEP)
        return training, seconds

    async def _emulate(self, key: int, steps: int, started: float) -> None:
        """Wait until the emulated device of the experiment's world would be done."""
        prepared = self._learner.prepared
        moment = 0.0 if prepared.world.trace is None else started - self._created
        times = prepared.world.step_times(self._learner.worker, key, steps=steps, time=moment)
        await asyncio.sleep(max(0.0, started + float(times.sum()) - time.monotonic()))

    async def _estimate(self, work: wire.Work) -> Estimate:
        if not work.estimate:
            return Estimate(NAN, NAN, NAN)
        return await self._learner.run(self._learner.estimate, work.round)

    async def _pull_all(
        self, peers: Iterable[wire.PeerAddress], attempt: Attempt, *, until: float, number: int
    ) -> tuple[dict[int, ReceivedModel], dict[int, str]]:
        """The models of all peers at once, and the reasons why others did not come."""
        asked = {peer.worker: peer for peer in peers}
        self._pulling = {
            worker: asyncio.ensure_future(
                self._peers.pull_trained(
                    peer, attempt, incoming=self._incoming, until=until, exchange=number
                )
            )
            for worker, peer in asked.items()
        }
        if self._gone:
            self.stop_waiting_for(self._gone)
        try:
            answers = await asyncio.gather(*self._pulling.values(), return_exceptions=True)
        finally:
            self._pulling = {}
        models: dict[int, ReceivedModel] = {}
        lost: dict[int, str] = {}
        for worker, answer in zip(asked, answers, strict=True):
            if isinstance(answer, asyncio.CancelledError):
                lost[worker] = "gone"
            elif isinstance(answer, PeerLost):
                lost[worker] = answer.reason
            elif isinstance(answer, BaseException):
                raise answer
            else:
                models[worker] = answer
            if worker in lost or asked[worker].name in self._lost_peers:
                self._log_link(asked[worker], lost.get(worker, ""))
        return models, lost

    def _log_link(self, peer: wire.PeerAddress, lost: str) -> None:
        """Log when a link breaks and when it works again, not in every round."""
        facts = {"peer": peer.name, "worker": peer.worker, "address": peer.address}
        if lost and peer.name not in self._lost_peers:
            self._lost_peers.add(peer.name)
            log.warning("peer lost", extra={**facts, "why": lost})
        elif not lost and peer.name in self._lost_peers:
            self._lost_peers.discard(peer.name)
            log.info("peer is back", extra=facts)

    async def _swap(
        self, partner: wire.PeerAddress, attempt: Attempt, *, until: float
    ) -> wire.LinkReport:
        link = wire.LinkReport(worker=partner.worker, distance=NAN)
        try:
            link.distance, transfer = await self._peers.swap(
                partner, attempt, learner=self._learner, patience=until - time.monotonic()
            )
            link.bytes, link.seconds = transfer.bytes, transfer.seconds
        except PeerLost as error:
            link.lost = error.reason
        self._log_link(partner, link.lost)
        return link

    def _weights(
        self, work: wire.Work, mix: _Mix, rows: dict[int, Row], selected: list[int]
    ) -> dict[int, float]:
        """Weights of the received models and of the own one, which gets those of the missing."""
        own = self._learner.worker
        carries = bool(self._learner.rule.mass)
        if work.push_sum != carries:
            raise FedhpError(
                f"round {work.round}: the order has push_sum = {work.push_sum}, but the models of "
                f"this experiment are sent with{'' if carries else 'out'} a weight",
                fix="use the same fedhp and the same own parts on all machines",
            )
        if work.keep:
            return self._learner.equal_weights(selected)
        planned = dict(zip((peer.worker for peer in mix.peers), mix.weights, strict=True))
        weights = {worker: planned[worker] for worker in rows}
        if work.push_sum:
            # What does not come is lost together with its weight; the own share stays as it is.
            return {**weights, own: mix.own_weight}
        missing = sum(weight for worker, weight in planned.items() if worker not in rows)
        # A worker that is alone keeps its bits, even if the weights do not add up to exactly 1.
        weights[own] = mix.own_weight + missing if rows or not planned else 1.0
        return weights

    async def _probe(
        self,
        peers: Iterable[wire.PeerAddress],
        attempt: Attempt,
        links: list[wire.LinkReport],
        *,
        received: float,
        until: float,
    ) -> None:
        """Time links that carry no model and append them to `links`, one by one and during the
        training, while most links are idle: this hardly slows down a model, or another probe."""
        size = self._learner.prepared.experiment.cluster.probe_bytes
        for peer in peers if size else ():
            patience = min(PROBE_SECONDS, until - time.monotonic())
            link = wire.LinkReport(worker=peer.worker, distance=NAN, probe=True)
            if peer.worker in self._gone or patience <= 0:
                link.lost = "gone" if peer.worker in self._gone else LATE
            else:
                try:
                    transfer = await self._peers.probe(peer, attempt, size=size, patience=patience)
                    link.bytes, link.seconds = transfer.bytes, transfer.seconds
                    link.started = transfer.started - received
                except PeerLost as error:
                    link.lost = error.reason
            links.append(link)


@asynccontextmanager
async def _in_background(job: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run a job until the end of the block at most."""
    task = asyncio.ensure_future(job)
    try:
        yield task
    finally:
        task.cancel()


def _middle_of(models: Mapping[str, Row]) -> str:
    """The one that is nearest to the others, all distances together; of two the first."""
    if len(models) < 3:
        return next(iter(models))
    stacked = np.stack([row.astype(np.float64) for row in models.values()])
    far = [float(np.linalg.norm(stacked - row, axis=1).sum()) for row in stacked]
    return list(models)[int(np.argmin(far))]


def _update(group: wire.GroupWork, result: TreeNode) -> GroupUpdate:
    """What the average changes in a shard of one worker."""
    return GroupUpdate(
        rows=[ONLY],
        returning=np.array([group.returning]),
        residuals=result.residual[None],
        root=None if group.HasField("parent") else ONLY,
        change=result.consensus_change,
        wholes={ONLY: result.whole} if group.returning else {},
        root_residual=result.root_residual,
        plain=result.plain,
        factor=group.momentum,
        rate=rate_of(group),
    )


@dataclass(frozen=True, slots=True)
class _Mix:
    """One exchange of an order."""

    peers: Sequence[wire.PeerAddress]
    weights: Sequence[float]
    own_weight: float
    readers: Sequence[str]  # by name


def _mixes_of(work: wire.Work) -> list[_Mix]:
    """The exchanges of an order, one after the other."""
    names = {reader.worker: reader.name for reader in work.readers}
    if not work.exchanges:
        return [_Mix(work.peers, work.weights, work.own_weight, list(names.values()))]
    peers = {peer.worker: peer for peer in work.peers}
    mixes: list[_Mix] = []
    for mix in work.exchanges:
        named = [peers[worker] for worker in mix.peers]
        readers = [names[worker] for worker in mix.readers]
        mixes += [_Mix(named, mix.weights, mix.own_weight, readers)] * mix.times
    return mixes
