"""Compare everything with what is expected: python -m frozen [--only PATTERN] [--engine NAME].

--update NAME... takes the present results of these cases as the expected ones: only on purpose.
`refused` and `recorded` are names too. Prints each difference; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"

from frozen import comparing, kept, reference  # noqa: E402
from frozen.cases import Case, all_cases  # noqa: E402
from frozen.running import one_ray  # noqa: E402

ENGINES = ("one", "three", "ray", "network")


def matches(name: str, patterns: list[str]) -> bool:
    """Whether a name is meant: a shell pattern, or a part of the name."""
    return any(pattern in name or fnmatch.fnmatch(name, pattern) for pattern in patterns)


def main() -> int:
    """Compare, or update."""
    parser = argparse.ArgumentParser(prog="python -m frozen", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", action="append", default=[])
    parser.add_argument("--engine", choices=ENGINES, action="append", default=[])
    parser.add_argument("--fast", action="store_true", help="only the part of `make test`")
    parser.add_argument("--backwards", action="store_true", help="in the other order")
    parser.add_argument("--update", metavar="NAME", nargs="+", default=[])
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the run folders here")
    options = parser.parse_args()
    if options.update and kept.place() != kept.HERE:
        print("the digests in tests/frozen are of another kind of processor: update them there")
        return 2
    if kept.other_machine():
        reference.make()
    updating = list(options.update)
    only = updating or options.only
    cases = [
        case
        for case in all_cases()
        if (case.engine in options.engine or not options.engine)
        and (not only or (case.name in updating if updating else matches(case.name, only)))
        and (case.fast or not options.fast)
    ]
    cases.sort(key=lambda case: ENGINES.index(case.engine))
    if options.backwards:
        cases.reverse()
    folder = Path(tempfile.mkdtemp(prefix="frozen-")) if options.keep is None else options.keep
    try:
        if updating:
            return _update(cases, updating, folder)
        return _compare(cases, only, folder, everything=not options.engine)
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _on_their_engines(cases: list[Case]) -> Iterator[Case]:
    """The cases, with one Ray around those that need it."""
    for engine, group in groupby(cases, key=lambda case: case.engine):
        with one_ray() if engine == "ray" else contextlib.nullcontext():
            yield from group


def _compare(cases: list[Case], only: list[str], folder: Path, *, everything: bool) -> int:
    began, differences = time.monotonic(), 0
    for case in _on_their_engines(cases):
        for difference in comparing.differences(case, folder):
            differences += 1
            print(difference, flush=True)
    others = [name for name in comparing.OTHERS if everything and (not only or matches(name, only))]
    for name in others:
        for difference in comparing.OTHERS[name](folder):
            differences += 1
            print(difference, flush=True)
    checked = ", ".join([f"{len(cases)} runs", *others])
    print(f"{checked}: {differences} differences, {time.monotonic() - began:.0f} s")
    return 1 if differences else 0


def _update(cases: list[Case], names: list[str], folder: Path) -> int:
    unknown = set(names) - {case.name for case in cases} - set(comparing.UPDATES)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; python -m frozen --update takes whole names")
        return 2
    for case in _on_their_engines(cases):
        comparing.update(case, folder)
        print(f"updated: {case.name}", flush=True)
    for name, update in comparing.UPDATES.items():
        if name in names:
            update(folder)
            print(f"updated: {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
