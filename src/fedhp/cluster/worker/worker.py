"""A worker of the real network: join, follow orders, send heartbeats, leave.

The event loop serves peers, sends heartbeats and asks for orders; training has its own thread
(learner.py). One order at a time is carried out (rounds.py), as a task that the answer to a
heartbeat can end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio

from fedhp.cluster import events
from fedhp.cluster.history import History, facts_of
from fedhp.cluster.ledger.base import RunStopped
from fedhp.cluster.metrics_server import MetricsServer
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import (
    check_free,
    own_address,
    parse_address,
    parse_listen,
)
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.calls import PEER_SERVICE, ServiceMethods
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.own_setup import setup_of
from fedhp.cluster.protocol.setup import Setup
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import handshake_problem, server_credentials
from fedhp.cluster.worker.coordinator_client import CoordinatorClient, Finder, MustJoin
from fedhp.cluster.worker.data import (
    LocalMeans,
    PrivateData,
    prepare_worker,
    read_private_data,
    received_experiment,
)
from fedhp.cluster.worker.dial_tests import DialTests
from fedhp.cluster.worker.learner import Learner
from fedhp.cluster.worker.metrics import WorkerMetrics, WorkerSnapshot
from fedhp.cluster.worker.model_store import ModelStore, stored_attempts
from fedhp.cluster.worker.peer_client import PeerClient
from fedhp.cluster.worker.peer_server import ModelOffer, PeerService
from fedhp.cluster.worker.rounds import OrderExecutor, RoundProgress
from fedhp.cluster.worker.session import WorkerSession
from fedhp.cluster.worker.tree_node import OpenAverage
from fedhp.errors import ConfigError, FedhpError, Interrupted, RunError, StorageFull, TryAgain
from fedhp.files import (
    PRIVATE_FILE,
    full_disk,
    has_space,
    make_folder,
    storage_errors,
    write_file,
)
from fedhp.learn.group_state import GROUP_STATE
from fedhp.learn.task import initial_model
from fedhp.trust import load_trust

log = logging.getLogger("fedhp.worker")

LEAVE_SECONDS = 1.0  # until leaving without a receipt
FINISH_SECONDS = 5.0  # the same at the end of the run, of which the coordinator keeps count
SPACE_SECONDS = 2.0  # between two looks whether a full disk has space again
SPARE_BYTES = 1_000_000  # for the history and the log, in addition to two models
BEHIND_PAUSE = 0.5  # s until a worker that is behind, or could not catch up, asks again
INCARNATION = "incarnation"  # file with that of the last process
_building = threading.Lock()  # models are drawn from torch's one generator of the process


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is started with."""

    name: str
    coordinator: str  # host:port, or several separated by commas
    certificates: Path
    state: Path  # folder for its models and history
    listen: str = "0.0.0.0:0"
    advertise: str | None = None  # where peers reach it; None: detected
    data: str | None = None  # .npz file with private samples
    data_path: Path | None = None  # where this machine has the experiment's data
    trace: Path | None = None  # the recorded world, with cluster.emulate
    trust: tuple[str, ...] = ()  # modules whose parts the coordinator's experiment may use
    coordinator_name: str | None = None  # in its certificate; None: any valid for that host
    finder: Finder | None = None  # returns the current leader, instead of fixed addresses
    give_up: float | None = None  # s without a coordinator; None: a minute, forever once joined
    metrics: str | None = None  # where to serve them


async def run_worker(
    settings: WorkerSettings,
    *,
    stop: asyncio.Event | None = None,
    on_round: Callable[[RoundProgress], None] = lambda progress: None,
) -> int:
    """Take part until the run is over (returns 0) or `stop` is set (returns 130)."""
    worker = Worker(settings, on_round=on_round)
    running = asyncio.ensure_future(worker.run())
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    why = "it was stopped"
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            return Interrupted.exit_code
        try:
            running.result()
            return 0
        except FedhpError as error:
            why = error.problem
            raise
    finally:
        stopping.cancel()
        await worker.close(running, why=why)


