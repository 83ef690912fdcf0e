"""The limits of this machine, measured in the same repeats as the claims."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

SQUARES = (384, 512, 768, 1024, 1536, 2048)
COPY_BYTES = 256 << 20


def gemm_peak(*, threads: int, seconds: float) -> dict[str, float]:
    """The best fp32 product of several sizes, FLOP/s; CPU time for one thread, else wall time."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    best, best_size = 0.0, 0
    for size in SQUARES:
        left, right = torch.randn(size, size), torch.randn(size, size)
        out = torch.empty(size, size)

        def product(
            left: torch.Tensor = left, right: torch.Tensor = right, out: torch.Tensor = out
        ) -> None:
            torch.mm(left, right, out=out)

        rate = 2.0 * size**3 / _fastest(product, clock, seconds=seconds / len(SQUARES))
        if rate > best:
            best, best_size = rate, size
    return {"flops_per_second": best, "size": best_size}


def copy_bandwidth(*, threads: int, seconds: float) -> dict[str, float]:
    """Bytes per second read and written by a copy far larger than the caches."""
    torch.set_num_threads(threads)
    source, target = torch.ones(COPY_BYTES // 4), torch.zeros(COPY_BYTES // 4)
    spent = _fastest(lambda: target.copy_(source), time.perf_counter, seconds=seconds)
    return {"bytes_per_second": 2 * COPY_BYTES / spent}


def _fastest(action: Callable[[], object], clock: Callable[[], float], *, seconds: float) -> float:
    """The least time of one call; grouped, so that the clock's resolution does not matter."""
    action()
    started = clock()
    action()
    calls = max(1, round(0.02 / max(clock() - started, 1e-6)))
    least, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = clock()
        for _ in range(calls):
            action()
        least = min(least, (clock() - started) / calls)
    return least
