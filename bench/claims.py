"""The claims: which pieces a repeat runs, how a ratio is made of them, and its bar.

A bar is the only number written down here; everything else is measured. For a claim with an
upper limit (a time, an exponent) the ratio is allowed / measured, and its bar is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bench.work import (
    EVALUATE_EVERY,
    TEST_IMAGES,
    WORKERS,
    image_flops,
    local_steps,
    step_flops,
)

Found = Mapping[str, Mapping[str, float]]  # of one repeat: piece -> what it measured
PLAN_SECONDS = {30: 0.020, 100: 0.100, 300: 0.5, 1000: 5.0}
GROWTH = 1.2
CNN_PARAMETERS = 1_690_046


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


def _rounds(found: Found, side: str, *, evaluation: str) -> float:
    """Seconds per round of a side, with its share of an evaluation ("", "evaluation" or
    "mean_evaluation"); of a side with several thread settings, its fastest."""
    sides = [key for key in found if key == side or key.startswith(f"{side}-")]
    return min(
        found[key]["round"]
        + (found[key].get(evaluation, found[key].get("evaluation", 0.0)) / EVALUATE_EVERY)
        * bool(evaluation)
        for key in sides
    )


def _versus(
    model: str,
    peer: str,
    bar: float | None,
    *,
    evaluation: str,
    limit: str,
    share: Callable[[Found], float],
    note: str,
    needs: tuple[str, ...],
) -> Claim:
    def ratio(found: Found) -> float:
        theirs = _rounds(found, peer, evaluation=evaluation)
        return theirs / _rounds(found, "ours", evaluation=evaluation)

    def measured(found: Found) -> dict[str, float]:
        return {
            "ours_seconds": _rounds(found, "ours", evaluation=evaluation),
            f"{peer}_seconds": _rounds(found, peer, evaluation=evaluation),
        }

    label = {"cnn": "CNN", "mlp": "MLP 784-128-10", "logistic": "logistic regression"}[model]
    tested = {"evaluation": "all models", "mean_evaluation": "one model"}.get(evaluation, "")
    detail = f", {tested} tested every {EVALUATE_EVERY} rounds" if tested else ""
    if model == "cnn" and not evaluation:
        detail = ", no evaluation"
    suffix = {"evaluation": "", "mean_evaluation": "-one-model-tested"}.get(
        evaluation, "-no-evaluation" if model == "cnn" else ""
    )
    return Claim(
        name=f"{model}-rounds-vs-{peer}{suffix}",
        what=f"{label}, {WORKERS} workers, whole rounds{detail}, wall time vs {peer}",
        ratio=ratio,
        bar=bar,
        needs=needs,
        measured=measured,
        limit=limit,
        share=share,
        note=note,
    )


def _peak(key: str, threads: int) -> Claim:
    return Claim(
        f"gemm-peak-{threads}-thread{'s' if threads > 1 else ''}",
        "the best fp32 matrix product of several sizes",
        lambda found: found[key]["flops_per_second"] / 1e9,
        unit="GFLOP/s",
        needs=(key,),
        measured=lambda found: {"best_size": found[key]["size"]},
    )


def _cnn_step() -> Group:
    def share(found: Found) -> float:
        rate = step_flops("cnn") / found["ours"]["seconds"]
        return rate / found["gemm"]["flops_per_second"]

    def without_padding(found: Found) -> float:
        return share(found) * step_flops("cnn", on_padding=False) / step_flops("cnn")

    limit = "fp32 GEMM peak of one thread"
    return Group(
        "cnn-step",
        (GEMM, Piece("ours", "ours-steps"), Piece("naive", "naive-steps")),
        (
            Claim(
                "cnn-step-vs-naive",
                "CNN, batch 32, one thread: CPU time of a training step vs naive PyTorch",
                lambda found: found["naive"]["seconds"] / found["ours"]["seconds"],
                1.2,
                needs=("ours", "naive"),
                measured=lambda found: {
                    "ours_seconds": found["ours"]["seconds"],
                    "naive_seconds": found["naive"]["seconds"],
                },
                limit=limit,
                share=share,
            ),
            Claim(
                "cnn-step-share-of-gemm-peak",
                "CNN, batch 32, one thread: FLOP/s of a training step vs GEMM peak",
                share,
                0.58,
                unit="of peak",
                needs=("ours", "gemm"),
                measured=lambda found: {
                    "gflops": step_flops("cnn") / found["ours"]["seconds"] / 1e9,
                    "gemm_peak_gflops": found["gemm"]["flops_per_second"] / 1e9,
                    "share_without_products_on_padding": without_padding(found),
                },
                limit=limit,
                share=share,
                note="products with the zero padding are counted, as FLOP counters do",
            ),
            _peak("gemm", 1),
        ),
    )


def _cnn_rounds() -> Group:
    flops = sum(local_steps("cnn")) * step_flops("cnn")
    tested = (WORKERS + 1) * TEST_IMAGES * image_flops("cnn") / EVALUATE_EVERY

    def share(found: Found) -> float:
        spent = _rounds(found, "ours", evaluation="evaluation")
        return (flops + tested) / spent / found["gemm2"]["flops_per_second"]

    def share_training(found: Found) -> float:
        spent = _rounds(found, "ours", evaluation="")
        return flops / spent / found["gemm2"]["flops_per_second"]

    return Group(
        "cnn-rounds",
        (
            Piece("ours", "ours-rounds"),
            Piece("gossipy-1", "bench.peers.gossipy_round", ("--threads", "1"), "gossipy"),
            Piece("gossipy-2", "bench.peers.gossipy_round", ("--threads", "2"), "gossipy"),
            Piece("flower", "bench.peers.flower_round", (), "flower"),
            GEMM_BOTH,
        ),
        (
            *_cnn_versus(share, share_training),
            _peak("gemm2", 2),
        ),
    )


def _cnn_versus(
    share: Callable[[Found], float], share_training: Callable[[Found], float]
) -> list[Claim]:
    limit = "fp32 GEMM peak of two threads"
    gossipy = "gossipy at its faster thread setting (1 or 2); it merges with one peer, we with 6"
    flower = "Flower without start-up and first round"
    one = f"{flower}; both test one model, the global one and our mean"
    all_of_ours = f"{flower}; it tests its one global model, we all 31"
    rows = (
        ("gossipy", "evaluation", 2.0, gossipy),
        ("flower", "mean_evaluation", 3.0, one),
        ("flower", "evaluation", None, all_of_ours),
        ("gossipy", "", None, gossipy),
        ("flower", "", None, flower),
    )
    return [
        _versus(
            "cnn",
            peer,
            bar,
            evaluation=evaluation,
            limit=limit,
            share=share if evaluation == "evaluation" else share_training,
            note=note,
            needs=("ours", "flower") if peer == "flower" else ("ours", "gossipy-1", "gossipy-2"),
        )
        for peer, evaluation, bar, note in rows
    ]


def _dense_rounds(model: str, *, naive: float, gossipy: float) -> Group:
    flops = sum(local_steps(model)) * step_flops(model)

    def share(found: Found) -> float:
        spent = _rounds(found, "ours", evaluation="")
        return flops / spent / found["gemm"]["flops_per_second"]

    chosen = ("--model", model)
    threads = {count: (*chosen, "--threads", str(count)) for count in (1, 2)}
    gossipy_program = "bench.peers.gossipy_round"
    return Group(
        f"{model}-rounds",
        (
            Piece("ours", "ours-rounds", chosen),
            Piece("naive-1", "naive-rounds", threads[1]),
            Piece("naive-2", "naive-rounds", threads[2]),
            Piece("gossipy-1", gossipy_program, threads[1], "gossipy"),
            Piece("gossipy-2", gossipy_program, threads[2], "gossipy"),
            GEMM,
        ),
        tuple(
            _versus(
                model,
                peer,
                bar,
                evaluation="",
                limit="fp32 GEMM peak of one thread",
                share=share,
                note=f"1 to 20 local steps; {peer} at its faster thread setting (1 or 2)",
                needs=("ours", f"{peer}-1", f"{peer}-2"),
            )
            for peer, bar in (("naive", naive), ("gossipy", gossipy))
        ),
    )


def _mixing() -> Group:
    traffic = 2.0 * 4 * WORKERS * CNN_PARAMETERS

    def share(key: str) -> Callable[[Found], float]:
        return lambda found: (
            traffic / found[key]["seconds"] / found["bandwidth"]["bytes_per_second"]
        )

    limit = "memory bandwidth: every row read and written once"
    return Group(
        "mixing",
        (
            Piece("bandwidth", "bandwidth"),
            Piece("ours", "ours-mixing"),
            Piece("naive", "naive-mixing"),
            Piece("exchange", "ours-exchange"),
        ),
        (
            Claim(
                "mixing-vs-neighbour-loop",
                f"mixing {WORKERS} models of 1.69M parameters, degree 6, one thread",
                lambda found: found["naive"]["seconds"] / found["ours"]["seconds"],
                3.0,
                needs=("ours", "naive"),
                measured=lambda found: {
                    "ours_seconds": found["ours"]["seconds"],
                    "naive_seconds": found["naive"]["seconds"],
                    "copy_gigabytes_per_second": found["bandwidth"]["bytes_per_second"] / 1e9,
                },
                limit=limit,
                share=share("ours"),
            ),
            Claim(
                "exchange-vs-neighbour-loop",
                "the whole exchange of a round (distances on all links, then mixing)",
                lambda found: found["naive"]["seconds"] / found["exchange"]["seconds"],
                needs=("exchange", "naive"),
                measured=lambda found: {"ours_seconds": found["exchange"]["seconds"]},
                limit=limit,
                share=share("exchange"),
                note="the loop measures no distances",
            ),
        ),
    )


def _evaluation() -> Group:
    def share(found: Found) -> float:
        rate = image_flops("cnn") / found["ours"]["seconds"]
        return rate / found["gemm"]["flops_per_second"]

    return Group(
        "evaluation",
        (GEMM, Piece("ours", "ours-evaluation"), Piece("naive", "naive-evaluation")),
        (
            Claim(
                "evaluation-vs-batch-32",
                "CNN, one thread: CPU time of testing an image vs plain batches of 32",
                lambda found: found["naive"]["seconds"] / found["ours"]["seconds"],
                1.8,
                needs=("ours", "naive"),
                measured=lambda found: {
                    "ours_seconds": found["ours"]["seconds"],
                    "naive_seconds": found["naive"]["seconds"],
                },
                limit="fp32 GEMM peak of one thread",
                share=share,
            ),
        ),
    )


def _plan() -> Group:
    def exponents(found: Found) -> tuple[float, float]:
        """Growth in links: fitted over all sizes, and between the last two."""
        links = np.log([found[f"plan-{size}"]["links"] for size in PLAN_SECONDS])
        spent = np.log([found[f"plan-{size}"]["seconds"] for size in PLAN_SECONDS])
        last = (spent[-1] - spent[-2]) / (links[-1] - links[-2])
        return float(np.polyfit(links, spent, 1)[0]), float(last)

    def of_size(size: int, allowed: float) -> Claim:
        key = f"plan-{size}"
        return Claim(
            f"plan-{size}-workers",
            f"FedHP's plan, {size} workers, full mesh, in at most {allowed:g} s",
            lambda found: allowed / found[key]["seconds"],
            1.0,
            needs=(key,),
            measured=lambda found: {"allowed_seconds": allowed, **found[key]},
        )

    return Group(
        "plan",
        tuple(
            Piece(f"plan-{size}", "ours-plan", ("--workers", str(size))) for size in PLAN_SECONDS
        ),
        (
            *(of_size(size, allowed) for size, allowed in PLAN_SECONDS.items()),
            Claim(
                "plan-growth",
                f"FedHP's plan grows with the links to the power of at most {GROWTH}",
                lambda found: GROWTH / exponents(found)[0],
                1.0,
                needs=tuple(f"plan-{size}" for size in PLAN_SECONDS),
                measured=lambda found: {
                    "allowed_exponent": GROWTH,
                    "exponent": exponents(found)[0],
                    "exponent_between_the_last_two": exponents(found)[1],
                },
                limit="linear: every link is looked at",
            ),
        ),
    )


def _estimators() -> Group:
    def share(key: str) -> Callable[[Found], float]:
        def of(found: Found) -> float:
            """FedHP estimates in every other round by default."""
            plain = found[key]["plain"]
            extra = max(found[key]["with_estimates"] - plain, 0.0) / 2
            return extra / (plain + extra)

        return of

    return Group(
        "estimators",
        tuple(Piece(model, "ours-estimators", ("--model", model)) for model in ("cnn", "mlp")),
        tuple(
            Claim(
                f"estimators-share-{model}",
                f"share of the estimators in a run of FedHP ({model}, 30 steps), CPU time",
                share(model),
                unit="of the run",
                needs=(model,),
                measured=lambda found, model=model: dict(found[model]),  # type: ignore[misc]
            )
            for model in ("cnn", "mlp")
        ),
    )


def groups() -> list[Group]:
    """All claims, in the order they are measured."""
    return [
        _cnn_step(),
        _evaluation(),
        _mixing(),
        _dense_rounds("mlp", naive=3.0, gossipy=2.7),
        _dense_rounds("logistic", naive=15.0, gossipy=10.0),
        _plan(),
        _estimators(),
        _cnn_rounds(),
    ]
