"""A picture of who got what: classes across, workers down, and each worker's samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedhp.errors import DataError
from fedhp.types import IntArray


def plot_split(
    sizes: IntArray, counts: IntArray | None, *, path: Path, title: str, names: Sequence[str] = ()
) -> None:
    """Draw sizes [N] and, where there are classes, counts [N, classes] into a file."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    workers = len(sizes)
    figure = Figure(figsize=(10, min(4 + workers / 8, 24)), layout="constrained")
    widths = (1,) if counts is None else (3, 1)
    grid: Any = {"sharey": True, "squeeze": False, "width_ratios": widths}
    panels = figure.subplots(1, len(widths), **grid)[0]
    if counts is not None:
        look: Any = {"aspect": "auto", "cmap": "viridis", "interpolation": "nearest"}
        image = panels[0].imshow(counts, vmin=0, **look)
        figure.colorbar(image, ax=panels[0], label="samples", location="left", pad=0.12)
        panels[0].set_xlabel("class")
        if names and len(names) <= 30:
            panels[0].set_xticks(range(len(names)), names, rotation=90 if len(names) > 12 else 0)
    bars = panels[-1]
    bars.barh(np.arange(workers), sizes, color="0.4")
    bars.set_xlabel("samples")
    bars.set_ylim(workers - 0.5, -0.5)
    panels[0].set_ylabel("worker")
    panels[0].yaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: the plot cannot be written: {error}",
            allowed="a path in an existing folder, ending in .png, .pdf or .svg",
            fix="correct --plot",
        ) from error
