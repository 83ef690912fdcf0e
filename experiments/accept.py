"""Does this implementation show what a correct one shows? (`make accept`)

Runs FedHP and its rivals IID and at p = 0.8 over the seeds of the experiment file, prints every
check of acceptance_checks.py, and exits with 1 if one fails. Takes overrides and other
seeds: python experiments/accept.py experiments/acceptance.toml data.path=... --seeds 3,4,5
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from acceptance_checks import (
    ACCEPTANCE_DATA,
    IID,
    LITERAL,
    VARIANTS,
    AcceptanceCheck,
    Deadline,
    acceptance_checks,
    tuned_note,
)
from rich.table import Table

import fedhp
from fedhp.cli.parameters import choose_folder, table_console
from fedhp.report.claims.acceptance import SKEWED, TUNED
from fedhp.report.claims.runs import group_runs
from fedhp.report.groups import RunCurves, read_curves
from fedhp.report.tables import comparison_table

ALGORITHMS = ("dpsgd", "adpsgd", "ldsgd", "pens", *VARIANTS.values(), TUNED)


def main() -> int:
    """Run, check, print."""
    arguments = _arguments()
    out = choose_folder(
        Path(arguments.out) if arguments.out else None,
        Path(arguments.experiment),
        resume=arguments.resume,
    )
    started = time.monotonic()
    iid = compare_runs(arguments, IID, ALGORITHMS, out / "iid")
    skewed = compare_runs(arguments, SKEWED, [*ALGORITHMS, LITERAL], out / "skewed")
    console = table_console()
    for title, runs in (("IID (p = 0.1)", iid), ("non-IID (p = 0.8)", skewed)):
        console.print(f"\n{title}")
        console.print(comparison_table([run.summary for run in runs]))
    suite_runs = group_runs(
        (ACCEPTANCE_DATA, skew, run)
        for skew, runs in ((IID, iid), (SKEWED, skewed))
        for run in runs
    )
    checks = acceptance_checks(suite_runs)
    console.print(_table(checks))
    console.print(tuned_note(suite_runs))
    passed = [check.passed for variant in checks.values() for check in variant]
    console.print(f"{passed.count(True)} passed, {passed.count(False)} failed", highlight=False)
    console.print(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    return 0 if all(passed) else 1


def _arguments() -> argparse.Namespace:
    return campaign_parser(__doc__).parse_intermixed_args()


def campaign_parser(description: str) -> argparse.ArgumentParser:
    """What a campaign can be asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("experiment")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--seeds", help="separated by commas, such as 3,4,5; default: the file's")
    parser.add_argument("--out", help="default: runs/NAME-1, -2, ... by the experiment's name")
    parser.add_argument("--resume", action="store_true", help="resume an earlier campaign")
    parser.add_argument("--jobs", type=int, help="runs at the same time; default: one per core")
    return parser


def compare_runs(
    arguments: argparse.Namespace,
    skew: float,
    algorithms: Sequence[str],
    out: Path,
    *,
    overrides: Sequence[str] = (),
) -> list[RunCurves]:
    """Run the algorithms at this level; overrides replace those of the command line."""
    own = {override.partition("=")[0] for override in overrides}
    asked = [each for each in arguments.overrides if each.partition("=")[0] not in own]
    seeds = [int(seed) for seed in arguments.seeds.split(",")] if arguments.seeds else None
    print(f"{len(algorithms)} algorithms at data.skew = {skew} -> {out}", flush=True)
    runs = fedhp.compare(
        arguments.experiment,
        out,
        algorithms=algorithms,
        seeds=seeds,
        overrides=[*asked, *overrides, f"data.skew={skew}"],
        jobs=arguments.jobs,
        resume=arguments.resume,
        progress=True,
    )
    for run in runs:
        run.close()
    return [read_curves(run.folder) for run in runs]


def _table(checks: Mapping[Deadline, Sequence[AcceptanceCheck]]) -> Table:
    """One line per check, the two deadline rules side by side."""
    table = Table(title="acceptance")
    table.add_column("check")
    for deadline in checks:
        table.add_column(f"FedHP {deadline}")
    for row in zip(*checks.values(), strict=True):
        cells = (f"{c.figure} ({c.bar}) {'pass' if c.passed else 'FAIL'}" for c in row)
        table.add_row(row[0].name, *cells)
    return table


def exit_code_of(campaign: Callable[[], int]) -> int:
    """Of a campaign that may end with an error."""
    try:
        return campaign()
    except fedhp.FedhpError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
