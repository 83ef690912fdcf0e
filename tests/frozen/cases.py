"""The tiny runs: one line each, settings by their dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Engine = Literal["one", "three", "ray", "network"]  # one shard, three shards, ...
Settings = Mapping[str, Any]  # dotted key -> value


@dataclass(frozen=True)
class Case:
    """One run: its settings, where it runs, and what is asked about it afterwards."""

    name: str
    settings: Settings
    engine: Engine = "one"
    asked: tuple[str, ...] = ()  # outputs that are kept in words: see running.ASKING
    stops: tuple[int, ...] = ()  # rounds after which it is interrupted and resumed
    fast: bool = False  # part of `make test`
    free: bool = False  # on a network: steps or links follow measured times; it has to verify
    compared: tuple[str, ...] = ()  # the algorithms of `fedhp compare`, over two seeds


BASE: Settings = {
    "workers": 6,
    "rounds": 3,
    "seed": 3,
    "device": "cpu",
    "executors": 1,
    "data.skew": 0.6,
    "data.train_images": 400,
    "data.test_images": 60,
    "model.name": "mlp",
    "model.hidden": [6],
    "training.local_steps": 3,
    "training.batch_size": 8,
    "evaluation.every": 2,
    "world.profile": "slow_links",
    "world.model_megabits": 12.0,
}

# --- algorithm x topology x compression x robust rule x attack x optimizer: every pair ----------

# Every pair of values that is allowed occurs in a row. Rows are data: to add a value, add rows.
PAIRS = """
fedhp full int8 clip label_flip proximal
fedhp ring fp16 trimmed_mean none nesterov
fedhp random none median sign_flip adamw
fedhp torus int8 none label_flip clipped
fedhp exponential int8 krum sign_flip nesterov
fedhp small_world fp16 krum noise momentum-reset
fedhp grid none median label_flip sgd
fedhp star none none label_flip adamw-mix
fedhp star fp16 krum noise momentum
fedhp links int8 clip none decay
fedhp regular fp16 clip label_flip decay
fedhp hypercube topk none sign_flip decay
dpsgd full fp16 median noise sgd
dpsgd ring none none label_flip momentum-mix
dpsgd random topk none none momentum
dpsgd torus none median noise decay
dpsgd exponential none none none adamw-mix
dpsgd one_peer fp16 clip none clipped
dpsgd base_k none krum label_flip momentum-reset
dpsgd small_world none median sign_flip adamw
dpsgd redrawn int8 clip label_flip nesterov
dpsgd grid int8 trimmed_mean sign_flip clipped
dpsgd star none clip label_flip momentum-reset
dpsgd links topk none sign_flip adamw
dpsgd regular topk none sign_flip sgd
dpsgd hypercube int8 median none proximal
ldsgd full none trimmed_mean none decay
ldsgd ring int8 clip noise momentum-reset
ldsgd random int8 median label_flip momentum
ldsgd torus none none label_flip momentum-mix
ldsgd exponential int8 trimmed_mean noise decay
ldsgd one_peer int8 clip noise sgd
ldsgd one_peer topk none none momentum
ldsgd base_k fp16 none noise proximal
ldsgd base_k int8 krum none adamw
ldsgd base_k topk none none decay
ldsgd small_world topk none none proximal
ldsgd redrawn fp16 median sign_flip momentum-reset
ldsgd grid fp16 clip none momentum
ldsgd star topk none label_flip clipped
ldsgd links none median noise clipped
ldsgd links none krum sign_flip proximal
ldsgd regular none median noise nesterov
ldsgd hypercube int8 krum none clipped
pens full topk none noise adamw
pens ring none median sign_flip momentum
pens ring topk none sign_flip proximal
pens ring topk none label_flip sgd
pens ring topk none label_flip adamw
pens random none trimmed_mean noise nesterov
pens random int8 clip none sgd
pens random int8 trimmed_mean noise momentum-reset
pens random topk none noise proximal
pens torus none none sign_flip sgd
pens torus fp16 trimmed_mean none momentum-reset
pens torus topk none label_flip nesterov
pens exponential fp16 clip label_flip adamw
pens small_world none clip sign_flip clipped
pens small_world int8 trimmed_mean label_flip decay
pens small_world topk none sign_flip sgd
pens grid topk none noise momentum-reset
pens star none trimmed_mean sign_flip sgd
pens star none trimmed_mean sign_flip nesterov
pens star int8 median none proximal
pens links none none none momentum-mix
pens links fp16 trimmed_mean label_flip momentum-reset
pens links topk none sign_flip momentum
pens regular int8 trimmed_mean none adamw
pens hypercube none clip sign_flip nesterov
pens hypercube fp16 trimmed_mean noise adamw
fedhp_plus full none none none nesterov
fedhp_plus one_peer none none label_flip proximal
fedhp_plus redrawn none none none proximal
adpsgd full none none none clipped
adpsgd random none none label_flip decay
adpsgd exponential none none none sgd
free_links base_k none none label_flip nesterov
free_links redrawn none none none momentum
free_links grid none none none adamw
free_links star none none label_flip decay
free_links links none none label_flip nesterov
"""

OWN_LINKS = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 0], [0, 4]]
TOPOLOGIES: dict[str, Settings] = {
    "one_peer": {"topology.name": "one_peer_exponential"},
    "redrawn": {"topology.name": "random_regular", "topology.degree": 3, "topology.redraw": True},
    "regular": {"topology.name": "random_regular", "topology.degree": 4},
    "random": {"topology.name": "random", "topology.probability": 0.6},
    "links": {"topology.name": "links", "topology.pairs": OWN_LINKS},
}
MOMENTUM: Settings = {"training.momentum": 0.9, "training.learning_rate": 0.02}
ADAMW: Settings = {"training.optimizer": "adamw", "training.learning_rate": 0.003}
OPTIMIZERS: dict[str, Settings] = {
    "sgd": {},
    "momentum": MOMENTUM,
    "nesterov": {**MOMENTUM, "training.nesterov": True},
    "momentum-reset": {**MOMENTUM, "training.optimizer_state": "reset"},
    "momentum-mix": {**MOMENTUM, "training.optimizer_state": "mix"},
    "adamw": {**ADAMW, "training.weight_decay": 0.01},
    "adamw-mix": {**ADAMW, "training.optimizer_state": "mix"},
    "proximal": {"training.proximal": 0.1},
    "decay": {"training.weight_decay": 0.05},
    "clipped": {"training.clip_norm": 0.5},
}
OWN_RATE = ("fedhp_plus", "free_links")  # where training.learning_rate would not be used


def pair_case(row: str, *, fast: bool) -> Case:
    """A row of PAIRS with eight workers."""
    algorithm, topology, compression, robust, attack, optimizer = row.split()
    settings = {
        "workers": 8,
        "algorithm.name": algorithm,
        **TOPOLOGIES.get(topology, {"topology.name": topology}),
        **OPTIMIZERS[optimizer],
    }
    if algorithm in ("dpsgd", "ldsgd") and topology != "full":
        settings["algorithm.neighbors"] = "base"
    if algorithm in OWN_RATE:
        settings.pop("training.learning_rate", None)
    for key, value in (
        ("exchange.compression", compression),
        ("exchange.robust", robust),
        ("attack.kind", attack),
    ):
        if value != "none":
            settings[key] = value
    return Case(f"pair {row}", settings, fast=fast)


# --- by hand: the important settings of every algorithm -----------------------------------------

SIX_AWAY = [
    {"worker": 1, "first": 2, "last": 2},
    {"worker": 4, "first": 1, "last": 2},
    {"worker": 4, "first": 4, "last": 4},
]
NORMED: Settings = {
    "model.name": "own_model:residual",
    "model.channels": 4,
    "workers": 4,
    "data.train_images": 160,
    "rounds": 2,
}

BY_HAND: dict[str, Settings] = {
    # FedHP
    "fedhp": {"algorithm.name": "fedhp", "rounds": 5},
    "fedhp deadline fill": {"algorithm.name": "fedhp", "algorithm.deadline": "fill", "rounds": 4},
    "fedhp literal": {"algorithm.name": "fedhp", "algorithm.planner": "literal", "rounds": 4},
    "fedhp literal metropolis": {
        "algorithm.name": "fedhp",
        "algorithm.planner": "literal",
        "algorithm.weights": "metropolis",
        "topology.name": "grid",
        "rounds": 4,
    },
    "fedhp pace formula": {"algorithm.name": "fedhp", "algorithm.pace": "formula", "rounds": 4},
    "fedhp pace fixed": {"algorithm.name": "fedhp", "algorithm.pace": "fixed", "rounds": 4},
    "fedhp metropolis": {"algorithm.name": "fedhp", "algorithm.weights": "metropolis"},
    "fedhp sinkhorn": {"algorithm.name": "fedhp", "algorithm.weights": "sinkhorn"},
    "fedhp bound gradient": {
        "algorithm.name": "fedhp",
        "algorithm.bound": "gradient",
        "algorithm.bound_scale": 1.0,
        "rounds": 4,
    },
    "fedhp bound none": {"algorithm.name": "fedhp", "algorithm.bound": "none", "rounds": 4},
    "fedhp tight bound": {"algorithm.name": "fedhp", "algorithm.bound_scale": 0.01, "rounds": 4},
    "fedhp waiting": {
        "algorithm.name": "fedhp",
        "algorithm.waiting_tolerance": 0.2,
        "algorithm.initial_steps": 7,
        "algorithm.max_steps": 12,
        "rounds": 4,
    },
    "fedhp few probes": {
        "algorithm.name": "fedhp",
        "algorithm.probe_workers": 2,
        "algorithm.estimate_every": 1,
        "algorithm.smoothing": 1.0,
        "rounds": 4,
    },
    "fedhp few sources": {
        "algorithm.name": "fedhp",
        "algorithm.distance_sources": 2,
        "algorithm.distance_smoothing": 0.9,
        "algorithm.bound_smoothing": 0.1,
        "workers": 9,
        "rounds": 4,
    },
    "fedhp learning rate": {"algorithm.name": "fedhp", "algorithm.learning_rate": 0.05},
    "fedhp links": {
        "algorithm.name": "fedhp",
        "topology.name": "links",
        "topology.pairs": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [1, 4]],
        "rounds": 4,
    },
    "fedhp away": {"algorithm.name": "fedhp", "world.away": SIX_AWAY, "rounds": 5},
    "fedhp monitor": {
        "algorithm.name": "fedhp",
        "world.monitor_delay": 1,
        "world.monitor_error": 0.3,
        "rounds": 4,
    },
    "fedhp charged": {"algorithm.name": "fedhp", "world.charge_estimators": True, "rounds": 4},
    "fedhp twelve": {"algorithm.name": "fedhp", "workers": 12, "rounds": 4, "seed": 8},
    # D-PSGD and LD-SGD
    "dpsgd": {"algorithm.name": "dpsgd"},
    "dpsgd steps": {"algorithm.name": "dpsgd", "algorithm.steps": 5},
    "dpsgd full": {"algorithm.name": "dpsgd", "algorithm.neighbors": "base"},
    "dpsgd star metropolis": {
        "algorithm.name": "dpsgd",
        "algorithm.neighbors": "base",
        "algorithm.weights": "metropolis",
        "topology.name": "star",
        "topology.center": 2,
    },
    "dpsgd grid sinkhorn": {
        "algorithm.name": "dpsgd",
        "algorithm.neighbors": "base",
        "algorithm.weights": "sinkhorn",
        "topology.name": "grid",
    },
    "dpsgd torus rows": {
        "algorithm.name": "dpsgd",
        "algorithm.neighbors": "base",
        "topology.name": "torus",
        "topology.rows": 3,
        "workers": 9,
    },
    "dpsgd base_k 2": {
        "algorithm.name": "dpsgd",
        "algorithm.neighbors": "base",
        "topology.name": "base_k",
        "topology.k": 2,
        "workers": 7,
        "rounds": 4,
    },
    "dpsgd small world redrawn": {
        "algorithm.name": "dpsgd",
        "algorithm.neighbors": "base",
        "topology.name": "small_world",
        "topology.redraw": True,
        "topology.probability": 0.5,
        "workers": 9,
    },
    "dpsgd random redrawn away": {
        "algorithm.name": "dpsgd",
        "algorithm.neighbors": "base",
        "topology.name": "random",
        "topology.redraw": True,
        "world.away": SIX_AWAY,
        "rounds": 4,
    },
    "dpsgd away": {"algorithm.name": "dpsgd", "world.away": SIX_AWAY, "rounds": 5},
    "dpsgd one worker": {"algorithm.name": "dpsgd", "workers": 1},
    "dpsgd two workers": {"algorithm.name": "dpsgd", "workers": 2},
    "dpsgd no round": {"algorithm.name": "dpsgd", "rounds": 0},
    "ldsgd": {"algorithm.name": "ldsgd", "rounds": 5},
    "ldsgd four phases": {
        "algorithm.name": "ldsgd",
        "algorithm.communications": 4,
        "algorithm.steps": 6,
        "rounds": 6,
    },
    "ldsgd no steps": {"algorithm.name": "ldsgd", "algorithm.steps": 0, "rounds": 4},
    "ldsgd metropolis star": {
        "algorithm.name": "ldsgd",
        "algorithm.neighbors": "base",
        "algorithm.weights": "metropolis",
        "topology.name": "star",
        "rounds": 4,
    },
    # PENS
    "pens": {"algorithm.name": "pens", "rounds": 6},
    "pens symmetric": {"algorithm.name": "pens", "algorithm.symmetric": True, "rounds": 6},
    "pens first stage": {"algorithm.name": "pens", "algorithm.stage_share": 1.0, "rounds": 3},
    "pens no first stage": {"algorithm.name": "pens", "algorithm.stage_share": 0.0, "rounds": 3},
    "pens peers": {
        "algorithm.name": "pens",
        "algorithm.peers": 3,
        "algorithm.keep": 1,
        "algorithm.samples": 16,
        "algorithm.score_cost": 2.0,
        "rounds": 5,
    },
    "pens symmetric int8 away": {
        "algorithm.name": "pens",
        "algorithm.symmetric": True,
        "algorithm.stage_share": 0.5,
        "exchange.compression": "int8",
        "world.away": SIX_AWAY,
        "rounds": 5,
    },
    "pens horizon": {"algorithm.name": "pens", "rounds": None, "horizon": 60.0},
    # FedHP+
    "fedhp_plus": {"algorithm.name": "fedhp_plus", "rounds": 5},
    "fedhp_plus exact": {
        "algorithm.name": "fedhp_plus",
        "algorithm.compression": "none",
        "rounds": 4,
    },
    "fedhp_plus no overlap": {
        "algorithm.name": "fedhp_plus",
        "algorithm.overlap": False,
        "rounds": 4,
    },
    "fedhp_plus one fragment": {
        "algorithm.name": "fedhp_plus",
        "algorithm.fragments": 1,
        "algorithm.momentum": 0.0,
        "rounds": 4,
    },
    "fedhp_plus five fragments": {
        "algorithm.name": "fedhp_plus",
        "algorithm.fragments": 5,
        "algorithm.patience": 1,
        "workers": 9,
        "rounds": 7,
    },
    "fedhp_plus everyone": {
        "algorithm.name": "fedhp_plus",
        "algorithm.min_share": 1.0,
        "algorithm.patience": 0,
        "rounds": 4,
    },
    "fedhp_plus nobody": {
        "algorithm.name": "fedhp_plus",
        "algorithm.min_share": 0.0,
        "algorithm.deadline_ratio": 1.0,
        "rounds": 4,
    },
    "fedhp_plus steps": {
        "algorithm.name": "fedhp_plus",
        "algorithm.first_deadline": 2.0,
        "algorithm.min_steps": 2,
        "algorithm.max_steps": 9,
        "algorithm.learning_rate": 0.1,
        "rounds": 4,
    },
    "fedhp_plus away": {"algorithm.name": "fedhp_plus", "world.away": SIX_AWAY, "rounds": 5},
    "fedhp_plus momentum": {
        "algorithm.name": "fedhp_plus",
        "training.momentum": 0.9,
        "training.optimizer_state": "reset",
        "rounds": 4,
    },
    "fedhp_plus adamw": {"algorithm.name": "fedhp_plus", **ADAMW, "rounds": 4},
    "fedhp_plus horizon": {"algorithm.name": "fedhp_plus", "rounds": None, "horizon": 12.0},
    # AD-PSGD and free links
    "adpsgd": {"algorithm.name": "adpsgd"},
    "adpsgd overlap": {"algorithm.name": "adpsgd", "algorithm.overlap": True},
    "adpsgd int8": {"algorithm.name": "adpsgd", "algorithm.compression": "int8"},
    "adpsgd average": {"algorithm.name": "adpsgd", "algorithm.serve": "average"},
    "adpsgd momentum": {"algorithm.name": "adpsgd", "algorithm.momentum": 0.9},
    "adpsgd every aid": {
        "algorithm.name": "adpsgd",
        "algorithm.overlap": True,
        "algorithm.compression": "int8",
        "algorithm.serve": "average",
        "algorithm.momentum": 0.7,
        "algorithm.learning_rate": 0.03,
        "rounds": 4,
    },
    "adpsgd ring steps": {
        "algorithm.name": "adpsgd",
        "algorithm.neighbors": "ring",
        "algorithm.steps": 5,
    },
    "adpsgd adamw reset": {
        "algorithm.name": "adpsgd",
        **ADAMW,
        "training.optimizer_state": "reset",
    },
    "adpsgd away": {"algorithm.name": "adpsgd", "world.away": SIX_AWAY, "rounds": 4},
    "adpsgd ring away": {
        "algorithm.name": "adpsgd",
        "algorithm.neighbors": "ring",
        "algorithm.overlap": True,
        "world.away_probability": 0.2,
        "rounds": 4,
    },
    "adpsgd horizon": {"algorithm.name": "adpsgd", "rounds": None, "horizon": 40.0},
    "free_links": {"algorithm.name": "free_links"},
    "free_links model": {"algorithm.name": "free_links", "algorithm.serve": "model"},
    "free_links away": {
        "algorithm.name": "free_links",
        "algorithm.learning_rate": 0.1,
        "world.away": SIX_AWAY,
        "rounds": 4,
    },
    # What a worker learns from
    "epochs": {"algorithm.name": "dpsgd", "training.batches": "epochs"},
    "local epochs": {
        "algorithm.name": "dpsgd",
        "training.batches": "epochs",
        "training.local_epochs": 0.4,
        "training.local_steps": None,
        "data.partition": "quantity",
        "data.skew": None,
        "data.alpha": 1.0,
    },
    "fedhp local epochs": {
        "algorithm.name": "fedhp",
        "training.local_epochs": 0.3,
        "training.local_steps": None,
        "rounds": 4,
    },
    "ldsgd local epochs": {
        "algorithm.name": "ldsgd",
        "training.local_epochs": 0.2,
        "training.local_steps": None,
    },
    "adpsgd local epochs": {
        "algorithm.name": "adpsgd",
        "training.batches": "epochs",
        "training.local_epochs": 0.2,
        "training.local_steps": None,
    },
    "fedhp_plus epochs": {
        "algorithm.name": "fedhp_plus",
        "training.batches": "epochs",
        "augmentation.flip": True,
        "rounds": 4,
    },
    "augmented": {
        "algorithm.name": "dpsgd",
        "augmentation.crop": 1,
        "augmentation.flip": True,
        "training.label_smoothing": 0.1,
    },
    "dirichlet": {
        "algorithm.name": "fedhp",
        "data.partition": "dirichlet",
        "data.skew": None,
        "data.alpha": 0.3,
    },
    "shards of data": {
        "algorithm.name": "dpsgd",
        "data.partition": "shards",
        "data.skew": None,
        "data.shards_per_worker": 3,
    },
    "iid pooled": {
        "algorithm.name": "dpsgd",
        "data.partition": "iid",
        "data.skew": None,
        "data.pool": 2,
        "data.standardize": False,
    },
    "own test": {
        "algorithm.name": "pens",
        "data.own_test": 0.25,
        "evaluation.per_class": True,
        "rounds": 4,
    },
    "evaluation by seconds": {
        "algorithm.name": "dpsgd",
        "evaluation.every": None,
        "evaluation.seconds": 9.0,
        "evaluation.times": [10.0, 25.0],
        "evaluation.targets": [0.1, 0.3],
        "rounds": 5,
    },
    "adpsgd evaluation by seconds": {
        "algorithm.name": "adpsgd",
        "evaluation.every": None,
        "evaluation.seconds": 7.0,
        "rounds": 4,
    },
    "part of the test": {
        "algorithm.name": "fedhp",
        "evaluation.images": 25,
        "evaluation.choose": "first",
        "evaluation.final_mean": 1,
    },
    "not tested whole": {
        "algorithm.name": "dpsgd",
        "evaluation.images": 25,
        "evaluation.whole_at_end": False,
        "evaluation.every": 1,
    },
    # Models and arithmetic
    "logistic": {"algorithm.name": "dpsgd", "model.name": "logistic"},
    "logistic fedhp": {"algorithm.name": "fedhp", "model.name": "logistic", "workers": 10},
    "two layers": {"algorithm.name": "pens", "model.hidden": [8, 4], "workers": 5},
    "small_cnn": {
        "algorithm.name": "dpsgd",
        "model.name": "small_cnn",
        "model.width": 0.25,
        "workers": 4,
        "rounds": 2,
    },
    "small_cnn adpsgd adamw": {
        "algorithm.name": "adpsgd",
        "model.name": "small_cnn",
        "model.width": 0.25,
        "workers": 3,
        "rounds": 2,
        **ADAMW,
    },
    "one model at a time": {"algorithm.name": "fedhp", "training.kernel": "worker"},
    "ordered": {"algorithm.name": "dpsgd", "training.mixing": "ordered", "workers": 9},
    "batch norm mixed": {"algorithm.name": "dpsgd", **NORMED},
    "batch norm local": {"algorithm.name": "dpsgd", **NORMED, "training.batch_norm": "local"},
    "batch norm local pens": {"algorithm.name": "pens", **NORMED, "training.batch_norm": "local"},
    "batch norm fedhp_plus": {"algorithm.name": "fedhp_plus", **NORMED},
    "batch norm adpsgd": {"algorithm.name": "adpsgd", **NORMED},
    "two executors": {
        "algorithm.name": "fedhp",
        "executors": 2,
        "model.name": "small_cnn",
        "model.width": 0.25,
        "workers": 4,
    },
    # Schedules
    "constant rate": {"algorithm.name": "dpsgd", "training.schedule": "constant"},
    "decay by time": {
        "algorithm.name": "fedhp",
        "training.decay_by": "time",
        "training.decay": 0.9,
        "training.decay_seconds": 3.0,
    },
    "steps of the rate": {
        "algorithm.name": "dpsgd",
        "training.schedule": "step",
        "training.milestones": [2.0, 4.0],
        "training.factor": 0.2,
        "rounds": 5,
    },
    "cosine with warm-up": {
        "algorithm.name": "ldsgd",
        "training.schedule": "cosine",
        "training.final_share": 0.1,
        "training.warmup": 2.0,
        "rounds": 5,
    },
    "cosine by time": {
        "algorithm.name": "adpsgd",
        "training.schedule": "cosine",
        "training.decay_by": "time",
        "training.warmup": 4.5,
        "rounds": None,
        "horizon": 30.0,
    },
    # The world
    "shared bandwidth": {
        "algorithm.name": "fedhp",
        "world.bandwidth.sharing": True,
        "world.bandwidth.latency": 0.05,
        "rounds": 4,
    },
    "shared bandwidth fedhp_plus": {
        "algorithm.name": "fedhp_plus",
        "world.bandwidth.sharing": True,
        "rounds": 4,
    },
    "shared bandwidth adpsgd": {
        "algorithm.name": "adpsgd",
        "world.bandwidth.sharing": True,
        "world.bandwidth.jitter": 0.2,
    },
    "shared bandwidth pens": {
        "algorithm.name": "pens",
        "world.bandwidth.sharing": True,
        "world.bandwidth.uplink": 0.5,
    },
    "bandwidth of links": {
        "algorithm.name": "fedhp",
        "world.bandwidth.per": "link",
        "world.bandwidth.correlation": 0.2,
        "world.bandwidth.interval": 3.0,
        "rounds": 4,
    },
    "bandwidth changes in a transfer": {
        "algorithm.name": "dpsgd",
        "world.bandwidth.during_transfer": "trace",
        "world.bandwidth.interval": 1.0,
    },
    "shared and changing": {
        "algorithm.name": "dpsgd",
        "algorithm.neighbors": "base",
        "world.bandwidth.during_transfer": "trace",
        "world.bandwidth.sharing": True,
        "world.bandwidth.interval": 2.0,
    },
    "lines": {
        "algorithm.name": "dpsgd",
        "world.bandwidth.uplink": [0.2, 1.0, 0.5, 1.0, 0.3, 2.0],
        "world.bandwidth.downlink": {"low": 1.0, "high": 3.0},
        "world.bandwidth.latency": 0.2,
    },
    "lines fedhp_plus": {
        "algorithm.name": "fedhp_plus",
        "world.bandwidth.uplink": {"low": 0.2, "high": 0.5},
        "rounds": 4,
    },
    "jitter": {"algorithm.name": "fedhp", "world.bandwidth.jitter": 0.4, "rounds": 4},
    "uniform world": {
        "algorithm.name": "fedhp",
        "world.profile": "uniform",
        "world.model_megabits": None,
    },
    "paper world": {
        "algorithm.name": "fedhp",
        "world.profile": "paper",
        "world.model_megabits": 54.0,
        "world.drift": 0.2,
        "world.floor": 0.5,
    },
    "counted devices": {
        "algorithm.name": "fedhp",
        "world.devices": {"laptop": 2, "mine": 4},
        "world.device": {"mine": {"step_time": 0.4, "sd": 0.3}},
        "world.shuffle_devices": False,
    },
    "away at random": {
        "algorithm.name": "fedhp",
        "world.away_probability": 0.3,
        "rounds": 5,
        "workers": 8,
    },
    "away at random pens": {
        "algorithm.name": "pens",
        "world.away_probability": 0.3,
        "rounds": 5,
        "workers": 8,
    },
    "traced world": {"algorithm.name": "fedhp", "world.trace": "trace.csv", "rounds": 4},
    "traced links repeated": {
        "algorithm.name": "dpsgd",
        "world.trace": "links.csv",
        "world.trace_repeat": True,
        "workers": 3,
    },
    "traced lines": {
        "algorithm.name": "fedhp_plus",
        "world.trace": "lines.csv",
        "workers": 4,
        "rounds": 4,
    },
    "devices of FedScale": {
        "algorithm.name": "dpsgd",
        "world.profile": "paper",
        "world.device_trace": "devices.json",
        "world.availability_trace": "times.json",
        "world.availability_speed": 4.0,
        "workers": 4,
    },
    "horizon": {"algorithm.name": "fedhp", "rounds": None, "horizon": 45.0},
    "until accuracy": {"algorithm.name": "fedhp", "rounds": 12, "until.accuracy": 0.3},
    "until bytes": {"algorithm.name": "dpsgd", "rounds": 12, "until.bytes": 100_000},
    "until clock": {"algorithm.name": "adpsgd", "rounds": 12, "until.clock": 20.0},
    # Rules and attacks with other settings
    "robust radius": {
        "algorithm.name": "dpsgd",
        "exchange.robust": "clip",
        "exchange.radius": 0.3,
    },
    "robust trim": {
        "algorithm.name": "fedhp",
        "exchange.robust": "trimmed_mean",
        "exchange.trim": 0.3,
        "attack.kind": "noise",
        "attack.scale": 5.0,
        "attack.share": 0.4,
        "workers": 8,
    },
    "topk half away": {
        "algorithm.name": "dpsgd",
        "exchange.compression": "topk",
        "exchange.topk_share": 0.5,
        "world.away": SIX_AWAY,
        "rounds": 5,
    },
    "mixed state away": {
        "algorithm.name": "fedhp",
        **OPTIMIZERS["adamw-mix"],
        "world.away": SIX_AWAY,
        "rounds": 4,
    },
    # Users' own parts, in examples/
    "push-sum": {"algorithm.name": "push_sum:SGP", "workers": 8, "rounds": 4},
    "push-sum away": {
        "algorithm.name": "push_sum:SGP",
        "world.away": SIX_AWAY,
        "training.momentum": 0.9,
        "rounds": 4,
    },
    "tracking": {"algorithm.name": "push_sum:Tracking", "rounds": 4},
    "tracking away": {"algorithm.name": "push_sum:Tracking", "world.away": SIX_AWAY, "rounds": 5},
    "own algorithm": {"algorithm.name": "own_algorithm:Pairs", "rounds": 4},
    "own algorithm int8": {
        "algorithm.name": "own_algorithm:Pairs",
        "algorithm.max_steps": 5,
        "exchange.compression": "int8",
        "world.away_probability": 0.2,
        "workers": 7,
        "rounds": 4,
    },
    "own partition": {
        "algorithm.name": "dpsgd",
        "data.partition": "own_partition:sliding_labels",
        "data.skew": None,
        "data.partition_options": {"labels_per_worker": 4},
    },
    "regression": {
        "algorithm.name": "fedhp",
        "task.name": "diabetes:Diabetes",
        "task.hidden": 5,
        "model": None,
        "data": {"partition": "iid"},
        "evaluation.targets": [0.2],
        "rounds": 4,
    },
    "regression adpsgd": {
        "algorithm.name": "adpsgd",
        "task.name": "diabetes:Diabetes",
        "model": None,
        "data": {"partition": "quantity"},
        "evaluation.targets": [0.2],
    },
}

# What `show` and `explain` say of these is kept in words, not only as a hash.
TOLD = (
    *("fedhp", "fedhp deadline fill", "fedhp literal", "fedhp away", "fedhp links"),
    *("dpsgd", "dpsgd base_k 2", "dpsgd away", "ldsgd", "pens", "pens symmetric"),
    *("fedhp_plus", "fedhp_plus five fragments", "adpsgd every aid", "adpsgd away"),
    *("evaluation by seconds", "regression", "push-sum", "own algorithm", "own test", "horizon"),
    *("robust trim", "topk half away", "until accuracy", "devices of FedScale"),
)
# The same of `show --round`.
ROUNDS_TOLD = ("fedhp", "dpsgd away", "pens", "fedhp_plus", "adpsgd every aid", "own test")
# These are replayed with other planners.
REPLAYED = ("fedhp", "dpsgd", "pens", "adpsgd", "fedhp_plus", "fedhp away", "horizon", "ldsgd")

COMPARED: dict[str, tuple[Settings, tuple[str, ...]]] = {
    "all algorithms": (
        {"rounds": 4, "evaluation.targets": [0.2, 0.4]},
        (*("fedhp", "dpsgd", "ldsgd", "pens", "adpsgd", "fedhp_plus", "free_links"),),
    ),
    "variants": (
        {"rounds": 4, "evaluation.targets": [0.3], "evaluation.per_class": True},
        ("fedhp", "fedhp:deadline=fill", "dpsgd:steps=6", "push_sum:SGP"),
    ),
}

# --- the same on three shards and on Ray; interrupted and resumed -------------------------------

# With these settings the arithmetic does not depend on who shares a process.
EXACT: Settings = {"training.kernel": "worker", "training.mixing": "ordered"}
SHARDED = (
    *("fedhp", "dpsgd", "dpsgd full", "ldsgd", "pens", "pens symmetric", "fedhp_plus"),
    *("fedhp_plus five fragments", "adpsgd", "adpsgd every aid", "free_links", "fedhp away"),
    *("pens symmetric int8 away", "fedhp_plus away", "adpsgd away", "topk half away"),
    *("mixed state away", "push-sum", "tracking", "own algorithm int8", "batch norm mixed"),
    *("batch norm local pens", "robust trim", "regression", "augmented", "local epochs"),
    *("own test", "dpsgd random redrawn away"),
)
ON_RAY = (
    *("fedhp away", "dpsgd", "pens symmetric int8 away", "fedhp_plus", "adpsgd every aid"),
    *("topk half away", "push-sum", "tracking", "mixed state away"),
)
RESUMED: dict[str, tuple[int, ...]] = {
    "fedhp": (2, 3),
    "ldsgd": (1, 4),
    "pens": (1, 2),
    "fedhp_plus": (2,),
    "fedhp_plus five fragments": (4,),
    "adpsgd every aid": (1, 3),
    "free_links": (2,),
    "topk half away": (1, 3),
    "mixed state away": (2,),
    "push-sum": (3,),
    "tracking away": (2, 4),
    "horizon": (2,),
    "until accuracy": (1,),
    "batch norm local pens": (1,),
}

# --- over the network --------------------------------------------------------------------------

NETWORK: Settings = {
    "workers": 3,
    "rounds": 3,
    "evaluation.images": 30,
    "cluster.min_workers": 3,
    "cluster.gather": 60.0,
    "cluster.suspect_after": 20.0,
    "cluster.dead_after": 60.0,
    "cluster.least_deadline": 60.0,
}
FOUR: Settings = {"workers": 4, "cluster.min_workers": 4}
OVER_NETWORK: dict[str, Settings] = {
    "dpsgd": {"algorithm.name": "dpsgd", **FOUR},
    "dpsgd full adamw mix": {
        "algorithm.name": "dpsgd",
        "algorithm.neighbors": "base",
        **OPTIMIZERS["adamw-mix"],
    },
    "dpsgd int8 trimmed": {
        "algorithm.name": "dpsgd",
        "exchange.compression": "int8",
        "exchange.robust": "trimmed_mean",
        "attack.kind": "sign_flip",
        **FOUR,
    },
    "dpsgd topk": {
        "algorithm.name": "dpsgd",
        "exchange.compression": "topk",
        "exchange.topk_share": 0.2,
    },
    "ldsgd epochs": {
        "algorithm.name": "ldsgd",
        "training.batches": "epochs",
        "augmentation.flip": True,
        **FOUR,
    },
    "pens": {
        "algorithm.name": "pens",
        "algorithm.stage_share": 0.5,
        "algorithm.keep": 1,
        "rounds": 4,
        **FOUR,
    },
    "push-sum": {"algorithm.name": "push_sum:SGP"},
    "fedhp": {"algorithm.name": "fedhp"},
    "fedhp_plus": {"algorithm.name": "fedhp_plus"},
    "adpsgd": {"algorithm.name": "adpsgd", "workers": 2, "cluster.min_workers": 2},
}
# Their steps, links or order follow measured times: they verify, but have no bits of their own.
FREE = ("fedhp", "fedhp_plus", "adpsgd")

# Some of each kind: `make test` has 25 s for all of tests/frozen.
FAST = (
    *("fedhp", "fedhp literal", "fedhp away", "fedhp sinkhorn", "dpsgd", "dpsgd base_k 2"),
    *("dpsgd away", "ldsgd", "pens", "pens symmetric", "fedhp_plus five fragments"),
    *("fedhp_plus no overlap", "adpsgd every aid", "adpsgd away", "free_links", "regression"),
    *("evaluation by seconds", "push-sum", "tracking away", "own algorithm", "own test"),
    *("horizon", "robust trim", "topk half away", "mixed state away", "batch norm local"),
    *("shared and changing", "lines fedhp_plus", "traced world", "cosine by time"),
)
# Of these also on three shards, and resumed.
FAST_ELSEWHERE = ("fedhp", "fedhp_plus five fragments", "adpsgd every aid", "push-sum", "tracking")


def all_cases() -> list[Case]:
    """Every run, in a fixed order."""
    rows = PAIRS.strip().splitlines()
    cases = [pair_case(row, fast=position % 12 == 0) for position, row in enumerate(rows)]
    for name, settings in BY_HAND.items():
        asked = (
            *(("show", "explain") if name in TOLD else ()),
            *(("round",) if name in ROUNDS_TOLD else ()),
            *(("whatif",) if name in REPLAYED else ()),
        )
        cases.append(Case(name, settings, asked=asked, fast=name in FAST))
    for name in SHARDED:
        exact = {**BY_HAND[name], **EXACT}
        cases.append(Case(f"{name} @one", exact))
        fast = name in FAST_ELSEWHERE
        cases.append(Case(f"{name} @three", exact, engine="three", fast=fast))
    for name in ON_RAY:
        cases.append(Case(f"{name} @ray", {**BY_HAND[name], **EXACT}, engine="ray"))
    for name, stops in RESUMED.items():
        stopped = f"{name} @resumed"
        fast = name in FAST_ELSEWHERE
        cases.append(Case(stopped, BY_HAND[name], stops=stops, fast=fast))
    for name, (settings, algorithms) in COMPARED.items():
        cases.append(Case(f"{name} compared", settings, compared=algorithms))
    for name, settings in OVER_NETWORK.items():
        on_network = {**NETWORK, **settings}
        cases.append(Case(f"{name} @network", on_network, engine="network", free=name in FREE))
    return cases
