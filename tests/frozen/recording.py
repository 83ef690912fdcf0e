"""Records the run folders of recorded.tar.xz with any fedhp: python -m frozen.recording DIR.

DIR gets the archive and recorded.json, what the commands of that fedhp say of the folders.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import fedhp
from fedhp.errors import Interrupted
from frozen import recorded
from frozen.kept import ARCHIVE, HERE, RECORDED, write
from frozen.running import printed

STOPS = {"finished": None, "stopped": 2, "turns": 2}  # after which round
NOT_KEPT = ("certs", "logs", "figures", "lock", "coordinator.json")  # keys, locks, for people only


def main() -> int:
    """Run the experiments of the archive again."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="frozen-") as name:
        before, now = Path(name, "before"), Path(name, "now")
        with tarfile.open(HERE / ARCHIVE) as archive:
            archive.extractall(before, filter="data")
        for folder in sorted(before.iterdir()):
            record(folder / "experiment.toml", now / folder.name)
        with tarfile.open(out / ARCHIVE, "w:xz") as archive:
            for folder in sorted(now.iterdir()):
                archive.add(folder, folder.name)
        write(out / RECORDED, recorded.seen(Path(name), archive=out / ARCHIVE))
    return 0


def record(experiment: Path, folder: Path) -> None:
    """One run, alone or over the network."""
    if folder.name in STOPS:
        last, run = STOPS[folder.name], fedhp.start(experiment, folder)
        if last is not None:
            run.stop = lambda: run.rounds_done() >= last
        with contextlib.suppress(Interrupted):
            for _ in run.rounds():
                pass
    else:
        printed("cluster", "up", str(experiment), "--out", str(folder), "--no-restart", "--json")
    for path in (folder / name for name in NOT_KEPT):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
