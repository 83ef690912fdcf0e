"""--log and --per-worker: the logs that a command writes while its runs run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedhp.cli.parameters import shared_option, suggest, wrong_option
from fedhp.errors import FedhpError, combine_errors

if TYPE_CHECKING:
    from fedhp.sinks.follow import LogFollower
    from fedhp.sinks.targets import LogTarget

Log = Annotated[
    list[str] | None,
    shared_option(
        "SINK[:PATH]",
        "Also log to tensorboard, mlflow or wandb (offline), in local files. May be repeated.",
        "--log",
    ),
]
PerWorker = Annotated[
    bool, shared_option("", "With --log: log every worker's numbers too.", "--per-worker")
]


def parse_log(log: list[str] | None, *, per_worker: bool, option: str = "--log") -> list[LogTarget]:
    """Where to log; wrong or missing sinks are found before any work."""
    from fedhp.sinks.targets import parse_targets

    if per_worker and not log:
        raise wrong_option(
            "--per-worker",
            f"has no effect without {option}",
            allowed=f"--per-worker together with {option}",
            fix=f"add {option} tensorboard, for example, or remove --per-worker",
        )
    return parse_targets(log or [], option=option)


def follow(folder: Path, targets: list[LogTarget], *, per_worker: bool) -> LogFollower:
    from fedhp.sinks.follow import LogFollower

    return LogFollower(folder, targets, per_worker=per_worker)


def suggest_viewing(folder: Path, targets: list[LogTarget]) -> None:
    if targets:
        suggest(
            "logged; to look at it:",
            [target.load().viewing(folder, target.path) for target in targets],
        )


def end_of_runs(logs: LogFollower, errors: Sequence[FedhpError], *, as_json: bool) -> None:
    """After the results of many runs: how to see their logs, and what failed."""
    if not as_json:
        suggest_viewing(logs.folder, logs.working)
    if errors:
        raise combine_errors(errors)
