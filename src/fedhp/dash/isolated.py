"""Work that a request starts: in a process of its own, with built-in parts and no file that a
record names.

The process gets what it needs on standard input and answers with one JSON object. It has no folder
of anybody on its import path, a neutral working directory, and trusts no module.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedhp.children import NEUTRAL, module_command, neutral_environment
from fedhp.components import is_dotted
from fedhp.errors import FedhpError, RunError, as_fedhp_error

SECONDS = 120.0  # that it may take
MODULE = "fedhp.dash.isolated"
LONGEST = 200  # characters of a name that is shown


class WorkRefused(RunError):
    """Work that this server does not do."""


class WorkFailed(RunError):
    """Work that a record or the data do not allow."""


def check_experiment(experiment: Any, *, parts: tuple[str, ...], paths: tuple[str, ...]) -> None:
    """Refuse a run with parts of the user's own, which would be imported, and one whose settings
    name files, which would be opened."""
    for key in (*parts, *paths):
        section, _, name = key.partition(".")
        table = experiment.get(section) if isinstance(experiment, dict) else None
        if not isinstance(table, dict):
            raise RunError(
                f"the record does not say its {section}",
                allowed="a record that fedhp wrote, unchanged",
                fix="choose another run",
            )
        value = table.get(name)
        own = key in parts and is_dotted(str(value or ""))
        if own or (key in paths and value):
            kind = "a part of the user's own" if own else "a path"
            shown = repr(str(value)[:LONGEST])
            raise WorkRefused(
                f"{key} is {shown}, {kind}; the page uses none that a record names",
                allowed="runs of built-in parts, without files of their own",
                fix="use the command line: fedhp whatif RUN, fedhp data split EXPERIMENT.toml",
            )


async def ask(order: Mapping[str, Any]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *module_command(MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=NEUTRAL,
        env=neutral_environment(),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate(json.dumps(order).encode())
    except TimeoutError:
        raise WorkFailed(
            f"it took longer than {SECONDS:.0f} s",
            allowed="smaller records and data sets",
            fix="use the command line: fedhp whatif RUN, fedhp data split EXPERIMENT.toml",
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise WorkFailed(
            f"the process for it ended with the code {process.returncode}",
            fix="use the command line, which says more",
        )
    answer = json.loads(output)
    if "problem" in answer:
        kind = WorkRefused if answer["refused"] else WorkFailed
        raise kind(answer["problem"], allowed=answer["allowed"], fix=answer["fix"])
    result = answer["answer"]
    assert isinstance(result, dict)
    return result


# --- inside the new process ------------------------------------------------------------------


def main() -> None:
    from fedhp.trust import NO_TRUST, limited_to

    order = json.loads(sys.stdin.buffer.read())
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        with limited_to(NO_TRUST):
            work = WORK[order.pop("work")]
            answer: dict[str, Any] = {"answer": work(**order)}
    except Exception as error:
        failure: FedhpError = as_fedhp_error(error)
        answer = {name: getattr(failure, name) for name in ("problem", "allowed", "fix")}
        answer["refused"] = "--planner" in failure.problem
    print(json.dumps(answer), file=out, flush=True)


def _whatif(folder: str, planners: list[str]) -> dict[str, Any]:
    from fedhp.engine.replay.whatif import whatif

    return whatif(Path(folder), planners).as_json()


def _classes(experiment: dict[str, Any]) -> dict[str, Any]:
    """The object of `fedhp data split --json`."""
    import numpy as np

    from fedhp.config import parse
    from fedhp.data import class_counts, load_data, partition

    settings = parse(experiment, stored=True)
    dataset = load_data(settings.data)
    parts = partition(
        dataset.train_targets,
        classes=dataset.classes,
        workers=settings.workers,
        config=settings.data,
        seed=settings.seed,
        groups=dataset.groups,
    )
    counts: list[list[int]] = []
    if dataset.classes is not None:
        labels = dataset.train_targets.astype(np.int64)
        counts = class_counts(parts, labels, dataset.classes).tolist()
    names = dataset.class_names or tuple(map(str, range(dataset.classes or 0)))
    sizes = [len(part) for part in parts]
    return {"classes": list(names), "samples": sizes, "counts": counts}


WORK: dict[str, Callable[..., dict[str, Any]]] = {"whatif": _whatif, "classes": _classes}

if __name__ == "__main__":
    main()
