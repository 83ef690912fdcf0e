"""Where the expected results are, and of which machine they are.

Digests depend on the processor. Those in this folder are of one kind (`machine` in expected.json)
and of one commit (`commit`). For another kind reference.py lets that commit make its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from frozen.running import machine

HERE = Path(__file__).parent
MADE = HERE.parents[1] / "build" / "frozen"
EXPECTED, OUTPUTS = "expected.json", "outputs.json"  # digests; what commands printed; by name
RECORDED, ARCHIVE = "recorded.json", "recorded.tar.xz"
MACHINE, COMMIT = "machine", "commit"  # in EXPECTED, beside the names


def read(path: Path) -> dict[str, Any]:
    """A file of expectations."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content


def write(path: Path, content: dict[str, Any]) -> None:
    """The same with one line per number, so that a change of it can be read."""
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def place() -> Path:
    """The folder with the expectations for this machine; it may not be there yet."""
    here = machine()
    return HERE if read(HERE / EXPECTED).get(MACHINE) == here else MADE / here


def other_machine() -> str:
    """Why digests cannot be compared here; empty if they can."""
    if (place() / EXPECTED).exists():
        return ""
    return "the digests are of another kind of processor: `make frozen` makes those of this one"
