"""Data sets, modules and models that differ between machines are noticed when a worker joins."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.in_process import InProcessFederation, experiment, in_process_federation, run, until
from fedhp.cli import call as main
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.members.setup_checks import SetupChecks, parts_of_this_machine
from fedhp.cluster.coordinator.members.setup_process import answer_to
from fedhp.cluster.protocol.attempt import INITIAL
from fedhp.cluster.protocol.own_setup import model_part, setup_of
from fedhp.cluster.protocol.setup import DATA, MODEL, MODULE, TEST, Setup, SetupPart
from fedhp.cluster.worker.data import (
    prepare_worker,
    read_private_data,
    with_private_data,
    worker_experiment,
)
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.config import Experiment, to_tables
from fedhp.engine.prepare import shard_spec_of
from fedhp.errors import DataError, FedhpError
from fedhp.learn.task import initial_model
from fedhp.record.reader import RunReader
from fedhp.record.tensors import read_tensors
from fedhp.seeds import Purpose, generator
from fedhp.trust import NO_TRUST, load_trust

FEATURES = 6


def samples_of(path: Path, *, seed: int, samples: int = 60, shift: float = 0.0) -> Path:
    rng = generator(seed, Purpose.HOLDOUT)
    classes = np.arange(samples) % 2
    inputs = (rng.normal(size=(samples, FEATURES)) + classes[:, None] + shift).astype(np.float32)
    cut = samples - 20
    np.savez(
        path,
        x_train=inputs[:cut],
        y_train=classes[:cut],
        x_test=inputs[cut:],
        y_test=classes[cut:],
    )
    return path


def on_file(path: Path, **sections: Any) -> Experiment:
    """Two rounds on an .npz file."""
    tables: dict[str, Any] = {
        "rounds": 2,
        "data": {"name": "npz", "path": str(path)},
        "model": {"name": "logistic"},
        "cluster": {"min_workers": 2, "gather": 30.0},
    }
    return experiment(**(tables | sections))


async def start(federation: InProcessFederation, name: str, **settings: Any) -> asyncio.Task[int]:
    worker = WorkerSettings(
        name=name,
        coordinator=federation.address,
        certificates=federation.certificates,
        state=federation.folder / "workers" / name,
        listen="127.0.0.1:0",
        **settings,
    )
    return asyncio.ensure_future(run_worker(worker))


def test_a_worker_with_another_data_set_is_refused(certificates: Path, tmp_path: Path) -> None:
    public = samples_of(tmp_path / "public.npz", seed=0)
    other = samples_of(tmp_path / "other.npz", seed=1, samples=84)

    async def scenario() -> None:
        async with in_process_federation(on_file(public), certificates, tmp_path) as federation:
            state = await federation.start_coordinator()
            right = [await start(federation, name, data_path=public) for name in ("w0", "w1")]
            wrong = await start(federation, "w2", data_path=other)
            with pytest.raises(FedhpError) as caught:
                await wrong
            for words in ("40 training samples", "64 training samples", "refused", "data set"):
                assert words in caught.value.problem
            assert "--data FILE.npz" in caught.value.fix
            (refused,) = state.status().warnings
            assert (refused.key, list(refused.members)) == ("setup", ["w2"])
            assert "64 training samples" in refused.text
            await until(lambda: "another setup: w2" in state.phase.why)  # it waits for a third one
            state.phase.stop("the test has seen enough")
            assert await asyncio.gather(*right) == [0, 0]
            await federation.finish()

    run(scenario())
    with RunReader(tmp_path) as reader:
        assert reader.meta("samples")[2] == 0
        assert [round(value, 5) for value in reader.meta("scaling")["mean"]] == [
            round(float(value), 5) for value in np.load(public)["x_train"].mean(axis=0)
        ]


def test_private_samples_are_all_used_shown_and_not_compared(
    certificates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = samples_of(tmp_path / "public.npz", seed=0)
    own = samples_of(tmp_path / "own.npz", seed=2, samples=51)
    settings = on_file(public, workers=2)

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            await federation.start_coordinator()
            shared = await start(federation, "w0", data_path=public)
            await until(lambda: (tmp_path / "workers" / "w0").exists())
            private = await start(federation, "w1", data_path=public, data=str(own))
            assert list(await asyncio.gather(shared, private)) == [0, 0]
            await federation.finish()

    run(scenario())
    with RunReader(tmp_path) as reader:
        private = reader.meta("private")
        samples = reader.meta("samples")
    assert len(private) == 1
    assert samples[private[0]] == 31
    _, metadata = read_tensors(tmp_path / "workers" / "w1" / "model.safetensors")
    assert len(json.loads(metadata["mean"])) == FEATURES
    assert main(["show", str(tmp_path)]) == 0
    assert f"own data (--data) of 1 worker: 31 samples (worker {private[0]} 31)" in (
        capsys.readouterr().out
    )
    assert main(["cluster", "verify", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "every promise was kept" in output
    assert f"not comparable: worker {private[0]} used private data" in output
    assert main(["cluster", "verify", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["private"] == private


def test_private_samples_are_scaled_as_the_test_set(tmp_path: Path) -> None:
    """Also where their own mean is another one: a shift is what a model has to see."""
    public = samples_of(tmp_path / "public.npz", seed=0)
    own = samples_of(tmp_path / "own.npz", seed=2, shift=5.0)
    text = f'workers = 2\n[data]\nname = "npz"\npath = "{public}"\n[model]\nname = "logistic"\n'
    _, spec = prepare_worker(worker_experiment(text), 0, private=read_private_data(own))
    raw = np.load(public)["x_train"].astype(np.float64)
    expected = (np.load(own)["x_train"] - raw.mean(axis=0)) / raw.std(axis=0)
    np.testing.assert_allclose(spec.dataset.train_inputs, expected, rtol=1e-4, atol=1e-4)
    unscaled = text.replace("[model]", "standardize = false\n[model]")
    _, spec = prepare_worker(worker_experiment(unscaled), 0, private=read_private_data(own))
    np.testing.assert_array_equal(spec.dataset.train_inputs, np.load(own)["x_train"])


def test_private_whole_numbers_do_not_become_floats(tmp_path: Path) -> None:
    public = samples_of(tmp_path / "public.npz", seed=0)
    own = tmp_path / "tokens.npz"
    np.savez(own, x=np.ones((8, FEATURES)).astype(np.float32), y=np.arange(8) % 2)
    text = f'workers = 2\n[data]\nname = "npz"\npath = "{public}"\n[model]\nname = "logistic"\n'
    prepared, _ = prepare_worker(worker_experiment(text), 0)
    tokens = replace(prepared.dataset, train_inputs=np.ones((3, FEATURES), np.int64), scaling=None)
    spec = replace(shard_spec_of(prepared, np.array([0])), dataset=tokens)
    with pytest.raises(DataError, match="float32, but int64 in the experiment"):
        with_private_data(prepared, spec, read_private_data(own))


OWN_MODEL = """
from torch import nn
def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.{kind}(), nn.Linear({width}, 10))
"""


def parts_with_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, width: int = 16, kind: str = "ReLU"
) -> dict[str, SetupPart]:
    """What a machine has whose module has this text."""
    folder.mkdir()
    (folder / "compared_model.py").write_text(OWN_MODEL.format(width=width, kind=kind))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "compared_model", raising=False)
    settings = experiment(model={"name": "compared_model:net"})
    answer = answer_to({"experiment": to_tables(settings), "folders": []})
    monkeypatch.delitem(sys.modules, "compared_model", raising=False)
    assert answer["problem"] == ""
    return {part[0]: SetupPart.from_list(part) for part in answer["parts"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "Sigmoid"}, ("module compared_model is another version",)),
        ({"width": 17}, ("module compared_model", "1.weight 17x64", "1.weight 16x64")),
    ],
)
def test_another_version_of_a_module_is_refused(
    changes: dict[str, Any],
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = parts_with_module(tmp_path / "ours", monkeypatch)
    theirs = parts_with_module(tmp_path / "theirs", monkeypatch, **changes)
    assert ours.keys() == {f"{MODULE}compared_model", DATA, TEST, MODEL}
    checks = SetupChecks(awaits_own=True)
    checks.say(0, Setup(tuple(theirs.values())))
    checks.say(1, Setup(tuple(ours.values())))
    assert not checks.is_agreed(0)  # nothing is known yet: it waits, and is not refused
    assert 0 not in checks.differing
    checks.take_own(list(ours.values()))
    assert checks.is_agreed(1)
    why = checks.differing[0]
    for text in (*words, "the coordinator has", "To correct it: copy that file"):
        assert text in why
    for parts in (ours, theirs):
        assert parts[f"{MODULE}compared_model"].digest[:12] in why


def test_a_module_that_was_changed_between_two_starts_is_refused(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "changed_model.py"
    file.write_text(OWN_MODEL.format(width=8, kind="ReLU"))
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = experiment(
        workers=2, model={"name": "changed_model:net"}, cluster={"min_workers": 1, "gather": 30.0}
    )

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            state = await federation.start_coordinator()
            state.members.setups.awaits_own = (
                True  # as if this machine's process still read its data
            )
            first = await start(federation, "w0", trust=("changed_model",))
            await until(lambda: state.conductor.by_name.get("w0") is not None)
            (module,) = load_trust(["changed_model"]).modules
            state.members.own_setup_known([SetupPart(f"{MODULE}changed_model", module.sha256)])
            file.write_text(OWN_MODEL.format(width=8, kind="Sigmoid"))
            second = await start(federation, "w1", trust=("changed_model",))
            with pytest.raises(FedhpError, match="module changed_model is another version"):
                await second
            assert state.members.setups.refused == {"w1"}
            state.phase.stop("the test has seen enough")
            assert await first == 0
            await federation.finish()

    run(scenario())


def test_the_coordinators_own_process_finds_what_a_worker_finds(tmp_path: Path) -> None:
    settings = experiment()
    prepared, _ = prepare_worker(settings, 0)
    worker = setup_of(
        prepared.dataset,
        initial_model(prepared.task, settings.seed),
        trust=NO_TRUST,
        private=False,
    )
    parts = asyncio.run(parts_of_this_machine(settings, [str(tmp_path)]))
    assert {part.name: part.digest for part in parts} == {
        part.name: part.digest for part in worker.parts
    }


def test_without_its_own_data_what_most_workers_say_counts(tmp_path: Path) -> None:
    missing = on_file(tmp_path / "missing.npz")
    answer = answer_to({"experiment": to_tables(missing), "folders": []})
    assert answer["parts"] == []
    assert "missing.npz" in answer["problem"]
    checks = SetupChecks(awaits_own=True)
    one, other = SetupPart(DATA, "aa" * 32, "40 samples"), SetupPart(DATA, "bb" * 32, "60 samples")
    for worker, part in enumerate((other, one, one)):
        checks.say(worker, Setup((part,)))
    assert not checks.settle(range(3))  # this machine may still have it
    checks.take_own([])
    assert checks.settle(range(3))
    assert [checks.is_agreed(worker) for worker in range(4)] == [False, True, True, True]
    assert "most of the others has aaaaaaaaaaaa (40 samples)" in checks.differing[0]


def test_a_standby_compares_with_the_same_reference() -> None:
    checks = SetupChecks()
    part = SetupPart(MODEL, "cc" * 32, "3 numbers", (1.5, -0.25))
    checks.say(1, Setup((part,), private=True))
    checks.settle([1])
    before = CommittedState("ab" * 16, experiment(), INITIAL, setup=checks.reference, private=(1,))
    after = CommittedState.from_bytes(before.to_bytes())
    assert (after.setup, after.private) == (before.setup, (1,))
    standby = SetupChecks(after.setup, private=after.private)
    standby.say(1, Setup((part,)))
    assert standby.differing == {}
    standby.say(1, Setup((replace(part, digest="dd" * 32, facts=""),)))
    assert "another one" in standby.differing[1]


def test_initial_values_may_differ_in_their_last_bits_only() -> None:
    """Processors and versions of torch round differently; other draws are another model."""
    settings = experiment()
    prepared, _ = prepare_worker(settings, 0)
    same = model_part(initial_model(prepared.task, 0))
    rounded = initial_model(prepared.task, 0)
    for tensor in rounded.parameters():
        tensor.data.mul_(1 + 2.0**-22)
    other = model_part(initial_model(prepared.task, 1))
    assert same.digest != model_part(rounded).digest
    assert same.agrees(model_part(rounded))
    assert not same.agrees(other)
    assert not same.agrees(replace(same, digest="00" * 32, sketch=(math.nan, math.nan)))
