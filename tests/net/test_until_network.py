"""until over the network: the round that reaches a condition is the last, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faults.in_process import InProcessFederation, experiment, in_process_federation, run, until
from faults.scripted import MODEL_BYTES
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.merge import gather
from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.config import parse
from fedhp.errors import ConfigError
from fedhp.record.reader import RunReader
from fedhp.report.describe import describe_run
from net.identities import make_certificates

NAMES = ["w0", "w1", "w2"]
ROUND_BYTES = 6 * MODEL_BYTES  # three workers in a ring, both directions


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certs"), len(NAMES))


def start_workers(federation: InProcessFederation) -> None:
    for name in NAMES:
        federation.start_worker(name)


def status(folder: Path) -> str:
    with RunReader(folder) as reader:
        return dict(describe_run(reader))["status"]


@pytest.mark.parametrize(
    ("condition", "rounds"),
    [
        ({"accuracy": 0.5}, 1),  # what the scripted workers report
        pytest.param({"clock": 1e-6}, 1, marks=pytest.mark.slow),
        pytest.param({"bytes": ROUND_BYTES + 1}, 2, marks=pytest.mark.slow),
    ],
)
def test_a_run_ends_when_a_condition_is_reached(
    certificates: Path, tmp_path: Path, condition: dict[str, Any], rounds: int
) -> None:
    folder, whole_folder = tmp_path / "run", tmp_path / "whole"
    folder.mkdir()
    settings = experiment(rounds=50, until=condition)

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, folder) as federation:
            await federation.start_coordinator()
            start_workers(federation)
            await federation.finish()
            # The same command again: the run is over and stays as it is.
            state = await federation.start_coordinator()
            await federation.finish()
            assert f"until.{next(iter(condition))} = " in state.phase.why

    run(scenario())
    assert f"finished, {rounds} of 50 rounds: until.{next(iter(condition))} = " in status(folder)
    assert check_invariants(folder, rounds=rounds) == []
    whole = gather([folder], whole_folder)
    assert (whole.status, whole.rounds) == ("finished", rounds)
    assert status(whole_folder) == status(folder)


def test_bytes_are_counted_over_a_restart(certificates: Path, tmp_path: Path) -> None:
    settings = experiment(rounds=500, until={"bytes": 40 * ROUND_BYTES})

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            state = await federation.start_coordinator()
            start_workers(federation)
            await until(lambda: state.round_index >= 1)
            await federation.stop_coordinator()
            assert state.round_index < 40
            await federation.start_coordinator()
            await federation.finish()

    run(scenario())
    assert "finished, 40 of 500 rounds: until.bytes = " in status(tmp_path)


def test_a_condition_that_is_not_reached_changes_nothing(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment(until={"accuracy": 0.51, "clock": 1e6, "bytes": 10**15})

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            await federation.start_coordinator()
            start_workers(federation)
            await federation.finish()

    run(scenario())
    assert status(tmp_path) == "finished, 3 of 3 rounds"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("data", "own_test", 0.2), ("evaluation", "per_class", True)],
)
def test_results_that_no_worker_reports_are_refused(section: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match="does not report") as caught:
        check_network(experiment(**{section: {key: value}}))
    assert caught.value.key == f"{section}.{key}"
    assert "fedhp run" in caught.value.fix


@pytest.mark.parametrize("key", ["horizon", "evaluation.seconds"])
def test_virtual_time_is_refused_over_a_network(key: str) -> None:
    tables: dict[str, Any] = {"horizon": 60.0}
    if key == "evaluation.seconds":
        tables = {"evaluation": {"seconds": 6.0}}
    with pytest.raises(ConfigError, match="no virtual time") as caught:
        check_network(parse(tables))
    assert caught.value.key == key
