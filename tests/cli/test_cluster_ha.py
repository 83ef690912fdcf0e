"""`fedhp cluster` with several coordinators: bad options, etcd, a failover of real processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from cli.support import Command
from fedhp.cluster.coordinator.process.announcements import STANDBY_ANNOUNCEMENT
from fedhp.cluster.ops import operator
from fedhp.cluster.ops.launch import Cluster
from net.clusters import ENDLESS, round_of, tiny, until
from net.etcd_support import needs_etcd, running_etcd


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "one of them is needed"),
        (("--coordinator", "a:1", "--ha", "etcds://b:2"), "only one of them is allowed"),
        (("--coordinator", "a:1,b"), "'b' is not an address"),
        (("--ha", "etcd://127.0.0.1:1"), "not encrypted"),
    ],
)
@pytest.mark.parametrize("what", [("status",), ("stop",), ("drain", "w0"), ("remove", "w0")])
def test_bad_options(
    command: Command, what: tuple[str, ...], arguments: tuple[str, ...], words: str
) -> None:
    outcome = command("cluster", *what, *arguments)
    assert outcome.code == 2
    assert words in outcome.err


@pytest.mark.slow
@needs_etcd
def test_commands_with_etcd_through_a_failover(command: Command, tmp_path: Path) -> None:
    with (
        running_etcd(tmp_path, 1) as etcd,
        Cluster(
            tiny(workers=3, rounds=ENDLESS, cluster={"min_workers": 1, "dead_after": 60.0}),
            tmp_path / "run",
            coordinators=("c0", "c1"),
            ha=etcd.url,
            insecure_etcd=True,
            lease=2.0,
            restart=False,
        ) as cluster,
    ):
        cluster.start()
        until(cluster, lambda: round_of(cluster) >= 1, "a round")
        certs = ("--certs", cluster.folder / operator.CERTIFICATES)
        by_etcd = ("--ha", etcd.url, "--insecure-etcd", *certs)
        first = command("cluster", "status", *by_etcd, "--json")
        leader = operator.target_of(cluster.folder).coordinator
        assert leader is not None
        assert f"{leader} at" in first.err
        other = "c1" if leader == "c0" else "c0"
        file = cluster.record_folder(other) / STANDBY_ANNOUNCEMENT
        until(cluster, file.exists, "the other one stands by")
        standby = json.loads(file.read_text())["address"]
        asked = command("cluster", "status", "--coordinator", standby, *certs, "--json")
        assert asked.json()["coordinator"] == first.json()["coordinator"]
        assert "is a standby" in asked.err
        meant = ("--run", first.json()["run"][:8])
        assert "w2 leaves" in command("cluster", "drain", "w2", *by_etcd, *meant).out

        cluster.kill(leader, signal.SIGKILL)  # its lease is not over yet
        second = command("cluster", "status", *by_etcd, "--json")
        assert second.json()["coordinator"] == standby
        assert second.json()["epoch"] > first.json()["epoch"]
        assert "waiting for a coordinator to take over" in second.err
        assert "w1 is removed" in command("cluster", "remove", "w1", *by_etcd, *meant).out
        stop = ("cluster", "stop", "--coordinator", standby, *certs, *meant)
        assert "the run ends" in command(*stop).out
        until(cluster, lambda: cluster.exit_codes()[other] == 0, "the run is over")
        over = command("cluster", "status", *by_etcd)
        assert over.code == 2
        assert "stopped by the operator" in over.err
