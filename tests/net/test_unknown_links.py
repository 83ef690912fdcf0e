"""Two reports of a round are lost: the links between those workers are on no record, and yet all
later rounds can be compared with the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from attacks.test_partners import federation_of_workers
from faults.in_process import experiment, run
from fedhp.cli.commands.verify import _round_lines
from fedhp.cluster.audit import replay
from fedhp.cluster.audit.committed_rounds import CommittedRound
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.verify import Verification, verify
from fedhp.cluster.coordinator.attempts import attempts
from fedhp.cluster.coordinator.service import CoordinatorService
from fedhp.cluster.protocol import wire_pb2 as wire
from net.identities import make_certificates

NAMES = ("w0", "w1", "w2", "w3", "w4")
LOST_ROUND, LOST = 4, ("w1", "w3")
ROUNDS = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of D-PSGD on a full mesh."""
    tmp_path = tmp_path_factory.mktemp("silent")
    certificates, folder = make_certificates(tmp_path / "certs", len(NAMES)), tmp_path / "run"
    folder.mkdir()
    settings = experiment(
        workers=len(NAMES),
        rounds=ROUNDS,
        topology={"name": "full"},
        model={"name": "mlp", "hidden": [8]},
        training={"local_steps": 2},
        evaluation={"images": 10, "every": 100},
        cluster={"min_workers": 2, "gather": 20.0, "least_deadline": 1.0, "beat": 0.1},
    )
    report = CoordinatorService.report

    def lossy(self: Any, name: str, message: Any, _: Any = None) -> wire.Receipt:
        if message.envelope.round == LOST_ROUND and name in LOST:
            return wire.Receipt(accepted=False, why="attempt: it was lost on its way")
        return report(self, name, message)

    async def scenario() -> None:
        async with federation_of_workers(settings, certificates, folder, names=NAMES) as (
            members,
            _,
        ):
            await members.finish()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoordinatorService, "report", lossy)
        patch.setattr(attempts, "FIRST_DEADLINE", 20.0)
        run(scenario())
    return folder


def compared(verification: Verification) -> dict[int, int]:
    return {verdict.round_index: verdict.compared for verdict in verification.rounds}


def test_what_others_reported_shows_which_links_there_were(folder: Path) -> None:
    assert check_invariants(folder, rounds=ROUNDS) == []
    verification = verify(folder)
    assert verification.equal
    assert verification.whole
    models = compared(verification)
    assert models[LOST_ROUND] == len(NAMES) - len(LOST)
    assert models[ROUNDS] == len(NAMES)
    assert _round_lines(verification) == [
        f"rounds 1 to {ROUNDS}: all {sum(models.values())} models are bit-identical"
    ]


def test_where_nothing_fits_the_comparison_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = replay.RunReplayer._weights

    def wrong(self: Any, done: CommittedRound, planned: Any, number: int) -> csr_array:
        mixed = weights(self, done, planned, number)
        return csr_array(np.eye(len(NAMES))) if done.attempt.round_index == LOST_ROUND else mixed

    monkeypatch.setattr(replay.RunReplayer, "_weights", wrong)
    verification = verify(folder)
    assert verification.equal
    assert not verification.whole
    *_, last = _round_lines(verification)
    assert last.startswith(f"rounds {LOST_ROUND} to {ROUNDS}: not compared: the links between")
