"""Faults of components: their settings, their names, and own components that do not fit."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel

from fedhp.algorithms.base import ALGORITHMS
from fedhp.components import resolve
from fedhp.graph import TOPOLOGIES
from fedhp.learn.names import MODELS
from fuzz.fault import Fault
from fuzz.schema_faults import bad_values, misspelt

BUILTINS = {"algorithm": ALGORITHMS, "model": MODELS, "topology": TOPOLOGIES}


def component_faults(rng: random.Random) -> Iterator[Fault]:
    """Unknown and wrong settings of every built-in algorithm, model and topology."""
    for section, builtins in BUILTINS.items():
        for name in builtins:
            settings = settings_of(resolve(name, builtins, key=section))
            needed = needed_settings(section, name)
            for setting, annotation in settings.items():
                path = f"{section}.{setting}"
                for value in bad_values(annotation):
                    yield Fault(
                        f"{name}: {path} = {value!r:.40}",
                        {f"{section}.name": name, **needed, path: value},
                        (path,),
                    )
            for key in (*(misspelt(s, rng) for s in settings), "stepz", "int", "list_", "self"):
                if key not in settings and key != "name":
                    path = f"{section}.{key}"
                    yield Fault(
                        f"{name}: unknown {path}",
                        {f"{section}.name": name, **needed, path: rng.choice([1, "x", [2]])},
                        (path,),
                    )


def settings_of(component: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a component with their types."""
    if inspect.isclass(component) and issubclass(component, BaseModel):
        return {
            name: Annotated[field.annotation, *field.metadata, None]
            for name, field in component.model_fields.items()
        }
    parameters = inspect.signature(component, eval_str=True).parameters.values()
    return {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}


def needed_settings(section: str, name: str) -> dict[str, Any]:
    """The settings that a component needs to be valid."""
    return {"topology.pairs": [[0, 1]]} if name == "links" else {}


def name_faults(rng: random.Random) -> Iterator[Fault]:
    """Components without a name, with a wrong one, or with a dotted path that does not exist."""
    missing = [
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
        for path in missing:
            yield Fault(f"{key} = {path!r}", {key: path}, (key,), bare=section == "task")


def own_component_faults() -> Iterator[Fault]:
    """The user's own components that can be imported but do not fit."""

    def component(section: str, name: str, *keys: str, **settings: Any) -> Fault:
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
        yield component("algorithm", name)
    yield component("algorithm", "Planner", "algorithm.steps", steps=0)
    yield component("algorithm", "Planner", "algorithm.steps", steps="3")
    yield component("algorithm", "Planner", "algorithm.step", step=3)
    yield component("algorithm", "Explodes", fuse=4)
    for name in ("PlansNothing", "KeepsNothing", "KeepsAList", "PlansTooMuch", "CannotPlan"):
        yield component("algorithm", name)
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
        yield component("model", name)
    yield component("model", "good", "model.width", width=65)
    yield component("model", "good", "model.width", width=2.5)
    yield component("model", "good", "model.wide", wide=2)
    for name in ("raise", "text", "none", "ragged", "far", "apart"):
        yield component("topology", f"pairs_{name}")
    yield component("topology", "good", "topology.name")
    yield component("topology", "pairs_far", "topology.list", list=3)
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
        yield component("task", name)
    yield component("task", "Regression", "task.hidden", hidden=0)
    yield component("task", "Regression", "task.hiden", hiden=3)
    for name in ("raises", "none", "three", "nan", "negative", "uneven"):
        yield component("data", f"load_{name}")
    yield component("data", "load_path", "data.path")
    yield component("data", "load_nan", "data.path", path="/tmp")
    yield component("data", "load_nan", "data.split", split="letters")
    yield component("data", "load_nan", "data.options.year", options={"year": 3})
    yield component("data", "load_values", "task.name")
