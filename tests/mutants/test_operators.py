"""The faults are planted where they should be, and nowhere else."""

from __future__ import annotations

import ast
from typing import Any

from mutants.__main__ import FIELDS, draw, equivalents, is_listed
from mutants.operators import mutants_of
from mutants.recording import noting
from mutants.rooms import ROOT, SOURCE, mutated_files

MODULE = '''
"""Not 1 < 2 here."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1

MOST = 3
Number: TypeAlias = int | float


class Declared(Protocol):
    def size(self, least: int = 1) -> int:
        """Not here."""


@decorated(frozen=True)
class Table:
    size: int = 2

    def add(self, number: float | None, *, twice: bool = False) -> float:
        """Add 1."""
        assert number != 0
        LOG.warning("%d", 1)
        if not number or number > MOST:
            raise ValueError(f"{number + 1} is more than {MOST - 1}")
        self.total += min(number, 5.0)
        self.done(zip(self.all, strict=True))
        return self.total - len("ä") * number
'''


def lines_of(text: str) -> set[tuple[str, str]]:
    return {(mutant.operator, mutant.new_line) for mutant in mutants_of("m.py", text)}


def test_every_kind_of_fault_is_planted() -> None:
    assert lines_of(MODULE) == {
        ("constant", "MOST = 4"),
        ("constant", "size: int = 3"),
        (
            "flag",
            "def add(self, number: float | None, *, twice: bool = True) -> float:",
        ),
        ("not", "if (number) or number > MOST:"),
        ("and/or", "if (not number and number > MOST):"),
        ("boundary", "if not number or (number >= MOST):"),
        ("comparison", "if not number or (number <= MOST):"),
        ("raise", "pass"),
        ("arithmetic", "self.total -= min(number, 5.0)"),
        ("min/max", "self.total += (max(number, 5.0))"),
        ("constant", "self.total += min(number, 10.0)"),
        ("drop", "pass"),
        ("return", "return None"),
        ("arithmetic", "return (self.total + len('ä') * number)"),
        ("arithmetic", "return self.total - (len('ä') / number)"),
    }


def test_a_mutant_changes_its_line_alone() -> None:
    for mutant in mutants_of("m.py", MODULE):
        before, after = MODULE.splitlines(), mutant.applied(MODULE).splitlines()
        changed = [a for a, b in zip(before, after, strict=True) if a != b]
        assert [line.strip() for line in changed] == [mutant.old_line]
        ast.parse("\n".join(after))


def test_who_sees_a_mutant() -> None:
    """The block of its statement; of a constant, the blocks that use it."""
    seen = {mutant.new_line: mutant.blocks for mutant in mutants_of("m.py", MODULE)}
    body, inner = 24, 28
    assert MODULE.splitlines()[body - 1].strip() == '"""Add 1."""'
    assert seen["MOST = 4"] == (body, inner)
    assert seen["return None"] == seen["size: int = 3"] == (body,)
    assert [m.blocks for m in mutants_of("m.py", MODULE) if m.operator == "raise"] == [(inner,)]


def test_modules_that_note_what_runs_do_the_same() -> None:
    hits: list[str] = []
    text = '"""M."""\ndef f(x):\n    """D."""\n    if x:\n        return 1\n    return 2\n'
    noted = noting("m.py", text)
    names: dict[str, Any] = {}
    exec(noted.replace("from fedhp._mutant_hits import hit as __hit__", ""), names)
    names["__hit__"] = hits.append
    assert (names["f"](True), hits) == (1, ["m.py:3", "m.py:5"])
    assert names["f"].__doc__ == "D."


def test_a_sample_is_fixed_by_its_seed_and_reaches_every_module() -> None:
    sample = draw(200, 5)
    assert [mutant.key for mutant in sample] == [mutant.key for mutant in draw(200, 5)]
    assert sample != draw(200, 6)
    assert len({mutant.file for mutant in sample}) >= len(mutated_files(ROOT)) - 10  # maps only


def test_the_list_of_equivalent_mutants_is_of_today() -> None:
    """Its lines are in the source, and each has a reason."""
    mutants = [
        mutant
        for file in mutated_files(ROOT)
        for mutant in mutants_of(file, (ROOT / SOURCE / file).read_text(encoding="utf-8"))
    ]
    assert equivalents()
    for entry in equivalents():
        assert entry.keys() == {*FIELDS, "reason"}, entry
        assert entry["reason"]
        named = {mutant.new_line for mutant in mutants if is_listed(mutant, [entry])}
        assert named == set(entry["becomes"]), entry
