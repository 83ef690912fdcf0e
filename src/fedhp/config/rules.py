"""What the settings of an experiment need of each other: one list of rules.

A rule refuses what cannot be or has no effect. The same rule says what an override of another
setting drops, and what is not written to a file or a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedhp.components import is_dotted
from fedhp.config.schema import (
    MOST_ROUNDS,
    MOST_WORKERS,
    PARTITIONS,
    PROFILES,
    Experiment,
    LineConfig,
)
from fedhp.errors import ConfigError
from fedhp.tables import flatten
from fedhp.wording import default_at, did_you_mean

COMPONENTS = ("algorithm", "model", "task", "topology")
RECORDINGS = ("world.trace", "world.device_trace", "world.availability_trace")
REMOVE_ONE = "remove one of the two"

# What a user's own task replaces: these have no effect with it.
REPLACED_BY_TASKS = (
    *("model", "data.name", "data.path", "data.split", "data.pool", "data.standardize"),
    *("data.train_images", "data.test_images", "data.options"),
)


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    old: Any
    new: Any
    tables: Mapping[str, Any]  # before it
    left: Mapping[str, Any]  # the dotted keys that all overrides together leave


class SettingRule:
    """One relation between settings."""

    def refusals(self, experiment: Experiment) -> Iterator[ConfigError]:
        yield from ()

    def drops(self, change: Change) -> Iterable[str]:
        """The settings of the file that an override leaves without effect."""
        return ()

    def replaces(self, key: str) -> Iterable[str]:
        """The settings that are given up where this one is given."""
        return ()

    def omits(self, experiment: Experiment) -> Iterable[str]:
        """The settings that are not written."""
        return ()


@dataclass(frozen=True, slots=True)
class Only(SettingRule):
    """A setting that acts with some kinds only."""

    key: str
    when: str  # the key of the kind
    values: tuple[str, ...]
    number: str = ""  # how the value is written in the error
    even_default: bool = False  # set to its default it is refused too, so it is not written

    def refusals(self, experiment: Experiment) -> Iterator[ConfigError]:
        kind, value = value_at(experiment, self.when), value_at(experiment, self.key)
        if kind in self.values:
            return
        shown = "" if self.even_default else f"{_shown(value, self.number)} "
        given = value != default_of(self.key)
        if self.even_default:
            given = value is not None and is_set(experiment, self.key)
        if given:
            yield ConfigError(
                f"{shown}has no effect: {self.when} is {kind!r}",
                key=self.key,
                allowed=f"{self.key} with {self.when} = {' or '.join(map(repr, self.values))} only",
                fix=f"remove {self.key}, or set {self.when} = {self.values[0]!r}",
                idle=self.key,
            )

    def drops(self, change: Change) -> Iterable[str]:
        return [self.key] if change.key == self.when and change.new not in self.values else []

    def omits(self, experiment: Experiment) -> Iterable[str]:
        other = value_at(experiment, self.when) not in self.values
        return [self.key] if self.even_default and other else []


@dataclass(frozen=True, slots=True)
class Drops(SettingRule):
    """Settings that are about a kind, and are not for another one."""

    when: str
    keys: Callable[[Change], Iterable[str]]

    def drops(self, change: Change) -> Iterable[str]:
        return self.keys(change) if change.key == self.when else ()


@dataclass(frozen=True, slots=True)
class OneOf(SettingRule):
    """Two settings of which an experiment has one: an override of either replaces the other."""

    key: str
    other: str  # None unless it is set; then the key has no effect
    allowed: str
    unset: Any = None  # the value of the key that nobody has set; None: its default
    even_default: bool = False  # as in Only
    written: bool = True  # the key, beside the other one
    has_effect: bool = True  # a record with both is not what anybody wanted

    def refusals(self, experiment: Experiment) -> Iterator[ConfigError]:
        value, other = value_at(experiment, self.key), value_at(experiment, self.other)
        unset = default_of(self.key) if self.unset is None else self.unset
        given = is_set(experiment, self.key) if self.even_default else value != unset
        if other is not None and given:
            yield ConfigError(
                f"{_shown(value, 'g' if isinstance(value, float) else '')} has no effect: "
                f"{self.other} is {other:g}",
                key=self.key,
                allowed=self.allowed,
                fix=REMOVE_ONE,
                idle="" if self.has_effect else self.key,
            )

    def omits(self, experiment: Experiment) -> Iterable[str]:
        return [self.key] if not self.written and value_at(experiment, self.other) else []

    def replaces(self, key: str) -> Iterable[str]:
        both = (self.key, self.other)
        return [name for name in both if name != key] if key in both else []


@dataclass(frozen=True, slots=True)
class Needs(SettingRule):
    """A setting of [world] that acts on recordings only: one of these files must be given."""

    key: str
    files: tuple[str, ...]

    def refusals(self, experiment: Experiment) -> Iterator[ConfigError]:
        value = value_at(experiment, self.key)
        given = any(value_at(experiment, file) is not None for file in self.files)
        if not given and value != default_of(self.key):
            verb = "is" if len(self.files) == 1 else "are"
            yield ConfigError(
                f"{_shown(value)} has no effect: {' and '.join(self.files)} {verb} not set",
                key=self.key,
                allowed=f"{self.key} with {' or '.join(self.files)} only",
                fix=f"remove {self.key}, or set {self.files[-1]}",
                idle=self.key,
            )

    def drops(self, change: Change) -> Iterable[str]:
        if change.key not in RECORDINGS or change.new is not None:
            return []
        return [] if any(change.left.get(file) is not None for file in self.files) else [self.key]


@dataclass(frozen=True, slots=True)
class Recorded(SettingRule):
    """Settings by which speeds are drawn: a recording has the speeds themselves."""

    file: str
    keys: tuple[str, ...]

    def refusals(self, experiment: Experiment) -> Iterator[ConfigError]:
        if value_at(experiment, self.file) is None:
            return
        for key in self.keys:
            value = value_at(experiment, key)
            if value not in (default_of(key), default_of(key, experiment.world.profile)):
                yield ConfigError(
                    f"{_shown(value)} has no effect: {self.file} has the speeds of devices and "
                    "links",
                    key=key,
                    allowed=f"one of {key} and {self.file}",
                    fix=REMOVE_ONE,
                    idle=key,
                )

    def drops(self, change: Change) -> Iterable[str]:
        return self.keys if change.key == self.file and change.new is not None else ()


@dataclass(frozen=True, slots=True)
class Replaced(SettingRule):
    """Settings that a user's own task replaces."""

    keys: tuple[str, ...]

    def refusals(self, experiment: Experiment) -> Iterator[ConfigError]:
        for key in self.omits(experiment):
            if is_set(experiment, key):
                is_data = "." in key
                shown = key if is_data else f"{key}.name"
                yield ConfigError(
                    f"is set, but has no effect: the task {experiment.task.name!r} has its own "
                    f"{'data' if is_data else 'model'}",
                    key=shown,
                    allowed="either task.name with your own task, or model.name and data.name",
                    fix=f"remove {shown} or task.name",
                    idle=key,
                )

    def omits(self, experiment: Experiment) -> Iterable[str]:
        return self.keys if is_dotted(experiment.task.name) else ()


