"""What a claim is: pieces that a repeat runs, a ratio made of them, and its bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Found = Mapping[str, Mapping[str, float]]  # of one repeat: piece -> what it measured


@dataclass(frozen=True, slots=True)
class Piece:
    """One process of a repeat; peer: the venv whose Python runs it."""

    key: str
    program: str
    options: tuple[str, ...] = ()
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio and its bar (none: reported only). `measured` gives the figures behind it."""

    name: str
    what: str
    ratio: Callable[[Found], float]
    bar: float | None = None
    unit: str = "x"
    needs: tuple[str, ...] = ()  # pieces
    measured: Callable[[Found], dict[str, float]] = lambda found: {}
    limit: str = ""  # what physics allows, in words
    share: Callable[[Found], float] | None = None  # of that limit
    note: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Claims that share pieces, run together in every repeat."""

    name: str
    pieces: tuple[Piece, ...]
    claims: tuple[Claim, ...]


GEMM = Piece("gemm", "gemm")
GEMM_BOTH = Piece("gemm2", "gemm", ("--threads", "2"))


def peak(key: str, threads: int) -> Claim:
    return Claim(
        f"gemm-peak-{threads}-thread{'s' if threads > 1 else ''}",
        "the best fp32 matrix product of several sizes",
        lambda found: found[key]["flops_per_second"] / 1e9,
        unit="GFLOP/s",
        needs=(key,),
        measured=lambda found: {"best_size": found[key]["size"]},
    )
