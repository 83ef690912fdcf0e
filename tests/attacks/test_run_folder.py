"""A run folder from somebody else: reading it runs none of its code and prints none of its escapes,
and one bad record hides no other."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from cli.support import Command, caller
from dash.serving import client_of
from fedhp.config.own_parts import PART_KEYS
from fedhp.config.rules import REPLACED_BY_TASKS
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE, Store
from fedhp.tables import pop_key
from unit.report.runs import make_run

TRAPS = ("fedhp", "numpy", "torch", "sitecustomize", "evil_mod")
ESCAPE = "\x1b]0;pwned\x07\x1b[2J\u202e\n<script>"
ENDPOINTS = (
    *("run", "summary", "progress", "decisions", "classes", "worker?worker=0", "events"),
    *("round?round=1", "explain?round=1", "workers", "whatif?planner=dpsgd"),
)
OTHER_PARTS = tuple(key for key in PART_KEYS if key != "task.name")  # a task replaces some
READING = """
import json, sys
from fedhp.cli import call
print(json.dumps([call(words) for words in json.loads(sys.argv[1])]))
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(capsys)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("honest") / "run", "dpsgd", rounds=2)


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A copy of the run, in a folder of runs."""
    return Path(shutil.copytree(honest, tmp_path / "runs" / "run"))


def describe(run: Path, **changes: Any) -> None:
    """Change the description of a run, and seal it as its forger would."""
    with closing(sqlite3.connect(run / RECORD_FILE)) as connection, connection:
        for key, value in changes.items():
            connection.execute("REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))
    with closing(Store.open(run, write=True)) as store:
        store.seal()


def experiment_of(run: Path) -> dict[str, Any]:
    with RunReader(run) as reader:
        tables: dict[str, Any] = reader.meta("experiment")
    return tables


def with_evil_parts(tables: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    for key in keys:
        section, _, field = key.partition(".")
        tables[section][field] = "evil_mod:part"
    for key in ("data.skew", *(REPLACED_BY_TASKS if "task.name" in keys else ())):
        pop_key(tables, key)
    return tables


def address(endpoint: str) -> str:
    return f"/api/{endpoint}{'&' if '?' in endpoint else '?'}run=."


def set_traps(folder: Path) -> Path:
    """Modules that leave a mark when they are run; the mark."""
    mark = folder.parent.parent / "mark"
    for name in TRAPS:
        text = f"open({str(mark)!r}, 'a').write({name!r})\nraise ImportError('a trap')\n"
        (folder / f"{name}.py").write_text(text)
    return mark


@pytest.mark.parametrize("keys", [("task.name",), OTHER_PARTS], ids=["task", "others"])
def test_no_command_that_reads_runs_code_of_the_folder(
    run: Path, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    tables = with_evil_parts(experiment_of(run), keys)
    describe(run, experiment=tables)
    (run / "experiment.toml").write_text(tomli_w.dumps(tables))
    mark = set_traps(run)
    out = str(tmp_path / "out")
    reading = [
        ["show", "."],
        ["show", ".", "--round", "1"],
        ["show", ".", "--json"],
        ["explain", "."],
        ["report", ".", "--out", f"{out}/report"],
        ["export", ".", "--out", f"{out}/tables"],
        ["export", ".", "--trace", f"{out}/trace.csv"],
    ]
    importing = [
        ["export", ".", "--models", f"{out}/models"],
        ["whatif", "."],
        ["run", "experiment.toml", "--resume", "--out", "."],
        ["compare", "experiment.toml", "--out", f"{out}/compared"],
        ["data", "split", "experiment.toml"],
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-c", READING, json.dumps([*reading, *importing])],
        cwd=run,
        capture_output=True,
        text=True,
    )
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes[: len(reading)] == [0] * len(reading), done.stderr
    refused = [words for words, code in zip(importing, codes[len(reading) :], strict=True) if code]
    assert [words for words in importing if words not in refused] in ([], [["whatif", "."]])
    assert done.stderr.count("--trust evil_mod") == len(refused)
    assert not mark.exists()


def test_no_request_runs_code_of_the_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = set_traps(run)
    tables = experiment_of(run)
    (run / "experiment.toml").write_text(
        tomli_w.dumps(with_evil_parts(experiment_of(run), OTHER_PARTS))
    )
    monkeypatch.chdir(run)  # as `cd RUN; fedhp dash .` does
    client = client_of(Path())
    for endpoint in ENDPOINTS:
        answer = client.get(address(endpoint))
        assert answer.status_code == 200, (endpoint, answer.text)
        assert str(tmp_path) not in answer.text
    assert not mark.exists()
    describe(run, experiment=with_evil_parts(tables, OTHER_PARTS))
    client = client_of(Path())
    for endpoint in ("classes", "whatif?planner=dpsgd"):
        answer = client.get(address(endpoint))
        assert answer.status_code == 400
        assert "evil_mod:part" in answer.text
    assert not mark.exists()


@pytest.mark.parametrize(
    ("endpoint", "section", "key"),
    [("classes", "data", "path"), ("whatif?planner=dpsgd", "world", "trace")],
)
def test_no_request_opens_a_file_that_a_record_names(
    run: Path, endpoint: str, section: str, key: str
) -> None:
    tables = experiment_of(run)
    tables[section][key] = "/dev/zero"
    describe(run, experiment=tables)
    client = client_of(run)
    answer = client.get(address(endpoint))
    assert answer.status_code == 400
    assert f"{section}.{key}" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
def test_no_other_site_starts_work_or_reads(honest: Path, headers: dict[str, str]) -> None:
    client = client_of(honest)
    for endpoint in ("runs", *ENDPOINTS):
        answer = client.get(
            f"/api/{endpoint}{'&' if '?' in endpoint else '?'}run=.", headers=headers
        )
        assert answer.status_code == 403
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200
    own = {"sec-fetch-site": "same-origin"}
    assert client.get("/api/runs", headers=own).status_code == 200


def test_texts_of_a_record_are_harmless_lines(run: Path, tmp_path: Path, command: Command) -> None:
    names = {"label": ESCAPE, "metric": ESCAPE, "stopped": ESCAPE, "fedhp": ESCAPE}
    with closing(sqlite3.connect(run / RECORD_FILE)) as connection, connection:
        connection.execute("UPDATE rounds SET rule = rule || ?", (ESCAPE,))
        connection.execute("INSERT INTO facts VALUES (2, ?, 1.0)", (ESCAPE,))
        (devices,) = connection.execute("SELECT value FROM meta WHERE key = 'devices'").fetchone()
    describe(run, **names, devices=[ESCAPE] * len(json.loads(devices)))
    shutil.copytree(run, run.parent / "second")
    page = tmp_path / "page"
    for words in (
        ("show", run),
        ("show", run, "--round", 2),
        ("show", run.parent),
        ("explain", run),
        ("report", run, "--out", page),
    ):
        said = command(*words)
        assert said.code == 0, said.err
        shown = said.out + said.err
        assert all(char.isprintable() or char == "\n" for char in shown), words
    for file in page.rglob("*.html"):
        assert "\x1b" not in file.read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("experiment", "[" * 100_000),
        ("experiment", "[" * 100 + "]" * 100),
        ("workers", "200000000"),
        ("workers", '"many"'),
        ("workers", "1" * 5000),
        ("label", json.dumps("x" * 30_000_000)),
        ("label", json.dumps("x" * 20_000)),
    ],
    ids=["deep", "nested", "workers", "text", "digits", "huge", "long"],
)
def test_one_bad_record_hides_no_other(run: Path, command: Command, key: str, value: str) -> None:
    bad = Path(shutil.copytree(run, run.parent / "bad"))
    with closing(sqlite3.connect(bad / RECORD_FILE)) as connection, connection:
        connection.execute("REPLACE INTO meta VALUES (?, ?)", (key, value))
    client = client_of(run.parent)
    answer = client.get("/api/runs")
    assert answer.status_code == 200
    assert len(answer.content) < 10_000
    listed = {entry["run"]: entry["status"] for entry in answer.json()["runs"]}
    assert listed == {"run": "finished", "bad": "damaged"}
    assert client.get("/api/run?run=bad").status_code == 409
    said = command("show", bad)
    assert said.code == 2
    assert "the record is damaged" in said.err or "cannot be used" in said.err


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rounds SET clock = 'late' WHERE round = 1",
        "UPDATE rounds SET rule = x'00ff' WHERE round = 1",
        "ALTER TABLE rounds RENAME TO real; CREATE VIEW rounds AS SELECT * FROM real",
        "CREATE TRIGGER t AFTER INSERT ON wall BEGIN DELETE FROM rounds; END",
    ],
    ids=["text", "blob", "view", "trigger"],
)
def test_what_no_record_holds_is_refused(run: Path, command: Command, statement: str) -> None:
    with closing(sqlite3.connect(run / RECORD_FILE)) as connection:
        connection.executescript(statement)
    said = command("show", run)
    assert said.code == 2
    assert "the record is damaged" in said.err


@pytest.mark.parametrize("kind", ["pipe", "link", "device"])
@pytest.mark.parametrize("name", [RECORD_FILE, f"{RECORD_FILE}-wal", f"{RECORD_FILE}-journal"])
def test_a_record_that_is_no_plain_file_is_refused_and_waits_for_nothing(
    run: Path, kind: str, name: str
) -> None:
    file = run / name
    kept = run.parent / "elsewhere"
    shutil.move(run / RECORD_FILE, kept) if name == RECORD_FILE else kept.write_bytes(b"")
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(kept if kind == "link" else "/dev/zero")
    with pytest.raises(RunError, match="is not a plain file"):
        RunReader(run)
    answer = client_of(run.parent).get("/api/runs")
    assert answer.status_code == 200


def test_a_history_that_is_no_plain_file_waits_for_nothing(run: Path) -> None:
    from fedhp.cluster.history import read_history

    os.mkfifo(run / "history-pipe.jsonl")
    (run / "history-link.jsonl").symlink_to("/dev/zero")
    for file in run.glob("history-*.jsonl"):
        with pytest.raises(RunError, match="the history cannot be read"):
            read_history(file)
    os.mkfifo(run / "checkpoint.pipe")
    assert client_of(run).get("/api/events?run=.").status_code == 200


def test_a_history_has_harmless_texts(tmp_path: Path) -> None:
    from fedhp.cluster.history import read_history

    file = tmp_path / "history-w.jsonl"
    deep = b'{"event": ' + b"[" * 100_000 + b"\n"
    file.write_bytes(deep + json.dumps({"event": "leave", "why": ESCAPE}).encode() + b"\n")
    (event,) = read_history(file)
    assert event["why"].isprintable()
