"""A real federation on the page: a silent worker, and the commands of its operator."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dash.serving import AppClient, client_of
from fedhp.cluster.ops.launch import Cluster
from fedhp.dash.actions import Operator
from fedhp.dash.security import LOOPBACK, Access
from net.clusters import ENDLESS, tiny, until

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"min_workers": 2, "suspect_after": 2.0, "dead_after": 4.0, "beat": 0.2}
    experiment = tiny(rounds=ENDLESS, cluster=settings)
    with Cluster(experiment, tmp_path_factory.mktemp("run"), restart=False) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def page(cluster: Cluster) -> AppClient:
    access = Access(hosts=frozenset(LOOPBACK), token=TOKEN)
    return client_of(cluster.folder, access=access, operator=Operator(cluster.certificates))


def get(page: AppClient, path: str) -> Any:
    response = page.get(f"/api/{path}")
    return response.json() if response.status_code == 200 else None


def state_of(page: AppClient, worker: int) -> Callable[[str], bool]:
    def has(state: str) -> bool:
        table = get(page, "workers?run=.")
        return table is not None and table["workers"][worker]["state"] == state

    return has


def send(page: AppClient, action: str, **command: str) -> Any:
    return page.post(f"/api/{action}", json=command, headers={"Authorization": f"Bearer {TOKEN}"})


def test_a_worker_is_seen_suspect_dead_and_back(cluster: Cluster, page: AppClient) -> None:
    has = state_of(page, 1)
    until(cluster, lambda: has("ready"), "worker 1 takes part")
    details = get(page, "run?run=.")
    assert details["names"] == ["w0", "w1", "w2"]
    assert (details["network"], details["live"]) == (True, True)
    assert details["actions"] == ["stop", "drain"]
    cluster.kill("w1", signal.SIGSTOP)
    until(cluster, lambda: has("suspect"), "it is suspect")
    until(cluster, lambda: has("dead"), "it is dead")
    cluster.kill("w1", signal.SIGCONT)
    until(cluster, lambda: has("ready"), "it is back")
    history = get(page, "worker?run=.&worker=1")
    kinds = iter([event["kind"] for event in history["events"]])
    assert all(kind in kinds for kind in ("join", "suspect", "dead", "back"))  # in this order
    events = get(page, "events?run=.")["events"]
    assert events[0]["kind"] == "leader"
    assert all(event["at"] is not None for event in events)


def test_without_the_certificate_there_are_no_actions(cluster: Cluster) -> None:
    page = client_of(cluster.folder, access=Access(hosts=frozenset(LOOPBACK), token=TOKEN))
    assert get(page, "run?run=.")["actions"] == []
    assert send(page, "stop", run=".").status_code == 409


def test_a_worker_is_drained_and_the_run_stopped(cluster: Cluster, page: AppClient) -> None:
    unknown = send(page, "drain", run=".", worker="w9")
    assert unknown.status_code == 409
    assert send(page, "drain", run=".").status_code == 409
    assert send(page, "stop", run=".", worker="w1").status_code == 409
    assert send(page, "stop", run="nothing").status_code == 404
    assert page.post("/api/stop", json={"run": "."}).status_code == 401
    assert send(page, "drain", run=".", worker="w2").status_code == 200
    until(cluster, lambda: state_of(page, 2)("left"), "worker 2 has left")
    assert "drain" in [event["kind"] for event in get(page, "events?run=.")["events"]]
    assert send(page, "stop", run=".").json()["text"]
    until(cluster, lambda: not get(page, "run?run=.")["live"], "the run is over")
    assert get(page, "run?run=.")["actions"] == []
    kinds = [event["kind"] for event in get(page, "events?run=.")["events"]]
    assert "stop" in kinds
    assert "finished" in kinds
