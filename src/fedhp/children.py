"""Processes that fedhp starts of itself: they import installed modules, no files of a folder.

Python puts the current folder first on the path of `python -m` and of multiprocessing's children. A
file fedhp.py or numpy.py there would be run instead of the installed module.
"""

from __future__ import annotations

import os
import sys

NEUTRAL = os.path.abspath(os.sep)  # a working directory that is nobody's run
SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # what -P says, for processes that others start for us
_PATHS = ("FEDHP_DATA", "FEDHP_CACHE")  # variables that name a folder


def module_command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", module, *arguments]


def neutral_environment() -> dict[str, str]:
    """The environment for a process in NEUTRAL: relative paths keep their meaning."""
    variables = {**os.environ, **SAFE_PATH}
    for name in _PATHS:
        if variables.get(name):
            variables[name] = os.path.abspath(os.path.expanduser(variables[name]))
    if variables.get("PYTHONPATH"):
        folders = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, folders)))
    return variables
