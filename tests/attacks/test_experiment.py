"""Finding 1: the experiment that a coordinator sends must not choose code or files of a worker."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp import trust
from fedhp.cluster.history import read_history
from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.worker.data import LocalMeans, received_experiment
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.config import Experiment, check_trusted, parse
from fedhp.config.own_parts import PART_KEYS
from fedhp.errors import ConfigError, FedhpError
from fedhp.trust import Trust, TrustedModule, load_trust
from net.clusters import PATIENCE, tiny
from net.fake_coordinator import FakeCoordinator
from net.federation import experiment
from net.identities import make_certificates

SOURCE = Path(__file__).parents[2] / "src" / "fedhp"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("attacks"), 1)


def join(settings: Experiment, certificates: Path, state: Path, **own: Any) -> None:
    """A worker joins a coordinator with this experiment, and asks for its first order."""

    async def scenario() -> None:
        async with FakeCoordinator(settings, certificates) as coordinator:
            worker = asyncio.ensure_future(
                run_worker(
                    WorkerSettings(
                        name="w0",
                        coordinator=coordinator.address,
                        certificates=certificates,
                        state=state,
                        listen="127.0.0.1:0",
                        **own,
                    )
                )
            )
            asked = asyncio.ensure_future(coordinator.until(lambda: "w0" in coordinator.stored))
            try:
                await asyncio.wait({worker, asked}, return_when=asyncio.FIRST_COMPLETED)
                if worker.done():
                    worker.result()
                await asked
            finally:
                for task in (worker, asked):
                    task.cancel()
                await asyncio.gather(worker, asked, return_exceptions=True)

    asyncio.run(scenario())


def test_the_coordinator_cannot_delete_a_folder_of_a_worker(
    certificates: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("three years of work")
    data = {"name": "shutil:rmtree", "path": str(victim), "skew": None}
    with pytest.raises(FedhpError, match="does not trust the module 'shutil'"):
        join(experiment(data=data), certificates, tmp_path / "w0")
    assert (victim / "thesis.txt").is_file()


@pytest.mark.parametrize("key", PART_KEYS)
def test_no_part_is_imported_that_the_operator_did_not_trust(
    key: str, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("FEDHP_ATTACK_MARK", str(mark))
    monkeypatch.delitem(sys.modules, "attacks.payload", raising=False)
    section, _, field = key.partition(".")
    part: dict[str, Any] = {field: "attacks.payload:fire"}
    if section == "data":
        part["skew"] = None
    tables: dict[str, Any] = {section: part}
    with pytest.raises(ConfigError, match=r"--trust attacks\.payload") as refused:
        join(experiment(**tables), certificates, tmp_path / "w0")
    assert refused.value.key == key
    assert not mark.exists()
    assert "attacks.payload" not in sys.modules


def test_every_lookup_of_a_part_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is in the lookup itself: no key of the experiment can be forgotten."""
    from fedhp.components import resolve

    with trust.limited_to(Trust()), pytest.raises(ConfigError, match="does not trust"):
        resolve("shutil:rmtree", {}, key="a.new.key")
    keys = {
        key
        for file in SOURCE.rglob("*.py")
        for key in re.findall(r'resolve\([^)]*key="([a-z.]+)"', file.read_text(encoding="utf-8"))
    }
    assert keys == set(PART_KEYS)


def test_a_trusted_module_is_used_and_its_hash_recorded(certificates: Path, tmp_path: Path) -> None:
    settings = experiment(model={"name": "attacks.payload:model", "hidden": 5})
    join(settings, certificates, tmp_path / "w0", trust=("attacks.payload",))
    (event,) = [
        line
        for line in read_history(tmp_path / "w0" / "history-w0.jsonl")
        if line["event"] == "trust"
    ]
    (module,) = load_trust(["attacks.payload"]).modules
    assert (event["trusted"], event["sha256"]) == ("attacks.payload", module.sha256)
    assert len(module.sha256) == 64


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "ImportError: it was not found"),
        ("raise ValueError('not today')", "ValueError: not today"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def", "SyntaxError: "),
    ],
)
def test_a_module_to_trust_that_cannot_be_imported_is_refused(
    content: str | None, problem: str, modules: Path
) -> None:
    if content is not None:
        (modules / "broken_to_trust.py").write_text(content)
    with pytest.raises(ConfigError, match=re.escape(problem)) as refused:
        load_trust(["broken_to_trust"])
    assert refused.value.key == trust.OPTION
    assert "'broken_to_trust' cannot be imported" in str(refused.value)


