"""A user's own partition and the natural one: what they give to whom, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.typing import NDArray
from typer.testing import CliRunner

from fedhp.cli.app import app
from fedhp.cluster.worker.data import prepare_worker, worker_experiment
from fedhp.config import DataConfig, load, parse, to_tables
from fedhp.data import load_data, partition
from fedhp.engine.prepare import prepare
from fedhp.errors import ConfigError, DataError
from fedhp.trust import load_trust
from fedhp.types import IntArray

LABELS = np.arange(40) % 4
_numbers = itertools.count()


class Folder:
    """A folder on the import path, for modules of the user."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path

    def module(self, body: str, *, signature: str = "labels, workers, seed") -> str:
        """A module whose function is `divide`, its body on line 3; returns its dotted path."""
        name = f"own_partition_{next(_numbers)}"
        self.file = self.path / f"{name}.py"
        self.file.write_text(f"import numpy as np\ndef divide({signature}):\n    {body}\n")
        return f"{name}:divide"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Folder(tmp_path)


def split(
    workers: int, *, seed: int = 0, groups: Any = None, labels: Any = LABELS, **settings: Any
) -> list[IntArray]:
    config = DataConfig(**settings)
    return partition(
        np.asarray(labels), classes=4, workers=workers, config=config, seed=seed, groups=groups
    )


def refused(workers: int, **settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        split(workers, **settings)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        "return np.arange(len(labels)) % workers",
        "return [index % workers for index in range(len(labels))]",
        "return [np.arange(worker, len(labels), workers)[::-1] for worker in range(workers)]",
        "return tuple(list(range(worker, len(labels), workers)) for worker in range(workers))",
        "return np.arange(len(labels)).reshape(-1, workers).T",
    ],
)
def test_workers_of_samples_or_samples_of_workers(folder: Folder, body: str) -> None:
    parts = split(5, partition=folder.module(body))
    assert [part.tolist() for part in parts] == [list(range(k, 40, 5)) for k in range(5)]
    assert all(part.dtype == np.int64 for part in parts)


def test_settings_and_seed_reach_the_function(folder: Folder) -> None:
    path = folder.module(
        "return (np.random.default_rng(seed).permutation(len(labels)) + shift) % workers",
        signature="labels, workers, seed, *, shift: int = 0",
    )
    expected = (np.random.default_rng(7).permutation(40) + 2) % 3
    parts = split(3, seed=7, partition=path, partition_options={"shift": 2})
    assert [part.tolist() for part in parts] == [
        np.flatnonzero(expected == worker).tolist() for worker in range(3)
    ]
    error = refused(3, partition=path, partition_options={"shift": "two"})
    assert error.key == "data.partition_options.shift"
    error = refused(3, partition=path, partition_options={"shft": 2})
    assert "did you mean 'shift'?" in error.fix


@pytest.mark.parametrize(
    "body",
    [
        "return np.where(labels == 3, -1, labels)",
        "return [np.flatnonzero(labels == worker) for worker in range(3)]",
    ],
)
def test_samples_may_be_left_out(folder: Folder, body: str) -> None:
    parts = split(3, partition=folder.module(body))
    assert [set(LABELS[part].tolist()) for part in parts] == [{0}, {1}, {2}]
    assert sum(map(len, parts)) == 30


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return [[0, 1], [2], [1]]", "gives sample 1 to the workers 0 and 2"),
        ("return [[0], [2, 3, 2], [1]]", "gives sample 2 to worker 1 twice"),
        ("return [[0], [1], []]", "1 of 3 workers get no sample (the first is worker 2)"),
        ("return np.zeros(40, dtype=int)", "2 of 3 workers get no sample (the first is worker 1)"),
        ("return [[0], [1], [40]]", "the part of worker 2 has the index 40"),
        ("return [[0], [1], [-1]]", "the part of worker 2 has the index -1"),
        ("return [[0], [1]]", "returns 2 parts for 3 workers"),
        ("return []", "returns 0 parts for 3 workers"),
        ("return np.arange(40) % 4", "gives sample 3 to the unknown worker 3"),
        ("return np.arange(40) % 3 - 2", "gives sample 0 to the unknown worker -2"),
        ("return np.arange(39) % 3", "returns 39 values of type int64, for 40 samples"),
        ("return np.arange(40) / 40", "returns 40 values of type float64, for 40 samples"),
        ("return [labels == w for w in range(3)]", "an array of bool of shape (40,)"),
        ("return [[0.5], [1], [2]]", "the part of worker 0 is list"),
        ("return [[[0], [1, 2]], [3], [4]]", "the part of worker 0 is list"),
        ("return {0: [0], 1: [1], 2: [2]}", "returns dict"),
        ("pass", "returns NoneType"),
        ("labels[0] = 1", "fails with ValueError: assignment destination is read-only"),
        ("return np.random.permutation(40) % 3", "two calls with the same seed"),
        ("raise SystemExit", "fails with SystemExit"),
    ],
)
def test_what_is_refused_names_the_file_and_line(folder: Folder, body: str, problem: str) -> None:
    path = folder.module(body)
    error = refused(3, partition=path)
    line = 3 if "fails" in problem else 2  # the line that fails, or the definition
    assert str(error).startswith(f"data.partition: {path!r} ({folder.file}, line {line}): ")
    assert problem in str(error)
    assert error.allowed
    assert error.fix


