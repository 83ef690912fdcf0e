"""The experiment schema: one TOML file plus key=value overrides, validated in one place.

Each section has its keys; a component (algorithm, model, task, topology) has a `name` and
settings, which are checked against the component itself. Validated settings are trusted.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from fedhp.components import from_validation, has_no_effect, is_dotted, resolve, wrong_setting
from fedhp.errors import ConfigError
from fedhp.files import is_run_folder
from fedhp.origins import UNKNOWN, Origins, covers
from fedhp.tables import (
    COMMAND_LINE,
    flatten,
    merge_tables,
    parse_override,
    pop_key,
    read_toml,
    resolve_paths,
    set_key,
)
from fedhp.trust import OPTION, Trust, granted, home_of, limited_to, split_path
from fedhp.wording import choices_at, default_at, names_at

LOG = logging.getLogger("fedhp")


class ConfigSection(BaseModel):
    """A section of the experiment file; unknown keys are errors, values keep their type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ComponentConfig(BaseModel):
    """A replaceable component: its name and its settings."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: Annotated[str, Field(min_length=1)]

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


Positive = Annotated[float, Field(gt=0)]
# Wide enough for any machine or link, narrow enough that no clock can overflow.
Seconds = Annotated[float, Field(ge=1e-6, le=1e4)]
Measure = Annotated[float, Field(ge=1e-6, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]


MOST_WORKERS = 100_000
MOST_ROUNDS = 10_000_000  # also of a run with a horizon, which has no number of rounds

PARTITIONS = ("skew", "dirichlet", "shards", "quantity", "iid", "natural")


class DataConfig(ConfigSection):
    """Which data, how it is prepared, and how it is split among the workers."""

    name: Annotated[str, Field(min_length=1)] = "digits"
    path: Annotated[str, Field(min_length=1)] | None = None
    split: Annotated[str, Field(min_length=1)] | None = None  # EMNIST: byclass, balanced, letters
    pool: Annotated[int, Field(ge=1, le=16)] = 1  # average-pool images by this factor
    standardize: bool = True
    train_images: Annotated[int, Field(ge=1)] | None = None  # use only the first ones
    test_images: Annotated[int, Field(ge=1)] | None = None
    partition: str = "skew"  # one of PARTITIONS, or a dotted path to your own
    skew: Share | None = None  # the paper's p; none means 3 / workers, which is IID
    alpha: Positive = 0.5  # dirichlet, quantity
    shards_per_worker: Annotated[int, Field(ge=1)] = 2
    partition_options: dict[str, Any] | None = None  # settings of your own partition
    own_test: Annotated[float, Field(ge=0, lt=1)] | None = None  # share held back by each worker
    options: dict[str, Any] = {}  # settings of the reader or of your own loader

    @model_validator(mode="after")
    def _known_partition(self) -> DataConfig:
        own = is_dotted(self.partition)
        if not own and self.partition not in PARTITIONS:
            close = difflib.get_close_matches(self.partition, PARTITIONS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise wrong_setting(
                "partition",
                f"unknown partition {self.partition!r}",
                allowed=", ".join(PARTITIONS) + ", or a dotted path to your own (module:function)",
                fix=f"{hint}set data.partition to one of these",
            )
        if self.partition_options and not own:
            raise wrong_setting(
                "partition_options",
                f"has no effect: data.partition is {self.partition!r}",
                allowed="data.partition_options with your own partition (module:function) only",
                fix="remove data.partition_options",
                has_effect=False,
            )
        return self

    @model_validator(mode="after")
    def _settings_of_the_partition(self) -> DataConfig:
        _refuse_settings_of_other_kinds(self, "data.partition", _OF_PARTITIONS)
        return self


def _refuse_settings_of_other_kinds(
    section: ConfigSection, kind: str, settings: Mapping[str, tuple[str, ...]]
) -> None:
    """Refuse settings that only other kinds have; at their defaults nobody has set them."""
    chosen = getattr(section, kind.partition(".")[2])
    for key, kinds in settings.items():
        name = key.partition(".")[2]
        value = getattr(section, name)
        if chosen not in kinds and value != type(section).model_fields[name].default:
            raise wrong_setting(
                name,
                f"the value {value} has no effect: {kind} is {chosen!r}",
                allowed=f"{key} with {kind} = {' or '.join(map(repr, kinds))} only",
                fix=f"remove {key}, or set {kind} = {kinds[0]!r}",
                has_effect=False,
            )


# Settings that only some partitions have.
_OF_PARTITIONS: dict[str, tuple[str, ...]] = {
    "data.skew": ("skew",),
    "data.alpha": ("dirichlet", "quantity"),
    "data.shards_per_worker": ("shards",),
}

# Settings that only some ways of sending, of combining and of attacking models have.
_OF_COMPRESSIONS: dict[str, tuple[str, ...]] = {"exchange.topk_share": ("topk",)}
_OF_ROBUST_RULES: dict[str, tuple[str, ...]] = {
    "exchange.trim": ("trimmed_mean", "median", "krum"),
    "exchange.clip": ("clip",),
    "exchange.radius": ("clip",),
}
_OF_ATTACKS: dict[str, tuple[str, ...]] = {
    "attack.share": ("sign_flip", "noise", "label_flip"),
    "attack.scale": ("sign_flip", "noise"),
}

# Settings that only some schedules of the learning rate have.
_SCHEDULES: dict[str, tuple[str, ...]] = {
    "training.decay": ("exponential",),
    "training.decay_seconds": ("exponential",),
    "training.milestones": ("step",),
    "training.factor": ("step",),
    "training.final_share": ("cosine",),
}


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


class TrainingConfig(ConfigSection):
    """Local training, the same for every algorithm."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: Positive = 0.1
    decay: Annotated[float, Field(gt=0, le=1)] = 0.98
    decay_by: Literal["round", "time"] = "round"
    decay_seconds: Positive = 10.0  # virtual time per decay, with decay_by = "time"
    schedule: Literal["exponential", "constant", "step", "cosine"] = "exponential"
    milestones: Annotated[list[Positive], Field(min_length=1, max_length=100)] | None = None  # step
    factor: Annotated[float, Field(ge=0.001, lt=1)] = 0.1  # per milestone
    final_share: Share = 0.0  # cosine: of the first rate, at the end
    warmup: Annotated[float, Field(ge=0, le=1e9)] = 0.0  # the rate first rises as long as this
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of SGD
    nesterov: bool = False  # SGD with Nesterov's momentum
    weight_decay: Annotated[float, Field(ge=0)] = 0.0  # sgd: in the gradient; adamw: decoupled
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9  # AdamW
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999  # AdamW
    epsilon: Positive = 1e-8  # AdamW
    clip_norm: Positive | None = None  # of the gradient, at most
    proximal: Annotated[float, Field(ge=0)] = 0.0  # FedProx's mu
    optimizer_state: Literal["keep", "reset", "mix"] = "keep"  # what an exchange does to it
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 32
    batches: Literal["replacement", "epochs"] = "replacement"  # epochs: each sample once in each
    local_steps: Annotated[int, Field(ge=1, le=100_000)] = 30  # fixed, or FedHP's first ones
    local_epochs: Annotated[float, Field(gt=0, le=10_000)] | None = None  # instead of local_steps
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of the training loss
    kernel: Literal["auto", "worker"] = "auto"  # worker: one model at a time, never stacked
    mixing: Literal["auto", "ordered"] = "auto"  # ordered: the same bits on every engine
    batch_norm: Literal["mixed", "local"] = "mixed"  # running statistics are mixed, or stay local

    @model_validator(mode="after")
    def _settings_of_the_optimizer(self) -> TrainingConfig:
        other = {"sgd": ("beta1", "beta2", "epsilon"), "adamw": ("momentum", "nesterov")}
        for name in other[self.optimizer]:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                shown = str(value).lower() if isinstance(value, bool) else f"{value:g}"
                owner = "adamw" if self.optimizer == "sgd" else "sgd"
                raise wrong_setting(
                    name,
                    f"the value {shown} has no effect: training.optimizer is {self.optimizer!r}",
                    allowed=f"training.{name} with training.optimizer = {owner!r} only",
                    fix=f"remove training.{name}, or set training.optimizer = {owner!r}",
                    has_effect=False,
                )
        return self

    @model_validator(mode="after")
    def _settings_of_the_schedule(self) -> TrainingConfig:
        for key, kinds in _SCHEDULES.items():
            name = key.removeprefix("training.")
            if name in self.model_fields_set and self.schedule not in kinds:
                if getattr(self, name) is None:
                    continue
                raise wrong_setting(
                    name,
                    f"has no effect: training.schedule is {self.schedule!r}",
                    allowed=f"{key} with training.schedule = {kinds[0]!r} only",
                    fix=f"remove {key}, or set training.schedule = {kinds[0]!r}",
                    has_effect=False,
                )
        if self.schedule == "step" and self.milestones is None:
            raise wrong_setting(
                "milestones",
                "is required: training.schedule is 'step'",
                allowed="a list of rounds, or of seconds with decay_by = 'time'",
                fix="add training.milestones = [50, 75], or choose another training.schedule",
            )
        return self

    @model_validator(mode="after")
    def _seconds_need_a_decay_by_time(self) -> TrainingConfig:
        default = type(self).model_fields["decay_seconds"].default
        if self.decay_by == "round" and self.decay_seconds != default:
            raise wrong_setting(
                "decay_seconds",
                f"the value {self.decay_seconds:g} has no effect: training.decay_by is 'round'",
                allowed="training.decay_seconds with training.decay_by = 'time' only",
                fix="remove training.decay_seconds, or set training.decay_by = 'time'",
                has_effect=False,
            )
        return self

    @model_validator(mode="after")
    def _points_of_the_schedule(self) -> TrainingConfig:
        milestones = self.milestones or []
        if any(a >= b for a, b in pairwise(milestones)):
            raise wrong_setting(
                "milestones",
                f"the values {_numbers(milestones)} do not rise",
                allowed="numbers, each above the one before",
                fix="sort them, and write each once",
            )
        points = {"milestones": milestones, "warmup": [self.warmup]}
        for name, values in points.items():
            broken = [value for value in values if not value.is_integer()]
            if self.decay_by == "round" and broken:
                raise wrong_setting(
                    name,
                    f"the value {broken[0]:g} is not a number of rounds",
                    allowed="whole numbers of rounds, or seconds with training.decay_by = 'time'",
                    fix=f"round it to {max(1, round(broken[0]))}, or set decay_by = 'time'",
                )
        return self

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> TrainingConfig:
        if self.local_epochs is not None and "local_steps" in self.model_fields_set:
            raise wrong_setting(
                "local_steps",
                f"the value {self.local_steps} has no effect: training.local_epochs is "
                f"{self.local_epochs:g}",
                allowed="one of training.local_steps and training.local_epochs",
                fix="remove one of the two",
            )
        return self


