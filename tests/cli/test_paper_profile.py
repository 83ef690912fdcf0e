"""The profile `paper`: full models, 30 workers and the paper's settings, for a few rounds here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhp.config import parse, to_tables
from fedhp.engine.runs.campaign import run_cells
from fedhp.engine.runs.suite import check_suite, read_suite
from fedhp.record.reader import RunReader

SHORT = (  # only how long it takes; the model, the data and the federation are the paper's
    "rounds=2",
    "training.local_steps=1",
    "evaluation.every=2",
    "evaluation.images=60",
    "evaluation.whole_at_end=false",
)
PARAMETERS = {"cifar10": 4_874_058, "image100": 16_081_956}


@pytest.mark.slow
@pytest.mark.timeout(10_800)  # FedHP's first estimates of 30 VGG-16 alone take half an hour
@pytest.mark.parametrize("key", PARAMETERS)
@pytest.mark.parametrize("label", ["fedhp:deadline=fill", "dpsgd"])
def test_the_paper_profile_runs(key: str, label: str, tmp_path: Path) -> None:
    suite = check_suite(read_suite(["fig2"], profile="paper", out=tmp_path, overrides=SHORT))
    if key in suite.missing:
        pytest.skip(f"{suite.missing[key]} (set FEDHP_DATA)")
    (cell,) = (
        planned.cell
        for planned in suite.cells()
        if (planned.data, planned.cell.label, planned.cell.seed) == (key, label, 0)
    )
    assert (cell.experiment.workers, cell.experiment.training.batch_size) == (30, 32)
    if label.startswith("fedhp"):  # which would take up to 100 steps
        tables = to_tables(cell.experiment)
        tables["algorithm"]["max_steps"] = 2
        cell = replace(cell, experiment=parse(tables))
    assert run_cells([cell], jobs=1) == []
    with RunReader(cell.folder) as run:
        assert run.rounds_done == 2
        assert run.meta("parameters") == PARAMETERS[key]
        assert np.isfinite(run.array("workers", "train_loss")).all()
        summary = run.summary()
    assert summary.final_accuracy is not None
    assert np.isfinite(summary.final_accuracy)
