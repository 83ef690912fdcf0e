"""Does this implementation show what a correct one shows? (`make accept`)

Runs FedHP and its rivals IID and at p = 0.8 over the seeds of the experiment file, prints
every check with its figure, and exits non-zero if one fails. Takes overrides and other
seeds: python experiments/accept.py experiments/acceptance.toml data.path=... --seeds 3,4,5
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

import fedhp
from fedhp.cli.parameters import choose_folder, table_console
from fedhp.record.reader import RunSummary
from fedhp.report.tables import comparison_table

RIVALS = ("dpsgd", "adpsgd", "ldsgd", "pens")
FEDHP = {"opt": "fedhp", "fill": "fedhp:deadline=fill"}
LITERAL = "fedhp:planner=literal"
TUNED = "adpsgd:steps=100"
IID, SKEWED = 0.1, 0.8
TARGET = "0.92"

Results = dict[str, list[RunSummary]]  # label -> one summary per seed


@dataclass(frozen=True)
class Check:
    """One line of the acceptance table."""

    name: str
    figure: str
    bar: str
    passed: bool


def main() -> int:
    """Run, check, print."""
    arguments = _arguments()
    given = Path(arguments.out) if arguments.out else None
    out = choose_folder(given, Path(arguments.experiment), resume=arguments.resume)
    started = time.monotonic()
    iid = _compare(arguments, IID, [*RIVALS, *FEDHP.values(), TUNED], out / "iid")
    skewed = _compare(arguments, SKEWED, [*RIVALS, *FEDHP.values(), TUNED, LITERAL], out / "skewed")
    console = table_console()
    for title, results in (("IID (p = 0.1)", iid), ("non-IID (p = 0.8)", skewed)):
        console.print(f"\n{title}")
        console.print(comparison_table([run for runs in results.values() for run in runs]))
    checks = {kind: _checks(kind, iid, skewed) for kind in FEDHP}
    console.print(_table(checks))
    console.print(_tuned(iid, skewed))
    every = [check for kind in FEDHP for check in checks[kind]]
    failed = [check for check in every if not check.passed]
    minutes = (time.monotonic() - started) / 60
    console.print(f"{len(every) - len(failed)} passed, {len(failed)} failed", highlight=False)
    console.print(f"took {minutes:.1f} minutes")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--seeds", help="for example 3,4,5; default: those of the file")
    parser.add_argument("--out", help="default: runs/acceptance-1, -2, ...")
    parser.add_argument("--resume", action="store_true", help="go on with an earlier campaign")
    parser.add_argument("--jobs", type=int)
    return parser.parse_intermixed_args()


def _compare(
    arguments: argparse.Namespace, skew: float, algorithms: list[str], out: Path
) -> Results:
    seeds = [int(seed) for seed in arguments.seeds.split(",")] if arguments.seeds else None
    print(f"{len(algorithms)} algorithms at data.skew = {skew} -> {out}", flush=True)
    runs = fedhp.compare(
        arguments.experiment,
        out,
        algorithms=algorithms,
        seeds=seeds,
        overrides=[*arguments.overrides, f"data.skew={skew}"],
        jobs=arguments.jobs,
        resume=arguments.resume,
        progress=True,
    )
    results: Results = {label: [] for label in algorithms}
    for run in runs:
        with run:
            summary = run.summary()
        results[summary.algorithm].append(summary)
    return results


def _checks(kind: str, iid: Results, skewed: Results) -> list[Check]:
    """All checks for FedHP with one deadline rule."""
    mine = FEDHP[kind]
    dpsgd_times = _ratios(iid[mine], iid["dpsgd"], _time_to)
    final = {label: _mean(skewed[label], _final) for label in skewed}
    finals_iid = {label: _mean(iid[label], _final) for label in iid}
    gaps = {"dpsgd": 1.5, "adpsgd": 1.8, "ldsgd": 2.5, "pens": 1.2}
    drop = {label: finals_iid[label] - final[label] for label in (mine, "dpsgd")}
    waits = {label: _mean(iid[label], _waiting) for label in iid}
    least = {"opt": 3.5, "fill": 5.0}[kind]
    rounds = {"opt": 0.85, "fill": 0.70}[kind]
    ldsgd = _mean(iid["ldsgd"], _time_to) / _mean(iid[mine], _time_to)
    order = (waits["adpsgd"], waits[mine], waits["ldsgd"], waits["dpsgd"])
    checks = [
        _at_most(
            "A1 IID, time to 92 %: FedHP / D-PSGD", _ratio(iid[mine], iid["dpsgd"], _time_to), 0.55
        ),
        _at_most("A1 the same, worst seed", max(dpsgd_times), 0.7),
        _at_most("A2 time to 92 %: FedHP / PENS", _ratio(iid[mine], iid["pens"], _time_to), 0.60),
        _at_least("A2 LD-SGD is not earlier: LD-SGD / FedHP", ldsgd, 1.0),
        _at_most(
            "A3 time to 92 %: FedHP / AD-PSGD 30", _ratio(iid[mine], iid["adpsgd"], _time_to), 1.05
        ),
        _at_most(
            "A4 round time: FedHP / D-PSGD", _ratio(iid[mine], iid["dpsgd"], _round_time), rounds
        ),
        _at_least(
            "A5 IID final: FedHP - D-PSGD (points)", finals_iid[mine] - finals_iid["dpsgd"], 0.0
        ),
    ]
    for rival, gap in gaps.items():
        each = [_final(a) - _final(b) for a, b in zip(skewed[mine], skewed[rival], strict=True)]
        checks.append(
            _at_least(f"B1 p=0.8 final: FedHP - {rival} (points)", final[mine] - final[rival], gap)
        )
        checks.append(_at_least("B1 the same, worst seed (above)", min(each), 0.5))
    checks.append(
        _at_most("B2 drop from IID to p=0.8: FedHP / D-PSGD", drop[mine] / drop["dpsgd"], 0.85)
    )
    for rival in ("dpsgd", "pens"):
        worst = min(
            _waiting(theirs) / _waiting(ours)
            for results in (iid, skewed)
            for ours, theirs in zip(results[mine], results[rival], strict=True)
        )
        checks.append(_at_least(f"C1 waiting, worst seed: {rival} / FedHP", worst, least))
    checks.append(
        Check(
            "C2 waiting: AD-PSGD < FedHP < LD-SGD < D-PSGD",
            " < ".join(f"{value:.2f}" for value in order),
            "in this order",
            all(a < b for a, b in itertools.pairwise(order)),
        )
    )
    checks.append(
        _at_least("D p=0.8: FedHP - literal reading (points)", final[mine] - final[LITERAL], 5.0)
    )
    return checks


def _tuned(iid: Results, skewed: Results) -> str:
    return (
        f"E reported beside them, AD-PSGD with 100 steps: IID final "
        f"{_mean(iid[TUNED], _final):.1f} %, to 92 % in {_mean(iid[TUNED], _time_to):.0f} s; "
        f"p=0.8 final {_mean(skewed[TUNED], _final):.1f} %"
    )


def _final(run: RunSummary) -> float:
    return math.nan if run.final_accuracy is None else 100 * run.final_accuracy


def _waiting(run: RunSummary) -> float:
    return run.mean_waiting_time or 0.0


def _round_time(run: RunSummary) -> float:
    return run.round_time or math.nan


def _time_to(run: RunSummary) -> float:
    reached = run.time_to_target[TARGET]
    return math.inf if reached is None else reached


def _mean(runs: list[RunSummary], value: Callable[[RunSummary], float]) -> float:
    return float(np.mean([value(run) for run in runs]))


def _ratio(
    ours: list[RunSummary], theirs: list[RunSummary], value: Callable[[RunSummary], float]
) -> float:
    """Ratio of the means; a rival that never arrives counts with the time it ran at least."""
    return _mean(ours, value) / float(np.mean([_at_least_time(run, value) for run in theirs]))


def _ratios(
    ours: list[RunSummary], theirs: list[RunSummary], value: Callable[[RunSummary], float]
) -> list[float]:
    return [value(a) / _at_least_time(b, value) for a, b in zip(ours, theirs, strict=True)]


def _at_least_time(run: RunSummary, value: Callable[[RunSummary], float]) -> float:
    found = value(run)
    return found if math.isfinite(found) else run.completion_time


def _at_most(name: str, figure: float, bar: float) -> Check:
    return Check(name, f"{figure:.3f}", f"<= {bar}", figure <= bar)


def _at_least(name: str, figure: float, bar: float) -> Check:
    return Check(name, f"{figure:.3f}", f">= {bar}", figure >= bar)


def _table(checks: dict[str, list[Check]]) -> Table:
    """One line per check, the two deadline rules side by side."""
    table = Table(title="acceptance")
    table.add_column("check")
    for kind in checks:
        table.add_column(f"FedHP {kind}")
    for row in zip(*checks.values(), strict=True):
        table.add_row(row[0].name, *(f"{c.figure} ({c.bar}) {_verdict(c)}" for c in row))
    return table


def _verdict(check: Check) -> str:
    return "pass" if check.passed else "FAIL"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except fedhp.FedhpError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
