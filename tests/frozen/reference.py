"""Makes the expectations of this machine with the commit that those in this folder are of."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from frozen.kept import COMMIT, EXPECTED, HERE, MACHINE, OUTPUTS, place, read, write
from frozen.running import machine

ROOT = HERE.parents[1]


def make() -> None:
    """All runs of the earlier commit, with its own tests/frozen; then the recorded folders."""
    commit, out = read(HERE / EXPECTED)[COMMIT], place()
    print(
        f"this is another kind of processor: commit {commit} makes its digests in {out}", flush=True
    )
    packed = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    with tempfile.TemporaryDirectory(prefix="frozen-") as name:
        tree = Path(name)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(tree, filter="data")
        theirs = tree / "tests" / "frozen"
        names = sorted(read(theirs / EXPECTED).keys() - {MACHINE, COMMIT})
        _python(tree, tree / "tests", "-m", "frozen", "--update", *names)
        out.mkdir(parents=True, exist_ok=True)
        _python(tree, ROOT / "tests", "-m", "frozen.recording", str(out))
        write(out / OUTPUTS, read(theirs / OUTPUTS))
        # Last: what is there is whole.
        write(out / EXPECTED, {**read(theirs / EXPECTED), MACHINE: machine(), COMMIT: commit})


def _python(tree: Path, tests: Path, *arguments: str) -> None:
    """Python with the fedhp of a tree, and these tests."""
    path = os.pathsep.join((str(tree / "src"), str(tests)))
    subprocess.run(
        [sys.executable, *arguments], cwd=tree, env={**os.environ, "PYTHONPATH": path}, check=True
    )
