"""Warnings: one form for the status, the metrics, the log and the history."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from fedhp.cluster.coordinator.context import Warnings
from fedhp.cluster.coordinator.process.metrics import Metrics, Snapshot
from fedhp.cluster.history import History, read_history
from fedhp.cluster.ops import operator
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.message_checks import MAX_WARNING_MEMBERS, MAX_WARNINGS
from fedhp.console.cluster import trouble_lines


@pytest.fixture
def warnings(tmp_path: Path) -> Iterator[Warnings]:
    """None yet, and a history in which they are noted."""
    history = History(tmp_path, "c0")
    yield Warnings(history)
    history.close()


def test_a_warning_lasts_until_it_ends(
    warnings: Warnings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="fedhp.coordinator"):
        for value in (1.0, 2.0):
            warnings.set("slow", members=("w2", "w1"), value=value, text=f"slow: {value:g}")
        warnings.set("slow", members=("w3",), value=3.0, text="slow: 3")
        warnings.set("late", value=4.0, text="late")
    assert [record.message for record in caplog.records] == ["slow: 1", "slow: 3", "late"]
    noted = list(read_history(tmp_path / "history-c0.jsonl"))
    assert [event["event"] for event in noted] == ["warning"] * 3
    assert noted[0]["members"] == ["w1", "w2"]
    reply = wire.StatusReply(warnings=warnings.on_wire())
    assert [(each.key, list(each.members), each.value) for each in reply.warnings] == [
        ("late", [], 4.0),
        ("slow", ["w1", "w2"], 2.0),
        ("slow", ["w3"], 3.0),
    ]
    assert trouble_lines(reply) == ["warnings:", "  late", "  slow: 2", "  slow: 3"]
    assert json.dumps(operator.status_json(reply)["warnings"][1]) == json.dumps(
        {"key": "slow", "members": ["w1", "w2"], "value": 2.0, "text": "slow: 2"}
    )
    warnings.end("slow", members=("w3",))
    assert [each.key for each in warnings.on_wire()] == ["late", "slow"]
    warnings.end("slow")
    warnings.end("unknown")
    assert [each.key for each in warnings.on_wire()] == ["late"]


def test_warnings_are_metrics() -> None:
    numbers = Metrics()
    numbers.snapshot = Snapshot(warnings={("slow", "w1"): 2.0, ("late", ""): 4.0})
    page = generate_latest(numbers.registry).decode()
    assert 'fedhp_warning{key="slow",member="w1"} 2.0' in page
    assert 'fedhp_warning{key="late",member=""} 4.0' in page


def test_there_are_only_so_many(warnings: Warnings) -> None:
    for number in range(MAX_WARNINGS + 5):
        crowd = [f"w{number}-{each}" for each in range(MAX_WARNING_MEMBERS + 5)]
        warnings.set("crowd", members=crowd, value=1.0, text="crowd")
    shown = warnings.on_wire()
    assert len(shown) == MAX_WARNINGS
    assert {len(each.members) for each in shown} == {MAX_WARNING_MEMBERS}
