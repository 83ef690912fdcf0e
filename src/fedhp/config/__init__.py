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
from fedhp.config.own_parts import (
    check_origin,
    check_trusted,
    own_modules,
    own_parts,
)
from fedhp.config.rules import check_targets
from fedhp.config.schema import (
    MOST_WORKERS,
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

# Of the schema:
__all__ = ["MOST_WORKERS", "AbsenceConfig", "AttackConfig"]
__all__ += ["AugmentationConfig", "BandwidthConfig", "ClusterConfig", "ComponentConfig"]
__all__ += ["DataConfig", "DeviceConfig", "EvaluationConfig", "ExchangeConfig", "Experiment"]
__all__ += ["LineConfig", "TrainingConfig", "UntilConfig", "WorldConfig"]
# Of the others:
__all__ += ["FREE_ON_RESUME"]
__all__ += ["UNSET", "Draft", "apply_changes", "check_origin", "check_targets"]
__all__ += ["check_trusted", "differences", "load", "log_notes", "own_modules", "own_parts"]
__all__ += ["parse", "parse_change", "to_tables"]
