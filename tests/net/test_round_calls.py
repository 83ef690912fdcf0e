"""What a round costs in calls and syncs, and a report that goes with the next call."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from faults.in_process import in_process_federation
from faults.in_process import run as run_scenario
from fedhp.cluster.coordinator.service import CoordinatorService
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from net.fake_coordinator import SOON, FakeCoordinator
from net.federation import experiment, line, run, start_federation

WORKERS, ROUNDS = 3, 5
FIRST = Attempt(1, 1, 1)


def test_a_round_is_one_call_per_worker_one_commit_and_two_syncs_per_model(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    at_commits: list[Counter[str]] = []
    admit, commit, sync = CoordinatorService._admitted, LocalLedger._commit, os.fsync

    def counted_call(service: CoordinatorService, method: str, context: Any) -> Any:
        counts[method] += 1
        return admit(service, method, context)

    def counted_commit(ledger: LocalLedger, state: bytes) -> None:
        at_commits.append(counts.copy())
        commit(ledger, state)

    def counted_sync(handle: int) -> None:
        counts["sync"] += 1
        sync(handle)

    monkeypatch.setattr(CoordinatorService, "_admitted", counted_call)
    monkeypatch.setattr(LocalLedger, "_commit", counted_commit)
    monkeypatch.setattr(os, "fsync", counted_sync)
    settings = experiment(
        rounds=ROUNDS,
        cluster={"min_workers": WORKERS, "probe_bytes": 0, "least_deadline": SOON},
    )

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            await federation.start_coordinator()
            workers = [
                run_worker(
                    WorkerSettings(
                        name=f"w{worker}",
                        coordinator=federation.address,
                        certificates=certificates,
                        state=tmp_path / f"w{worker}",
                        listen="127.0.0.1:0",
                    )
                )
                for worker in range(WORKERS)
            ]
            async with asyncio.timeout(3 * SOON):
                assert await asyncio.gather(*workers) == [0] * WORKERS
                await federation.finish()

    run_scenario(scenario())
    # The first commit is that of the lead, the last one says who knows that the run is over.
    rounds = at_commits[1 : ROUNDS + 1]
    assert len(at_commits) <= ROUNDS + 2
    for before, after in itertools.pairwise(rounds):
        spent = after - before
        assert spent["Next"] == WORKERS
        assert spent["Report"] == spent["Join"] == 0
        assert spent["sync"] == 2 * WORKERS  # the file of a model, and its name in the folder


class TakesReports(FakeCoordinator):
    """Reads reports that come with Next, and can lose the answer to one."""

    lose = 0  # so many answers

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.with_next: list[wire.RoundReport] = []

    async def Next(self, request: wire.NextRequest, context: Any) -> wire.Order:
        if not request.HasField("report"):
            return await super().Next(request, context)
        self.with_next.append(request.report)
        if self.lose:
            self.lose -= 1
            import grpc

            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        return await super().Next(request, context)


def test_a_report_goes_with_next_and_its_receipt_comes_with_the_order(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("net.federation.FakeCoordinator", TakesReports)

    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            coordinator = federation.coordinator
            assert isinstance(coordinator, TakesReports)
            coordinator.receipt = lambda report: wire.Receipt(accepted=False, why="too late")
            coordinator.lose = 1
            await federation.ready(range(3))
            coordinator.mixing(line(3), committed=INITIAL, attempt=FIRST)
            for worker in range(3):
                report = await coordinator.report(worker)
                assert Attempt.from_wire(report.envelope) == FIRST
                coordinator.finish(worker, INITIAL)
                assert await federation.running[worker] == 0
                (event,) = federation.events(worker, "reported")
                assert (event["round"], event["accepted"], event["why"]) == (1, False, "too late")
            # The one whose answer was lost came again, with another envelope.
            assert len(coordinator.with_next) == 4
            sequences = {
                (report.envelope.sender, report.envelope.sequence)
                for report in coordinator.with_next
            }
            assert len(sequences) == 4

    run(test())
