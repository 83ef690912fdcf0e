"""Commands in this process; those that have job processes need not wait until torch is loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.support import Command, caller
from fedhp.cluster.ops.launch import Cluster
from net.clusters import status_of, tiny
from subprocesses import forked_jobs
from waiting import wait_until


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with forked_jobs():
        yield caller(capsys)


@pytest.fixture(scope="module")
def gathering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A coordinator without its workers."""
    with Cluster(tiny(), tmp_path_factory.mktemp("run"), restart=False) as cluster:
        cluster.prepare()
        cluster.start_process("coordinator")
        wait_until(lambda: status_of(cluster) is not None, "the coordinator answers")
        yield cluster
