"""Commands in this process; those that have job processes need not wait until torch is loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.support import Command, caller
from subprocesses import forked_jobs


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with forked_jobs():
        yield caller(capsys)
