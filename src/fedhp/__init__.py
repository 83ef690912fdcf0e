"""fedhp: decentralized federated learning among unequal participants.

Start with cli/ or api.py, then engine/loop.py, the round loop; docs/design.md shows all packages.
Public names are imported on first use: `import fedhp` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "load_experiment": "fedhp.api",
    "make_experiment": "fedhp.api",
    "run": "fedhp.api",
    "start": "fedhp.api",
    "compare": "fedhp.api",
    "sweep": "fedhp.api",
    "tune": "fedhp.api",
    "open_run": "fedhp.api",
    "show": "fedhp.api",
    "explain": "fedhp.api",
    "export": "fedhp.api",
    "report": "fedhp.api",
    "reproduce": "fedhp.api",
    "whatif": "fedhp.engine.replay.whatif",
    "Experiment": "fedhp.config",
    "FedhpError": "fedhp.errors",
    "Dataset": "fedhp.types",
    "Plan": "fedhp.types",
    "Decision": "fedhp.types",
    "Action": "fedhp.types",
    "LinkVerdict": "fedhp.types",
    "PeerScoring": "fedhp.exchange",
    "NeighborMixing": "fedhp.exchange",
    "DirectedMixing": "fedhp.exchange",
    "WeightedMixing": "fedhp.exchange",
    "GroupAverage": "fedhp.exchange",
    "ServerAverage": "fedhp.exchange",
    "DisjointGroups": "fedhp.exchange",
    "ExchangeSequence": "fedhp.exchange",
    "Delivery": "fedhp.exchange.mailbox",
    "Gathering": "fedhp.exchange.mailbox",
    "Reports": "fedhp.types",
    "RoundRecord": "fedhp.types",
    "Topology": "fedhp.types",
    "ChangingTopology": "fedhp.types",
    "Federation": "fedhp.algorithms",
    "Observation": "fedhp.algorithms",
    "Task": "fedhp.learn.task",
}

__all__ = [
    "Action",
    "ChangingTopology",
    "Dataset",
    "Decision",
    "Delivery",
    "DirectedMixing",
    "DisjointGroups",
    "ExchangeSequence",
    "Experiment",
    "Federation",
    "FedhpError",
    "Gathering",
    "GroupAverage",
    "LinkVerdict",
    "NeighborMixing",
    "Observation",
    "PeerScoring",
    "Plan",
    "Reports",
    "RoundRecord",
    "ServerAverage",
    "Task",
    "Topology",
    "WeightedMixing",
    "__version__",
    "compare",
    "explain",
    "export",
    "load_experiment",
    "make_experiment",
    "open_run",
    "report",
    "reproduce",
    "run",
    "show",
    "start",
    "sweep",
    "tune",
    "whatif",
]

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