class AugmentationConfig(ConfigSection):
    """Random changes of the images that a local step sees; tests see them as they are."""

    crop: Annotated[int, Field(ge=0, le=65536)] = 0  # pixels of padding, then a random crop
    flip: bool = False  # left to right, every second image

    @property
    def active(self) -> bool:
        """Whether anything is changed."""
        return self.crop > 0 or self.flip


class EvaluationConfig(ConfigSection):
    """When and on what the models are tested."""

    every: Annotated[int, Field(ge=1)] = 1
    seconds: Annotated[float, Field(ge=0.001, le=1e9)] | None = None  # virtual time between tests
    images: Annotated[int, Field(ge=1)] | None = None  # none: the whole test set
    choose: Literal["stratified", "first"] = "stratified"
    per_class: bool | None = None  # true: the accuracy of every class as well
    whole_at_end: bool = True  # the last models are tested on the whole test set as well
    targets: list[Annotated[float, Field(ge=-1e9, le=1e9)]] = [0.8]
    times: list[Annotated[float, Field(gt=0, le=1e9)]] | None = None  # s; the result at each
    final_mean: Annotated[int, Field(ge=1)] = 3  # final = mean of the last evaluations, this many

    @model_validator(mode="after")
    def _rounds_or_seconds(self) -> EvaluationConfig:
        if self.seconds is not None and self.every != 1:
            raise wrong_setting(
                "every",
                f"the value {self.every} has no effect: evaluation.seconds is {self.seconds:g}",
                allowed="one of evaluation.every (rounds) and evaluation.seconds (virtual time)",
                fix="remove one of the two",
            )
        return self


