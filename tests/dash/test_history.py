"""What the history of a coordinator means for the page."""

from __future__ import annotations

import json
from pathlib import Path

from dash.conftest import FIRST
from dash.growing import GrowingRun
from dash.serving import client_of
from fedhp.dash.history import Histories, Membership


def follow(membership: Membership, event: str, **facts: object) -> list[tuple[str, str]]:
    line = {"at": 1.0, "who": "c", "event": event, **facts}
    return [(happening.kind, happening.text) for happening in membership.follow(line)]


def test_a_worker_that_was_silent_comes_back() -> None:
    run = Membership()
    assert follow(run, "lead", stand=[1, 4, 1], epoch=2) == [("leader", "c leads, epoch 2")]
    assert follow(run, "join", worker=0, name="w0") == [("join", "w0 joined as worker 0")]
    assert run.states[0] == "joining"
    follow(run, "attempt", participants=[0], round=5)
    assert run.states[0] == "ready"
    assert follow(run, "suspect", worker=0, seconds=2.0) == [
        ("suspect", "w0 is suspect: no heartbeat for 2.00 s")
    ]
    assert follow(run, "heard", worker=0) == [("back", "w0 sends heartbeats again")]
    assert run.states[0] == "ready"
    follow(run, "suspect", worker=0, seconds=2.0)
    follow(run, "dead", worker=0, seconds=9.0)
    follow(run, "attempt", participants=[0], round=5)  # begun before that was known
    assert run.states[0] == "dead"
    follow(run, "commit", round=5, reported=[])
    assert follow(run, "join", worker=0, name="w0") == [("back", "w0 joined again")]
    assert follow(run, "behind", worker=0)[0][0] == "catching up"
    assert run.states[0] == "catching up"
    follow(run, "commit", round=6, reported=[0])
    assert run.states[0] == "ready"
    assert run.state_after(4) == {0: "dead"}
    assert run.state_after(5) == {0: "catching up"}


def test_a_loss_that_several_report_is_one_event() -> None:
    run = Membership()
    follow(run, "join", worker=0, name="w0")
    follow(run, "attempt", participants=[0], round=1)
    ended = follow(run, "ended", name="w0", why="was ended by SIGKILL")
    assert ended == [("lost", "w0 is lost: its process was ended by SIGKILL")]
    assert follow(run, "lost", worker=0, why="its connection closed") == []
    follow(run, "commit", round=1, reported=[0])  # it reported before it was lost
    follow(run, "attempt", participants=[0], round=2)
    assert follow(run, "suspect", worker=0, seconds=4.0)[0][0] == "suspect"
    assert run.states[0] == "lost"
    follow(run, "dead", worker=0, seconds=15.0)
    assert run.states[0] == "dead"
    assert follow(run, "join", worker=0, name="w0") == [("back", "w0 joined again")]
    follow(run, "attempt", participants=[0], round=3)
    closed = follow(run, "lost", worker=0, why="its connection closed")
    assert closed == [("lost", "w0 is lost: its connection closed")]
    assert follow(run, "heard", worker=0) == [("back", "w0 sends heartbeats again")]
    assert run.states[0] == "ready"
    assert follow(run, "ended", name="boss", why="was ended by SIGKILL") == []


def test_who_reported_and_left_before_the_commit_stays_away() -> None:
    run = Membership()
    follow(run, "join", worker=0, name="w0")
    follow(run, "attempt", participants=[0], round=1)
    follow(run, "leave", worker=0, why="drained")
    follow(run, "commit", round=1, reported=[0])
    assert run.states[0] == "left"


def test_who_left_while_its_next_round_was_planned_stays_away() -> None:
    run = Membership()
    follow(run, "join", worker=0, name="w0")
    follow(run, "commit", round=1, reported=[0])
    follow(run, "leave", worker=0)
    follow(run, "attempt", participants=[0], round=2)  # planned before it left
    assert run.states[0] == "left"
    assert follow(run, "ended", name="w0", why="ended") == []
    follow(run, "commit", round=2, reported=[])
    follow(run, "attempt", participants=[0], round=3)  # it joined again, on another's record
    assert run.states[0] == "ready"


