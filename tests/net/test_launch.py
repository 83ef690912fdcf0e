"""A federation of real processes on one machine: a whole run, an operator, deaths, restarts."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tomli_w

from cli.support import is_alive
from fedhp.cluster.audit.timeline import final_digests
from fedhp.cluster.history import read_history
from fedhp.cluster.ops import operator, processes
from fedhp.cluster.ops.launch import Cluster, ensure_certificates
from fedhp.cluster.ops.logs import last_error
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.security.identity import load_identity
from fedhp.config import to_tables
from fedhp.errors import ConfigError, RunError
from fedhp.files import write_file
from fedhp.record.reader import RunReader
from net.clusters import ENDLESS, PATIENCE, processes_of, round_of, status_of, tiny, until
from subprocesses import ended_after
from waiting import wait_until


def test_a_whole_run_of_three_workers(tmp_path: Path) -> None:
    with Cluster(tiny(), tmp_path / "run", restart=False) as cluster:
        cluster.start()
        cluster.wait(PATIENCE)
        assert cluster.exit_codes() == {"coordinator": 0, "w0": 0, "w1": 0, "w2": 0}
        facts = list(cluster.rounds())
        assert [row.round_index for row in facts] == [1, 2, 3]
        assert all(row.workers == 3 and row.steps == 3 for row in facts)
        assert [row.round_index for row in cluster.rounds(after=2)] == [3]
        digests = cluster.digests()
    assert sorted(digests) == ["w0", "w1", "w2"]
    assert all(len(digest) == 64 for digest in digests.values())
    with RunReader(tmp_path / "run") as run:
        assert run.meta("status") == "finished"
        assert run.summary().mean_model_accuracy is None
        assert sum(run.meta("samples")) == 1438  # the digits that are not for testing
        assert all(run.meta("samples"))
    assert all((tmp_path / "run" / "logs" / f"{name}.log").is_file() for name in ("w0", "w2"))
    assert open_to_others(tmp_path / "run") == []
    # Other settings are refused before a process starts.
    changed = tiny().model_copy(update={"rounds": 77})
    with Cluster(changed, tmp_path / "run") as cluster:
        with pytest.raises(RunError, match="rounds is 77, but the run was started with 3"):
            cluster.start()
        assert not cluster.exit_codes()


def open_to_others(folder: Path) -> list[str]:
    """What another user of the machine could read or enter; certificates are public."""
    paths = [path for path in (folder, *folder.rglob("*")) if path.suffix != ".crt"]
    return [f"{path} {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & 0o077]


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("endless")
    with Cluster(tiny(rounds=ENDLESS), folder, restart=False) as cluster:
        cluster.start()
        yield cluster


def test_an_operator_watches_drains_and_stops_and_the_run_is_resumed(endless: Cluster) -> None:
    cluster = endless
    until(cluster, lambda: round_of(cluster) >= 2, "two rounds")
    reply = cluster.status()
    assert reply.state == "running"
    assert [member.name for member in reply.members] == ["w0", "w1", "w2"]
    assert reply.versions["fedhp"]
    assert reply.round_seconds > 0

    target = operator.target_of(cluster.folder)
    with pytest.raises(RunError, match="there is no worker w9; there are w0, w1, w2"):
        operator.command(target, drain="w9")
    assert "w2 leaves" in operator.command(target, drain="w2")
    until(cluster, lambda: cluster.exit_codes()["w2"] is not None, "w2 has left")
    assert cluster.exit_codes() == {"coordinator": None, "w0": None, "w1": None, "w2": 0}
    before = round_of(cluster)
    until(cluster, lambda: round_of(cluster) > before + 1, "rounds of the others")

    assert "ends after round" in operator.command(target, stop=True)
    cluster.wait(PATIENCE)
    assert set(cluster.exit_codes().values()) == {0}
    with RunReader(cluster.folder) as run:
        assert run.meta("status") == "interrupted"
        done = run.rounds_done
    assert done > before

    cluster.resume = True
    for name in (*cluster.coordinators, *cluster.workers):
        cluster.start_process(name)
    until(cluster, lambda: round_of(cluster) > done, "the run continues")
    cluster.resume = False
    reply = cluster.status()
    assert reply.epoch == 2
    assert {member.name for member in reply.members} == {"w0", "w1", "w2"}


def test_a_coordinator_that_is_killed_comes_back_where_it_was(endless: Cluster) -> None:
    cluster = endless
    until(cluster, lambda: round_of(cluster) >= 2, "two rounds")
    address, before = operator.target_of(cluster.folder).address, round_of(cluster)
    cluster.kill("coordinator")
    assert cluster.exit_codes()["coordinator"] == -signal.SIGKILL
    with pytest.raises(RunError, match="nothing listens there"):
        cluster.status()
    cluster.start_process("coordinator")
    until(cluster, lambda: round_of(cluster) > before, "rounds after the restart")
    assert operator.target_of(cluster.folder).address == address
    assert cluster.pid("w0") > 0


def test_sigterm_saves_the_run_and_the_workers_wait(endless: Cluster) -> None:
    cluster = endless
    until(cluster, lambda: round_of(cluster) >= 2, "two rounds")
    cluster.kill("coordinator", signal.SIGTERM)
    wait_until(lambda: cluster.exit_codes()["coordinator"] is not None, "the coordinator ended")
    assert cluster.exit_codes()["coordinator"] == 130
    with RunReader(cluster.folder) as run:
        assert run.meta("status") == "interrupted"
        done = run.rounds_done
    assert all(is_alive(cluster.pid(name)) for name in cluster.workers)
    cluster.start_process("coordinator")
    until(cluster, lambda: round_of(cluster) > done, "rounds of the same workers")


def test_a_dead_worker_is_restarted_once_a_minute(tmp_path: Path) -> None:
    now = [0.0]
    with Cluster(tiny(workers=1, rounds=ENDLESS), tmp_path, clock=lambda: now[0]) as cluster:
        cluster.prepare()
        cluster.start_process("w0")  # without a coordinator it waits for one
        first = cluster.pid("w0")
        cluster.kill("w0")
        cluster.supervise()
        second = cluster.pid("w0")
        assert second != first
        cluster.kill("w0")
        now[0] = 59.0
        cluster.supervise()
        with pytest.raises(RunError, match="no running process 'w0'"):
            cluster.pid("w0")
        now[0] = 61.0
        cluster.supervise()
        assert cluster.pid("w0") != second
        assert sum("was ended by SIGKILL" in note for note in cluster.notes) == 2
        ended = list(read_history(tmp_path / "history-launcher.jsonl"))
        assert [(each["event"], each["name"], each["why"]) for each in ended] == [
            ("ended", "w0", "was ended by SIGKILL")
        ] * 2


def test_the_error_when_no_worker_is_left_has_the_reason(tmp_path: Path) -> None:
    with Cluster(tiny(workers=1), tmp_path, restart=False) as cluster:
        cluster.prepare()
        (cluster.certificates / "w0.key").chmod(0o644)
        cluster.start_process("w0")
        wait_until(lambda: cluster.exit_codes()["w0"] is not None, "w0 ended")
        with pytest.raises(RunError, match=r"(?s)w0 ended with an error.*mode 0644"):
            cluster.check_alive()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_process_survives_the_launcher(tmp_path: Path) -> None:
    file, out = tmp_path / "tiny.toml", tmp_path / "run"
    file.write_text(tomli_w.dumps(to_tables(tiny(rounds=ENDLESS))), encoding="utf-8")
    command = [sys.executable, "-m", "fedhp", "cluster", "up", str(file), "--out", str(out)]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ended_after(launcher):
        with Cluster(tiny(rounds=ENDLESS), out) as watched:  # only looks
            until(watched, lambda: round_of(watched) >= 1, "a round")
        family = processes_of(launcher.pid)
        workers = [pid for pid in family if _is_worker(pid)]
        assert len(workers) >= 4
        os.kill(workers[-1], signal.SIGSTOP)  # one that cannot notice anything
    wait_until(lambda: not any(map(is_alive, family)), "everything ended")


def _is_worker(pid: int) -> bool:
    """Forked from the fork server: its parent's parent is the launcher."""
    return b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()