class DeviceConfig(ConfigSection):
    """One kind of machine: how long a local step takes."""

    step_time: Seconds  # mean
    sd: Annotated[float, Field(ge=0, le=1)] = 0.15  # of one step, as a share of the mean


LineFactor = Annotated[float, Field(ge=1e-6, le=1e6)]


class LineConfig(ConfigSection):
    """One direction of the workers' lines: each draws its own factor once, uniformly."""

    low: LineFactor
    high: LineFactor


class BandwidthConfig(ConfigSection):
    """The links: uniform between low and high, changing in virtual time."""

    low: Measure = 1.0
    high: Measure = 10.0
    unit: Literal["Mb/s", "MB/s"] = "MB/s"
    per: Literal["worker", "link"] = "worker"
    correlation: Annotated[float, Field(ge=0, le=1)] = 0.8  # over one interval
    interval: Annotated[float, Field(ge=0.01, le=1e9)] = 10.0  # s of virtual time
    sharing: bool = False  # a worker's bandwidth is divided among its active transfers
    latency: Annotated[float, Field(ge=0, le=1e6)] = 0.0  # s per transfer
    during_transfer: Literal["fixed", "trace"] = "fixed"  # trace: a link changes as it transfers
    # What a worker sends and receives at, in multiples of its bandwidth: a number for all, one for
    # each worker, or a range from which each draws its own.
    uplink: LineFactor | LineConfig | list[LineFactor] = 1.0
    downlink: LineFactor | LineConfig | list[LineFactor] = 1.0
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.0  # sd of a transfer's time, as a share

    @model_validator(mode="after")
    def _order(self) -> BandwidthConfig:
        if self.low > self.high:
            raise wrong_setting(
                "low",
                f"the value {self.low} is above high = {self.high}",
                allowed=f"at most {self.high}",
                fix="swap low and high, or increase high",
            )
        for name in ("uplink", "downlink"):
            line = getattr(self, name)
            if isinstance(line, LineConfig) and line.low > line.high:
                raise wrong_setting(
                    f"{name}.low",
                    f"the value {line.low} is above high = {line.high}",
                    allowed=f"at most {line.high}",
                    fix="swap low and high, or increase high",
                )
        return self


class AbsenceConfig(ConfigSection):
    """One worker is away from the first to the last round, both included."""

    worker: Annotated[int, Field(ge=0)]
    first: Annotated[int, Field(ge=1)]
    last: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _order(self) -> AbsenceConfig:
        if self.first > self.last:
            raise wrong_setting(
                "first",
                f"the value {self.first} is after last = {self.last}",
                allowed=f"at most {self.last}",
                fix="swap first and last",
            )
        return self


class WorldConfig(ConfigSection):
    """The heterogeneous world. Profile "paper" has 1-10 MB/s: the paper's round times
    (5-11 s for a 54 Mbit model) do not fit the Mb/s that its text states."""

    profile: Literal["paper", "slow_links", "uniform"] = "paper"
    devices: list[str] | dict[str, Annotated[int, Field(ge=1)]] = [
        "laptop",
        "xavier_nx",
        "jetson_tx2",
    ]
    shuffle_devices: bool = True
    device: dict[str, DeviceConfig] = {}
    drift: Annotated[float, Field(ge=0, le=1)] = 0.05  # sd of the per-round factor
    floor: Annotated[float, Field(gt=0, le=1)] = 0.2  # smallest step time, as a share of the mean
    model_megabits: Measure | None = None  # size for link times; none: that of the model
    bandwidth: BandwidthConfig = BandwidthConfig()
    monitor_delay: Annotated[int, Field(ge=0, le=1)] = 0  # rounds until the planner sees a link
    monitor_error: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of the bandwidth it sees, at most
    away: list[AbsenceConfig] = []
    away_probability: Annotated[float, Field(ge=0, lt=1)] = 0.0
    trace: Annotated[str, Field(min_length=1)] | None = None  # CSV of a recorded world
    trace_repeat: bool = False  # begin again after its end; false: the last values hold
    device_trace: Annotated[str, Field(min_length=1)] | None = None  # FedScale's, JSON or CSV
    availability_trace: Annotated[str, Field(min_length=1)] | None = None  # FedScale's
    availability_speed: Annotated[float, Field(ge=1e-6, le=1e9)] = 1.0  # trace s per virtual s
    trace_clients: Literal["random", "first"] = "random"  # which clients become the workers
    charge_estimators: bool = False  # count the estimators' gradients on the virtual clock

    def without_files(self) -> WorldConfig:
        """The same world without its recordings, which are files of one machine."""
        names = ("trace", "device_trace", "availability_trace", *_OF_RECORDINGS)
        return self.model_copy(update={name: _default_in_world(name) for name in names})

    @model_validator(mode="after")
    def _one_source_of_speeds(self) -> WorldConfig:
        if self.device_trace is not None and self.trace is not None:
            raise wrong_setting(
                "device_trace",
                "is set, and so is world.trace: both say how fast devices and links are",
                allowed="one of world.trace and world.device_trace",
                fix="remove one of the two",
            )
        given = self.bandwidth.uplink != 1.0 or self.bandwidth.downlink != 1.0
        if self.device_trace is not None and self.bandwidth.per == "link":
            raise wrong_setting(
                "bandwidth.per",
                "is 'link', but world.device_trace has one bandwidth for each worker",
                allowed="'worker' with world.device_trace",
                fix="set world.bandwidth.per = 'worker'",
            )
        if self.trace is not None and given:
            raise wrong_setting(
                "bandwidth.uplink",
                "has no effect with world.trace, which has the speeds themselves",
                allowed="columns uplink and downlink in the trace",
                fix="remove world.bandwidth.uplink and downlink, or world.trace",
            )
        return self

    @model_validator(mode="after")
    def _settings_of_recordings(self) -> WorldConfig:
        for name, files in _OF_RECORDINGS.items():
            if any(getattr(self, file) is not None for file in files):
                continue
            if getattr(self, name) != _default_in_world(name):
                keys = [f"world.{file}" for file in files]
                verb = "is" if len(keys) == 1 else "are"
                raise wrong_setting(
                    name,
                    f"{_shown(getattr(self, name))} has no effect: {' and '.join(keys)} {verb} not "
                    "set",
                    allowed=f"world.{name} with {' or '.join(keys)} only",
                    fix=f"remove world.{name}, or set world.{files[-1]}",
                    has_effect=False,
                )
        if self.device_trace is None:
            return self
        for name in _DRAWN:
            value: Any = self
            for part in name.split("."):
                value = getattr(value, part)
            if value not in (_default_in_world(name), _default_in_world(name, self.profile)):
                raise wrong_setting(
                    name,
                    f"{_shown(value)} has no effect: world.device_trace has the speeds of devices "
                    "and links",
                    allowed=f"one of world.{name} and world.device_trace",
                    fix="remove one of the two",
                    has_effect=False,
                )
        return self


