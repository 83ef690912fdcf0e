"""The claims: the measurements of a repeat, the ratio computed from them, and its bar.

Bars are the only fixed numbers; everything else is measured. For a claim with an upper limit
(a time, an exponent) the ratio is allowed / measured, and the bar is 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench.claim import GEMM, Claim, Group, Measurement, Results, peak
from bench.rounds import cnn_rounds, dense_rounds
from bench.work import WORKERS, image_flops, step_flops

PLAN_SECONDS = {30: 0.020, 100: 0.100, 300: 0.5, 1000: 5.0}
GROWTH = 1.2
COORDINATOR_SIZES = (100, 300, 1000)
COORDINATOR_SECONDS = {300: 1.5, 1000: 6.0}
STATE_GROWTH = 1.05
CNN_PARAMETERS = 1_690_046


def _cnn_step() -> Group:
    def share(results: Results) -> float:
        rate = step_flops("cnn") / results["ours"]["seconds"]
        return rate / results["gemm"]["flops_per_second"]

    def without_padding(results: Results) -> float:
        return share(results) * step_flops("cnn", on_padding=False) / step_flops("cnn")

    limit = "fp32 GEMM peak of one thread"
    return Group(
        "cnn-step",
        (GEMM, Measurement("ours", "ours-steps"), Measurement("naive", "naive-steps")),
        (
            Claim(
                "cnn-step-vs-naive",
                "CNN, batch 32, one thread: CPU time of a training step vs naive PyTorch",
                lambda results: results["naive"]["seconds"] / results["ours"]["seconds"],
                1.2,
                needs=("ours", "naive"),
                measured=lambda results: {
                    "ours_seconds": results["ours"]["seconds"],
                    "naive_seconds": results["naive"]["seconds"],
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
                measured=lambda results: {
                    "gflops": step_flops("cnn") / results["ours"]["seconds"] / 1e9,
                    "gemm_peak_gflops": results["gemm"]["flops_per_second"] / 1e9,
                    "share_without_products_on_padding": without_padding(results),
                },
                limit=limit,
                share=share,
                note="products with the zero padding are counted, as FLOP counters do",
            ),
            peak("gemm", 1),
        ),
    )


def _mixing() -> Group:
    traffic = 2.0 * 4 * WORKERS * CNN_PARAMETERS

    def share(key: str) -> Callable[[Results], float]:
        return lambda results: (
            traffic / results[key]["seconds"] / results["bandwidth"]["bytes_per_second"]
        )

    limit = "memory bandwidth: every row read and written once"
    two = ("--threads", "2")

    def naive(results: Results) -> float:
        return min(results[key]["seconds"] for key in ("naive", "naive-2"))

    return Group(
        "mixing",
        (
            Measurement("bandwidth", "bandwidth"),
            Measurement("ours", "ours-mixing"),
            Measurement("ours-2", "ours-mixing", two),
            Measurement("naive", "naive-mixing"),
            Measurement("naive-2", "naive-mixing", two),
            Measurement("exchange", "ours-exchange"),
        ),
        (
            Claim(
                "mixing-vs-neighbour-loop",
                f"mixing {WORKERS} models of 1.69M parameters, degree 6, two threads",
                lambda results: naive(results) / results["ours-2"]["seconds"],
                3.0,
                needs=("ours-2", "naive", "naive-2"),
                measured=lambda results: {
                    "ours_seconds": results["ours-2"]["seconds"],
                    "naive_seconds": naive(results),
                    "copy_gigabytes_per_second": results["bandwidth"]["bytes_per_second"] / 1e9,
                },
                limit=limit,
                share=share("ours-2"),
                note="the loop at its faster thread setting (1 or 2)",
            ),
            Claim(
                "mixing-vs-neighbour-loop-one-thread",
                "the same, both sides with one thread",
                lambda results: results["naive"]["seconds"] / results["ours"]["seconds"],
                needs=("ours", "naive"),
                measured=lambda results: {
                    "ours_seconds": results["ours"]["seconds"],
                    "naive_seconds": results["naive"]["seconds"],
                },
                limit=limit,
                share=share("ours"),
            ),
            Claim(
                "exchange-vs-neighbour-loop",
                "the whole exchange of a round (distances on all links, then mixing)",
                lambda results: naive(results) / results["exchange"]["seconds"],
                needs=("exchange", "naive", "naive-2"),
                measured=lambda results: {"ours_seconds": results["exchange"]["seconds"]},
                limit=limit,
                share=share("exchange"),
                note="the loop measures no distances",
            ),
        ),
    )


def _evaluation() -> Group:
    def share(results: Results) -> float:
        rate = image_flops("cnn") / results["ours"]["seconds"]
        return rate / results["gemm"]["flops_per_second"]

    return Group(
        "evaluation",
        (GEMM, Measurement("ours", "ours-evaluation"), Measurement("naive", "naive-evaluation")),
        (
            Claim(
                "evaluation-vs-batch-32",
                "CNN, one thread: CPU time of testing an image vs plain batches of 32",
                lambda results: results["naive"]["seconds"] / results["ours"]["seconds"],
                1.8,
                needs=("ours", "naive"),
                measured=lambda results: {
                    "ours_seconds": results["ours"]["seconds"],
                    "naive_seconds": results["naive"]["seconds"],
                },
                limit="fp32 GEMM peak of one thread",
                share=share,
            ),
        ),
    )


def _plan() -> Group:
    def exponents(results: Results) -> tuple[float, float]:
        """Growth in links: fitted over all sizes, and between the last two."""
        links = np.log([results[f"plan-{size}"]["links"] for size in PLAN_SECONDS])
        spent = np.log([results[f"plan-{size}"]["seconds"] for size in PLAN_SECONDS])
        last = (spent[-1] - spent[-2]) / (links[-1] - links[-2])
        return float(np.polyfit(links, spent, 1)[0]), float(last)

    def of_size(size: int, allowed: float) -> Claim:
        key = f"plan-{size}"
        return Claim(
            f"plan-{size}-workers",
            f"FedHP's plan, {size} workers, full mesh, in at most {allowed:g} s",
            lambda results: allowed / results[key]["seconds"],
            1.0,
            needs=(key,),
            measured=lambda results: {"allowed_seconds": allowed, **results[key]},
        )

    return Group(
        "plan",
        tuple(
            Measurement(f"plan-{size}", "ours-plan", ("--workers", str(size)))
            for size in PLAN_SECONDS
        ),
        (
            *(of_size(size, allowed) for size, allowed in PLAN_SECONDS.items()),
            Claim(
                "plan-growth",
                f"FedHP's plan grows with the links to the power of at most {GROWTH}",
                lambda results: GROWTH / exponents(results)[0],
                1.0,
                needs=tuple(f"plan-{size}" for size in PLAN_SECONDS),
                measured=lambda results: {
                    "allowed_exponent": GROWTH,
                    "exponent": exponents(results)[0],
                    "exponent_between_the_last_two": exponents(results)[1],
                },
                limit="linear: every link is examined",
            ),
        ),
    )


def _estimators() -> Group:
    def share(key: str) -> Callable[[Results], float]:
        def of(results: Results) -> float:
            """FedHP estimates in every other round by default."""
            plain = results[key]["plain"]
            extra = max(results[key]["with_estimates"] - plain, 0.0) / 2
            return extra / (plain + extra)

        return of

    return Group(
        "estimators",
        tuple(
            Measurement(model, "ours-estimators", ("--model", model)) for model in ("cnn", "mlp")
        ),
        tuple(
            Claim(
                f"estimators-share-{model}",
                f"share of the estimators in a run of FedHP ({model}, 30 steps), CPU time",
                share(model),
                unit="of the run",
                needs=(model,),
                measured=lambda results, model=model: dict(results[model]),  # type: ignore[misc]
            )
            for model in ("cnn", "mlp")
        ),
    )


def _coordinator() -> Group:
    few, *_, many = COORDINATOR_SIZES

    def key(size: int) -> str:
        return f"coordinator-{size}"

    def exponent(results: Results, name: str) -> float:
        """Growth in workers, between the smallest and the largest size."""
        growth = results[key(many)][name] / results[key(few)][name]
        return float(np.log(growth) / np.log(many / few))

    def of_size(size: int, allowed: float) -> Claim:
        return Claim(
            f"coordinator-{size}-workers",
            f"a round of {size} scripted workers, degree 6: at most {allowed:g} CPU s",
            lambda results: allowed / results[key(size)]["cpu_seconds"],
            1.0,
            needs=(key(size),),
            measured=lambda results: {"allowed_seconds": allowed, **results[key(size)]},
        )

    def growth(name: str, what: str, most: float) -> Claim:
        return Claim(
            f"coordinator-{name.replace('_', '-')}-growth",
            f"{what} with the workers to the power of at most {most}",
            lambda results: most / exponent(results, name),
            1.0,
            needs=(key(few), key(many)),
            measured=lambda results: {
                "allowed_exponent": most,
                "exponent": exponent(results, name),
            },
            limit="linear: everybody asks and reports",
        )

    return Group(
        "coordinator",
        tuple(
            Measurement(key(size), "ours-coordinator", ("--workers", str(size)))
            for size in COORDINATOR_SIZES
        ),
        (
            *(of_size(size, allowed) for size, allowed in COORDINATOR_SECONDS.items()),
            growth("cpu_seconds", "the CPU time of a round grows", GROWTH),
            growth("state_bytes", "the state that a round commits grows", STATE_GROWTH),
        ),
    )


def groups() -> list[Group]:
    """All claims, in the order they are measured."""
    return [
        _cnn_step(),
        _evaluation(),
        _mixing(),
        dense_rounds("mlp", naive=3.0, gossipy=2.7),
        dense_rounds("logistic", naive=15.0, gossipy=10.0),
        _plan(),
        _coordinator(),
        _estimators(),
        cnn_rounds(),
    ]
