"""Several coordinators and one etcd: another takes over, and a frozen one steps down."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from fedhp.cluster.coordinator.process.finders import leader_finder
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings, check_standby
from fedhp.cluster.ops import operator
from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.errors import ConfigError
from net.clusters import ENDLESS, round_of, status_of, tiny, until
from net.etcd_support import needs_etcd, running_etcd

pytestmark = pytest.mark.slow


def epoch_of(cluster: Cluster) -> int:
    reply = status_of(cluster)
    return 0 if reply is None else reply.epoch


def found_by(url: str) -> str:
    """Where a worker would go."""

    async def find() -> str:
        return await leader_finder(url, insecure=True)()

    return asyncio.run(find())


@needs_etcd
def test_a_frozen_leader_is_replaced_steps_down_and_leads_again(tmp_path: Path) -> None:
    experiment = tiny(workers=2, rounds=ENDLESS)
    with (
        running_etcd(tmp_path, 1) as etcd,
        Cluster(
            experiment,
            tmp_path / "run",
            coordinators=("c0",),
            standbys=("c1",),  # it learns the experiment from what is committed
            ha=etcd.url,
            insecure_etcd=True,
            lease=5.0,
            restart=False,
        ) as cluster,
    ):
        cluster.start()
        until(cluster, lambda: round_of(cluster) >= 2, "two rounds")
        target, before = operator.target_of(cluster.folder), cluster.status()
        leader, other = "c0", "c1"
        assert target.coordinator == leader
        cluster.kill(leader, signal.SIGSTOP)
        until(cluster, lambda: epoch_of(cluster) > before.epoch, "another one leads")
        assert operator.target_of(cluster.folder).coordinator == other
        until(cluster, lambda: round_of(cluster) > before.round + 1, "rounds under it")
        assert found_by(etcd.url) == operator.target_of(cluster.folder).address

        cluster.kill(leader, signal.SIGCONT)
        log = cluster.log(leader)
        until(cluster, lambda: "a candidate again" in log.read_text(), "it steps down")
        second = cluster.status()
        cluster.kill(other)
        until(cluster, lambda: epoch_of(cluster) > second.epoch, "the first one leads again")
        until(cluster, lambda: round_of(cluster) > second.round + 1, "rounds under it")
        assert cluster.exit_codes()[leader] is None
        assert {cluster.exit_codes()[name] for name in cluster.workers} == {None}


def test_a_standby_needs_etcd_and_a_port(tmp_path: Path) -> None:
    init_authority(tmp_path)
    issue(tmp_path, "w0-standby", roles=("coordinator",))
    settings = CoordinatorProcessSettings(
        experiment=None, certificates=tmp_path, folder=tmp_path / "run", name="w0-standby"
    )
    with pytest.raises(ConfigError, match="needs etcd"):
        check_standby(settings)
    settings = CoordinatorProcessSettings(
        experiment=None,
        certificates=tmp_path,
        folder=tmp_path / "run",
        name="w0-standby",
        ha="etcds://127.0.0.1:1",
    )
    with pytest.raises(ConfigError, match="names no port"):
        check_standby(settings)
