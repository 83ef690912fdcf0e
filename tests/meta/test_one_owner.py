"""What belongs to one algorithm is in its file: counters that may only fall."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fedhp.algorithms.base import ALGORITHMS
from meta.test_source import MODULES, SOURCE, dotted, tree_of

CLASSES = {
    *(path.partition(":")[2] for path in ALGORITHMS.values()),
    "Algorithm",
    "AsyncAlgorithm",
    "Settings",
    "OnRing",
}
# The claims of the paper, its page and the bars of acceptance are about these algorithms.
CLAIMS = ("report/claims/", "report/pages/reproduction.py")
BASE = SOURCE / "algorithms" / "base.py"  # where a loaded part is checked
MOST_IN_CLAIMS = 67
MOST_NAMES = 1  # a note about PENS in config/rules.py


def class_checks() -> Iterator[str]:
    """isinstance and issubclass on classes of algorithms."""
    for module in MODULES:
        for node in ast.walk(tree_of(module)) if module != BASE else ():
            if isinstance(node, ast.Call) and dotted(node.func) in ("isinstance", "issubclass"):
                inner = [part for kind in node.args[1:] for part in ast.walk(kind)]
                names = {dotted(part) for part in inner if isinstance(part, ast.expr)}
                if {name.rpartition(".")[2] for name in names} & CLASSES:
                    yield f"{module.relative_to(SOURCE)}:{node.lineno}"


def named() -> Iterator[str]:
    """Where the name of a built-in algorithm is a text, alone or with settings. "fedhp" does not
    count: the program has that name as well; nor do the defaults of [compare]."""
    names = set(ALGORITHMS) - {"fedhp"}
    for module in MODULES:
        if module.parent == BASE.parent:
            continue
        tree = tree_of(module)
        defaults = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and dotted(node.target) == "algorithms"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            text = str(node.value) if isinstance(node, ast.Constant) else ""
            if text.partition(":")[0] in names and id(node) not in defaults:
                yield f"{module.relative_to(SOURCE)}"


def test_nobody_asks_for_the_class_of_an_algorithm() -> None:
    assert list(class_checks()) == []


def test_names_of_algorithms_are_in_their_files() -> None:
    places = list(named())
    claims = [place for place in places if place.startswith(CLAIMS)]
    others = [place for place in places if place not in claims]
    assert len(others) <= MOST_NAMES, others
    assert len(claims) <= MOST_IN_CLAIMS
