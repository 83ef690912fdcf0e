"""Claims about whole rounds of 30 workers: against the naive loop, gossipy and Flower."""

from __future__ import annotations

from collections.abc import Callable

from bench.claim import GEMM_TWO_THREADS, Claim, Group, Measurement, Results, peak
from bench.work import (
    BATCH,
    EVALUATE_EVERY,
    SIDE,
    TEST_IMAGES,
    WORKERS,
    image_flops,
    local_steps,
    step_flops,
)


def _rounds(results: Results, side: str, *, evaluation: str) -> float:
    """Seconds per round of a side, with its share of an evaluation ("", "evaluation" or
    "mean_evaluation"); the fastest of its thread settings."""
    sides = [key for key in results if key == side or key.startswith(f"{side}-")]
    return min(
        results[key]["round"]
        + (results[key].get(evaluation, results[key].get("evaluation", 0.0)) / EVALUATE_EVERY)
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
    share: Callable[[Results], float],
    note: str,
    needs: tuple[str, ...],
) -> Claim:
    def ratio(results: Results) -> float:
        theirs = _rounds(results, peer, evaluation=evaluation)
        return theirs / _rounds(results, "ours", evaluation=evaluation)

    def measured(results: Results) -> dict[str, float]:
        return {
            "ours_seconds": _rounds(results, "ours", evaluation=evaluation),
            f"{peer}_seconds": _rounds(results, peer, evaluation=evaluation),
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


def cnn_rounds() -> Group:
    flops = sum(local_steps("cnn")) * step_flops("cnn")
    tested = (WORKERS + 1) * TEST_IMAGES * image_flops("cnn") / EVALUATE_EVERY

    def share(results: Results) -> float:
        spent = _rounds(results, "ours", evaluation="evaluation")
        return (flops + tested) / spent / results["gemm2"]["flops_per_second"]

    def share_training(results: Results) -> float:
        spent = _rounds(results, "ours", evaluation="")
        return flops / spent / results["gemm2"]["flops_per_second"]

    return Group(
        "cnn-rounds",
        (
            Measurement("ours", "ours-rounds"),
            Measurement("gossipy-1", "bench.peers.gossipy_round", ("--threads", "1"), "gossipy"),
            Measurement("gossipy-2", "bench.peers.gossipy_round", ("--threads", "2"), "gossipy"),
            Measurement("flower", "bench.peers.flower_round", (), "flower"),
            GEMM_TWO_THREADS,
        ),
        (
            *_cnn_versus(share, share_training),
            peak("gemm2", 2),
        ),
    )


def _cnn_versus(
    share: Callable[[Results], float], share_training: Callable[[Results], float]
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


def dense_rounds(model: str, *, naive: float, gossipy: float) -> Group:
    steps = sum(local_steps(model))
    # Logistic regression computes less than it reads: its limit is the memory bandwidth.
    by_memory = model == "logistic"
    work = steps * (BATCH * SIDE * SIDE * 4 if by_memory else step_flops(model))

    def share(results: Results) -> float:
        limit = (
            results["bandwidth"]["bytes_per_second"]
            if by_memory
            else results["gemm2"]["flops_per_second"]
        )
        return work / _rounds(results, "ours", evaluation="") / limit

    chosen = ("--model", model)
    threads = {count: (*chosen, "--threads", str(count)) for count in (1, 2)}
    gossipy_program = "bench.peers.gossipy_round"
    return Group(
        f"{model}-rounds",
        (
            Measurement("ours", "ours-rounds", chosen),
            Measurement("naive-1", "naive-rounds", threads[1]),
            Measurement("naive-2", "naive-rounds", threads[2]),
            Measurement("gossipy-1", gossipy_program, threads[1], "gossipy"),
            Measurement("gossipy-2", gossipy_program, threads[2], "gossipy"),
            Measurement("bandwidth", "bandwidth") if by_memory else GEMM_TWO_THREADS,
        ),
        tuple(
            _versus(
                model,
                peer,
                bar,
                evaluation="",
                limit="memory bandwidth: every batch read once"
                if by_memory
                else "fp32 GEMM peak of two threads",
                share=share,
                note=f"1 to 20 local steps; {peer} at its faster thread setting (1 or 2)",
                needs=("ours", f"{peer}-1", f"{peer}-2"),
            )
            for peer, bar in (("naive", naive), ("gossipy", gossipy))
        ),
    )
