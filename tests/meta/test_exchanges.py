"""Nothing outside exchange/ asks which form of exchange it has: a form answers for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta.test_source import MODULES, SOURCE, dotted, tree_of

HOME = SOURCE / "exchange"
OUTSIDE = [module for module in MODULES if not module.is_relative_to(HOME)]


def forms() -> set[str]:
    """Exchange, Mail and all classes below them, and the functions that users call like one."""
    found, before = {"Exchange", "Mail"}, set[str]()
    trees = [tree_of(module) for module in sorted(HOME.rglob("*.py"))]
    while found != before:
        before = set(found)
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    found |= {node.name} if found & {dotted(b) for b in node.bases} else set()
                elif isinstance(node, ast.FunctionDef):
                    found |= {node.name} if node.name[0].isupper() else set()
    return found


def questions(tree: ast.Module, names: set[str]) -> Iterator[int]:
    """The lines that ask for a form: by isinstance, match, type(), a class's name or hasattr."""
    known = set(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            known |= {alias.asname for alias in node.names if alias.name in names and alias.asname}

    def named(node: ast.AST) -> bool:
        """Whether an expression has one of the forms, as a name or as a text."""
        return any(
            dotted(part).rpartition(".")[2] in known
            if isinstance(part, ast.Name | ast.Attribute)
            else isinstance(part, ast.Constant) and part.value in known
            for part in ast.walk(node)
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in {"isinstance", "issubclass"}:
            if named(node.args[1]):
                yield node.lineno
        elif isinstance(node, ast.Call) and dotted(node.func) in {"hasattr", "getattr"}:
            if dotted(node.args[0]).rpartition(".")[2] == "exchange":
                yield node.lineno
        elif isinstance(node, ast.MatchClass):
            if named(node.cls):
                yield node.cls.lineno
        elif isinstance(node, ast.Compare) and named(node):
            yield node.lineno


def test_the_forms_are_found() -> None:
    assert forms() >= {"Mixing", "NeighborMixing", "PeerScoring", "GroupAverage", "Meeting"}


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("isinstance(x, GroupAverage)", 1),
        ("isinstance(x, int | exchange.Mixing)", 1),
        ("type(x) is GroupAverage", 1),
        ("type(x).__name__ == 'GroupAverage'", 1),
        ("hasattr(plan.exchange, 'keep')", 1),
        ("match x:\n    case GroupAverage():\n        pass", 1),
        ("from fedhp.exchange import Mixing as M\nisinstance(x, M)", 1),
        ("GroupAverage(participants, parents, returning)", 0),
        ("isinstance(x, int)", 0),
    ],
)
def test_a_question_is_noticed(line: str, asked: int) -> None:
    assert len(list(questions(ast.parse(line), forms()))) == asked


def test_nobody_outside_asks_for_the_form_of_an_exchange() -> None:
    names = forms()
    asked = [
        f"{_name(module)}:{line}"
        for module in OUTSIDE
        for line in questions(tree_of(module), names)
    ]
    assert asked == []


def _name(module: Path) -> str:
    return str(module.relative_to(SOURCE))
