"""A venv for each peer under bench/.venvs, created on demand: torch first, then the peer."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "bench" / ".venvs"
TORCH = "torch==2.13.0"
INSTALL_SECONDS = 900
# gossipy imports pyparsing without naming it as a requirement.
PEERS = {"gossipy": ("gossipy-dfl==0.0.1", "pyparsing"), "flower": ("flwr[simulation]==1.41.0",)}


class NotInstalled(Exception):
    """Why a peer cannot be measured here, in one line."""


@functools.cache
def _reason(peer: str) -> str:
    """Why a peer could not be installed, empty if it could; tried once per run."""
    try:
        _install(peer)
    except NotInstalled as error:
        return str(error)
    return ""


def python_of(peer: str) -> Path:
    """The Python of a peer's venv, which is created if necessary."""
    if reason := _reason(peer):
        raise NotInstalled(reason)
    return HOME / peer / "bin" / "python"


def _install(peer: str) -> None:
    folder = HOME / peer
    python, ready = folder / "bin" / "python", folder / ".ready"
    wanted = " ".join((TORCH, *PEERS[peer]))
    if ready.exists() and ready.read_text() == wanted:
        return
    print(f"installing {peer} into bench/.venvs (once)", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run(sys.executable, "-m", "venv", str(folder))
        # Torch is installed first and alone, so that pip takes the project's build without CUDA
        # libraries; naming it again keeps pip from replacing it for the peer.
        _pip(python, TORCH, "numpy")
        _pip(python, *PEERS[peer], TORCH)
    except NotInstalled:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    ready.write_text(wanted)


def _pip(python: Path, *packages: str) -> None:
    _run(str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"the installation took more than {INSTALL_SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["unknown"]
        raise NotInstalled(f"installation failed ({lines[-1].removeprefix('ERROR: ')[:120]})")
