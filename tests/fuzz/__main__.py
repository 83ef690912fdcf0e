"""Every decoder of the network under random inputs: python -m fuzz [--runs N] [--jobs N].

Prints a table and writes it to runs/fuzz.json; exits with 1 if one crashed, hung or grew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from net.good_messages import GOOD

HERE = Path(__file__).parent
MODELS = "models (raw, fp16, int8, topk)"
PIECES = "pieces of group averages"
HARNESSES = {MODELS: "fuzz_codec.py", PIECES: "fuzz_group.py"}
INPUT_SECONDS = 5  # that one input may take
DONE = re.compile(r"^Done (\d+) (?:runs )?in ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """How one decoder fared."""

    decoder: str
    runs: int
    seconds: float
    good: bool
    told: str  # the end of its output where something went wrong


def fuzz(decoder: str, *, runs: int, folder: Path) -> Fuzzed:
    """One decoder in a process of its own; an input that broke it is left in the folder."""
    work = folder / re.sub(r"\W+", "-", decoder)
    work.mkdir(parents=True)
    libfuzzer = [f"-runs={runs}", f"-timeout={INPUT_SECONDS}", f"-artifact_prefix={work}/"]
    if decoder in HARNESSES:
        command = [str(HERE / HARNESSES[decoder]), "-max_len=256"]
    else:
        command = [
            str(HERE / "fuzz_messages.py"),
            "--kind",
            decoder,
            "--seeds",
            str(work / "seeds"),
        ]
    started = time.monotonic()
    found = subprocess.run(
        [sys.executable, *command, *libfuzzer],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    seconds = time.monotonic() - started
    done = DONE.search(found.stdout)
    count = int(done[1]) if done else 0
    good = found.returncode == 0 and count >= runs
    print(f"{decoder}: {count} runs in {seconds:.0f} s{'' if good else ', FAILED'}", flush=True)
    return Fuzzed(decoder, count, seconds, good, "" if good else found.stdout[-2000:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them all, or those that are named."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs per decoder")
    parser.add_argument("--jobs", type=int, default=2, help="decoders at once")
    parser.add_argument("--only", default="", help="decoders whose name has this")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz.json"))
    given = parser.parse_args(arguments)
    decoders = [each for each in (*HARNESSES, *GOOD) if given.only in each]
    folder = Path(tempfile.mkdtemp(prefix="fedhp-fuzz-"))
    with ThreadPoolExecutor(given.jobs) as pool:
        found = list(pool.map(lambda each: fuzz(each, runs=given.runs, folder=folder), decoders))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    bad = [each for each in found if not each.good]
    for each in bad:
        print(f"{each.decoder}:\n{each.told}")
    print(f"{len(found) - len(bad)} of {len(found)} decoders good; see {given.out} and {folder}")
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
