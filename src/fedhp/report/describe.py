"""A run's settings and standing as short facts, for the head of `fedhp show`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedhp.record.reader import RunReader
from fedhp.report.formatting import count, data_size, target_name


def describe_run(run: RunReader) -> list[tuple[str, str]]:
    """(name, fact) pairs: what was run, on what, in which world, and how far it came."""
    experiment = run.meta("experiment")
    training, world = experiment["training"], experiment["world"]
    decay = "round" if training["decay_by"] == "round" else f"{training['decay_seconds']:g} s"
    facts = [
        ("algorithm", _part(experiment["algorithm"])),
        ("label", run.meta("label")),
        ("seed", str(run.meta("seed"))),
        ("status", _status(run)),
        ("data", _data(experiment, run.meta("samples"))),
        ("task", _part(experiment["task"])),
        (
            "model",
            _model(experiment) + f"{count(run.meta('parameters'), 'parameter')}, "
            f"{data_size(run.meta('model_bytes'))} per transfer",
        ),
        (
            "training",
            f"learning rate {training['learning_rate']:g} x {training['decay']:g} per {decay}, "
            f"batch {training['batch_size']}, {count(training['local_steps'], 'local step')} "
            f"where fixed",
        ),
        ("evaluation", _evaluation(experiment["evaluation"], run.meta("metric"))),
        ("devices", _devices(run.meta("devices"))),
        ("links", "measured" if run.meta("network") else _links(world)),
        ("topology", _part(experiment["topology"])),
        ("absences", _absences(world)),
        ("fedhp", run.meta("fedhp")),
    ]
    plain = {"task": "classification", "absences": "", "label": experiment["algorithm"]["name"]}
    return [(name, fact) for name, fact in facts if plain.get(name) != fact]


def _part(part: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in part.items() if key != "name")
    return f"{part['name']} ({settings})" if settings else str(part["name"])


def _model(experiment: Mapping[str, Any]) -> str:
    """The model's name; a task of one's own brings a model without one."""
    own = experiment["task"]["name"] != "classification"
    return "" if own else f"{_part(experiment['model'])}: "


def _status(run: RunReader) -> str:
    done, planned = run.rounds_done, run.meta("rounds")
    text = f"{run.meta('status')}, {done} of {count(planned, 'round')}"
    message = run.meta("message") if run.meta("status") == "diverged" else None
    return f"{text}: {message.splitlines()[0]}" if message else text


def _data(experiment: Mapping[str, Any], samples: list[int]) -> str:
    data = experiment["data"]
    skew = data.get("skew")
    ways = {
        "skew": "IID" if skew is None else f"skew {skew:g}",
        "dirichlet": f"Dirichlet, alpha {data['alpha']:g}",
        "quantity": f"sizes by Dirichlet, alpha {data['alpha']:g}",
        "shards": f"{data['shards_per_worker']} shards each",
        "iid": "IID",
    }
    name = f"{data['name']}, " if experiment["task"]["name"] == "classification" else ""
    if not any(samples):  # on a network, as long as nobody has told
        return f"{name}{ways[data['partition']]}"
    each = f"{min(samples)} to {max(samples)}" if min(samples) < max(samples) else f"{samples[0]}"
    return (
        f"{name}{ways[data['partition']]}: {count(sum(samples), 'sample')} on "
        f"{count(len(samples), 'worker')}, {each} each"
    )


def _evaluation(evaluation: Mapping[str, Any], metric: str) -> str:
    every = evaluation["every"]
    often = "every round" if every == 1 else f"every {every} rounds"
    images = f" on {evaluation['images']} test samples" if evaluation.get("images") else ""
    targets = ", ".join(target_name(target, metric) for target in evaluation["targets"])
    return f"{metric} {often}{images}" + (f"; targets {targets}" if targets else "")


def _devices(devices: list[str]) -> str:
    if set(devices) == {"machine"}:
        return f"{count(len(devices), 'machine')} of a network"
    return ", ".join(f"{number} {kind}" for kind, number in sorted(Counter(devices).items()))


def _links(world: Mapping[str, Any]) -> str:
    links = world["bandwidth"]
    if world.get("trace"):
        text = f"replayed from {world['trace']} (bandwidth in {links['unit']})"
    else:
        span = f"{links['low']:g}"
        if links["low"] < links["high"]:
            span += f" to {links['high']:g}"
        text = f"{span} {links['unit']} per {links['per']}"
    if links["sharing"]:
        text += ", shared among a worker's transfers"
    if links["latency"]:
        text += f", latency {links['latency']:g} s"
    if world["monitor_delay"]:
        text += ", seen one round late"
    return text


def _absences(world: Mapping[str, Any]) -> str:
    texts = [
        f"worker {each['worker']} in rounds {each['first']} to {each['last']}"
        for each in world["away"]
    ]
    if world["away_probability"]:
        texts.append(f"each worker with probability {world['away_probability']:g}")
    return ", ".join(texts)
