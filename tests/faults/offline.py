"""A coordinator and scripted workers without a network, in one event loop: its own work in a round.

Calls have no connection. So hundreds of workers are cheap, and what is counted (bytes,
steps of the interpreter) is the coordinator's alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedhp import __version__
from fedhp.cluster.coordinator.coordinator import (
    Coordinator,
    CoordinatorRoundLoop,
    CoordinatorSettings,
)
from fedhp.cluster.coordinator.service import CoordinatorService, CoordinatorState
from fedhp.cluster.ledger.base import Ledger
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.security.identity import Identity
from fedhp.cluster.security.renewal import renewable
from fedhp.cluster.security.tls import AllowList
from fedhp.config import Experiment, parse

MODEL_BYTES = 400_000
NAN = float("nan")


def sparse_experiment(workers: int, rounds: int, *, algorithm: str = "fedhp") -> Experiment:
    """Workers on a random base topology with six neighbors each."""
    return parse(
        {
            "workers": workers,
            "rounds": rounds,
            "algorithm": {"name": algorithm},
            "topology": {"name": "random_regular", "degree": 6},
            "training": {"local_steps": 2},
            "cluster": {
                "min_workers": workers,
                "gather": 300.0,
                "suspect_after": 300.0,
                "dead_after": 600.0,
            },
        }
    )


class OfflineWorker:
    """Asks, reports and asks again, until the run is over."""

    def __init__(self, name: str, service: CoordinatorService) -> None:
        self.name, self._service = name, service
        self._envelopes = Envelopes(name)
        self._models: list[Attempt] = []
        self.orders: list[wire.Order] = []

    async def live(self) -> None:
        """Until the run is over."""
        service, surveyed = self._service, list[wire.LinkReport]()
        join = wire.JoinRequest(
            envelope=self._envelopes.make(), address="127.0.0.1:1", fedhp=__version__, samples=100
        )
        service.join(self.name, join)
        while True:
            request = wire.NextRequest(
                envelope=self._envelopes.make(),
                stands=[model.to_wire() for model in self._models if model != INITIAL],
                step_time=0.001,
                model_bytes=MODEL_BYTES,
                samples=100,
                surveyed=surveyed,
            )
            order = await service.next(self.name, request)
            kind, surveyed = order.WhichOneof("what"), []
            self.orders.append(order)
            if kind == "finished":
                service.leave(self.name, wire.LeaveRequest(finished=True))
                return
            if kind == "survey":
                surveyed = [_link(peer.worker) for peer in order.survey.peers]
            if kind == "work":
                attempt = Attempt.from_order(order)
                assert service.report(self.name, self._report(attempt, order.work)).accepted
                self._models = [*self._models[-1:], attempt]

    def _report(self, attempt: Attempt, work: wire.Work) -> wire.RoundReport:
        return wire.RoundReport(
            envelope=self._envelopes.make(attempt=attempt),
            step_time=0.001,
            compute_seconds=0.01,
            exchange_seconds=0.01,
            train_loss=1.0 / attempt.round_index,
            update_norm=1.0,
            smoothness=1.0,
            gradient_variance=1.0,
            start_loss=2.0,
            links=[_link(peer.worker) for peer in work.peers],
            accuracy=0.5,
            whole_accuracy=NAN,
            images=100,
            digest=hashlib.sha256(f"{self.name} {attempt}".encode()).digest(),
        )


def _link(worker: int) -> wire.LinkReport:
    seconds = 0.01 + 0.001 * (worker % 7)
    return wire.LinkReport(
        worker=worker, bytes=MODEL_BYTES, seconds=seconds, distance=0.5 + 0.01 * (worker % 5)
    )


async def run_offline(
    experiment: Experiment,
    *,
    identity: Identity,
    folder: Path,
    ledger: Ledger,
    on_round: Callable[[Any], None] = lambda record: None,
) -> CoordinatorState:
    """A whole run; the state of its coordinator."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = CoordinatorSettings(
        experiment, identity, listen="127.0.0.1:0", folder=folder, allowed=AllowList(None)
    )
    coordinator = Coordinator(settings, ledger)
    state = await coordinator._lead()
    rounds = CoordinatorRoundLoop(state, ledger, on_round)
    await rounds.commit()
    service = CoordinatorService(state, renewable(identity), address="127.0.0.1:1")
    workers = [OfflineWorker(f"w{index}", service) for index in range(experiment.workers)]
    try:
        await asyncio.gather(rounds.run(), *(worker.live() for worker in workers))
    finally:
        state.context.record.close()
        coordinator.history.close()
    return state