def private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def collect_garbage(result: Path) -> None:
    """The main function of a process that writes what a full collection costs it."""

    async def main(stop: asyncio.Event) -> int:
        before = private_bytes()
        gc.collect()
        write_file(result, str(private_bytes() - before).encode())
        return 0

    processes.run_process("w0", processes.ProcessEnvironment(None), main)


def test_the_libraries_stay_shared_by_all_processes(tmp_path: Path) -> None:
    """A full collection, after an hour or so, copied 80 MB of them into each process."""
    processes.warm_up()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=collect_garbage, args=(tmp_path / "bytes",), daemon=True)
    process.start()
    process.join(PATIENCE)
    assert int((tmp_path / "bytes").read_bytes()) < 10_000_000


def test_what_cannot_work_is_refused_before_anything_starts(tmp_path: Path) -> None:
    pens = {"name": "pens", "symmetric": True}
    with (
        Cluster(tiny(algorithm=pens), tmp_path / "run") as cluster,
        pytest.raises(ConfigError, match="network of machines does not offer"),
    ):
        cluster.start()
    many = tiny(workers=2, cluster={"min_workers": 3})
    with (
        Cluster(many, tmp_path / "run") as cluster,
        pytest.raises(RunError, match="min_workers is 3"),
    ):
        cluster.start()
    assert not (tmp_path / "run").exists()


