"""The wheel, installed in an empty environment, does what the README says in any folder.

It is built from a source archive. Without a package index the tests skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import fedhp

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "src")
SHORT = ("rounds=2", "training.local_steps=2", "evaluation.images=100")

pytestmark = pytest.mark.slow


class Installation:
    """An environment of its own; commands run in it as in a user's shell."""

    def __init__(self, folder: Path) -> None:
        self._programs = folder / "bin"
        venv.create(folder, with_pip=True)

    def pip(self, *arguments: object) -> str:
        """Run pip; an error is one of the test."""
        return self.run("python", "-m", "pip", "--disable-pip-version-check", *arguments, cwd=ROOT)

    def run(self, program: str, *arguments: object, cwd: Path, code: int = 0) -> str:
        """What a program prints, on both outputs; it must exit with this code."""
        surroundings = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        done = subprocess.run(
            [str(self._programs / program), *map(str, arguments)],
            cwd=cwd,
            env=surroundings,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == code, f"{program} {arguments}\n{done.stdout[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An environment that has torch, the version that the constraints name."""
    folder = tmp_path_factory.mktemp("environment")
    created = Installation(folder)
    try:
        created.pip("download", "--no-deps", "--quiet", "--dest", folder / "index", "tomli-w")
    except AssertionError as error:
        pytest.skip(f"no package index can be reached: {str(error).strip().splitlines()[-1]}")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = [line for line in constraints if line.startswith("torch==")]
    created.pip("install", "--quiet", "-c", "constraints.txt", torch)
    return created


@pytest.fixture(scope="module")
def wheel(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source archive, which is built from the files of the checkout."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        source, copy = ROOT / name, folder / "checkout" / name
        if source.is_dir():
            shutil.copytree(
                source,
                copy,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
            )
        else:
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, copy)
    installation.pip("install", "--quiet", "setuptools>=75")
    build = "from setuptools import build_meta; build_meta.build_sdist('../archive')"
    installation.run("python", "-c", build, cwd=folder / "checkout")
    (archive,) = (folder / "archive").glob("*.tar.gz")
    installation.pip("wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "wheel", archive)
    (built,) = (folder / "wheel").glob("*.whl")
    return built


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src/fedhp"
    files = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= set(zipfile.ZipFile(wheel).namelist())


def test_it_works_in_an_empty_folder(
    installation: Installation,
    wheel: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    installation.pip("install", "--quiet", "-c", "constraints.txt", wheel)
    shell = Shell(installation, tmp_path)

    assert shell("--version").strip() == f"fedhp {fedhp.__version__}"
    shell("demo", "workers=4", "rounds=2", "compare.seeds=[0]")
    assert (tmp_path / "runs/demo-1/comparison.md").is_file()
    shell("init", "first")

    shell.folder = tmp_path / "first"
    own = ("model.name=own_model:two_convolutions", "algorithm.name=own_algorithm:RandomPairs")
    shell("run", "experiment.toml", *SHORT, "--out", "runs/first")
    shell("run", "experiment.toml", *SHORT, *own, "--out", "runs/own")
    assert "RandomPairs" in shell("explain", "runs/own", "--round", 2)
    shell("compare", "experiment.toml", *SHORT, "--algorithms", "own_algorithm:RandomPairs,dpsgd")
    shell("show", "runs/first")
    shell("whatif", "runs/first")
    shell("report", "runs/first")
    shell("data", "split", "experiment.toml")
    assert "fig2" in shell("reproduce", "nothing", code=2)  # the paper's files are installed

    missing = shell("cluster", "up", "experiment.toml", "--workers", 2, *SHORT, code=2)
    assert ".[cluster]" in missing
    missing = shell("export", "runs/first", "--table", "rounds", "--out", "r.parquet", code=2)
    assert ".[parquet]" in missing

    installation.pip(
        "install", "--quiet", "-c", "constraints.txt", f"{wheel}[cluster,pandas,parquet,ray]"
    )
    shell("export", "runs/first", "--table", "rounds", "--out", "r.parquet")
    shell("cluster", "up", "experiment.toml", "--workers", 2, *SHORT, "--out", "runs/network")
    shell("run", "experiment.toml", *SHORT, "engine=ray", "ray.actors=1", "--out", "runs/ray")
    record_property("figure: wheel", f"{wheel.name}, {wheel.stat().st_size // 1000} kB")


class Shell:
    """fedhp in a folder."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self._installation, self.folder = installation, folder

    def __call__(self, *arguments: object, code: int = 0) -> str:
        return self._installation.run("fedhp", *arguments, cwd=self.folder, code=code)


def test_the_sources_compile_on_other_versions_of_python() -> None:
    """Where pyenv has them; the syntax only."""
    interpreters = [
        path
        for version in ("3.12", "3.13", "3.14")
        for path in Path.home().glob(f".pyenv/versions/{version}*/bin/python")
    ]
    if not interpreters:
        pytest.skip(f"only this interpreter is here: {sys.version.split()[0]}")
    program = (
        "import pathlib, sys\n"
        "for path in pathlib.Path(sys.argv[1]).rglob('*.py'):\n"
        "    compile(path.read_bytes(), str(path), 'exec', dont_inherit=True)\n"
    )
    for interpreter in interpreters:
        command = [str(interpreter), "-W", "error", "-c", program, str(ROOT / "src")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
