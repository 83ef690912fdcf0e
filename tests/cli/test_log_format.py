"""--log-format json: every line is JSON, on both streams, whatever is printed."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from cli.support import Command, ended, start, write
from fedhp.cluster.ops import logs
from fedhp.cluster.ops.launch import ensure_certificates
from subprocesses import ForkedCommand, ended_after
from waiting import wait_until

JSON_LINES = ("--log-format", "json")


def parsed(text: str) -> list[dict[str, Any]]:
    """Every line of an output, each of which must be a JSON object."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(line, dict) for line in lines)
    return lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("worker",), "Missing option '--name'"),
        (("worker", "--name", "w0", "--nonsense"), "No such option"),
        (("worker", "--name", "w0"), "ca.crt is missing"),
        (("worker", "--name", "w0", "--coordinator", "x", "--trust", "os"), "os"),
        (("coordinator", "missing.toml", "--listen", "127.0.0.1:0"), "missing.toml"),
        (("cluster", "up", "missing.toml"), "missing.toml"),
        (("cluster", "up", "tiny.toml", "rounds=x"), "rounds"),
    ],
)
def test_an_error_before_the_start_is_one_json_line(
    arguments: tuple[str, ...],
    words: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    streams = sys.stdout, sys.stderr
    outcome = command(*arguments, *JSON_LINES)
    assert outcome.code == 2
    assert outcome.out == ""
    (line,) = parsed(outcome.err)
    assert words in line["message"]
    assert line["level"] == "error"
    assert (sys.stdout, sys.stderr) == streams
    # Without the option it is text, as always.
    assert not command(*arguments).err.startswith("{")


def test_a_wrong_format_is_an_error_in_text(command: Command, tmp_path: Path) -> None:
    outcome = command("worker", "--name", "w0", "--log-format", "xml")
    assert outcome.code == 2
    assert "unknown log format 'xml'" in outcome.err


def test_whatever_is_printed_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    def fail() -> None:
        raise ValueError("in a thread")

    end = logs.begin_json_lines("w0")
    try:
        print("two\nlines")
        print('{"already": "json"}')
        print("no end", end="")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("of a library", stacklevel=1)
        logging.getLogger("asyncio").error("of an event loop")
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        sys.excepthook(ValueError, ValueError("uncaught here"), None)
    finally:
        end()
    assert [line.get("message") for line in parsed(out.getvalue())] == [
        "two\nlines",
        None,
        "no end",
    ]
    # A thread that another test of this process left behind may write a line as well.
    texts = ("of a library", "of an event loop", "in a thread", "uncaught here")
    lines = parsed(err.getvalue())
    warning, loop, *uncaught = [
        line for line in lines if any(text in line["message"] for text in texts)
    ]
    assert (warning["level"], warning["logger"]) == ("warning", "py.warnings")
    assert "of a library" in warning["message"]
    assert (loop["logger"], loop["message"]) == ("asyncio", "of an event loop")
    assert [line["level"] for line in uncaught] == ["critical", "critical"]
    assert "in a thread" in uncaught[0]["message"]
    assert "uncaught here" in uncaught[1]["message"]


def test_a_coordinator_and_a_worker_print_json_alone(tmp_path: Path) -> None:
    certificates, run = tmp_path / "certs", tmp_path / "run"
    roles = {"coordinator": ("coordinator",), "w0": ("worker",)}
    ensure_certificates(certificates, roles)
    file = write(tmp_path, workers=1, rounds=2)
    common = ("--certs", certificates, *JSON_LINES)
    with ForkedCommand(
        *("coordinator", file, "--listen", "127.0.0.1:0", "--out", run, *common)
    ) as coordinator:
        announcement = run / "coordinator.json"
        wait_until(announcement.is_file, "the coordinator announces itself")
        address = json.loads(announcement.read_bytes())["address"]
        state = ("--state", tmp_path / "w0")
        with ForkedCommand(
            "worker", "--name", "w0", "--coordinator", address, *state, *common
        ) as worker:
            outcomes = [ended(worker), ended(coordinator)]
    assert [outcome.code for outcome in outcomes] == [0, 0]
    for outcome, who in zip(outcomes, ("w0", "coordinator"), strict=True):
        assert {line["who"] for line in parsed(outcome.err)} == {who}
        messages = [line["message"] for line in parsed(outcome.out)]
        assert any(message.startswith("round 2") for message in messages)
        assert "the run is over" in messages[-1]


@pytest.mark.slow
def test_cluster_up_and_its_logs_are_json(tmp_path: Path) -> None:
    run = tmp_path / "run"
    file = write(tmp_path, workers=2, rounds=2)
    with ended_after(start("cluster", "up", file, "--out", run, *JSON_LINES)) as process:
        outcome = ended(process)
    assert outcome.code == 0, outcome.err
    assert any("round 2/2" in line["message"] for line in parsed(outcome.err))
    (result,) = parsed(outcome.out)
    assert result["rounds"] == 2
    for log in (run / "logs").iterdir():
        assert parsed(log.read_text(encoding="utf-8"))
