"""How a worker starts and ends: the command, its coordinator, its kept models, its own data."""

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
from fedhp.cluster.worker.data import experiment_of, read_own, share_of
from fedhp.cluster.worker.model_store import Kept, ModelStore, last_stands
from fedhp.errors import DataError, FedhpError
from fedhp.seeds import Purpose, generator
from net.fake_coordinator import BEAT, RUN, FakeCoordinator, make_certificates
from net.federation import experiment, federation, run

FIRST = Attempt(1, 1, 1)
START = 200.0  # s: a new process on a machine that is busy with other things


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("net") / "certs", 3)


def test_a_worker_whose_coordinator_is_nowhere_says_so(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            there.boss.address = "127.0.0.1:1"
            with pytest.raises(FedhpError, match="nobody listens there"):
                await asyncio.wait_for(there.start(0, give_up=0.3), 20)
            there.running.clear()

    run(test())


def test_a_worker_does_not_believe_one_that_is_no_coordinator(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path / "certs", 1)
    issue(folder, "boss", hosts=["127.0.0.1"], replace=True)  # a worker, at the right host

    async def test() -> None:
        async with federation(experiment(), folder, tmp_path) as there:
            with pytest.raises(FedhpError, match="is boss, worker by its certificate, but no coo"):
                await asyncio.wait_for(there.start(0), 20)  # at once: it would be in vain
            there.running.clear()

    run(test())


def test_a_call_to_a_frozen_coordinator_is_tried_again(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_client, "SILENT", 0.3)
    longer = round(2 * 0.3 / BEAT)  # beats, in which a silence would have been noticed

    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            await there.ready([0])
            await there.boss.beaten(0, longer)  # beats are answered: it waits for its order
            assert there.boss.asked["w0"] == 1
            there.boss.freeze()
            await there.boss.until(lambda: there.boss.asked["w0"] > 1)
            there.boss.wake()
            await there.boss.beaten(0, longer)  # over a new connection
            asked = there.boss.asked["w0"]
            await there.boss.beaten(0, longer)
            assert there.boss.asked["w0"] == asked

    run(test())


def test_a_model_that_the_disk_has_damaged_is_not_taken(tmp_path: Path) -> None:
    keep = ModelStore(tmp_path, RUN)
    models = {
        Attempt(1, index, 1): Kept(np.full(7, index, np.float32), np.arange(2)) for index in (1, 2)
    }
    for stand, model in models.items():
        keep.write(stand, model, beside=Attempt(1, 1, 1))
    keep.write(Attempt(1, 2, 2), models[Attempt(1, 2, 1)], beside=Attempt(1, 1, 1))
    assert keep.stands() == [Attempt(1, 1, 1), Attempt(1, 2, 2)]
    assert last_stands(tmp_path) == (RUN, keep.stands())
    file = next((tmp_path / RUN).glob("round-2-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    again = ModelStore(tmp_path, RUN)
    again.load(width=7, counters=2)
    assert again.stands() == [Attempt(1, 1, 1)]
    kept = again.get(Attempt(1, 1, 1))
    assert kept is not None
    np.testing.assert_array_equal(kept.row, models[Attempt(1, 1, 1)].row)
    other = ModelStore(tmp_path, RUN)
    other.load(width=8, counters=2)
    assert other.stands() == []


def test_the_command_takes_part_and_leaves_when_it_is_told_to(
    certificates: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with FakeCoordinator(experiment(), certificates) as boss:
            arguments = ["worker", "--coordinator", boss.address, "--name", "w0"]
            arguments += ["--certs", str(certificates), "--state", str(tmp_path / "w0")]
            arguments += ["--listen", "127.0.0.1:0"]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fedhp", *arguments, stdout=PIPE, stderr=PIPE
            )
            try:
                await follow(boss, process)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    async def follow(boss: FakeCoordinator, process: asyncio.subprocess.Process) -> None:
        await boss.until(lambda: "w0" in boss.stands, within=START)
        order = boss.work(
            0, peers=[], weights=[], own_weight=1.0, readers=[], committed=INITIAL, attempt=FIRST
        )
        boss.order(0, order)
        await boss.report(0)
        assert process.stdout is not None
        said = (await process.stdout.readline()).decode()
        assert said.startswith("round 1: 3 steps, ")
        assert ", accuracy 0." in said
        process.terminate()
        _, errors = await asyncio.wait_for(process.communicate(), START)
        assert process.returncode == 130
        assert "w0: left the run" in errors.decode()
        assert boss.left == {"w0": "it was stopped"}

    run(test())


def test_the_command_names_a_certificate_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["worker", "--coordinator", "127.0.0.1:1", "--name", "w0"]
    assert main([*given, "--certs", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def own_file(folder: Path, shape: tuple[int, ...], classes: int) -> Path:
    rng = generator(0, Purpose.HOLDOUT)
    path = folder / "own.npz"
    np.savez(path, x=rng.random((40, *shape)), y=np.arange(40) % classes)
    return path


def test_a_file_of_its_own_is_all_a_worker_trains_on(tmp_path: Path) -> None:
    text = "workers = 3\n[cluster]\n"
    own = read_own(own_file(tmp_path, (8, 8), 4))
    prepared, holding = share_of(experiment_of(text), 1, own=own)
    assert holding.dataset.train_inputs.shape == (40, 1, 8, 8)
    assert holding.parts[0].tolist() == list(range(40))
    assert len(holding.dataset.test_inputs) == len(prepared.dataset.test_inputs)
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
    own = read_own(own_file(tmp_path, shape, classes))
    with pytest.raises(DataError, match=words):
        share_of(experiment_of("workers = 3\n"), 0, own=own)
