"""fedhp: decentralized federated learning among unequal participants.

Start with cli/ or api.py, then engine/loop.py, the round loop; docs/design.md shows all packages.
Public names are imported on first use: `import fedhp` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    name: module
    for module, names in {
        "fedhp.api": "load_experiment make_experiment run start compare sweep tune open_run show "
        "explain export report reproduce",
        "fedhp.engine.replay.whatif": "whatif",
        "fedhp.config": "Experiment",
        "fedhp.errors": "FedhpError",
        "fedhp.types": "Dataset Plan Decision Action LinkVerdict Reports RoundRecord Topology "
        "ChangingTopology",
        "fedhp.exchange": "PeerScoring NeighborMixing DirectedMixing WeightedMixing GroupAverage "
        "ServerAverage DisjointGroups ExchangeSequence",
        "fedhp.exchange.mailbox": "Delivery Gathering",
        "fedhp.algorithms": "Federation Observation",
        "fedhp.learn.task": "Task",
    }.items()
    for name in names.split()
}

__all__ = ["Action", "ChangingTopology", "Dataset", "Decision", "Delivery", "DirectedMixing"]
__all__ += ["DisjointGroups", "ExchangeSequence", "Experiment", "Federation", "FedhpError"]
__all__ += ["Gathering", "GroupAverage", "LinkVerdict", "NeighborMixing", "Observation"]
__all__ += ["PeerScoring", "Plan", "Reports", "RoundRecord", "ServerAverage", "Task", "Topology"]
__all__ += ["WeightedMixing", "__version__", "compare", "explain", "export", "load_experiment"]
__all__ += ["make_experiment", "open_run", "report", "reproduce", "run", "show", "start", "sweep"]
__all__ += ["tune", "whatif"]

if TYPE_CHECKING:
    from fedhp.algorithms import Federation, Observation
    from fedhp.api import (
        compare,
        explain,
        export,
        load_experiment,
        make_experiment,
        open_run,
        report,
        reproduce,
        run,
        show,
        start,
        sweep,
        tune,
    )
    from fedhp.config import Experiment
    from fedhp.engine.replay.whatif import whatif
    from fedhp.errors import FedhpError
    from fedhp.exchange import (
        DirectedMixing,
        DisjointGroups,
        ExchangeSequence,
        GroupAverage,
        NeighborMixing,
        PeerScoring,
        ServerAverage,
        WeightedMixing,
    )
    from fedhp.exchange.mailbox import Delivery, Gathering
    from fedhp.learn.task import Task
    from fedhp.types import (
        Action,
        ChangingTopology,
        Dataset,
        Decision,
        LinkVerdict,
        Plan,
        Reports,
        RoundRecord,
        Topology,
    )


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedhp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
