"""The events of histories: the lines have the facts, names and order of earlier releases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedhp.cluster import events
from fedhp.cluster.events import Event
from fedhp.cluster.history import LASTING, PER_ATTEMPT, History, read_history
from fedhp.cluster.protocol.attempt import Attempt

NOW = Attempt(3, 7, 2)
ABOUT = {"epoch": 3, "round": 7, "attempt": 2}
LINES: list[tuple[Event, str, dict[str, Any]]] = [
    (
        events.Lead("r", 3, stand=[2, 6, 1], min_workers=2, asynchronous=False),
        "lead",
        {"run": "r", "epoch": 3, "stand": [2, 6, 1], "min_workers": 2, "asynchronous": False},
    ),
    (
        events.Waiting("too few", [0], 0.0),
        "waiting",
        {"why": "too few", "ready": [0], "patience": 0.0},
    ),
    (events.Waiting(ready=[0], late=[1]), "waiting", {"ready": [0], "late": [1]}),
    (
        events.Began(NOW, [0, 1], 5.0, {"rule": "max_degree"}),
        "attempt",
        {**ABOUT, "participants": [0, 1], "deadline": 5.0, "rule": "max_degree"},
    ),
    (
        events.Began(NOW, [0], 5.0, {"group": {"fragment": 0}}, restarted=[], back_to=[1, 2, 3]),
        "attempt",
        {
            **ABOUT,
            "participants": [0],
            "deadline": 5.0,
            "group": {"fragment": 0},
            "restarted": [],
            "back_to": [1, 2, 3],
        },
    ),
    (events.Reported(NOW, 1, "ab"), "report", {**ABOUT, "worker": 1, "digest": "ab"}),
    (
        events.Reported(NOW, 1, "ab", steps=4, during=0, consensus="cd", lost=[2]),
        "report",
        {
            **ABOUT,
            "worker": 1,
            "digest": "ab",
            "steps": 4,
            "during": 0,
            "consensus": "cd",
            "lost": [2],
        },
    ),
    (events.Quarantined("w1"), "quarantined", {"name": "w1"}),
    (events.Quarantined("w1", 0), "quarantined", {"name": "w1", "worker": 0}),
    (events.Ordered("work", NOW), "order", {"kind": "work", **ABOUT}),
    (
        events.CaughtUp(NOW, "w1", {"position": 5}),
        "caught_up",
        {**ABOUT, "peer": "w1", "position": 5},
    ),
    (events.Trained(NOW, turn=3, steps=2), "trained", {**ABOUT, "turn": 3, "steps": 2}),
    (
        events.Trained(NOW, steps=2, during=0, seconds=0.5),
        "trained",
        {**ABOUT, "steps": 2, "during": 0, "seconds": 0.5},
    ),
    (events.Mixed(NOW, turn=3, digest="ab"), "mixed", {**ABOUT, "turn": 3, "digest": "ab"}),
    (events.WorkerFinished("done", NOW), "finished", {"why": "done", **ABOUT}),
]


@pytest.mark.parametrize(("event", "name", "facts"), LINES, ids=lambda part: str(part)[:40])
def test_a_line_has_the_facts_of_its_event_in_order(
    event: Event, name: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    history = History(tmp_path, "w0")
    history.note(event)
    history.close()
    (line,) = read_history(tmp_path / "history-w0.jsonl")
    assert list(line) == ["at", "who", "process", "event", *facts]
    assert line["event"] == name
    assert json.dumps({key: line[key] for key in facts}) == json.dumps(facts)


def test_what_a_history_keeps_of_its_parts_is_declared() -> None:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type)]
    declared = {kind.event for kind in kinds if issubclass(kind, Event) and kind is not Event}
    assert {*LASTING, *PER_ATTEMPT} <= declared


def test_nothing_but_declared_events_is_written() -> None:
    source = Path(events.__file__).parent
    for module in source.rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        assert not re.search(r"(history|session)\.(note|append)\(\s*[\"']", text), module
