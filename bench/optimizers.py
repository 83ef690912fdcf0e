"""What an optimizer costs: local steps per second with momentum, as a share of plain SGD's.

python -m bench.optimizers [--repeats 15] [--seconds 1.0]

Both sides train in turns in one process with one thread, and a ratio is that of neighbors; the
median counts. Bars: 0.8 for 30 small dense models that are trained at once, 30 steps each (the
default of training.local_steps), and 0.9 for the CNN. With 1 to 20 steps, more of the time is spent
on taking rows together. That, weight decay, Nesterov's momentum and AdamW have no bar.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.ours import Ours
from bench.work import CNN_STEPS, WORKERS, local_steps, write_data

DENSE, RAGGED, CNN = "mlp", "mlp with 1 to 20 steps", "cnn"
BARS = {(DENSE, "momentum"): 0.8, (CNN, "momentum"): 0.9}
KINDS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "momentum and weight decay": {"momentum": 0.9, "weight_decay": 1e-4},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
    "AdamW": {"optimizer": "adamw"},
}
STEPS = {DENSE: [30] * WORKERS, RAGGED: local_steps("mlp"), CNN: [CNN_STEPS]}  # by worker


def main() -> int:
    """Measure and print; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement, about")
    parser.add_argument("--only", default="", help="one kind, such as momentum")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="fedhp-bench-") as temporary:
        folder = Path(temporary)
        write_data(folder)
        for name, steps in STEPS.items():
            for kind, training in KINDS.items():
                if options.only not in ("", kind):
                    continue
                ratios = compare(
                    name.partition(" ")[0],
                    folder,
                    training,
                    steps=steps,
                    repeats=options.repeats,
                    seconds=options.seconds,
                )
                ratio, bar = median(ratios), BARS.get((name, kind))
                good &= bar is None or ratio >= bar
                wanted = "no bar" if bar is None else f"bar {bar:g}"
                print(
                    f"{name}, {kind}: {ratio:.3f} of the steps per second of plain SGD "
                    f"({min(ratios):.3f} to {max(ratios):.3f}; {wanted})",
                    flush=True,
                )
    return 0 if good else 1


def compare(
    model: str,
    folder: Path,
    training: dict[str, Any],
    *,
    steps: list[int],
    repeats: int,
    seconds: float,
) -> list[float]:
    """Steps per second with this optimizer / with plain SGD, repeat by repeat."""
    workers = len(steps)
    with (
        Ours(model, folder, workers=workers, executors=1) as plain,
        Ours(model, folder, workers=workers, executors=1, training=training) as other,
    ):
        sides = (plain, other)
        rounds = max(1, round(seconds / max(_seconds(side, steps, 1) for side in sides * 2)))
        ratios = []
        for repeat in range(repeats):
            order = sides if repeat % 2 == 0 else sides[::-1]
            taken = {id(side): _seconds(side, steps, rounds) for side in order}
            ratios.append(taken[id(plain)] / taken[id(other)])
    return ratios


def _seconds(side: Ours, steps: list[int], rounds: int) -> float:
    """CPU seconds of the local steps of so many rounds; nothing is exchanged."""
    started = time.process_time()
    for _ in range(rounds):
        side.train(steps)
    return time.process_time() - started


if __name__ == "__main__":
    raise SystemExit(main())
