"""One complete record from the folders of several coordinators: whose rounds count."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cli.support import caller
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.merge import GatheredRun, gather
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.coordinator.committed_state import OPERATOR_STOP
from fedhp.cluster.failpoints import FAILPOINTS_VARIABLE
from fedhp.cluster.history import History
from fedhp.cluster.ops.launch import Cluster
from fedhp.config import load, to_tables
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE, Store
from net.clusters import tiny, until
from net.etcd_support import needs_etcd, running_etcd
from net.leaders import (
    EXPERIMENT,
    ROUNDS,
    RUN,
    Leader,
    files_below,
    round_record,
    two_leaders,
    whole_run,
)

Whose = list[tuple[int, int, str, int]]


def digest_of(folder: Path) -> str:
    with RunReader(folder) as run:
        return run.digest()


def whose(whole: GatheredRun) -> Whose:
    return [(piece.first, piece.last, piece.coordinator, piece.epoch) for piece in whole.pieces]


# --- whose rounds count --------------------------------------------------------------------


def test_two_leaders_make_one_whole_record(tmp_path: Path) -> None:
    first, second = two_leaders(tmp_path)
    before = files_below(tmp_path)
    whole = gather([second.folder, first.folder], tmp_path / "whole")
    assert whose(whole) == [(1, 3, "c0", 3), (4, 6, "c1", 8)]
    assert (whole.run, whole.status, whole.rounds, whole.planned) == (RUN, "finished", 6, 6)
    after = files_below(tmp_path)
    assert {name: after[name] for name in before} == before
    assert digest_of(whole.folder) == digest_of(whole_run(tmp_path / "only"))
    with RunReader(whole.folder) as run, RunReader(tmp_path / "only") as only:
        assert run.table("wall") == only.table("wall")
        assert run.table("workers", round_index=4) == only.table("workers", round_index=4)
        assert run.meta("network") is True
        assert run.meta("run") == RUN
        assert run.meta("samples") == [100, 101, 102]  # the second never met worker 1
        assert run.meta("model_bytes") == 4000
        assert run.meta("parameters") == 1000
        assert run.meta("experiment") == to_tables(EXPERIMENT)
        assert run.meta("peak_memory") > 0
    assert load(whole.folder / "experiment.toml") == EXPERIMENT
    assert check_invariants(whole.folder, rounds=ROUNDS) == []
    assert sorted(files_below(whole.folder)) == [
        "experiment.toml",
        "history-c0.jsonl",
        "history-c1.jsonl",
        RECORD_FILE,
    ]


def test_a_round_that_was_committed_but_never_said_to_be(tmp_path: Path) -> None:
    first = Leader(tmp_path / "c0", "c0").lead(3).rounds(1, 3)
    first.write(round_record(4, bandwidth=9.0))
    first.end()
    second = Leader(tmp_path / "c1", "c1").lead(8, first.at(4)).rounds(5, 6).finish()
    whole = gather([first.folder, second.folder], tmp_path / "whole")
    assert whose(whole) == [(1, 4, "c0", 3), (5, 6, "c1", 8)]
    with RunReader(whole.folder) as run, RunReader(first.folder) as piece:
        assert run.table("workers", round_index=4) == piece.table("workers", round_index=4)
    assert check_invariants(whole.folder, rounds=ROUNDS) == []


def test_lines_that_a_power_cut_took_are_result_by_the_next_leader(tmp_path: Path) -> None:
    first, second = two_leaders(tmp_path)
    first.forget(("commit", 2), ("commit", 3))
    whole = gather([first.folder, second.folder], tmp_path / "whole")
    assert whose(whole) == [(1, 3, "c0", 3), (4, 6, "c1", 8)]


def test_who_leads_again_has_an_old_row_that_does_not_count(tmp_path: Path) -> None:
    first = Leader(tmp_path / "c0", "c0").lead(3).rounds(1, 2)
    first.write(round_record(3, bandwidth=9.0))
    first.end()
    second = Leader(tmp_path / "c1", "c1").lead(5, first.at(2)).rounds(3, 4).end()
    first.lead(9, second.at(4)).rounds(5, 6).finish()
    whole = gather([first.folder, second.folder], tmp_path / "whole")
    assert whose(whole) == [(1, 2, "c0", 3), (3, 4, "c1", 5), (5, 6, "c0", 9)]
    assert digest_of(whole.folder) == digest_of(whole_run(tmp_path / "only"))


def test_of_two_that_committed_a_round_the_later_epoch_counts(tmp_path: Path) -> None:
    first = Leader(tmp_path / "c0", "c0").lead(3).rounds(1, 4).end()
    second = Leader(tmp_path / "c1", "c1").lead(8, first.at(3)).rounds(4, 6).finish()
    whole = gather([first.folder, second.folder], tmp_path / "whole")
    assert whose(whole) == [(1, 3, "c0", 3), (4, 6, "c1", 8)]
    assert "doubled" in {violation.rule for violation in check_invariants(whole.folder)}


def test_a_run_that_is_not_over_ends_with_the_last_committed_round(tmp_path: Path) -> None:
    first = Leader(tmp_path / "c0", "c0").lead(3).rounds(1, 2)
    first.write(round_record(3))
    whole = gather([first.folder], tmp_path / "whole")  # and it still leads
    first.end()
    assert (whole.rounds, whole.status) == (2, "running")
    with RunReader(whole.folder) as run:
        assert run.table("rounds")["round"] == [1, 2]
        assert set(run.table("links")["round"]) == {1, 2}


def test_a_finished_run_stays_finished_when_another_takes_the_lead(tmp_path: Path) -> None:
    first, second = two_leaders(tmp_path)
    Leader(tmp_path / "c2", "c2").lead(11, second.at(6)).end()
    whole = gather([first.folder, second.folder, tmp_path / "c2"], tmp_path / "whole")
    assert whole.status == "finished"
    assert whole.rounds == ROUNDS


def test_a_gathered_record_can_be_gathered_with_more(tmp_path: Path) -> None:
    first = Leader(tmp_path / "c0", "c0").lead(3).rounds(1, 2).end()
    second = Leader(tmp_path / "c1", "c1").lead(5, first.at(2)).rounds(3, 4).end()
    part = gather([first.folder, second.folder], tmp_path / "part")
    third = Leader(tmp_path / "c2", "c2").lead(9, second.at(4)).rounds(5, 6).finish()
    whole = gather([part.folder, third.folder], tmp_path / "whole")
    assert whose(whole) == [(1, 2, "c0", 3), (3, 4, "c1", 5), (5, 6, "c2", 9)]
    assert digest_of(whole.folder) == digest_of(whole_run(tmp_path / "only"))


def test_workers_histories_come_along_and_names_do_not_clash(tmp_path: Path) -> None:
    first = Leader(tmp_path / "a", "w0").lead(3).rounds(1, 3).end()
    state = tmp_path / "workers" / "w0"  # a worker that stood by, and led
    second = Leader(state / "coordinator", "w0").lead(8, first.at(3)).rounds(4, 6).finish()
    history = History(state, "w0")
    history.append("join", {"run": RUN, "epoch": 3, "worker": 0})
    history.close()
    idle = tmp_path / "idle"
    idle.mkdir()
    History(idle, "c9").close()  # it never had to lead
    whole = gather([first.folder, state, idle], tmp_path / "whole")
    histories = sorted(name for name in files_below(whole.folder) if name.endswith(".jsonl"))
    assert histories == [
        "history-w0-2.jsonl",
        "history-w0.jsonl",
        "workers/c9/history-c9.jsonl",
        "workers/w0/history-w0.jsonl",
    ]
    paths = [whole.folder, *whole.folder.rglob("*")]
    assert not any(path.stat().st_mode & 0o077 for path in paths)
    timeline = read_timeline(whole.folder)
    assert [term.epoch for term in timeline.terms] == [first.epoch, second.epoch]
    assert {term.folder for term in timeline.terms} == {whole.folder}
    assert list(timeline.worker_events) == ["w0"]


# --- the command ---------------------------------------------------------------------------


def test_the_command_tells_people_and_machines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command, out = caller(capsys), tmp_path / "whole"
    first, second = two_leaders(tmp_path / "in")
    result = command("cluster", "gather", first.folder, second.folder, "--out", out)
    assert result.code == 0, result.err
    assert f"rounds 1 to 3: c0 (epoch 3), {first.folder}" in result.out
    assert f"run: {out} (finished, 6 of 6 rounds)" in result.out
    assert "not over" not in result.out
    shown = command("show", out, "--json").json()
    assert shown["rounds"] == ROUNDS
    assert "3 machines of a network" in command("show", out).out
    assert command("export", out, "--table", "rounds").out.count("\n") == ROUNDS + 1

    result = command("cluster", "gather", first.folder, "--out", tmp_path / "part", "--json")
    assert result.json() == {
        "folder": str(tmp_path / "part"),
        "run": RUN,
        "status": "running",
        "rounds": 3,
        "pieces": [
            {
                "first": 1,
                "last": 3,
                "coordinator": "c0",
                "epoch": 3,
                "folder": str(first.folder),
            }
        ],
    }
    result = command("cluster", "gather", first.folder, "--out", tmp_path / "again")
    assert "did another coordinator lead afterwards?" in result.out
    store = Store.open(first.folder, write=True)
    store.set_meta(OPERATOR_STOP, "stopped by the operator")
    store.close()
    result = command("cluster", "gather", first.folder, "--out", tmp_path / "stopped")
    assert "the run was stopped by the operator; `fedhp coordinator --resume`" in result.out
    assert "did another" not in result.out
    result = command("cluster", "gather", second.folder, "--out", tmp_path / "never")
    assert result.code == 2
    assert "rounds 1 to 3" in result.err


@pytest.mark.slow
@needs_etcd
def test_a_killed_leader_and_its_standby(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rounds, top, out = 8, tmp_path / "run", tmp_path / "whole"
    with (
        running_etcd(tmp_path, 1) as etcd,
        Cluster(
            tiny(workers=3, rounds=rounds),
            top,
            coordinators=("c0",),
            standbys=("c1",),
            ha=etcd.url,
            insecure_etcd=True,
            lease=5.0,
            restart=False,
        ) as cluster,
    ):
        cluster.start(environment={"c0": {FAILPOINTS_VARIABLE: "coordinator.committed@3=kill"}})
        until(cluster, lambda: cluster.exit_codes()["c1"] == 0, "the standby ends the run")
        assert cluster.exit_codes()["c0"] == -signal.SIGKILL
    command = caller(capsys)
    result = command("cluster", "gather", top / "c1", top / "c0", top / "workers", "--out", out)
    assert result.code == 0, result.err
    assert "rounds 1 to 3: c0" in result.out
    assert "rounds 4 to 8: c1" in result.out
    with RunReader(out) as run:
        clocks = run.table("rounds")["clock"]
        assert run.table("rounds")["round"] == list(range(1, rounds + 1))
        assert clocks == sorted(clocks)
        assert all(count > 0 for count in run.meta("samples"))
        assert run.meta("model_bytes") > 0
    assert command("show", out, "--json").json()["rounds"] == rounds
    result = command("cluster", "verify", out, "--json")
    assert result.code == 0, result.err
    assert result.json()["whole"]
    result = command("report", out, "--out", tmp_path / "page")
    assert result.code == 0, result.err
