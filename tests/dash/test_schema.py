"""The API answers as its description says, whatever it is asked: no answer is an error of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks

from dash.conftest import FIRST
from fedhp.dash.app import DashSettings, create_app
from fedhp.dash.security import Access

TOKEN = "a-token-of-some-length"
ACCESS = Access(hosts=frozenset(["testserver"]), token=TOKEN)  # as schemathesis calls it
MANY = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
# The stream does not end, and a replay starts a process: they have tests of their own.
ABOUT_A_RUN = (
    *("run", "summary", "progress", "round", "explain", "decisions"),
    *("workers", "worker", "events"),
)
IN_THE_RECORD = {"run": FIRST, "round": 2, "worker": 3}
# They judge by how the question was made, and do not know that only two runs exist.
GUESSING = [checks.positive_data_acceptance, checks.negative_data_rejection]


@pytest.fixture(scope="module")
def api(real_runs: Path) -> Any:
    app = create_app(DashSettings(real_runs, ACCESS))
    return schemathesis.openapi.from_asgi("/api/openapi.json", app)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("name", ABOUT_A_RUN)
def test_no_question_makes_a_server_error(api: Any, name: str, mode: GenerationMode) -> None:
    """As it is, and for a run, a round and a worker that exist: the answer is as described."""
    answered: list[int] = []

    @MANY
    @given(case=api[f"/api/{name}"]["GET"].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answered.append(case.call_and_validate(excluded_checks=GUESSING).status_code)
        for known in ("run", "round", "worker"):
            if isinstance(case.query, dict) and known in case.query:
                case.query[known] = IN_THE_RECORD[known]
                answered.append(case.call_and_validate(excluded_checks=GUESSING).status_code)

    ask()
    assert max(answered) < 500
    assert mode is GenerationMode.NEGATIVE or 200 in answered


@pytest.mark.parametrize("name", ["runs", "health"])
def test_the_list_and_the_health_are_as_described(api: Any, name: str) -> None:
    @MANY
    @given(case=api[f"/api/{name}"]["GET"].as_strategy())
    def ask(case: Any) -> None:
        assert case.call_and_validate().status_code == 200

    ask()


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("name", ["stop", "drain"])
def test_no_command_makes_a_server_error(api: Any, name: str, mode: GenerationMode) -> None:
    """With and without the token: nothing here can be stopped."""

    @MANY
    @given(case=api[f"/api/{name}"]["POST"].as_strategy(generation_mode=mode))
    def command(case: Any) -> None:
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}):
            response = case.call(headers=headers)
            assert 400 <= response.status_code < 500, response.text
            assert set(response.json()) == {"error", "allowed", "fix"}

    command()
