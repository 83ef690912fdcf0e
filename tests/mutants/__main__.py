"""Plant faults and see whether the tests notice: python -m mutants [--sample N] [--seed S].

Prints the score and each fault that nothing noticed; exits with 1 below 95 %.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants.operators import Mutant, mutants_of
from mutants.rooms import ROOT, SOURCE, copy_tree, mutated_files
from mutants.selection import SeenTest, Selection, in_parallel, recorded_tests
from mutants.worker import Worker

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
NEEDED = 0.95
SAMPLE, SEED = 120, 1
FIELDS = ("file", "function", "line", "operator", "becomes")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    killed: bool
    by: str  # the test, or why there was none


def draw(count: int, seed: int, *, only: str = "") -> list[Mutant]:
    """A sample: the modules in turn, of each a random kind of fault, of these a random one."""
    rng = random.Random(seed)
    left: dict[str, dict[str, list[Mutant]]] = {}
    for file in mutated_files(ROOT):
        if file.startswith(only):
            kinds: defaultdict[str, list[Mutant]] = defaultdict(list)
            for mutant in mutants_of(file, (ROOT / SOURCE / file).read_text(encoding="utf-8")):
                kinds[mutant.operator].append(mutant)
            left[file] = dict(kinds)
    sample: list[Mutant] = []
    while len(sample) < count and any(left.values()):
        for file in rng.sample(sorted(left), len(left)):
            kinds_left = left[file]
            if kinds_left and len(sample) < count:
                kind = rng.choice(sorted(kinds_left))
                sample.append(kinds_left[kind].pop(rng.randrange(len(kinds_left[kind]))))
                if not kinds_left[kind]:
                    del kinds_left[kind]
    return sample


def equivalents() -> list[dict[str, Any]]:
    """The reviewed list: tables with the fields of a mutant's key, and the reason."""
    with EQUIVALENT.open("rb") as file:
        entries: list[dict[str, Any]] = tomllib.load(file).get("equivalent", [])
    return entries


def is_listed(mutant: Mutant, entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an entry names this mutant; its field `becomes` is a list of lines."""
    *place, new_line = mutant.key
    return any(
        place == [entry[name] for name in FIELDS[:-1]] and new_line in entry["becomes"]
        for entry in entries
    )


def try_mutant(mutant: Mutant, tests: Sequence[Sequence[SeenTest]], worker: Worker) -> Result:
    """Run the tests with the fault in the worker's copy, which is as before afterwards."""
    if not tests:
        return Result(mutant, killed=False, by="no fast test runs this line")
    file = worker.tree / SOURCE / mutant.file
    text, before = file.read_text(encoding="utf-8"), file.stat()
    try:
        file.write_text(mutant.applied(text), encoding="utf-8")
        # Another time than any other version: Python reads compiled files by time and size.
        _stamp(file)
        for part in tests:
            limit = 30 + 5 * sum(test.seconds for test in part)
            names = [test.name for test in part]
            outcome = worker.run(names, limit=limit)
            if outcome.code == -1:
                return Result(mutant, killed=True, by="the time limit")
            if outcome.code != 0:
                failed = outcome.failed_test(names)
                return Result(mutant, killed=True, by=failed or outcome.told[-300:])
    finally:
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    count = sum(map(len, tests))
    return Result(mutant, killed=False, by=f"{count} tests passed")


_stamps = iter(range(10**9))


def _stamp(file: Path) -> None:
    moment = int(time.time()) - 10**8 + 2 * next(_stamps)
    os.utime(file, (moment, moment))


def try_all(
    mutants: Sequence[Mutant],
    selection: Selection,
    *,
    jobs: int,
    say: Callable[[str], None],
) -> list[Result]:
    """All results. A test that failed must pass without a fault, or it does not count."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="fedhp-mutants-") as folder:
        workers = []
        for number in range(jobs):
            tree = Path(folder) / str(number)
            tree.mkdir()
            workers.append(Worker(copy_tree(tree)))

        def trial(mutant: Mutant) -> Callable[[Worker], None]:
            def job(worker: Worker) -> None:
                began = time.monotonic()
                result = try_mutant(mutant, selection.tests_for(mutant), worker)
                results.append(result)
                took = time.monotonic() - began
                say(f"{len(results)}/{len(mutants)} {took:.0f} s {_line(result)}")

            return job

        try:
            in_parallel([trial(mutant) for mutant in mutants], workers)
            suspects = sorted({result.by for result in results if result.by.startswith("tests/")})
            unsure = _failing(suspects, workers[0])
            if unsure:
                say(f"these tests fail without a fault and do not count: {', '.join(unsure)}")
                again = [result.mutant for result in results if result.by in unsure]
                results = [result for result in results if result.by not in unsure]
                selection = selection.without(unsure)
                in_parallel([trial(mutant) for mutant in again], workers)
        finally:
            for worker in workers:
                worker.close()
    return sorted(results, key=lambda result: (result.mutant.file, result.mutant.start))


def _failing(tests: Sequence[str], worker: Worker) -> set[str]:
    """Those of these tests that do not pass as things are."""
    failing: set[str] = set()
    left = list(tests)
    while left:
        outcome = worker.run(left, limit=60 + 10 * len(left))
        if outcome.code == 0:
            break
        test = outcome.failed_test(left)
        if not test:
            raise RuntimeError(f"the tests do not run without a fault: {outcome.told[-500:]}")
        failing.add(test)
        left.remove(test)
    return failing


def _line(result: Result) -> str:
    mutant = result.mutant
    state = "killed  " if result.killed else "SURVIVED"
    return (
        f"{state} {mutant.file}:{mutant.start[0]} {mutant.operator}: "
        f"{mutant.old_line}  ->  {mutant.new_line}  [{result.by}]"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many mutants")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="start of the path of a module in src/fedhp")
    parser.add_argument("--tests", default="", help="starts of paths in tests/, by commas")
    options = parser.parse_args(arguments)
    started = time.monotonic()

    def say(text: str) -> None:
        print(text, flush=True)

    entries = equivalents()
    sample = draw(options.sample, options.seed, only=options.only)
    rest = [mutant for mutant in sample if not is_listed(mutant, entries)]
    tests = recorded_tests(
        jobs=options.jobs, files=[name for name in options.tests.split(",") if name], say=say
    )
    say(f"{len(sample)} mutants, {len(tests)} tests that run their modules")
    results = try_all(rest, Selection(tests), jobs=options.jobs, say=say)
    survivors = [result for result in results if not result.killed]
    killed = len(results) - len(survivors)
    score = killed / len(results) if results else 1.0
    say("")
    for result in survivors:
        mutant = result.mutant
        say(
            f"{mutant.file}:{mutant.start[0]} in {mutant.function or 'the module'} "
            f"({mutant.operator}; {result.by})"
        )
        say(f"  - {mutant.old_line}")
        say(f"  + {mutant.new_line}")
    kinds = Counter(result.mutant.operator for result in survivors)
    say(
        "survivors by operator: " + (", ".join(f"{k} {n}" for k, n in sorted(kinds.items())) or "-")
    )
    say(
        f"seed {options.seed}: {len(sample)} mutants, killed {killed}, survived {len(survivors)}, "
        f"equivalent {len(sample) - len(rest)}; score {score:.1%} (needed: {NEEDED:.0%}); "
        f"{(time.monotonic() - started) / 60:.1f} min"
    )
    return int(score < NEEDED)


if __name__ == "__main__":
    sys.exit(main())
