"""Which tests run which blocks of statements: the modules note it, and this plugin of pytest asks.

Tests that start processes are left out: what those run is not seen, and it takes long.
"""

from __future__ import annotations

import ast
import json
import multiprocessing.process
import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, Phase, settings

from mutants.operators import blocks_of

MODULE = "_mutant_hits"  # in the copy of fedhp
MODULE_TEXT = "HITS: set[str] = set()\nhit = HITS.add\n"
OUTPUT = "MUTANTS_RECORDING"  # the variable that names the file


def noting(file: str, text: str) -> str:
    """The module, with a note at the start of every block inside functions."""
    tree = ast.parse(text)
    _note(tree, file, inside=False)
    head = 0
    while head < len(tree.body) and _is_head(tree.body[head]):
        head += 1
    tree.body.insert(head, ast.parse(f"from fedhp.{MODULE} import hit as __hit__").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_head(node: ast.stmt) -> bool:
    """A docstring, or an import that must come first."""
    return isinstance(node, ast.Expr) or (
        isinstance(node, ast.ImportFrom) and node.module == "__future__"
    )


def _note(node: ast.AST, file: str, *, inside: bool) -> None:
    for block in list(blocks_of(node)):
        for statement in block:
            function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            _note(statement, file, inside=function or (inside and not _is_class(statement)))
        if inside:
            first = block[0]
            docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            note = ast.parse(f"__hit__({f'{file}:{first.lineno}'!r})").body[0]
            block.insert(int(docstring), note)


def _is_class(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef)


def _no_processes(*arguments: Any, **options: Any) -> NoReturn:
    pytest.skip("starts a process")


def pytest_configure(config: pytest.Config) -> None:
    """Property tests repeat, take no time to simplify what they find, and leave no files."""
    settings.register_profile(
        "mutants",
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")
    if OUTPUT in os.environ:
        subprocess.Popen.__init__ = _no_processes  # type: ignore[method-assign]
        multiprocessing.process.BaseProcess.start = _no_processes  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """One line per test that passed: its time, and the blocks that it ran."""
    if OUTPUT not in os.environ:
        return (yield)
    from fedhp._mutant_hits import HITS  # type: ignore[import-not-found]

    HITS.clear()
    item.stash[_passed] = False
    wall, used = time.monotonic(), time.process_time()
    result = yield
    line = {
        "test": item.nodeid,
        "seconds": time.monotonic() - wall,
        "cpu": time.process_time() - used,
        "hits": sorted(HITS),
    }
    if item.stash[_passed]:
        with Path(os.environ[OUTPUT]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return result


_passed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself passed."""
    report = yield
    if report.when == "call" and OUTPUT in os.environ:
        item.stash[_passed] = report.passed
    return report
