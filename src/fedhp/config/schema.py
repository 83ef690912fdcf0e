"""The experiment schema: sections, their keys, types, bounds and defaults.

A component (algorithm, model, task, topology) has a `name` and settings, which are checked against
the component itself. What two settings need of each other is in rules.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from fedhp.config.origins import UNKNOWN, Origins
from fedhp.tables import TRACES


class ConfigSection(BaseModel):
    """A section of the experiment file; unknown keys are errors, values keep their type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ComponentConfig(BaseModel):
    """A replaceable component: its name and its settings."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: Annotated[str, Field(min_length=1)]

    @property
    def settings(self) -> dict[str, Any]:
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


class AugmentationConfig(ConfigSection):
    """Random changes of the images that a local step sees; tests see them as they are."""

    crop: Annotated[int, Field(ge=0, le=65536)] = 0  # pixels of padding, then a random crop
    flip: bool = False  # left to right, every second image

    @property
    def active(self) -> bool:
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


class ServerConfig(ConfigSection):
    """The line of a server, in the unit of world.bandwidth: all its transfers share it."""

    uplink: Measure  # it sends its model to the participants
    downlink: Measure  # it receives theirs


class AbsenceConfig(ConfigSection):
    """One worker is away from the first to the last round, both included."""

    worker: Annotated[int, Field(ge=0)]
    first: Annotated[int, Field(ge=1)]
    last: Annotated[int, Field(ge=1)]


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
    server: ServerConfig | None = None  # for algorithms that average over one
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
        names = (*TRACES, "trace_repeat", "availability_speed", "trace_clients")
        fields = type(self).model_fields
        return self.model_copy(update={name: fields[name].default for name in names})


PROFILES: dict[str, dict[str, Any]] = {
    "paper": {"bandwidth": {"low": 1.0, "high": 10.0, "unit": "MB/s"}},
    "slow_links": {"bandwidth": {"low": 1.0, "high": 10.0, "unit": "Mb/s"}},
    "uniform": {
        "devices": ["xavier_nx"],
        "drift": 0.0,
        "bandwidth": {"low": 5.0, "high": 5.0, "unit": "MB/s"},
    },
}


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
        return self._origins

    def with_origins(self, origins: Origins) -> Experiment:
        experiment = self.model_copy()
        experiment._origins = origins
        return experiment
