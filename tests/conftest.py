"""Limits and surroundings of every test, and the figures that tests report.

A figure (record_property("figure: ...", text)) appears in the summary.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Generator

import pytest

# Read by numerical libraries when they are loaded, also in processes that a test starts: several
# tests share few cores, and threads that wait for each other there waste most of the time.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"

import fedhp.cluster  # noqa: E402, F401 - sets what gRPC reads when it is imported

CAMPAIGN_SECONDS = 3600.0  # for a test marked slow that names no limit of its own

# Tests with a dear set-up of their own: at the head of the first process of pytest-xdist, where
# no other process takes some of them away (and makes that set-up again).
SHARED = ("tests/equality/test_ray.py", "tests/unit/report/")

# A shell starts a background job with Ctrl-C ignored, and so would be every command of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(SHARED))  # stable
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(CAMPAIGN_SECONDS))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """While a test marked alone runs, the other processes of pytest-xdist wait."""
    if not hasattr(item.config, "workerinput") or item.config.cache is None:
        return (yield)
    kind = fcntl.LOCK_SH if item.get_closest_marker("alone") is None else fcntl.LOCK_EX
    folder = item.config.cache.mkdir("alone")
    with (folder / "turnstile").open("w") as turnstile, (folder / "room").open("w") as room:
        fcntl.flock(turnstile, kind)  # so that who wants to be alone comes in at all
        fcntl.flock(room, kind)
        if kind == fcntl.LOCK_SH:
            fcntl.flock(turnstile, fcntl.LOCK_UN)
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = [
        f"{name.removeprefix('figure: ')}: {value}"
        for report in terminalreporter.getreports("passed")
        for name, value in getattr(report, "user_properties", [])
        if name.startswith("figure: ")
    ]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