def test_the_wrong_number_of_parameters_is_explained(folder: Folder) -> None:
    error = refused(3, partition=folder.module("return labels", signature="labels, workers"))
    assert "takes 2 positional arguments but 3 were given" in str(error)
    assert "(labels, workers, seed, *, settings...)" in error.allowed
    assert f"{folder.file}, line 2" in str(error)


def test_a_function_that_does_not_exist() -> None:
    error = refused(3, partition="no_such_module_at_all:divide")
    assert error.key == "data.partition"
    assert "no_such_module_at_all" in str(error)


def test_an_unknown_name_or_options_without_a_function_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown partition 'naturl'") as caught:
        parse({"data": {"partition": "naturl"}})
    assert caught.value.key == "data.partition"
    assert "did you mean 'natural'?" in caught.value.fix
    with pytest.raises(ConfigError, match="has no effect") as caught:
        parse({"data": {"partition": "iid", "partition_options": {"a": 1}}})
    assert caught.value.key == "data.partition_options"


def test_tables_of_experiments_without_it_are_as_before() -> None:
    assert "partition_options" not in to_tables(parse({}))["data"]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, str])
def test_natural_keeps_the_samples_of_a_user_together(kind: type) -> None:
    users: NDArray[Any] = (np.arange(40) * 7 % 10 + 3).astype(kind)
    parts = split(4, partition="natural", groups=users)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(40))
    held = [set(users[part].tolist()) for part in parts]
    assert sum(map(len, held)) == 10, "no user is on two workers"
    assert sorted(map(len, held)) == [2, 2, 3, 3]


def test_natural_deals_by_the_seed() -> None:
    users = np.arange(40) // 2
    first, again, other = (
        [part.tolist() for part in split(4, partition="natural", groups=users, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_natural_with_one_user_for_each_worker() -> None:
    parts = split(4, partition="natural", groups=LABELS * 5)
    assert [len(set(LABELS[part].tolist())) for part in parts] == [1] * 4
    assert [len(part) for part in parts] == [10] * 4


def test_natural_with_fewer_users_than_workers_is_refused() -> None:
    error = refused(5, partition="natural", groups=LABELS)
    assert error.key == "workers"
    assert "5 workers cannot share the samples of 4 users" in str(error)
    assert error.allowed == "1 to 4"
    assert "at most 4" in error.fix


def test_natural_needs_ids() -> None:
    error = refused(3, partition="natural")
    assert error.key == "data.partition"
    assert "groups" in error.allowed
    with pytest.raises(DataError, match="39"):
        split(3, partition="natural", groups=np.arange(39))


def write_npz(path: Path, **arrays: Any) -> DataConfig:
    np.savez(path, **arrays)
    return DataConfig(name="npz", path=str(path), standardize=False, partition="natural")


@pytest.mark.parametrize("key", ["groups", "users"])
def test_ids_in_an_npz_file(tmp_path: Path, key: str) -> None:
    rows = np.arange(40, dtype=np.float32)
    writers = np.array([f"w{row % 7}" for row in range(40)])
    config = write_npz(tmp_path / "a.npz", x=rows[:, None], y=LABELS, **{key: writers})
    dataset = load_data(config)
    assert dataset.groups is not None
    kept = dataset.train_inputs[:, 0].astype(int)
    assert dataset.groups.tolist() == (kept % 7).tolist(), "ids follow their samples"
    assert not dataset.groups.flags.writeable
    divided = {"x_train": rows[:, None], "y_train": LABELS, "x_test": rows[:, None]}
    config = write_npz(tmp_path / "b.npz", **divided, y_test=LABELS, **{key: writers})
    dataset = load_data(config.model_copy(update={"train_images": 30}))
    assert dataset.groups is not None
    assert dataset.groups.tolist() == [row % 7 for row in range(30)]


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"groups": np.arange(39)}, "shape (39,), for 40 samples"),
        ({"groups": np.arange(40.0)}, "float64"),
        ({"users": np.zeros((40, 1), dtype=int)}, "shape (40, 1)"),
        ({"groups": np.arange(40), "users": np.arange(40)}, "groups and users"),
    ],
)
def test_bad_ids_in_an_npz_file(tmp_path: Path, arrays: Any, problem: str) -> None:
    inputs = np.zeros((40, 1), dtype=np.float32)
    config = write_npz(tmp_path / "a.npz", x=inputs, y=LABELS, **arrays)
    with pytest.raises(DataError) as caught:
        load_data(config)
    assert problem in str(caught.value)
    assert str(tmp_path / "a.npz") in str(caught.value)