@dataclass(frozen=True, slots=True)
class Added(SettingRule):
    """A setting or a section that is not written at its default: experiments from before it have
    the same tables, and a worker of the release before can read them."""

    key: str

    def omits(self, experiment: Experiment) -> Iterable[str]:
        return [self.key] if value_at(experiment, self.key) == default_of(self.key) else []


@dataclass(frozen=True, slots=True)
class Refuses(SettingRule):
    """Anything else that is refused."""

    find: Callable[[Experiment], Iterator[ConfigError]]

    def refusals(self, experiment: Experiment) -> Iterator[ConfigError]:
        yield from self.find(experiment)


def value_at(experiment: Experiment, key: str) -> Any:
    value: Any = experiment
    for name in key.split("."):
        value = getattr(value, name)
    return value


def is_set(experiment: Experiment, key: str) -> bool:
    """Whether somebody set it, to its default or another value."""
    section, _, name = key.rpartition(".")
    owner = value_at(experiment, section) if section else experiment
    return name in owner.model_fields_set


def default_of(key: str, profile: Any = "") -> Any:
    """The value of a setting that nobody sets: that of the profile, if it has one."""
    default = default_at(Experiment, key.split("."))
    section, _, name = key.partition(".")
    known = isinstance(profile, str) and section == "world"
    return flatten(PROFILES.get(profile, {})).get(name, default) if known else default


def _shown(value: Any, number: str = "") -> str:
    if isinstance(value, bool):
        return f"the value {str(value).lower()}"
    return f"the value {value:{number}}" if number else f"the value {value}"


