"""Several exchanges in one round of real processes: the bits of the simulation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedhp.config import parse
from fedhp.config.origins import Origins
from network_bits import check_network_bits

PLANS = """
from dataclasses import replace

import numpy as np

from fedhp import DirectedMixing, ExchangeSequence
from fedhp.algorithms.dpsgd import DPSGD


class Repeated(DPSGD):
    def plan(self, state, observation, reports):
        state, plan = super().plan(state, observation, reports)
        return state, replace(plan, exchange=replace(plan.exchange, times=7))


class Sequence(DPSGD):
    def plan(self, state, observation, reports):
        state, plan = super().plan(state, observation, reports)
        workers = len(observation.available)
        pull = DirectedMixing(np.array([[(worker + 2) % workers] for worker in range(workers)]))
        exchange = ExchangeSequence((plan.exchange, pull, replace(plan.exchange, times=2)))
        return state, replace(plan, exchange=exchange)
"""


@pytest.mark.parametrize("name", ["Repeated", "Sequence"])
def test_exchanges_in_a_row_have_the_bits_of_the_simulation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    module = f"in_a_row_{name.lower()}"
    (folder / f"{module}.py").write_text(PLANS)
    monkeypatch.syspath_prepend(str(folder))
    tables = {
        "workers": 4,
        "rounds": 3,
        "algorithm": {"name": f"{module}:{name}"},
        "model": {"name": "mlp", "hidden": [6]},
        "training": {"local_steps": 2, "batch_size": 4, "kernel": "worker", "mixing": "ordered"},
        "data": {"name": "digits", "skew": 0.6},
        "evaluation": {"every": 3, "images": 50},
    }
    experiment = parse(tables, origins=Origins.of_file(folder / "experiment.toml"))
    try:
        check_network_bits(experiment, tmp_path / "run", module=module)
    finally:
        sys.modules.pop(module, None)
