"""One class per name in the whole source."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fedhp"
GENERATED = ("_pb2.py", "_pb2_grpc.py")


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith(GENERATED))


def test_no_two_classes_have_the_same_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{module.relative_to(SOURCE)}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
