"""Points where a test can kill or freeze this process, by name: `reach("worker.mixing")`.

FEDHP_FAILPOINTS holds `point@round=action` entries, separated by commas: the first time in that
round or a later one, since a worker need not take part in every round; the round may be left out.
Actions, each once: kill (SIGKILL to itself), stop (SIGSTOP). Unset, nothing happens.
"""

from __future__ import annotations

import os
import signal

FAILPOINTS_VARIABLE = "FEDHP_FAILPOINTS"
# In the order in which a process passes them.
WORKER_POINTS = ("joined", "planned", "training", "sending", "receiving", "mixing", "reporting")
GROUP_POINTS = ("reducing", "broadcasting")  # of a group average, within its streams
COORDINATOR_POINTS = ("leading", "planning", "ordering", "gathering", "committing", "committed")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def reach(point: str, round_index: int = 0) -> None:
    """Die or freeze here, if the environment says so."""
    setting = os.environ.get(FAILPOINTS_VARIABLE)
    if not setting:
        return
    entries = setting.split(",")
    for entry in entries:
        where, _, action = entry.partition("=")
        name, _, when = where.partition("@")
        if name == point and round_index >= int(when or 0) and action in _SIGNALS:
            os.environ[FAILPOINTS_VARIABLE] = ",".join(other for other in entries if other != entry)
            os.kill(os.getpid(), _SIGNALS[action])
