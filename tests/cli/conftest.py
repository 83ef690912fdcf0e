"""Commands in this process, with one thread: the machine may be busy."""

from __future__ import annotations

import pytest

from cli.support import Command, caller


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(capsys)