def _settings_of_part(change: Change) -> Iterable[str]:
    section, _, _ = change.key.partition(".")
    table = change.tables.get(section)
    names = table if isinstance(table, Mapping) else ()
    return [f"{section}.{name}" for name in names if name != "name"]


def _settings_of_data(change: Change) -> Iterable[str]:
    kept = {"data.split": change.new == "emnist", "data.path": change.new != "digits"}
    return [key for key in ("data.split", "data.options", "data.path") if not kept.get(key)]


def _settings_of_profiles(change: Change) -> Iterable[str]:
    """What the former profile sets, and the new one."""
    known = [PROFILES[name] for name in (change.old, change.new) if name in PROFILES]
    return sorted({f"world.{name}" for profile in known for name in flatten(profile)})


def _partition(experiment: Experiment) -> Iterator[ConfigError]:
    """A partition that is neither built in nor the user's own, and options of one's own only."""
    name = experiment.data.partition
    if is_dotted(name):
        return
    if name not in PARTITIONS:
        yield ConfigError(
            f"unknown partition {name!r}",
            key="data.partition",
            allowed=", ".join(PARTITIONS) + ", or a dotted path to your own (module:function)",
            fix=f"{did_you_mean(name, PARTITIONS)}set data.partition to one of these",
        )
    if experiment.data.partition_options:
        yield ConfigError(
            f"has no effect: data.partition is {name!r}",
            key="data.partition_options",
            allowed="data.partition_options with your own partition (module:function) only",
            fix="remove data.partition_options",
            idle="data.partition_options",
        )


def _milestones(experiment: Experiment) -> Iterator[ConfigError]:
    if experiment.training.schedule == "step" and experiment.training.milestones is None:
        yield ConfigError(
            "is required: training.schedule is 'step'",
            key="training.milestones",
            allowed="a list of rounds, or of seconds with decay_by = 'time'",
            fix="add training.milestones = [50, 75], or choose another training.schedule",
        )


def _points_of_the_schedule(experiment: Experiment) -> Iterator[ConfigError]:
    training = experiment.training
    milestones = training.milestones or []
    if any(a >= b for a, b in pairwise(milestones)):
        yield ConfigError(
            f"the values {', '.join(f'{value:g}' for value in milestones)} do not rise",
            key="training.milestones",
            allowed="numbers, each above the one before",
            fix="sort them, and write each once",
        )
    for key, values in (("milestones", milestones), ("warmup", [training.warmup])):
        broken = [value for value in values if not value.is_integer()]
        if training.decay_by == "round" and broken:
            yield ConfigError(
                f"the value {broken[0]:g} is not a number of rounds",
                key=f"training.{key}",
                allowed="whole numbers of rounds, or seconds with training.decay_by = 'time'",
                fix=f"round it to {max(1, round(broken[0]))}, or set decay_by = 'time'",
            )


def _bounds(experiment: Experiment) -> Iterator[ConfigError]:
    """Ranges of bandwidths that end below their beginning."""
    links = experiment.world.bandwidth
    lines = {name: getattr(links, name) for name in ("uplink", "downlink")}
    ranges = {name: line for name, line in lines.items() if isinstance(line, LineConfig)}
    for name, low, high in (
        ("low", links.low, links.high),
        *((f"{name}.low", line.low, line.high) for name, line in ranges.items()),
    ):
        if low > high:
            yield ConfigError(
                f"the value {low} is above high = {high}",
                key=f"world.bandwidth.{name}",
                allowed=f"at most {high}",
                fix="swap low and high, or increase high",
            )


def _absences(experiment: Experiment) -> Iterator[ConfigError]:
    for number, absence in enumerate(experiment.world.away):
        if absence.first > absence.last:
            yield ConfigError(
                f"the value {absence.first} is after last = {absence.last}",
                key=f"world.away.{number}.first",
                allowed=f"at most {absence.last}",
                fix="swap first and last",
            )


