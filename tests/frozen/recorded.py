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
from frozen.refused import blamed
from frozen.running import numbers_of, printed, printed_error, printed_json, surroundings, verified

HERE = Path(__file__).parent
ARCHIVE, EXPECTED = HERE / "recorded.tar.xz", HERE / "recorded.json"
# Changes of a replay that are refused.
NOT_IN_A_REPLAY = (
    ["seed=5"],
    ["workers=9"],
    ["data.skew=0.1"],
    ["algorithm.name=dpsgd"],
    ["training.local_steps=9", "--planner", "fedhp_plus"],
    ["algorithm.steps=3", "--planner", "fedhp"],
)


def seen(folder: Path, *, reports: bool = True) -> dict[str, Any]:
    """What the commands say of every folder now; with reports, which take longest."""
    place = folder / "recorded"
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    with surroundings():
        found = {run.name: opened(run) for run in sorted(place.iterdir())}
        for name in ("finished", "network-groups") if reports else ():
            page = fedhp.report(place / name, folder / "report")
            assert page.stat().st_size > 10_000
        for name in ("network", "network-groups"):
            found[name]["verified"] = verified(place / name)
        found["finished"]["whatif"] = printed_json(
            "whatif", str(place / "finished"), "--planner", "fedhp", "--planner", "dpsgd"
        )
        found["finished"]["not in a replay"] = {
            " ".join(words): blamed(
                printed_error("whatif", str(place / "finished"), *words), "none"
            )
            for words in NOT_IN_A_REPLAY
        }
        for name in ("finished", "stopped", "turns"):
            printed("run", str(place / name / "experiment.toml"), *resumed(place / name))
            found[name]["resumed"] = numbers_of(place / name)
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

    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    try:
        yield from unlike("recorded", expected, seen(folder, reports=reports))
    except Exception as error:
        yield f"recorded: {type(error).__name__}: {error}"


def update(folder: Path) -> None:
    """Expect what is said of them now."""
    text = json.dumps(seen(folder), indent=1, sort_keys=True)
    EXPECTED.write_text(text + "\n", encoding="utf-8")
