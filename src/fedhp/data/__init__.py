"""Data sets: official file formats -> arrays -> one share per worker.

load.py reads and prepares a data set; start there. Readers: idx.py (MNIST, EMNIST), cifar.py,
images.py (folders and zips of images), arrays.py (digits, .npz), on source_files.py and raw.py.
partition.py divides the training samples among the workers (the paper's skew p, Dirichlet,
shards, quantity, IID, natural), own_partition.py by the user's function. fetch.py, download.py
and unpack.py get official files; check.py recognises files on disk.
"""

from __future__ import annotations

from fedhp.data.load import BUILTINS, clear_memory, load_data
from fedhp.data.partition import class_counts, partition

__all__ = ["BUILTINS", "class_counts", "clear_memory", "load_data", "partition"]
