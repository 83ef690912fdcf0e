"""--log and export --to: every log, opened with its library's own reader, is the record."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedhp
from cli.support import Command, digest_of, ended, interrupt, rounds_in, write
from disks import mounted
from fedhp.errors import RunError
from fedhp.record.store import RECORD_FILE
from log_readers import (
    SINKS,
    ReadLog,
    Scalars,
    as_stored,
    history,
    read_log,
    read_mlflow,
    read_tensorboard,
    read_wandb,
    require,
)
from subprocesses import ForkedCommand
from waiting import wait_until

# The libraries use what is deprecated in the libraries that they use.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

EACH = pytest.mark.parametrize("sink", SINKS)
FINISHED = {"tensorboard": "finished", "mlflow": "FINISHED", "wandb": "finished"}


def recorded(folder: Path, *, per_worker: bool = False) -> Scalars:
    """What a log has to hold, read from the tables without the code that makes logs."""
    scalars: Scalars = {}

    def add(name: str, step: int, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            scalars.setdefault(name, {})[step] = float(value)

    with fedhp.open_run(folder) as run:
        rounds, total = run.table("rounds"), 0
        for row, step in enumerate(rounds["round"]):
            total += rounds["bytes_sent"][row]
            add("network/bytes_total", step, total)
            for name, column in (
                ("train/loss", "train_loss"),
                ("train/learning_rate", "learning_rate"),
                ("train/local_steps", "mean_local_steps"),
                ("time/clock", "clock"),
                ("time/round", "round_time"),
                ("time/waiting", "mean_waiting_time"),
                ("network/bytes", "bytes_sent"),
                ("network/links", "links"),
            ):
                add(name, step, rounds[column][row])
            tested = run.table("worker_evaluations", round_index=step)["accuracy"]
            if tested:
                add("test/accuracy_worst_worker", step, min(tested))
                add("test/accuracy_best_worker", step, max(tested))
        tests, losses = run.table("evaluations"), run.table("test_metrics")
        for row, step in enumerate(tests["round"]):
            add("test/accuracy", step, tests["accuracy"][row])
            add("test/accuracy_mean_model", step, tests["mean_model_accuracy"][row])
        for row, step in enumerate(losses["round"]):
            if losses["whole"][row] == 0:
                add("test/loss", step, losses["loss"][row])
                add("test/loss_mean_model", step, losses["mean_model_loss"][row])
        facts = run.table("facts")
        for name, step, value in zip(facts["name"], facts["round"], facts["value"], strict=True):
            add(f"algorithm/{name}", step, value)
        if per_worker:
            workers = run.table("workers")
            for row, step in enumerate(workers["round"]):
                number = workers["worker"][row]
                for column in ("train_loss", "local_steps", "waiting_time", "bandwidth"):
                    add(f"{column}_by_worker/{number}", step, workers[column][row])
    return scalars


def check_log(sink: str, log: ReadLog, run: Path, *, per_worker: bool = False) -> None:
    """A log and a record are the same."""
    expected = recorded(run, per_worker=per_worker)
    held = history(log)
    assert log.repeated == 0
    if not per_worker:
        assert held.keys() == expected.keys()
    for name, points in expected.items():
        assert held[name] == {step: as_stored(sink, value) for step, value in points.items()}, name
    assert log.digest == digest_of(run)
    assert log.status == FINISHED[sink]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with MLflow's tables: making them takes seconds."""
    require("mlflow")
    from mlflow.tracking import MlflowClient

    from fedhp.sinks.mlflow import _client, store_uri

    store = tmp_path_factory.mktemp("store") / "mlflow.db"
    assert isinstance(_client(store), MlflowClient)
    assert store_uri(store) == f"sqlite:///{store}"
    _client(store).search_experiments()
    return store


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Path:
    """A run that was logged to all sinks while it ran, as a command in a process of its own."""
    require(*SINKS)
    folder = tmp_path_factory.mktemp("logged")
    run = folder / "run"
    run.mkdir()
    file = write(folder, rounds=12, algorithm={"name": "fedhp"}, evaluation={"every": 2})
    options = _all_logs(folder, template)
    with ForkedCommand("run", file, "--out", run, *options, "--per-worker") as process:
        result = ended(process)
    assert result.code == 0, result.err
    assert "tensorboard --logdir" in result.out
    assert f"mlflow ui --backend-store-uri sqlite:///{folder}/store.db" in result.out
    assert "wandb leet" in result.out
    assert "warning" not in result.err
    return run


def live_log(sink: str, run: Path) -> ReadLog:
    if sink == "mlflow":
        return read_mlflow(run.parent / "store.db")["run"]
    return read_log(sink, run)


