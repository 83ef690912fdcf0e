"""The experiment: one TOML file plus key=value overrides, validated in one place.

schema.py    sections, keys, types, bounds, defaults
rules.py     what settings need of each other: refused, dropped by an override, not written
load.py      files, tables and overrides in; tables out
origins.py   where a setting was given, for errors
own_parts.py the user's own code that an experiment names

Validated settings are trusted.
"""

from fedhp.config.load import (
    FREE_ON_RESUME,
    NONE_IS_A_VALUE,
    UNSET,
    Draft,
    apply_changes,
    differences,
    load,
    log_notes,
    parse,
    parse_change,
    to_tables,
)
from fedhp.config.origins import UNKNOWN, Origins
from fedhp.config.own_parts import (
    PART_KEYS,
    check_origin,
    check_trusted,
    own_modules,
    own_parts,
)
from fedhp.config.rules import REPLACED_BY_TASKS, check_targets
from fedhp.config.schema import (
    MOST_ROUNDS,
    MOST_WORKERS,
    PARTITIONS,
    PROFILES,
    AbsenceConfig,
    AttackConfig,
    AugmentationConfig,
    BandwidthConfig,
    ClusterConfig,
    ComponentConfig,
    DataConfig,
    DeviceConfig,
    EvaluationConfig,
    ExchangeConfig,
    Experiment,
    LineConfig,
    TrainingConfig,
    UntilConfig,
    WorldConfig,
)

__all__ = [
    "FREE_ON_RESUME",
    "MOST_ROUNDS",
    "MOST_WORKERS",
    "NONE_IS_A_VALUE",
    "PARTITIONS",
    "PART_KEYS",
    "PROFILES",
    "REPLACED_BY_TASKS",
    "UNKNOWN",
    "UNSET",
    "AbsenceConfig",
    "AttackConfig",
    "AugmentationConfig",
    "BandwidthConfig",
    "ClusterConfig",
    "ComponentConfig",
    "DataConfig",
    "DeviceConfig",
    "Draft",
    "EvaluationConfig",
    "ExchangeConfig",
    "Experiment",
    "LineConfig",
    "Origins",
    "TrainingConfig",
    "UntilConfig",
    "WorldConfig",
    "apply_changes",
    "check_origin",
    "check_targets",
    "check_trusted",
    "differences",
    "load",
    "log_notes",
    "own_modules",
    "own_parts",
    "parse",
    "parse_change",
    "to_tables",
]
