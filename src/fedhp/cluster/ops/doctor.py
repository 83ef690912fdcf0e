"""Is this machine ready to take part? One check after the other, each with how to mend it.

Network libraries are imported by the checks that need them: a missing one is a finding.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedhp.cluster.protocol.versions import installed
from fedhp.errors import FedhpError

if TYPE_CHECKING:
    from fedhp.cluster.security.identity import Facts

Verdict = Literal["ok", "warning", "wrong"]
OLDEST_PYTHON = (3, 11)
NEEDED = ("torch", "grpcio", "protobuf", "cryptography")
SAME_EVERYWHERE = ("torch", "numpy")  # other versions may round otherwise
SOON = 30  # days until a certificate ends
GIGABYTE = 1 << 30
LEAST_MEMORY, LOW_MEMORY = GIGABYTE // 4, GIGABYTE
LEAST_DISK, LOW_DISK = GIGABYTE // 10, GIGABYTE
CLOCK_APART, CLOCK_WRONG = 5.0, 3600.0  # s; certificates are valid an hour before they are made
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    verdict: Verdict
    said: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Questions:
    """What is to be looked at; None: not asked for."""

    certificates: Path | None = None
    name: str | None = None
    coordinator: str | None = None
    listen: str | None = None
    data: str | None = None  # an .npz file, an experiment file, or the name of a data set
    etcd: str | None = None
    folder: Path = Path()  # where the run or the models will be written


def examine(ask: Questions) -> Iterator[Check]:
    """All checks that were asked for, and those every machine needs."""
    yield from _versions()
    yield _memory()
    yield _disk(ask.folder)
    if ask.data is not None:
        yield _guarded("data", lambda: _data(ask.data or ""))
    if ask.listen is not None:
        yield _guarded("port", lambda: _port(ask.listen or ""))
    if any(installed()[name] == "missing" for name in NEEDED):
        return  # the rest is about the network, and cannot be told without them
    if ask.certificates is not None:
        yield from _certificates(ask.certificates, ask.name, listen=ask.listen)
    if ask.coordinator is not None:
        yield from _coordinator(ask, ask.coordinator)
    if ask.etcd is not None:
        yield _guarded("etcd", lambda: asyncio.run(_etcd(ask.etcd or "")))


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except FedhpError as error:
        return _wrong(name, error)


def _wrong(name: str, error: FedhpError) -> Check:
    mend = "; ".join(part for part in (error.fix, _allowed(error)) if part)
    return Check(name, "wrong", error.problem, mend)


def _graded(name: str, said: str, *, wrong: str = "", warning: str = "") -> Check:
    """By what there is to mend: the worse first; nothing, and all is well."""
    if wrong:
        return Check(name, "wrong", said, wrong)
    return Check(name, "warning" if warning else "ok", said, warning)


def _allowed(error: FedhpError) -> str:
    return f"allowed: {error.allowed}" if error.allowed else ""


# --- the machine -----------------------------------------------------------------------------


def _versions() -> Iterator[Check]:
    here = installed()
    words = ", ".join(f"{name} {version}" for name, version in here.items())
    missing = [name for name in NEEDED if here[name] == "missing"]
    if missing:
        yield Check(
            "versions",
            "wrong",
            f"not installed: {', '.join(missing)}",
            "pip install 'fedhp[cluster]'",
        )
    elif sys.version_info < OLDEST_PYTHON:
        yield Check("versions", "wrong", words, "install Python 3.11 or later")
    else:
        yield Check("versions", "ok", words)


def _memory() -> Check:
    from fedhp.engine.memory import available

    free = available()
    return _graded(
        "memory",
        f"{free / GIGABYTE:.1f} GB free",
        wrong="end other programs: torch alone takes 0.3 GB" if free < LEAST_MEMORY else "",
        warning="enough for small models only" if free < LOW_MEMORY else "",
    )


def _disk(folder: Path) -> Check:
    place = folder.absolute()
    while not place.exists() and place.parent != place:
        place = place.parent
    if not os.access(place, os.W_OK):
        return Check("disk", "wrong", f"{place} cannot be written", "choose another folder")
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Check("disk", "wrong", f"{place}: {error.strerror}", "choose another folder")
    return _graded(
        "disk",
        f"{free / GIGABYTE:.1f} GB free at {place}",
        wrong="free some space: models and records must fit" if free < LEAST_DISK else "",
        warning="free some space before a long run" if free < LOW_DISK else "",
    )


def _port(address: str) -> Check:
    from fedhp.cluster.protocol.addresses import check_free, parse_listen

    listen = parse_listen(address, key="--listen")
    check_free(listen, key="--listen")
    return Check("port", "ok", f"{listen} is free")


def _data(what: str) -> Check:
    from fedhp.config import DataConfig, load
    from fedhp.data.load import load_data

    path = Path(what)
    if path.suffix == ".toml":
        config = load(path).data
    elif path.suffix == ".npz":
        config = DataConfig(name="npz", path=str(path.absolute()))
    else:
        config = DataConfig(name=what)
    found = load_data(config, source="--data")
    kinds = "numbers to predict" if found.classes is None else f"{found.classes} classes"
    shape = " x ".join(map(str, found.shape))
    return Check(
        "data",
        "ok",
        f"{found.name}: {len(found.train_inputs)} samples of {shape} for training, "
        f"{len(found.test_inputs)} for test, {kinds}",
    )


# --- identities ------------------------------------------------------------------------------


def _certificates(folder: Path, name: str | None, *, listen: str | None) -> Iterator[Check]:
    from fedhp.cluster.security.identity import inspect, load_identity

    now = datetime.now(UTC)
    try:
        if name is not None:
            load_identity(folder, name)
        found = {facts.file.stem: facts for facts in inspect(folder, now=now)}
    except FedhpError as error:
        yield _wrong("certificate", error)
        return
    for stem, facts in found.items():
        if stem == name or stem == "ca" or (name is None and facts.has_key):
            yield _certificate(facts, now)
    own = found.get(name or "")
    if own is not None:
        yield _clock_by(own, now)
        if listen is not None and "coordinator" in own.roles:
            yield _guarded("host", partial(_serves, own, listen))


def _certificate(facts: Facts, now: datetime) -> Check:
    name, left = f"certificate {facts.file.name}", facts.days_left(now)
    who = "the authority" if facts.authority else f"{facts.name}, {' and '.join(facts.roles)}"
    words = f"{who}, valid until {facts.ends:%Y-%m-%d} ({left} days)"
    again = f"fedhp certs issue {facts.name} --replace, where the authority's key is"
    if facts.problem:
        return Check(name, "wrong", facts.problem, again)
    if left < SOON:
        todo = "make a new authority in another folder" if facts.authority else again
        return Check(name, "warning", words, todo)
    return Check(name, "ok", words)


def _clock_by(facts: Facts, now: datetime) -> Check:
    """Without another clock: a time before the certificate was made is wrong for certain."""
    said = f"{now:%Y-%m-%d %H:%M} UTC lies within the certificate's dates"
    written = datetime.fromtimestamp(facts.file.stat().st_mtime, UTC)
    if written > now:
        return Check(
            "clock",
            "warning",
            f"{facts.file} was written at {written:%Y-%m-%d %H:%M} UTC, which is to come",
            "set this machine's clock: timedatectl set-ntp true",
        )
    return Check("clock", "ok", f"{said}; how well it goes, --coordinator can tell")


def _serves(facts: Facts, listen: str) -> Check:
    from fedhp.cluster.protocol.addresses import parse_listen

    place = parse_listen(listen, key="--listen")
    hosts = ", ".join(facts.hosts)
    again = f"fedhp certs issue {facts.name} --role coordinator --host HOST --replace"
    if not hosts:
        return Check(
            "host", "warning", f"{facts.name}'s certificate names no host workers could ask", again
        )
    if not place.everywhere and not facts.may_serve(place.host):
        return Check(
            "host", "wrong", f"the certificate is for {hosts}, not for {place.host}", again
        )
    return Check("host", "ok", f"workers may ask for {hosts}")


# --- others ----------------------------------------------------------------------------------


def _coordinator(ask: Questions, address: str) -> Iterator[Check]:
    from fedhp.cluster.ops import operator
    from fedhp.cluster.protocol.addresses import parse_address

    try:
        place = parse_address(address, key="--coordinator")
    except FedhpError as error:
        yield _wrong("coordinator", error)
        return
    reached = _reach(place.host, place.port, address)
    yield reached
    if reached.verdict != "ok" or ask.certificates is None or ask.name is None:
        return
    target = operator.Target(address, ask.certificates, ask.name)
    before = time.time()
    try:
        reply = operator.status(target)
    except FedhpError as error:
        yield _wrong("coordinator", error)
        return
    after = time.time()
    state = f"{reply.state}, round {reply.round} of {reply.rounds}"
    yield Check("coordinator", "ok", f"{address} answers: {state}")
    yield _clock_apart(reply.clock - (before + after) / 2, doubt=(after - before) / 2)
    yield _same_versions(dict(reply.versions))


def _reach(host: str, port: int, address: str) -> Check:
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except socket.gaierror as error:
        return Check(
            "reach", "wrong", f"{host} is unknown: {error.strerror}", "check the name, or DNS"
        )
    except ConnectionRefusedError:
        return Check(
            "reach",
            "wrong",
            f"nobody listens at {address}",
            "start `fedhp coordinator` there, and check the port",
        )
    except OSError as error:
        return Check(
            "reach",
            "wrong",
            f"{address} cannot be reached: {error.strerror or error}",
            f"open port {port} in the firewall there, and check the network",
        )
    return Check("reach", "ok", f"{address} can be reached")


def _clock_apart(apart: float, *, doubt: float) -> Check:
    direction = "behind" if apart > 0 else "ahead of"
    words = f"{abs(apart):.2f} s {direction} the coordinator's, known to {doubt:.2f} s by asking it"
    mend = "set both clocks: timedatectl set-ntp true"
    return _graded(
        "clock",
        words,
        wrong=f"{mend}; certificates would be refused" if abs(apart) > CLOCK_WRONG else "",
        warning=mend if abs(apart) > CLOCK_APART + doubt else "",
    )


def _same_versions(there: dict[str, str]) -> Check:
    here = installed()
    if here["fedhp"] != there.get("fedhp"):
        return Check(
            "same versions",
            "wrong",
            f"fedhp {here['fedhp']} here, {there.get('fedhp', 'unknown')} at the coordinator",
            f"pip install 'fedhp[cluster]=={there.get('fedhp', '')}'",
        )
    other = [
        f"{name} {here[name]} here, {there[name]} there"
        for name in SAME_EVERYWHERE
        if name in there and here[name] != there[name]
    ]
    if other:
        mend = "the same versions everywhere give the same bits as a simulation"
        return Check("same versions", "warning", "; ".join(other), mend)
    words = ", ".join(f"{name} {there.get(name, '')}" for name in ("fedhp", *SAME_EVERYWHERE))
    return Check("same versions", "ok", f"{words} at the coordinator too")


async def _etcd(url: str) -> Check:
    from fedhp.cluster.coordinator.leadership import FEDERATION
    from fedhp.cluster.ledger.etcd import find_leader

    leader = await find_leader(url, FEDERATION)
    if leader is None:
        return Check("etcd", "ok", "it answers; nobody coordinates at the moment")
    return Check("etcd", "ok", f"it answers; {leader.name} at {leader.address} coordinates")
