"""Runs for what-if: one seed, every planner, a plain world and an odd one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unit.report.runs import WORLD, make_run

ROUNDS = 6
OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "fedhp": ("fedhp", {}),
    "fill": ("fedhp", {"deadline": "fill", "probe_workers": 2, "distance_smoothing": 0.3}),
    "literal": ("fedhp", {"planner": "literal", "bound": "gradient", "bound_scale": 1.0}),
    "plus": ("fedhp_plus", {}),
    "plus-waiting": ("fedhp_plus", {"overlap": False, "compression": "none", "patience": 1}),
    "dpsgd": ("dpsgd", {}),
    "ldsgd": ("ldsgd", {}),
    "adpsgd": ("adpsgd", {}),
    "adpsgd-ring": ("adpsgd", {"neighbors": "ring"}),
    "pens": ("pens", {"stage_share": 0.5, "peers": 3, "keep": 2}),
    "pens-symmetric": ("pens", {"stage_share": 0.5, "peers": 3, "keep": 2, "symmetric": True}),
}
WORLDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {
        "away_probability": 0.2,
        "monitor_delay": 1,
        "charge_estimators": True,
        "bandwidth": {"per": "link", "sharing": True, "latency": 0.3, "interval": 2.0},
    },
}


def settings_of(world: str) -> dict[str, Any]:
    training = {"local_steps": 7, **({"decay_by": "time"} if world == "odd" else {})}
    return {"world": {**WORLD, **WORLDS[world]}, "training": training}


def recorded(folder: Path, own: str, kind: str = "plain", **tables: Any) -> Path:
    name, settings = OWN[own]
    return make_run(folder, name, settings=settings, **{**settings_of(kind), **tables})
