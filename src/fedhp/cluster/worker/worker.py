"""A worker of the real network: join, follow orders, beat, leave. Algorithm 1 at one machine.

The event loop serves peers, beats and polls; training has a thread of its own (learner.py). One
order is carried out at a time (work.py), as a task that a beat's answer can end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from fedhp.cluster.history import History
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import HostPort, parse_address, parse_listen
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.services import OPTIONS, handler
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import server_credentials
from fedhp.cluster.worker.coordinator_client import GIVE_UP, Finder, MustJoin, Uplink
from fedhp.cluster.worker.data import OwnData, experiment_of, read_own, share_of
from fedhp.cluster.worker.learner import Learner
from fedhp.cluster.worker.model_offer import ModelOffer
from fedhp.cluster.worker.model_store import ModelStore, last_stands
from fedhp.cluster.worker.peer_client import Pulls
from fedhp.cluster.worker.peer_server import PeerService
from fedhp.cluster.worker.rounds import OrderExecutor, RoundLine
from fedhp.cluster.worker.session import WorkerSession
from fedhp.errors import ConfigError, FedhpError, Interrupted, RunError
from fedhp.files import make_folder, write_file

log = logging.getLogger("fedhp.worker")

LEAVE_SECONDS = 1.0  # for the goodbye
BEHIND_PAUSE = 0.5  # s until a worker that is behind, or could not catch up, asks again
INCARNATION = "incarnation"  # file: of the last process
_building = threading.Lock()  # models are drawn from torch's one generator of the process


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is started with."""

    name: str
    coordinator: str  # host:port, or several separated by commas
    certificates: Path
    state: Path  # folder of its own: models and history
    listen: str = "0.0.0.0:0"
    advertise: str | None = None  # where peers reach it; none: found out
    data: str | None = None  # .npz file of its own
    coordinator_name: str | None = None  # none: whoever may serve that host
    finder: Finder | None = None  # who coordinates now, instead of fixed addresses
    give_up: float = GIVE_UP


