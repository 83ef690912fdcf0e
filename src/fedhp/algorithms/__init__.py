"""One file per algorithm: pure decisions, (state, observation, reports) -> (state, plan).

No tensors, no files, no clock. A user's algorithm is named by its dotted path and runs the same
way; its settings are the fields (or keyword-only parameters) of its class. Read first: base.py
(the protocol) and traits.py (what an algorithm declares of itself), then dpsgd.py. fedhp.py plans
with pace.py (steps) and search.py (topology), which asks walk.py which links may go; walk.py keeps
a spanning forest (forest.py). fedhp_plus.py chooses groups, group_tree.py their trees.
"""

from fedhp.algorithms.base import (
    Algorithm,
    AsyncAlgorithm,
    Federation,
    Observation,
    Range,
    load_algorithm,
)
from fedhp.algorithms.traits import Traits

__all__ = [
    "Algorithm",
    "AsyncAlgorithm",
    "Federation",
    "Observation",
    "Range",
    "Traits",
    "load_algorithm",
]
