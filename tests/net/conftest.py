"""What the tests of real handshakes share: two authorities with their identities, and patience."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedhp.cluster.protocol import limits
from net.identities import make_certificates, make_ours, make_theirs
from waiting import PATIENCE


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy."""
    monkeypatch.setattr(limits, "CONNECT_SECONDS", PATIENCE)


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """The messages that fedhp logs, whatever an earlier test made of its logger."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("fedhp"), Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield messages
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of a coordinator and three workers; nobody changes them."""
    return make_certificates(tmp_path_factory.mktemp("federation"), 3)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our authority and those it issued certificates to, good and out of their time."""
    return make_ours(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another authority, with a worker of the same name."""
    return make_theirs(tmp_path_factory.mktemp("theirs"))
