"""Which worker gets which samples: the paper's skew p, Dirichlet, shards, quantity, IID, natural.

Every sample goes to exactly one worker (in a user's own partition: at most one) and every worker
gets at least one; the same seed gives the same split. Internally a split is `owner` [n]: the
worker of each sample.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.components import is_dotted
from fedhp.config import DataConfig
from fedhp.data.arrays import group_numbers
from fedhp.data.own_partition import UNUSED, own_partition
from fedhp.errors import ConfigError
from fedhp.seeds import Purpose, generator
from fedhp.types import BoolArray, FloatArray, IntArray

HOMES = 3  # home workers of a class
# Purposes of the random streams of a split; part of every result.
_ORDER, _TIES, _SHARES, _REPAIR = range(4)


def partition(
    dataset_targets: NDArray[Any],
    *,
    classes: int | None,
    workers: int,
    config: DataConfig,
    seed: int,
    groups: IntArray | None = None,
) -> list[IntArray]:
    """Ascending sample indices of each worker; disjoint, none empty; complete, unless the user's.

    groups: whose sample each one is, for the natural partition.
    """
    samples = len(dataset_targets)
    if workers > samples:
        raise ConfigError(
            f"{workers} workers cannot share {samples} training samples",
            key="workers",
            allowed=f"1 to {samples}, so that every worker has a sample",
            fix="lower workers, or use more data (data.train_images)",
        )
    if is_dotted(config.partition):
        owner = own_partition(dataset_targets, workers, config=config, seed=seed)
    else:
        owner = _Division(dataset_targets, classes, groups, workers, config, seed).owner()
    _fill_empty(owner, workers, seed=seed)
    order = np.argsort(owner, kind="stable")
    order = order[np.count_nonzero(owner == UNUSED) :]
    cuts = np.cumsum(np.bincount(owner[order], minlength=workers))[:-1]
    return [part.astype(np.int64) for part in np.split(order, cuts)]


def class_counts(parts: Sequence[IntArray], targets: NDArray[np.int64], classes: int) -> IntArray:
    """How many samples of each class each worker has, [N, classes]."""
    return np.stack([np.bincount(targets[part], minlength=classes) for part in parts])


def home_workers(label: int, workers: int) -> list[int]:
    """The three home workers of a class (all workers, if there are at most 3)."""
    return sorted({(HOMES * label + k) % workers for k in range(HOMES)})


def skew_shares(label: int, workers: int, *, skew: float | None) -> FloatArray:
    """The share of a class that each worker gets under the paper's p, [N]."""
    if workers <= HOMES:
        return np.full(workers, 1 / workers)
    p = HOMES / workers if skew is None else skew
    shares = np.full(workers, (1 - p) / (workers - HOMES))
    shares[home_workers(label, workers)] = p / HOMES
    return shares


def apportion(
    total: int, shares: FloatArray, *, prior: IntArray, rng: np.random.Generator
) -> IntArray:
    """Whole numbers closest to total * shares (largest remainder).

    Of equal remainders, the one with the smallest count so far (prior) is rounded up, then one
    at random; remainders are rounded, so that floating-point noise decides nothing.
    """
    quota = total * shares
    counts = np.floor(np.round(quota, 6)).astype(np.int64)
    remainder = np.round(quota - counts, 6)
    order = np.lexsort((rng.random(len(shares)), prior, -remainder))
    counts[order[: total - int(counts.sum())]] += 1
    return counts


