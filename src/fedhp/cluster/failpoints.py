"""Points where a test can let this process die or freeze, by name: `reach("worker.mixing")`.

FEDHP_FAILPOINTS holds `point@round=action` entries, separated by commas; the round may be left
out. Actions: kill (SIGKILL to itself), stop (SIGSTOP), each once. Unset, nothing happens.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "FEDHP_FAILPOINTS"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
# The phases of a worker and of a coordinator, in order.
WORKER = ("joined", "planned", "training", "sending", "receiving", "mixing", "reporting")
COORDINATOR = ("leading", "planning", "ordering", "gathering", "committing", "committed")


def reach(point: str, round_index: int = 0) -> None:
    """Die or freeze here, if the environment says so."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return
    for entry in asked.split(","):
        where, _, action = entry.partition("=")
        name, _, when = where.partition("@")
        if name == point and when in ("", str(round_index)) and action in SIGNALS:
            os.environ[VARIABLE] = ",".join(each for each in asked.split(",") if each != entry)
            os.kill(os.getpid(), SIGNALS[action])