async def run_worker(
    settings: WorkerSettings,
    *,
    stop: asyncio.Event | None = None,
    on_round: Callable[[RoundLine], None] = lambda line: None,
) -> int:
    """Take part until the run is over (0) or `stop` is set (130)."""
    worker = Worker(settings, on_round=on_round)
    living = asyncio.ensure_future(worker.live())
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    why = "it was stopped"
    try:
        await asyncio.wait([living, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not living.done():
            return Interrupted.exit_code
        try:
            living.result()
            return 0
        except FedhpError as error:
            why = error.problem
            raise
    finally:
        stopping.cancel()
        await worker.close(living, why=why)


class Worker:
    """One worker's life."""

    def __init__(self, settings: WorkerSettings, *, on_round: Callable[[RoundLine], None]) -> None:
        self._settings = settings
        self._on_round = on_round
        identity = load_identity(settings.certificates, settings.name)
        self._own: OwnData | None = None if settings.data is None else read_own(Path(settings.data))
        addresses = [each.strip() for each in settings.coordinator.split(",") if each.strip()]
        for address in addresses:
            parse_address(address, key="--coordinator")
        if not addresses and settings.finder is None:
            raise ConfigError("it names no coordinator", key="--coordinator", allowed="HOST:PORT")
        make_folder(settings.state, option="--state")
        self._history = History(settings.state, settings.name)
        self.member = WorkerSession(
            identity, self._history, after=_last_incarnation(settings.state)
        )
        write_file(settings.state / INCARNATION, str(self.member.envelopes.incarnation).encode())
        self._shelf = ModelOffer()
        self._service = PeerService(self.member, self._shelf)
        self._pulls = Pulls(self.member, self._shelf)
        self._uplink = Uplink(
            self.member,
            addresses,
            name=settings.coordinator_name,
            finder=settings.finder,
            give_up=settings.give_up,
        )
        self._server: grpc.aio.Server | None = None
        self._address = ""
        self._beat_seconds = 1.0
        self._beating: asyncio.Task[None] | None = None
        self.learner: Learner | None = None
        self._labor: OrderExecutor | None = None
        self._ordered = 0.0  # when the last order came
        self._job: asyncio.Task[None] | None = None
        self._overtaken = False  # the job was ended because its attempt is over
        self._told: tuple[Attempt, wire.RoundReport] | None = None

    async def live(self) -> None:
        """From the first word to the last order."""
        await self._serve()
        reply = await self._join()
        self._beating = asyncio.ensure_future(self._beat())
        learner = await asyncio.to_thread(self._learn, reply)
        self._service.learner = self.learner = learner
        self._labor = labor = OrderExecutor(self.member, learner, self._shelf, self._pulls)
        await labor.calibrate()
        while True:
            self.member.enter("waiting")
            order = await self._order(learner, labor)
            if order is None:
                continue
            try:
                if await self._obey(order, learner, labor):
                    return
            except MustJoin as error:
                await self._join_again(str(error))

    async def close(self, living: asyncio.Future[None], *, why: str) -> None:
        """Say goodbye and let everything go."""
        tasks = [task for task in (living, self._job, self._beating) if task is not None]
        over = living.done() and not living.cancelled() and living.exception() is None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.member.run and not over:
            await self._uplink.leave(why, within=LEAVE_SECONDS)
        await self._pulls.close()
        await self._uplink.close()
        if self._server is not None:
            await self._server.stop(grace=None)
        if self.learner is not None:
            self.learner.close()
        self._history.close()

    # --- joining ---------------------------------------------------------------------------

    async def _serve(self) -> None:
        settings = self._settings
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((handler("Peer", self._service),))
        try:
            port = self._server.add_secure_port(
                settings.listen, server_credentials(self.member.identity)
            )
        except RuntimeError:
            port = 0
        if not port:
            raise RunError(
                f"{settings.listen}: this worker cannot listen there",
                allowed="HOST:PORT of this machine, port 0 for any free one",
                fix="choose another one with --listen",
            )
        await self._server.start()
        self._address = settings.advertise or _reachable(settings, port)

    async def _join(self) -> wire.JoinReply:
        learner, labor = self.learner, self._labor
        stands = learner.keep.stands() if learner else last_stands(self._settings.state)[1]
        reply = await self._uplink.join(
            self._address,
            samples=learner.samples if learner else 0,
            step_time=labor.step_time if labor else 0.0,
            stands=stands,
        )
        if self.member.run and (reply.run, reply.worker) != (self.member.run, self.member.worker):
            raise RunError(
                f"the coordinator at {self._uplink.address} leads another run now: {reply.run}",
                fix="start this worker again to take part in it",
            )
        self.member.guard.run = reply.run
        self.member.worker = reply.worker
        self._beat_seconds = reply.beat_seconds
        self.member.note("join", {"run": reply.run, "epoch": reply.epoch, "worker": reply.worker})
        self.member.enter("joined")
        return reply

    async def _join_again(self, why: str) -> None:
        log.warning("not a member any more", extra={"why": why})
        await self._join()

    def _learn(self, reply: wire.JoinReply) -> Learner:
        experiment = experiment_of(reply.experiment)
        self.member.workers = experiment.workers
        with _building:
            prepared, holding = share_of(experiment, reply.worker, own=self._own)
            learner = Learner(prepared, holding, ModelStore(self._settings.state, reply.run))
        stands = learner.keep.stands()
        # An epoch that an earlier process of this worker obeyed binds this one too.
        self.member.guard.epoch = max(self.member.guard.epoch, *(each.epoch for each in stands))
        if learner.asynchronous:
            learner.advance(stands[-1])  # a model that moves all the time: the last one it had
        return learner

    # --- beats -----------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            sent = time.monotonic()
            try:
                self._hear(await self._uplink.beat(self._beat_seconds), sent)
            except asyncio.CancelledError:
                # A connection that was closed to try another one cancels its calls.
                if _is_cancelled():
                    raise
            except (grpc.aio.AioRpcError, Refused) as error:
                log.debug("beat not heard", extra={"why": str(error)})
                self._uplink.break_silence()
            await asyncio.sleep(max(0.0, sent + self._beat_seconds - time.monotonic()))

    def _hear(self, reply: wire.BeatReply, sent: float) -> None:
        self.member.guard.obey(reply.epoch)
        if self._labor is None or sent < self._ordered:
            return  # it was said before the last order
        self._labor.give_up(reply.gone)
        now = Attempt.from_envelope(reply)
        synchronous = self.learner is not None and not self.learner.asynchronous
        if self._job is not None and synchronous and now > self.member.attempt:
            self._overtaken = True
            self._job.cancel()

    # --- orders ----------------------------------------------------------------------------

    async def _order(self, learner: Learner, labor: OrderExecutor) -> wire.Order | None:
        """The next order, if it is one to obey."""
        try:
            order = await self._uplink.next_order(
                learner.keep.stands(),
                step_time=labor.step_time,
                model_bytes=4 * learner.layout.mixed,
                samples=learner.samples,
                surveyed=labor.tell_survey(),
            )
            if order.HasField("work" if learner.asynchronous else "act"):
                raise Refused("kind", "the order is not for the algorithm of this run")
        except Refused as error:
            self.member.refused("coordinator", error, what="order")
            await self._uplink.distrust()
            return None
        except MustJoin as error:
            await self._join_again(str(error))
            return None
        self._ordered = time.monotonic()
        return order

    async def _obey(self, order: wire.Order, learner: Learner, labor: OrderExecutor) -> bool:
        """Carry an order out; whether it was the last."""
        kind = order.WhichOneof("what")
        stand, before = Attempt.from_wire(order.committed), learner.stand
        attempt = Attempt.from_order(order)
        self.member.note("order", {"kind": kind, **attempt.to_facts()})
        if learner.asynchronous:
            standing = True
        else:
            standing = learner.advance(stand)
            if learner.stand != before:
                self.member.note("advanced", stand.to_facts())
        if kind == "finished":
            self._finish(learner, order.finished.why)
            return True
        if kind == "catch_up":
            if not await labor.catch_up(order):
                await asyncio.sleep(BEHIND_PAUSE)
        elif kind == "survey":
            await labor.survey(order.survey, received=self._ordered)
        elif kind in ("work", "act") and not standing:
            log.warning("behind", extra=stand.to_facts())
            await asyncio.sleep(BEHIND_PAUSE)
        elif kind in ("work", "act"):
            await self._carry_out(order, attempt, labor)
        return False

    async def _carry_out(self, order: wire.Order, attempt: Attempt, labor: OrderExecutor) -> None:
        """One attempt or turn and its report, unless it is overtaken."""
        self.member.attempt, self._overtaken = attempt, False
        self.member.enter("planned")
        self._job = asyncio.ensure_future(self._job_of(order, attempt, labor))
        try:
            await self._job
        except asyncio.CancelledError:
            if not self._overtaken or _is_cancelled():  # the worker itself is to end
                self._job.cancel()
                raise
            log.warning("overtaken", extra=attempt.to_facts())
        finally:
            self._job = None

    async def _job_of(self, order: wire.Order, attempt: Attempt, labor: OrderExecutor) -> None:
        synchronous = order.HasField("work")
        if synchronous and self._told is not None and self._told[0] == attempt:
            report = self._told[1]  # its receipt was lost: the same again, not the work
        elif synchronous:
            report = await labor.work(order, received=self._ordered)
            self._told = (attempt, report)
        else:
            report = await labor.act(order, received=self._ordered)
        self.member.enter("reporting")
        receipt = await self._uplink.report(report, attempt)
        self.member.note(
            "reported", {**attempt.to_facts(), "accepted": receipt.accepted, "why": receipt.why}
        )
        if not receipt.accepted:
            log.warning("report not counted", extra={"why": receipt.why, **attempt.to_facts()})
        if labor.last is not None:
            self._on_round(labor.last)

    def _finish(self, learner: Learner, why: str) -> None:
        path = learner.keep.finish(learner.stand, learner.tensors())
        log.info("finished", extra={"why": why, "model": str(path), **learner.stand.to_facts()})
        self.member.history.note("finished", {"why": why, **learner.stand.to_facts()})


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _last_incarnation(state: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return max(0, int((state / INCARNATION).read_text(encoding="ascii")))
    return 0


def _reachable(settings: WorkerSettings, port: int) -> str:
    """Where peers reach this worker: the host it listens on, or that of the coordinator's side."""
    listen = parse_listen(settings.listen, key="--listen")
    if not listen.everywhere:
        return str(HostPort(listen.host, port))
    first = settings.coordinator.split(",")[0].strip()
    own = socket.gethostname()
    if first:
        target = parse_address(first, key="--coordinator")
        with contextlib.suppress(OSError):
            family, kind, protocol, _, place = socket.getaddrinfo(
                target.host, target.port, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(place)  # a datagram socket sends nothing here
                own = str(probe.getsockname()[0])
    return str(HostPort(own, port))
