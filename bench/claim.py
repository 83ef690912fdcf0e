"""What a claim is: the measurements of a repeat, a ratio computed from them, and its bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Results = Mapping[str, Mapping[str, float]]  # of one repeat: measurement -> its numbers


@dataclass(frozen=True, slots=True)
class Measurement:
    """One process of a repeat; peer: the venv whose Python runs it."""

    key: str
    program: str
    options: tuple[str, ...] = ()
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio and its bar (None: reported only). `measured` gives the numbers behind it."""

    name: str
    what: str
    ratio: Callable[[Results], float]
    bar: float | None = None
    unit: str = "x"
    needs: tuple[str, ...] = ()  # measurements
    measured: Callable[[Results], dict[str, float]] = lambda results: {}
    limit: str = ""  # of the hardware
    share: Callable[[Results], float] | None = None  # of that limit
    note: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Claims that share measurements, run together in every repeat."""

    name: str
    measurements: tuple[Measurement, ...]
    claims: tuple[Claim, ...]


GEMM = Measurement("gemm", "gemm")
GEMM_TWO_THREADS = Measurement("gemm2", "gemm", ("--threads", "2"))


def peak(key: str, threads: int) -> Claim:
    return Claim(
        f"gemm-peak-{threads}-thread{'s' if threads > 1 else ''}",
        "the best fp32 matrix product of several sizes",
        lambda results: results[key]["flops_per_second"] / 1e9,
        unit="GFLOP/s",
        needs=(key,),
        measured=lambda results: {"best_size": results[key]["size"]},
    )