def _one_source_of_speeds(experiment: Experiment) -> Iterator[ConfigError]:
    world = experiment.world
    if world.device_trace is not None and world.trace is not None:
        yield ConfigError(
            "is set, and so is world.trace: both say how fast devices and links are",
            key="world.device_trace",
            allowed="one of world.trace and world.device_trace",
            fix=REMOVE_ONE,
        )
    if world.device_trace is not None and world.bandwidth.per == "link":
        yield ConfigError(
            "is 'link', but world.device_trace has one bandwidth for each worker",
            key="world.bandwidth.per",
            allowed="'worker' with world.device_trace",
            fix="set world.bandwidth.per = 'worker'",
        )
    given = world.bandwidth.uplink != 1.0 or world.bandwidth.downlink != 1.0
    if world.trace is not None and given:
        yield ConfigError(
            "has no effect with world.trace, which has the speeds themselves",
            key="world.bandwidth.uplink",
            allowed="columns uplink and downlink in the trace",
            fix="remove world.bandwidth.uplink and downlink, or world.trace",
        )


def _cosine(experiment: Experiment) -> Iterator[ConfigError]:
    """A cosine ends with the run, so the run has an end in its unit."""
    training = experiment.training
    if training.schedule != "cosine":
        return
    by_time = training.decay_by == "time"
    if by_time != (experiment.horizon is not None):
        unit, end, other = ("time", "horizon", "round") if by_time else ("round", "rounds", "time")
        missing = "horizon" if by_time else "number of rounds"
        yield ConfigError(
            f"is 'cosine' by {unit}, which ends with the run, but the run has no {missing}",
            key="training.schedule",
            allowed="training.decay_by = 'round' with rounds, or 'time' with horizon",
            fix=f"set {end}, or training.decay_by = {other!r}",
        )
    length = experiment.horizon if by_time else experiment.rounds
    if length and training.warmup >= length:
        yield ConfigError(
            f"the value {training.warmup:g} leaves nothing of the run ({length:g}) for the cosine",
            key="training.warmup",
            allowed=f"less than {length:g}",
            fix="lower training.warmup, or make the run longer",
        )


def _accuracy_is_a_share(experiment: Experiment) -> Iterator[ConfigError]:
    goal = experiment.until.accuracy
    if goal is not None and experiment.task.name == "classification" and not 0 < goal <= 1:
        yield ConfigError(
            f"the value {goal:g} is not an accuracy",
            key="until.accuracy",
            allowed="a share above 0 and at most 1",
            fix="write 0.9 for 90 %",
        )


def _lines_of_workers(experiment: Experiment) -> Iterator[ConfigError]:
    for name in ("uplink", "downlink"):
        line = getattr(experiment.world.bandwidth, name)
        if isinstance(line, list) and len(line) != experiment.workers:
            yield ConfigError(
                f"the list has {len(line)} factors, but workers = {experiment.workers}",
                key=f"world.bandwidth.{name}",
                allowed=f"one number for all, {experiment.workers} numbers, or a range: "
                "{low = 0.2, high = 0.5}",
                fix="give one factor for each worker",
                others=("workers",),
            )


def _absent_workers_exist(experiment: Experiment) -> Iterator[ConfigError]:
    for absence in experiment.world.away:
        if absence.worker >= experiment.workers:
            yield ConfigError(
                f"unknown worker {absence.worker}: workers = {experiment.workers}",
                key="world.away",
                allowed=f"workers 0 to {experiment.workers - 1}",
                fix="use one of these, or increase workers",
                others=("workers",),
            )


def _somebody_is_honest(experiment: Experiment) -> Iterator[ConfigError]:
    workers, attackers = experiment.workers, experiment.attack.count(experiment.workers)
    if attackers >= workers:
        yield ConfigError(
            f"{attackers} of {workers} workers would attack, and nobody is left",
            key="attack.share",
            allowed="a share that leaves an honest worker",
            fix="raise workers, lower attack.share, or remove [attack]",
        )


_OPTIMIZER, _SCHEDULE = "training.optimizer", "training.schedule"
_ATTACK, _ROBUST = "attack.kind", "exchange.robust"
_OUTVOTING = ("trimmed_mean", "median", "krum")

