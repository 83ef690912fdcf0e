"""`fedhp demo` and `fedhp init`: the first commands of a new user, from any folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fedhp.cli.commands.compare import compare
from fedhp.cli.parameters import Jobs, Json, Out, Overrides, Resume, argument, say, suggest
from fedhp.errors import RunError


def demo(
    overrides: Overrides = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    jobs: Jobs = None,
) -> None:
    """Compare FedHP+, FedHP and four others on real digits: about a minute, no download.

    For a faster demo, run `fedhp demo rounds=10`.
    """
    from fedhp.starter import DEMO

    chosen: Any = {"algorithms": None, "labels": None, "figures": True}
    compare(DEMO, overrides, out=out, resume=resume, as_json=as_json, jobs=jobs, **chosen)


def init(folder: Path = argument("FOLDER", "The folder to create.", default=...)) -> None:
    """Create a folder with an experiment, a model and an algorithm to start from."""
    from fedhp.files import make_folder, write_file
    from fedhp.starter import COPIED, DEMO

    present = [name for name in COPIED if (folder / name).exists()]
    if present:
        raise RunError(
            f"{folder}: already contains {', '.join(present)}",
            allowed="a new folder, or one without these files",
            fix="choose another folder, or move the files away",
        )
    make_folder(folder, option="FOLDER", kind=RunError)
    for name in COPIED:
        write_file(folder / name, DEMO.with_name(name).read_bytes())
    say(f"created {folder}: {', '.join(COPIED)}")
    suggest("next:", [f"cd {shlex.quote(str(folder))}", "fedhp run experiment.toml"])
