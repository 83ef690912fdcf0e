"""Devices and availability of real phones, in the form in which FedScale publishes them.

FedScale's own files are pickles, which can run any code when they are read: they are never opened
here. JSON or CSV with the same fields is read; docs/experiments.md has the conversion.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedhp.config import WorldConfig
from fedhp.errors import ConfigError, DataError, about
from fedhp.seeds import Purpose, generator
from fedhp.types import BoolArray, FloatArray
from fedhp.world.devices import Devices

Clients: TypeAlias = dict[str, dict[str, Any]]  # by the name of the client

# One training step costs as much as this many inferences of its samples, as in FedScale.
TRAINING_FACTOR = 3.0
_PICKLE = b"\x80"  # how every pickle of a protocol above 1 begins
_LARGEST = 1 << 30  # bytes
CONVERT = "convert it once to JSON as docs/experiments.md shows (FedScale)"
CORRECT = "correct that client, or remove it"
# The numbers of a client, by the setting that names the file.
_FIELDS = {
    "world.device_trace": ("computation", "communication"),
    "world.availability_trace": ("active", "inactive", "finish_time"),
}


@dataclass(frozen=True, slots=True)
class ClientAvailability:
    """When each worker is there, over and over again; a function of virtual time."""

    starts: tuple[FloatArray, ...]  # [N] of [intervals], s within the period, rising
    ends: tuple[FloatArray, ...]
    period: FloatArray  # [N] s
    speed: float = 1.0  # seconds of the trace per second of virtual time

    def available_at(self, time: float) -> BoolArray:
        here: BoolArray = self.seconds_away(time) == 0
        return here

    def seconds_away(self, time: float) -> FloatArray:
        """How long until each worker is available again, [N]; infinity for never."""
        seconds = np.full(len(self.starts), inf)
        for worker, (starts, ends) in enumerate(zip(self.starts, self.ends, strict=True)):
            if not len(starts):
                continue
            now = time * self.speed % float(self.period[worker])
            following = int(np.searchsorted(ends, now, side="right"))
            if following == len(ends):
                wait = float(self.period[worker] - now + starts[0])
            else:
                wait = max(0.0, float(starts[following] - now))
            seconds[worker] = wait / self.speed
        return seconds


def read_clients(
    config: WorldConfig, *, workers: int, seed: int, batch_size: int
) -> tuple[tuple[Devices, FloatArray] | None, ClientAvailability | None]:
    """What the two files say about the clients that take the workers' places: devices and their
    bandwidth in bits per second, and when each is there.

    The same clients are taken from both files, where there are enough of them."""
    paths = dict(zip(_FIELDS, (config.device_trace, config.availability_trace), strict=True))
    files: dict[str, Clients] = {}
    for key, path in paths.items():
        if path is not None:
            with about(key):
                files[key] = _read(path, key)
    for key, clients in files.items():
        if len(clients) < workers:
            raise ConfigError(
                f"the file has {len(clients)} clients, but workers = {workers}",
                key=key,
                allowed="at least as many clients as workers",
                fix=f"set workers to at most {len(clients)}, or use a larger file",
                others=("workers",),
            )
    common = [name for name in next(iter(files.values())) if all(name in f for f in files.values())]
    devices, availability = None, None
    for key, clients in files.items():
        names = common if len(common) >= workers else list(clients)
        if config.trace_clients != "first":
            order = generator(seed, Purpose.CLIENTS).choice(len(names), workers, replace=False)
            names = [names[i] for i in order.tolist()]
        chosen = [
            (f"{key} = {paths[key]}, client {name}", clients[name]) for name in names[:workers]
        ]
        with about(key):
            if "computation" in _FIELDS[key]:
                devices = _devices(chosen, batch_size)
            else:
                availability = _availability(chosen, config.availability_speed)
    return devices, availability


def _devices(
    clients: Sequence[tuple[str, Mapping[str, Any]]], batch_size: int
) -> tuple[Devices, FloatArray]:
    """Machines whose steps always take the same time."""
    step_time, bandwidth = [], []
    for at, facts in clients:
        milliseconds = _number(facts, "computation", at, least=1e-3, most=1e7)
        kilobits = _number(facts, "communication", at, least=1e-3, most=1e9)
        seconds = TRAINING_FACTOR * batch_size * milliseconds / 1000
        if seconds > 1e4:
            raise DataError(
                f"{at}: a step of {batch_size} samples would take {seconds:g} s",
                allowed="at most 10000 s",
                fix="lower training.batch_size, or check that computation is in milliseconds",
            )
        step_time.append(seconds)
        bandwidth.append(1000 * kilobits)
    names, constant = ("client",) * len(clients), np.zeros(len(clients))
    devices = Devices(0, names, np.array(step_time), sd=constant, drift=0.0, floor=1.0)
    return devices, np.array(bandwidth)


def _availability(
    clients: Sequence[tuple[str, Mapping[str, Any]]], speed: float
) -> ClientAvailability:
    starts, ends, periods = [], [], []
    for at, facts in clients:
        period = _number(facts, "finish_time", at, least=1e-3, most=1e12)
        active, inactive = (_times(facts, field, at, period) for field in ("active", "inactive"))
        active, inactive = _whole_intervals(active, inactive, period)
        if len(active) != len(inactive) or not (active <= inactive).all():
            raise DataError(
                f"{at}: {len(active)} active and {len(inactive)} inactive times do not alternate",
                allowed="each active time followed by an inactive one",
                fix=CORRECT,
            )
        if not (inactive[:-1] <= active[1:]).all():
            raise DataError(
                f"{at}: a time of activity begins before the one before has ended",
                allowed="active times that rise, each after the inactive one before",
                fix=CORRECT,
            )
        starts.append(active)
        ends.append(inactive)
        periods.append(period)
    return ClientAvailability(tuple(starts), tuple(ends), np.array(periods), speed)


def _whole_intervals(
    active: FloatArray, inactive: FloatArray, period: float
) -> tuple[FloatArray, FloatArray]:
    """The starts and ends of a client that may be active when its recording begins or ends.

    The first end then has no start before it, or the last start no end after it.
    """
    if len(active) == len(inactive) > 1 and inactive[-1] < min(active[0], inactive[0]):
        inactive = np.roll(inactive, 1)  # a row of a CSV file that goes over the end: 90 to 10
    if len(inactive) == len(active) + 1:
        return np.concatenate([[0.0], active]), inactive
    if len(active) == len(inactive) + 1:
        return active, np.concatenate([inactive, [period]])
    if len(active) == len(inactive) > 0 and inactive[0] < active[0]:
        return np.concatenate([[0.0], active]), np.concatenate([inactive, [period]])
    return active, inactive


def _times(facts: Mapping[str, Any], field: str, where: str, period: float) -> FloatArray:
    values = facts.get(field)
    if not isinstance(values, list) or not all(_is_number(value) for value in values):
        raise DataError(
            f"{where}: {field} is {_short(values)}",
            allowed="a list of times in seconds",
            fix=CORRECT,
        )
    bad = next((value for value in values if not 0 <= value <= period), None)
    if bad is not None:
        raise DataError(
            f"{where}: the {field} time {_short(bad)}",
            allowed=f"times from 0 to finish_time = {period:g}",
            fix=CORRECT,
        )
    return np.array(values, dtype=np.float64)


def _number(
    facts: Mapping[str, Any], field: str, where: str, *, least: float, most: float
) -> float:
    value: Any = facts.get(field)
    if not _is_number(value) or not least <= value <= most:  # NaN is refused, too
        raise DataError(
            f"{where}: {field} is {_short(value)}",
            allowed=f"a number from {least:g} to {most:g}",
            fix=CORRECT,
        )
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _read(path: str, key: str) -> Clients:
    """The clients of a JSON or CSV file."""
    where = f"{key} = {path}"
    allowed = "a JSON or CSV file with the fields of FedScale"
    try:
        if Path(path).stat().st_size > _LARGEST:
            raise DataError(
                f"{where}: the file has {Path(path).stat().st_size:,} bytes",
                allowed=f"at most {_LARGEST:,} bytes",
                fix="keep the clients that you need",
            )
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(
            f"{where}: cannot be read: {error}",
            allowed=allowed,
            fix=f"check the path, or remove {key}",
        ) from None
    if content.startswith(_PICKLE):
        raise DataError(
            f"{where}: is a pickle, which can run any code when it is read",
            allowed=allowed,
            fix=CONVERT,
        )
    try:
        text = content.decode("utf-8-sig")
        if text.lstrip().startswith(("{", "[")):
            return _json_clients(json.loads(text, object_pairs_hook=_once(where)), where)
        table = list(csv.DictReader(io.StringIO(text), strict=True))
    except (ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"{where}: cannot be read: {error}", allowed=allowed, fix=CONVERT) from None
    if not table:
        raise DataError(f"{where}: the file has no clients", allowed=allowed, fix=CONVERT)
    return _csv_clients(table, _FIELDS[key], where)


def _once(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """A reader of JSON objects that refuses a name which is there twice: json takes the last."""

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for i, name in enumerate(names) if name in names[:i])
            raise DataError(
                f"{where}: {_short(repeated)} is listed twice",
                allowed="each client once, and each field of a client once",
                fix="remove one of the two",
            )
        return table

    return read


def _json_clients(content: Any, where: str) -> Clients:
    """{"1": {...}, "2": {...}}, or a list of such clients."""
    if isinstance(content, list):
        content = {str(index): facts for index, facts in enumerate(content)}
    wrong = next((name for name, facts in content.items() if not isinstance(facts, dict)), None)
    if wrong is not None:
        raise DataError(
            f"{where}: client {wrong} is {_short(content[wrong])}",
            allowed='for each client an object with its fields, such as {"computation": 20.5, ...}',
            fix=CONVERT,
        )
    return {str(name): facts for name, facts in content.items()}


def _csv_clients(table: list[dict[str, str]], fields: tuple[str, ...], where: str) -> Clients:
    """One row for each client, or for each time that it is active."""
    wanted = ("client", *fields)
    if any(name not in table[0] for name in wanted):
        raise DataError(
            f"{where}: the columns are {', '.join(str(name) for name in table[0])}",
            allowed=", ".join(wanted),
            fix="correct the header line",
        )
    clients: Clients = {}
    for line, row in enumerate(table, start=2):
        at, name = f"{where}, line {line}", row["client"]
        facts: dict[str, Any] = {field: _value(row[field], field, at) for field in fields}
        if "finish_time" not in facts and name in clients:
            raise DataError(
                f"{at}: client {name} is listed twice",
                allowed="one line for each client",
                fix="remove one of the two",
            )
        times = [field for field in ("active", "inactive") if field in facts]
        earlier = clients.setdefault(name, {**facts, **{field: [] for field in times}})
        if facts.get("finish_time") != earlier.get("finish_time"):
            raise DataError(
                f"{at}: finish_time is {facts['finish_time']:g}, but "
                f"{earlier['finish_time']:g} in an earlier line of client {name}",
                allowed="one finish_time for each client",
                fix="correct that line; two clients need two names",
            )
        for field in times:
            earlier[field].append(facts[field])
    return clients


def _value(text: str | None, column: str, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise DataError(
            f"{where}: {column} is {text!r}", allowed="a number", fix="correct that line"
        ) from None
