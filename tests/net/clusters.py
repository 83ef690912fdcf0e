"""Small federations of real processes, and ways to wait for what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.config import Experiment, parse
from fedhp.errors import RunError
from waiting import wait_until

PATIENCE = 200.0  # s, for what should take seconds: a deadline, not a measurement
ENDLESS = 100_000  # rounds


def tiny(*, workers: int = 3, rounds: int = 3, **sections: Any) -> Experiment:
    """Digits, a small model, few steps."""
    tables: dict[str, Any] = {
        "workers": workers,
        "rounds": rounds,
        "algorithm": {"name": "dpsgd"},
        "training": {"local_steps": 3},
        "evaluation": {"images": 60},
        "cluster": {"gather": PATIENCE, "suspect_after": 30.0, "dead_after": 60.0},
    }
    return parse(tables | sections)


def until(cluster: Cluster, holds: Callable[[], bool], what: str) -> None:
    """Look after the processes until something holds."""
    wait_until(
        holds,
        lambda: f"{what}: {cluster.exit_codes()}, {cluster.notes}",
        seconds=PATIENCE,
        meanwhile=cluster.supervise,
    )


def status_of(cluster: Cluster) -> wire.StatusReply | None:
    """What the coordinator says; None while it does not answer."""
    try:
        return cluster.status()
    except RunError:
        return None


def round_of(cluster: Cluster) -> int:
    """The last committed round, by what the coordinator says."""
    reply = status_of(cluster)
    return 0 if reply is None else reply.round


def processes_of(pid: int) -> list[int]:
    """A process and everything below it."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [pid, *(below for child in text.split() for below in processes_of(int(child)))]
