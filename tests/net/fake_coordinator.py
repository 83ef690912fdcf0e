"""A scripted coordinator with real gRPC and TLS: tests put in orders and take out reports."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.leader_proof import prove
from fedhp.cluster.security.tls import peer_of, server_credentials
from fedhp.config import Experiment, to_tables
from fedhp.exchange import NeighborMixing
from fedhp.graph import mixing_weights
from net.servicers import add_service

RUN = "0123456789abcdef" * 2
SOON = 20.0  # s; nothing in these tests takes longer
BEAT = 0.05  # s between two heartbeats of a worker


class FakeCoordinator:
    """Answers Next with the orders of the test; records everything that workers send."""

    def __init__(
        self, experiment: Experiment, certificates: Path, *, epoch: int = 1, name: str = "boss"
    ) -> None:
        self.experiment = experiment
        self.name = name  # whose certificate it shows
        self.epoch = epoch
        self.certificates = certificates
        self.addresses: dict[str, str] = {}
        self.joins: list[wire.JoinRequest] = []
        self.stored: dict[str, list[Attempt]] = {}  # whose models a worker has, from its last Next
        self.phases: dict[str, set[str]] = defaultdict(set)
        self.left: dict[str, str] = {}
        self.finished: set[str] = set()  # who said that it carried out its last order
        self.asked: dict[str, int] = defaultdict(int)  # how often for an order
        self.beats: dict[str, int] = defaultdict(int)  # heartbeats that were answered
        self._awake = asyncio.Event()  # not set: no heartbeat is answered
        self._awake.set()
        self.surveyed: dict[str, list[wire.LinkReport]] = defaultdict(list)
        self.beat = INITIAL
        self.gone: list[int] = []
        self.leave = False  # workers should give up what they do
        self.receipt: Callable[[wire.RoundReport], wire.Receipt] = lambda report: wire.Receipt(
            accepted=True
        )
        self._orders: dict[str, asyncio.Queue[wire.Order]] = defaultdict(asyncio.Queue)
        self._reports: dict[str, asyncio.Queue[wire.RoundReport]] = defaultdict(asyncio.Queue)
        self._changed = asyncio.Condition()
        self.address = ""

    async def __aenter__(self) -> Self:
        import grpc.aio  # after fedhp.cluster, which tells it to speak TLS 1.3 alone

        self._server = grpc.aio.server(options=limits.CONNECTION_OPTIONS)
        add_service(self._server, self)
        self.identity = identity = load_identity(self.certificates, self.name)
        port = self._server.add_secure_port("127.0.0.1:0", server_credentials(identity))
        await self._server.start()
        self.address = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._server.stop(grace=None)

    # --- for tests -------------------------------------------------------------------------

    def order(self, worker: int, order: wire.Order) -> None:
        """The worker's next order."""
        self._orders[f"w{worker}"].put_nowait(order)

    async def report(self, worker: int) -> wire.RoundReport:
        """The worker's next report."""
        return await asyncio.wait_for(self._reports[f"w{worker}"].get(), SOON)

    async def until(self, condition: Callable[[], bool], *, within: float = SOON) -> None:
        """Wait for a condition that the call of a worker makes true."""
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(condition)

    async def answer_beats(self, worker: int, times: int) -> None:
        """Wait until so many more heartbeats of a worker are answered."""
        name = f"w{worker}"
        goal = self.beats[name] + times
        await self.until(lambda: self.beats[name] >= goal)

    def freeze(self) -> None:
        """Answer no heartbeat from now on."""
        self._awake.clear()

    def wake(self) -> None:
        """Answer heartbeats again."""
        self._awake.set()

    def peer(self, worker: int) -> wire.PeerAddress:
        """The address of a worker; before it has joined, one where nobody listens."""
        name = f"w{worker}"
        address = self.addresses.get(name, "127.0.0.1:1")
        return wire.PeerAddress(worker=worker, name=name, address=address)

    def work(
        self,
        worker: int,
        *,
        peers: Sequence[int],
        weights: Sequence[float],
        own_weight: float,
        readers: Sequence[int],
        committed: Attempt,
        attempt: Attempt,
        changes: dict[str, Any] | None = None,
    ) -> wire.Order:
        """An order to work."""
        work = wire.Work(
            round=attempt.round_index,
            attempt=attempt.number,
            local_steps=3,
            learning_rate=0.1,
            evaluate=True,
            peers=[self.peer(peer) for peer in peers],
            weights=weights,
            own_weight=own_weight,
            readers=[self.peer(reader) for reader in readers],
            deadline=SOON,
            exchange_deadline=SOON,
        )
        for key, value in (changes or {}).items():
            setattr(work, key, value)
        return wire.Order(epoch=attempt.epoch, committed=committed.to_wire(), work=work)

    def mixing(
        self,
        exchange: NeighborMixing,
        *,
        committed: Attempt,
        attempt: Attempt,
        changes: dict[str, Any] | None = None,
    ) -> None:
        """Order everyone to work along these links."""
        rows = mixing_weights(exchange.topology, exchange.weights).toarray()
        near = exchange.topology.adjacency
        for worker in range(self.experiment.workers):
            peers = np.flatnonzero(near[worker]).tolist()
            order = self.work(
                worker,
                peers=peers,
                weights=rows[worker, peers].tolist(),
                own_weight=float(rows[worker, worker]),
                readers=peers,
                committed=committed,
                attempt=attempt,
                changes=changes,
            )
            self.order(worker, order)

    def finish(self, worker: int, committed: Attempt, *, epoch: int | None = None) -> None:
        """The worker's last order."""
        self.order(
            worker,
            wire.Order(
                epoch=epoch or self.epoch,
                committed=committed.to_wire(),
                finished=wire.Finished(why="done"),
            ),
        )

    # --- the service -----------------------------------------------------------------------

    async def Join(self, request: wire.JoinRequest, context: Any) -> wire.JoinReply:
        name = peer_of(context).name
        self.joins.append(request)
        self.addresses[name] = request.address
        await self._notify()
        reply = wire.JoinReply(
            run=RUN,
            epoch=self.epoch,
            worker=int(name[1:]),
            experiment=tomli_w.dumps(to_tables(self.experiment)),
            beat_seconds=BEAT,
        )
        return self.signed(reply, request, name)

    def signed(
        self, reply: wire.JoinReply, request: wire.JoinRequest, caller: str
    ) -> wire.JoinReply:
        """The reply with this coordinator's proof that it leads."""
        prove(self.identity, reply, caller=caller, nonce=request.nonce, address=self.address)
        return reply

    async def Next(self, request: wire.NextRequest, context: Any) -> wire.Order:
        name = peer_of(context).name
        self.stored[name] = [Attempt.from_wire(version) for version in request.stands]
        assert request.step_time > 0
        self.asked[name] += 1
        self.surveyed[name].extend(request.surveyed)
        receipt = None
        if request.HasField("report"):
            receipt = self.receipt(request.report)
            self._reports[name].put_nowait(request.report)
        await self._notify()
        order = await self._orders[name].get()
        if receipt is not None:
            order.receipt.CopyFrom(receipt)
        return order

    async def Beat(self, request: wire.BeatRequest, context: Any) -> wire.BeatReply:
        name = peer_of(context).name
        self.phases[name].add(request.phase)
        await self._awake.wait()
        self.beats[name] += 1
        await self._notify()
        return wire.BeatReply(
            epoch=max(self.epoch, self.beat.epoch),
            round=self.beat.round_index,
            attempt=self.beat.number,
            gone=self.gone,
            leave=self.leave,
        )

    async def Leave(self, request: wire.LeaveRequest, context: Any) -> wire.Receipt:
        name = peer_of(context).name
        if request.finished:
            self.finished.add(name)
        else:
            self.left[name] = request.why
        await self._notify()
        return wire.Receipt(accepted=True)

    async def Status(self, request: wire.StatusRequest, context: Any) -> wire.StatusReply:
        return wire.StatusReply(run=RUN, epoch=self.epoch)

    async def Command(self, request: wire.CommandRequest, context: Any) -> wire.Receipt:
        return wire.Receipt()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
