"""Experiments that are refused, as data: which error, which key it names, and whom it blames.

refused.json has for each: `tables` (or `text`) of the experiment file, `overrides` or a whole
`command`, and what is `expected`. {MATERIAL} and {WORLDS} in texts are folders.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

import fedhp
from fedhp.cli import call
from fedhp.errors import FedhpError
from frozen.running import WORLDS, surroundings
from fuzz.material import write_material

HERE = Path(__file__).parent
REFUSED = HERE / "refused.json"
Entry = dict[str, Any]


@contextlib.contextmanager
def material(folder: Path) -> Iterator[Path]:
    """Broken files and own parts that do not fit; official data sets are not found."""
    place = folder / "material"
    if not place.exists():
        place.mkdir(parents=True)
        write_material(place)
    names = ("FEDHP_DATA", "FEDHP_CACHE")
    before = {name: os.environ.get(name) for name in names}
    os.environ.pop("FEDHP_DATA", None)
    os.environ["FEDHP_CACHE"] = str(place / "no_cache")
    sys.path[:0] = paths = [str(place), str(HERE / "own")]
    try:
        with surroundings():
            yield place
    finally:
        for path in paths:
            sys.path.remove(path)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def entries() -> dict[str, Entry]:
    """All of them by name."""
    content: dict[str, Entry] = json.loads(REFUSED.read_text(encoding="utf-8"))
    return content


def refusal(entry: Entry, place: Path, folder: Path) -> Entry:
    """How an experiment is refused; place is that of the material."""
    filled = _filled(entry, {"MATERIAL": str(place), "WORLDS": str(WORLDS)})
    file, out = folder / "refused.toml", folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    text = filled["text"] if "text" in filled else tomli_w.dumps(filled.get("tables", {}))
    file.write_text(text, encoding="utf-8")
    overrides = filled.get("overrides", [])
    command = filled.get("command")
    seen: Entry = {}
    if command is None:
        try:
            fedhp.start(fedhp.load_experiment(file, *overrides), out)
        except FedhpError as error:
            seen = {"type": type(error).__name__, "key": getattr(error, "key", "")}
        else:
            return {"type": "accepted"}
        command = ["run", "FILE", *overrides]
    words = [str(file) if word == "FILE" else word for word in command]
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(io.StringIO()):
        code = call([*words, "--out", str(out)])
    return {**seen, "code": int(code), **blamed(heard.getvalue(), str(file))}


def blamed(text: str, file: str) -> Entry:
    """The origin and the key that a message begins with: `error: ORIGIN: KEY: what is wrong`."""
    line = next((line for line in text.splitlines() if line.startswith("error: ")), "")
    rest = line.removeprefix("error: ")
    origin = ""
    for name, beginning in (("file", re.escape(file)), ("command line", "command line")):
        if found := re.match(rf"{beginning}(?P<more>.*?): ", rest):
            more = found["more"]
            origin = "file and command line" if "on the command line" in more else name
            rest = rest[found.end() :]
            break
    key = re.match(r"((?:--)?[\w-]+(?:\.[^\s:]+)*): ", rest)
    return {"origin": origin, "named": key[1] if key else ""}


def _filled(value: Any, places: dict[str, str]) -> Any:
    """The same with the folders of this machine."""
    if isinstance(value, str):
        for name, place in places.items():
            value = value.replace(f"{{{name}}}", place)
        return value
    if isinstance(value, dict):
        return {key: _filled(item, places) for key, item in value.items()}
    return [_filled(item, places) for item in value] if isinstance(value, list) else value


def differences(folder: Path, *, every: int = 1) -> Iterator[str]:
    """A line for every experiment that is not refused as it was; or for each n-th only."""
    folder.mkdir(parents=True, exist_ok=True)
    with material(folder) as place:
        for position, (name, entry) in enumerate(sorted(entries().items())):
            if position % every:
                continue
            seen = refusal(entry, place, folder)
            if seen != entry["expected"]:
                yield f"refused, {name}: expected {entry['expected']}, seen {seen}"


def update(folder: Path) -> None:
    """Expect the present refusals."""
    folder.mkdir(parents=True, exist_ok=True)
    with material(folder) as place:
        for_now = {
            name: {**entry, "expected": refusal(entry, place, folder)}
            for name, entry in entries().items()
        }
    lines = [f"{json.dumps(name)}: {json.dumps(for_now[name], sort_keys=True)}" for name in for_now]
    REFUSED.write_text("{\n" + ",\n".join(sorted(lines)) + "\n}\n", encoding="utf-8")
