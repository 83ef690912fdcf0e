"""Rules of workers: what they keep, how their hooks are called, and what is refused with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedhp.algorithms.adpsgd import ADPSGD
from fedhp.algorithms.dpsgd import DPSGD
from fedhp.algorithms.fedhp import FedHP
from fedhp.algorithms.fedhp_plus import FedHPPlus
from fedhp.algorithms.pens import PENS
from fedhp.config import parse
from fedhp.config.origins import Origins
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.sharded import LocalExecutor
from fedhp.engine.trial import try_algorithm
from fedhp.errors import ConfigError
from fedhp.learn.params import layout_of, row_of
from fedhp.learn.vectors import RowVectors
from fedhp.rule import Rows, Rule, Step, TrackedPushSum, Vector, Vectors
from fedhp.tables import merge_tables
from unit.engine.runs import NORMED, carry_out

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZE: dict[str, Any] = {
    "workers": 4,
    "rounds": 3,
    "model": {"name": "logistic"},
    "training": {"local_steps": 2, "batch_size": 4},
    "data": {"name": "digits"},
}


class Everything(Rule):
    """One vector of each kind."""

    vectors: ClassVar = (
        Vector("anchor", start="model"),
        Vector("count", start="one", scalar=True, returning="start"),
        Vector("sent", travels=True),
        Vector("copy", start="model", returning="start"),
    )

    def gradient(self, g: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        v["count"] = v["count"] + 1
        return g

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        v["sent"] = x - x0
        return x


def with_rule(algorithm: type[Any], chosen: Rule) -> type[Any]:
    class Own(algorithm):  # type: ignore[misc]
        def rule(self) -> Rule:
            return chosen

    return Own


class Wrong(Rule):
    """Returns a column instead of rows."""

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        return x[:, :1]


class Unknown(Rule):
    def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
        return mixed + v["nothing"]


class Velocity(Rule):
    vectors: ClassVar = (Vector("velocity"),)


Kept = with_rule(DPSGD, Everything())
Mistaken = with_rule(DPSGD, Wrong())
Missing = with_rule(DPSGD, Unknown())
Named = with_rule(DPSGD, Velocity())
Estimating = with_rule(FedHP, Everything())
Scored = with_rule(PENS, Everything())
Grouped = with_rule(FedHPPlus, Everything())
Asynchronous = with_rule(ADPSGD, Everything())
NotARule = with_rule(DPSGD, "send")  # type: ignore[arg-type]


def prepared_of(name: str, *changes: dict[str, Any]) -> Prepared:
    tables = merge_tables(SIZE, {"algorithm": {"name": name}})
    for change in changes:
        tables = merge_tables(tables, change)
        tables["model"] = change.get("model", tables["model"])
    return prepare(parse(tables, origins=Origins.of_file(EXAMPLES / "choco.toml")))


def own(name: str) -> str:
    return f"unit.engine.test_rules:{name}"


def test_vectors_are_columns_of_a_row() -> None:
    """Those that travel come before the statistics, those that stay at the end."""
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    layout = layout_of(module, batch_norm="mixed", vectors=Everything.vectors)
    trained = layout.trainable
    assert trained == 12
    assert layout.columns("sent") == slice(12, 24)
    assert layout.mixed == 24 + 4
    assert layout.columns("anchor") == slice(28, 40)
    assert layout.columns("count") == slice(40, 41)
    assert layout.columns("copy") == slice(41, 53)
    assert layout.width == 53
    assert layout.untrained == (slice(12, 12), slice(24, 28))
    row, _ = row_of(module, layout)
    assert torch.equal(row[28:40], row[:trained])
    assert torch.equal(row[41:53], row[:trained])
    assert row[40] == 1.0
    assert not row[12:24].any()


def test_a_returning_worker_keeps_or_begins_again_as_declared() -> None:
    layout = layout_of(nn.Linear(3, 2), batch_norm="mixed", vectors=Everything.vectors)
    row = np.arange(100, 100 + layout.width, dtype=np.float32)
    received = np.arange(layout.mixed, dtype=np.float32)
    before = row.copy()
    layout.continue_from(row, received)
    assert row[: layout.mixed].tolist() == received.tolist()
    anchor, copy, count = (layout.columns(name) for name in ("anchor", "copy", "count"))
    assert np.array_equal(row[anchor], before[anchor])
    assert np.array_equal(row[copy], received[: layout.trainable])
    assert row[count].tolist() == [1.0]


def test_what_a_hook_has_read_does_not_change_under_its_hands() -> None:
    vectors = (Vector("a"), Vector("b"))
    layout = layout_of(nn.Linear(1, 1), batch_norm="mixed", vectors=vectors)
    rows = torch.arange(12.0).reshape(2, 6)
    both = RowVectors(rows, layout)
    first, second = both["a"], both["b"]
    both["a"] = second
    both["b"] = first
    assert torch.equal(both["a"], second)
    result = both.write(first)
    assert rows.tolist() == [[0, 1, 4, 5, 2, 3], [6, 7, 10, 11, 8, 9]]
    assert result.tolist() == [[2, 3], [8, 9]]


@pytest.mark.parametrize("kernel", ["auto", "worker"])
def test_every_local_step_asks_for_its_gradient(kernel: str) -> None:
    engine = LocalExecutor(prepared_of(own("Kept"), {"training": {"kernel": kernel}}))
    assert (engine.shard.rows.stack is not None) == (kernel == "auto")
    layout = engine.prepared.layout
    start = engine.shard.rows.initial[: layout.trainable].numpy().copy()
    _, end = carry_out(engine)
    assert end["models"][:, layout.columns("count")].tolist() == [[1 + 3 * 2]] * 4
    assert np.array_equal(end["models"][:, layout.columns("anchor")], np.tile(start, (4, 1)))
    assert not np.array_equal(end["models"][0, : layout.trainable], start)


def test_momentum_is_not_stacked_with_a_gradient_of_a_rule() -> None:
    engine = LocalExecutor(prepared_of(own("Kept"), {"training": {"momentum": 0.9}}))
    assert engine.shard.rows.stack is None
    engine.close()


def test_vectors_count_in_the_memory_estimate_and_in_a_transfer() -> None:
    plain, kept = prepared_of("dpsgd"), prepared_of(own("Kept"))
    assert kept.memory.models == 4 * plain.memory.models
    assert kept.transfer_share == pytest.approx(2.0)
    assert plain.transfer_share == 1.0


@dataclass(frozen=True, slots=True)
class Refused:
    name: str
    key: str
    text: str
    changes: tuple[dict[str, Any], ...] = ()


TOPK: dict[str, Any] = {"exchange": {"compression": "topk"}}
REFUSED = (
    Refused(own("Mistaken"), "algorithm.name", "Wrong.send returned (2, 1)"),
    Refused(own("Missing"), "algorithm.name", "has no vector 'nothing'"),
    Refused(own("NotARule"), "algorithm.name", "the rule 'send'"),
    Refused(
        own("Named"), "algorithm.name", "called 'velocity'", ({"training": {"momentum": 0.9}},)
    ),
    Refused(own("Grouped"), "algorithm.name", "does not mix models in rounds"),
    Refused(own("Asynchronous"), "algorithm.name", "in the middle of their turns"),
    Refused(own("Estimating"), "algorithm.name", "its plan has estimate"),
    Refused(own("Scored"), "algorithm.name", "its plan has a PeerScoring"),
    Refused(
        own("Kept"), "exchange.robust", "needs the sums", ({"exchange": {"robust": "median"}},)
    ),
    Refused(own("Kept"), "exchange.compression", "arrive exactly", (TOPK,)),
    Refused(
        own("Kept"),
        "training.optimizer_state",
        "vectors of their own",
        ({"training": {"momentum": 0.9, "optimizer_state": "mix"}},),
    ),
    Refused(
        "choco:Choco",
        "exchange.compression",
        "arrive exactly",
        ({"exchange": {"compression": "int8"}},),
    ),
    Refused("choco:Choco", "training.batch_norm", "public copies", (TOPK, NORMED)),
)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.name}-{case.key}")
def test_what_a_rule_cannot_have_is_refused(case: Refused) -> None:
    with pytest.raises(ConfigError) as caught:
        try_algorithm(prepared_of(case.name, *case.changes))
    assert caught.value.key == case.key
    assert case.text in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "not a name"},
        {"name": "v", "start": "two"},
        {"name": "v", "start": "model", "scalar": True},
        {"name": "v", "returning": "lost"},
    ],
)
def test_a_vector_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Vector(**settings)


def test_tracking_and_push_sum_together() -> None:
    """Track first, then weigh: what arrives is divided by the weight."""
    rule = TrackedPushSum()
    names = [vector.name for vector in rule.vectors]
    assert names == ["push_weight", "side", "last_change"]
    kept = {
        "push_weight": torch.tensor([[0.5]]),
        "side": torch.tensor([[1.0]]),
        "last_change": torch.tensor([[0.25]]),
    }
    step = Step(1, 0.1, torch.ones(1, 1), lambda rows: rows)
    x0, x = torch.tensor([[2.0]]), torch.tensor([[3.0]])
    message = rule.send(x0, x, kept, step)
    assert kept["side"].item() == 1.75
    assert kept["last_change"].item() == 1.0
    assert message.item() == 0.5 * 2.0 + 1.75
    assert rule.receive(x0, message, kept, message, step).item() == 5.5
