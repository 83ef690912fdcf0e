"""Run folders of an earlier commit: they still open, go on bit for bit, and verify.

recorded.tar.xz has them without keys, logs and locks: `finished` (FedHP), `stopped` (PENS with
momentum, after round 2 of 4), `turns` (AD-PSGD, after round 2 of 3), and of two networks `network`
(D-PSGD, int8) and `network-groups` (FedHP+). recorded.json has what is expected of them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedhp
from frozen.kept import ARCHIVE, HERE, RECORDED, place, read, write
from frozen.refused import blamed
from frozen.running import numbers_of, printed, printed_error, printed_json, surroundings, verified

# Changes of a replay that are refused.
NOT_IN_A_REPLAY = (
    ["seed=5"],
    ["workers=9"],
    ["data.skew=0.1"],
    ["algorithm.name=dpsgd"],
    ["training.local_steps=9", "--planner", "fedhp_plus"],
    ["algorithm.steps=3", "--planner", "fedhp"],
)


def seen(folder: Path, *, archive: Path, reports: bool = True) -> dict[str, Any]:
    """What the commands say of every folder now; with reports, which take longest."""
    opening = folder / "recorded"
    shutil.rmtree(opening, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(opening, filter="data")
    with surroundings():
        found = {run.name: opened(run) for run in sorted(opening.iterdir())}
        for name in ("finished", "network-groups") if reports else ():
            page = fedhp.report(opening / name, folder / "report")
            assert page.stat().st_size > 10_000
        for name in ("network", "network-groups"):
            found[name]["verified"] = verified(opening / name)
        found["finished"]["whatif"] = printed_json(
            "whatif", str(opening / "finished"), "--planner", "fedhp", "--planner", "dpsgd"
        )
        found["finished"]["not in a replay"] = {
            " ".join(words): blamed(
                printed_error("whatif", str(opening / "finished"), *words), "none"
            )
            for words in NOT_IN_A_REPLAY
        }
        for name in ("finished", "stopped", "turns"):
            printed("run", str(opening / name / "experiment.toml"), *resumed(opening / name))
            found[name]["resumed"] = numbers_of(opening / name)
    content: dict[str, Any] = json.loads(json.dumps(found))
    return content


def resumed(run: Path) -> tuple[str, ...]:
    """The options that continue a run."""
    return ("--out", str(run), "--resume", "--json")


def opened(run: Path) -> dict[str, Any]:
    """The words and numbers about a folder."""
    with fedhp.open_run(run) as reader:
        rounds = reader.rounds_done
    explained = [fedhp.explain(run, number) for number in range(1, rounds + 1)]
    return {
        "show": printed_json("show", str(run)),
        "round": printed_json("show", str(run), "--round", str(rounds)),
        "explain": hashlib.sha256("\n".join(explained).encode()).hexdigest()[:16],
    }


def differences(folder: Path, *, reports: bool = True) -> Iterator[str]:
    """A line for every value that is another one."""
    from frozen.comparing import unlike

    kept = place()
    try:
        found = seen(folder, archive=kept / ARCHIVE, reports=reports)
        yield from unlike("recorded", read(kept / RECORDED), found)
    except Exception as error:
        yield f"recorded: {type(error).__name__}: {error}"


def update(folder: Path) -> None:
    """Expect what is said of them now."""
    write(HERE / RECORDED, seen(folder, archive=HERE / ARCHIVE))
