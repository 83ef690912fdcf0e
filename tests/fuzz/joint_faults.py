"""Faults of settings that are valid alone but not together, and of files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from fuzz.fault import Fault, Tables
from fuzz.material import TRACES


def combinations(rng: random.Random) -> Iterator[Fault]:
    """Workers, samples, classes, topologies, devices, absences."""
    settings: Tables

    def fault(title: str, settings: dict[str, Any], *keys: str) -> Fault:
        return Fault(title, settings, keys)

    for workers in (1439, 1500, 5000, 99_999, 100_000):
        yield fault("more workers than samples", {"workers": workers}, "workers")
    for _ in range(5):
        images = rng.randint(1, 9)
        settings = {"workers": images + rng.randint(1, 9), "data.train_images": images}
        yield fault("more workers than samples", settings, "workers")
    for kind in ("dirichlet", "shards", "quantity", "iid"):
        for skew in (0, 0.5, 1.0):
            yield fault(
                "skew with another partition",
                {"data.partition": kind, "data.skew": skew},
                "data.skew",
            )
    for shards in (1000, 1440):
        settings = {"data.partition": "shards", "data.shards_per_worker": shards}
        yield fault("too many shards", settings, "data.shards_per_worker")
    for key in ("data.train_images", "data.test_images"):
        for images in (1439, 10**6):
            yield fault("more images than the data set has", {key: images}, key)
    for name, setting in (("dpsgd", "steps"), ("adpsgd", "steps"), ("ldsgd", "steps")):
        settings = {"algorithm.name": name, f"algorithm.{setting}": 10**12}
        yield fault("too many steps", settings, "algorithm.name", f"algorithm.{setting}")
    for pool in (3, 5, 6, 7, 9, 15, 16):
        yield fault("pool does not divide", {"data.pool": pool}, "data.pool")
    for model in ("alexnet", "vgg16"):
        yield fault("images too small", {"model.name": model}, "model.name")
    for pool in (4, 8):
        for model in ("cnn", "small_cnn", "alexnet"):
            settings = {"model.name": model, "data.pool": pool}
            yield fault("images too small", settings, "model.name")
    for hidden in ([65536] * 16, [65536, 65536]):
        yield fault("no memory", {"model.name": "mlp", "model.hidden": hidden}, "model.name")
    for device in ("cuda", "cuda:0", "cuda:7", "cuda:99999999999999999999"):
        yield fault("no such GPU", {"device": device}, "device")
    yield from topology_combinations(rng)
    yield from world_combinations(rng)
    yield from task_combinations()


def topology_combinations(rng: random.Random) -> Iterator[Fault]:
    """Disconnected graphs, links with unknown workers."""
    settings: Tables
    for _ in range(10):
        workers = rng.randint(4, 12)
        cut = rng.randint(1, workers - 1)
        groups = [list(range(cut)), list(range(cut, workers))]
        pairs = [list(p) for g in groups for p in pairwise(g)]
        settings = {"topology.name": "links", "topology.pairs": pairs, "workers": workers}
        yield Fault("disconnected", settings, ("topology.name", "topology.pairs"))
    for bad in ([0, 12], [-1, 0], [99, 3], [2**40, 0]):
        ring = [[i, (i + 1) % 12] for i in range(12)]
        settings = {"topology.name": "links", "topology.pairs": [*ring, bad], "workers": 12}
        yield Fault(f"link {bad}", settings, ("topology.pairs",))
    wrong: Any
    for wrong in ([[0]], [[0, 1, 2]], [["a", "b"]], [[0.5, 1]], 3, "01", [3], [[0, True]], {}):
        settings = {"topology.name": "links", "topology.pairs": wrong}
        yield Fault(f"pairs = {wrong}", settings, ("topology.pairs",))
    yield Fault("no pairs", {"topology.name": "links"}, ("topology.pairs",))
    for center in (12, 13, 10**12):
        settings = {"topology.name": "star", "topology.center": center, "workers": 12}
        yield Fault("star without center", settings, ("topology.center", "topology.name"))


def world_combinations(rng: random.Random) -> Iterator[Fault]:
    """Device counts that do not add up, unknown workers, bandwidth with low above high."""
    settings: Tables
    for devices in ({"laptop": 3}, {"laptop": 100, "xavier_nx": 1}):
        yield Fault("counts", {"world.devices": devices, "workers": 7}, ("world.devices",))
    for names in ([], [""], ["lap top"], ["laptop", "jetson"], ["LAPTOP"]):
        yield Fault(f"devices {names}", {"world.devices": names}, ("world.devices",))
    yield Fault(
        "unknown device", {"world.devices": {"abacus": 4}, "workers": 4}, ("world.devices",)
    )
    for worker in (12, 13, 10**9):
        away = [{"worker": worker, "first": 1, "last": 2}]
        yield Fault("nobody away", {"world.away": away, "workers": 12}, ("world.away",))
    for first, last in ((3, 2), (100, 1)):
        away = [{"worker": 0, "first": first, "last": last}]
        yield Fault("backwards", {"world.away": away}, ("world.away.0.first",))
    for _ in range(5):
        workers, rounds = rng.randint(1, 6), rng.randint(1, 20)
        away = [{"worker": i, "first": 1, "last": rounds + i} for i in range(workers)]
        settings = {"world.away": away, "workers": workers, "rounds": rounds}
        yield Fault("all away", settings, ("world.away",))
    for low, high in ((2, 1), (1e9, 1e-6)):
        settings = {"world.bandwidth.low": low, "world.bandwidth.high": high}
        yield Fault("low above high", settings, ("world.bandwidth.low",))
    for size, sharing in ((1e9, False), (1e7, True)):
        settings = {"world.model_megabits": size, "world.bandwidth.sharing": sharing}
        settings |= {"world.bandwidth.low": 1e-3, "world.bandwidth.interval": 0.01}
        yield Fault("endless transfers", settings, ("world.bandwidth.interval",))
    for low in (11, 10.001):
        settings = {"world.profile": "paper", "world.bandwidth.low": low}
        yield Fault("low above the profile's high", settings, ("world.bandwidth.low",))


def task_combinations() -> Iterator[Fault]:
    """An own task together with what it replaces; values where classes are needed."""
    own = {"task.name": "fuzz_parts:Regression"}
    for model in ("cnn", "logistic", "fuzz_parts:good"):
        yield Fault("own task and model", {**own, "model.name": model}, ("model.name",), bare=True)
    for data in ("mnist", "npz", "fuzz_parts:load_values"):
        yield Fault("own task and data", {**own, "data.name": data}, ("data.name",), bare=True)
    for skew in (0.0, 0.5):
        yield Fault("skew without classes", {**own, "data.skew": skew}, ("data.skew",), bare=True)
    yield Fault(
        "dirichlet without classes",
        {**own, "data.partition": "dirichlet"},
        ("data.partition",),
        bare=True,
    )
    yield Fault("few samples", {**own, "workers": 51}, ("workers",), bare=True)


def file_faults(folder: Path) -> Iterator[Fault]:
    """Data and traces that are missing, broken or do not fit."""

    def npz(name: str, *keys: str, **more: Any) -> Fault:
        rest = {key.replace("__", "."): value for key, value in more.items()}
        settings = {"data.name": "npz", "data.path": str(folder / name), **rest}
        return Fault(f"npz {name} {rest}", settings, keys or ("data.path",), bare=True)

    for name in ("cut", "garbage", "nothing", "strange_keys", "nan", "uneven", "negative", "text"):
        yield npz(f"{name}.npz")
    for name in ("objects", "empty_arrays", "single", "shapes", "kinds", "one_hot", "absent"):
        yield npz(f"{name}.npz")
    for name in ("single.npy", "empty_folder", "fuzz_parts.py", "flat.npz/inside", "loop"):
        yield npz(name)
    for value in ("", "a\0b", "~nobody_of_this_name/x", "x" * 300, "y/" * 4000, "loop"):
        for key in ("data.path", "world.trace"):
            settings = {
                "data.name": "npz",
                key: str(folder / value) if value == "loop" else value,
            }
            yield Fault(f"{key} = {value!r:.20}", settings, (key,), bare=True)
    yield npz("values.npz", "task.name")
    yield npz("flat.npz", "model.name", model__name="cnn")
    yield npz("flat.npz", "model.name", model__name="small_cnn")
    yield npz("images.npz", "model.name", model__name="alexnet")
    yield npz("flat.npz", "data.pool", data__pool=2)
    yield npz("images.npz", "data.pool", data__pool=5)
    yield npz("flat.npz", "workers", workers=49)
    yield npz("two_classes.npz", "data.skew", workers=12, data__skew=1.0)
    yield npz("one_class.npz", "data.skew", workers=6, data__skew=0.9)
    yield npz("flat.npz", "data.split", data__split="letters")
    yield npz("images.npz", "data.options.layout", data__options={"layout": "sideways"})
    yield npz("images.npz", "data.options.colour", data__options={"colour": True})
    yield from official_faults(folder)
    for name in (*TRACES, "binary", "nul", "absent"):
        path = str(folder / f"{name}.csv")
        yield Fault(f"trace {name}", {"world.trace": path}, ("world.trace",))
    yield Fault("trace folder", {"world.trace": str(folder)}, ("world.trace",))


def official_faults(folder: Path) -> Iterator[Fault]:
    """The built-in data sets without their files."""

    def data(key: str, **settings: Any) -> Fault:
        chosen = {f"data.{name}": value for name, value in settings.items()}
        return Fault(f"data {settings}", chosen, (key,), bare=True)

    for name in ("mnist", "emnist", "cifar10", "tiny_imagenet"):
        yield data("data.name", name=name)
        yield data("data.path", name=name, path=str(folder / "empty_folder"))
        yield data("data.path", name=name, path=str(folder / "absent"))
        yield data("data.path", name=name, path=str(folder / "garbage.npz"))
    yield data("data.path", name="mnist", path=str(folder / "cut_mnist"))
    yield data("data.path", name="cifar10", path=str(folder / "cifar-10-batches-bin"))
    yield data("data.path", name="image_folder")
    yield data("data.path", name="image_folder", path=str(folder / "empty_folder"))
    yield data("data.path", name="image_folder", path=str(folder / "pictures"))
    yield data("data.path", name="digits", path=str(folder))
    yield data("data.split", name="digits", split="letters")
    yield data("data.split", name="mnist", split="letters")
    yield data("data.options.size", name="digits", options={"size": 3})
