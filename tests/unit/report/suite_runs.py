"""Runs of the paper's suite made by hand: curves that saturate, without any training."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedhp.config import Experiment, parse
from fedhp.engine.runs.campaign import Cell
from fedhp.engine.runs.suite import PaperCell, PaperFigure, PaperSet, Suite
from fedhp.record.reader import RunSummary, target_key
from fedhp.report.claims.runs import SuiteRuns, group_runs
from fedhp.report.figures.paper import FigureText
from fedhp.report.groups import RunCurves

FILL, OPT, TUNED = "fedhp:deadline=fill", "fedhp:deadline=opt", "adpsgd:steps=100"
LABELS = (FILL, OPT, "dpsgd", "ldsgd", "pens", "adpsgd", TUNED)
SEEDS = (0, 1, 2)
TARGETS = (0.7, 0.8, 0.85)
LEVELS = (0.1, 0.2, 0.4, 0.6, 0.8)

# Per label: time constant and round time (s), waiting (s), accuracy lost at p = 0.8.
SHAPES: dict[str, tuple[float, float, float, float]] = {
    FILL: (40.0, 11.0, 0.95, 0.03),
    OPT: (34.0, 13.0, 1.9, 0.028),
    "dpsgd": (140.0, 18.0, 9.1, 0.06),
    "ldsgd": (90.0, 14.0, 7.1, 0.07),
    "pens": (130.0, 19.0, 12.0, 0.05),
    "adpsgd": (50.0, 7.0, 0.0, 0.08),
    TUNED: (30.0, 12.0, 0.0, 0.04),
}


def make_run(
    label: str,
    *,
    seed: int = 0,
    end: float = 0.9,
    constant: float = 40.0,
    round_time: float = 10.0,
    waiting: float = 1.0,
    rounds: int = 80,
    every: int = 2,
    targets: Sequence[float] = TARGETS,
) -> RunCurves:
    """A curve that saturates at `end`; the clock's noise depends on the seed alone."""
    world = np.random.default_rng(seed)
    noise = np.random.default_rng([seed, zlib.crc32(label.encode())])
    at = np.arange(every, rounds + 1, every, dtype=np.float64)
    clock = at * round_time * (1 + 0.02 * world.standard_normal())
    level = end + 0.004 * world.standard_normal() + 0.001 * noise.standard_normal()
    values = level * (1 - 0.85 * np.exp(-clock / constant)) + 0.002 * noise.standard_normal(at.size)
    values = np.clip(values, 0.0, 1.0)
    times = {target: np.flatnonzero(values >= target) for target in targets}
    summary = RunSummary(
        algorithm=label,
        seed=seed,
        metric="accuracy",
        status="finished",
        rounds=rounds,
        final_accuracy=float(values[-3:].mean()),
        best_accuracy=float(values.max()),
        mean_model_accuracy=float(values[-3:].mean()),
        whole_test_accuracy=None,
        completion_time=float(clock[-1]),
        round_time=round_time,
        mean_waiting_time=max(0.0, waiting * (1 + 0.05 * noise.standard_normal())),
        mean_local_steps=30.0,
        bytes_sent=1,
        time_to_target={
            target_key(target): float(clock[found[0]]) if found.size else None
            for target, found in times.items()
        },
        digest="",
    )
    return RunCurves(Path(label), summary, "accuracy", at, clock, values, {}, {})


def shaped_run(label: str, *, skew: float = 0.1, seed: int = 0, **changes: Any) -> RunCurves:
    """A run as the label's shape has it at this level."""
    constant, round_time, waiting, lost = SHAPES[label]
    end = 0.9 - lost * (skew - 0.1) / 0.7 * (1 if skew > 0.1 else 0)
    shape = {"end": end, "constant": constant, "round_time": round_time, "waiting": waiting}
    return make_run(label, seed=seed, **{**shape, **changes})


