"""Carries a case out through the surfaces that users have, and says what was seen.

Only fedhp.api, fedhp.cli.call and the reader of the record are used, so that whatever moves inside
moves under this. The one exception is shards.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

import fedhp
from fedhp.cli import call
from fedhp.errors import Interrupted
from frozen.cases import BASE, Case

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
WORLDS = HERE / "worlds"
PLANNERS = ("fedhp:deadline=fill", "dpsgd", "ldsgd", "pens", "fedhp_plus")
# Tables of the record that are not part of its digest; `wall` is real time.
BESIDE_THE_DIGEST = (
    *("test_metrics", "worker_test_metrics", "class_test_metrics", "own_test_metrics"),
    *("participation", "phases"),
)
# Names in --json whose values are real time, places or versions.
VARIABLE = frozenset(
    {"folder", "path", "run", "seconds", "started", "version", "wall", "peak_memory", "memory"}
)

# `explain` lists device kinds without a step time in the order of a set: another one every time.
UNORDERED = ("free_links",)


class Failed(Exception):
    """A command did not do what it should."""


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """Own parts are found in examples/, here and in processes that are started; no notes."""
    paths = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    before, disabled = os.environ.get("PYTHONPATH"), logging.root.manager.disable
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, str(EXAMPLES))
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        sys.path.remove(str(EXAMPLES))
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Tables from dotted keys, in their order; None removes a key, a table replaces a section."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        table = tables
        for section in sections:
            table = table.setdefault(section, {})
        if value is None:
            table.pop(last, None)
        else:
            table[last] = dict(value) if isinstance(value, Mapping) else value
    return tables


def tables_of(case: Case) -> dict[str, Any]:
    """The whole experiment of a case."""
    tables = nested({**BASE, **case.settings})
    if tables.get("model", {}).get("name", "mlp") != "mlp":
        tables["model"].pop("hidden", None)
    world = tables.get("world", {})
    for key in ("trace", "device_trace", "availability_trace"):
        if key in world:
            world[key] = str(WORLDS / world[key])
    if case.engine == "ray":
        tables["engine"], tables["ray"] = "ray", {"actors": 2}
    return tables


def seen_of(case: Case, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run gave: its digests, and the outputs that are asked for."""
    with surroundings():
        if case.engine == "network":
            return over_network(case, folder), {}
        if case.compared:
            return compared(case, folder)
        carry_out(case, folder)
        words = case.settings["algorithm.name"] not in UNORDERED
        seen = {**numbers_of(folder), "told": told(folder, words=words)}
        return seen, {name: ASKING[name](folder) for name in case.asked}


def carry_out(case: Case, folder: Path) -> None:
    """The run of a case, interrupted where it says so."""
    experiment = fedhp.make_experiment(tables_of(case))
    for last in case.stops:
        started = fedhp.start(experiment, folder, resume=folder.exists())
        started.stop = lambda last=last, run=started: run.rounds_done() >= last  # type: ignore[misc]
        with contextlib.suppress(Interrupted):
            for _ in started.rounds():
                pass
    started = fedhp.start(experiment, folder, resume=bool(case.stops))
    if case.engine == "three":
        from frozen.shards import in_shards  # of this tree; the rest works with earlier commits

        in_shards(started, 3)
    for _ in started.rounds():
        pass


@contextlib.contextmanager
def one_ray() -> Iterator[None]:
    """One Ray for all runs in this process, which would each start their own."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


def numbers_of(folder: Path) -> dict[str, Any]:
    """The digests of a run and a few of its numbers, which tell where a difference begins."""
    with fedhp.open_run(folder) as run:
        summary, models = run.summary(), run.models()
        beside = hashlib.sha256()
        for name in BESIDE_THE_DIGEST:
            beside.update(f"{name} {sorted(run.table(name).items())}".encode())
        return {
            "digest": summary.digest,
            "models": "" if models is None else digest_of(models),
            "beside": beside.hexdigest()[:16],
            "status": summary.status,
            "rounds": summary.rounds,
            "clock": summary.completion_time,
            "bytes": summary.bytes_sent,
            "accuracy": summary.last_accuracy,
        }


def digest_of(array: np.ndarray[Any, Any]) -> str:
    """A hash of the bits."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def printed(*arguments: str, code: int = 0) -> str:
    """What a command prints; it has to end with this code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = call(list(arguments))
    if ended != code:
        raise Failed(f"fedhp {' '.join(arguments)}: exit code {ended}: {err.getvalue()}")
    return out.getvalue()


def printed_error(*arguments: str) -> str:
    """What a command says as it refuses something."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(heard):
        code = call(list(arguments))
    if code != 2:
        raise Failed(f"fedhp {' '.join(arguments)}: exit code {code}: {heard.getvalue()}")
    return heard.getvalue()


