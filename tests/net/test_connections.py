"""Which connections a worker keeps: those to the peers that its orders name, and no others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.worker import peer_client
from fedhp.exchange import NeighborMixing
from fedhp.graph import topology_from
from net.federation import Federation, experiment, run, start_federation
from net.identities import make_certificates
from waiting import wait_until_async

WORKERS = 8
TABLES = [
    file for file in (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6")) if file.exists()
]
ESTABLISHED = "01"  # as Linux writes it
pytestmark = pytest.mark.skipif(not TABLES, reason="connections are read from /proc")
RING = tuple(range(WORKERS))
OTHER_RING = (0, 3, 6, 1, 4, 7, 2, 5)  # shares no link with the first one


def ring(order: Sequence[int]) -> NeighborMixing:
    pairs = sorted(sorted(pair) for pair in itertools.pairwise((*order, order[0])))
    return NeighborMixing(topology_from(WORKERS, np.array(pairs)), "metropolis")


def connections(federation: Federation) -> dict[str, int]:
    """How many connections each worker has accepted, by the tables of the system."""
    ports = {
        int(address.rpartition(":")[2]): name
        for name, address in federation.coordinator.addresses.items()
    }
    counts: Counter[str] = Counter()
    for table in TABLES:
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            local, status = line.split()[1], line.split()[3]
            port = int(local.rpartition(":")[2], 16)
            if status == ESTABLISHED and port in ports:
                counts[ports[port]] += 1
    return dict(counts)


def test_eight_workers_on_a_ring_keep_two_connections_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_client, "IDLE_ROUNDS", 2)
    settings = experiment(workers=WORKERS, cluster={"probe_bytes": 0})
    certificates = make_certificates(tmp_path / "certificates", WORKERS)
    two_each = {f"w{worker}": 2 for worker in range(WORKERS)}
    committed = INITIAL

    async def rounds(federation: Federation, order: Sequence[int], count: int) -> None:
        nonlocal committed
        for _ in range(count):
            attempt = Attempt(1, committed.round_index + 1, 1)
            federation.coordinator.mixing(ring(order), committed=committed, attempt=attempt)
            for worker in range(WORKERS):
                report = await federation.coordinator.report(worker)
                assert not any(link.lost for link in report.links)
            committed = attempt

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready(range(WORKERS))
            assert connections(federation) == {}
            await rounds(federation, RING, 2)
            assert connections(federation) == two_each
            await rounds(federation, OTHER_RING, 1)
            assert sum(connections(federation).values()) == 4 * WORKERS
            await rounds(federation, OTHER_RING, 2)
            await wait_until_async(
                lambda: connections(federation) == two_each, "the old connections to be closed"
            )
            await rounds(federation, OTHER_RING, 1)  # over the connections that are left
            assert connections(federation) == two_each

    run(test())


def test_there_is_a_limit_to_the_connections_that_are_kept_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_client, "IDLE_CONNECTIONS", 1)
    settings = experiment(workers=4, cluster={"probe_bytes": 0})
    certificates = make_certificates(tmp_path / "certificates", 4)

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready(range(4))
            committed = INITIAL
            for peer in (1, 2, 3, 3):
                attempt = Attempt(1, committed.round_index + 1, 1)
                exchange = NeighborMixing(topology_from(4, np.array([[0, peer]])), "metropolis")
                federation.coordinator.mixing(exchange, committed=committed, attempt=attempt)
                for worker in range(4):
                    await federation.coordinator.report(worker)
                committed = attempt
            await wait_until_async(
                lambda: connections(federation) == {"w0": 3, "w2": 1, "w3": 1},
                "the oldest connection of w0 to be closed",
            )

    run(test())
