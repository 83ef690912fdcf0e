"""The numbers of a test in addition to the mean accuracy, against a naive evaluation."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedhp.config import parse
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.runs.run import loop_of, start_run
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.learn.evaluate import choose_images, class_accuracy, hold_back, score_outputs
from fedhp.learn.task import Classification, initial_model
from fedhp.record.reader import RunReader
from fedhp.record.store import METRIC_TABLES, RECORD_FILE
from fedhp.types import IntArray
from paper.tiny import tiny
from unit.engine.runs import prepared_of


def test_worst_and_best_worker_come_from_the_tests_of_the_final_accuracy(tmp_path: Path) -> None:
    list(start_run(tiny("dpsgd", {"rounds": 4}), tmp_path / "run").rounds())
    with RunReader(tmp_path / "run") as run:
        summary = run.summary()
        finals = run.array("worker_evaluations", "accuracy")[-summary.final_tests :].mean(axis=0)
    assert summary.worst_worker_accuracy == pytest.approx(finals.min())
    assert summary.best_worker_accuracy == pytest.approx(finals.max())
    assert np.ptp(finals) > 0


@pytest.mark.parametrize("kernel", ["auto", "worker"])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_test_loss_is_that_of_a_naive_evaluation(kernel: str, shards: int) -> None:
    prepared = prepared_of(
        "dpsgd", {"evaluation": {"images": 60}, "training": {"kernel": kernel}}, overlap=False
    )
    engine = LocalExecutor(prepared, shards=shards)
    try:
        last = list(loop_of(engine).rounds())[-1]
        models = torch.from_numpy(engine.state()["models"].copy())
    finally:
        engine.close()
    dataset = prepared.dataset
    chosen = choose_images(dataset, images=60, choose="stratified")
    for tested, images in (
        (last.evaluation, chosen),
        (last.final_evaluation, np.arange(len(dataset.test_inputs))),
    ):
        assert tested is not None
        assert tested.loss is not None
        losses = [naive_loss(prepared, model, images) for model in (*models, models.mean(dim=0))]
        assert [*tested.loss, tested.mean_model_loss] == pytest.approx(losses, rel=1e-4)


def naive_outputs(prepared: Prepared, model: torch.Tensor, images: IntArray) -> torch.Tensor:
    module = initial_model(prepared.task, prepared.experiment.seed)
    start = 0
    for parameter in module.parameters():
        parameter.data = model[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    with torch.no_grad():
        return torch.cat(
            [module(torch.from_numpy(prepared.dataset.test_inputs[[i]])) for i in images]
        )


def naive_loss(prepared: Prepared, model: torch.Tensor, images: IntArray) -> float:
    logs = naive_outputs(prepared, model, images).double().log_softmax(dim=1)
    targets = prepared.dataset.test_targets[images]
    return -float(np.mean([logs[i, int(target)] for i, target in enumerate(targets)]))


class Odd(Classification):
    """A task of a user whose loss only fits what the model returns in training."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not outputs.requires_grad:
            raise RuntimeError("only for training")
        return super().loss(outputs, targets)


def test_a_loss_that_does_not_fit_test_outputs_is_missing() -> None:
    outputs, targets = torch.eye(3), torch.tensor([0, 1, 1])
    odd = Odd(cast(Any, None), cast(Any, None))
    tested = score_outputs(odd, outputs, targets)
    assert tested.metric == pytest.approx(2 / 3)
    assert np.isnan(tested.loss)


def test_losses_are_recorded_and_not_in_the_digest(tmp_path: Path) -> None:
    list(start_run(tiny("dpsgd", {"evaluation": {"images": 60}}), tmp_path / "run").rounds())
    with RunReader(tmp_path / "run") as run:
        summary = run.summary()
        metrics, workers = run.table("test_metrics"), run.table("worker_test_metrics")
    assert list(zip(metrics["round"], metrics["whole"], strict=True)) == [
        (1, 0), (2, 0), (3, 0), (3, 1)
    ]  # fmt: skip
    assert metrics["loss"][3] == pytest.approx(np.mean(workers["loss"][-5:]))
    last = slice(3 - summary.final_tests, 3)
    assert summary.final_loss == pytest.approx(np.mean(metrics["loss"][last]))
    assert summary.mean_model_loss == pytest.approx(np.mean(metrics["mean_model_loss"][last]))
    older_version(tmp_path / "run")
    with RunReader(tmp_path / "run") as run:
        old = run.summary()
        assert run.table("test_metrics")["loss"] == []
        assert old.digest == summary.digest
    assert old.final_loss is None
    assert old.final_accuracy == summary.final_accuracy


def test_a_run_of_a_version_without_the_metrics_can_be_resumed(tmp_path: Path) -> None:
    experiment = tiny("dpsgd", {"checkpoint": {"seconds": 0}})
    rounds = cast(Any, start_run(experiment, tmp_path / "run").rounds())
    next(rounds)
    rounds.close()
    older_version(tmp_path / "run")
    list(start_run(experiment, tmp_path / "run", resume=True).rounds())
    list(start_run(experiment, tmp_path / "other").rounds())
    with RunReader(tmp_path / "run") as run, RunReader(tmp_path / "other") as other:
        assert run.digest() == other.digest()
        assert run.table("test_metrics")["round"][-1] == 3


