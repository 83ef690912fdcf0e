"""Bad configurations, made by walking the schema: one fault each, on a random valid ground."""

from __future__ import annotations

import inspect
import math
import random
import string
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedhp.algorithms.base import ALGORITHMS
from fedhp.components import resolve
from fedhp.config import AbsenceConfig, DeviceConfig, Experiment, Part
from fedhp.graph import TOPOLOGIES
from fedhp.learn.models import MODELS
from fuzz.material import TRACES

Tables = dict[str, Any]
BUILTINS = {"algorithm": ALGORITHMS, "model": MODELS, "topology": TOPOLOGIES}
# Names that look like the branches of a union in an error's location.
AWKWARD = ("int", "list", "dict_of", "literal", "function-after", "a[0]", "none", "tuple", "name_")


@dataclass(frozen=True)
class Fault:
    """One mistake: the settings that make it, and the keys a message may name for it."""

    title: str
    settings: dict[str, Any]  # dotted key -> value; laid over a valid experiment
    keys: tuple[str, ...]
    bare: bool = False  # no other settings beside it


@dataclass(frozen=True)
class Case:
    """A whole bad experiment."""

    title: str
    tables: Tables
    keys: tuple[str, ...]


def make_cases(folder: Path, count: int, seed: int) -> list[Case]:
    """Every fault once, then faults by lot, each on a ground of its own."""
    rng = random.Random(seed)
    faults = list(all_faults(folder, rng))
    chosen = faults + [rng.choice(faults) for _ in range(count - len(faults))]
    rng.shuffle(chosen)
    return [lay(fault, {} if fault.bare else ground(rng)) for fault in chosen[:count]]


def lay(fault: Fault, tables: Tables) -> Case:
    """A fault on valid ground; what stands in its way there gives way."""
    for key, value in fault.settings.items():
        *sections, last = key.split(".")
        table = tables
        for section in sections:
            if not isinstance(table.get(section), dict):
                table[section] = {}
            table = table[section]
        if last == "name" and sections:
            table.clear()  # settings of another part would be a fault of their own
        table[last] = value
    return Case(fault.title, tables, fault.keys)


def ground(rng: random.Random) -> Tables:
    """A random valid experiment, cheap to prepare."""
    tables: Tables = {"workers": rng.randint(4, 12), "rounds": rng.randint(0, 50)}
    choices: list[tuple[str, str, list[Any]]] = [
        ("algorithm", "name", list(ALGORITHMS)),
        ("model", "name", ["mlp", "logistic", "small_cnn"]),
        ("topology", "name", ["full", "ring", "grid", "random"]),
        ("training", "learning_rate", [0.01, 0.1, 1]),
        ("training", "batch_size", [1, 32, 5000]),
        ("evaluation", "every", [1, 3, 1000]),
        ("world", "profile", ["paper", "slow_links", "uniform"]),
        ("world", "monitor_delay", [0, 1]),
        ("checkpoint", "seconds", [0, 5.5]),
        ("compare", "seeds", [[0, 1], [7]]),
    ]
    for section, key, values in rng.sample(choices, rng.randint(0, len(choices))):
        tables.setdefault(section, {})[key] = rng.choice(values)
    return tables


def all_faults(folder: Path, rng: random.Random) -> Iterator[Fault]:
    """Every fault there is."""
    yield from schema_faults()
    yield from unknown_keys(rng)
    yield from part_faults(rng)
    yield from name_faults(rng)
    yield from own_part_faults()
    yield from combinations(rng)
    yield from file_faults(folder)


# ---- the schema: each key x each wrong value


def schema_faults() -> Iterator[Fault]:
    """Wrong types and ranges for every key, scalars and lists for every section."""
    for path, field in leaves(Experiment):
        for value in bad_values(Annotated[field.annotation, *field.metadata, None]):
            yield Fault(f"{path} = {value!r:.40}", {path: value}, (path,))
        if field.annotation is str and any("pattern" in repr(m) for m in field.metadata):
            for value in ("gpu", "cuda:", "cuda:-1", "CPU", "cpu\n", " cpu"):
                yield Fault(f"{path} = {value!r}", {path: value}, (path,))
    for path, _ in sections(Experiment):
        for value in (3, -1.5, "text", "", True, [], [1, 2], [{}], math.nan):
            yield Fault(f"section {path} = {value!r}", {path: value}, (path,))
    for nested, kind in (("world.device.mine", DeviceConfig), ("world.away", AbsenceConfig)):
        yield from nested_faults(nested, kind)


