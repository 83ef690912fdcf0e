"""Certificates of a small federation, for attacks by one of its own members."""

from __future__ import annotations

from pathlib import Path

import pytest

from net.identities import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coordinator "boss", an operator and four workers; nobody changes them."""
    return make_certificates(tmp_path_factory.mktemp("attacked"), 4)
