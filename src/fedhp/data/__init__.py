"""The data room: official file formats -> arrays -> one share per worker.

load_data reads and prepares a data set; partition deals its training samples out
(the paper's skew p, Dirichlet, shards, quantity, IID).
"""

from __future__ import annotations

from fedhp.data.load import BUILTINS, clear_memory, load_data
from fedhp.data.partition import class_counts, partition

__all__ = ["BUILTINS", "class_counts", "clear_memory", "load_data", "partition"]