def nested_faults(nested: str, kind: type[BaseModel]) -> Iterator[Fault]:
    """Tables inside lists and tables of tables."""
    whole: Tables = {"step_time": 0.1} if kind is DeviceConfig else {"worker": 1, "first": 2}
    whole |= {} if kind is DeviceConfig else {"last": 3}
    wrap: Callable[[Any], Any] = (lambda x: x) if kind is DeviceConfig else (lambda x: [x])
    place = nested if kind is DeviceConfig else f"{nested}.0"
    for name, field in kind.model_fields.items():
        for value in bad_values(Annotated[field.annotation, *field.metadata, None]):
            broken = {**whole, name: value}
            yield Fault(
                f"{place}.{name} = {value!r:.40}", {nested: wrap(broken)}, (f"{place}.{name}",)
            )
        if field.is_required():
            missing = {key: value for key, value in whole.items() if key != name}
            yield Fault(f"{place} without {name}", {nested: wrap(missing)}, (f"{place}.{name}",))
    for typo in ("steptime", "int", "form", "list_"):
        yield Fault(f"{place}.{typo}", {nested: wrap({**whole, typo: 1})}, (f"{place}.{typo}",))
    for value in (3, "x", True):
        yield Fault(f"{place} = {value!r}", {nested: wrap(value)}, (place,))


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section of the schema with its dotted key."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            yield prefix + name, kind
            yield from sections(kind, f"{prefix}{name}.")


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key that holds a value."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def bad_values(annotation: Any) -> list[Any]:
    """Values that this type must refuse."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        notes = [note for part in arguments[1:] for note in _notes(part)]
        inner = arguments[0]
        return [*bad_values(inner), *_out_of_range(inner, notes)]
    if origin in (Union, types.UnionType):
        options = [option for option in arguments if option is not type(None)]
        pools = [bad_values(option) for option in options]
        return [
            value for value in pools[0] if all(_is_in(value, pool) for pool in pools[1:])
        ] + _deep(options)
    if origin is Literal:
        words = [str(option) for option in arguments]
        return [
            "",
            "wrong",
            words[0].upper() + "X",
            words[0][:-1],
            3,
            1.5,
            True,
            [],
            {},
            [words[0]],
        ]
    if origin is dict:
        return [3, 1.5, "text", True, [], [1]] + [{"k": v} for v in bad_values(arguments[1])]
    if "Sequence" in str(origin) or origin in (list, tuple):
        inner = arguments[0]
        return [3, 1.5, "text", True, {}, {"a": 1}] + [[v] for v in bad_values(inner)]
    simple: dict[Any, list[Any]] = {
        int: ["3", "", "text", 1.5, 2.0, True, [], [1], {}, math.nan, math.inf],
        float: ["0.5", "", "text", True, [], [0.5], {}, math.nan, math.inf, -math.inf, 10**400],
        bool: ["true", "", 0, 1, 0.0, [], {}, "no"],
        str: [3, 1.5, True, [], ["text"], {}, {"a": 1}],
    }
    return list(simple.get(annotation, []))


def _deep(options: list[Any]) -> list[Any]:
    """Faults inside the members of a union that are lists or tables."""
    found: list[Any] = []
    for option in options:
        if get_origin(option) is dict:
            found += [{"laptop": v} for v in bad_values(get_args(option)[1])]
        elif get_origin(option) is list:
            found += [[v] for v in bad_values(get_args(option)[0])]
    return found


def _is_in(value: Any, pool: list[Any]) -> bool:
    return any(value is other or (type(value) is type(other) and value == other) for other in pool)


def _notes(part: Any) -> list[Any]:
    return list(part.metadata) if isinstance(part, FieldInfo) else [part]


def _out_of_range(kind: Any, notes: list[Any]) -> list[Any]:
    whole = kind is int
    found: list[Any] = []
    for note in notes:
        limit: Any = next(
            (getattr(note, n) for n in ("ge", "gt", "le", "lt") if hasattr(note, n)), 0
        )
        if isinstance(note, Ge):
            found += [limit - 1 if whole else limit - max(1e-9, abs(limit) * 1e-3), -(10**12)]
        elif isinstance(note, Gt):
            found += [limit, limit - 1, -5]
        elif isinstance(note, Le):
            found += [limit + 1 if whole else limit * 1.001, 10**19, 10**300]
        elif isinstance(note, Lt):
            found += [limit, limit + 1, 10**30]
        elif isinstance(note, MinLen):
            found += [""] if kind is str else [[]]
        elif isinstance(note, MaxLen):
            found += [[1] * (note.max_length + 1)]
    return found


# ---- keys that do not exist


def unknown_keys(rng: random.Random) -> Iterator[Fault]:
    """Typos of real keys at every level, and names that confuse a reader of unions."""
    places: list[tuple[str, type[BaseModel]]] = [("", Experiment)]
    places += [(f"{path}.", kind) for path, kind in sections(Experiment)]
    for prefix, kind in places:
        if kind is Part:
            continue
        names = list(kind.model_fields)
        for name in rng.sample(names, min(len(names), 6)):
            typo = misspelt(name, rng)
            if typo not in names:
                value = rng.choice([1, 0.5, "text", True, [1], {"a": 1}])
                yield Fault(f"unknown {prefix}{typo}", {prefix + typo: value}, (prefix + typo,))
        for name in AWKWARD:
            yield Fault(f"unknown {prefix}{name}", {prefix + name: 1}, (prefix + name,))


def misspelt(name: str, rng: random.Random) -> str:
    """A name with a slip."""
    place = rng.randrange(len(name))
    letter = rng.choice(string.ascii_lowercase)
    return rng.choice(
        [
            name[:place] + name[place + 1 :] or "x",
            name[:place] + letter + name[place:],
            name[:place] + letter + name[place + 1 :],
            name.upper(),
            name.replace("_", "-") + "s",
            name[::-1],
        ]
    )


# ---- settings and names of parts


def part_faults(rng: random.Random) -> Iterator[Fault]:
    """Unknown and wrong settings of every built-in algorithm, model and topology."""
    for section, builtins in BUILTINS.items():
        for name in builtins:
            settings = settings_of(resolve(name, builtins, key=section))
            fits = suitable(section, name)
            for setting, annotation in settings.items():
                path = f"{section}.{setting}"
                for value in bad_values(annotation):
                    yield Fault(
                        f"{name}: {path} = {value!r:.40}",
                        {f"{section}.name": name, **fits, path: value},
                        (path,),
                    )
            for key in (*(misspelt(s, rng) for s in settings), "stepz", "int", "list_", "self"):
                if key not in settings and key != "name":
                    path = f"{section}.{key}"
                    yield Fault(
                        f"{name}: unknown {path}",
                        {f"{section}.name": name, **fits, path: rng.choice([1, "x", [2]])},
                        (path,),
                    )


def settings_of(part: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a part with their types."""
    if inspect.isclass(part) and issubclass(part, BaseModel):
        return {
            name: Annotated[field.annotation, *field.metadata, None]
            for name, field in part.model_fields.items()
        }
    parameters = inspect.signature(part, eval_str=True).parameters.values()
    return {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}


