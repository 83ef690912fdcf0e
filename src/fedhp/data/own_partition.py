"""A user's own partition, named by a dotted path: called, and its result checked.

It is a function (labels, workers, seed, *, settings...) that returns one array of sample indices
per worker, or the worker of each sample (-1: not used). The result is checked before anything
is trained; an error names the file and line of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.components import check_settings, resolve
from fedhp.config import DataConfig
from fedhp.errors import ConfigError, FedhpError, definition_place, user_place
from fedhp.types import IntArray

UNUSED = -1  # the owner of a sample that no worker gets
_ALLOWED = (
    "a list of index arrays, one per worker, or an array with the worker of each sample (-1:"
    " not used)"
)


def own_partition(
    targets: NDArray[Any], workers: int, *, config: DataConfig, seed: int
) -> IntArray:
    """The worker of each sample [n], -1 where no worker gets it; no worker is without a sample."""
    function = resolve(config.partition, {}, key="data.partition")
    settings = check_settings(
        function, config.partition_options or {}, prefix="data.partition_options"
    )
    call = _Call(function, config.partition, settings)
    owner = call.owners(targets, workers, seed=seed)
    if not np.array_equal(owner, call.owners(targets, workers, seed=seed)):
        raise call.refused(
            "two calls with the same seed return different divisions",
            allowed="the same division for the same seed",
            fix="draw random numbers from np.random.default_rng(seed) only",
        )
    sizes = np.bincount(owner[owner != UNUSED], minlength=workers)
    if not sizes.all():
        empty = np.flatnonzero(sizes == 0)
        raise call.refused(
            f"{len(empty)} of {workers} workers get no sample (the first is worker {empty[0]})",
            allowed="at least one sample for every worker",
            fix="give every worker a sample, or lower workers",
        )
    return owner


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[..., Any]
    name: str
    settings: dict[str, Any]

    def owners(self, targets: NDArray[Any], workers: int, *, seed: int) -> IntArray:
        labels = targets.view()
        labels.setflags(write=False)
        try:
            result = self.function(labels, workers, seed, **self.settings)
        except (FedhpError, MemoryError):
            raise
        except (Exception, SystemExit) as error:  # the user's code may fail in any way
            text = " ".join(str(error).split())
            raise self.refused(
                f"fails with {type(error).__name__}{': ' + text if text else ''}",
                location=user_place(error),
                allowed="a function (labels, workers, seed, *, settings...)",
                fix="correct the function, or change data.partition_options",
            ) from error
        if isinstance(result, np.ndarray) and result.ndim == 1 and result.dtype != object:
            return self._from_owners(result, workers, samples=len(targets))
        if not isinstance(result, np.ndarray | list | tuple):
            problem = f"returns {_kind(result)}"
            raise self.refused(problem, allowed=_ALLOWED, fix="return one of these")
        if len(result) and all(np.isscalar(entry) for entry in result):
            return self._from_owners(np.asarray(result), workers, samples=len(targets))
        return self._from_parts(list(result), workers, samples=len(targets))

    def _from_owners(self, owner: NDArray[Any], workers: int, *, samples: int) -> IntArray:
        if owner.dtype.kind not in "iu" or len(owner) != samples:
            raise self.refused(
                f"returns {len(owner)} values of type {owner.dtype}, for {samples} samples",
                allowed=_ALLOWED,
                fix="return one worker number per sample",
            )
        outside = np.flatnonzero((owner < UNUSED) | (owner >= workers))
        if outside.size:
            sample = int(outside[0])
            raise self.refused(
                f"gives sample {sample} to the unknown worker {owner[sample]}",
                allowed=f"workers 0 to {workers - 1}, or -1 for samples that are not used",
                fix="correct the worker numbers",
            )
        return owner.astype(np.int64)

    def _from_parts(self, parts: list[Any], workers: int, *, samples: int) -> IntArray:
        if len(parts) != workers:
            raise self.refused(
                f"returns {len(parts)} parts for {workers} workers",
                allowed=_ALLOWED,
                fix=f"return a list of {workers} arrays",
            )
        owner = np.full(samples, UNUSED, dtype=np.int64)
        for worker, part in enumerate(parts):
            indices = self._indices(part, worker, samples=samples)
            values, counts = np.unique(indices, return_counts=True)
            again = values[(counts > 1) | (owner[values] != UNUSED)]
            if again.size:
                sample = int(again[0])
                twice = f"to worker {worker} twice"
                both = f"to the workers {owner[sample]} and {worker}"
                raise self.refused(
                    f"gives sample {sample} {twice if owner[sample] == UNUSED else both}",
                    allowed="every sample at most once",
                    fix="remove the repeated index",
                )
            owner[values] = worker
        return owner

    def _indices(self, part: Any, worker: int, *, samples: int) -> IntArray:
        try:
            indices = np.asarray(part)
        except (TypeError, ValueError):  # lists of different lengths
            indices = np.empty((0, 0))
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            mask = indices.dtype.kind == "b"
            raise self.refused(
                f"the part of worker {worker} is {_kind(part)}",
                allowed="an array [k] of sample indices (whole numbers)",
                fix="use np.flatnonzero(mask)" if mask else "return a list of index arrays",
            )
        outside = indices[(indices < 0) | (indices >= samples)]
        if outside.size:
            raise self.refused(
                f"the part of worker {worker} has the index {outside[0]}",
                allowed=f"0 to {samples - 1}: there are {samples} training samples",
                fix="correct the indices",
            )
        return indices.astype(np.int64)

    def refused(self, problem: str, *, allowed: str, fix: str, location: str = "") -> ConfigError:
        location = location or definition_place(self.function)
        where = f"{self.name!r} ({location})" if location else repr(self.name)
        return ConfigError(f"{where}: {problem}", key="data.partition", allowed=allowed, fix=fix)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return type(value).__name__
