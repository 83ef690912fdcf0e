"""Which samples local steps see in a run: shuffled epochs and augmentation on every path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedhp
from fedhp.config import parse, to_tables
from fedhp.engine.executor import LocalTraining
from fedhp.engine.prepare import Prepared, prepare, shard_spec_of
from fedhp.engine.shard.shard import Shard
from fedhp.engine.shard.trainer import Trainer
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.learn.batches import ShuffledEpochs
from fedhp.learn.group_state import Columns
from fedhp.types import IntArray
from unit.engine.runs import ALGORITHMS, EXACT, bits, carry_out, prepared_of

EPOCHS: dict[str, Any] = {"training": {"batches": "epochs", "batch_size": 13}}
AUGMENTED: dict[str, Any] = {"augmentation": {"crop": 1, "flip": True}}
EVERY = pytest.mark.parametrize("algorithm", ALGORITHMS)


def drawn_in(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, *, shards: int = 1
) -> tuple[dict[int, IntArray], IntArray]:
    """The samples that each worker's local steps took in a run, and the positions at its end."""
    drawn: dict[int, list[IntArray]] = {}
    drawing = Trainer._drawing

    def noted(self: Trainer, row: int, training: LocalTraining) -> Callable[[int], IntArray]:
        draw = drawing(self, row, training)
        # As places in the worker's part: a shard numbers its samples by itself.
        places = {sample: place for place, sample in enumerate(self.spec.parts[row].tolist())}

        def batches(count: int) -> IntArray:
            indices = draw(count)
            seen = np.array([places[sample] for sample in indices.reshape(-1).tolist()])
            drawn.setdefault(self.rows.workers[row], []).append(seen)
            return indices

        return batches

    monkeypatch.setattr(Trainer, "_drawing", noted)
    _, state = carry_out(LocalExecutor(prepared, shards=shards))
    monkeypatch.undo()
    column = prepared.layout.position
    assert column is not None
    return {worker: np.concatenate(pieces) for worker, pieces in drawn.items()}, state["counters"][
        :, column
    ]