def suitable(section: str, name: str) -> dict[str, Any]:
    """What a part needs beside itself to be valid."""
    return {"topology.pairs": [[0, 1]]} if name == "links" else {}


def name_faults(rng: random.Random) -> Iterator[Fault]:
    """Parts without a name, with a wrong one, or with a path that leads nowhere."""
    nowhere = [
        "no_such_module_at_all:Thing",
        "no_such_module_at_all.Thing",
        "fuzz_parts:NoSuchThing",
        "fuzz_parts:CONSTANT",
        "fuzz_parts:",
        "fuzz_raises:Thing",
        "fuzz_exits:Thing",
        "fuzz_syntax:Thing",
        "fuzz_imports:Thing",
        "builtins:dict",
        "math:pi",
        "fuzz_parts",
        ":",
        ".",
        "..",
        ".x:y",
        "a b:c",
        "os.path.nothing",
        "fuzz_parts:Regression.nothing",
    ]
    kinds = {**BUILTINS, "task": {"classification": ""}, "data": {"digits": "", "mnist": ""}}
    for section, builtins in kinds.items():
        key = f"{section}.name"
        value: Any
        for value in ("", 3, 1.5, True, [], {}, ["fedhp"]):
            yield Fault(f"{key} = {value!r}", {key: value}, (key,))
        if section != "data":
            odd = f"{section}.zzz"
            yield Fault(f"[{section}] without name", {section: {"zzz": 3}}, (odd,))
        for name in builtins:
            typo = misspelt(name, rng)
            if typo not in builtins:
                yield Fault(f"{key} = {typo!r}", {key: typo}, (key,))
        for path in nowhere:
            yield Fault(f"{key} = {path!r}", {key: path}, (key,))


