"""Where data files are looked up: data.path, then $FEDHP_DATA, then the cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedhp.data.raw import Request
from fedhp.errors import ConfigError, DataError, DataMissing


def cache_folder() -> Path:
    """The user's cache: $FEDHP_CACHE, else $XDG_CACHE_HOME/fedhp, else ~/.cache/fedhp."""
    if own := os.environ.get("FEDHP_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "fedhp"
    return Path("~/.cache/fedhp").expanduser()


def roots() -> list[tuple[str, Path]]:
    """The folders searched when data.path is not set, with what each is called."""
    folders = []
    if shared := os.environ.get("FEDHP_DATA"):
        folders.append(("$FEDHP_DATA", Path(shared).expanduser()))
    return [*folders, ("the cache folder", cache_folder())]


def locate(
    request: Request,
    name: str,
    *,
    known: Sequence[str],
    holds: Callable[[Path], bool],
    needs: str,
    remark: Callable[[Sequence[Path]], str] = lambda _: "",
) -> Path:
    """The first place that holds the files, or an error that lists the places tried.

    `known` are the usual names below a root; `holds` says whether a place has the files.
    """
    if request.path is not None:
        require_existing(request.path)
        places = [("data.path", request.path)]
    else:
        places = roots()
    candidates = [root / sub if sub else root for _, root in places for sub in ("", *known)]
    for candidate in candidates:
        if candidate.exists() and holds(candidate):
            return candidate
    tried = "; ".join(
        f"{title} {root}{'' if root.exists() else ' (does not exist)'}" for title, root in places
    )
    unset = "" if request.path or len(places) > 1 else "; $FEDHP_DATA is not set"
    below = ", ".join(known)
    raise DataMissing(
        f"data.name = {name!r}: no data found, data.path = {request.path or 'not set'}; "
        f"looked in {tried}{unset}, each also under {below}{remark(candidates)}",
        allowed=needs,
        fix=f"run `fedhp data fetch {name}`, or set data.path to the folder that holds the files",
    )


def require_path(request: Request, name: str, *, wants: str) -> Path:
    """data.path, for the readers that cannot guess one."""
    if request.path is None:
        raise ConfigError(
            f"is required for data.name = {name!r} but missing",
            key="data.path",
            source=request.source,
            allowed=wants,
            fix="add data.path = '...'",
        )
    require_existing(request.path)
    return request.path


def require_existing(path: Path) -> None:
    """Refuse a data.path that is not there."""
    if not path.exists():
        raise DataError(
            f"data.path = {path}: there is no such file or folder",
            allowed="an existing file or folder; relative paths count from the experiment file",
            fix="correct data.path",
        )