PROFILES: dict[str, dict[str, Any]] = {
    "paper": {"bandwidth": {"low": 1.0, "high": 10.0, "unit": "MB/s"}},
    "slow_links": {"bandwidth": {"low": 1.0, "high": 10.0, "unit": "Mb/s"}},
    "uniform": {
        "devices": ["xavier_nx"],
        "drift": 0.0,
        "bandwidth": {"low": 5.0, "high": 5.0, "unit": "MB/s"},
    },
}

# Settings of [world] that act on recordings only, and the files of these.
_OF_RECORDINGS: dict[str, tuple[str, ...]] = {
    "trace_repeat": ("trace",),
    "availability_speed": ("availability_trace",),
    "trace_clients": ("device_trace", "availability_trace"),
}
# Settings of [world] by which speeds are drawn: with world.device_trace they are constant.
_DRAWN = (
    *("devices", "shuffle_devices", "device", "drift", "floor"),
    *(f"bandwidth.{name}" for name in ("low", "high", "correlation", "interval")),
)


def _default_in_world(name: str, profile: str = "") -> Any:
    """The value of a setting of [world] that nobody sets: that of the profile, if it has one."""
    default = default_at(WorldConfig, name.split("."))
    return flatten(PROFILES.get(profile, {})).get(name, default)


def _shown(value: Any) -> str:
    return f"the value {str(value).lower() if isinstance(value, bool) else value}"


class RayConfig(ConfigSection):
    """Where actors run, with engine = "ray"."""

    address: Annotated[str, Field(min_length=1)] | None = None  # none: start Ray on this machine
    actors: Annotated[int, Field(ge=1, le=1024)] = 2  # each hosts some of the workers


class ClusterConfig(ConfigSection):
    """Timeouts and probes on a real network; a simulation ignores them."""

    min_workers: Annotated[int, Field(ge=1)] = 1  # with fewer the run pauses
    gather: Annotated[float, Field(ge=0)] = 30.0  # s to wait for all before continuing with fewer
    beat: Annotated[float, Field(ge=0.05, le=60)] = 1.0  # s between two heartbeats
    suspect_after: Annotated[float, Field(gt=0)] = 4.0  # s of silence until rounds skip it
    dead_after: Annotated[float, Field(gt=0)] = 15.0  # s of silence until it has to join again
    patience: Annotated[float, Field(ge=1, le=100)] = 3.0  # deadline / predicted round time
    least_deadline: Annotated[float, Field(gt=0)] = 10.0  # s, for short rounds too
    probe_bytes: Annotated[int, Field(ge=0, le=16 << 20)] = 65536  # 0: never probe
    probe_every: Annotated[int, Field(ge=1)] = 5  # rounds until an unused link is timed again
    emulate: bool = False  # use the step times of [world], not the machine's


class ExchangeConfig(ConfigSection):
    """How models travel and how they are combined, in simulations and on a network alike."""

    compression: Literal["none", "fp16", "int8", "topk"] = "none"
    topk_share: Annotated[float, Field(gt=0, le=1)] = 0.1  # of the values, with topk
    robust: Literal["none", "clip", "trimmed_mean", "median", "krum"] = "none"
    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2  # share of workers that may be malicious
    clip: Annotated[float, Field(gt=0)] = 2.0  # multiple of the median distance of the peers
    radius: Positive | None = None  # with clip: a fixed distance instead, as in ClippedGossip

    @model_validator(mode="after")
    def _settings_of_the_kinds(self) -> ExchangeConfig:
        _refuse_settings_of_other_kinds(self, "exchange.compression", _OF_COMPRESSIONS)
        _refuse_settings_of_other_kinds(self, "exchange.robust", _OF_ROBUST_RULES)
        if self.radius is not None and self.clip != type(self).model_fields["clip"].default:
            raise wrong_setting(
                "clip",
                f"the value {self.clip:g} has no effect: exchange.radius is {self.radius:g}",
                allowed="one of exchange.clip (in median distances) and exchange.radius",
                fix="remove one of the two",
                has_effect=False,
            )
        return self

    def max_poisoned(self, workers: int) -> int:
        """How many of so many workers may send poisoned models; at least one."""
        return max(1, int(self.trim * workers + 1e-9))

    def min_peers(self, workers: int, *, present: int) -> int:
        """How many peers a worker needs so that robust mixing withstands poisoned ones."""
        if self.robust not in ("trimmed_mean", "median", "krum"):
            return 0
        own = 2 if self.robust == "krum" else 0  # it needs 2 * poisoned + 3 models
        return min(2 * self.max_poisoned(workers) + own, present - 1)


class AttackConfig(ConfigSection):
    """Workers that attack the others, for studies: everyone sees it in the experiment."""

    kind: Literal["none", "sign_flip", "noise", "label_flip"] = "none"
    share: Annotated[float, Field(gt=0, lt=1)] = 0.2  # of the workers, drawn by the seed
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0  # of the flipped model, or sd of the noise

    @model_validator(mode="after")
    def _settings_of_the_kind(self) -> AttackConfig:
        _refuse_settings_of_other_kinds(self, "attack.kind", _OF_ATTACKS)
        return self

    def count(self, workers: int) -> int:
        """How many of so many workers attack: the share rounded down, but at least one."""
        return 0 if self.kind == "none" else max(1, int(self.share * workers + 1e-9))