def own_part_faults() -> Iterator[Fault]:
    """Parts of one's own that import but do not fit."""

    def part(section: str, name: str, *keys: str, **settings: Any) -> Fault:
        own = {f"{section}.{key}": value for key, value in settings.items()}
        chosen = keys or (f"{section}.name",)
        plain = {"data.partition": "iid"} if section == "task" else {}
        return Fault(
            f"{section} {name} {settings}",
            {f"{section}.name": f"fuzz_parts:{name}", **own, **plain},
            chosen,
            bare=section in ("task", "data"),
        )

    for name in ("NoPlan", "Explodes", "Exits", "Needs", "good", "Regression", "no_arguments"):
        yield part("algorithm", name)
    yield part("algorithm", "Planner", "algorithm.steps", steps=0)
    yield part("algorithm", "Planner", "algorithm.steps", steps="3")
    yield part("algorithm", "Planner", "algorithm.step", step=3)
    yield part("algorithm", "Explodes", fuse=4)
    for name in ("PlansNothing", "KeepsNothing", "KeepsAList", "PlansTooMuch", "CannotPlan"):
        yield part("algorithm", name)
    for name in (
        "no_arguments",
        "no_module",
        "too_few",
        "wrong_shape",
        "lazy",
        "doubles",
        "nothing_to_learn",
        "raises",
        "unseeded",
        "Noisy",
        "hidden_type",
        "odd_type",
        "NoPlan",
    ):
        yield part("model", name)
    yield part("model", "good", "model.width", width=65)
    yield part("model", "good", "model.width", width=2.5)
    yield part("model", "good", "model.wide", wide=2)
    for name in ("raise", "text", "none", "ragged", "far", "apart"):
        yield part("topology", f"pairs_{name}")
    yield part("topology", "good", "topology.name")
    yield part("topology", "pairs_far", "topology.list", list=3)
    for name in (
        "NoLoss",
        "NoName",
        "VectorLoss",
        "NaNLoss",
        "NaNMetric",
        "RaisingMetric",
        "NoData",
        "RaisingData",
        "SharedModel",
        "NeedsArgument",
        "good",
        "no_arguments",
    ):
        yield part("task", name)
    yield part("task", "Regression", "task.hidden", hidden=0)
    yield part("task", "Regression", "task.hiden", hiden=3)
    for name in ("raises", "none", "three", "nan", "negative", "uneven"):
        yield part("data", f"load_{name}")
    yield part("data", "load_path", "data.path")
    yield part("data", "load_nan", "data.path", path="/tmp")
    yield part("data", "load_nan", "data.split", split="letters")
    yield part("data", "load_nan", "data.options.year", options={"year": 3})
    yield part("data", "load_values", "task.name")


# ---- settings that are right alone and wrong together


def combinations(rng: random.Random) -> Iterator[Fault]:
    """Workers, samples, classes, topologies, devices, absences."""
    settings: Tables

    def fault(title: str, settings: dict[str, Any], *keys: str) -> Fault:
        return Fault(title, settings, keys)

    for workers in (1439, 1500, 5000, 99_999, 100_000):
        yield fault("more workers than samples", {"workers": workers}, "workers")
    for _ in range(5):
        images = rng.randint(1, 9)
        settings = {"workers": images + rng.randint(1, 9), "data.train_images": images}
        yield fault("more workers than samples", settings, "workers")
    for kind in ("dirichlet", "shards", "quantity", "iid"):
        for skew in (0, 0.5, 1.0):
            yield fault(
                "skew with another partition",
                {"data.partition": kind, "data.skew": skew},
                "data.skew",
            )
    for each in (1000, 1440):
        settings = {"data.partition": "shards", "data.shards_per_worker": each}
        yield fault("too many shards", settings, "data.shards_per_worker")
    for key in ("data.train_images", "data.test_images"):
        for images in (1439, 10**6):
            yield fault("more images than there are", {key: images}, key)
    for name, setting in (("dpsgd", "steps"), ("adpsgd", "steps"), ("ldsgd", "steps")):
        settings = {"algorithm.name": name, f"algorithm.{setting}": 10**12}
        yield fault("too many steps", settings, "algorithm.name", f"algorithm.{setting}")
    for pool in (3, 5, 6, 7, 9, 15, 16):
        yield fault("pool does not divide", {"data.pool": pool}, "data.pool")
    for model in ("alexnet", "vgg16"):
        yield fault("images too small", {"model.name": model}, "model.name")
    for pool in (4, 8):
        for model in ("cnn", "small_cnn", "alexnet"):
            settings = {"model.name": model, "data.pool": pool}
            yield fault("images too small", settings, "model.name")
    for hidden in ([65536] * 16, [65536, 65536]):
        yield fault("no memory", {"model.name": "mlp", "model.hidden": hidden}, "model.name")
    for device in ("cuda", "cuda:0", "cuda:7", "cuda:99999999999999999999"):
        yield fault("no such GPU", {"device": device}, "device")
    yield from topology_combinations(rng)
    yield from world_combinations(rng)
    yield from task_combinations()


