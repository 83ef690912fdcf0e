"""A run as short facts: its settings and progress for `fedhp show`, and what it cost."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedhp.algorithms.base import about
from fedhp.record.reader import RunReader
from fedhp.report.formatting import count, data_size, from_to, target_name, time_name

MOST_PRIVATE = 10  # workers whose own samples are listed
MOST_SCALED = 4  # channels whose scaling is shown
PHASES = ("plan", "train", "estimate", "mix", "account", "evaluate")


def describe_run(run: RunReader) -> list[tuple[str, str]]:
    """(name, fact) pairs: what was run, on what data, in which world, and how far it came."""
    experiment = run.meta("experiment")
    training, world = experiment["training"], experiment["world"]
    rate = run.meta("learning_rate") or training["learning_rate"]  # earlier records: only this
    if (epochs := training.get("local_epochs")) is None:
        local = count(training["local_steps"], "local step")
    else:
        local = f"{epochs:g} local epoch{'' if epochs == 1 else 's'}"
    own_task = experiment["task"]["name"] != "classification"
    share = run.meta("transfer_share") or 1.0  # of a compressed model, or with what is carried
    facts = [
        ("algorithm", _part(experiment["algorithm"])),
        ("label", run.meta("label")),
        ("seed", str(run.meta("seed"))),
        ("status", _status(run)),
        ("data", _data(experiment, run.meta("samples"), run.meta("private") or [])),
        ("scaling", _scaling(run.meta("scaling"))),
        ("task", _part(experiment["task"])),
        (
            "model",  # that of a user's task has no name
            f"{'' if own_task else _part(experiment['model']) + ': '}"
            f"{count(run.meta('parameters'), 'parameter')}, "
            f"{data_size(round(run.meta('model_bytes') * share))} per transfer",
        ),
        (
            "training",
            f"{_optimizer(experiment)}learning rate {rate:g}{_schedule(training)}, "
            f"batch {training['batch_size']}{_samples(experiment)}, {local} "
            f"if the algorithm does not choose",
        ),
        ("evaluation", _evaluation(experiment["evaluation"], run.meta("metric"))),
        ("devices", _devices(run.meta("devices"))),
        ("links", "measured" if run.meta("network") else _links(world)),
        ("topology", _part(experiment["topology"])),
        ("absences", _absences(world)),
        ("exchange", _exchange(experiment.get("exchange", {}))),
        ("attack", _attack(experiment.get("attack", {}), run.meta("attackers"))),
        ("fedhp", run.meta("fedhp")),
    ]
    usual = dict.fromkeys(("absences", "exchange", "attack", "scaling"), "")
    usual |= {"task": "classification", "label": experiment["algorithm"]["name"]}
    return [(name, fact) for name, fact in facts if usual.get(name) != fact]


def _schedule(training: Mapping[str, Any]) -> str:
    kind, by_time = training.get("schedule", "exponential"), training["decay_by"] == "time"
    unit = " s" if by_time else " rounds"
    if kind == "exponential":
        period = f"{training['decay_seconds']:g} s" if by_time else "round"
        text = f" x {training['decay']:g} per {period}"
    elif kind == "step":
        points = ", ".join(f"{point:g}" for point in training["milestones"])
        text = f" x {training.get('factor', 0.1):g} after {points}{unit}"
    elif kind == "cosine":
        text = f", as a cosine to {100 * training.get('final_share', 0.0):g} %"
    else:
        text = ", constant"
    warmup = training.get("warmup", 0.0)
    length = f"{warmup:g} s" if by_time else count(int(warmup), "round")
    return text + (f" (warm-up of {length})" if warmup else "")


def _samples(experiment: Mapping[str, Any]) -> str:
    training, changes = experiment["training"], experiment.get("augmentation", {})
    parts = [" by shuffled epochs"] if training.get("batches") == "epochs" else []
    if changes.get("crop"):
        parts.append(f"images cropped by up to {count(changes['crop'], 'pixel')}")
    if changes.get("flip"):
        parts.append("images flipped at random")
    if training.get("label_smoothing"):
        parts.append(f"label smoothing {training['label_smoothing']:g}")
    text = ", ".join(parts)
    return text if not text or text.startswith(" ") else f", {text}"


def _optimizer(experiment: Mapping[str, Any]) -> str:
    """What is unusual about the optimizer of local training; nothing for plain SGD."""
    training, algorithm = experiment["training"], experiment["algorithm"]
    momentum = training.get("momentum", 0.0)
    known = about(algorithm["name"])
    if known is not None and known.own_momentum:
        momentum = algorithm.get("momentum", momentum)
    parts = []
    if training.get("optimizer") == "adamw":
        # Left out of the tables at their defaults; what is there may be 0.
        own = ("beta1", "beta2", "epsilon")
        parts += ["AdamW", *(f"{key} {training[key]:g}" for key in own if key in training)]
    elif momentum:
        kind = "Nesterov momentum" if training.get("nesterov") else "momentum"
        parts.append(f"SGD with {kind} {momentum:g}")
    names = {
        "weight_decay": "weight decay",
        "clip_norm": "gradients clipped to norm",
        "proximal": "proximal term",
    }
    parts += [f"{label} {training[key]:g}" for key, label in names.items() if training.get(key)]
    state = {"reset": "state reset at every exchange", "mix": "state mixed with the models"}
    if training.get("optimizer_state") in state:
        parts.append(state[training["optimizer_state"]])
    return "".join(f"{part}, " for part in parts)


def _exchange(settings: Mapping[str, Any]) -> str:
    """What is unusual about how models travel and are combined."""
    parts = []
    compression, robust = settings.get("compression", "none"), settings.get("robust", "none")
    if compression != "none":
        share = f" of {100 * settings['topk_share']:g} %" if compression == "topk" else ""
        parts.append(f"models travel as {compression}{share}")
    if robust == "clip":
        radius = settings.get("radius")
        length = f"{settings['clip']:g} times the median" if radius is None else f"{radius:g}"
        parts.append(f"mixed by clip, at most {length}")
    elif robust != "none":
        parts.append(f"mixed by {robust}, for up to {100 * settings['trim']:g} % poisoned")
    return "; ".join(parts)


def _attack(settings: Mapping[str, Any], attackers: Sequence[int] | None) -> str:
    if not attackers:
        return ""
    scale = "" if settings["kind"] == "label_flip" else f" (scale {settings['scale']:g})"
    who = ", ".join(map(str, attackers[:10])) + (", ..." if len(attackers) > 10 else "")
    who = f"{count(len(attackers), 'worker')}: {who}; tests are those of the others"
    return f"{settings['kind']}{scale} by {who}"


def _part(part: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in part.items() if key != "name")
    return f"{part['name']} ({settings})" if settings else str(part["name"])


def _status(run: RunReader) -> str:
    done, planned, status = run.rounds_done, run.meta("rounds"), run.status
    text = f"{status}, {done} of {count(planned or 0, 'round')}"
    if planned is None:
        clock = run.array("rounds", "clock")[-1] if done else 0.0
        horizon = run.meta("experiment")["horizon"]
        text = f"{status}, {count(done, 'round')}, {clock:.6g} of {horizon:g} s of virtual time"
    if status == "interrupted" and run.meta("status") == "running":
        resume = "" if run.meta("network") else " --resume"
        again = f"the same command with --out {shlex.quote(str(run.folder))}{resume}"
        return f"{text} (its process is gone); resume with {again}"
    message = run.meta("message") if status == "diverged" else None
    if status == "finished":
        message = run.meta("stopped")
    return f"{text}: {message.splitlines()[0]}" if message else text


def partition_rule(data: Mapping[str, Any]) -> str:
    skew = data.get("skew")
    partitions = {
        "skew": "IID" if skew is None else f"skew {skew:g}",
        "dirichlet": f"Dirichlet, alpha {data['alpha']:g}",
        "quantity": f"sizes by Dirichlet, alpha {data['alpha']:g}",
        "shards": f"{count(data['shards_per_worker'], 'shard')} each",
        "iid": "IID",
        "natural": "by user",
    }
    return partitions.get(data["partition"], f"partition {data['partition']}")


def _data(experiment: Mapping[str, Any], samples: list[int], private: Sequence[int]) -> str:
    data = experiment["data"]
    name = f"{data['name']}, " if experiment["task"]["name"] == "classification" else ""
    rule = f"{name}{partition_rule(data)}"
    if not any(samples):  # on a network, before the workers have reported
        return rule
    # Workers with --data have no part of the experiment's data set.
    own = {worker: samples[worker] for worker in private if worker < len(samples)}
    shared = [amount for worker, amount in enumerate(samples) if worker not in own]
    if not private:
        return f"{rule}: {_on_workers(samples)}"
    shown = [f"worker {worker} {amount}" for worker, amount in own.items()][:MOST_PRIVATE]
    more = ", ..." if len(own) > MOST_PRIVATE else ""
    rest = f"tests: {name.removesuffix(', ') or 'the data of the task'}"
    return (
        f"own data (--data) of {count(len(own), 'worker')}: "
        f"{count(sum(own.values()), 'sample')} ({', '.join(shown)}{more}); "
        f"{f'{rule}: {_on_workers(shared)}' if any(shared) else rest}"
    )


def _on_workers(samples: Sequence[int]) -> str:
    workers = count(len(samples), "worker")
    return f"{count(sum(samples), 'sample')} on {workers}, {from_to(samples)} each"


def _scaling(scaling: Mapping[str, Sequence[float]] | None) -> str:
    """By what the inputs are scaled, where that is a few numbers."""
    if not scaling:
        return ""
    if len(scaling["mean"]) > MOST_SCALED:
        return f"by {len(scaling['mean'])} means and deviations of the training set"
    texts = {key: ", ".join(f"{value:.6g}" for value in scaling[key]) for key in scaling}
    values = f"mean {texts['mean']}, deviation {texts['deviation']}"
    return f"{values} (of the experiment's training set)"


def _evaluation(evaluation: Mapping[str, Any], metric: str) -> str:
    every, seconds = evaluation["every"], evaluation.get("seconds")
    often = "every round" if every == 1 else f"every {every} rounds"
    if seconds is not None:
        often = f"every {seconds:g} s of virtual time"
    images = f" on {evaluation['images']} test samples" if evaluation.get("images") else ""
    targets = ", ".join(target_name(target, metric) for target in evaluation["targets"])
    times = ", ".join(time_name(time) for time in evaluation.get("times") or ())
    goals = f"; targets {targets}" if targets else ""
    return f"{metric} {often}{images}{goals}" + (f"; results at {times}" if times else "")


def _devices(devices: list[str]) -> str:
    if set(devices) == {"machine"}:
        return f"{count(len(devices), 'machine')} of a network"
    return ", ".join(f"{number} {kind}" for kind, number in sorted(Counter(devices).items()))


def _links(world: Mapping[str, Any]) -> str:
    links = world["bandwidth"]
    if world.get("trace"):
        text = f"replayed from {world['trace']} (bandwidth in {links['unit']})"
    elif world.get("device_trace"):
        text = f"constant, from {world['device_trace']}"
    else:
        most = f" to {links['high']:g}" if links["low"] < links["high"] else ""
        text = f"{links['low']:g}{most} {links['unit']} per {links['per']}"
    # At their defaults, uplink and downlink are left out.
    notes = [f"{name} {_line(links[name])}" for name in ("uplink", "downlink") if name in links]
    notes += [f"jitter {100 * links['jitter']:g} %"] if links.get("jitter") else []
    notes += ["shared by a worker's transfers"] if links["sharing"] else []
    notes += [f"latency {links['latency']:g} s"] if links["latency"] else []
    notes += ["measured one round late"] if world["monitor_delay"] else []
    error = world.get("monitor_error")
    notes += [f"measured up to {100 * error:g} % wrong"] if error else []
    return ", ".join([text, *notes])


def _line(line: float | Mapping[str, float] | list[float]) -> str:
    if isinstance(line, Mapping):
        return f"x {line['low']:g} to {line['high']:g}"
    if isinstance(line, list):
        return f"x {min(line):g} to {max(line):g} by worker"
    return f"x {line:g}"


def _absences(world: Mapping[str, Any]) -> str:
    texts = [
        f"worker {absence['worker']} in rounds {absence['first']} to {absence['last']}"
        for absence in world["away"]
    ]
    if world.get("availability_trace"):
        texts.append(f"as in {world['availability_trace']}")
    if world["away_probability"]:
        texts.append(f"each worker with probability {world['away_probability']:g}")
    return ", ".join(texts)


def cost_of(run: RunReader) -> str:
    """One or two lines: seconds, peak memory, phases; the result on the whole test set."""
    seconds, peak = run.meta("seconds"), run.meta("peak_memory")
    shares = ", ".join(f"{phase} {100 * share:.0f} %" for phase, share in phase_shares(run).items())
    facts = [] if seconds is None else [f"took {seconds:.1f} s"]
    facts += [f"peak memory {data_size(peak)}"] if peak else []
    if run.meta("moved_bytes"):
        facts.append(f"{data_size(run.meta('moved_bytes'))} moved between shards")
    if shares and not run.meta("network"):  # there, only the workers know their phases
        facts.append(f"time: {shares}")
    final, result = run.table("final_evaluations"), ""
    if final["accuracy"]:
        result = f"on the whole test set ({final['images'][0]:,}): {run.meta('metric')} "
        result += f"{final['accuracy'][0]:.4f}"
        mean = final["mean_model_accuracy"][0]  # unknown where nobody sees all models
        result += "" if mean is None else f", of the mean model {mean:.4f}"
    return "\n".join(filter(None, [", ".join(facts), result]))


def phase_shares(run: RunReader) -> dict[str, float]:
    """Real seconds of each phase as a share of all that was measured."""
    wall = run.table("wall")
    seconds = dict.fromkeys(PHASES, 0.0)
    for phase, value in zip(wall["phase"], wall["seconds"], strict=True):
        seconds[phase] = seconds.get(phase, 0.0) + value
    total = sum(seconds.values()) or 1.0
    return {phase: value / total for phase, value in seconds.items() if value}
