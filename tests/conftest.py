"""Limits and surroundings of every test, and the figures that tests report.

A figure (record_property("figure: ...", text)) appears in the summary.
"""

from __future__ import annotations

import os
import signal

import pytest

# Read by numerical libraries when they are loaded, also in processes that a test starts: several
# tests share few cores, and threads that wait for each other there waste most of the time.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import fedhp.cluster  # noqa: E402, F401 - sets what gRPC reads when it is imported

CAMPAIGN_SECONDS = 3600.0  # for a test marked slow that names no limit of its own

# A shell starts a background job with Ctrl-C ignored, and so would be every command of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(CAMPAIGN_SECONDS))


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
