"""Rules that can be checked by reading the source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fedhp"
MODULES = sorted(
    module
    for module in SOURCE.rglob("*.py")
    if not module.name.endswith(("_pb2.py", "_pb2_grpc.py"))  # generated
)
EACH = pytest.mark.parametrize(
    "module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)).removesuffix(".py")
)

MOST_DOCSTRING_LINES = 8
MOST_MAP_LINES = 10  # a package's docstring is its map
# numpy's new generators are made in seeds.py alone; elsewhere they are only named as types.
GENERATORS = {"Generator", "PCG64", "SeedSequence"}
FORBIDDEN_MODULES = {"random", "pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "torch.load",
    "torch.manual_seed",
    "torch.seed",
    "torch.random.manual_seed",
    "np.random.seed",
    "os.system",
    "os.popen",
    "pickle.load",
    "pickle.loads",
}
UNPICKLER = SOURCE / "data" / "cifar_pickle.py"  # CIFAR-10's python batches, restricted


@functools.cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def dotted(node: ast.expr) -> str:
    """a.b.c of an attribute, empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_there_is_source_to_look_at() -> None:
    assert len(MODULES) > 50


@EACH
def test_no_global_randomness(module: Path) -> None:
    tree = tree_of(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name.startswith(("np.random.", "numpy.random.")):
                assert name.split(".")[2] in GENERATORS, f"{name} in line {node.lineno}"
        if isinstance(node, ast.Call):
            made = dotted(node.func)
            assert made not in FORBIDDEN_CALLS, f"{made} in line {node.lineno}"
            if made.endswith(("default_rng", "random.Generator")):
                assert module.name == "seeds.py", f"{made} in line {node.lineno}"
    names = set(imported(tree))
    assert "random" not in names
    assert not any(name.startswith("numpy.random.") for name in names)


@EACH
def test_nothing_that_runs_what_it_reads(module: Path) -> None:
    tree = tree_of(module)
    for name in imported(tree):
        if name.split(".")[0] in FORBIDDEN_MODULES:
            assert module == UNPICKLER, f"imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = keyword.value
                asked = isinstance(value, ast.Constant) and value.value is True
                assert not (keyword.arg in ("allow_pickle", "shell") and asked), node.lineno


def test_the_unpickler_knows_a_few_harmless_names_only() -> None:
    tree = tree_of(UNPICKLER)
    kinds = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert any("find_class" in [getattr(item, "name", "") for item in kind.body] for kind in kinds)


@EACH
def test_modules_say_what_they_own(module: Path) -> None:
    docstring = ast.get_docstring(tree_of(module))
    assert docstring, "no docstring"
    if module != SOURCE / "errors.py":  # it draws the tree of the exceptions
        most = MOST_MAP_LINES if module.name == "__init__.py" else MOST_DOCSTRING_LINES
        assert len(docstring.splitlines()) <= most


def test_every_folder_of_modules_is_a_package_with_a_map() -> None:
    folders = {module.parent for module in MODULES}
    assert folders == {module.parent for module in MODULES if module.name == "__init__.py"}


@EACH
def test_no_forgotten_notes(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    for word in ("TODO", "FIXME", "XXX", "breakpoint()"):
        assert word not in text


def test_tests_sleep_in_one_place_alone() -> None:
    """A test that sleeps waits too long on a quiet machine and not long enough on a busy one."""
    tests = ROOT / "tests"
    sleeping = {
        str(module.relative_to(tests))
        for module in tests.rglob("*.py")
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and dotted(node.func) in ("time.sleep", "asyncio.sleep")
    }
    assert sleeping == {"waiting.py"}


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph("fedhp", exclude_type_checking_imports=True)
    imports = networkx.DiGraph(
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    cycles = [part for part in networkx.strongly_connected_components(imports) if len(part) > 1]
    assert cycles == []
