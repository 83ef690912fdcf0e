"""Files that bad configurations point at: broken data, broken traces, broken parts."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

PARTS = '''
"""Parts of one's own, each wrong in its own way."""
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
import numpy as np
import torch
from pydantic import Field
from torch import nn
from fedhp.exchange import NeighborMixing
from fedhp.types import Dataset, Decision, Plan, Topology

if TYPE_CHECKING:
    from nowhere import Unknown

CONSTANT = 3


@dataclass
class State:
    numbers: Any


def plan_of(steps):
    links = np.empty((0, 2), dtype=np.int64)
    decision = Decision(links, np.empty(0, dtype=np.int64), np.empty(0), "none")
    return Plan(NeighborMixing(Topology(len(steps), links)), decision, local_steps=steps)


class NoPlan:
    def start(self, federation): return None


class Planner:
    def __init__(self, *, steps: Annotated[int, Field(ge=1, le=9)] = 3): self.steps = steps
    def start(self, federation): return None
    def plan(self, state, observation, reports): return state, None


class PlansNothing(Planner):
    def start(self, federation): return State(np.zeros(3))
    def plan(self, state, observation, reports): return None


class KeepsNothing(PlansNothing):
    def start(self, federation): return None
    def plan(self, state, observation, reports):
        return state, plan_of(np.full(len(observation.available), 3))


class KeepsAList(KeepsNothing):
    def start(self, federation): return State([1, 2])


class PlansTooMuch(KeepsNothing):
    def start(self, federation): return State(np.zeros(3))
    def plan(self, state, observation, reports):
        return state, plan_of(np.full(len(observation.available), 10**9))


class CannotPlan(PlansTooMuch):
    def plan(self, state, observation, reports): return state.nothing, None


class Explodes:
    def __init__(self, *, fuse: int = 3): raise RuntimeError("boom")


class Exits:
    def __init__(self): raise SystemExit(0)


class Needs:
    def __init__(self, battery): pass
    def start(self, federation): return None
    def plan(self, state, observation, reports): return state, None


def hidden_type(shape, classes, *, size: Unknown = None): return nn.Linear(1, 1)
def odd_type(shape, classes, *, size: "lambda x: x" = None): return nn.Linear(1, 1)


def good(shape, classes, *, width: Annotated[int, Field(ge=1, le=64)] = 8):
    size = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.Linear(width, classes))


def no_arguments(): return nn.Linear(1, 1)
def no_module(shape, classes): return 3
def too_few(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 2))
def wrong_shape(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))
def lazy(shape, classes): return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
def doubles(shape, classes): return good(shape, classes).double()
def nothing_to_learn(shape, classes): return nn.Flatten()
def raises(shape, classes): raise ValueError("no such thing")
def unseeded(shape, classes):
    module = good(shape, classes)
    with torch.no_grad():
        module[1].weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(8, 64))))
    return module


