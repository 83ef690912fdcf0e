"""Which modules are mutated, and the copies of the tree in which that is done."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = "src/fedhp"
# Rooms that are not there match nothing.
ROOMS = (
    "columns.py",
    "graph.py",
    "distance.py",
    "timing.py",
    "topologies.py",
    "schedules.py",
    "trust.py",
    "algorithms/**/*.py",
    "exchange/**/*.py",
    "rounds/**/*.py",
    "learn/attack.py",
    "learn/batches.py",
    "learn/carried.py",
    "learn/group.py",
    "learn/group_state.py",
    "learn/local.py",
    "learn/mix.py",
    "learn/optimizer.py",
    "learn/params.py",
    "learn/quantize.py",
    "learn/robust.py",
    "learn/topk.py",
    "record/store.py",
    "engine/accounting.py",
    "engine/events.py",
    "engine/loop.py",
    "cluster/protocol/*.py",
    "cluster/ledger/base.py",
    "cluster/ledger/local.py",
    "cluster/coordinator/**/blame.py",
    "cluster/coordinator/conductor.py",
    "cluster/coordinator/attempts/attempts.py",
    "cluster/coordinator/**/group_checks.py",
    "cluster/coordinator/**/link_estimates.py",
    "cluster/coordinator/planning/round_planner.py",
    "cluster/audit/*.py",
    "dash/security.py",
)
GENERATED = ("_pb2.py", "_pb2_grpc.py")
COPIED = ("src", "tests", "examples", "experiments", "docs", "bench")  # tests read all of these
LEFT_OUT = ("__pycache__", "*.egg-info", ".venvs")


def mutated_files(root: Path) -> list[str]:
    """Paths below src/fedhp of the modules of these rooms."""
    source = root / SOURCE
    files = {file for room in ROOMS for file in source.glob(room)}
    return sorted(
        file.relative_to(source).as_posix() for file in files if not file.name.endswith(GENERATED)
    )


def copy_tree(folder: Path) -> Path:
    """A copy of what the tests need, without anything that runs or builds left behind."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy2(file, folder)
    return folder
