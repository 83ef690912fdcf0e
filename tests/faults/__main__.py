"""The whole fault campaign: python -m faults [--seeds N] [--only WORDS] [--jobs N].

Prints a table and writes it to runs/faults.json; exits with 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.cases import CASES
from faults.fault_run import FaultCase, Outcome
from faults.namespaces import why_not
from faults.partitions import PARTITIONS
from net.etcd_support import PROGRAM


def chosen(words: str) -> tuple[list[FaultCase], list[str]]:
    """The cases to run, and what is left out and why."""
    left_out = []
    cases = [*CASES, *PARTITIONS]
    if reason := why_not():
        cases = [case for case in cases if case not in PARTITIONS]
        left_out.append(f"partitions: {reason}")
    if PROGRAM is None:
        cases = [case for case in cases if "standby" not in case.name and "etcd" not in case.name]
        left_out.append("standby and etcd: etcd is not installed (apt-get install etcd-server)")
    return [case for case in cases if words in case.name], left_out


def run_once(case: FaultCase, seed: int, folder: Path) -> Outcome:
    """One run; its folder stays only if something was wrong."""
    outcome = case.run(folder, seed)
    if outcome.good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        problems = "; ".join(filter(None, [outcome.hang, outcome.error, *outcome.violations]))
        print(f"  {case.name}, seed {seed}: {problems} ({folder})", flush=True)
    return outcome


def summary(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """One row per case."""
    by_case: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_case[outcome.case].append(outcome)
    rows = []
    for name, runs in by_case.items():
        takeovers = [outcome.takeover for outcome in runs if outcome.takeover is not None]
        rows.append(
            {
                "case": name,
                "runs": len(runs),
                "hangs": sum(bool(outcome.hang) for outcome in runs),
                "errors": sum(bool(outcome.error) for outcome in runs),
                "violations": sum(len(outcome.violations) for outcome in runs),
                "worst_pause": max(outcome.pause for outcome in runs),
                "worst_takeover": max(takeovers, default=None),
                "seconds": sum(outcome.seconds for outcome in runs) / len(runs),
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per case."""
    columns = ("runs", "hangs", "errors", "violations", "pause", "takeover", "each")
    width = max(len(row["case"]) for row in rows)
    print(f"{'case':{width}} " + " ".join(f"{column:>10}" for column in columns))
    for row in rows:
        takeover = row["worst_takeover"]
        cells = [str(row[key]) for key in ("runs", "hangs", "errors", "violations")]
        cells.append(f"{row['worst_pause']:.1f} s")
        cells.append("" if takeover is None else f"{takeover:.1f} s")
        cells.append(f"{row['seconds']:.0f} s")
        print(f"{row['case']:{width}} " + " ".join(f"{cell:>10}" for cell in cells))


def main() -> int:
    """Run the campaign; returns the exit code."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="runs per case")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument(
        "--jobs", type=int, default=2, help="runs at the same time; they mostly wait"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/faults.json"))
    options = parser.parse_args()
    cases, left_out = chosen(options.only)
    for line in left_out:
        print(f"left out: {line}")
    started = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="fedhp-faults-"))
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, case in enumerate(cases):
            seeds = range(options.first, options.first + options.seeds)
            folders = [base / f"{number}-{seed}" for seed in seeds]
            outcomes.extend(pool.map(run_once, [case] * len(seeds), seeds, folders))
            done = outcomes[-len(seeds) :]
            bad = sum(not outcome.good for outcome in done)
            print(f"{case.name}: {len(done) - bad} of {len(done)} good", flush=True)
    rows = summary(outcomes)
    print_table(rows)
    good = all(outcome.good for outcome in outcomes)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "seconds": time.monotonic() - started,
        "good": good,
        "left_out": left_out,
        "cases": rows,
        "bad": [asdict(outcome) for outcome in outcomes if not outcome.good],
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{len(outcomes)} runs in {content['seconds']:.0f} s; see {options.out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
