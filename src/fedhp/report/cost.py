"""What a run cost in real time and memory, and the share of each phase."""

from __future__ import annotations

from fedhp.record.reader import RunReader
from fedhp.report.formatting import data_size

PHASES = ("plan", "train", "estimate", "mix", "account", "evaluate")


def phase_shares(run: RunReader) -> dict[str, float]:
    """Real seconds of each phase as a share of all that was measured."""
    wall = run.table("wall")
    seconds = dict.fromkeys(PHASES, 0.0)
    for phase, value in zip(wall["phase"], wall["seconds"], strict=True):
        seconds[phase] = seconds.get(phase, 0.0) + value
    total = sum(seconds.values()) or 1.0
    return {phase: value / total for phase, value in seconds.items() if value}


def cost_of(run: RunReader) -> str:
    """One or two lines: seconds, peak memory, where the time went; the whole test set's result."""
    seconds, peak = run.meta("seconds"), run.meta("peak_memory")
    shares = ", ".join(f"{phase} {share:.0%}" for phase, share in phase_shares(run).items())
    known = [] if seconds is None else [f"took {seconds:.1f} s"]
    if peak:
        known.append(f"peak memory {data_size(peak)}")
    if run.meta("moved_bytes"):
        known.append(f"{data_size(run.meta('moved_bytes'))} moved between shards")
    if shares and not run.meta("network"):  # there, phases are the workers' own business
        known.append(f"time: {shares}")
    lines = [", ".join(known)]
    final = run.table("final_evaluations")
    if final["accuracy"]:
        mean = final["mean_model_accuracy"][0]  # unknown where nobody sees all models
        lines.append(
            f"on the whole test set ({final['images'][0]:,}): {run.meta('metric')} "
            f"{final['accuracy'][0]:.4f}"
            + ("" if mean is None else f", of the mean model {mean:.4f}")
        )
    return "\n".join(line for line in lines if line)
