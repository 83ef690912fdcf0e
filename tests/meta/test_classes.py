"""How large classes are: one with many methods or constructor arguments is several ideas."""

from __future__ import annotations

import ast

from meta.test_source import MODULES, SOURCE, imported, tree_of

MOST_METHODS, MOST_ARGUMENTS = 35, 10
# What is still too large; these numbers may only fall, and leave with the class.
METHODS: dict[str, int] = {}
ARGUMENTS: dict[str, int] = {}


def methods_of(kind: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions in the body of a class, properties and private ones too."""
    return [node for node in kind.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def arguments_of(kind: ast.ClassDef) -> int:
    """How many arguments its own constructor has, without self."""
    for method in methods_of(kind):
        if method.name == "__init__":
            return len((*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)) - 1
    return 0


def classes() -> dict[str, ast.ClassDef]:
    """All classes, by module and name."""
    return {
        f"{module.relative_to(SOURCE).as_posix()}:{node.name}": node
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ClassDef)
    }


def test_no_class_has_too_many_methods() -> None:
    counts = {name: len(methods_of(kind)) for name, kind in classes().items()}
    large = {name: count for name, count in counts.items() if count > MOST_METHODS}
    assert large == METHODS


def test_no_constructor_has_too_many_arguments() -> None:
    counts = {name: arguments_of(kind) for name, kind in classes().items()}
    large = {name: count for name, count in counts.items() if count > MOST_ARGUMENTS}
    assert large == ARGUMENTS


def test_what_a_coordinator_knows_looks_at_no_clock() -> None:
    """Whoever calls passes the time; so a simulation can decide what it is."""
    folder = SOURCE / "cluster" / "coordinator"
    callers = ("coordinator.py", "service.py", "members/dial_back.py")  # the last one is given it
    for module in MODULES:
        inside = module.is_relative_to(folder) and not module.is_relative_to(folder / "process")
        if inside and module.relative_to(folder).as_posix() not in callers:
            assert "time" not in set(imported(tree_of(module))), module