def test_every_other_event_has_words() -> None:
    run = Membership()
    follow(run, "join", worker=1, name="w1")
    events: list[tuple[str, dict[str, object], str, str]] = [
        ("leave", {"worker": 1, "why": "bye"}, "leave", "left"),
        ("dismissed", {"worker": 1}, "leave", "left"),
        ("removed", {"worker": 1, "why": "by hand"}, "removed", "removed"),
        ("allowed", {"worker": 1}, "allowed", "left"),
        ("suspended", {"worker": 1, "rounds": 2, "why": "slow"}, "suspended", "suspended"),
        ("quarantined", {"worker": 1, "name": "w1"}, "quarantined", "quarantined"),
    ]
    for event, facts, kind, state in events:
        shown = follow(run, event, **facts)
        assert [each for each, _ in shown] == [kind]
        assert run.states[1] == state
    others: list[tuple[str, dict[str, object], str]] = [
        ("refused", {"name": "", "why": "no certificate"}, "refusal"),
        ("waiting", {"why": "1 of 2 workers are ready"}, "pause"),
        ("attempt", {"participants": [], "round": 1}, "resume"),
        ("paused", {"why": "the disk is full"}, "pause"),
        ("resumed", {"round": 3}, "resume"),
        ("frozen", {"seconds": 4.0}, "pause"),
        ("gave_up", {"round": 3, "attempt": 1}, "retry"),
        ("left_aside", {"workers": [1]}, "retry"),
        ("warning", {"key": "attempts", "members": [], "text": "10 attempts"}, "warning"),
        ("survey", {"seconds": 0.1}, "survey"),
        ("certificate", {"name": "w1"}, "certificate"),
        ("drain", {"worker": 1}, "drain"),
        ("stopped", {"why": "by the operator"}, "stop"),
        ("finished", {"why": "all done"}, "finished"),
    ]
    for event, facts, kind in others:
        assert [each for each, _ in follow(run, event, **facts)] == [kind]


def test_lines_that_are_damaged_or_unknown_are_left_out() -> None:
    run = Membership()
    assert follow(run, "commit", round="many", reported=[0]) == []
    assert follow(run, "attempt", participants=7) == []
    assert follow(run, "lead", stand=[], epoch=1) == []
    assert follow(run, "something new", worker=1) == []
    assert list(run.follow({"event": "join"})) == []
    assert list(run.follow({"at": 1.0, "event": ["join"]})) == []
    assert run.states == {}


def test_only_whole_lines_are_read_and_only_once(tmp_path: Path) -> None:
    file = tmp_path / "history-c.jsonl"
    histories = Histories(tmp_path)
    assert histories.follow() == ([], False)
    join = json.dumps({"at": 1.0, "event": "join", "worker": 0, "name": "w0"})
    file.write_text(join[:20])
    assert histories.follow() == ([], False)
    file.write_text(f"{join}\nnot json\n[1]\n{join[:30]}")
    assert [happening.kind for happening in histories.follow()[0]] == ["join"]
    with file.open("a") as open_file:
        open_file.write(f"{join[30:]}\n")
    assert [happening.kind for happening in histories.follow()[0]] == ["back"]
    file.write_text("{}\n")
    assert histories.follow() == ([], True)  # another file: everything is read again


def test_a_link_is_not_followed_to_another_history(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps({"at": 1.0, "event": "join", "worker": 0, "name": "w0"}) + "\n")
    (tmp_path / "run" / "history-c.jsonl").symlink_to(secret)
    assert Histories(tmp_path / "run").follow() == ([], False)


def test_names_from_the_network_stay_data(runs: Path) -> None:
    growing = GrowingRun(runs / FIRST, runs / "net", network=True)
    growing.commit(2)
    sent = "<script>alert(1)</script>\u2028\n\nevent: x"
    growing.note(5.0, "join", worker=1, name=sent)
    name = "<script>alert(1)</script>   event: x"  # one harmless line, and no markup is removed
    growing.note(6.0, "leave", worker=1, why="</script>")
    client = client_of(runs)
    assert client.get("/api/run?run=net").json()["names"][1] == name
    answer = client.get("/api/events?run=net")
    assert answer.headers["content-type"] == "application/json"
    join, leave = answer.json()["events"]
    assert (join["text"], join["at"]) == (f"{name} joined as worker 1", 5.0)
    assert leave["text"] == f"{name} left: </script>"
    row = client.get("/api/workers?run=net").json()["workers"][1]
    assert (row["name"], row["state"]) == (name, "left")
    assert client.get("/api/worker?run=net&worker=1").json()["state"] == "left"
    growing.end("finished")


def test_states_of_an_earlier_round_are_those_of_then(runs: Path) -> None:
    growing = GrowingRun(runs / FIRST, runs / "net", network=True)
    growing.note(1.0, "lead", stand=[0, 0, 0], epoch=1)
    growing.note(1.0, "join", worker=0, name="w0")
    for index in (1, 2, 3):
        growing.note(float(index + 1), "attempt", participants=[0], round=index)
        if index == 2:
            growing.note(2.5, "suspect", worker=0, seconds=1.0)
        growing.note(index + 1.5, "commit", round=index, reported=[0] if index != 2 else [])
        growing.commit()
    client = client_of(runs)
    states = [
        client.get(f"/api/workers?run=net&round={index}").json()["workers"][0]["state"]
        for index in (1, 2, 3)
    ]
    assert states == ["suspect", "suspect", "ready"]
    clocks = {
        event["kind"]: event["clock"]
        for event in client.get("/api/events?run=net").json()["events"]
    }
    rounds = client.get("/api/progress?run=net").json()["rounds"]
    assert clocks == {"leader": 0.0, "join": 0.0, "suspect": rounds["clock"][0]}
    growing.end("finished")
