"""Stop and drain: what `fedhp cluster stop` and `fedhp cluster drain` send, from the page.

The server needs the certificate of an operator for that, given when it is started; without it
there are no actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedhp.dash.schema import Command, ListedRun
from fedhp.errors import RunError

ACTIONS = ("stop", "drain")


class ActionRefused(RunError):
    """A command that this server does not send."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The identity with which commands are sent."""

    certificates: Path | None = None  # None: none was given
    name: str = "operator"

    def actions(self, entry: ListedRun) -> list[str]:
        able = self.certificates is not None and entry.network and entry.live
        return list(ACTIONS) if able else []

    def act(self, action: str, entry: ListedRun, folder: Path, command: Command) -> str:
        if action not in self.actions(entry):
            raise ActionRefused(
                f"{entry.run} cannot be changed from here",
                allowed="a cluster run that is going on, on a server that was started with --certs",
                fix="use `fedhp cluster stop` or `fedhp cluster drain`",
            )
        if (action == "drain") != (command.worker is not None):
            raise ActionRefused(
                "drain needs the name of a worker" if action == "drain" else "stop names no worker",
                allowed='{"run": RUN} for stop, {"run": RUN, "worker": NAME} for drain',
                fix="add the worker" if action == "drain" else "leave the worker out",
            )
        from fedhp.cluster.ops import operator

        target = operator.target_of(folder, certificates=self.certificates, name=self.name)
        if action == "stop":
            return operator.command(target, stop=True)
        return operator.command(target, drain=command.worker or "")
