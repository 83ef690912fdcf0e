"""Small faults in Python code: a swapped comparison, a dropped statement, another constant.

A mutant replaces one piece of the text, so all other lines keep their numbers. Logging, texts,
assertions (also those of zip and strict sparse tensors), annotations, decorators, declared methods
without a body and type checking blocks are left alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
EXTREMES = {"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "floor": "ceil"}
EXTREMES |= {other: name for name, other in EXTREMES.items()}
LOGGERS = ("LOG", "logging", "logger", "warnings")
NOT_MUTATED = ("__all__", "__slots__")
ASSERTING = ("strict", "check_invariants")  # keyword arguments


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. Places are (line, column in bytes) as in ast."""

    file: str
    function: str  # its qualified name; empty: of the module
    operator: str
    start: tuple[int, int]
    end: tuple[int, int]
    new: str
    old_line: str  # the whole line before, and after
    new_line: str
    blocks: tuple[int, ...]  # first lines of blocks of statements: who runs none does not see it

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What stays the same when lines move."""
        return self.file, self.function, self.old_line, self.operator, self.new_line

    def applied(self, text: str) -> str:
        """The module with this fault."""
        return _replaced(text, self.start, self.end, self.new)


@dataclass(frozen=True, slots=True)
class _Place:
    function: str = ""
    blocks: tuple[int, ...] = ()


def mutants_of(file: str, text: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    tree = ast.parse(text)
    finder = _Finder(file, text, _uses(tree))
    finder.block(tree.body, _Place())
    return sorted(finder.mutants, key=lambda mutant: (mutant.start, mutant.operator, mutant.new))


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements directly below a node."""
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(node, name, None)
        if isinstance(statements, list) and statements:
            yield statements
    for name in ("handlers", "cases"):
        for part in getattr(node, name, ()):
            yield from blocks_of(part)


def _uses(tree: ast.Module) -> dict[str, set[int]]:
    """Names, and the blocks inside functions in which they are read."""
    uses: dict[str, set[int]] = {}

    def visit(statements: list[ast.stmt], inside: bool) -> None:
        for statement in statements:
            deeper = inside or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            inner = list(blocks_of(statement))
            if inside:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name | ast.Attribute):
                        name = node.id if isinstance(node, ast.Name) else node.attr
                        uses.setdefault(name, set()).add(statements[0].lineno)
            for block in inner:
                visit(block, deeper)

    visit(tree.body, False)
    return uses


class _Finder:
    def __init__(self, file: str, text: str, uses: dict[str, set[int]]) -> None:
        self.file, self.lines, self.uses = file, text.encode().splitlines(), uses
        self.mutants: list[Mutant] = []

    def block(self, statements: list[ast.stmt], place: _Place, *, inside: bool = False) -> None:
        if inside:
            place = _Place(place.function, (statements[0].lineno,))
        for statement in statements:
            self._statement(statement, place, inside)

    def _statement(self, node: ast.stmt, place: _Place, inside: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if all(_is_constant(part) for part in node.body):
                return
            function = _Place(_joined(place.function, node.name), (node.body[0].lineno,))
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self._expression(default, function)
            self.block(node.body, function, inside=True)
            return
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            lines = tuple(method.body[0].lineno for method in methods)
            self.block(node.body, _Place(_joined(place.function, node.name), lines))
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.Assign | ast.AnnAssign) and not inside:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if any(name in NOT_MUTATED for name in names) or _is_alias(node):
                return
            used = sorted(set[int]().union(*(self.uses.get(name, ()) for name in names)))
            place = _Place(place.function, tuple(used) or place.blocks)
        if inside:
            self._whole(node, place)
        for expression in _own_expressions(node):
            self._expression(expression, place)
        for statements in blocks_of(node):
            self.block(statements, place, inside=inside)

    def _whole(self, node: ast.stmt, place: _Place) -> None:
        """Mutants of a statement as a whole."""
        if _is_dropped(node):
            self._add("drop", node, "pass", place)
        elif isinstance(node, ast.Raise):
            self._add("raise", node, "pass", place)
        elif isinstance(node, ast.Return):
            if not isinstance(node.value, ast.Constant):
                self._add("return", node, "return None", place)
        elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
            changed = copy.copy(node)
            changed.op = ARITHMETIC[type(node.op)]()
            self._add("arithmetic", node, ast.unparse(changed), place)

    def _expression(self, node: ast.expr, place: _Place) -> None:
        if isinstance(node, ast.JoinedStr) or _is_logging(node):
            return
        for operator, changed in _changed(node):
            self._add(operator, node, f"({ast.unparse(changed)})", place)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child, place)
            elif isinstance(child, ast.keyword):
                if child.arg not in ASSERTING:
                    self._expression(child.value, place)
            elif isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    self._expression(part, place)

    def _add(self, operator: str, node: ast.expr | ast.stmt, new: str, place: _Place) -> None:
        if node.end_lineno is None or node.end_col_offset is None:
            return
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        if isinstance(node, ast.Constant):
            new = new.removeprefix("(").removesuffix(")")
        lines = self.lines[start[0] - 1 : end[0]]
        middle = lines[0][: start[1]] + new.encode() + lines[-1][end[1] :]
        self.mutants.append(
            Mutant(
                file=self.file,
                function=place.function,
                operator=operator,
                start=start,
                end=end,
                new=new,
                old_line=_one_line(lines),
                new_line=_one_line(middle.splitlines()),
                blocks=place.blocks,
            )
        )


