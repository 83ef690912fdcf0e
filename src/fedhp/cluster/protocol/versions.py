"""Which versions of fedhp and the main libraries are installed here, and which work together."""

from __future__ import annotations

import functools
import platform
import re
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


def works_with(release: str, *, here: str = __version__) -> bool:
    """Whether a machine with another release of fedhp can take part: the same, or one apart.

    Within a protocol version fields are only added, so what one release does not know is absent
    or ignored. Releases further apart were never tried together.
    """
    theirs, ours = _minor(release), _minor(here)
    if theirs is None or ours is None:
        return release == here
    return theirs[0] == ours[0] and abs(theirs[1] - ours[1]) <= 1


def _minor(release: str) -> tuple[int, int] | None:
    """Major and minor number of 1.2, 1.2.3 or 1.2rc1; None for another form."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.|(?:a|b|rc)\d|$)", release)
    return None if match is None else (int(match[1]), int(match[2]))