def topology_combinations(rng: random.Random) -> Iterator[Fault]:
    """Disconnected graphs, links that name nobody."""
    settings: Tables
    for _ in range(10):
        workers = rng.randint(4, 12)
        cut = rng.randint(1, workers - 1)
        groups = [list(range(cut)), list(range(cut, workers))]
        pairs = [list(p) for g in groups for p in pairwise(g)]
        settings = {"topology.name": "links", "topology.pairs": pairs, "workers": workers}
        yield Fault("disconnected", settings, ("topology.name", "topology.pairs"))
    for bad in ([0, 12], [-1, 0], [99, 3], [2**40, 0]):
        ring = [[i, (i + 1) % 12] for i in range(12)]
        settings = {"topology.name": "links", "topology.pairs": [*ring, bad], "workers": 12}
        yield Fault(f"link {bad}", settings, ("topology.pairs",))
    wrong: Any
    for wrong in ([[0]], [[0, 1, 2]], [["a", "b"]], [[0.5, 1]], 3, "01", [3], [[0, True]], {}):
        settings = {"topology.name": "links", "topology.pairs": wrong}
        yield Fault(f"pairs = {wrong}", settings, ("topology.pairs",))
    yield Fault("no pairs", {"topology.name": "links"}, ("topology.pairs",))
    for center in (12, 13, 10**12):
        settings = {"topology.name": "star", "topology.center": center, "workers": 12}
        yield Fault("star without center", settings, ("topology.center", "topology.name"))


def world_combinations(rng: random.Random) -> Iterator[Fault]:
    """Devices that do not add up, workers that are not there, links that run backwards."""
    settings: Tables
    for devices in ({"laptop": 3}, {"laptop": 100, "xavier_nx": 1}):
        yield Fault("counts", {"world.devices": devices, "workers": 7}, ("world.devices",))
    for names in ([], [""], ["lap top"], ["laptop", "jetson"], ["LAPTOP"]):
        yield Fault(f"devices {names}", {"world.devices": names}, ("world.devices",))
    yield Fault(
        "unknown device", {"world.devices": {"abacus": 4}, "workers": 4}, ("world.devices",)
    )
    for worker in (12, 13, 10**9):
        away = [{"worker": worker, "first": 1, "last": 2}]
        yield Fault("nobody away", {"world.away": away, "workers": 12}, ("world.away",))
    for first, last in ((3, 2), (100, 1)):
        away = [{"worker": 0, "first": first, "last": last}]
        yield Fault("backwards", {"world.away": away}, ("world.away.0.first",))
    for _ in range(5):
        workers, rounds = rng.randint(1, 6), rng.randint(1, 20)
        away = [{"worker": i, "first": 1, "last": rounds + i} for i in range(workers)]
        settings = {"world.away": away, "workers": workers, "rounds": rounds}
        yield Fault("all away", settings, ("world.away",))
    for low, high in ((2, 1), (1e9, 1e-6)):
        settings = {"world.bandwidth.low": low, "world.bandwidth.high": high}
        yield Fault("low above high", settings, ("world.bandwidth.low",))
    for size, sharing in ((1e9, False), (1e7, True)):
        settings = {"world.model_megabits": size, "world.bandwidth.sharing": sharing}
        settings |= {"world.bandwidth.low": 1e-3, "world.bandwidth.interval": 0.01}
        yield Fault("endless transfers", settings, ("world.bandwidth.interval",))
    for low in (11, 10.001):
        settings = {"world.profile": "paper", "world.bandwidth.low": low}
        yield Fault("low above the profile's high", settings, ("world.bandwidth.low",))