def _changed(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The mutants of one expression."""
    if isinstance(node, ast.Compare):
        for index, operation in enumerate(node.ops):
            for name, table in (("boundary", BOUNDARY), ("comparison", OPPOSITE)):
                if type(operation) in table:
                    compared = copy.copy(node)
                    compared.ops = [*node.ops]
                    compared.ops[index] = table[type(operation)]()
                    yield name, compared
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", ast.BoolOp(other, node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
        yield "arithmetic", ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Name) and called.id in EXTREMES:
            yield "min/max", ast.Call(ast.Name(EXTREMES[called.id]), node.args, node.keywords)
        elif isinstance(called, ast.Attribute) and called.attr in EXTREMES:
            changed = ast.Attribute(called.value, EXTREMES[called.attr])
            yield "min/max", ast.Call(changed, node.args, node.keywords)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "flag", ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield "constant", ast.Constant(node.value + 1)
        elif isinstance(node.value, float):
            yield "constant", ast.Constant(2 * node.value or 1.0)


def _own_expressions(node: ast.stmt) -> Iterable[ast.expr]:
    """The expressions of a statement itself: not its inner statements, annotations or texts."""
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "targets", "target", "type_params"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.expr):
                yield part
            elif isinstance(part, ast.withitem):
                yield part.context_expr


def _one_line(lines: Iterable[bytes]) -> str:
    return " ".join(line.decode().strip() for line in lines)


def _joined(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name


def _is_dropped(node: ast.stmt) -> bool:
    """Whether a statement is one that can be left out: an effect, or a jump."""
    if isinstance(node, ast.Expr):
        return _is_call(node.value) and not _is_logging(node.value)
    if isinstance(node, ast.Assign):
        return any(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
    if isinstance(node, ast.Return):
        return node.value is None
    return isinstance(node, ast.Continue | ast.Break | ast.Delete)


def _is_constant(node: ast.stmt) -> bool:
    """Whether it is a docstring, or three dots."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"


def _is_call(node: ast.expr) -> bool:
    return isinstance(node.value if isinstance(node, ast.Await) else node, ast.Call)


def _is_logging(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    root: ast.expr = node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in LOGGERS


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _replaced(text: str, start: tuple[int, int], end: tuple[int, int], new: str) -> str:
    lines = text.encode().splitlines(keepends=True)
    first, last = lines[start[0] - 1], lines[end[0] - 1]
    middle = first[: start[1]] + new.encode() + last[end[1] :]
    return b"".join([*lines[: start[0] - 1], middle, *lines[end[0] :]]).decode()