class CheckpointConfig(ConfigSection):
    """How much work may be lost when a run is killed. Not part of the result."""

    seconds: Annotated[float, Field(ge=0)] = 10.0  # real time between two checkpoints


class UntilConfig(ConfigSection):
    """A run ends after the first round that reaches one of these, or after `rounds`."""

    accuracy: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None  # mean of a round's tests
    clock: Positive | None = None  # s of virtual time
    bytes: Annotated[int, Field(ge=1)] | None = None  # sent by all workers


class CompareConfig(ConfigSection):
    """Defaults of `fedhp compare`."""

    algorithms: list[str] = ["fedhp", "dpsgd", "adpsgd", "ldsgd", "pens"]
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = [0]


class Experiment(ConfigSection):
    """A whole experiment; the same seed gives the same results."""

    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 30
    rounds: Annotated[int, Field(ge=0, le=MOST_ROUNDS)] = 100
    horizon: Annotated[float, Field(gt=0, le=1e9)] | None = None  # s of virtual time, not rounds
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    device: Annotated[
        str,
        Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$", description="auto, cpu, cuda or cuda:N"),
    ] = "auto"
    engine: Literal["local", "ray"] = "local"
    executors: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = "auto"
    memory: Literal["auto"] | Measure = "auto"  # GB the run may use; auto: the free memory
    algorithm: ComponentConfig = ComponentConfig(name="fedhp")
    model: ComponentConfig = ComponentConfig(name="mlp")
    task: ComponentConfig = ComponentConfig(name="classification")
    topology: ComponentConfig = ComponentConfig(name="full")
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    world: WorldConfig = WorldConfig()
    exchange: ExchangeConfig = ExchangeConfig()
    attack: AttackConfig = AttackConfig()
    ray: RayConfig = RayConfig()
    cluster: ClusterConfig = ClusterConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    until: UntilConfig = UntilConfig()
    compare: CompareConfig = CompareConfig()
    _origins: Origins = PrivateAttr(default=UNKNOWN)

    @property
    def origins(self) -> Origins:
        """Where its settings come from, for errors."""
        return self._origins

    def with_origins(self, origins: Origins) -> Experiment:
        """The same experiment, read elsewhere."""
        experiment = self.model_copy()
        experiment._origins = origins
        return experiment

    @model_validator(mode="before")
    @classmethod
    def _horizon_needs_no_rounds(cls, tables: Any) -> Any:
        if not isinstance(tables, Mapping) or tables.get("horizon") is None:
            return tables
        return {"rounds": MOST_ROUNDS, **tables}

    @model_validator(mode="after")
    def _rounds_or_horizon(self) -> Experiment:
        if self.horizon is not None and self.rounds != MOST_ROUNDS:
            raise wrong_setting(
                "rounds",
                f"the value {self.rounds} has no effect: horizon is {self.horizon:g}",
                allowed="one of rounds and horizon (s of virtual time)",
                fix="remove one of the two",
            )
        return self

    @model_validator(mode="after")
    def _a_cosine_has_an_end(self) -> Experiment:
        training = self.training
        if training.schedule != "cosine":
            return self
        by_time = training.decay_by == "time"
        if by_time != (self.horizon is not None):
            unit, end, other = (
                ("time", "horizon", "round") if by_time else ("round", "rounds", "time")
            )
            missing = "horizon" if by_time else "number of rounds"
            raise wrong_setting(
                "training.schedule",
                f"is 'cosine' by {unit}, which ends with the run, but the run has no {missing}",
                allowed="training.decay_by = 'round' with rounds, or 'time' with horizon",
                fix=f"set {end}, or training.decay_by = {other!r}",
            )
        length = self.horizon if by_time else self.rounds
        if length and training.warmup >= length:
            raise wrong_setting(
                "training.warmup",
                f"the value {training.warmup:g} leaves nothing of the run ({length:g}) for the "
                "cosine",
                allowed=f"less than {length:g}",
                fix="lower training.warmup, or make the run longer",
            )
        return self

    @model_validator(mode="after")
    def _accuracy_is_a_share(self) -> Experiment:
        goal = self.until.accuracy
        if goal is not None and self.task.name == "classification" and not 0 < goal <= 1:
            raise wrong_setting(
                "until.accuracy",
                f"the value {goal:g} is not an accuracy",
                allowed="a share above 0 and at most 1",
                fix="write 0.9 for 90 %",
            )
        return self

    @model_validator(mode="after")
    def _an_own_task_has_model_and_data(self) -> Experiment:
        if not is_dotted(self.task.name):
            return self
        for key in REPLACED_BY_TASKS:
            section, _, name = key.partition(".")
            owner = getattr(self, section) if name else self
            if (name or section) in owner.model_fields_set:
                shown = key if name else f"{key}.name"
                raise wrong_setting(
                    shown,
                    f"is set, but has no effect: the task {self.task.name!r} has its own "
                    f"{'data' if name else 'model'}",
                    allowed="either task.name with your own task, or model.name and data.name",
                    fix=f"remove {shown} or task.name",
                )
        return self

    @model_validator(mode="after")
    def _a_line_for_every_worker(self) -> Experiment:
        for name in ("uplink", "downlink"):
            line = getattr(self.world.bandwidth, name)
            if isinstance(line, list) and len(line) != self.workers:
                raise wrong_setting(
                    f"world.bandwidth.{name}",
                    f"the list has {len(line)} factors, but workers = {self.workers}",
                    allowed=f"one number for all, {self.workers} numbers, or a range: "
                    "{low = 0.2, high = 0.5}",
                    fix="give one factor for each worker",
                )
        return self

    @model_validator(mode="after")
    def _absent_workers_exist(self) -> Experiment:
        for absence in self.world.away:
            if absence.worker >= self.workers:
                raise wrong_setting(
                    "world.away",
                    f"unknown worker {absence.worker}: workers = {self.workers}",
                    allowed=f"workers 0 to {self.workers - 1}",
                    fix="use one of these, or increase workers",
                )
        return self