def full_runs(
    keys: Iterable[str] = ("cifar10",),
    *,
    labels: Sequence[str] = LABELS,
    seeds: Sequence[int] = SEEDS,
    skews: Sequence[float] = LEVELS,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    more: Iterable[tuple[str, float, RunCurves]] = (),
) -> SuiteRuns:
    """Everything finished; `changes` replace a label's numbers."""
    changed = changes or {}
    runs = [
        (key, skew, shaped_run(label, skew=skew, seed=seed, **changed.get(label, {})))
        for key in keys
        for skew in skews
        for label in labels
        for seed in seeds
    ]
    return group_runs([*runs, *more])


def sweep_runs(
    taus: Mapping[int, float],
    *,
    key: str = "cifar10",
    seeds: Sequence[int] = SEEDS,
    constants: Mapping[int, float] | None = None,
) -> list[tuple[str, float, RunCurves]]:
    """D-PSGD by local steps: the accuracy each ends with, and its time constant."""
    return [
        (
            key,
            0.1,
            make_run(
                f"dpsgd:steps={tau}",
                seed=seed,
                end=end,
                constant=(constants or {}).get(tau, 60.0),
                round_time=4 + 0.3 * tau,
                rounds=100,
            ),
        )
        for tau, end in taus.items()
        for seed in seeds
    ]


def experiment(targets: Sequence[float] = TARGETS, data: str = "digits") -> Experiment:
    return parse({"workers": 30, "data": {"name": data}, "evaluation": {"targets": list(targets)}})


def paper_set(
    key: str = "cifar10", title: str = "", stands_for: str = "", *, data: str = ""
) -> PaperSet:
    names = {"emnist": "EMNIST", "cifar10": "CIFAR-10", "image100": "IMAGE-100"}
    name = names.get(key, "EMNIST")
    source = data or {"image100": "tiny_imagenet"}.get(key, key)
    return PaperSet(key, title or f"{name}, small", stands_for or name, "", experiment(data=source))


DRAWN: dict[str, Any] = {
    "fig1": "steps",
    "fig2": "accuracy",
    "fig3": "targets",
    "fig4": "accuracy",
    "fig5": "accuracy",
    "fig6": "skew",
    "fig7": "waiting",
    "tables": "table",
}


def figure_text(name: str) -> FigureText:
    return FigureText(title=f"The title of {name}", claim="a claim", draw=DRAWN[name])


def paper_figure(
    name: str,
    *,
    sets: Sequence[str] = ("cifar10",),
    skews: Sequence[float] = (0.1,),
    labels: Sequence[str] = LABELS,
    cells: Sequence[PaperCell] = (),
) -> PaperFigure:
    return PaperFigure(name, tuple(sets), tuple(skews), tuple(labels), tuple(cells))


def paper_cell(data: str, skew: float, label: str, *, seed: int = 0, folder: Path) -> PaperCell:
    return PaperCell(data, skew, Cell(label, seed, experiment(), folder))


def full_suite(
    keys: Sequence[str] = ("cifar10",),
    *,
    profile: str = "quick",
    missing: Mapping[str, str] | None = None,
    sets: Mapping[str, PaperSet] | None = None,
    taus: Sequence[int] = (5, 10, 20, 27, 30, 50, 100),
) -> Suite:
    """All figures on these data sets."""
    figures = (
        paper_figure("fig1", sets=keys[:1], labels=[f"dpsgd:steps={t}" for t in taus]),
        paper_figure("fig2", sets=keys),
        paper_figure("fig3", sets=keys),
        paper_figure("fig4", sets=keys, skews=(0.6,)),
        paper_figure("fig5", sets=keys, skews=(0.8,)),
        paper_figure("fig6", sets=keys, skews=LEVELS),
        paper_figure("fig7", sets=keys),
    )
    known = sets or {key: paper_set(key) for key in keys}
    return Suite(profile, known, figures, missing or {})
