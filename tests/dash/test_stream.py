"""The stream: what is new reaches every viewer, once, also over a reconnection."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from dash.conftest import FIRST, SECOND
from dash.growing import GrowingRun
from dash.serving import Viewer, listening
from fedhp.dash import stream
from fedhp.dash.stream import format_positions, parse_positions


@pytest.fixture
def growing(runs: Path) -> GrowingRun:
    return GrowingRun(runs / FIRST, runs / "new", network=True)


def test_rounds_and_events_come_by_themselves(runs: Path, growing: GrowingRun) -> None:
    with listening(runs) as port, Viewer(port, "?run=new") as viewer:
        assert viewer.response.getheader("content-type", "").startswith("text/event-stream")
        assert viewer.response.getheader("x-content-type-options") == "nosniff"
        assert viewer.until("round")["rounds"] == 0
        growing.commit(2)
        assert viewer.until("round", rounds=2)["status"] == "running"
        growing.note(time.time(), "join", worker=1, name="w1")
        event = viewer.until("event")
        assert (event["kind"], event["worker"], event["number"]) == ("join", 1, 0)
        assert event["text"] == "w1 joined as worker 1"
        growing.end("finished")
        assert viewer.until("round", status="finished")["live"] is False


def test_a_reconnected_viewer_gets_what_it_missed(runs: Path, growing: GrowingRun) -> None:
    with listening(runs) as port:
        with Viewer(port, f"?run={SECOND}&run=new") as viewer:
            viewer.until("round", run="new")
            growing.note(1.0, "join", worker=0, name="w0")
            assert viewer.until("event")["number"] == 0
            growing.commit()
            viewer.until("round", rounds=1)
            last_id = viewer.last_id
        assert last_id
        growing.note(2.0, "join", worker=1, name="w1")
        growing.note(3.0, "join", worker=2, name="w2")
        with Viewer(port, f"?run={SECOND}&run=new", last_id=last_id) as viewer:
            first, second = viewer.until("event"), viewer.until("event")
            assert (first["number"], second["number"]) == (1, 2)
        with Viewer(port, "?run=new", last_id="nonsense; 1") as viewer:
            facts = viewer.until("round", run="new")
            assert facts["events"] == 3  # the page reads them from /api/events
            growing.note(4.0, "join", worker=3, name="w3")
            assert viewer.until("event")["number"] == 3


def test_a_restarted_server_is_picked_up_again(runs: Path, growing: GrowingRun) -> None:
    with listening(runs) as port, Viewer(port, "?run=new") as viewer:
        before = viewer.until("round")
        last_id = viewer.last_id
    growing.commit(3)
    with listening(runs, port=port) as port, Viewer(port, "?run=new", last_id=last_id) as viewer:
        after = viewer.until("round")
        assert after["rounds"] == 3
        assert after["log"] != before["log"]


def test_the_list_says_what_came_and_went(
    runs: Path, growing: GrowingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "LIST_SECONDS", 0.05)
    with listening(runs) as port, Viewer(port, "") as viewer:
        assert {entry["run"] for entry in viewer.until("runs")["runs"]} == {FIRST, SECOND, "new"}
        growing.commit()
        shutil.copytree(runs / SECOND, runs / "third")
        seen: dict[str, int] = {}
        while "third" not in seen or seen.get("new") != 1:
            facts = viewer.until("runs")
            seen |= {entry["run"]: entry["rounds"] for entry in facts["runs"]}
            assert facts["removed"] == []
        assert SECOND not in seen  # it has not changed
        shutil.rmtree(runs / "third")
        while viewer.until("runs")["removed"] != ["third"]:
            pass


def test_a_removed_run_is_said_to_be_removed(runs: Path) -> None:
    with listening(runs) as port, Viewer(port, f"?run={SECOND}") as viewer:
        assert viewer.until("round")["status"] == "finished"
        shutil.rmtree(runs / SECOND)
        assert viewer.until("round")["status"] == "removed"


def test_a_quiet_stream_has_heartbeats(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.05)
    with listening(runs) as port, Viewer(port, f"?run={SECOND}") as viewer:
        viewer.until("round")
        while viewer.response.readline() != b": still here\n":
            pass


def test_viewers_share_one_watcher(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, a run is looked at by one; without viewers by nobody."""
    begun: list[str] = []
    original = stream.RunWatcher.__init__

    def counted(self: stream.RunWatcher, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        begun.append(self.log.run)

    monkeypatch.setattr(stream.RunWatcher, "__init__", counted)
    with listening(runs) as port:
        viewers = [Viewer(port, f"?run={SECOND}&run={SECOND}") for _ in range(12)]
        for viewer in viewers:
            viewer.until("round", run=SECOND)
        assert begun == [SECOND]
        for viewer in viewers:
            viewer.__exit__()


def test_too_many_viewers_are_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedhp.dash import app

    monkeypatch.setattr(app, "MOST_VIEWERS", 1)
    with listening(runs) as port, Viewer(port, "") as viewer:
        assert viewer.response.status == 200
        with Viewer(port, "") as second:
            assert second.response.status == 503
            assert second.response.getheader("retry-after") == "2"


@pytest.mark.parametrize("text", ["", "x", "0a1b2c3d-1.5", "-_-_-", "0a1b2c3d-1.5_-x", "_" * 500])
def test_unknown_positions_are_none(text: str) -> None:
    assert parse_positions(text, 2) == [None, None]


def test_positions_are_read_back() -> None:
    positions = [("0a1b2c3d-1", 5), None, ("ffffffff-12", 0)]
    assert parse_positions(format_positions(positions), 3) == positions