# In the order of the sections: of several mistakes the first one is reported.
RULES: tuple[SettingRule, ...] = (
    *(Drops(f"{section}.name", _settings_of_part) for section in COMPONENTS),
    Drops("data.name", _settings_of_data),
    Refuses(_partition),
    Only("data.skew", "data.partition", ("skew",)),
    Only("data.alpha", "data.partition", ("dirichlet", "quantity")),
    Only("data.shards_per_worker", "data.partition", ("shards",)),
    Drops("data.partition", lambda change: ["data.partition_options"]),
    Only("training.beta1", _OPTIMIZER, ("adamw",), number="g"),
    Only("training.beta2", _OPTIMIZER, ("adamw",), number="g"),
    Only("training.epsilon", _OPTIMIZER, ("adamw",), number="g"),
    Only("training.momentum", _OPTIMIZER, ("sgd",), number="g"),
    Only("training.nesterov", _OPTIMIZER, ("sgd",)),
    Only("training.decay", _SCHEDULE, ("exponential",), even_default=True),
    Only("training.decay_seconds", _SCHEDULE, ("exponential",), even_default=True),
    Only("training.milestones", _SCHEDULE, ("step",), even_default=True),
    Only("training.factor", _SCHEDULE, ("step",), even_default=True),
    Only("training.final_share", _SCHEDULE, ("cosine",), even_default=True),
    Refuses(_milestones),
    Only("training.decay_seconds", "training.decay_by", ("time",), number="g"),
    # These are in the other unit.
    Drops("training.decay_by", lambda change: ["training.milestones", "training.warmup"]),
    Refuses(_points_of_the_schedule),
    OneOf(
        "training.local_steps",
        "training.local_epochs",
        allowed="one of training.local_steps and training.local_epochs",
        even_default=True,
        written=False,
    ),
    OneOf(
        "evaluation.every",
        "evaluation.seconds",
        allowed="one of evaluation.every (rounds) and evaluation.seconds (virtual time)",
    ),
    Drops("world.profile", _settings_of_profiles),
    Refuses(_bounds),
    Refuses(_absences),
    Refuses(_one_source_of_speeds),
    Needs("world.trace_repeat", ("world.trace",)),
    Needs("world.availability_speed", ("world.availability_trace",)),
    Needs("world.trace_clients", ("world.device_trace", "world.availability_trace")),
    Recorded(
        "world.device_trace",
        (
            *(f"world.{key}" for key in ("devices", "shuffle_devices", "device", "drift", "floor")),
            *(f"world.bandwidth.{key}" for key in ("low", "high", "correlation", "interval")),
        ),
    ),
    Only("exchange.topk_share", "exchange.compression", ("topk",)),
    Only("exchange.trim", _ROBUST, _OUTVOTING),
    Only("exchange.clip", _ROBUST, ("clip",)),
    Only("exchange.radius", _ROBUST, ("clip",)),
    OneOf(
        "exchange.clip",
        "exchange.radius",
        allowed="one of exchange.clip (in median distances) and exchange.radius",
        has_effect=False,
    ),
    Only("attack.share", _ATTACK, ("sign_flip", "noise", "label_flip")),
    Only("attack.scale", _ATTACK, ("sign_flip", "noise")),
    OneOf(
        "rounds",
        "horizon",
        allowed="one of rounds and horizon (s of virtual time)",
        unset=MOST_ROUNDS,
        written=False,
    ),
    Refuses(_cosine),
    Refuses(_accuracy_is_a_share),
    Replaced(REPLACED_BY_TASKS),
    Refuses(_lines_of_workers),
    Refuses(_absent_workers_exist),
    Refuses(_somebody_is_honest),
    *(
        Added(f"training.{name}")
        for name in (
            *("optimizer", "momentum", "schedule", "factor", "final_share", "warmup", "batches"),
            *("label_smoothing", "nesterov", "weight_decay", "beta1", "beta2", "epsilon"),
            *("clip_norm", "proximal", "optimizer_state"),
        )
    ),
    *(
        Added(f"world.{name}")
        for name in (
            *("bandwidth.during_transfer", "bandwidth.uplink", "bandwidth.downlink"),
            *("bandwidth.jitter", "availability_speed", "trace_clients", "trace_repeat"),
        )
    ),
    *map(Added, ("augmentation", "exchange", "attack", "until")),
)


def check_targets(experiment: Experiment) -> None:
    """Refuse target accuracies that are not shares; another task's metric may be any number.

    Not one of the rules: a record with such targets must still open.
    """
    if experiment.task.name != Experiment.model_fields["task"].default.name:
        return
    for target in experiment.evaluation.targets:
        if not 0 <= target <= 1:
            meant = f"did you mean {target / 100:g}? " if 1 < target <= 100 else ""
            raise ConfigError(
                f"invalid value {target:g}: accuracies are shares, not percent",
                key="evaluation.targets",
                allowed="numbers, each from 0 to 1",
                fix=f"{meant}write 90 % as 0.9",
            )


PENS_KEEPS = 3  # peers, unless algorithm.keep is set


def weak_defence(experiment: Experiment) -> list[str]:
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
