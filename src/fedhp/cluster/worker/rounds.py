"""What a worker does with an order: one attempt at a round (Algorithm 1), a turn, a catch-up.

Nothing here touches the committed model before a later order says that the attempt counts: an
attempt can be given up at any instant, by cancelling its task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import BadModel
from fedhp.cluster.protocol.compression import Incoming, Outgoing, Row
from fedhp.cluster.worker.learner import Estimated, Learner, Trained
from fedhp.cluster.worker.model_offer import ModelOffer
from fedhp.cluster.worker.model_store import Kept
from fedhp.cluster.worker.peer_client import Lost, PeerPlace, Pulled, Pulls, link_reports
from fedhp.cluster.worker.session import WorkerSession, log
from fedhp.engine.executor import Turn
from fedhp.errors import Diverged

NAN = float("nan")
PROBE_SECONDS = 5.0  # until a probe is given up
PROBE_GRACE = 1.0  # s that a report waits for probes at most
CATCH_UP_SECONDS = 600.0  # until a peer is given up that has the committed model
SHORTEST_STEP = 1e-9  # s; a clock may not see a step pass
PULL_TRIES, RETRY_SECONDS = 2, 0.3  # of a peer that could not be reached


@dataclass(frozen=True, slots=True)
class RoundLine:
    """One round as the console tells it."""

    round_index: int
    local_steps: int
    seconds: float
    accuracy: float  # NaN: not tested
    lost: int  # neighbors whose model did not come


class OrderExecutor:
    """Carries out orders with one learner."""

    def __init__(
        self, member: WorkerSession, learner: Learner, shelf: ModelOffer, pulls: Pulls
    ) -> None:
        self._member = member
        self._learner = learner
        self._shelf = shelf
        self._pulls = pulls
        cluster = learner.prepared.experiment.cluster
        self._outgoing = Outgoing(
            learner.codec, compression=cluster.compression, share=cluster.topk_share
        )
        self._incoming = Incoming(learner.codec, compression=cluster.compression)
        self._born = time.monotonic()
        self.gone: frozenset[int] = frozenset()
        self._waiting: dict[int, asyncio.Task[Pulled | Lost]] = {}
        self._surveyed: list[wire.LinkReport] = []
        self.step_time = 0.0
        self.last: RoundLine | None = None

    def give_up(self, gone: Collection[int]) -> None:
        """Nobody should wait for these workers."""
        self.gone = frozenset(gone)
        for worker in self.gone & self._waiting.keys():
            self._waiting[worker].cancel()

    async def calibrate(self) -> None:
        """Time one local step."""
        seconds = await self._learner.run(self._learner.calibrate)
        if self._learner.prepared.experiment.cluster.emulate:
            started = time.monotonic() - seconds
            await self._emulate(0, 1, started)
            seconds = time.monotonic() - started
        self.step_time = max(seconds, SHORTEST_STEP)

    async def survey(self, survey: wire.Survey, *, received: float) -> None:
        """Time links before the first round; `tell_survey` has what was found."""
        self._member.enter("surveying")
        self._surveyed, found = [], list[wire.LinkReport]()
        await self._probe(survey.peers, found, received=received, until=received + survey.deadline)
        self._surveyed = found

    def tell_survey(self) -> list[wire.LinkReport]:
        """What the last survey found, once."""
        found, self._surveyed = self._surveyed, []
        return found

    # --- a synchronous round ---------------------------------------------------------------

    async def work(self, order: wire.Order, *, received: float) -> wire.RoundReport:
        """Train, exchange, mix, test, keep: the report. The model is not the worker's yet.

        Links that carry no model are timed meanwhile; the report hardly waits for that.
        """
        work, probes = order.work, list[wire.LinkReport]()
        probing = asyncio.ensure_future(
            self._probe(work.probes, probes, received=received, until=received + work.deadline)
        )
        try:
            report = await self._round(order, received=received)
            await asyncio.wait({probing}, timeout=PROBE_GRACE)
        finally:
            probing.cancel()
        report.links.extend(probes)
        return report

    async def _round(self, order: wire.Order, *, received: float) -> wire.RoundReport:
        member, learner, work = self._member, self._learner, order.work
        attempt = Attempt.from_order(order)
        self.gone = frozenset()
        await self._shelf.open(attempt, [reader.name for reader in work.readers])
        member.enter("training")
        trained, compute = await self._train(work)
        member.note(
            "trained", {**attempt.to_facts(), "steps": work.local_steps, "seconds": compute}
        )
        member.enter("sending")
        await self._offer(trained.row, work)
        await self._shelf.put(attempt, self._outgoing)
        estimating = asyncio.ensure_future(self._estimate(work))
        try:
            started = time.monotonic()
            member.enter("receiving")
            peers = [PeerPlace.of(peer) for peer in work.peers]
            pulled, lost = await self._exchange(
                peers, attempt, until=received + work.exchange_deadline
            )
            exchange = time.monotonic() - started
            estimated = await estimating
        finally:
            estimating.cancel()
        member.enter("mixing")
        rows = {worker: each.row for worker, each in pulled.items()}
        selected = await self._score(work, rows)
        weights = self._weights(work, rows, selected)
        mixed = await learner.run(partial(learner.mix, rows, weights))
        accuracy, whole = await self._test(mixed.model, work.evaluate, work.whole_test)
        await learner.run(partial(learner.write, attempt, mixed.model))
        member.note("mixed", {**attempt.to_facts(), "digest": mixed.digest.hex()})
        links = link_reports(peers, pulled, lost, mixed.distances, received=received)
        took = time.monotonic() - received
        self.last = RoundLine(work.round, work.local_steps, took, accuracy, len(lost))
        return wire.RoundReport(
            step_time=self.step_time,
            compute_seconds=compute,
            exchange_seconds=exchange,
            other_seconds=max(0.0, took - compute - exchange),
            train_loss=trained.loss,
            update_norm=trained.update_norm,
            smoothness=estimated.smoothness,
            gradient_variance=estimated.gradient_variance,
            start_loss=estimated.start_loss,
            links=links,
            selected=selected,
            accuracy=accuracy,
            whole_accuracy=whole,
            images=learner.prepared.test_images if work.evaluate else 0,
            digest=mixed.digest,
        )

    async def catch_up(self, order: wire.Order) -> bool:
        """Take the committed model from the first peer that has it; whether one did."""
        learner, member = self._learner, self._member
        stand = Attempt.from_wire(order.committed)
        member.enter("catching up")
        for peer in map(PeerPlace.of, order.catch_up.peers):
            try:
                pulled = await self._pulls.committed(
                    peer, stand, learner=learner, patience=CATCH_UP_SECONDS
                )
            except Lost as error:
                log.warning("peer lost", extra={"peer": peer.name, "why": error.reason})
                continue
            model = learner.caught_up(pulled.row)
            await learner.run(partial(learner.keep.write, stand, model, beside=stand))
            learner.take(stand, model)
            member.note("caught_up", {**stand.to_facts(), "peer": peer.name})
            return True
        return False

    # --- a turn of an asynchronous algorithm -----------------------------------------------

    async def act(self, order: wire.Order, *, received: float) -> wire.RoundReport:
        """Snapshot, train, add the change to the current model, swap with the partner."""
        member, learner, act = self._member, self._learner, order.act
        attempt, until = member.attempt, received + act.deadline
        learner.snapshot()
        member.enter("training")
        started = time.monotonic()
        turn = Turn(act.turn + 1, act.local_steps, act.learning_rate)  # as the simulation counts
        trained = await learner.run(partial(learner.train_turn, turn))
        await self._emulate(turn.key, act.local_steps, started)
        compute = self._timed(act.local_steps, started, trained)
        norm = learner.apply(trained.loss, round_index=act.round, learning_rate=act.learning_rate)
        member.note("trained", {**attempt.to_facts(), "turn": act.turn, "steps": act.local_steps})
        links: list[wire.LinkReport] = []
        started = time.monotonic()
        if act.HasField("partner"):
            member.enter("receiving")
            links.append(await self._swap(PeerPlace.of(act.partner), attempt, until=until))
        exchange = time.monotonic() - started
        member.enter("mixing")
        model = learner.label(Attempt.from_wire(order.committed))
        accuracy, _ = await self._test(model, act.evaluate, False)
        await learner.run(partial(learner.write, learner.stand, model))
        digest = learner.digest(model.row)
        member.note("mixed", {**attempt.to_facts(), "turn": act.turn, "digest": digest.hex()})
        self.last = RoundLine(
            act.round,
            act.local_steps,
            time.monotonic() - received,
            accuracy,
            sum(bool(link.lost) for link in links),
        )
        return wire.RoundReport(
            step_time=self.step_time,
            compute_seconds=compute,
            exchange_seconds=exchange,
            train_loss=trained.loss,
            update_norm=norm,
            smoothness=NAN,
            gradient_variance=NAN,
            start_loss=NAN,
            links=links,
            accuracy=accuracy,
            whole_accuracy=NAN,
            images=learner.prepared.test_images if act.evaluate else 0,
            digest=digest,
            turn=act.turn,
        )

    # --- inside ----------------------------------------------------------------------------

    async def _train(self, work: wire.Work) -> tuple[Trained, float]:
        started = time.monotonic()
        trained = await self._learner.run(
            partial(
                self._learner.train,
                work.local_steps,
                round_index=work.round,
                learning_rate=work.learning_rate,
            )
        )
        await self._emulate(work.round, work.local_steps, started)
        return trained, self._timed(work.local_steps, started, trained)

    def _timed(self, steps: int, started: float, trained: Trained) -> float:
        """Seconds of the steps, and from them those of one step."""
        emulated = self._learner.prepared.experiment.cluster.emulate
        seconds = time.monotonic() - started if emulated else trained.seconds
        self.step_time = max(seconds / steps, SHORTEST_STEP)
        return seconds

    async def _emulate(self, key: int, steps: int, started: float) -> None:
        """Let as much time pass as the machine of the experiment's world would take."""
        prepared = self._learner.prepared
        if not prepared.experiment.cluster.emulate:
            return
        moment = 0.0 if prepared.world.trace is None else started - self._born
        times = prepared.world.step_times(self._learner.worker, key, steps=steps, time=moment)
        await asyncio.sleep(max(0.0, started + float(times.sum()) - time.monotonic()))

    async def _offer(self, row: Row, work: wire.Work) -> None:
        try:
            await asyncio.to_thread(self._outgoing.offer, row)
        except BadModel:  # a buffer, since loss and update are finite
            raise Diverged(
                f"round {work.round}: the model of this worker is not finite any more",
                fix=f"lower training.learning_rate (it was {work.learning_rate:g} in this round)",
            ) from None

    async def _estimate(self, work: wire.Work) -> Estimated:
        if not work.estimate:
            return Estimated()
        return await self._learner.run(partial(self._learner.estimate, work.round))

    async def _exchange(
        self, peers: list[PeerPlace], attempt: Attempt, *, until: float
    ) -> tuple[dict[int, Pulled], dict[int, str]]:
        """The models of all peers at once; those that did not come, with the reason."""
        self._waiting = {
            peer.worker: asyncio.ensure_future(self._pull(peer, attempt, until=until))
            for peer in peers
        }
        self.give_up(self.gone)
        try:
            if self._waiting:
                await asyncio.wait(self._waiting.values())
            tasks = dict(self._waiting)
        finally:
            for task in self._waiting.values():
                task.cancel()
            self._waiting = {}
        pulled: dict[int, Pulled] = {}
        lost: dict[int, str] = {}
        for worker, task in tasks.items():
            found = Lost("gone") if task.cancelled() else task.result()
            if isinstance(found, Lost):
                lost[worker] = found.reason
            else:
                pulled[worker] = found
        for worker, why in lost.items():
            log.warning("peer lost", extra={"worker": worker, "why": why})
        return pulled, lost

    async def _pull(self, peer: PeerPlace, attempt: Attempt, *, until: float) -> Pulled | Lost:
        tries = 0
        while True:
            tries += 1
            try:
                return await self._pulls.trained(
                    peer, attempt, incoming=self._incoming, patience=until - time.monotonic()
                )
            except Lost as error:
                late = time.monotonic() + RETRY_SECONDS >= until
                if error.reason != "unreachable" or tries == PULL_TRIES or late:
                    return error
            await asyncio.sleep(RETRY_SECONDS)

    async def _score(self, work: wire.Work, rows: dict[int, Row]) -> list[int]:
        if not work.keep:
            return []
        return await self._learner.run(
            partial(
                self._learner.score,
                rows,
                keep=work.keep,
                samples=work.samples,
                round_index=work.round,
            )
        )

    def _weights(
        self, work: wire.Work, rows: dict[int, Row], selected: list[int]
    ) -> dict[int, float]:
        """Of the models that are here and the own one, which has the weight of the missing."""
        own = self._learner.worker
        if work.keep:
            return self._learner.equal_weights(selected)
        planned = dict(zip((peer.worker for peer in work.peers), work.weights, strict=True))
        weights = {worker: planned[worker] for worker in rows}
        missing = sum(weight for worker, weight in planned.items() if worker not in rows)
        # Alone it keeps its bits, whatever the sum of the weights was rounded to.
        weights[own] = work.own_weight + missing if rows or not planned else 1.0
        return weights

    async def _test(self, model: Kept, part: bool, whole: bool) -> tuple[float, float]:
        found = []
        for wanted, all_samples in ((part, False), (whole, True)):
            test = partial(self._learner.test, model, whole=all_samples)
            found.append(await self._learner.run(test) if wanted else NAN)
        return found[0], found[1]

    async def _probe(
        self,
        probes: Iterable[wire.PeerAddress],
        found: list[wire.LinkReport],
        *,
        received: float,
        until: float,
    ) -> None:
        """Time links that carry no model, one by one and beside the training, while most links
        are idle: so they hardly slow down a model, and not each other."""
        size = self._learner.prepared.experiment.cluster.probe_bytes
        for peer in map(PeerPlace.of, probes) if size else ():
            patience = min(PROBE_SECONDS, until - time.monotonic())
            link = wire.LinkReport(worker=peer.worker, distance=NAN, probe=True)
            if peer.worker in self.gone or patience <= 0:
                link.lost = "gone" if peer.worker in self.gone else "deadline"
            else:
                try:
                    took = await self._pulls.probe(peer, size, patience=patience)
                    link.bytes, link.seconds = took.bytes, took.seconds
                    link.started = took.started - received
                except Lost as error:
                    link.lost = error.reason
            found.append(link)

    async def _swap(self, partner: PeerPlace, attempt: Attempt, *, until: float) -> wire.LinkReport:
        link = wire.LinkReport(worker=partner.worker, distance=NAN)
        try:
            link.distance, link.bytes, link.seconds = await self._pulls.swap(
                partner, attempt, learner=self._learner, patience=until - time.monotonic()
            )
        except Lost as error:
            link.lost = error.reason
            log.warning("peer lost", extra={"worker": partner.worker, "why": error.reason})
        return link
