"""Names and words: one class per name, and plain English in the source and the documents."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fedhp"
GENERATED = ("_pb2.py", "_pb2_grpc.py")
BANNED = re.compile(r"\b(anew|mend|mended|parted by|gone on with)\b", re.IGNORECASE)


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith(GENERATED))


def test_no_two_classes_have_the_same_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{module.relative_to(SOURCE)}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_banned_words_do_not_occur() -> None:
    """CONTRIBUTING.md names them as examples; it is not searched."""
    files = [*modules(), *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
    hits = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if BANNED.search(line)
    ]
    assert hits == []
