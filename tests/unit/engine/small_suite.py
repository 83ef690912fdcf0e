"""A suite of two small sets and two figures that share their runs, written into a folder."""

from __future__ import annotations

from pathlib import Path

SET = """
stands_for = "EMNIST"
[experiment]
workers = 6
rounds = 3
data = { name = "NAME" }
model = { name = "logistic" }
training = { local_steps = 2 }
evaluation = { images = 60, targets = [0.2, 0.4] }
world = { profile = "paper", model_megabits = 1 }
[quick]
title = "Digits"
note = "small"
[standard]
title = "Digits"
[paper]
title = "Digits"
"""
FIGURE = """
title = "A title"
claim = "A claim."
draw = "DRAW"
skews = [0.5]
algorithms = ["fedhp:deadline=fill", "dpsgd"]
[quick]
seeds = { emnist = [0, 1], mnist = [0] }
[standard]
seeds = { emnist = [0] }
[paper]
seeds = { emnist = [0] }
"""


def write_small_suite(folder: Path, **figures: str) -> Path:
    """emnist (the digits, in truth) and mnist; figures are names and what each draws."""
    (folder / "sets").mkdir(parents=True)
    for name, data in (("emnist", "digits"), ("mnist", "mnist")):
        (folder / "sets" / f"{name}.toml").write_text(SET.replace("NAME", data))
    for name, draw in figures.items():
        (folder / f"{name}.toml").write_text(FIGURE.replace("DRAW", draw))
    return folder
