"""`make bench`: every claim in interleaved repeats, each piece in a fresh process.

Repeat k runs the pieces of a group forwards, repeat k + 1 backwards, so that a machine that
grows slower or faster during the run favours nobody. Ratios are made within a repeat.
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

from bench.claim import Group, Piece
from bench.claims import groups
from bench.report import Row, missed, read_rows, row_of, show, write
from bench.venvs import ROOT, NotInstalled, python_of
from bench.work import write_data

PIECE_SECONDS = 900
PEER_ROUNDS = {True: {"cnn": 2, "other": 5}, False: {"cnn": 3, "other": 20}}  # by quick


class Failed(Exception):
    """Why a piece has no result, in one line."""


def main() -> int:
    """Run, print, write; 1 if a claim missed its bar or a piece of ours failed."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # pieces are ended on the way out
    chosen = _chosen(arguments.only)
    if not chosen:
        names = ", ".join(group.name for group in groups())
        print(f"no claim is called {arguments.only!r}; there are: {names}", file=sys.stderr)
        return 2
    out = arguments.out or ROOT / ("runs/bench" if arguments.quick else "bench")
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"warning: load average {busy:.1f}; others use this machine, figures will waver")
    rows: list[Row] = []
    # Ratios are made within a group's repeats, so groups may be measured at different times.
    others = {} if arguments.quick or not arguments.only else read_rows(out)
    with tempfile.TemporaryDirectory(prefix="fedhp-bench-") as folder:
        write_data(Path(folder))
        for group in chosen:
            rows += _measure(group, arguments, Path(folder))
            write(_in_order(rows, others), out, quick=arguments.quick)  # kept as it comes
    show(rows)
    return 1 if missed(rows) else 0


def _in_order(rows: list[Row], others: dict[str, Row]) -> list[Row]:
    """The new rows among those of other groups, in the order of the claims."""
    known = {**others, **{row.name: row for row in rows}}
    return [known[c.name] for group in groups() for c in group.claims if c.name in known]


def _chosen(name: str) -> list[Group]:
    """The group of exactly this name, or all groups with a claim whose name contains it."""
    exact = [group for group in groups() if group.name == name]
    return exact or [group for group in groups() if any(name in c.name for c in group.claims)]


def _measure(group: Group, arguments: argparse.Namespace, folder: Path) -> list[Row]:
    """All repeats of a group's pieces; a peer that failed once is not tried again."""
    repeats: list[dict[str, dict[str, float]]] = []
    failed: dict[str, str] = {}
    for index in range(arguments.repeats):
        found: dict[str, dict[str, float]] = {}
        for piece in group.pieces if index % 2 == 0 else group.pieces[::-1]:
            if piece.key in failed:
                continue
            try:
                found[piece.key] = _run(piece, folder, quick=arguments.quick)
            except (Failed, NotInstalled) as error:
                failed[piece.key] = f"{piece.peer or 'fedhp'}: {error}"
            told = found.get(piece.key) or failed[piece.key]
            print(f"{group.name} {index + 1}/{arguments.repeats} {piece.key}: {told}", flush=True)
        repeats.append(found)
    theirs = {piece.key for piece in group.pieces if piece.peer}
    return [row_of(claim, repeats, failed=failed, theirs=theirs) for claim in group.claims]


def _run(piece: Piece, folder: Path, *, quick: bool) -> dict[str, float]:
    """One piece in a process of its own; its last line is the result."""
    if piece.peer:
        rounds = PEER_ROUNDS[quick]["other" if "--model" in piece.options else "cnn"]
        command = [str(python_of(piece.peer)), "-m", piece.program, "--rounds", str(rounds)]
        path = str(ROOT)
    else:
        command = [sys.executable, "-m", "bench.piece", piece.program]
        command += ["--quick"] if quick else []
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    process = subprocess.Popen(
        [*command, "--data", str(folder), *piece.options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that it can be ended with all it started
    )
    try:
        output, errors = process.communicate(timeout=PIECE_SECONDS)
    except subprocess.TimeoutExpired:
        raise Failed(f"took over {PIECE_SECONDS} s") from None
    finally:
        _end(process)
    if process.returncode:
        last = [line for line in errors.splitlines() if line.strip()] or ["no message"]
        raise Failed(f"exit code {process.returncode} ({last[-1].strip()[:160]})")
    found: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """End the piece and what it left behind (Ray's daemons are its children)."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="a group, or part of a claim's name")
    parser.add_argument("--quick", action="store_true", help="shorter pieces: a try, no evidence")
    parser.add_argument("--out", type=Path, help="folder of results.json, .md and .png")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
