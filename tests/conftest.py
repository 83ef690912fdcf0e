"""Figures that tests report (record_property("figure: ...", text)) stand in the summary."""

from __future__ import annotations

import pytest

import fedhp.cluster  # noqa: F401 - sets what gRPC reads when it is imported


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
