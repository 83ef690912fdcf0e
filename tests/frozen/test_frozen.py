"""The fast part of `make frozen`: runs marked as fast, some refusals, recorded folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from frozen import comparing, recorded, refused
from frozen.cases import Case, all_cases
from frozen.kept import other_machine

FAST = [case for case in all_cases() if case.fast]


@pytest.fixture(scope="module")
def _digests() -> None:
    if reason := other_machine():
        pytest.skip(reason)


@pytest.mark.usefixtures("_digests")
@pytest.mark.parametrize("case", FAST, ids=[case.name for case in FAST])
def test_a_run_gives_what_it_gave(case: Case, tmp_path: Path) -> None:
    assert not list(comparing.differences(case, tmp_path))


def test_every_expectation_has_its_case(tmp_path: Path) -> None:
    assert not list(comparing.strangers(tmp_path))


def test_experiments_are_refused_as_they_were(tmp_path: Path) -> None:
    assert not list(refused.differences(tmp_path, every=20))


@pytest.mark.usefixtures("_digests")
def test_recorded_folders_open_go_on_and_verify(tmp_path: Path) -> None:
    assert not list(recorded.differences(tmp_path, reports=False))
