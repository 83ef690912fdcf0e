"""Three hundred workers and one coordinator: does it plan, order and commit in time?

The workers are scripted: one process, a connection with mutual TLS each, no training.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from faults.scripted import ScriptedWorker
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings
from fedhp.cluster.history import read_history
from fedhp.cluster.ops import processes
from fedhp.cluster.ops.processes import ProcessEnvironment
from fedhp.config import parse
from fedhp.record.reader import RunReader
from net.identities import make_certificates
from waiting import wait_until_async

WORKERS, ROUNDS = 300, 4
MOST_SECONDS, MOST_MEGABYTES = 5.0, 500.0
PATIENCE = 300.0


@pytest.mark.slow
@pytest.mark.alone
def test_three_hundred_workers(tmp_path: Path, record_property: Any) -> None:
    names = [f"w{worker}" for worker in range(WORKERS)]
    certificates = make_certificates(tmp_path / "certs", WORKERS)
    folder = tmp_path / "run"
    experiment = parse(
        {
            "workers": WORKERS,
            "rounds": ROUNDS,
            "algorithm": {"name": "fedhp"},
            "training": {"local_steps": 2},
            "cluster": {
                "min_workers": WORKERS,
                "gather": PATIENCE,
                "suspect_after": 30.0,
                "dead_after": 60.0,
            },
        }
    )
    settings = CoordinatorProcessSettings(experiment, certificates, folder, name="boss")
    coordinator = processes.start(
        processes.run_coordinator, settings, ProcessEnvironment(tmp_path / "boss.log")
    )
    try:
        asyncio.run(asyncio.wait_for(everyone(names, certificates, folder), PATIENCE))
        coordinator.join(30)
    finally:
        if coordinator.is_alive():
            coordinator.kill()
        coordinator.join()
    with RunReader(folder) as run:
        megabytes = run.meta("peak_memory") / 2**20
    planned, ordering = delays(folder)
    record_property(
        f"figure: {WORKERS} workers, one coordinator",
        f"planned in {max(planned):.2f} s, all orders {max(ordering):.2f} s after the commit, "
        f"{megabytes:.0f} MB at most",
    )
    assert check_invariants(folder, rounds=ROUNDS) == []
    assert max(ordering) < MOST_SECONDS
    assert megabytes < MOST_MEGABYTES


async def everyone(names: list[str], certificates: Path, folder: Path) -> None:
    """All workers, until the run is over."""
    announced = folder / "coordinator.json"
    await wait_until_async(announced.exists, "the coordinator's address")
    address = json.loads(announced.read_bytes())["address"]
    await asyncio.gather(
        *(
            ScriptedWorker.named(
                certificates, name, folder / "workers" / name, lambda: address
            ).live()
            for name in names
        )
    )


def delays(folder: Path) -> tuple[list[float], list[float]]:
    """Seconds from each commit to the next plan, and until the last worker had its order."""
    boss = list(read_history(folder / "history-boss.jsonl"))
    commits = {event["round"]: event["at"] for event in boss if event["event"] == "commit"}
    plans = {event["round"]: event["at"] for event in boss if event["event"] == "attempt"}
    ordered: dict[int, float] = {}
    for file in folder.glob("workers/*/history-*.jsonl"):
        for event in read_history(file):
            if event["event"] == "order" and event["kind"] == "work":
                ordered[event["round"]] = max(ordered.get(event["round"], 0.0), event["at"])
    later = range(2, ROUNDS + 1)
    return (
        [plans[index] - commits[index - 1] for index in later],
        [ordered[index] - commits[index - 1] for index in later],
    )
