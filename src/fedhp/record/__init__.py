"""What a run leaves behind, and how to read it.

Read first: store.py (the SQLite record, with its tables), then checkpoint.py (resuming) and
reader.py (what reports read). links.py selects the links that are recorded, tensors.py reads and
writes arrays, models.py makes torch modules of them, measured.py and statistics.py evaluate runs,
lock.py keeps processes apart.
"""
