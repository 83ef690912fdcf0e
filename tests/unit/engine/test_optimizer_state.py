"""The state of optimizers in rounds and turns: kept, reset or mixed; resumed, refused, counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedhp
from fedhp.config import Experiment, load, parse, to_tables
from fedhp.engine.executor import LocalTraining
from fedhp.engine.memory import plan_memory
from fedhp.engine.prepare import prepare
from fedhp.engine.runs.run import loop_of
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.exchange import NeighborMixing
from fedhp.graph import mixing_weights, topology_from
from fedhp.learn.params import FIRST_MOMENT, SECOND_MOMENT, VELOCITY, Layout, Replica
from fedhp.record.checkpoint import read_checkpoint
from fedhp.report.describe import describe_run
from fedhp.rounds.context import nominal_share, planning_context
from unit.engine.runs import NORMED, bits, carry_out, prepared_of

MOMENTUM: dict[str, Any] = {"momentum": 0.9, "learning_rate": 0.02}
ADAMW: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 0.003, "weight_decay": 0.01}
KINDS = {
    "momentum": MOMENTUM,
    "nesterov, reset": {
        **MOMENTUM,
        "nesterov": True,
        "weight_decay": 0.01,
        "optimizer_state": "reset",
    },
    "adamw": ADAMW,
    "adamw, reset": {**ADAMW, "optimizer_state": "reset"},
    "clip, proximal": {"clip_norm": 0.5, "proximal": 0.1},
}
MIXED = {**ADAMW, "optimizer_state": "mix"}
EVERY_ROUND: dict[str, Any] = {"evaluation": {"images": 30}, "checkpoint": {"seconds": 0.0}}


def settings_of(algorithm: str, training: dict[str, Any], **more: Any) -> Experiment:
    tables = {
        "workers": 4,
        "rounds": 6,
        "algorithm": {"name": algorithm},
        "training": {"local_steps": 2, **training},
        **EVERY_ROUND,
    }
    return parse({**tables, **more})


# --- the same bits everywhere --------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        ("dpsgd", MOMENTUM),
        ("dpsgd", MIXED),
        ("fedhp_plus", KINDS["adamw, reset"]),
        ("adpsgd", KINDS["nesterov, reset"]),
        ("adpsgd", ADAMW),
    ],
)
def test_a_resumed_run_has_the_same_state(
    tmp_path: Path, algorithm: str, kind: dict[str, Any]
) -> None:
    experiment = settings_of(algorithm, kind)
    with fedhp.run(experiment, tmp_path / "whole") as whole:
        digest = whole.digest()
    for record in fedhp.start(experiment, tmp_path / "run").rounds():
        if record.round_index == 3:
            break
    with fedhp.run(experiment, tmp_path / "run", resume=True) as resumed:
        assert resumed.digest() == digest
    ends = [read_checkpoint(tmp_path / name) for name in ("whole", "run")]
    assert ends[0] is not None
    assert ends[1] is not None
    assert bits(ends[0].arrays) == bits(ends[1].arrays)
    with fedhp.run(settings_of(algorithm, {"learning_rate": 0.02}), tmp_path / "plain") as plain:
        assert plain.digest() != digest


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        *(("dpsgd", kind) for kind in (*KINDS.values(), MIXED)),
        *(("adpsgd", kind) for kind in KINDS.values()),
        ("fedhp_plus", KINDS["nesterov, reset"]),
        ("pens", MIXED),
        ("free_links", KINDS["adamw, reset"]),
    ],
)
def test_shards_and_executors_have_the_same_bits(algorithm: str, kind: dict[str, Any]) -> None:
    changes = {"training": {**kind, "mixing": "ordered"}, "world": {"away_probability": 0.2}}
    records, state = carry_out(LocalExecutor(prepared_of(algorithm, changes, NORMED)))
    two = prepared_of(algorithm, changes, NORMED, {"executors": 2})
    for other in (LocalExecutor(two), LocalExecutor(two, shards=2)):
        result, end = carry_out(other)
        assert bits(result) == bits(records)
        assert bits(end) == bits(state)


@pytest.mark.parametrize("algorithm", ["dpsgd", "adpsgd"])
@pytest.mark.parametrize("kind", ["momentum", "nesterov, reset"])
def test_stacked_training_agrees_with_one_model_at_a_time(algorithm: str, kind: str) -> None:
    ends = []
    for kernel in ("auto", "worker"):
        prepared = prepared_of(algorithm, {"training": {**KINDS[kind], "kernel": kernel}})
        engine = LocalExecutor(prepared)
        assert (engine.shard.rows.stack is not None) == (kernel == "auto")
        ends.append(carry_out(engine)[1]["models"])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["clip, proximal", "adamw"])
def test_what_the_stack_does_not_offer_is_trained_one_at_a_time(kind: str) -> None:
    engine = LocalExecutor(prepared_of("dpsgd", {"training": KINDS[kind]}))
    assert engine.shard.rows.stack is None
    engine.close()


def test_a_round_that_is_given_up_does_not_change_the_state() -> None:
    engine = LocalExecutor(prepared_of("dpsgd", {"training": MOMENTUM}))
    for _, _ in zip(range(2), loop_of(engine).rounds(), strict=False):
        pass
    before = engine.state()["models"].copy()
    assert before[:, engine.prepared.layout.state].all(axis=0).any()
    engine.train(np.full(5, 2), round_index=9, learning_rate=0.1)
    assert (engine.state()["models"] == before).all()
    engine.close()


# --- keep, reset and mix against a naive reference -----------------------------------------


class NaiveWorker:
    """A module and torch's optimizer."""

    def __init__(self, engine: LocalExecutor, worker: int, training: dict[str, Any]) -> None:
        self.module = engine.prepared.task.model()
        layout, shard = engine.prepared.layout, engine.shard
        row = shard.rows.models[worker].clone()
        Replica(self.module, layout).bind(row, shard.rows.counters[worker].clone())
        rate, parameters = training["learning_rate"], self.module.parameters()
        self.optimizer: torch.optim.Optimizer
        if training.get("optimizer") == "adamw":
            decay = training["weight_decay"]
            self.optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=rate, momentum=training["momentum"])

    def train(self, engine: LocalExecutor, batches: Tensor) -> None:
        for batch in batches:
            inputs, targets = engine.shard.rows.samples.take(batch)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.module(inputs), targets)
            torch.autograd.backward(loss)
            self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and what the optimizer keeps."""
        names = {name: parameter.data for name, parameter in self.module.named_parameters()}
        for name, parameter in self.module.named_parameters():
            for kept, value in self.optimizer.state[parameter].items():
                names[f"{name} {kept}"] = value
        return names

    def columns(self, kept: str = "") -> Tensor:
        ends = f" {kept}" if kept else ""
        own = self.tensors()
        parts = [own[f"{name}{ends}"] for name, _ in self.module.named_parameters()]
        return torch.cat([part.reshape(-1) for part in parts])


OF_TORCH = {VELOCITY: "momentum_buffer", FIRST_MOMENT: "exp_avg", SECOND_MOMENT: "exp_avg_sq"}


@pytest.mark.parametrize("kind", [MOMENTUM, ADAMW], ids=["momentum", "adamw"])
@pytest.mark.parametrize("state", ["keep", "reset", "mix"])
def test_an_exchange_against_a_naive_reference(kind: dict[str, Any], state: str) -> None:
    """Workers 0, 1 and 2 exchange in a chain, worker 3 is alone and 4 has no steps."""
    training = {**kind, "optimizer_state": state, "kernel": "worker"}
    engine = LocalExecutor(prepared_of("dpsgd", {"training": training}))
    workers = [NaiveWorker(engine, worker, kind) for worker in range(5)]
    topology = topology_from(5, [(0, 1), (1, 2)])
    weights = mixing_weights(topology, "max_degree").toarray()
    steps = np.array([3, 3, 2, 3, 0])
    for round_index in (1, 2, 3):
        rate = kind["learning_rate"]
        engine.train(steps, round_index=round_index, learning_rate=rate)
        NeighborMixing(topology, "max_degree").carry_out(engine, round_index=round_index)
        engine.advance()
        for worker in range(4):
            local = LocalTraining(round_index, int(steps[worker]), rate)
            workers[worker].train(engine, engine.shard.trainer.batches(worker, local))
        before = [
            {name: tensor.clone() for name, tensor in worker.tensors().items()}
            for worker in workers
        ]
        for number in range(3):
            for name, tensor in workers[number].tensors().items():
                if " " not in name or state == "mix":
                    near = (j for j in range(3) if weights[number, j])
                    tensor.copy_(sum(weights[number, j] * before[j][name] for j in near))
                elif state == "reset":
                    tensor.zero_()
        compare(engine.prepared.layout, engine.shard.rows.models, workers)
    engine.close()


def compare(layout: Layout, models: Tensor, workers: list[NaiveWorker]) -> None:
    for number, worker in enumerate(workers[:4]):
        trained = models[number, : layout.trainable]
        torch.testing.assert_close(trained, worker.columns(), rtol=1e-5, atol=1e-5)
        for slot in layout.carried:
            if slot.vector.name in OF_TORCH:
                own = models[number, slot.start : slot.stop]
                kept = worker.columns(OF_TORCH[slot.vector.name])
                torch.testing.assert_close(own, kept, rtol=1e-4, atol=1e-5)


# --- asynchronous turns --------------------------------------------------------------------


@pytest.mark.parametrize("state", ["keep", "reset"])
def test_a_turn_keeps_or_loses_its_state_in_an_exchange(state: str) -> None:
    """Worker 1 is training while worker 0 averages with it."""
    training = {**MOMENTUM, "optimizer_state": state}
    engine = LocalExecutor(prepared_of("adpsgd", {"training": training}))
    layout, models = engine.prepared.layout, engine.shard.rows.models
    velocity = layout.columns(VELOCITY)
    assert velocity is not None
    turn = LocalTraining(1, 3, 0.05)
    for worker in (0, 1, 2):
        engine.snapshot(worker)
    engine.train_snapshots({0: turn, 1: turn, 2: turn})
    trained = engine.shard.rows.after[:, velocity].clone()
    assert not models[:, layout.state].any(), "the turns are not over yet"
    engine.apply(0)
    assert (models[0, velocity] == trained[0]).all()
    engine.average(0, 1)
    lost = state == "reset"
    assert bool(models[0, velocity].any()) == (not lost)
    change = engine.shard.rows.after[1, : layout.trainable].clone()
    before = models[1, : layout.trainable].clone()
    engine.apply(1)
    engine.apply(2)
    assert (models[1, : layout.trainable] == before + change).all()
    assert (models[1, velocity] == (torch.zeros_like(trained[1]) if lost else trained[1])).all()
    assert (models[2, velocity] == trained[2]).all()
    engine.snapshot(1)
    engine.train_snapshots({1: LocalTraining(2, 1, 0.05)})
    engine.apply(1)
    assert models[1, velocity].any(), "the next turn begins with zero, and ends with its own"
    engine.close()


def test_links_that_cost_nothing_reset_everyone() -> None:
    changes = {"training": {**ADAMW, "optimizer_state": "reset"}}
    engine = LocalExecutor(prepared_of("free_links", changes))
    for worker in (0, 1):
        engine.snapshot(worker)
        engine.train_snapshots({worker: LocalTraining(1, 2, 0.05)})
    moment = engine.prepared.layout.columns(FIRST_MOMENT)
    assert moment is not None
    engine.apply(0)
    assert engine.shard.rows.models[0, moment].any()
    engine.share(1)
    assert not engine.shard.rows.models[:, moment].any()
    engine.close()


# --- records, checkpoints, bytes -----------------------------------------------------------


@pytest.mark.parametrize("kind", [MOMENTUM, MIXED], ids=["keep", "mix"])
def test_models_of_a_run_have_no_state(kind: dict[str, Any], tmp_path: Path) -> None:
    experiment = settings_of("dpsgd", kind, model=NORMED["model"])
    with fedhp.run(experiment, tmp_path / "run") as run:
        models, module = run.models(), run.model(1)
        last = run.meta("parameters")
    assert models is not None
    layout = prepare(experiment).layout
    assert models.shape == (4, layout.width - (layout.state.stop - layout.state.start))
    assert layout.trainable == last
    trained = torch.cat([part.detach().reshape(-1) for part in module.parameters()])
    assert (models[1, : layout.trainable] == trained.numpy()).all()


def test_mixed_state_counts_as_bytes() -> None:
    sent = {}
    for name, kind in (("keep", ADAMW), ("mix", MIXED), ("velocity", MOMENTUM)):
        prepared = prepared_of("dpsgd", {"training": kind, "world": {"model_megabits": 12.0}})
        records, _ = carry_out(LocalExecutor(prepared))
        sent[name] = sum(record.bytes_sent for record in records)
        share = prepared.layout.mixed / prepared.layout.trainable
        assert prepared.transfer_share == share
        assert share == pytest.approx(nominal_share(prepared.experiment), rel=0.01)
    assert sent["velocity"] == sent["keep"]
    assert sent["mix"] / sent["keep"] == pytest.approx(3.0, rel=0.01)


def test_memory_counts_the_state() -> None:
    experiment = settings_of("dpsgd", MOMENTUM)
    facts: dict[str, Any] = {"model_size": 10**6, "data_bytes": 0, "executors": 1}
    for asynchronous, rows in ((False, 3), (True, 5)):
        plain = plan_memory(experiment, asynchronous=asynchronous, **facts)
        more = plan_memory(experiment, asynchronous=asynchronous, state_size=10**6, **facts)
        assert more.models - plain.models == rows * 4 * 10**6 * 4
    needed = {
        name: prepare(settings_of("dpsgd", kind)).memory.models
        for name, kind in (("plain", {}), ("momentum", MOMENTUM), ("adamw", ADAMW))
    }
    assert needed["momentum"] == 2 * needed["plain"]
    assert needed["adamw"] == 3 * needed["plain"]


# --- settings ------------------------------------------------------------------------------


def test_plain_sgd_keeps_nothing_and_has_the_tables_of_before() -> None:
    experiment = settings_of("dpsgd", {})
    added = {"optimizer", "momentum", "nesterov", "weight_decay", "beta1", "beta2", "epsilon"}
    added |= {"clip_norm", "proximal", "optimizer_state"}
    assert not added & to_tables(experiment)["training"].keys()
    prepared = prepare(experiment)
    assert prepared.optimizer.is_plain
    assert prepared.layout.width == prepared.layout.trainable


@pytest.mark.parametrize(
    ("training", "key"),
    [
        ({**ADAMW, "momentum": 0.9}, "training.momentum"),
        ({**ADAMW, "nesterov": True}, "training.nesterov"),
        ({"beta1": 0.8}, "training.beta1"),
        ({"beta2": 0.99}, "training.beta2"),
        ({"epsilon": 1e-6}, "training.epsilon"),
        ({"optimizer": "adam"}, "training.optimizer"),
        ({"clip_norm": 0.0}, "training.clip_norm"),
        ({"proximal": -1.0}, "training.proximal"),
        ({"weight_decay": -1.0}, "training.weight_decay"),
        ({**MOMENTUM, "optimizer_state": "share"}, "training.optimizer_state"),
        ({"nesterov": True}, "training.nesterov"),
        ({"optimizer_state": "reset"}, "training.optimizer_state"),
        ({"optimizer_state": "mix", "weight_decay": 0.1}, "training.optimizer_state"),
    ],
)
def test_settings_without_effect_are_refused(training: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(settings_of("dpsgd", training))
    assert caught.value.key == key
    assert caught.value.allowed
    with pytest.raises(ConfigError) as caught:  # also where no model is built
        planning_context(settings_of("dpsgd", training), model_bits=1e6)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("algorithm", "more", "why"),
    [
        ("adpsgd", {}, "while the workers train"),
        ("free_links", {}, "while the workers train"),
        ("fedhp_plus", {}, "groups"),
        ("dpsgd", {"exchange": {"compression": "int8"}}, "compression"),
        ("dpsgd", {"exchange": {"robust": "median"}}, "robust"),
        ("dpsgd", {"attack": {"kind": "sign_flip"}}, "attack.kind"),
        ("dpsgd", {"attack": {"kind": "noise"}}, "attack.kind"),
    ],
)
def test_state_that_cannot_travel_is_refused(
    algorithm: str, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        prepare(settings_of(algorithm, MIXED, **more))
    assert caught.value.key == "training.optimizer_state"
    at_home = {**MIXED, "optimizer_state": "reset"}
    planning_context(settings_of(algorithm, at_home, **more), model_bits=1e6)


@pytest.mark.parametrize(
    ("training", "key"),
    [
        ({"proximal": 0.1}, "training.proximal"),
        ({**MOMENTUM, "optimizer_state": "reset"}, "training.optimizer_state"),
    ],
)
def test_what_needs_a_second_step_is_refused_where_a_turn_has_one(
    training: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=r"one step|every step") as caught:
        planning_context(settings_of("free_links", training), model_bits=1e6)
    assert caught.value.key == key
    planning_context(settings_of("adpsgd", training), model_bits=1e6)
    for fine in (MOMENTUM, KINDS["adamw, reset"]):
        planning_context(settings_of("free_links", fine), model_bits=1e6)


def test_local_statistics_need_a_model_that_has_some() -> None:
    local = {"batch_norm": "local", "local_steps": 1}
    with pytest.raises(ConfigError, match="no running statistics") as caught:
        prepare(settings_of("dpsgd", local))
    assert caught.value.key == "training.batch_norm"
    prepare(settings_of("dpsgd", local, model={"name": "resnet20", "norm": "batch", "width": 0.1}))


def test_momentum_of_the_algorithm_counts() -> None:
    nesterov = {"training": {"nesterov": True}}
    assert prepared_of("adpsgd", nesterov, momentum=0.8).optimizer.momentum == 0.8
    for training, momentum, key in (
        ({"nesterov": True, "momentum": 0.9}, 0.0, "training.nesterov"),
        (ADAMW, 0.9, "algorithm.momentum"),
    ):
        with pytest.raises(ConfigError) as caught:
            prepared_of("adpsgd", {"training": training}, momentum=momentum)
        assert caught.value.key == key
    assert prepared_of("adpsgd", {"training": MOMENTUM}, momentum=0.0).optimizer.is_plain


def test_another_optimizer_drops_the_settings_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text("[training]\nmomentum = 0.9\nnesterov = true\nweight_decay = 0.1\n")
    notes: list[str] = []
    training = load(file, ["training.optimizer=adamw"], notes=notes).training
    assert (training.momentum, training.nesterov, training.weight_decay) == (0.0, False, 0.1)
    assert "training.momentum = 0.9" in notes[0]
    file.write_text('[training]\noptimizer = "adamw"\nbeta1 = 0.5\n')
    assert load(file, ["training.optimizer=sgd"], notes=notes).training.beta1 == 0.9


def test_a_run_says_how_it_was_trained(tmp_path: Path) -> None:
    texts = []
    for name, algorithm, kind in (
        ("plain", "dpsgd", {}),
        ("nesterov", "dpsgd", KINDS["nesterov, reset"]),
        ("adamw", "dpsgd", {**MIXED, "beta1": 0.5}),
        ("betas", "dpsgd", {**ADAMW, "beta1": 0.0, "beta2": 0.0}),
        ("clip", "dpsgd", KINDS["clip, proximal"]),
    ):
        experiment = settings_of(algorithm, kind).model_copy(update={"rounds": 1})
        with fedhp.run(experiment, tmp_path / name) as run:
            texts.append(dict(describe_run(run))["training"].partition("learning rate")[0])
    assert texts == [
        "",
        "SGD with Nesterov momentum 0.9, weight decay 0.01, state reset at every exchange, ",
        "AdamW, beta1 0.5, weight decay 0.01, state mixed with the models, ",
        "AdamW, beta1 0, beta2 0, weight decay 0.01, ",
        "gradients clipped to norm 0.5, proximal term 0.1, ",
    ]