@EACH
def test_a_live_log_is_the_record(sink: str, logged: Path) -> None:
    log = live_log(sink, logged)
    check_log(sink, log, logged, per_worker=True)
    with fedhp.open_run(logged) as run:
        clocks = dict(zip(run.table("rounds")["round"], run.table("rounds")["clock"], strict=True))
    assert len(log.scalars["accuracy_by_worker/5"]) == len(log.scalars["test/accuracy"]) == 6
    settings = log.settings
    if sink == "wandb":
        assert settings["training"]["local_steps"] == 3
        assert settings["data"]["skew"] == 0.8
        assert settings["label"] == "fedhp"
        return
    assert log.times["time/clock"] == pytest.approx(clocks, abs=1e-3)
    assert float(settings["training.local_steps"]) == 3
    assert float(settings["data.skew"]) == 0.8
    assert settings["algorithm.name"] == settings["label"] == "fedhp"
    assert log.scalars["final/final_accuracy"] == {
        12: pytest.approx(fedhp.open_run(logged).summary().final_accuracy)
    }


@pytest.mark.slow
@EACH
def test_a_finished_run_gets_the_same_log(
    sink: str, logged: Path, tmp_path: Path, template: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(logged, copy, ignore=shutil.ignore_patterns("tensorboard", "wandb"))
    store = shutil.copy(template, tmp_path / "store.db")
    to = f"mlflow:{store}" if sink == "mlflow" else sink
    fedhp.export(copy, to=to, per_worker=True)
    assert live_log(sink, copy).scalars == live_log(sink, logged).scalars
    assert live_log(sink, copy).settings == live_log(sink, logged).settings
    assert live_log(sink, copy).digest == live_log(sink, logged).digest


@pytest.mark.slow
@EACH
def test_a_log_that_is_whole_is_left_alone(sink: str, logged: Path) -> None:
    to = f"mlflow:{logged.parent}/store.db" if sink == "mlflow" else sink
    folder = {"tensorboard": logged / "tensorboard", "wandb": logged / "wandb"}.get(sink)

    def names() -> list[str]:
        return sorted(path.name for path in folder.iterdir()) if folder else []

    before, log = names(), live_log(sink, logged)
    fedhp.export(logged, to=[to], per_worker=True)
    assert names() == before
    assert live_log(sink, logged) == log


def test_a_run_is_the_same_without_a_log(logged: Path) -> None:
    file = logged.parent / "tiny.toml"
    with fedhp.run(file, logged.parent / "plain") as run:
        assert run.digest() == digest_of(logged)
    assert (logged.parent / "plain/record.sqlite").read_bytes()[18:20] == b"\1\1"
    assert (logged / "record.sqlite").read_bytes()[18:20] == b"\1\1"  # one plain file, as well


@pytest.mark.slow
def test_kill_and_resume(tmp_path: Path, template: Path) -> None:
    """kill -9 while it logs, then --resume: no point twice, none missing."""
    require(*SINKS)
    run = tmp_path / "run"
    file = write(
        tmp_path, rounds=100_000, training={"local_steps": 50}, checkpoint={"seconds": 0.2}
    )
    command = ("run", file, "--out", run, *_all_logs(tmp_path, template), "--resume")
    with ForkedCommand(*command) as process:
        wait_until(lambda: all(_has_begun(sink, run) for sink in SINKS), "a part of the logs")
        assert process.poll() is None
        process.kill()
        process.wait(60)
    killed = rounds_in(run)
    with ForkedCommand(*command) as process:
        wait_until(lambda: rounds_in(run) > killed + 20, "more rounds")
        interrupt(process)
        result = ended(process)
    assert result.code == 130
    assert "warning" not in result.err, result.err
    expected = recorded(run)
    assert len(expected["train/loss"]) > killed + 20
    for sink in SINKS:
        log = live_log(sink, run)
        assert log.repeated == 0, sink
        assert history(log) == {
            name: {step: as_stored(sink, value) for step, value in points.items()}
            for name, points in expected.items()
        }
        assert log.digest is None


def _all_logs(folder: Path, template: Path) -> list[str]:
    """The options of all sinks, MLflow's with a store that has its tables."""
    store = shutil.copy(template, folder / "store.db")
    return ["--log", "tensorboard", "--log", f"mlflow:{store}", "--log", "wandb"]


def _has_begun(sink: str, run: Path) -> bool:
    """Whether some rounds of a run are in its log."""
    if sink == "tensorboard":
        files = list((run / "tensorboard").glob("events*"))
        return bool(files) and files[0].stat().st_size > 8000
    if sink == "mlflow":
        with contextlib.closing(sqlite3.connect(run.parent / "store.db")) as store:
            return bool(store.execute("SELECT count(*) FROM metrics").fetchone()[0] > 20)
    return any(file.stat().st_size > 8000 for file in run.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_more_rounds(tmp_path: Path, template: Path) -> None:
    """The last test of a run that is continued was never one of its tests."""
    require("tensorboard", "mlflow")
    run, logs = tmp_path / "run", _all_logs(tmp_path, template)[:4]
    for rounds, tests in ((3, {2, 3}), (5, {2, 4, 5})):
        file = write(tmp_path, rounds=rounds, evaluation={"every": 2})
        with ForkedCommand("run", file, "--out", run, *logs, "--resume") as process:
            assert ended(process).code == 0
        for sink in ("tensorboard", "mlflow"):
            log = live_log(sink, run)
            check_log(sink, log, run)
            assert set(log.scalars["test/accuracy"]) == tests


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "300k") as place:
        yield place


@pytest.mark.slow
@pytest.mark.parametrize("free", [9_000, 40_000])
def test_a_full_disk_ends_the_logs_and_not_the_run(
    free: int, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full when the logs are opened, or later: each sink is reported once, the run is whole."""
    require(*SINKS)
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # wandb's process of this one would stay
    (small_disk / "filler").write_bytes(b"\0" * (300 * 1024 - free))
    file, run = write(tmp_path, rounds=100), tmp_path / "run"
    logs = [word for sink in SINKS for word in ("--log", f"{sink}:{small_disk}/{sink}")]
    with ForkedCommand("run", file, "--out", run, *logs) as process:
        result = ended(process)
        wait_until(lambda: not _is_used(small_disk), "the end of wandb's processes")
    assert result.code == 0, result.err
    for sink in SINKS:
        assert result.err.count(f"for {sink} could not be written") == 1, result.err
        assert f"fedhp export {run} --to {sink}" in result.err
    assert "to look at it" not in result.out
    with fedhp.run(file, tmp_path / "plain") as plain:
        assert plain.digest() == digest_of(run)
    fedhp.export(run, to="tensorboard")
    check_log("tensorboard", read_log("tensorboard", run), run)


def _is_used(folder: Path) -> bool:
    """Whether a process has a file open there."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink().is_relative_to(folder):
                return True
    return False


@pytest.mark.slow
def test_a_comparison(command: Command, tmp_path: Path, template: Path) -> None:
    """All runs in one store; finished ones are not logged again."""
    require("mlflow", "tensorboard")
    out = tmp_path / "both"
    out.mkdir()
    file = write(tmp_path, compare={"algorithms": ["dpsgd", "adpsgd"], "seeds": [0, 1]})
    store, board = tmp_path / "store.db", tmp_path / "board"
    shutil.copy(template, store)
    logs = ("--log", f"mlflow:{store}", "--log", f"tensorboard:{board}")
    arguments = ("compare", file, "--out", out, "--no-figures", "--jobs", 2, *logs)
    result = command(*arguments)
    assert result.code == 0, result.err
    assert f"tensorboard --logdir {board}" in result.out
    runs = sorted(record.parent for record in out.glob("*/*/record.sqlite"))
    assert len(runs) == 4
    by_folder = read_mlflow(store)
    assert sorted(by_folder) == [str(run.relative_to(tmp_path)) for run in runs]
    for run in runs:
        check_log("mlflow", by_folder[str(run.relative_to(tmp_path))], run)
        check_log("tensorboard", read_tensorboard(board / run.relative_to(tmp_path)), run)
    files = sorted(board.rglob("events*"))
    again = command(*arguments, "--resume", "--seeds", "0-2")
    assert again.code == 0, again.err
    assert len(read_mlflow(store)) == 6
    assert set(files) < set(board.rglob("events*"))


@pytest.mark.slow
def test_a_real_network(command: Command, tmp_path: Path) -> None:
    require("tensorboard")
    out = tmp_path / "run"
    arguments = ("cluster", "up", write(tmp_path), "--workers", 2, "--out", out)
    result = command(*arguments, "--log", "tensorboard", "rounds=3")
    assert result.code == 0, result.err
    check_log("tensorboard", read_log("tensorboard", out), out)


def test_an_interrupted_run_has_no_summary(tmp_path: Path) -> None:
    require("tensorboard")
    file, run = write(tmp_path, rounds=3), tmp_path / "run"
    next(fedhp.start(file, run).rounds())
    fedhp.export(run, to="tensorboard")
    log = read_log("tensorboard", run)
    assert log.digest is None
    assert set(log.scalars["train/loss"]) == {1}
    with fedhp.run(file, run, resume=True, log="tensorboard"):
        check_log("tensorboard", read_log("tensorboard", run), run)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--log", "tensorbord"), ("unknown log 'tensorbord'", "did you mean 'tensorboard'?")),
        (("--log", "mlflow:http://host:5000"), ("address of the network", "local")),
        (("--log", "wandb:"), ("no path after the colon",)),
        (("--log", "wandb", "--log", "wandb:x"), ("'wandb' is given twice",)),
        (("--per-worker",), ("no effect without --log",)),
        (("--log", "tensorboard:{file}"), ("is a file",)),
        (("--log", "mlflow:a?b.db"), ("has a ? or an encoded character",)),
    ],
)
def test_wrong_options(
    options: tuple[str, ...], words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    file, out = write(tmp_path), tmp_path / "run"
    given = [option.format(file=file) for option in options]
    for arguments in (("run", file, "--out", out), ("compare", file, "--out", out)):
        result = command(*arguments, *given)
        assert result.code == 2
        assert "allowed:" in result.err
        assert "fix:" in result.err
        for word in words:
            assert word in result.err
        assert not out.exists()


@EACH
def test_a_missing_library(
    sink: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, sink, None)  # as if it were not installed
    file, out = write(tmp_path), tmp_path / "run"
    result = command("run", file, "--out", out, "--log", sink)
    assert result.code == 2
    assert f"needs the Python package '{sink}', which is not installed" in result.err
    assert f"pip install '.[{sink}]'" in result.err
    assert not out.exists()
    with fedhp.run(file, out):
        pass
    result = command("export", out, "--to", sink)
    assert result.code == 2
    assert f"pip install '.[{sink}]'" in result.err
    assert not (out / "tables").exists()


def test_damaged_runs_are_named_after_the_others_were_logged(
    command: Command, tmp_path: Path
) -> None:
    require("tensorboard")
    out = tmp_path / "out"
    for name in ("a", "b", "c"):
        with fedhp.run(write(tmp_path, rounds=1, algorithm={"name": "dpsgd"}), out / name):
            pass
    for name in ("a", "b"):
        (out / name / RECORD_FILE).write_bytes(b"no record at all")
    result = command("export", out, "--to", "tensorboard")
    assert result.code == 2
    assert "logged 1 run: tensorboard" in result.out
    assert "2 runs could not be logged:" in result.err
    for name in ("a", "b"):
        assert f"{out / name / RECORD_FILE}: the record is damaged: " in result.err
    assert [path.parent.name for path in out.glob("*/tensorboard")] == ["c"]
    with pytest.raises(RunError, match="the record is damaged"):
        fedhp.export(out, to="tensorboard")
    result = command("export", out / "a", "--to", "tensorboard")
    assert result.code == 2
    assert "logged" not in result.out
    assert "1 run could not be logged:" in result.err


def test_a_library_that_fails_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error inside a library, in a comparison of two runs: one warning, whole runs."""
    require("tensorboard")
    from tensorboard.summary.writer.record_writer import RecordWriter

    def fail(*arguments: object) -> None:
        raise RuntimeError("the library is broken")

    monkeypatch.setattr(RecordWriter, "write", fail)
    file = write(tmp_path, compare={"algorithms": ["dpsgd"], "seeds": [0, 1]})
    with caplog.at_level(logging.WARNING, logger="fedhp"):
        runs = fedhp.compare(file, tmp_path / "out", log=["tensorboard"])
    assert [run.status for run in runs] == ["finished", "finished"]
    warnings = [record.getMessage() for record in caplog.records if "the log of" in record.msg]
    assert len(warnings) == 1
    assert "RuntimeError: the library is broken" in warnings[0]
    with pytest.raises(RunError, match="could not be written"):
        fedhp.export(tmp_path / "out", to="tensorboard")


@pytest.mark.slow
def test_nothing_is_sent(logged: Path, tmp_path: Path, template: Path) -> None:
    """No process connects to an address of the network, whatever the environment asks for."""
    require(*SINKS)
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    calls = tmp_path / "calls"
    to = [word for sink in SINKS for word in ("--to", f"{sink}:{tmp_path / sink}")]
    (tmp_path / "mlflow").mkdir()
    shutil.copy(template, tmp_path / "mlflow" / "mlflow.db")
    command = [sys.executable, "-m", "fedhp", "export", str(logged), *to]
    subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-e", "trace=connect,sendto", "-o", str(calls), *command],
        check=True,
        capture_output=True,
        env={
            **os.environ,
            "WANDB_MODE": "online",
            "WANDB_API_KEY": "0" * 40,
            "MLFLOW_TRACKING_URI": "http://192.0.2.1:5000",
        },
    )
    text = calls.read_text(encoding="utf-8", errors="replace")
    assert "AF_UNIX" in text  # the processes of wandb talk to each other: strace saw something
    assert "AF_INET" not in text
    assert read_wandb(tmp_path / "wandb" / "run" / "wandb").digest == digest_of(logged)