def test_a_trusted_module_is_imported_and_its_file_is_known(modules: Path) -> None:
    file = modules / "good_to_trust.py"
    file.write_text("VALUE = 1\n")
    (modules / "folder_to_trust").mkdir()
    try:
        module, package = load_trust(["good_to_trust", "folder_to_trust", "good_to_trust"]).modules
        assert {"good_to_trust", "folder_to_trust"} <= sys.modules.keys()
    finally:
        for name in ("good_to_trust", "folder_to_trust"):
            sys.modules.pop(name, None)
    assert (module.name, module.file) == ("good_to_trust", file)
    assert module.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    # A module that was written after Python had looked into its folder.
    seen = modules.stat()
    with pytest.raises(ConfigError, match="it was not found"):
        load_trust(["late_to_trust"])
    (modules / "late_to_trust.py").touch()
    os.utime(modules, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert [module.name for module in load_trust(["late_to_trust"]).modules] == ["late_to_trust"]
    assert load_trust(["sys"]).modules == (TrustedModule("sys", None, ""),)
    # A folder without __init__.py has no file of its own.
    assert (package.name, package.file, package.sha256) == ("folder_to_trust", None, "")


@pytest.mark.parametrize("name", ["attacks.payload:erase", "attacks.payload:shutil.rmtree"])
def test_what_a_trusted_module_only_imported_is_refused(
    name: str, certificates: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    data = {"name": name, "path": str(victim), "skew": None}
    own = {"trust": ("attacks.payload",), "data_path": victim}
    with pytest.raises(ConfigError, match="is defined in the module 'shutil'"):
        join(experiment(data=data), certificates, tmp_path / "w0", **own)
    assert victim.is_dir()


def test_a_path_of_the_coordinator_is_never_opened(certificates: Path, tmp_path: Path) -> None:
    secret, own = tmp_path / "secret.npz", tmp_path / "own.npz"
    np.savez(secret, x=np.zeros((90, 8)), y=np.arange(90) % 3)
    np.savez(own, x=np.ones((90, 8)), y=np.arange(90) % 3)
    settings = experiment(data={"name": "npz", "path": str(secret)})
    with pytest.raises(ConfigError, match="takes no path from the coordinator") as refused:
        join(settings, certificates, tmp_path / "w0")
    assert "--data-path" in refused.value.fix
    join(settings, certificates, tmp_path / "w1", data_path=own)
    text = f'[data]\nname = "npz"\npath = "{secret}"\n'
    assert received_experiment(text, LocalMeans(data_path=own)).data.path == str(own)
    assert received_experiment(text, LocalMeans()).data.path is None


def test_the_recorded_world_of_the_coordinator_is_never_opened(tmp_path: Path) -> None:
    text = f'[world]\ntrace = "{tmp_path / "trace.csv"}"\n'
    assert received_experiment(text, LocalMeans()).world.trace is None
    with pytest.raises(ConfigError, match="--trace") as refused:
        received_experiment(text + "[cluster]\nemulate = true\n", LocalMeans())
    assert refused.value.key == "world.trace"
    own = LocalMeans(trace=tmp_path / "own.csv")
    received = received_experiment(text + "[cluster]\nemulate = true\n", own)
    assert received.world.trace == str(tmp_path / "own.csv")
    clients = (
        '[world]\ndevice_trace = "/d.json"\navailability_trace = "/a.json"\n'
        'availability_speed = 2.0\ntrace_clients = "first"\n'
    )
    repeated = f"{text}trace_repeat = true\n"
    for recorded in (clients, repeated):  # their settings go with the files
        assert received_experiment(recorded, LocalMeans()).world == Experiment().world


@pytest.mark.parametrize(
    ("module", "words"), [("shutil", "part of Python"), ("fedhp.graph", "part of fedhp")]
)
def test_the_command_does_not_offer_python_itself(module: str, words: str, tmp_path: Path) -> None:
    arguments = ["worker", "--name", "w0", "--coordinator", "127.0.0.1:1", "--trust", module]
    done = subprocess.run(
        [sys.executable, "-m", "fedhp", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert words in done.stderr


def test_a_launcher_trusts_the_parts_of_its_own_experiment(tmp_path: Path) -> None:
    """`cluster up` starts the coordinator and the workers of one operator."""
    data = tmp_path / "own.npz"
    np.savez(data, x=np.random.default_rng(0).random((90, 8)), y=np.arange(90) % 3)
    settings = tiny(
        workers=2,
        rounds=1,
        model={"name": "attacks.payload:model"},
        data={"name": "npz", "path": str(data)},
    )
    with Cluster(settings, tmp_path / "run", restart=False) as cluster:
        cluster.start()
        cluster.wait(PATIENCE)
        assert set(cluster.exit_codes().values()) == {0}


@pytest.mark.parametrize(
    ("name", "trusted", "words"),
    [
        ("attacks.payload:fire", (), "does not trust the module"),
        ("attacks.payload:os.kill", ("attacks.payload",), "which this machine does not trust"),
    ],
)
def test_a_standby_does_not_run_untrusted_parts_of_the_committed_experiment(
    name: str, trusted: tuple[str, ...], words: str
) -> None:
    """A topology is called with two numbers, as os.kill is."""
    committed = parse({"topology": {"name": name}})
    with pytest.raises(ConfigError, match=words):
        check_trusted(committed, load_trust(trusted))


@pytest.mark.parametrize("text", ["data = 5", "[[data]]", "world = []", 'data = "npz"', "[data"])
def test_a_malformed_experiment_is_an_error_and_no_crash(text: str, tmp_path: Path) -> None:
    means = LocalMeans(data_path=tmp_path, trace=tmp_path)
    with pytest.raises(ConfigError):
        received_experiment(text, means)
