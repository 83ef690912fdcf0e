"""`make bench`: every claim in interleaved repeats, each measurement in a new process.

Repeat k runs the measurements of a group forwards, repeat k + 1 backwards, so that no side gains
if the machine becomes slower or faster. Ratios are computed within a repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.claim import Group, Measurement
from bench.claims import groups
from bench.report import Row, missed, read_rows, row_of, show, write
from bench.venvs import ROOT, NotInstalled, python_of
from bench.work import write_data

MEASUREMENT_SECONDS = 900
PEER_ROUNDS = {True: {"cnn": 2, "other": 5}, False: {"cnn": 3, "other": 20}}  # by quick


class MeasurementFailed(Exception):
    """Why a measurement has no result, in one line."""


def main() -> int:
    """Measure, print and write; 1 if a claim missed its bar or one of our measurements failed."""
    arguments = _arguments()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # running measurements are ended on exit
    chosen = _chosen(arguments.only)
    if not chosen:
        names = ", ".join(group.name for group in groups())
        print(f"unknown claim {arguments.only!r}; groups: {names}", file=sys.stderr)
        return 2
    out = arguments.out or ROOT / ("runs/bench" if arguments.quick else "bench")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: load average {load:.1f}: the machine is busy, results will vary")
    rows: list[Row] = []
    # Ratios are computed within a repeat of a group, so groups can be measured at different times.
    others = {} if arguments.quick or not arguments.only else read_rows(out)
    with tempfile.TemporaryDirectory(prefix="fedhp-bench-") as folder:
        write_data(Path(folder))
        for group in chosen:
            rows += _measure(group, arguments, Path(folder))
            write(_in_order(rows, others), out, quick=arguments.quick)  # after every group
    show(rows)
    return 1 if missed(rows) else 0


def _in_order(rows: list[Row], others: dict[str, Row]) -> list[Row]:
    """The new rows and those of other groups, in the order of the claims."""
    known = {**others, **{row.name: row for row in rows}}
    return [known[c.name] for group in groups() for c in group.claims if c.name in known]


def _chosen(name: str) -> list[Group]:
    """The group with this name, or all groups with a claim whose name contains it."""
    exact = [group for group in groups() if group.name == name]
    return exact or [group for group in groups() if any(name in c.name for c in group.claims)]


def _measure(group: Group, arguments: argparse.Namespace, folder: Path) -> list[Row]:
    """All repeats of a group; a measurement that failed is not repeated."""
    repeats: list[dict[str, dict[str, float]]] = []
    failed: dict[str, str] = {}
    for index in range(arguments.repeats):
        results: dict[str, dict[str, float]] = {}
        for measurement in group.measurements if index % 2 == 0 else group.measurements[::-1]:
            if measurement.key in failed:
                continue
            try:
                results[measurement.key] = _run(measurement, folder, quick=arguments.quick)
            except (MeasurementFailed, NotInstalled) as error:
                failed[measurement.key] = f"{measurement.peer or 'fedhp'}: {error}"
            outcome = results.get(measurement.key) or failed[measurement.key]
            print(
                f"{group.name} {index + 1}/{arguments.repeats} {measurement.key}: {outcome}",
                flush=True,
            )
        repeats.append(results)
    theirs = {measurement.key for measurement in group.measurements if measurement.peer}
    return [row_of(claim, repeats, failed=failed, theirs=theirs) for claim in group.claims]


def _run(measurement: Measurement, folder: Path, *, quick: bool) -> dict[str, float]:
    """One measurement in a new process; its last line of output is the result."""
    if measurement.peer:
        rounds = PEER_ROUNDS[quick]["other" if "--model" in measurement.options else "cnn"]
        command = [
            str(python_of(measurement.peer)),
            "-m",
            measurement.program,
            "--rounds",
            str(rounds),
        ]
        path = str(ROOT)
    else:
        command = [sys.executable, "-m", "bench.measurements", measurement.program]
        command += ["--quick"] if quick else []
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    process = subprocess.Popen(
        [*command, "--data", str(folder), *measurement.options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that it can be ended with all its children
    )
    try:
        output, errors = process.communicate(timeout=MEASUREMENT_SECONDS)
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"took over {MEASUREMENT_SECONDS} s") from None
    finally:
        _end(process)
    if process.returncode:
        last = [line for line in errors.splitlines() if line.strip()] or ["no message"]
        raise MeasurementFailed(f"exit code {process.returncode} ({last[-1].strip()[:160]})")
    results: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return results


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its children (such as Ray's daemons)."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="a group, or part of the name of a claim")
    parser.add_argument(
        "--quick", action="store_true", help="shorter measurements, for a quick check only"
    )
    parser.add_argument("--out", type=Path, help="folder for results.json, .md and .png")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
