"""Whether the workers have the same data, modules and model: at best the coordinator's own.

Each part has a reference: what the coordinator's machine has, else what most workers say. It is
part of the committed state, so that a standby compares with the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedhp.children import SAFE_PATH, module_command
from fedhp.cluster.protocol.setup import Setup, SetupPart, difference
from fedhp.config import Experiment, to_tables

LOG = logging.getLogger("fedhp.coordinator")
COORDINATOR, MOST = "the coordinator", "most of the others"
OWN_SECONDS = 600.0  # for a process to read the data and build the model


class SetupChecks:
    """The reference of every part, and what each worker said."""

    def __init__(
        self,
        reference: Mapping[str, tuple[SetupPart, str]] | None = None,
        *,
        private: Iterable[int] = (),
        awaits_own: bool = False,
    ) -> None:
        self.reference = dict(reference or {})  # every part and whose it is, by name
        self._said: dict[int, Setup] = {}
        self.differing: dict[int, str] = {}  # how, by worker that says something else
        self.unsettled = False  # somebody said something since the last settle()
        self.awaits_own = awaits_own  # what this machine has is not known yet
        self.private = set(private)  # workers that train on samples of their own
        self.refused = set[str]()  # names of those that do not take part
        # Mean and deviation by channel, as those say that may take part; once it is known.
        self.scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def say(self, worker: int, setup: Setup) -> None:
        """What a worker has."""
        self._said[worker] = setup
        self._compare(worker)
        self.unsettled = True
        (self.private.add if setup.private else self.private.discard)(worker)

    def forget(self, worker: int) -> None:
        """What this worker said does not count: it is refused, or another process of it joined."""
        self._said.pop(worker, None)
        self.differing.pop(worker, None)

    def take_own(self, parts: Sequence[SetupPart]) -> None:
        """What this machine has; nothing: the workers are compared with each other."""
        self.awaits_own = False
        for part in parts:
            self._set(part, COORDINATOR)

    def settle(self, workers: Iterable[int]) -> bool:
        """For parts without a reference: what most of these workers say. Of equally many, what
        the first of them says. Whether something was settled."""
        if not self.unsettled or self.awaits_own:
            return False
        self.unsettled = False
        said: dict[str, list[SetupPart]] = {}
        for worker in sorted(workers):
            for part in self._said[worker].parts if worker in self._said else ():
                if part.name not in self.reference:
                    said.setdefault(part.name, []).append(part)
        for parts in said.values():
            votes = Counter(part.digest for part in parts)
            self._set(max(parts, key=lambda part: votes[part.digest]), MOST)
        return bool(said)

    def _set(self, part: SetupPart, owner: str) -> None:
        if part.name not in self.reference:
            self.reference[part.name] = part, owner
            for worker in self._said:
                self._compare(worker)
            LOG.info("%s of the run: %s (%s)", part.name, part.shown(), owner)

    def is_agreed(self, worker: int) -> bool:
        """Whether a worker may take part, as far as is known. One of an earlier release says
        nothing."""
        return worker not in self._said or not (self.awaits_own or worker in self.differing)

    def find_scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """What all samples are scaled by, as soon as somebody that may take part has said it."""
        if self.awaits_own or not self.reference:
            return None
        for worker, setup in self._said.items():
            if setup.mean and self.is_agreed(worker):
                self.scaling = setup.mean, setup.deviation
                LOG.info(
                    "all samples are scaled by mean %s, deviation %s",
                    *(" ".join(f"{value:.6g}" for value in part) for part in self.scaling),
                )
                break
        return self.scaling

    def _compare(self, worker: int) -> None:
        self.differing.pop(worker, None)
        if why := difference(self._said[worker].parts, self.reference):
            self.differing[worker] = why


async def parts_of_this_machine(experiment: Experiment, folders: Sequence[str]) -> list[SetupPart]:
    """What this machine has of the experiment, as far as it can be found out.

    Another process reads the data and builds the model: a coordinator needs neither, nor torch.
    """
    request = json.dumps({"experiment": to_tables(experiment), "folders": list(folders)})
    child = await asyncio.create_subprocess_exec(
        *module_command("fedhp.cluster.coordinator.members.setup_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **SAFE_PATH, "OMP_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(OWN_SECONDS):
            output, _ = await child.communicate(request.encode())
        reply = json.loads(output)
    except (TimeoutError, ValueError):
        reply = {"parts": [], "problem": "the process that reads it gave no answer"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    if reply["problem"]:
        LOG.info(
            "the workers' data and models are compared with each other, since this machine does "
            "not have them: %s",
            reply["problem"],
        )
    return [SetupPart.from_list(part) for part in reply["parts"]]
