"""The expected results and how the present ones are compared with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from frozen import recorded, refused
from frozen.cases import Case, all_cases
from frozen.kept import COMMIT, EXPECTED, HERE, MACHINE, OUTPUTS, place, read, write
from frozen.running import seen_of


def seen_in(case: Case, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of a case as JSON has them."""
    place = folder / "".join(letter if letter.isalnum() else "-" for letter in case.name)
    shutil.rmtree(place, ignore_errors=True)
    try:
        seen, outputs = seen_of(case, place)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}, {}
    shutil.rmtree(place, ignore_errors=True)
    return json.loads(json.dumps(seen)), json.loads(json.dumps(outputs))


def differences(case: Case, folder: Path) -> Iterator[str]:
    """A line for every value that is another one."""
    seen, outputs = seen_in(case, folder)
    expected = read(place() / EXPECTED).get(case.name)
    kept = read(place() / OUTPUTS).get(case.name, {})
    if expected is None:
        yield f"{case.name}: nothing is expected; python -m frozen --update {case.name!r}"
        return
    if "error" in seen:
        yield f"{case.name}: {seen['error']}"
        return
    yield from unlike(case.name, expected, seen)
    yield from unlike(case.name, kept, outputs)


def unlike(name: str, expected: Any, seen: Any) -> Iterator[str]:
    """Where two JSON values differ."""
    if isinstance(expected, dict) and isinstance(seen, dict):
        for key in sorted(expected.keys() | seen.keys()):
            nothing = "(nothing)"
            yield from unlike(f"{name}: {key}", expected.get(key, nothing), seen.get(key, nothing))
    elif isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        for position, (before, now) in enumerate(zip(expected, seen, strict=True)):
            yield from unlike(f"{name}: {position}", before, now)
    elif expected != seen:
        yield f"{name}: expected {expected!r}, seen {seen!r}"


def update(case: Case, folder: Path) -> None:
    """Expect the present results of a case."""
    seen, outputs = seen_in(case, folder)
    if "error" in seen:
        raise SystemExit(f"{case.name}: {seen['error']}")
    write(HERE / EXPECTED, {**read(HERE / EXPECTED), case.name: seen})
    kept = {name: told for name, told in read(HERE / OUTPUTS).items() if name != case.name}
    write(HERE / OUTPUTS, {**kept, **({case.name: outputs} if outputs else {})})


def strangers(folder: Path) -> Iterator[str]:
    """Expectations of cases that are no longer there."""
    names = {case.name for case in all_cases()}
    kept = read(HERE / EXPECTED).keys() | read(HERE / OUTPUTS).keys()
    for name in sorted(kept - names - {MACHINE, COMMIT}):
        yield f"{name}: is expected, but there is no such case"


# What is compared besides the runs, and what --update can write again besides them.
OTHERS: dict[str, Callable[[Path], Iterator[str]]] = {
    "names": strangers,
    "refused": refused.differences,
    "recorded": recorded.differences,
}
UPDATES: dict[str, Callable[[Path], None]] = {
    "refused": refused.update,
    "recorded": recorded.update,
}
