"""Which tests see which mutant. What was recorded is kept: a test file is recorded again when it,
what tests share, or a module that it runs has changed."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from mutants.operators import Mutant
from mutants.recording import MODULE, MODULE_TEXT, noting
from mutants.rooms import ROOT, SOURCE, copy_tree, mutated_files
from mutants.worker import Worker

KEPT = ROOT / ".mutants" / "tests.json"
# Not those of texts, pages, data and the source itself, of real processes and browsers. Those with
# a federation in one process take longest, and come last.
ORDER = (
    *("unit/test_", "unit/learn", "unit/record", "unit/engine", "paper", "property", "contract"),
    *("net", "faults", "dash/test_security", "equality", "attacks"),
)
UNSHARED = ("mutants", "meta", "ui", "cli", "fuzz", "frozen")  # with helpers of their own
FILE_SECONDS = 240.0  # to record one file
AT_ONCE = 6  # files that are recorded by one process
LONGEST_CPU, LONGEST = 4.0, 30.0  # s, of a test that is used; other work may slow it down
FIRST_TESTS, FIRST_SECONDS = 12, 4.0  # of a mutant: those that run little else
ALL_SECONDS = 60.0  # of all tests of a mutant


@dataclass(frozen=True, slots=True)
class SeenTest:
    """A test that passes, with the blocks that it runs (FILE:LINE)."""

    name: str
    seconds: float
    hits: frozenset[str]


def in_parallel(jobs: Iterable[Callable[[Worker], None]], workers: Sequence[Worker]) -> None:
    """Each job with a worker that is free."""
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def carry_out(job: Callable[[Worker], None]) -> None:
        worker = free.get()
        try:
            job(worker)
        finally:
            free.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        for done in [pool.submit(carry_out, job) for job in jobs]:
            done.result()


def recorded_tests(
    *, jobs: int, files: Collection[str], say: Callable[[str], None]
) -> list[SeenTest]:
    """All tests that can be used, or those of some files; recorded where they are not known."""
    modules = {file: _digest(ROOT / SOURCE / file) for file in mutated_files(ROOT)}
    shared = _shared_digest()
    known = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    chosen = {
        file.relative_to(ROOT).as_posix(): file
        for file in sorted((ROOT / "tests").rglob("test_*.py"), key=_turn)
        if _turn(file)[0] < len(ORDER) and _is_below(file, files or ORDER)
    }

    digests = {name: _digest(file) + shared for name, file in chosen.items()}

    def is_current(name: str) -> bool:
        entry = known.get(name)
        return (
            entry is not None
            and entry["digest"] == digests[name]
            and all(modules.get(module) == digest for module, digest in entry["modules"].items())
        )

    missing = [name for name in chosen if not is_current(name)]
    if missing:
        say(f"recording which lines the tests of {len(missing)} files run")
        with tempfile.TemporaryDirectory(prefix="fedhp-mutants-") as folder:
            workers = []
            for number in range(jobs):
                tree = copy_tree(_made(Path(folder) / str(number)))
                (tree / SOURCE / f"{MODULE}.py").write_text(MODULE_TEXT)
                for module in modules:
                    file = tree / SOURCE / module
                    file.write_text(noting(module, file.read_text(encoding="utf-8")))
                workers.append(Worker(tree))

            def record(names: Sequence[str]) -> Callable[[Worker], None]:
                def job(worker: Worker) -> None:
                    lines = worker.tree / "recording.jsonl"
                    lines.write_text("")
                    limit = FILE_SECONDS * len(names)
                    outcome = worker.run(list(names), limit=limit, record=lines)
                    found = [json.loads(line) for line in lines.read_text().splitlines()]
                    for name in names:
                        tests = [test for test in found if test["test"].startswith(f"{name}::")]
                        used = {hit.partition(":")[0] for test in tests for hit in test["hits"]}
                        known[name] = {
                            "digest": digests[name],
                            "modules": {module: modules[module] for module in sorted(used)},
                            "tests": tests,
                        }
                    KEPT.parent.mkdir(exist_ok=True)
                    KEPT.write_text(json.dumps(dict(known)), encoding="utf-8")
                    end = "" if outcome.code in (0, 1, 5) else f" (ended with {outcome.code})"
                    say(f"  {names[0]} ...: {len(found)} tests in {outcome.seconds:.0f} s{end}")

                return job

            parts = [missing[start : start + AT_ONCE] for start in range(0, len(missing), AT_ONCE)]
            try:
                in_parallel([record(part) for part in parts], workers)
            finally:
                for worker in workers:
                    worker.close()
    return [
        SeenTest(test["test"], test["seconds"], frozenset(test["hits"]))
        for name in chosen
        for test in known[name]["tests"]
        if test["cpu"] <= LONGEST_CPU and test["seconds"] <= LONGEST
    ]


class Selection:
    """The tests of each block, those first that run little else."""

    def __init__(self, tests: Iterable[SeenTest]) -> None:
        self._tests = list(tests)
        self._by_hit: defaultdict[str, list[SeenTest]] = defaultdict(list)
        self._by_module: defaultdict[str, list[SeenTest]] = defaultdict(list)
        for test in sorted(self._tests, key=lambda test: len(test.hits)):
            for hit in test.hits:
                self._by_hit[hit].append(test)
            for module in {hit.partition(":")[0] for hit in test.hits}:
                self._by_module[module].append(test)

    def without(self, names: Collection[str]) -> Selection:
        """The same without some tests."""
        return Selection(test for test in self._tests if test.name not in names)

    def tests_for(self, mutant: Mutant) -> list[list[SeenTest]]:
        """Those that run first, and the others; none if no test runs the mutated line."""
        hits = [f"{mutant.file}:{line}" for line in mutant.blocks]
        seen = {test.name: test for hit in hits for test in self._by_hit.get(hit, ())}
        tests = sorted(seen.values(), key=lambda test: len(test.hits))
        if not tests and not _is_in_function(mutant):
            tests = self._by_module.get(mutant.file) or self._mentioning(Path(mutant.file).stem)
        first: list[SeenTest] = []
        others: list[SeenTest] = []
        time = 0.0
        for test in tests:
            time += test.seconds
            if time > ALL_SECONDS:
                break
            is_first = len(first) < FIRST_TESTS and sum(t.seconds for t in first) < FIRST_SECONDS
            (first if is_first and test.seconds < 1 else others).append(test)
        return [part for part in (first, others) if part]

    def _mentioning(self, module: str) -> list[SeenTest]:
        """Tests of the files that name a module: of declarations, of which nothing is run."""
        files = {test.name.partition("::")[0] for test in self._tests}
        word = re.compile(rf"\b{module}\b")
        found = {file for file in files if word.search((ROOT / file).read_text(encoding="utf-8"))}
        tests = [test for test in self._tests if test.name.partition("::")[0] in found]
        return sorted(tests, key=lambda test: len(test.hits))


def _is_below(file: Path, starts: Iterable[str]) -> bool:
    path = file.relative_to(ROOT / "tests").as_posix()
    return any(path.startswith(start) for start in starts)


def _turn(file: Path) -> tuple[int, Path]:
    """Its place in the order; after the end: it is not used."""
    place = next((i for i, start in enumerate(ORDER) if _is_below(file, [start])), len(ORDER))
    return place, file


def _is_in_function(mutant: Mutant) -> bool:
    return len(mutant.blocks) == 1


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _shared_digest() -> str:
    """Of what several tests use."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "tests").rglob("*.py")):
        if not file.name.startswith("test_") and not _is_below(file, UNSHARED):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