def task_combinations() -> Iterator[Fault]:
    """A task of one's own beside what it replaces; values where classes are needed."""
    own = {"task.name": "fuzz_parts:Regression"}
    for model in ("cnn", "logistic", "fuzz_parts:good"):
        yield Fault("own task and model", {**own, "model.name": model}, ("model.name",), bare=True)
    for data in ("mnist", "npz", "fuzz_parts:load_values"):
        yield Fault("own task and data", {**own, "data.name": data}, ("data.name",), bare=True)
    for skew in (0.0, 0.5):
        yield Fault("skew without classes", {**own, "data.skew": skew}, ("data.skew",), bare=True)
    yield Fault(
        "dirichlet without classes",
        {**own, "data.partition": "dirichlet"},
        ("data.partition",),
        bare=True,
    )
    yield Fault("few samples", {**own, "workers": 51}, ("workers",), bare=True)


# ---- files


def file_faults(folder: Path) -> Iterator[Fault]:
    """Data and traces that are missing, broken or do not fit."""

    def npz(name: str, *keys: str, **more: Any) -> Fault:
        rest = {key.replace("__", "."): value for key, value in more.items()}
        settings = {"data.name": "npz", "data.path": str(folder / name), **rest}
        return Fault(f"npz {name} {rest}", settings, keys or ("data.path",), bare=True)

    for name in ("cut", "garbage", "nothing", "strange_keys", "nan", "uneven", "negative", "text"):
        yield npz(f"{name}.npz")
    for name in ("objects", "empty_arrays", "single", "shapes", "kinds", "one_hot", "absent"):
        yield npz(f"{name}.npz")
    for name in ("single.npy", "empty_folder", "fuzz_parts.py", "flat.npz/inside", "loop"):
        yield npz(name)
    for value in ("", "a\0b", "~nobody_of_this_name/x", "x" * 300, "y/" * 4000, "loop"):
        for key in ("data.path", "world.trace"):
            settings = {
                "data.name": "npz",
                key: str(folder / value) if value == "loop" else value,
            }
            yield Fault(f"{key} = {value!r:.20}", settings, (key,), bare=True)
    yield npz("values.npz", "task.name")
    yield npz("flat.npz", "model.name", model__name="cnn")
    yield npz("flat.npz", "model.name", model__name="small_cnn")
    yield npz("images.npz", "model.name", model__name="alexnet")
    yield npz("flat.npz", "data.pool", data__pool=2)
    yield npz("images.npz", "data.pool", data__pool=5)
    yield npz("flat.npz", "workers", workers=49)
    yield npz("two_classes.npz", "data.skew", workers=12, data__skew=1.0)
    yield npz("one_class.npz", "data.skew", workers=6, data__skew=0.9)
    yield npz("flat.npz", "data.split", data__split="letters")
    yield npz("images.npz", "data.options.layout", data__options={"layout": "sideways"})
    yield npz("images.npz", "data.options.colour", data__options={"colour": True})
    yield from official_faults(folder)
    for name in (*TRACES, "binary", "nul", "absent"):
        path = str(folder / f"{name}.csv")
        yield Fault(f"trace {name}", {"world.trace": path}, ("world.trace",))
    yield Fault("trace folder", {"world.trace": str(folder)}, ("world.trace",))


def official_faults(folder: Path) -> Iterator[Fault]:
    """The built-in data sets without their files."""

    def data(key: str, **settings: Any) -> Fault:
        chosen = {f"data.{name}": value for name, value in settings.items()}
        return Fault(f"data {settings}", chosen, (key,), bare=True)

    for name in ("mnist", "emnist", "cifar10", "tiny_imagenet"):
        yield data("data.name", name=name)
        yield data("data.path", name=name, path=str(folder / "empty_folder"))
        yield data("data.path", name=name, path=str(folder / "absent"))
        yield data("data.path", name=name, path=str(folder / "garbage.npz"))
    yield data("data.path", name="mnist", path=str(folder / "cut_mnist"))
    yield data("data.path", name="cifar10", path=str(folder / "cifar-10-batches-bin"))
    yield data("data.path", name="image_folder")
    yield data("data.path", name="image_folder", path=str(folder / "empty_folder"))
    yield data("data.path", name="image_folder", path=str(folder / "pictures"))
    yield data("data.path", name="digits", path=str(folder))
    yield data("data.split", name="digits", split="letters")
    yield data("data.split", name="mnist", split="letters")
    yield data("data.options.size", name="digits", options={"size": 3})