COMPONENTS = ("algorithm", "model", "task", "topology")
PART_KEYS = (*(f"{section}.name" for section in COMPONENTS), "data.name", "data.partition")

# What a user's own task replaces: these have no effect with it.
REPLACED_BY_TASKS = (
    "model",
    *(
        f"data.{name}"
        for name in (
            *("name", "path", "split", "pool", "standardize"),
            *("train_images", "test_images", "options"),
        )
    ),
)

# Settings that are left out of the tables at their defaults: experiments from before them have
# the same tables, and a worker of the release before can read them.
ADDED = (
    "world.bandwidth.during_transfer",
    "training.optimizer",
    "training.momentum",
    "training.schedule",
    "training.factor",
    "training.final_share",
    "training.warmup",
    "training.batches",
    "training.label_smoothing",
    "training.nesterov",
    "training.weight_decay",
    "training.beta1",
    "training.beta2",
    "training.epsilon",
    "training.clip_norm",
    "training.proximal",
    "training.optimizer_state",
    "world.bandwidth.uplink",
    "world.bandwidth.downlink",
    "world.bandwidth.jitter",
    "world.availability_speed",
    "world.trace_clients",
    "world.trace_repeat",
)
# The same for whole sections.
ADDED_SECTIONS = ("augmentation", "exchange", "attack")

# Settings that do not change the results; they may differ when a run is resumed.
FREE_ON_RESUME = ("checkpoint", "cluster", "compare", "executors", "memory", "ray")


@dataclass(frozen=True, slots=True)
class Draft:
    """The tables of an experiment before they are checked, and where they come from."""

    tables: Mapping[str, Any]
    origins: Origins = UNKNOWN

    @classmethod
    def read(cls, path: str | Path) -> Draft:
        """Those of an experiment file."""
        return cls(read_toml(path), Origins.of_file(path))

    def experiment(
        self, overrides: Sequence[str] = (), *, notes: list[str] | None = None
    ) -> Experiment:
        """The experiment with these overrides; notes gets a line for settings that are dropped."""
        file = self.origins.file
        folder = Path(file).parent if file else None
        experiment = parse(self.tables, overrides, origins=self.origins, folder=folder, notes=notes)
        check_targets(experiment)
        return experiment


def load(
    path: str | Path, overrides: Sequence[str] = (), *, notes: list[str] | None = None
) -> Experiment:
    """Read an experiment file and apply key=value overrides.

    The notes about dropped settings are logged, or added to the list.
    """
    dropped: list[str] = []
    experiment = Draft.read(path).experiment(overrides, notes=dropped)
    check_origin(experiment)
    dropped += _weak_defence(experiment)
    if notes is None:
        log_notes(dropped)
    else:
        notes.extend(dropped)
    return experiment


PENS_KEEPS = 3  # peers, unless algorithm.keep is set


def _weak_defence(experiment: Experiment) -> list[str]:
    """Notes where more workers attack than robust mixing is set to withstand, or where there are
    too few workers for that: it may be what a study wants to see."""
    exchange, attack, workers = experiment.exchange, experiment.attack, experiment.workers
    attackers, withstood = attack.count(workers), exchange.max_poisoned(workers)
    if exchange.robust in ("none", "clip"):
        return []
    notes = []
    if attackers > withstood:
        notes.append(
            f"{attackers} workers attack, but exchange.robust = {exchange.robust!r} with trim = "
            f"{exchange.trim:g} is set to withstand {withstood}"
        )
    needed = exchange.min_peers(workers, present=MOST_WORKERS) + 1
    if workers < needed:
        notes.append(
            f"exchange.robust = {exchange.robust!r} with trim = {exchange.trim:g} needs {needed} "
            f"models to withstand {withstood} poisoned ones, but workers = {workers}"
        )
    algorithm, least = experiment.algorithm, exchange.min_peers(workers, present=workers)
    kept = algorithm.settings.get("keep", PENS_KEEPS)
    if algorithm.name == "pens" and isinstance(kept, int) and kept < least:
        notes.append(
            f"in its first stage PENS averages {kept} peers, but exchange.robust = "
            f"{exchange.robust!r} needs {least} to withstand {withstood} poisoned ones: set "
            f"algorithm.keep = {least}"
        )
    return notes


def log_notes(notes: Iterable[str]) -> None:
    """Tell the user about dropped settings, each note once."""
    for note in dict.fromkeys(notes):
        LOG.warning("note: %s", note)


def check_targets(experiment: Experiment) -> None:
    """Refuse target accuracies that are not shares; another task's metric may be any number.

    Not part of the schema: a record with such targets must still open.
    """
    if experiment.task.name != Experiment.model_fields["task"].default.name:
        return
    for target in experiment.evaluation.targets:
        if not 0 <= target <= 1:
            meant = f"did you mean {target / 100:g}? " if 1 < target <= 100 else ""
            with experiment.origins.named():
                raise ConfigError(
                    f"invalid value {target:g}: accuracies are shares, not percent",
                    key="evaluation.targets",
                    allowed="numbers, each from 0 to 1",
                    fix=f"{meant}write 90 % as 0.9",
                )


def own_parts(experiment: Experiment) -> dict[str, str]:
    """The dotted paths of an experiment, by their keys."""
    names = {}
    for key in PART_KEYS:
        section, _, field = key.partition(".")
        name = getattr(getattr(experiment, section), field)
        if is_dotted(name):
            names[key] = name
    return names


def own_modules(experiment: Experiment) -> tuple[str, ...]:
    """The modules of the experiment's own parts, and those that really define them."""
    modules: set[str] = set()
    with experiment.origins.named():
        for key, path in own_parts(experiment).items():
            part = resolve(path, {}, key=key)
            modules |= {split_path(path)[0], home_of(part)} - {""}
    return tuple(sorted(modules))


def check_trusted(experiment: Experiment, trust: Trust) -> None:
    """Refuse an experiment from another machine that names untrusted parts."""
    with limited_to(trust), experiment.origins.named():
        for key, path in own_parts(experiment).items():
            resolve(path, {}, key=key)