def test_a_loader_returns_ids_with_its_data_set(folder: Folder) -> None:
    folder.module("")
    name = folder.file.stem
    folder.file.write_text(
        "import numpy as np\nfrom fedhp.types import Dataset\n"
        "def load():\n"
        "    x, y = np.ones((6, 2), dtype=np.float32), np.arange(6) % 2\n"
        "    ids = np.array(['b', 'a', 'c', 'b', 'a', 'c'])\n"
        "    return Dataset('mine', x, y, x, y, 2, groups=ids)\n"
    )
    dataset = load_data(DataConfig(name=f"{name}:load", partition="natural"))
    assert dataset.groups is not None
    assert dataset.groups.tolist() == [1, 0, 2, 1, 0, 2]


def experiments(folder: Folder) -> list[dict[str, Any]]:
    """Tables of an experiment with each of the two partitions."""
    rng = np.random.default_rng(0)
    path = folder.path / "a.npz"
    inputs = rng.random((80, 6)).astype(np.float32)
    np.savez(path, x=inputs, y=np.arange(80) % 4, groups=np.arange(80) // 4)
    own = folder.module("return np.where(labels == 3, -1, labels)")
    data = {"name": "npz", "path": str(path)}
    return [
        {"workers": 3, "rounds": 1, "data": {**data, "partition": kind}}
        for kind in ("natural", own)
    ]


def test_a_worker_of_a_network_takes_its_part(folder: Folder) -> None:
    for tables in experiments(folder):
        experiment = parse(tables)
        parts = prepare(experiment).parts
        dataset = load_data(experiment.data)
        module, own, _ = experiment.data.partition.partition(":")
        trust = load_trust([module] if own else [])
        for worker in range(3):
            sent = worker_experiment(tomli_w.dumps(to_tables(experiment)))
            _, spec = prepare_worker(sent, worker, trust=trust)
            assert np.array_equal(
                spec.dataset.train_inputs[spec.parts[0]], dataset.train_inputs[parts[worker]]
            )


def test_data_split_shows_them(folder: Folder) -> None:
    natural, own = experiments(folder)
    outputs = []
    for number, tables in enumerate((natural, own)):
        file = folder.path / f"{number}.toml"
        file.write_text(tomli_w.dumps(tables))
        outputs.append(CliRunner().invoke(app, ["data", "split", str(file)]).output)
    assert "by user" in outputs[0]
    assert "users per worker: 6 to 7, 20 in total" in outputs[0]
    assert own["data"]["partition"] in outputs[1]
    assert "not used: 16 samples" in outputs[1]
    checked = CliRunner().invoke(app, ["data", "check", str(folder.path / "a.npz")]).output
    assert 'data.partition = "natural"' in checked


def test_the_example_divides_the_digits() -> None:
    file = Path(__file__).parents[3] / "examples/own_partition.toml"
    prepared = prepare(load(file))
    labels = [set(prepared.dataset.train_targets[part].tolist()) for part in prepared.parts]
    assert labels == [set(range(worker, worker + 5)) for worker in range(6)]
