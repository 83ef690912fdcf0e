"""The memory a run needs, known before it starts: it fits, models go to a file, or it is refused.

The figures are upper estimates by part, from the numbers of workers, parameters, links and
samples alone.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import Any

from fedhp.algorithms.traits import Traits
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.exchange.mailbox import BOXES
from fedhp.machine import available

PROCESS = 400e6  # Python, torch and the modules
PER_EXECUTOR = 150e6  # activations and gradients of one model in training
PER_LINK = 300  # bytes: ends, times, distances, verdicts, the planner's order and forest
MEMORY_SHARE = 0.9  # of the memory that is free
PLAIN = Traits()


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by part, and whether the models are memory-mapped."""

    models: int
    rest: int
    allowed: int
    mapped: bool

    @property
    def total(self) -> int:
        return self.models + self.rest


def plan_memory(
    experiment: Experiment,
    *,
    model_size: int,
    state_size: int = 0,
    data_bytes: int,
    asynchronous: bool,
    extra_state: int = 0,
    traits: Traits = PLAIN,
    per_link: bool = False,
    executors: int,
    batch_bytes: int = 0,
) -> Memory:
    """The memory the run needs; one that cannot fit is refused with the figure and a fix.

    extra_state counts what workers keep in the size of a model: it is there twice, since a round
    can be given up. state_size counts the numbers that the optimizer keeps in a worker's row,
    batch_bytes is what an augmented batch takes.
    """
    workers = experiment.workers
    links = count_links(experiment)
    matrices = 5 if asynchronous else 7 if traits.group_average else 3
    rows = 5 if asynchronous else 3
    models = 4 * workers * (model_size * (matrices + 2 * extra_state) + state_size * rows)
    pairs = 8 * workers**2 * 3 if experiment.world.bandwidth.per == "link" else 0
    tracked = min(workers, 2_000 if workers <= 2_000 else 256)
    compressed = experiment.exchange.compression != "none"
    poisoned = experiment.attack.kind in ("sign_flip", "noise")
    rest = int(
        PROCESS
        + PER_EXECUTOR * executors
        + (12 * 4 * (model_size + state_size) + batch_bytes) * executors
        + 2 * data_bytes
        + PER_LINK * links
        + 4 * 8 * tracked * workers
        + 4_000 * workers
        + pairs
        # As received, apart from those of the workers; copies are there twice, since a round can
        # be given up.
        + 4 * model_size * (workers if compressed or poisoned else 0)
        + 8 * model_size * count_copies(experiment, traits, per_link=per_link)
    )
    free = available()
    allowed = int(MEMORY_SHARE * free if experiment.memory == "auto" else experiment.memory * 1e9)
    memory = Memory(models, rest, allowed, mapped=models + rest > allowed)
    if rest > allowed or (memory.mapped and experiment.engine == "ray"):
        raise _too_much(experiment, memory, links, model_size)
    return memory


def count_copies(experiment: Experiment, traits: Traits, *, per_link: bool) -> int:
    """Messages that readers have: with topk, with boxes of the newest of each sender, and where a
    message depends on its receiver, one for each way over a link; a box that adds them has one."""
    if traits.mailbox == "sum":
        return experiment.workers
    boxes = traits.mailbox in BOXES
    if boxes and not traits.uses_topology:
        return experiment.workers * (experiment.workers - 1)
    by_reader = boxes or per_link or experiment.exchange.compression == "topk"
    return 2 * count_links(experiment) if by_reader else 0


def count_links(experiment: Experiment) -> int:
    """Links of the base topology, before it is built; 0 for a topology of the user's own."""
    workers, settings = experiment.workers, experiment.topology.settings
    full = workers * (workers - 1) // 2
    # Of those with a setting for it: its name and its default.
    degrees = {"random_regular": ("degree", 6), "base_k": ("k", 1), "small_world": ("neighbors", 4)}
    match experiment.topology.name:
        case "full" | "random":
            return full  # random draws among all pairs
        case "ring" | "star" | "grid" | "torus":
            return 2 * workers
        case "exponential" | "one_peer_exponential" | "hypercube":
            return min(full, workers * workers.bit_length())
        case "random_regular" | "base_k" | "small_world" as name:
            degree: Any = settings.get(*degrees[name])
            rounds = 2 * workers.bit_length() + 2 if name == "base_k" else 1
            return min(full, workers * degree * rounds // 2) if isinstance(degree, int) else full
    pairs: Any = settings.get("pairs", ())
    return len(pairs) if isinstance(pairs, list) else 0


def peak_memory() -> int:
    """The most bytes this process has had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _too_much(experiment: Experiment, memory: Memory, links: int, model_size: int) -> ConfigError:
    workers = experiment.workers
    per_link = experiment.world.bandwidth.per == "link" and 24 * workers**2 > memory.rest / 2
    if per_link:
        key, fix = "world.bandwidth.per", "set world.bandwidth.per = 'worker', or lower workers"
    elif PER_LINK * links > memory.rest / 2:
        key = "topology.name"
        fix = (
            "choose a sparse base, topology.name = 'random_regular' with a degree, or fewer workers"
        )
    elif 48 * model_size > memory.rest / 4:
        key, fix = "model.name", "choose a smaller model (model.name and its settings)"
    else:
        key, fix = "workers", "lower workers, use a machine with more memory, or raise memory"
    needed = memory.total if memory.rest <= memory.allowed else memory.rest
    return ConfigError(
        f"{workers} workers with models of {model_size:,} numbers and {links:,} links need about "
        f"{needed / 1e9:.1f} GB of memory, but the run may use {memory.allowed / 1e9:.1f} GB",
        key=key,
        allowed=f"at most {memory.allowed / 1e9:.1f} GB (`memory`, or what is free now)",
        fix=fix,
    )
