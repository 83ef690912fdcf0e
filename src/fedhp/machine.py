"""What this machine has left."""

from __future__ import annotations

import math
import resource
from pathlib import Path


def available() -> int:
    """Bytes of memory that this process may still take, by the machine, its control group and its
    own limit."""
    free = math.inf
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024 * int(line.split()[1])
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit != "max":
            used = int((group / "memory.current").read_text(encoding="ascii"))
            free = min(free, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        free = min(free, max(0, addresses - pages * resource.getpagesize()))
    return int(free) if math.isfinite(free) else 8 * 10**9