def check_origin(experiment: Experiment) -> None:
    """Refuse own parts of a file in a run folder, which may come from somebody else, unless the
    user trusts their modules. Any other file is the user's own word."""
    file = experiment.origins.file
    if not file or not is_run_folder(Path(file).absolute().parent):
        return
    for key, path in own_parts(experiment).items():
        module, _ = split_path(path)
        if module not in granted():
            with experiment.origins.named():
                raise ConfigError(
                    f"{path!r} is a part of the user's own, and a file in a run folder may come "
                    "from somebody else",
                    key=key,
                    allowed="built-in parts, and parts of modules that you trust",
                    fix=f"if you have read the module {module} and trust it, add {OPTION} "
                    f"{module}, or use an experiment file outside of run folders",
                )


def parse(
    tables: Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    origins: Origins = UNKNOWN,
    folder: Path | None = None,
    notes: list[str] | None = None,
    stored: bool = False,
) -> Experiment:
    """Validate raw tables and overrides; notes gets a line for settings that were dropped.

    `key=none` unsets a key, unless none is one of its values. stored: the tables are those of a
    record or of another process, which nobody can correct. An earlier version may have accepted
    settings without effect: they are left out.
    """
    overrides = list(overrides)
    tree = merge_tables({}, tables)
    refuse_repeated(overrides)
    changes = [parse_change(override) for override in overrides]
    changed = origins.with_overrides(overrides)
    with changed.named():
        if folder is not None:
            resolve_paths(tree, folder)
        before = merge_tables({}, tree)
        dropped = apply_changes(tree, changes)
        if notes is not None:
            notes.extend(drop.note(origins.name) for drop in dropped)
        resolve_paths(tree, Path.cwd())
        try:
            experiment = _validated_stored(tree) if stored else _validated(tree)
        except ValidationError as error:
            wrong = from_validation(error, Experiment)
            reasons = [drop.note(origins.name) for drop in dropped if wrong.key in drop.settings]
            if reasons:
                wrong.detail = "; ".join([wrong.detail, *reasons])
            given = any(covers(key, wrong.key) for key, _ in changes)
            if given or (changes and _is_valid(before)):
                wrong.name_source(COMMAND_LINE)
            raise wrong from None
    return experiment.with_origins(changed)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Settings that a change left out of the tables."""

    change: str  # and what it does: "horizon=5 replaces rounds = 3"
    settings: Mapping[str, Any]
    listed: bool = False  # the settings follow in the note

    def note(self, name: str) -> str:
        """A line for the user; name: what the settings were in."""
        settings = ", ".join(f"{key} = {value!r}" for key, value in self.settings.items())
        text = f"{self.change} in {name or 'the experiment'}"
        return f"{text}: {settings}" if self.listed else text


def apply_changes(tree: dict[str, Any], changes: Sequence[tuple[str, Any]]) -> list[Dropped]:
    """Set dotted keys in the tables of an experiment, in place.

    A changed kind (algorithm, partition, ...) drops the settings of the other kind, which are
    returned.
    """
    dropped = _drop_settings_of_other_kinds(tree, changes)
    for key, value in changes:
        if value is not UNSET:
            set_key(tree, key, value)
        elif not pop_key(tree, key)[0] and not _is_known(key):
            set_key(tree, key, "none")  # so that the key is refused as unknown
    return dropped


def _validated(tree: dict[str, Any]) -> Experiment:
    _apply_profile(tree)
    _add_default_names(tree)
    return Experiment.model_validate(tree)


def _validated_stored(tree: dict[str, Any]) -> Experiment:
    """The experiment without the settings that have no effect."""
    task = tree.get("task")
    if isinstance(task, dict) and is_dotted(str(task.get("name", ""))):
        for key in REPLACED_BY_TASKS:
            pop_key(tree, key)
    while True:
        try:
            return _validated(tree)
        except ValidationError as error:
            key = from_validation(error, Experiment).key
            if not (has_no_effect(error) and pop_key(tree, key)[0]):
                raise


def _is_valid(tree: dict[str, Any]) -> bool:
    try:
        _validated(tree)
    except ValidationError:
        return False
    return True


UNSET: Any = object()  # the value of key=none
# Settings of built-in components for which none is a value.
NONE_IS_A_VALUE = ("algorithm.bound", "algorithm.compression", "model.norm")


def parse_change(override: str) -> tuple[str, Any]:
    """The key and value of an override; the bare word none unsets the key."""
    key, value = parse_override(override)
    bare = override.partition("=")[2].strip() == "none"
    if bare and "none" not in choices_at(Experiment, key.split(".")) and key not in NONE_IS_A_VALUE:
        return key, UNSET
    return key, value


def refuse_repeated(overrides: Sequence[str]) -> None:
    """Refuse overrides of which a later one would silently replace an earlier one."""
    earlier: dict[str, str] = {}
    for override in overrides:
        key = parse_override(override)[0]
        value = override.partition("=")[2].strip()
        for name, other in earlier.items():
            if f"{name}.".startswith(f"{key}."):
                both = (
                    f"{other} and {value}" if name == key else f"{name}={other} and {key}={value}"
                )
                raise ConfigError(
                    f"is given twice: {both}",
                    key=name,
                    source=COMMAND_LINE,
                    allowed="each setting once",
                    fix="remove one of the two",
                )
        earlier[key] = value


def _is_known(key: str) -> bool:
    """Whether a key is part of the schema; the settings of a component are checked by itself."""
    *sections, last = key.split(".")
    return sections[:1] in [[name] for name in COMPONENTS] or last in names_at(Experiment, sections)


def to_tables(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain tables for TOML or JSON; settings that are None are left out."""
    tables = experiment.model_dump(mode="json", exclude_none=True)
    for key in ADDED:
        if flatten(tables).get(key) == default_at(Experiment, key.split(".")):
            pop_key(tables, key)
    for key in _without_effect(experiment):
        pop_key(tables, key)
    for section in ADDED_SECTIONS:
        if getattr(experiment, section) == Experiment.model_fields[section].default:
            del tables[section]
    if not tables["until"]:
        del tables["until"]
    if experiment.horizon is not None:
        del tables["rounds"]
    if experiment.training.local_epochs is not None:
        del tables["training"]["local_steps"]
    return tables


