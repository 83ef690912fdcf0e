"""How many workers may send poisoned models, and how many peers it takes to withstand them."""

from __future__ import annotations


def poisoned_of(workers: int, share: float) -> int:
    """How many of so many workers that share is, at least one."""
    return max(1, int(share * workers + 1e-9))


def least_peers(workers: int, poisoned: int, *, rule: str) -> int:
    """With how many peers a rule withstands so many poisoned ones, whoever they are."""
    return min(2 * poisoned, workers - 1) if rule in ("trimmed_mean", "median") else 0
