"""Weights & Biases, offline: a folder per run that `wandb sync` can send later, if you want that.

The step is the round. A killed process leaves an unfinished folder, and offline runs cannot be
continued: the folder is written again, with the same id. Neither the name of the machine nor its
packages, its use or the source code are in it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedhp.children import module_command
from fedhp.sinks.base import folder_for, has_mark, owned_folder, remove_mark, set_mark
from fedhp.sinks.points import RoundPoints, RunDescription, RunOutcome

if TYPE_CHECKING:
    import wandb

PROJECT = "fedhp"
FOLDER = "wandb"  # its name is the library's choice
RUNS = "offline-run-*"
FLUSH_SECONDS = 1.0
MOST_SECONDS = 60.0  # for starting and for ending the process that writes


def place_of(description: RunDescription, path: Path | None) -> Path:
    """The folder that gets a folder wandb: that of the run, or below the one asked for."""
    return folder_for(description, path)


def is_marked(description: RunDescription, place: Path, mark: str) -> bool:
    return has_mark(place / FOLDER, mark) and any((place / FOLDER).glob(RUNS))


def viewing(top: Path, path: Path | None) -> str:
    """The command that shows a log, in the terminal and without a server."""
    runs = (top if path is None else owned_folder(top, path)).glob(f"**/{FOLDER}/{RUNS}")
    return f"wandb leet {shlex.quote(str(min(runs, default=top / FOLDER).parent))}"


def open_log(description: RunDescription, place: Path, *, fresh: bool) -> WandbLog:
    """A new offline run; that of an earlier process is removed, since all rounds are written."""
    folder = place / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    remove_mark(folder)
    earlier = sorted(folder.glob(RUNS))
    run_id = earlier[-1].name.rpartition("-")[2] if earlier else secrets.token_hex(4)
    for old in earlier:
        # The library's process may outlive the one that was killed, and still write there.
        old.rename(folder / f".old-{secrets.token_hex(4)}")
    for old in folder.glob(".old-*"):
        shutil.rmtree(old, ignore_errors=True)
    return WandbLog(description, place, run_id=run_id)


class WandbLog:
    def __init__(self, description: RunDescription, place: Path, *, run_id: str) -> None:
        # Read when the library is imported: it would send reports of its own errors.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        # Its own debug log, in the same folder: on a full disk every line would print a traceback.
        logging.getLogger("wandb").disabled = True
        import wandb

        self._folder, self._last = place / FOLDER, 0
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            host="",
            save_code=False,
            init_timeout=MOST_SECONDS,
            finish_timeout=MOST_SECONDS,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=FLUSH_SECONDS,
        )

        def begin(run_id: str) -> wandb.Run:
            return wandb.init(
                project=PROJECT,
                mode="offline",
                dir=str(place),
                id=run_id,
                name=description.name,
                group=description.top.name,
                job_type=description.label,
                config={"label": description.label, **description.tables},
                reinit="create_new",
                settings=settings,
            )

        try:
            self._run = begin(run_id)
        except Exception as error:
            # The library's process may serve several of ours, and still have the run of one that
            # was killed: then the run gets another id.
            if "in use" not in str(error):
                raise
            for failed in self._folder.glob(RUNS):
                shutil.rmtree(failed, ignore_errors=True)
            self._run = begin(secrets.token_hex(4))

    def write(self, rounds: Sequence[RoundPoints]) -> None:
        for points in rounds:
            self._run.log(points.values, step=points.round_index)
            self._last = points.round_index

    def finish(self, outcome: RunOutcome, *, mark: str) -> None:
        """Add the summary, as it is in --json."""
        self._run.summary.update({"final": outcome.summary.as_json()})
        self._end(0 if outcome.summary.status == "finished" else 1)
        set_mark(self._folder, mark)

    def close(self, status: str) -> None:
        """Close the run; `interrupted` counts as failed, as the library has it."""
        self._end(0 if status == "running" else 1)

    def _end(self, exit_code: int) -> None:
        """End the run, and read it back: the library does not say that the disk was full."""
        self._run.finish(exit_code=exit_code)
        (file,) = self._folder.glob(f"{RUNS}/*.wandb")
        reader = module_command("wandb", "leet", "inspect", "--summary", "--json")
        read = subprocess.run(
            [*reader, str(file)], capture_output=True, text=True, check=True, timeout=MOST_SECONDS
        )
        content = json.loads(read.stdout)
        if (content.get("step") or 0) != self._last or content.get("exit_code") != exit_code:
            raise OSError(
                f"{file} ends at round {content.get('step') or 0} instead of {self._last}: "
                "the disk may be full"
            )