@EVERY
def test_every_path_walks_through_the_same_epochs(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacked, one model at a time, in two shards and on two threads."""
    size: dict[str, Any] = {
        "workers": 7,
        "rounds": 4,
        "data": {"train_images": 140, "partition": "quantity", "skew": None},
        "evaluation": {"every": 4, "images": 20},
    }
    stacked = prepared_of(algorithm, size, EPOCHS)
    taken, positions = drawn_in(stacked, monkeypatch)
    assert taken
    for worker, places in taken.items():
        samples = len(stacked.parts[worker])
        stream = ShuffledEpochs(stacked.experiment.seed, worker, samples, position=0)
        assert places.tolist() == stream.take(len(places)).tolist()
    asynchronous = algorithm in ("adpsgd", "free_links")
    if not asynchronous:  # else the last turns are in flight
        lengths = [len(taken.get(worker, ())) for worker in range(7)]
        assert positions.tolist() == lengths
    for changes, shards in (
        ({"training": {"kernel": "worker"}}, 1),
        ({"executors": 2}, 1),
        ({"training": {"kernel": "worker"}, "executors": 2}, 2),
    ):
        other = prepared_of(algorithm, size, EPOCHS, changes)
        result, ends = drawn_in(other, monkeypatch, shards=shards)
        assert {worker: places.tolist() for worker, places in result.items()} == {
            worker: places.tolist() for worker, places in taken.items()
        }
        assert ends.tolist() == positions.tolist()


@EVERY
def test_shards_and_threads_give_the_same_bits(algorithm: str) -> None:
    size = {"workers": 5, "rounds": 3, "evaluation": {"every": 3, "images": 20}}
    prepared = prepared_of(algorithm, size, EXACT, EPOCHS, AUGMENTED)
    records, state = carry_out(LocalExecutor(prepared))
    for executors, shards in ((2, 1), (1, 2)):
        other = prepared_of(algorithm, size, EXACT, EPOCHS, AUGMENTED, {"executors": executors})
        result, end = carry_out(LocalExecutor(other, shards=shards))
        assert bits(result) == bits(records)
        assert bits(end) == bits(state)
    plain, _ = carry_out(LocalExecutor(prepared_of(algorithm, size, EXACT, EPOCHS)))
    assert bits(plain) != bits(records)


@pytest.mark.parametrize("algorithm", ["dpsgd", "adpsgd", "fedhp_plus"])
@pytest.mark.parametrize("more", [{}, AUGMENTED], ids=["stacked", "augmented"])
def test_a_run_resumes_in_the_middle_of_an_epoch(
    algorithm: str, more: dict[str, Any], tmp_path: Path
) -> None:
    tables: dict[str, Any] = {
        "workers": 4,
        "rounds": 5,
        "algorithm": {"name": algorithm, **ALGORITHMS[algorithm]},
        "data": {"train_images": 200},
        "training": {"local_steps": 3, "batch_size": 9, "batches": "epochs"},
        "evaluation": {"images": 30},
        "checkpoint": {"seconds": 0.0},
        **more,
    }
    experiment = fedhp.make_experiment(tables)
    with fedhp.run(experiment, tmp_path / "whole") as whole:
        digest = whole.digest()
    for record in fedhp.start(experiment, tmp_path / "run").rounds():
        if record.round_index == 2:
            break
    with fedhp.run(experiment, tmp_path / "run", resume=True) as resumed:
        assert resumed.digest() == digest
        assert resumed.model(0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    del tables["training"]["batches"]
    with fedhp.run(fedhp.make_experiment(tables), tmp_path / "other") as other:
        assert other.digest() != digest


def as_often(steps: int) -> Callable[[], bool]:
    left = iter([True] * steps + [False])
    return lambda: next(left)


@pytest.mark.parametrize("batches", ["epochs", "replacement"])
def test_paced_steps_have_the_bits_of_known_ones(batches: str) -> None:
    changes: dict[str, Any] = {"training": {"batches": batches}}
    prepared = prepared_of("fedhp_plus", EXACT, changes, AUGMENTED)
    known, paced = (
        Shard(shard_spec_of(prepared, np.array([2])), stop=lambda: False) for _ in range(2)
    )
    assert known.groups is not None
    assert paced.groups is not None
    for round_index, first, second in ((1, 4, 3), (2, 2, 5)):
        loss, _ = known.train(np.array([first]), round_index=round_index, learning_rate=0.1)
        known.groups.adopt([], Columns(0, 0, 0))
        on, _ = known.groups.train_on(
            np.array([second]), round_index=round_index, learning_rate=0.1
        )

        steps, paced_loss = paced.groups.train_paced(
            0, as_often(first), round_index=round_index, learning_rate=0.1
        )
        paced.groups.adopt([], Columns(0, 0, 0))
        more, paced_on, _ = paced.groups.train_on_paced(
            0, as_often(second), round_index=round_index, learning_rate=0.1
        )
        assert (steps, more) == (first, second)
        assert (paced_loss, paced_on) == (loss[0], on[0])
        known.advance()
        paced.advance()
        assert torch.equal(known.rows.models, paced.rows.models)
        assert torch.equal(known.rows.counters, paced.rows.counters)
    if batches == "epochs":
        assert known.rows.counters.tolist() == [[14 * prepared.experiment.training.batch_size]]
    known.close()
    paced.close()


def test_a_round_that_is_given_up_takes_the_same_samples_again() -> None:
    engine = LocalExecutor(prepared_of("dpsgd", EPOCHS))
    shard = engine.shard
    for _ in range(2):
        engine.train(np.full(5, 3), round_index=1, learning_rate=0.1)
        assert (shard.rows.counters == 0).all()
        assert (shard.rows.after_counters == 3 * 13).all()
    engine.close()


def test_running_statistics_keep_their_own_counters() -> None:
    normed = {"model": {"name": "unit.engine.runs:normed"}}
    prepared = prepared_of("dpsgd", EXACT, normed, EPOCHS)
    assert (prepared.layout.counter_width, prepared.layout.position) == (2, 1)
    _, state = carry_out(LocalExecutor(prepared))
    assert state["counters"].tolist() == [[9, 9 * 13]] * 5


def test_the_defaults_leave_no_trace() -> None:
    experiment = parse({"training": {"batches": "replacement", "label_smoothing": 0.0}})
    tables = to_tables(experiment)
    assert tables == to_tables(parse({}))
    assert not {"batches", "label_smoothing", "local_epochs"} & set(tables["training"])
    assert prepare(parse({"workers": 3})).layout.position is None
    assert parse(to_tables(parse(EPOCHS))).training.batches == "epochs"
    with pytest.raises(ConfigError, match=r"training\.batches"):
        parse({"training": {"batches": "epoch"}})