class Noisy(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.inner = good(shape, classes)
    def forward(self, x): return self.inner(x) + torch.rand(1)


def pairs_raise(workers, seed): raise KeyError("pairs")
def pairs_text(workers, seed): return "none"
def pairs_none(workers, seed): return None
def pairs_ragged(workers, seed): return [(0, 1), (2,)]
def pairs_far(workers, seed): return [(0, workers)]
def pairs_apart(workers, seed): return [(0, 1)] if workers > 2 else []


def load_raises(): raise OSError("the river is dry")
def load_none(): return None
def load_three(): return 1, 2, 3
def load_nan():
    x = np.full((20, 4), np.nan)
    return x, np.zeros(20, int), x, np.zeros(20, int)
def load_negative():
    x = np.ones((20, 4))
    return x, np.full(20, -1), x, np.zeros(20, int)
def load_uneven():
    x = np.ones((20, 4))
    return x, np.zeros(19, int), x, np.zeros(20, int)
def load_path(path: str): return load_nan()
def load_values():
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    return x[:30], x[:30, 0], x[30:], x[30:, 0]


class Regression:
    metric_name = "R2"
    def __init__(self, *, hidden: Annotated[int, Field(ge=1, le=64)] = 4): self.hidden = hidden
    def data(self):
        x = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
        y = x[:, :1].copy()
        return Dataset("line", x[:50], y[:50], x[50:], y[50:], None)
    def model(self): return nn.Linear(5, 1)
    def loss(self, outputs, targets): return ((outputs - targets) ** 2).mean()
    def metric(self, outputs, targets): return -float(((outputs - targets) ** 2).mean())


class NoLoss(Regression):
    loss = None
class NoName(Regression):
    metric_name = 3
class VectorLoss(Regression):
    def loss(self, outputs, targets): return (outputs - targets) ** 2
class NaNLoss(Regression):
    def loss(self, outputs, targets): return ((outputs - targets) ** 2).mean() * float("nan")
class NaNMetric(Regression):
    def metric(self, outputs, targets): return float("nan")
class RaisingMetric(Regression):
    def metric(self, outputs, targets): raise ZeroDivisionError("no samples")
class NoData(Regression):
    def data(self): return None
class RaisingData(Regression):
    def data(self): raise FileNotFoundError("patients.csv")
class SharedModel(Regression):
    kept = nn.Linear(5, 1)
    def model(self): return self.kept
class NeedsArgument(Regression):
    def __init__(self, folder): pass
'''


def write_material(folder: Path) -> Path:
    """Everything the cases refer to."""
    (folder / "fuzz_parts.py").write_text(PARTS)
    (folder / "fuzz_raises.py").write_text("raise RuntimeError('this module is broken')\n")
    (folder / "fuzz_exits.py").write_text("import sys\nsys.exit('goodbye')\n")
    (folder / "fuzz_syntax.py").write_text("def broken(:\n")
    (folder / "fuzz_imports.py").write_text("import a_package_that_nobody_has\n")
    _write_arrays(folder)
    _write_files(folder)
    _write_traces(folder)
    return folder


def _write_arrays(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)), np.arange(60) % 3

    def save(name: str, **arrays: Any) -> None:
        np.savez(folder / f"{name}.npz", **arrays)

    save("flat", x=x, y=y)
    save("images", x=rng.integers(0, 255, (60, 12, 12), dtype=np.uint8), y=y)
    save("two_classes", x=x, y=np.arange(60) % 2)
    save("one_class", x=x, y=np.zeros(60, dtype=np.int64))
    save("values", x=x, y=x[:, 0])
    save("strange_keys", inputs=x, labels=y)
    save("nan", x=np.where(x > 2, np.nan, x), y=y)
    save("uneven", x=x, y=y[:-1])
    save("negative", x=x, y=y - 1)
    save("text", x=x, y=np.array(["cat"] * 60))
    save("objects", x=np.array([{}] * 60, dtype=object), y=y)
    save("empty_arrays", x=x[:0], y=y[:0])
    save("single", x=x[:1], y=y[:1])
    save("shapes", x_train=x, y_train=y, x_test=x[:, :3], y_test=y)
    save("kinds", x_train=x, y_train=y, x_test=x, y_test=x[:, 0])
    save("one_hot", x=x, y=np.eye(3, dtype=np.int64)[y])
    np.save(folder / "single.npy", x)


def _write_files(folder: Path) -> None:
    whole = (folder / "flat.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "garbage.npz").write_bytes(b"\x93not an archive" * 20)
    (folder / "nothing.npz").write_bytes(b"")
    (folder / "empty_folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    idx = folder / "cut_mnist"
    idx.mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (idx / f"{name}-ubyte.gz").write_bytes(gzip.compress(b"\x00\x00\x08\x03\x00\x00"))
    cifar = folder / "cifar-10-batches-bin"
    cifar.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (cifar / f"{name}.bin").write_bytes(b"\x01" * 100)
    images = folder / "pictures"
    for label in ("cat", "dog"):
        (images / label).mkdir(parents=True)
        (images / label / "1.png").write_bytes(b"\x89PNG broken")


TRACES = {
    "no_columns": "a,b\n1,2\n",
    "empty": "",
    "header_only": "time,worker,bandwidth\n",
    "no_number": "time,worker,bandwidth\n0,0,fast\n",
    "negative_time": "time,worker,bandwidth\n-1,0,3\n",
    "zero_bandwidth": "time,worker,bandwidth\n0,0,0\n",
    "tiny_bandwidth": "time,worker,bandwidth\n0,0,1e-300\n",
    "nan": "time,worker,bandwidth\n0,0,nan\n",
    "unsorted": "time,worker,bandwidth\n5,0,3\n1,0,3\n",
    "far_worker": "time,worker,bandwidth\n0,99999,3\n",
    "no_worker": "time,worker,bandwidth\n0,,3\n",
    "far_peer": "time,worker,peer,bandwidth\n0,0,99999,3\n",
    "incomplete": "time,worker,bandwidth\n0,0,3\n",
    "short_row": "time,worker,bandwidth\n0\n",
    "long_row": "time,worker,bandwidth\n0,0,3,4,5\n",
    "no_steps": "time,worker,step_time\n0,1,3\n",
    "superscript": "time,worker,bandwidth\n0,\u00b2,3\n",
}


def _write_traces(folder: Path) -> None:
    for name, text in TRACES.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    (folder / "nul.csv").write_bytes(b"time,worker,bandwidth\n0,0,\x003\n")
