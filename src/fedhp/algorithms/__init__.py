"""One file per algorithm: pure decisions, (state, observation, reports) -> (state, plan).

No tensors, no files, no clock. A user's own algorithm is named by dotted path and runs the
same way; its settings are the fields (or keyword-only parameters) of its class.
"""

from fedhp.algorithms.base import (
    Algorithm,
    AsyncAlgorithm,
    Federation,
    Observation,
    load_algorithm,
)

__all__ = ["Algorithm", "AsyncAlgorithm", "Federation", "Observation", "load_algorithm"]
