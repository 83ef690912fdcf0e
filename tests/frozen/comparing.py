"""The expected results and how the present ones are compared with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from frozen import recorded, refused
from frozen.cases import Case, all_cases
from frozen.running import machine, seen_of

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"  # name -> digests
OUTPUTS = HERE / "outputs.json"  # name -> command -> what it printed
MACHINE = "machine"  # in EXPECTED: which arithmetic the digests are of


def read(path: Path) -> dict[str, Any]:
    """A file of expectations."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content


def write(path: Path, content: dict[str, Any]) -> None:
    """The same with one line per number, so that a change of it can be read."""
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def other_machine() -> str:
    """Why digests cannot be compared here; empty if they can."""
    expected, here = read(EXPECTED).get(MACHINE, ""), machine()
    if expected in ("", here):
        return ""
    return (
        f"the digests are of arithmetic {expected}, but processor and libraries here have {here}: "
        "compare with the digests of an earlier commit on this machine instead"
    )


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
    expected, kept = read(EXPECTED).get(case.name), read(OUTPUTS).get(case.name, {})
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
    write(EXPECTED, {**read(EXPECTED), case.name: seen, MACHINE: machine()})
    kept = {name: told for name, told in read(OUTPUTS).items() if name != case.name}
    write(OUTPUTS, {**kept, **({case.name: outputs} if outputs else {})})


def strangers(folder: Path) -> Iterator[str]:
    """Expectations of cases that are no longer there."""
    names = {case.name for case in all_cases()}
    for name in sorted((read(EXPECTED).keys() | read(OUTPUTS).keys()) - names - {MACHINE}):
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