def printed_json(*arguments: str) -> Any:
    """What a command prints with --json, without what is different every time."""
    return normal(json.loads(printed(*arguments, "--json")))


def normal(value: Any) -> Any:
    """JSON without real times, places and versions."""
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items() if key not in VARIABLE}
    return [normal(item) for item in value] if isinstance(value, list) else value


def rounds_of(folder: Path) -> list[int]:
    """The rounds of a run."""
    with fedhp.open_run(folder) as run:
        return list(range(1, run.rounds_done + 1))


def told(folder: Path, *, words: bool) -> str:
    """A hash of what `show --round` says of the last round, and `explain` of every one."""
    rounds = rounds_of(folder)
    digest = hashlib.sha256()
    if rounds:
        digest.update(json.dumps(ASKING["round"](folder), sort_keys=True).encode())
    for number in rounds if words else ():
        digest.update(fedhp.explain(folder, number).encode())
    return digest.hexdigest()[:16]


def _explained(folder: Path) -> dict[str, list[str]]:
    return {
        str(number): fedhp.explain(folder, number).splitlines()
        for number in sorted({2, rounds_of(folder)[-1]})
    }


def _replayed(folder: Path) -> Any:
    planners = [word for planner in PLANNERS for word in ("--planner", planner)]
    plain = printed_json("whatif", str(folder), *planners)
    faster = printed_json(
        "whatif", str(folder), "world.bandwidth.high=40", "--planner", "fedhp", "--planner", "dpsgd"
    )
    return {"planners": plain, "faster": faster}


ASKING = {
    "show": lambda folder: printed_json("show", str(folder)),
    "round": lambda folder: printed_json(
        "show", str(folder), "--round", str(rounds_of(folder)[-1])
    ),
    "explain": _explained,
    "whatif": _replayed,
}


def compared(case: Case, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers of `fedhp compare`, each run with its digest."""
    file = write_file(case, folder)
    said = printed_json(
        *("compare", str(file), "--out", str(folder), "--no-figures", "--jobs", "1"),
        *("--seeds", "0,1", "--algorithms", ",".join(case.compared)),
    )
    digests = [run["digest"] for run in said["runs"]]
    return {"digest": hashlib.sha256(" ".join(digests).encode()).hexdigest()}, {"compare": said}


def write_file(case: Case, folder: Path) -> Path:
    """The experiment file of a case, next to its folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".toml")
    file.write_text(tomli_w.dumps(tables_of(case)), encoding="utf-8")
    return file


def over_network(case: Case, folder: Path) -> dict[str, Any]:
    """Real processes on this machine; what has to be equal, and that the run verifies."""
    file = write_file(case, folder)
    result = json.loads(
        printed("cluster", "up", str(file), "--out", str(folder), "--no-restart", "--json")
    )
    name = case.settings["algorithm.name"]
    if name == "adpsgd":  # turns have no order that could be repeated
        printed("cluster", "verify", str(folder), code=2)
        return {"rounds": result["rounds"], "exit_codes": result["exit_codes"]}
    trust = ("--trust", name.partition(":")[0]) if ":" in name else ()
    return {"models": "" if case.free else result["digests"], **verified(folder, *trust)}


def verified(folder: Path, *options: str) -> dict[str, Any]:
    """What `fedhp cluster verify` says of a run, without times."""
    said = json.loads(printed("cluster", "verify", str(folder), *options, "--json"))
    return {
        "equal": said["equal"],
        "whole": said["whole"],
        "violations": said["violations"],
        "compared": [verdict["compared"] for verdict in said["rounds"]],
        "why_not": sorted({verdict["why_not"] for verdict in said["rounds"]}),
    }


def machine() -> str:
    """A hash of processor and arithmetic: where it is another one, digests are other ones too.

    Libraries choose their code by the processor and by sizes, so equal results of a few products
    say little: the kind of processor counts as well.
    """
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(33, 65, generator=generator)
    digest = hashlib.sha256(" ".join((torch.__version__, np.__version__, *processor())).encode())
    for product in (rows @ rows.T, torch.log_softmax(rows, dim=1), rows.exp()):
        digest.update(product.numpy().tobytes())
    return digest.hexdigest()[:16]


def processor() -> list[str]:
    """Its kind, and the vector instructions that it has."""
    described = Path("/proc/cpuinfo")
    if not described.is_file():
        return [platform.machine(), platform.processor()]
    first, *_ = described.read_text(encoding="utf-8").split("\n\n")  # all cores are alike
    facts = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in first.splitlines())
    }
    flags = facts.get("flags", facts.get("Features", "")).split()
    vectors = [flag for flag in flags if flag.startswith(("avx", "fma", "sse", "amx", "asimd"))]
    kind = [facts.get(name, "") for name in ("vendor_id", "cpu family", "model")]
    return [platform.machine(), *kind, *sorted(vectors)]
