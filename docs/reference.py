"""Writes docs/reference.md from the source: python docs/reference.py (or make docs)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import fedhp
from fedhp import api, graph, rule, timing, types
from fedhp.algorithms import base
from fedhp.engine.replay import whatif
from fedhp.engine.runs import tune as tune_runs
from fedhp.exchange import group, mailbox, mixing, sequence, server
from fedhp.record import reader
from fedhp.report import sweep, tune

TARGET = Path(__file__).with_name("reference.md")
INTRODUCTION = """\
# Reference

<!-- Generated from the source by docs/reference.py: change a docstring there, then `make docs`. -->

The functions of the [Python interface](api.md), what an [algorithm of your own](own-parts.md)
receives and returns, and helpers for topologies. N is the number of workers, E of links, M of
candidate peers. Times are in seconds, sizes in bytes; workers are numbered from 0, rounds from 1.
Names with a star can be imported from `fedhp` itself.
"""
EXCHANGES = "Exchanges of a plan"  # which algorithms make; others ask them
SECTIONS: tuple[tuple[str, ModuleType, tuple[str, ...]], ...] = (
    (
        "Functions",
        api,
        (
            "load_experiment",
            "make_experiment",
            "run",
            "start",
            "open_run",
            "compare",
            "sweep",
            "tune",
            "show",
            "explain",
            "report",
            "export",
            "reproduce",
        ),
    ),
    ("Functions", whatif, ("whatif", "WhatIf", "ReplayOutcome")),
    ("Results", reader, ("RunReader", "RunSummary")),
    ("Results", sweep, ("SweepResult", "Combination")),
    ("Results", tune, ("TuneResult", "TuneRow")),
    ("Results", tune_runs, ("SeededRuns",)),
    ("Results", types, ("RoundRecord",)),
    ("What an algorithm receives", base, ("Federation", "Observation")),
    ("What an algorithm receives", types, ("Reports",)),
    ("What an algorithm receives", timing, ("Network",)),
    (
        "What an algorithm returns",
        types,
        ("Plan", "Action", "Decision", "LinkVerdict", "Participation", "GroupRole"),
    ),
    (
        EXCHANGES,
        mixing,
        ("NeighborMixing", "DirectedMixing", "WeightedMixing", "PeerScoring", "Scoring"),
    ),
    (EXCHANGES, group, ("GroupAverage", "DisjointGroups")),
    (EXCHANGES, server, ("ServerAverage",)),
    (EXCHANGES, sequence, ("ExchangeSequence",)),
    (EXCHANGES, mailbox, ("Delivery", "Gathering")),
    (
        "Rules of the workers",
        rule,
        ("Rule", "Vector", "Step", "PushSum", "Tracking", "TrackedPushSum"),
    ),
    ("Topologies", types, ("Topology", "ChangingTopology")),
    (
        "Topologies",
        graph,
        (
            "topology_from",
            "full",
            "ring",
            "ring_over",
            "star",
            "grid",
            "random_regular",
            "random",
            "links",
            "base_topology",
            "is_connected",
            "components_of",
            "neighbor_lists",
            "among",
            "laplacian",
            "mixing_weights",
            "mixing_matrix",
            "directed_weights",
            "mixing_rate",
        ),
    ),
)


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    heading = ""
    for title, module, names in SECTIONS:
        if title != heading:
            parts.append(f"## {title}\n")
            heading = title
        source = inspect.getsource(module)
        nodes = {
            node.name: node
            for node in ast.parse(source).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        for name in names:
            node = nodes[name]
            if isinstance(node, ast.ClassDef):
                methods = title != EXCHANGES
                parts.append(_class_text(module, node, source.splitlines(), methods=methods))
            else:
                parts.append(_function_text(module, node))
    return "\n".join(parts)


def _class_text(module: ModuleType, node: ast.ClassDef, lines: list[str], *, methods: bool) -> str:
    star = " *" if node.name in fedhp.__all__ else ""
    text = [f"### {module.__name__}.{node.name}{star}\n", f"{_doc(node)}\n"]
    fields = [
        (
            f"`{ast.unparse(item.target)}`",
            f"`{ast.unparse(item.annotation)}`",
            f"`{default}`" if (default := _default(item.value)) else "",
            _comment(lines, item),
        )
        for item in node.body
        if isinstance(item, ast.AnnAssign)
    ]
    members = [
        (f"`{ast.unparse(item.targets[0])}`", ast.unparse(item.value), _comment(lines, item))
        for item in node.body
        if isinstance(item, ast.Assign)
    ]
    if fields:
        text += _table(("field", "type", "default", "meaning"), fields)
    if members:
        text += _table(("name", "value", "meaning"), members)
    for item in node.body if methods else ():
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            is_property = any(ast.unparse(mark) == "property" for mark in item.decorator_list)
            text.append(f"- `{item.name if is_property else _signature(item)}`: {_doc(item)}")
    return "\n".join(text).rstrip() + "\n"


def _function_text(module: ModuleType, node: ast.FunctionDef) -> str:
    star = " *" if node.name in fedhp.__all__ else ""
    return f"### {module.__name__}.{node.name}{star}\n\n`{_signature(node)}`\n\n{_doc(node)}\n"


def _signature(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    returned = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{node.name}({arguments}){returned}"


def _default(value: ast.expr | None) -> str:
    text = "" if value is None else ast.unparse(value)
    return {"field(default_factory=dict)": "{}", "field()": ""}.get(text, text)


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""


def _comment(lines: list[str], item: ast.stmt) -> str:
    """The comment at the end of an item's line, or in the lines before it."""
    _, mark, comment = lines[item.end_lineno - 1][item.end_col_offset :].partition("#")
    if mark:
        return comment.strip()
    above: list[str] = []
    for line in reversed(lines[: item.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line.strip().lstrip("# "))
    return " ".join(above)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [
        [cell.replace("|", "\\|") for cell in row] for row in (header, ["---"] * len(header), *rows)
    ]
    return [*(f"| {' | '.join(row)} |" for row in cells), ""]


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