def test_certificates_are_kept_as_long_as_they_are_valid(tmp_path: Path) -> None:
    names = {"w0": ("worker",), "c": ("coordinator",)}
    past = datetime.now(UTC) - timedelta(days=20)
    init_authority(tmp_path, now=past)
    ensure_certificates(tmp_path, names)
    kept = (tmp_path / "w0.crt").read_bytes()
    ensure_certificates(tmp_path, names)
    assert (tmp_path / "w0.crt").read_bytes() == kept
    issue(tmp_path, "w0", days=10, replace=True, now=past)
    ensure_certificates(tmp_path, {"w0": ("worker",), "c": ("coordinator", "operator")})
    assert load_identity(tmp_path, "w0").ends > datetime.now(UTC)
    assert load_identity(tmp_path, "c").roles == {"coordinator", "operator"}


def test_final_digests_are_those_of_the_last_commit(tmp_path: Path) -> None:
    def line(event: str, attempt: tuple[int, int, int], **facts: object) -> str:
        epoch, index, number = attempt
        entry = {"event": event, "epoch": epoch, "round": index, "attempt": number, **facts}
        return json.dumps(entry) + "\n"

    joins = [json.dumps({"event": "join", "worker": w, "name": f"n{w}"}) + "\n" for w in (0, 1)]
    lines = [
        *joins,
        line("report", (1, 1, 1), worker=0, digest="old"),
        line("commit", (1, 1, 1), reported=[0]),
        line("report", (1, 2, 1), worker=0, digest="given up"),
        line("report", (1, 2, 2), worker=1, digest="b"),
        line("report", (1, 2, 2), worker=0, digest="a"),
        line("commit", (1, 2, 2), reported=[0, 1]),
        line("report", (1, 3, 1), worker=0, digest="never committed"),
        '{"torn',
    ]
    file = tmp_path / "history-c.jsonl"
    file.write_text("".join(lines))
    assert final_digests([file]) == {"n0": "a", "n1": "b"}
    # A coordinator that followed committed a later round, in another file.
    later = tmp_path / "history-d.jsonl"
    later.write_text(
        line("report", (2, 3, 1), worker=1, digest="z") + line("commit", (2, 3, 1), reported=[1])
    )
    assert final_digests([file, later]) == {"n1": "z"}


def test_asynchronous_digests_are_everyones_last(tmp_path: Path) -> None:
    file = tmp_path / "history-c.jsonl"
    events = [
        {"event": "report", "epoch": 1, "round": 1, "attempt": 1, "worker": 0, "digest": "a"},
        {"event": "report", "epoch": 1, "round": 1, "attempt": 1, "worker": 0, "digest": "b"},
        {"event": "commit", "epoch": 1, "round": 1, "attempt": 1, "reported": []},
    ]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert final_digests([file]) == {"0": "b"}


def test_the_last_error_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "w0.log"
    assert last_error(log) == "  (it logged nothing)"
    log.write_text("a info w0: hello\nb error w0: bad thing\nc info w0: bye\n")
    assert last_error(log) == "  b error w0: bad thing"
    log.write_text("b error w0: bad thing\\n  fix: a better one\n")
    assert last_error(log) == "  b error w0: bad thing\n    fix: a better one"
    log.write_text(json.dumps({"level": "error", "message": "bad thing\n  fix: this"}) + "\n")
    assert last_error(log) == "  bad thing\n    fix: this"


def test_status_needs_a_coordinator(tmp_path: Path) -> None:
    with Cluster(tiny(), tmp_path) as cluster:
        assert status_of(cluster) is None
        with pytest.raises(RunError, match="does not say where a coordinator is"):
            cluster.status()