def older_version(folder: Path) -> None:
    """The record as a version wrote it that had no tables of metrics."""
    with closing(sqlite3.connect(folder / RECORD_FILE)) as connection, connection:
        for table in METRIC_TABLES:
            connection.execute(f"DROP TABLE {table}")


@pytest.mark.parametrize("kernel", ["auto", "worker"])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_accuracy_by_class_is_that_of_a_naive_evaluation(kernel: str, shards: int) -> None:
    changes = {"evaluation": {"per_class": True}, "training": {"kernel": kernel}}
    prepared = prepared_of("dpsgd", changes, overlap=False)
    engine = LocalExecutor(prepared, shards=shards)
    try:
        tested = list(loop_of(engine).rounds())[-1].evaluation
        models = torch.from_numpy(engine.state()["models"].copy())
    finally:
        engine.close()
    targets = prepared.dataset.test_targets
    by_model = []
    for model in (*models, models.mean(dim=0)):
        answers = naive_outputs(prepared, model, np.arange(len(targets))).argmax(dim=1).numpy()
        by_model.append([np.mean(answers[targets == number] == number) for number in range(10)])
    assert tested is not None
    assert tested.class_accuracy == pytest.approx(np.mean(by_model[:-1], axis=0))
    assert tested.mean_model_class_accuracy == pytest.approx(by_model[-1])


def test_classes_are_recorded_only_if_asked_for(tmp_path: Path) -> None:
    list(start_run(tiny("dpsgd"), tmp_path / "plain").rounds())
    experiment = tiny("dpsgd", {"evaluation": {"per_class": True}})
    list(start_run(experiment, tmp_path / "asked").rounds())
    with RunReader(tmp_path / "plain") as plain, RunReader(tmp_path / "asked") as asked:
        assert plain.table("class_test_metrics")["class"] == []
        assert plain.summary().class_accuracy is None
        assert asked.digest() == plain.digest()
        rows, summary = asked.table("class_test_metrics"), asked.summary()
    assert rows["class"] == [*range(10)] * 3
    assert summary.class_accuracy is not None
    assert summary.mean_model_class_accuracy is not None
    assert summary.class_accuracy == pytest.approx(rows["accuracy"][-10:])


def test_classes_without_test_samples_are_missing() -> None:
    by_class = class_accuracy(torch.eye(3), torch.tensor([0, 1, 1]))
    assert by_class == pytest.approx([1.0, 0.5, np.nan], nan_ok=True)


def test_a_task_without_classes_has_no_accuracy_by_class() -> None:
    task = {"task": {"name": "unit.learn.tasks:Doubling"}, "evaluation": {"per_class": True}}
    with pytest.raises(ConfigError, match="per_class"):
        prepare(parse({**task, "workers": 2}))


@pytest.mark.parametrize("kernel", ["auto", "worker"])
@pytest.mark.parametrize("shards", [1, 2])
def test_each_worker_is_tested_on_what_it_held_back(kernel: str, shards: int) -> None:
    changes = {"data": {"own_test": 0.3}, "training": {"kernel": kernel}}
    prepared = prepared_of("dpsgd", changes, overlap=False)
    engine = LocalExecutor(prepared, shards=shards)
    try:
        tested = list(loop_of(engine).rounds())[-1].evaluation
        models = torch.from_numpy(engine.state()["models"].copy())
    finally:
        engine.close()
    dataset = prepared.dataset
    swapped = replace(
        prepared,
        dataset=replace(
            dataset, test_inputs=dataset.train_inputs, test_targets=dataset.train_targets
        ),
    )
    finals = []
    for model, held in zip(models, prepared.held_back, strict=True):
        answers = naive_outputs(swapped, model, held).argmax(dim=1).numpy()
        finals.append(np.mean(answers == dataset.train_targets[held]))
    assert tested is not None
    assert tested.own_accuracy == pytest.approx(finals)


def test_held_back_samples_are_not_trained_on() -> None:
    plain, prepared = prepared_of("dpsgd"), prepared_of("dpsgd", {"data": {"own_test": 0.3}})
    assert plain.held_back == []
    for whole, part, held in zip(plain.parts, prepared.parts, prepared.held_back, strict=True):
        assert sorted([*part, *held]) == sorted(whole)
        assert len(held) == round(0.3 * len(whole))


def test_a_worker_keeps_a_sample_to_train_on() -> None:
    parts = [np.array([4]), np.array([5, 6])]
    trained, held_back = hold_back(parts, share=0.9, seed=0)
    assert [len(part) for part in trained] == [1, 1]
    assert [len(part) for part in held_back] == [0, 1]


def test_own_accuracy_is_recorded(tmp_path: Path) -> None:
    list(start_run(tiny("dpsgd", {"data": {"own_test": 0.2}}), tmp_path / "run").rounds())
    with RunReader(tmp_path / "run") as run:
        rows, summary = run.table("own_test_metrics"), run.summary()
    assert rows["worker"] == [*range(5)] * 3
    assert summary.own_accuracy == pytest.approx(np.mean(rows["accuracy"][-5:]))


def test_a_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="own_test"):
        parse({"data": {"own_test": 1.0}})