class Worker:
    """One worker, from joining a run to leaving it."""

    def __init__(
        self, settings: WorkerSettings, *, on_round: Callable[[RoundProgress], None]
    ) -> None:
        self._settings = settings
        self._metrics = WorkerMetrics()
        self._on_round = on_round
        identity = load_identity(settings.certificates, settings.name)
        self._private: PrivateData | None = None
        if settings.data is not None:
            self._private = read_private_data(Path(settings.data))
        self._means = LocalMeans(load_trust(settings.trust), settings.data_path, settings.trace)
        parts = (part.strip() for part in settings.coordinator.split(","))
        addresses = [address for address in parts if address]
        for address in addresses:
            parse_address(address, key="--coordinator")
        if not addresses and settings.finder is None:
            raise ConfigError("no coordinator is given", key="--coordinator", allowed="HOST:PORT")
        make_folder(settings.state, option="--state", private=True)
        self._history = History(settings.state, settings.name)
        self._session = WorkerSession(
            identity,
            self._history,
            folder=settings.state,
            after=_last_incarnation(settings.state),
        )
        for module in self._means.trust.modules:
            trusted = events.Trusted(module.name, str(module.file), module.sha256)
            self._session.note(trusted)
        incarnation = str(self._session.envelopes.incarnation)
        with storage_errors(
            settings.state / INCARNATION, option="--state", recovery="start this worker again"
        ):
            write_file(settings.state / INCARNATION, incarnation.encode(), mode=PRIVATE_FILE)
        self._offer = ModelOffer()
        self._average = OpenAverage()
        self._service = PeerService(self._session, self._offer, average=self._average)
        self._peers = PeerClient(self._session)
        self._dial_tests = DialTests(
            lambda address, name: handshake_problem(
                self._session.certificates.current(), address, name=name
            )
        )
        self._coordinator = CoordinatorClient(
            self._session,
            addresses,
            name=settings.coordinator_name,
            finder=settings.finder,
            give_up=settings.give_up,
        )
        self._server: grpc.aio.Server | None = None
        self._metrics_server: MetricsServer | None = None
        self._address = ""
        self._beat_seconds = 1.0
        self._watching: asyncio.Task[None] | None = None  # when certificates expire
        self._beating: asyncio.Task[None] | None = None
        self._learner: Learner | None = None
        self._executor: OrderExecutor | None = None
        self._ordered_at = 0.0  # when the last order came
        self._job: asyncio.Task[None] | None = None
        self._superseded = False  # the job was cancelled because its attempt is over
        self._setup: wire.Setup | None = None  # once it has read its data
        self._setup_sent = False  # in this membership
        self._last_report: tuple[Attempt, wire.RoundReport] | None = None
        self._unsent: tuple[Attempt, wire.RoundReport] | None = None  # goes with the next Next

    async def run(self) -> None:
        """From joining to the last order."""
        if self._settings.metrics is not None:
            self._metrics_server = MetricsServer(
                self._settings.metrics,
                self._metrics.registry,
                lambda: self._metrics.update(self._snapshot()),
            )
            log.info("metrics at port %d", self._metrics_server.port)
        self._watching = asyncio.ensure_future(self._session.expiry.run())
        await self._serve()
        reply = await self._join()
        self._beating = asyncio.ensure_future(self._send_beats())
        learner = await asyncio.to_thread(self._build_learner, reply)
        self._service.learner = self._learner = learner
        executor = OrderExecutor(self._session, learner, self._offer, self._peers, self._average)
        self._executor = executor
        await executor.calibrate()
        try:
            await self._follow_orders(learner, executor)
        except RunStopped as error:  # no coordinator is left to say so
            await self._finish(learner, error.why)

    async def _follow_orders(self, learner: Learner, executor: OrderExecutor) -> None:
        """Orders until the last one."""
        must_join = False
        while True:
            self._session.enter("waiting")
            try:
                if must_join:
                    self._unsent = None  # it counted only for the membership that is over
                    await self._join()
                    must_join = False
                order = await self._next_order(learner, executor)
                if order is not None and await self._execute(order, learner, executor):
                    return
            except MustJoin as error:
                log.warning("no longer a member", extra={"why": str(error)})
                must_join = True
            except StorageFull as error:
                if not must_join:
                    # The others need not wait for it; it catches up as after any absence.
                    why = full_disk(self._settings.state, _needed_bytes(learner))
                    await self._coordinator.leave(why, within=LEAVE_SECONDS)
                must_join = True
                await self._wait_for_space(learner, error)

    async def _wait_for_space(self, learner: Learner, error: StorageFull) -> None:
        """Wait until the disk has space for what this worker stores."""
        self._session.enter("disk full")
        needed = _needed_bytes(learner)
        self._history.note(events.DiskFull(error.problem))
        why = full_disk(self._settings.state, needed)
        log.error("%s: this worker waits for space, then continues (%s)", why, error.problem)
        await asyncio.sleep(SPACE_SECONDS)
        while not has_space(self._settings.state, needed):
            await asyncio.sleep(SPACE_SECONDS)
        log.info("there is space again")

    async def close(self, running: asyncio.Future[None], *, why: str) -> None:
        """End all tasks, leave the run unless it is over, and release everything."""
        helpers = (self._beating, self._watching)
        tasks = [task for task in (running, self._job, *helpers) if task is not None]
        over = running.done() and not running.cancelled() and running.exception() is None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session.run and not over:
            await self._coordinator.leave(why, within=LEAVE_SECONDS)
        await self._dial_tests.close()
        await self._average.open(self._session.attempt, None)
        await self._peers.close()
        await self._coordinator.end()
        if self._server is not None:
            await self._server.stop(grace=None)
        if self._learner is not None:
            self._learner.close()
        self._history.close()
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)

    def _snapshot(self) -> WorkerSnapshot:
        session, executor = self._session, self._executor
        return WorkerSnapshot(
            joined=self._coordinator.joined,
            phase=session.phase,
            epoch=session.guard.epoch,
            round_index=session.attempt.round_index,
            step_seconds=executor.step_time if executor is not None else math.nan,
            silent_seconds=time.monotonic() - self._coordinator.answered,
            sent_bytes=session.sent_bytes,
            received_bytes=session.received_bytes,
            phase_seconds=session.seconds_by_phase(),
            refused=dict(session.refused),
            certificates=session.expiry.seconds_left(),
        )

    # --- joining ---------------------------------------------------------------------------

    async def _serve(self) -> None:
        settings = self._settings
        listen = parse_listen(settings.listen, key="--listen")
        check_free(listen, key="--listen")
        self._server = grpc.aio.server(options=limits.WORKER_LIMITS.options())
        methods = ServiceMethods(self._service, PEER_SERVICE, limits.WORKER_LIMITS)
        self._server.add_generic_rpc_handlers((methods,))
        try:
            port = self._server.add_secure_port(
                settings.listen, server_credentials(self._session.certificates)
            )
        except RuntimeError:
            port = 0
        if not port:
            raise TryAgain(
                f"{settings.listen}: this worker cannot listen there",
                allowed="HOST:PORT of this machine, port 0 for any free one",
                fix="choose another one with --listen",
            )
        await self._server.start()
        first = settings.coordinator.split(",")[0].strip()
        towards = parse_address(first, key="--coordinator") if first else None
        listen = replace(listen, port=port)
        self._address = settings.advertise or str(own_address(listen, towards=towards))

    async def _join(self) -> wire.JoinReply:
        session, learner, executor = self._session, self._learner, self._executor
        stored = learner.store.attempts() if learner else stored_attempts(self._settings.state)
        reply = await self._coordinator.join(
            self._address,
            samples=learner.samples if learner else 0,
            step_time=executor.step_time if executor else 0.0,
            stored=stored,
            setup=self._setup,
        )
        self._setup_sent = self._setup is not None
        if session.run and (reply.run, reply.worker) != (session.run, session.worker):
            raise TryAgain(
                f"the coordinator at {self._coordinator.address} now leads another run: "
                f"{reply.run}",
                fix="start this worker again to take part in it",
            )
        session.guard.run = reply.run
        session.worker = reply.worker
        self._beat_seconds = reply.beat_seconds
        session.note(events.JoinedRun(reply.run, reply.epoch, reply.worker))
        session.enter("joined")
        return reply

    def _build_learner(self, reply: wire.JoinReply) -> Learner:
        experiment = received_experiment(reply.experiment, self._means)
        self._session.workers = experiment.workers
        with _building:
            prepared, shard_spec = prepare_worker(
                experiment, reply.worker, private=self._private, trust=self._means.trust
            )
            setup = setup_of(
                prepared.dataset,
                initial_model(prepared.task, experiment.seed),
                trust=self._means.trust,
                private=self._private is not None,
            )
            store = ModelStore(self._settings.state, reply.run, scaling=prepared.dataset.scaling)
            learner = Learner(prepared, shard_spec, store)
        self._setup = setup.to_wire()
        self._note_data(learner, setup)
        if reply.worker in prepared.attackers:
            log.warning(
                "ATTACK STUDY: this worker attacks the others, as the experiment says",
                extra={"kind": experiment.attack.kind, "scale": experiment.attack.scale},
            )
        stored = store.attempts()
        # An epoch that an earlier process of this worker obeyed binds this one too.
        guard = self._session.guard
        guard.epoch = max(guard.epoch, *(attempt.epoch for attempt in stored))
        if learner.asynchronous:
            learner.advance(stored[-1])  # its model changes all the time: take the last one
        return learner

    def _note_data(self, learner: Learner, setup: Setup) -> None:
        """Say what is trained on, and how it is scaled."""
        own = self._private
        rounded = [
            [float(f"{value:.6g}") for value in part] for part in (setup.mean, setup.deviation)
        ]
        self._session.note(
            events.DataRead(
                learner.samples,
                setup.private,
                file=None if own is None else str(own.path),
                not_used=None if own is None else own.unused,
                mean=rounded[0] if setup.mean else None,
                deviation=rounded[1] if setup.mean else None,
            )
        )

    # --- heartbeats ------------------------------------------------------------------------

    async def _send_beats(self) -> None:
        while True:
            sent = time.monotonic()
            try:
                dialed = self._dial_tests.take()
                reply = await self._coordinator.beat(self._beat_seconds, dialed=dialed)
                self._handle_beat(reply, sent)
            except asyncio.CancelledError:
                # A connection that is closed to try another one cancels its calls.
                if _is_cancelled():
                    raise
            except (grpc.aio.AioRpcError, Refused) as error:
                log.debug("heartbeat not answered", extra={"why": str(error)})
                self._coordinator.cancel_if_silent()
            await asyncio.sleep(max(0.0, sent + self._beat_seconds - time.monotonic()))

    def _handle_beat(self, reply: wire.BeatReply, sent: float) -> None:
        self._session.leader.follower.check_reply(reply.epoch, reply.token)
        self._session.guard.obey(reply.epoch)
        self._session.tickets.barred = frozenset(reply.barred)
        self._session.heard(reply)
        self._dial_tests.start(reply.dial)
        if self._executor is None or sent < self._ordered_at:
            return  # it may be older than the last order
        self._executor.stop_waiting_for(reply.gone)
        synchronous = self._learner is not None and not self._learner.asynchronous
        superseded = synchronous and Attempt.from_wire(reply) > self._session.attempt
        if self._job is not None and (superseded or reply.leave):
            self._superseded = True
            self._job.cancel()

    # --- orders ----------------------------------------------------------------------------

    async def _next_order(self, learner: Learner, executor: OrderExecutor) -> wire.Order | None:
        """The next order; None if it must not be obeyed."""
        surveyed, executor.surveyed = executor.surveyed, []  # they are sent once
        try:
            order = await self._coordinator.next_order(
                learner.store.attempts(),
                step_time=executor.step_time,
                model_bytes=4 * learner.layout.mixed,
                samples=learner.samples,
                surveyed=surveyed,
                report=self._unsent,
                setup=None if self._setup_sent else self._setup,
            )
            self._setup_sent = True
            averages = order.HasField("work") and order.work.HasField("group")
            if order.HasField("work" if learner.asynchronous else "act") or (
                order.HasField("work") and averages != learner.averages_groups
            ):
                raise Refused("kind", "the order is not for the algorithm of this run")
        except Refused as error:
            self._session.note_refusal("coordinator", error, what="order")
            await self._coordinator.try_another()
            return None
        self._ordered_at = time.monotonic()
        if self._unsent is not None and order.HasField("receipt"):
            attempt, receipt = self._unsent[0], order.receipt
            self._session.note(events.ReportAnswered(attempt, receipt.accepted, receipt.why))
            if not receipt.accepted:
                log.warning("report not counted", extra={"why": receipt.why, **attempt.to_facts()})
        self._unsent = None
        return order

    async def _execute(self, order: wire.Order, learner: Learner, executor: OrderExecutor) -> bool:
        """Carry out an order; whether it was the last."""
        kind = order.WhichOneof("what")
        attempt, committed = Attempt.from_order(order), Attempt.from_wire(order.committed)
        self._session.note(events.Ordered(str(kind), attempt))
        up_to_date, before = True, learner.committed
        if not learner.asynchronous:
            if learner.averages_groups and order.HasField("own"):
                committed = Attempt.from_wire(order.own)
                learner.kept = tuple(map(Attempt.from_wire, order.keep))
            up_to_date = learner.advance(committed)
            if learner.committed != before:
                self._session.note(events.Advanced(committed))
        if kind == "finished":
            await self._finish(learner, order.finished.why)
            if order.finished.removed:
                raise RunError(
                    f"this worker was removed from the run: {order.finished.why}",
                    fix=f"fedhp cluster allow {self._session.name}, or put it on the allow-list; "
                    "then start this worker again",
                )
            await self._coordinator.say_finished(order.finished.why, within=FINISH_SECONDS)
            return True
        if kind == "catch_up":
            if not await executor.catch_up(order):
                await asyncio.sleep(BEHIND_PAUSE)
        elif kind == "survey":
            await executor.survey(order, received=self._ordered_at)
        elif kind in ("work", "act") and not up_to_date:
            log.warning("behind", extra=committed.to_facts())
            await asyncio.sleep(BEHIND_PAUSE)
        elif kind in ("work", "act"):
            await self._peers.close_unused()
            self._session.attempt, self._superseded = attempt, False
            self._session.enter("planned")
            self._job = asyncio.ensure_future(self._work_and_report(order, attempt, executor))
            try:
                await self._job
            except asyncio.CancelledError:
                if not self._superseded or _is_cancelled():  # the worker itself is to end
                    self._job.cancel()
                    raise
                log.warning("superseded", extra=attempt.to_facts())
            finally:
                self._job = None
        return False

    async def _work_and_report(
        self, order: wire.Order, attempt: Attempt, executor: OrderExecutor
    ) -> None:
        """One attempt or turn and its report."""
        if not order.HasField("work"):
            report = await executor.act(order, received=self._ordered_at)
        elif self._last_report is not None and self._last_report[0] == attempt:
            report = self._last_report[1]  # the receipt was lost: report again, do not work again
        else:
            report = await executor.work(order, received=self._ordered_at)
            self._last_report = (attempt, report)
        self._history.flush()  # what was done is written down before others know of it
        self._session.enter("reporting")
        self._unsent = (attempt, report)
        if executor.last_round is not None:
            if self._metrics_server is not None:
                self._metrics.round_ended(executor.last_round)
            self._on_round(executor.last_round)

    async def _finish(self, learner: Learner, why: str) -> None:
        while True:
            try:
                path = learner.store.write_final(learner.committed, learner.tensors())
                break
            except StorageFull as error:
                await self._wait_for_space(learner, error)
        finished = events.WorkerFinished(why, learner.committed)
        log.info("finished", extra={**facts_of(finished), "model": str(path)})
        self._history.note(finished)


def _needed_bytes(learner: Learner) -> int:
    """On the disk, for a round: two models, with group averages four, and some more."""
    rows = 2 * (1 + len(GROUP_STATE)) if learner.averages_groups else 1
    return 8 * rows * learner.layout.width + SPARE_BYTES


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _last_incarnation(state: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return max(0, int((state / INCARNATION).read_text(encoding="ascii")))
    return 0
