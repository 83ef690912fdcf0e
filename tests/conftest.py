"""Figures that tests report (record_property("figure: ...", text)) stand in the summary."""

from __future__ import annotations

import signal

import pytest

import fedhp.cluster  # noqa: F401 - sets what gRPC reads when it is imported

# A shell starts a background job with Ctrl-C ignored, and so would be every command of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
