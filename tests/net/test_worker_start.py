"""How a worker starts and ends: the command, its coordinator, stored models, private data."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import numpy as np
import pytest

from fedhp.cli import call as main
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.security.certificates import issue
from fedhp.cluster.worker import coordinator_client
from fedhp.cluster.worker.data import prepare_worker, read_private_data, worker_experiment
from fedhp.cluster.worker.model_store import ModelStore, StoredModel, stored_attempts
from fedhp.errors import DataError, FedhpError
from fedhp.seeds import Purpose, generator
from net.fake_coordinator import BEAT, RUN, FakeCoordinator
from net.federation import experiment, run, start_federation
from net.identities import make_certificates

FIRST = Attempt(1, 1, 1)
START = 200.0  # s: a new process on a machine that is busy with other things


def test_a_worker_whose_coordinator_is_nowhere_says_so(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            federation.coordinator.address = "127.0.0.1:1"
            with pytest.raises(FedhpError, match="nothing listens there"):
                await asyncio.wait_for(federation.start(0, give_up=0.3), 20)
            federation.running.clear()

    run(test())


def test_a_worker_does_not_believe_one_that_is_no_coordinator(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path / "certs", 1)
    issue(folder, "boss", hosts=["127.0.0.1"], replace=True)  # a worker, at the right host

    async def test() -> None:
        async with start_federation(experiment(), folder, tmp_path) as federation:
            with pytest.raises(
                FedhpError, match="boss; by its certificate it is worker, not a coo"
            ):
                await asyncio.wait_for(federation.start(0), 20)  # at once: trying again cannot help
            federation.running.clear()

    run(test())


def test_a_call_to_a_frozen_coordinator_is_tried_again(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_client, "SILENT_SECONDS", 0.3)
    longer = round(2 * 0.3 / BEAT)  # heartbeats, in which a silence would have been noticed

    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0])
            coordinator = federation.coordinator
            await coordinator.answer_beats(0, longer)  # it waits for its order meanwhile
            assert coordinator.asked["w0"] == 1
            coordinator.freeze()
            await coordinator.until(lambda: coordinator.asked["w0"] > 1)
            coordinator.wake()
            await coordinator.answer_beats(0, longer)  # over a new connection
            asked = coordinator.asked["w0"]
            await coordinator.answer_beats(0, longer)
            assert coordinator.asked["w0"] == asked

    run(test())


def like(width: int) -> StoredModel:
    return StoredModel(np.zeros(width, np.float32), np.arange(2))


def test_a_model_that_the_disk_has_damaged_is_not_taken(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, RUN)
    models = {
        Attempt(1, index, 1): StoredModel(np.full(7, index, np.float32), np.arange(2))
        for index in (1, 2)
    }
    for attempt, model in models.items():
        store.write(attempt, model, keeping=FIRST)
    store.write(Attempt(1, 2, 2), models[Attempt(1, 2, 1)], keeping=FIRST)
    assert store.attempts() == [FIRST, Attempt(1, 2, 2)]
    assert stored_attempts(tmp_path) == store.attempts()
    file = next((tmp_path / RUN).glob("round-2-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    again = ModelStore(tmp_path, RUN)
    again.load(like(7))
    assert again.attempts() == [FIRST]
    stored = again.get(FIRST)
    assert stored is not None
    np.testing.assert_array_equal(stored.row, models[FIRST].row)
    other = ModelStore(tmp_path, RUN)
    other.load(like(8))
    assert other.attempts() == []


def test_models_to_which_the_run_may_go_back_stay_on_the_disk(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, RUN)
    store.load(like(7))
    made = [Attempt(1, index, 1) for index in (1, 2, 3, 4)]
    for before, attempt in zip([INITIAL, *made], made, strict=False):
        model = StoredModel(np.full(7, attempt.round_index, np.float32), np.arange(2))
        store.write(attempt, model, keeping=before, on_disk=[FIRST, INITIAL])
    assert store.attempts() == [FIRST, *made[2:]] == stored_attempts(tmp_path)
    first = store.get(FIRST)
    assert first is not None
    np.testing.assert_array_equal(first.row, np.ones(7))
    store.write(made[3], first, keeping=made[2])  # nobody goes back to it any more
    assert store.attempts() == made[2:] == stored_attempts(tmp_path)
    next((tmp_path / RUN).glob("round-3-*")).write_bytes(b"damaged")
    store.write(made[3], first, keeping=made[3], on_disk=[made[2]])
    assert store.get(made[2]) is None
    assert store.attempts() == made[3:]


def test_the_command_takes_part_and_leaves_when_it_is_told_to(
    certificates: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with FakeCoordinator(experiment(), certificates) as coordinator:
            arguments = ["worker", "--coordinator", coordinator.address, "--name", "w0"]
            arguments += ["--certs", str(certificates), "--state", str(tmp_path / "w0")]
            arguments += ["--listen", "127.0.0.1:0"]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fedhp", *arguments, stdout=PIPE, stderr=PIPE
            )
            try:
                await follow(coordinator, process)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    async def follow(coordinator: FakeCoordinator, process: asyncio.subprocess.Process) -> None:
        await coordinator.until(lambda: "w0" in coordinator.stored, within=START)
        order = coordinator.work(
            0, peers=[], weights=[], own_weight=1.0, readers=[], committed=INITIAL, attempt=FIRST
        )
        coordinator.order(0, order)
        await coordinator.report(0)
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("round 1: 3 steps, ")
        assert ", accuracy 0." in line
        process.terminate()
        _, errors = await asyncio.wait_for(process.communicate(), START)
        assert process.returncode == 130
        assert "w0: left the run" in errors.decode()
        assert coordinator.left == {"w0": "it was stopped"}

    run(test())


def test_the_command_names_a_certificate_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["worker", "--coordinator", "127.0.0.1:1", "--name", "w0"]
    assert main([*arguments, "--certs", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def private_file(folder: Path, shape: tuple[int, ...], classes: int) -> Path:
    rng = generator(0, Purpose.HOLDOUT)
    path = folder / "private.npz"
    np.savez(path, x=rng.random((40, *shape)), y=np.arange(40) % classes)
    return path


def test_a_file_of_its_own_is_all_a_worker_trains_on(tmp_path: Path) -> None:
    text = "workers = 3\n[cluster]\n"
    private = read_private_data(private_file(tmp_path, (8, 8), 4))
    prepared, shard_spec = prepare_worker(worker_experiment(text), 1, private=private)
    assert shard_spec.dataset.train_inputs.shape == (40, 1, 8, 8)
    assert shard_spec.parts[0].tolist() == list(range(40))
    assert len(shard_spec.dataset.test_inputs) == len(prepared.dataset.test_inputs)
    assert (prepared.experiment.training.kernel, prepared.experiment.training.mixing) == (
        "worker",
        "ordered",
    )


@pytest.mark.parametrize(
    ("shape", "classes", "words"),
    [((9, 8), 4, "shape"), ((8, 8), 11, "class 10")],
)
def test_a_file_that_does_not_fit_is_refused(
    shape: tuple[int, ...], classes: int, words: str, tmp_path: Path
) -> None:
    private = read_private_data(private_file(tmp_path, shape, classes))
    with pytest.raises(DataError, match=words):
        prepare_worker(worker_experiment("workers = 3\n"), 0, private=private)