@dataclass(frozen=True, slots=True)
class _Division:
    """What is divided among how many, and by which rule."""

    targets: NDArray[Any]
    classes: int | None
    groups: IntArray | None
    workers: int
    config: DataConfig
    seed: int

    def owner(self) -> IntArray:
        """The worker of each sample, by the rule that the settings name."""
        by_name: dict[str, Callable[[], IntArray]] = {
            "skew": self._skew,
            "dirichlet": self._dirichlet,
            "shards": self._shards,
            "natural": self._natural,
            "quantity": lambda: self._by_size(self._shares(self._rng(_SHARES))),
        }
        return by_name.get(self.config.partition, self._equal)()

    def _rng(self, *purpose: int) -> np.random.Generator:
        return generator(self.seed, Purpose.PARTITION, *purpose)

    def _equal(self) -> IntArray:
        return self._by_size(np.full(self.workers, 1 / self.workers))

    def _skew(self) -> IntArray:
        skew, workers, classes = self.config.skew, self.workers, self.classes
        # with at most 3 workers every worker is a home of every class, for any p
        as_iid = skew is None or workers <= HOMES or abs(skew - HOMES / workers) < 1e-9
        if classes is None and skew is None:
            return self._equal()
        if classes is None or (classes < 2 and not as_iid):
            raise ConfigError(
                f"the value {skew} needs classes, but the data have"
                f" {'none (values to predict)' if classes is None else 'only one'}",
                key="data.skew",
                allowed="no skew, for data of fewer than 2 classes",
                fix="remove data.skew, or set data.partition to 'iid', 'quantity' or 'shards'",
            )
        shares = np.stack([skew_shares(label, workers, skew=skew) for label in range(classes)])
        owner = self._by_class(shares)
        held = np.bincount(owner, minlength=workers)
        if not as_iid and not held.all():
            self._refuse_empty(held == 0, shares)
        return owner

    def _refuse_empty(self, empty: BoolArray, shares: FloatArray) -> None:
        """Refuse workers that the rule leaves empty; those left empty by rounding are filled
        later."""
        classes, workers = shares.shape
        sizes = np.bincount(self.targets, minlength=classes)
        homes = np.zeros(workers, dtype=np.bool_)
        for label in np.flatnonzero(sizes):
            homes[home_workers(int(label), workers)] = True
        due = np.round(sizes @ shares, 6)
        left_out = np.flatnonzero(empty & (~homes | (due == 0)))
        if left_out.size:
            raise ConfigError(
                f"the value {self.config.skew} leaves {left_out.size} of {workers} workers without"
                f" a sample (the first is worker {left_out[0]}): too few classes for this skew."
                f" Each class has {HOMES} home workers, and {np.count_nonzero(sizes)} classes reach"
                f" {np.count_nonzero(homes)} workers",
                key="data.skew",
                allowed=f"a value that leaves samples for the others, or at most {HOMES * classes}"
                " workers",
                fix=f"move data.skew towards {HOMES / workers:.3g} (IID), lower workers, or set"
                " data.partition = 'dirichlet'",
            )

    def _dirichlet(self) -> IntArray:
        if self.classes is None:
            raise ConfigError(
                "the value 'dirichlet' needs classes, but the data have none (values to predict)",
                key="data.partition",
                allowed="iid, quantity, shards (by the value to predict), or skew without"
                " data.skew",
                fix="set data.partition to one of these",
            )
        rng = self._rng(_SHARES)
        return self._by_class(np.stack([self._shares(rng) for _ in range(self.classes)]))

    def _shares(self, rng: np.random.Generator) -> FloatArray:
        """Symmetric Dirichlet; its limits where floating point ends, never NaN."""
        workers, alpha = self.workers, self.config.alpha
        shares = rng.dirichlet(np.full(workers, alpha))
        only = int(rng.integers(workers))
        if np.isfinite(shares).all() and abs(shares.sum() - 1) < 1e-6:
            return np.asarray(shares, dtype=np.float64)
        if alpha > 1:
            return np.full(workers, 1 / workers)
        return np.asarray(np.arange(workers) == only, dtype=np.float64)

    def _shards(self) -> IntArray:
        """Samples sorted by class (or value), cut into equal shards, assigned at random."""
        samples, each, workers = len(self.targets), self.config.shards_per_worker, self.workers
        shards = workers * each
        if shards > samples:
            raise ConfigError(
                f"{workers} workers with {each} shards each need {shards} samples, but there"
                f" are {samples}",
                key="data.shards_per_worker",
                allowed=f"1 to {samples // workers}",
                fix="lower data.shards_per_worker or workers",
            )
        shuffled = self._rng(_ORDER).permutation(samples)
        values = self.targets.reshape(samples, -1)[shuffled, 0]
        order = shuffled[np.argsort(values, kind="stable")]
        owners = self._rng(_SHARES).permutation(shards) % workers
        owner = np.empty(samples, dtype=np.int64)
        sizes = samples // shards + (np.arange(shards) < samples % shards)
        owner[order] = np.repeat(owners, sizes)
        return owner

    def _natural(self) -> IntArray:
        """All samples of a user on one worker; users dealt in random order, equally many to
        each."""
        if self.groups is None:
            raise ConfigError(
                "the value 'natural' needs to know whose sample each one is, but the data do not"
                " say",
                key="data.partition",
                allowed="data with user ids: the key groups (or users) in an .npz file, or"
                " Dataset(groups=...) of your own loader or task",
                fix="add the ids to the data, or choose another partition",
            )
        samples, workers = len(self.targets), self.workers
        numbers = group_numbers(self.groups, samples=samples, name="groups", where="the data set")
        users = int(numbers.max()) + 1
        if users < workers:
            raise ConfigError(
                f"{workers} workers cannot share the samples of {users} users: with data.partition"
                " = 'natural' the samples of a user stay on one worker",
                key="workers",
                allowed=f"1 to {users}",
                fix=f"set workers to at most {users}, or choose another data.partition",
                others=("data.partition",),
            )
        worker_of_user = np.empty(users, dtype=np.int64)
        worker_of_user[self._rng(_ORDER).permutation(users)] = np.arange(users) % workers
        return worker_of_user[numbers]

    def _by_size(self, shares: FloatArray) -> IntArray:
        """Samples in random order, cut into parts of these shares."""
        samples, none = len(self.targets), np.zeros(len(shares), dtype=np.int64)
        sizes = apportion(samples, shares, prior=none, rng=self._rng(_TIES))
        owner = np.empty(samples, dtype=np.int64)
        owner[self._rng(_ORDER).permutation(samples)] = np.repeat(np.arange(len(shares)), sizes)
        return owner

    def _by_class(self, shares: FloatArray) -> IntArray:
        """Each class divided by its row of shares [classes, N]."""
        classes, workers = shares.shape
        owner = np.empty(len(self.targets), dtype=np.int64)
        held = np.zeros(workers, dtype=np.int64)
        by_class = np.argsort(self.targets, kind="stable")
        ends = np.cumsum(np.bincount(self.targets, minlength=classes))
        for label, members in enumerate(np.split(by_class, ends[:-1])):
            ties = self._rng(_TIES, label)
            counts = apportion(len(members), shares[label], prior=held, rng=ties)
            # the order of a class does not depend on the shares: splits of one seed are similar
            order = self._rng(_ORDER, label).permutation(len(members))
            owner[members[order]] = np.repeat(np.arange(workers), counts)
            held += counts
        return owner


def _fill_empty(owner: IntArray, workers: int, *, seed: int) -> None:
    """Give each worker without a sample one sample of the worker that has most."""
    sizes = np.bincount(owner[owner != UNUSED], minlength=workers)
    empty = np.flatnonzero(sizes == 0)
    if not empty.size:
        return
    rng = generator(seed, Purpose.PARTITION, _REPAIR)
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    ends = np.cumsum(sizes)
    largest = [(-int(size), worker) for worker, size in enumerate(sizes) if size > 1]
    heapq.heapify(largest)
    for worker in empty.tolist():
        size, donor = heapq.heappop(largest)
        ends[donor] -= 1
        owner[order[ends[donor]]] = worker
        heapq.heappush(largest, (size + 1, donor))