def _without_effect(experiment: Experiment) -> list[str]:
    """Settings of other schedules, and those that an own task replaces, which only their defaults
    can have: written to a file, they would be refused."""
    kind = experiment.training.schedule
    replaced = REPLACED_BY_TASKS if is_dotted(experiment.task.name) else ()
    return [*replaced, *(key for key, kinds in _SCHEDULES.items() if kind not in kinds)]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that differ between two experiments and change the results: (key, old, new)."""
    before, after = flatten(old), flatten(new)
    return [
        (key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key.split(".")[0] not in FREE_ON_RESUME
    ]


def _apply_profile(tree: dict[str, Any]) -> None:
    world = tree.get("world", {})
    profile = world.get("profile", "paper") if isinstance(world, dict) else None
    if isinstance(profile, str) and profile in PROFILES:
        tree["world"] = merge_tables(PROFILES[profile], world)


# Settings that only some kinds have: key of the kind -> setting -> the kinds that have it.
_SETTINGS_OF_KINDS: dict[str, dict[str, tuple[str, ...]]] = {
    "data.partition": {**_OF_PARTITIONS, "data.partition_options": ()},
    "data.name": {"data.split": ("emnist",), "data.options": ()},
    "training.decay_by": {
        "training.decay_seconds": ("time",),
        "training.milestones": (),  # in the other unit
        "training.warmup": (),
    },
    "training.schedule": _SCHEDULES,
    "training.optimizer": {
        "training.momentum": ("sgd",),
        "training.nesterov": ("sgd",),
        "training.beta1": ("adamw",),
        "training.beta2": ("adamw",),
        "training.epsilon": ("adamw",),
    },
    "exchange.compression": _OF_COMPRESSIONS,
    "exchange.robust": _OF_ROBUST_RULES,
    "attack.kind": _OF_ATTACKS,
}


_RECORDINGS = ("world.trace", "world.device_trace", "world.availability_trace")

# Settings of which an experiment has one or the other: an override replaces the other one.
_INSTEAD_OF = {
    "horizon": "rounds",
    "rounds": "horizon",
    "evaluation.seconds": "evaluation.every",
    "evaluation.every": "evaluation.seconds",
    "training.local_epochs": "training.local_steps",
    "training.local_steps": "training.local_epochs",
    "exchange.radius": "exchange.clip",
    "exchange.clip": "exchange.radius",
}


def _drop_settings_of_other_kinds(
    tree: dict[str, Any], changes: Sequence[tuple[str, Any]]
) -> list[Dropped]:
    """A changed kind does not inherit the settings of another kind.

    The kind is that of a component, a partition, a world profile, ...; a section that is given as
    a whole replaces the one in the file.
    """
    drops = []
    for key, value in changes:
        default = default_at(Experiment, key.split("."))
        old, new = flatten(tree).get(key, default), default if value is UNSET else value
        if key in _INSTEAD_OF and value is not UNSET:
            other = _INSTEAD_OF[key]
            there, content = pop_key(tree, other)
            if there and content != default_at(Experiment, other.split(".")):
                text = f"{key}={new} replaces {other} = {content!r}"
                drops.append(Dropped(text, {other: content}))
        if old == new:
            continue
        if isinstance(value, Mapping):
            names, what = _settings_replaced(tree, key, value), "the other settings"
        elif key in _RECORDINGS:
            names, what = _settings_without(tree, key, changes, new=new), "settings without effect"
        else:
            names, what = (
                _settings_of_other_kinds(tree, key, old=old, new=new),
                f"settings of {old!r}",
            )
        profile = old if key == "world.profile" else flatten(tree).get("world.profile", "paper")
        dropped = {
            name: content for name in names for there, content in [pop_key(tree, name)] if there
        }
        changed = {
            name: content
            for name, content in dropped.items()
            if content != _value_without(name, profile)
        }
        if changed:
            shown = "{...}" if isinstance(value, Mapping) else "none" if new is None else new
            drops.append(Dropped(f"{key}={shown} drops {what}", changed, listed=True))
    return drops


def _value_without(name: str, profile: Any) -> Any:
    """The value that a setting has if nobody sets it: that of the profile, or the default."""
    section, _, rest = name.partition(".")
    if section == "world" and isinstance(profile, str):
        return _default_in_world(rest, profile)
    return default_at(Experiment, name.split("."))


def _settings_without(
    tree: Mapping[str, Any], key: str, changes: Sequence[tuple[str, Any]], *, new: Any
) -> list[str]:
    """The settings of [world] that have no effect with this recording, or without it."""
    if new is not None:
        return [f"world.{name}" for name in _DRAWN] if key == "world.device_trace" else []
    left = {**flatten(tree), **dict(changes)}
    return [
        f"world.{name}"
        for name, files in _OF_RECORDINGS.items()
        if all(left.get(f"world.{file}", UNSET) in (None, UNSET) for file in files)
    ]


def _settings_replaced(tree: Mapping[str, Any], key: str, value: Mapping[str, Any]) -> list[str]:
    """The settings in a section that are not in the table that replaces it."""
    given = flatten(value, f"{key}.")
    return [name for name in flatten(tree) if name.startswith(f"{key}.") and name not in given]


def _settings_of_other_kinds(tree: Mapping[str, Any], key: str, *, old: Any, new: Any) -> list[str]:
    section, _, rest = key.partition(".")
    if section in COMPONENTS and rest == "name":
        table = tree.get(section)
        names = table if isinstance(table, Mapping) else ()
        return [f"{section}.{name}" for name in names if name != "name"]
    if key == "world.profile":
        profiles = [PROFILES[name] for name in (old, new) if name in PROFILES]
        return sorted({f"world.{name}" for profile in profiles for name in flatten(profile)})
    settings = _SETTINGS_OF_KINDS.get(key, {})
    dropped = [setting for setting, kinds in settings.items() if new not in kinds]
    if key == "data.name" and new == "digits":
        dropped.append("data.path")
    return dropped


def _add_default_names(tree: dict[str, Any]) -> None:
    """A component without a name is the default one: [algorithm] deadline = "fill"."""
    for section in COMPONENTS:
        if isinstance(tree.get(section), dict):
            default = Experiment.model_fields[section].default
            tree[section] = {"name": default.name, **tree[section]}
