"""Does FedHP+ show what it should? (`make accept-plus`)

Runs FedHP+, its plain form and its rivals in three worlds, IID and at p = 0.8, prints every check
of acceptance_plus.py, and exits with 1 if one fails. Other data, seeds, targets:
make accept-plus ARGS="data.name=emnist data.split=digits --targets 0.93,0.88 --seeds 0,1,2"
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from accept import campaign_parser, compare_runs, exit_code_of
from acceptance_checks import IID, AcceptanceCheck
from acceptance_plus import (
    ALGORITHMS,
    FREE,
    FREE_LINKS,
    FREE_PLUS,
    LEVEL_NAMES,
    LIMITS,
    OURS,
    TARGETS,
    WORLDS,
    plus_checks,
    plus_notes,
    read_promises,
)
from rich.table import Table

from fedhp.cli.parameters import choose_folder, table_console
from fedhp.errors import ConfigError, Diverged
from fedhp.record.reader import find_runs
from fedhp.report.claims.acceptance import SKEWED
from fedhp.report.claims.runs import group_runs
from fedhp.report.groups import RunCurves, read_curves
from fedhp.report.tables import comparison_table


def main() -> int:
    """Run, check, print."""
    arguments = _arguments()
    targets = _targets(arguments.targets)
    out = choose_folder(
        Path(arguments.out) if arguments.out else None,
        Path(arguments.experiment),
        resume=arguments.resume,
    )
    started = time.monotonic()
    console = table_console()
    runs: list[tuple[str, float, RunCurves]] = []
    tested = f"evaluation.targets=[{','.join(str(each) for each in sorted(targets.values()))}]"
    for world, settings in WORLDS.items():
        for skew in targets:
            folder = out / world.replace(" ", "-") / f"skew-{skew}"
            own = _compare(arguments, skew, ALGORITHMS[world], folder, [*settings, tested])
            runs += [(world, skew, run) for run in own]
            console.print(f"\n{world}, {LEVEL_NAMES[skew]}")
            console.print(comparison_table([run.summary for run in own]))
    for skew, target in targets.items():
        settings = (*FREE_LINKS, tested, f"until.accuracy={target}")
        own = _compare(arguments, skew, (*LIMITS, FREE_PLUS), out / FREE / f"skew-{skew}", settings)
        runs += [(FREE, skew, run) for run in own]
    by_key = group_runs(runs)
    promises = [read_promises(run.folder) for _, _, run in runs if run.summary.algorithm == OURS]
    checks = plus_checks(by_key, promises, targets=targets)
    console.print(_table(checks))
    for note in plus_notes(by_key, targets=targets):
        console.print(note, highlight=False)
    passed = [check.passed for check in checks]
    console.print(f"{passed.count(True)} passed, {passed.count(False)} failed", highlight=False)
    console.print(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    return 0 if all(passed) else 1


def _arguments() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument(
        "--targets", help="IID and at p = 0.8, such as 0.94,0.90 (the default): for other data"
    )
    return parser.parse_intermixed_args()


def _targets(text: str | None) -> Mapping[float, float]:
    """The target of each level."""
    if text is None:
        return TARGETS
    try:
        iid, skewed = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"is {text!r}",
            key="--targets",
            allowed="two accuracies as shares: IID, at p = 0.8",
            fix="for example: --targets 0.94,0.90",
        ) from None
    return {IID: iid, SKEWED: skewed}


def _compare(
    arguments: argparse.Namespace,
    skew: float,
    algorithms: Sequence[str],
    out: Path,
    overrides: Sequence[str],
) -> list[RunCurves]:
    """The runs; one that diverges is judged like the others, and the check says so."""
    try:
        return compare_runs(arguments, skew, algorithms, out, overrides=overrides)
    except Diverged as error:
        print(f"warning: {error}", file=sys.stderr)
        return [read_curves(folder) for folder in find_runs(out)]


def _table(checks: Sequence[AcceptanceCheck]) -> Table:
    table = Table(title="acceptance of FedHP+")
    for header in ("check", "figure", "bar", ""):
        table.add_column(header)
    for check in checks:
        result = "pass" if check.passed else "FAIL"
        table.add_row(check.name, check.figure, check.bar, result)
    return table


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
