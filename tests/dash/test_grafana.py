"""The Grafana dashboard names only metrics and labels that coordinators and workers serve."""

from __future__ import annotations

import json
import re
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.support import write
from fedhp.cluster.ops.launch import ensure_certificates
from net.clusters import ENDLESS
from net.etcd_support import free_ports
from subprocesses import ForkedCommand
from waiting import PATIENCE, wait_until

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "fedhp.json"
ADDED = {"job", "instance", "le"}  # by Prometheus, and of histograms
# The labels of metrics that have no value while all is well.
OF_TROUBLE = {
    "fedhp_broken_link_failures": {"worker", "peer", "why"},
    "fedhp_refused_messages_total": {"reason"},
    "fedhp_warning": {"key", "member"},
    "fedhp_worker_refused_messages_total": {"reason"},
}
SUFFIXES = ("_bucket", "_count", "_sum", "_total")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every metric that a real coordinator and a real worker serve."""
    place = tmp_path_factory.mktemp("served")
    certs, ports = place / "certs", free_ports(3)
    roles = {"coordinator": ("coordinator",), "w0": ("worker",), "w1": ("worker",)}
    ensure_certificates(certs, roles)
    file = write(place, rounds=ENDLESS, workers=2)
    with ExitStack() as stack:
        address, *metrics = [f"127.0.0.1:{port}" for port in ports]
        common = ["--certs", certs, "--log-format", "json"]
        out = ["--out", place / "run", "--metrics", metrics[0]]
        stack.enter_context(ForkedCommand("coordinator", file, "--listen", address, *out, *common))
        for name, own in (("w0", ["--metrics", metrics[1]]), ("w1", [])):
            place_of = ["--state", place / name, "--listen", "127.0.0.1:0"]
            stack.enter_context(
                ForkedCommand(
                    "worker", "--name", name, "--coordinator", address, *place_of, *own, *common
                )
            )
        pages: list[str] = []

        def rounds_are_counted() -> bool:
            try:
                pages[:] = [read(address) for address in metrics]
            except OSError:
                return False
            return "fedhp_link_bytes_total{" in pages[0] and "rounds_total 0.0" not in pages[1]

        wait_until(rounds_are_counted, "a round has ended", seconds=PATIENCE)
    labels: dict[str, set[str]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            names = {family.name} | {sample.name for sample in family.samples}
            # A counter that has counted nothing yet is in the page by its name alone.
            names |= {f"{family.name}_total"} if family.type == "counter" else set()
            for name in names:
                labels.setdefault(name, set())
            for sample in family.samples:
                labels[sample.name] |= set(sample.labels)
    return labels


def read(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as response:
        content = response.read()
    assert isinstance(content, bytes)
    return content.decode()


def panels() -> list[dict[str, Any]]:
    found = json.loads(DASHBOARD.read_text())["panels"]
    assert isinstance(found, list)
    return found


def questions() -> list[tuple[str, str]]:
    return [
        (target["expr"], target["legendFormat"])
        for panel in panels()
        for target in panel.get("targets", [])
    ]


def test_every_metric_of_the_dashboard_is_served(served: dict[str, set[str]]) -> None:
    assert len(questions()) > 30
    for question, _ in questions():
        names = re.findall(r"\bfedhp_[a-z_]+", question)
        assert names
        for name in names:
            assert name in served, f"nobody serves {name}: {question}"


def test_every_label_of_the_dashboard_is_served(served: dict[str, set[str]]) -> None:
    for question, legend in questions():
        names = re.findall(r"\bfedhp_[a-z_]+", question)
        known = ADDED.union(*(served[name] | OF_TROUBLE.get(name, set()) for name in names))
        grouped = re.findall(r"by \(([a-z, ]+)\)", question)
        used = {label.strip() for group in grouped for label in group.split(",")}
        used |= set(re.findall(r"([a-z_]+)=~?\"", question))
        used |= set(re.findall(r"\{\{([a-z_]+)\}\}", legend))
        assert used <= known, question


def test_everything_that_is_served_is_on_the_dashboard(served: dict[str, set[str]]) -> None:
    shown = {
        name for question, _ in questions() for name in re.findall(r"\bfedhp_[a-z_]+", question)
    }
    families = {_family(name) for name in shown}
    missing = {name for name in served if name.startswith("fedhp_")} - shown
    missing = {name for name in missing if _family(name) not in families and "_created" not in name}
    assert missing == set()


def _family(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def test_the_dashboard_can_be_imported() -> None:
    """Every panel has its own number, place and source; places do not overlap."""
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${source}"
            assert panel["description"]
