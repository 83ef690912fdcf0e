"""Which versions of fedhp, Python and the main libraries are installed here."""

from __future__ import annotations

import functools
import platform
from importlib import metadata

from fedhp import __version__

LIBRARIES = ("torch", "numpy", "grpcio", "protobuf", "cryptography")


@functools.cache
def installed() -> dict[str, str]:
    """Versions by name, read from the packages' metadata; nothing is imported."""
    versions = {"fedhp": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "missing"
    return versions
