"""Is this machine ready to take part? One check after another, each with its fix.

Network libraries are imported by the checks that need them: a missing one is a finding too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fedhp.cluster.ops.check import Check
from fedhp.cluster.protocol.versions import installed
from fedhp.config.origins import Origins
from fedhp.errors import FedhpError, install_extra

if TYPE_CHECKING:
    from fedhp.cluster.ops.operator import LeaderStatus, Target
    from fedhp.cluster.security.identity import CertificateInfo

OLDEST_PYTHON = (3, 11)
REQUIRED_LIBRARIES = ("torch", "grpcio", "protobuf", "cryptography")
SAME_EVERYWHERE = ("torch", "numpy")  # other versions may round differently
EXPIRES_SOON = 30  # days
GIGABYTE = 1 << 30
LEAST_MEMORY, LOW_MEMORY = GIGABYTE // 4, GIGABYTE
LEAST_DISK, LOW_DISK = GIGABYTE // 10, GIGABYTE
CLOCK_APART, CLOCK_WRONG = 5.0, 3600.0  # s; certificates are valid an hour before they are made
CONNECT_SECONDS = 5.0
SET_CLOCK = "timedatectl set-ntp true"


def run_checks(
    *,
    certificates: Path | None = None,
    name: str | None = None,
    coordinator: str | None = None,
    listen: str | None = None,
    advertise: str | None = None,  # where others reach this machine, if not at `listen`
    data: str | None = None,  # an .npz file, an experiment file, or the name of a data set
    etcd: str | None = None,
    folder: Path = Path(),  # where the run or the models will be written
) -> Iterator[Check]:
    """All checks that were asked for, and those that every machine needs."""
    yield _versions()
    yield _memory()
    yield _disk(folder)
    if data is not None:
        yield from _caught("data", _data(data))
    if listen is not None:
        yield from _caught("port", _port(listen))
    if any(installed()[library] == "missing" for library in REQUIRED_LIBRARIES):
        return  # the other checks need them
    if certificates is not None:
        yield from _caught("certificate", _certificates(certificates, name))
    if coordinator is not None:
        checks = _coordinator(coordinator, certificates, name, listen, advertise)
        yield from _caught("coordinator", checks)
    if etcd is not None:
        yield from _caught("etcd", _etcd(etcd))


def _caught(name: str, checks: Iterable[Check]) -> Iterator[Check]:
    """These checks; an error that ends them is a finding of this name."""
    try:
        yield from checks
    except FedhpError as error:
        allowed = f"allowed: {error.allowed}" if error.allowed else ""
        fix = "; ".join(part for part in (error.fix, allowed) if part)
        yield Check(name, "wrong", error.problem, fix)


def _graded(name: str, message: str, *, wrong: str = "", warning: str = "") -> Check:
    if wrong:
        return Check(name, "wrong", message, wrong)
    return Check(name, "warning" if warning else "ok", message, warning)


def _versions() -> Check:
    here = installed()
    words = ", ".join(f"{name} {version}" for name, version in here.items())
    missing = [name for name in REQUIRED_LIBRARIES if here[name] == "missing"]
    if missing:
        words = f"not installed: {', '.join(missing)}"
        return Check("versions", "wrong", words, install_extra("cluster"))
    old = "install Python 3.11 or later" if sys.version_info < OLDEST_PYTHON else ""
    return _graded("versions", words, wrong=old)


def _memory() -> Check:
    from fedhp.machine import available

    free = available()
    return _graded(
        "memory",
        f"{free / GIGABYTE:.1f} GB free",
        wrong="stop other programs: torch alone takes 0.3 GB" if free < LEAST_MEMORY else "",
        warning="enough for small models only" if free < LOW_MEMORY else "",
    )


def _disk(folder: Path) -> Check:
    existing = folder.absolute()
    while not existing.exists() and existing.parent != existing:
        existing = existing.parent
    if not os.access(existing, os.W_OK):
        return Check("disk", "wrong", f"{existing} is not writable", "choose another folder")
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check("disk", "wrong", f"{existing}: {error.strerror}", "choose another folder")
    return _graded(
        "disk",
        f"{free / GIGABYTE:.1f} GB free at {existing}",
        wrong="free some space: models and records need it" if free < LEAST_DISK else "",
        warning="free some space before a long run" if free < LOW_DISK else "",
    )


def _port(address: str) -> Iterator[Check]:
    from fedhp.cluster.protocol.addresses import check_free, parse_listen

    listen = parse_listen(address, key="--listen")
    check_free(listen, key="--listen")
    yield Check("port", "ok", f"{listen} is free")


def _data(what: str) -> Iterator[Check]:
    from fedhp.config import DataConfig, load
    from fedhp.data.load import load_data

    path = Path(what)
    if path.suffix == ".toml":
        config = load(path).data
    elif path.suffix == ".npz":
        config = DataConfig(name="npz", path=str(path.absolute()))
    else:
        config = DataConfig(name=what)
    with Origins("--data").named():
        data = load_data(config)
    targets = "numbers to predict" if data.classes is None else f"{data.classes} classes"
    shape = " x ".join(map(str, data.shape))
    samples = f"{data.name}: {len(data.train_inputs)} samples of {shape} for training"
    yield Check("data", "ok", f"{samples}, {len(data.test_inputs)} for test, {targets}")


def _certificates(folder: Path, name: str | None) -> Iterator[Check]:
    from fedhp.cluster.security.identity import format_time, inspect, load_identity

    now = datetime.now(UTC)
    if name is not None:
        load_identity(folder, name)
    certificates = {facts.file.stem: facts for facts in inspect(folder, now=now)}
    for stem, facts in certificates.items():
        if stem == name or stem == "ca" or (name is None and facts.has_key):
            yield _certificate(facts, now)
    if name is None:
        return
    # Without another clock: a time before the certificate was written must be wrong.
    file = certificates[name].file
    written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    if written > now:
        message = f"{file} was written at {format_time(written)}, which is in the future"
        yield Check("clock", "warning", message, f"set this machine's clock: {SET_CLOCK}")
        return
    message = f"{format_time(now)} is within the certificate's dates; with --coordinator the "
    yield Check("clock", "ok", f"{message}clocks are compared")


def _certificate(facts: CertificateInfo, now: datetime) -> Check:
    name, left = f"certificate {facts.file.name}", facts.days_left(now)
    who = "the authority" if facts.authority else f"{facts.name}, {' and '.join(facts.roles)}"
    message = f"{who}, valid until {facts.ends:%Y-%m-%d} ({left} days)"
    issue_again = f"fedhp certs issue {facts.name} --replace, where the authority's key is"
    if facts.problem:
        return Check(name, "wrong", facts.problem, issue_again)
    fix = "make a new authority in another folder" if facts.authority else issue_again
    return _graded(name, message, warning=fix if left < EXPIRES_SOON else "")


def _coordinator(
    address: str,
    certificates: Path | None,
    name: str | None,
    listen: str | None,
    advertise: str | None,
) -> Iterator[Check]:
    from fedhp.cluster.ops import operator
    from fedhp.cluster.protocol.addresses import parse_address

    host = parse_address(address, key="--coordinator")
    reached = _reach(host.host, host.port, address)
    yield reached
    if reached.verdict != "ok" or certificates is None or name is None:
        return
    target = operator.Target(address, certificates, name)
    before = time.time()
    status = operator.leader_status(target)
    after, reply = time.time(), status.reply
    state = f"{reply.state}, round {reply.round} of {reply.rounds}"
    leads = status.leader.address == address
    asked = address if leads else f"{address} is a standby; {status.leader}"
    yield Check("coordinator", "ok", f"{asked} answers: {state}")
    ahead, error = reply.clock - (before + after) / 2, (after - before) / 2
    fix = f"set both clocks: {SET_CLOCK}"
    yield _graded(
        "clock",
        f"{abs(ahead):.2f} s {'behind' if ahead > 0 else 'ahead of'} the coordinator's, measured "
        f"to within {error:.2f} s",
        wrong=f"{fix}; certificates would be refused" if abs(ahead) > CLOCK_WRONG else "",
        warning=fix if abs(ahead) > CLOCK_APART + error else "",
    )
    yield _same_versions(dict(reply.versions))
    if listen is not None or advertise is not None:
        yield from _caught("reached by", _reach_both_ways(target, status, listen, advertise))


def _reach_both_ways(
    target: Target, status: LeaderStatus, listen: str | None, advertise: str | None
) -> Iterator[Check]:
    """Workers connect to each other: the others must reach this machine, and it must reach them."""
    from fedhp.cluster.ops.reach import check_reach
    from fedhp.cluster.protocol.addresses import parse_address
    from fedhp.cluster.security.identity import load_identity

    identity = load_identity(target.certificates, target.name)
    if "worker" in identity.roles:  # the others only answer
        if advertise is not None:
            parse_address(advertise, key="--advertise")
        reached = check_reach(target, identity, status, listen=listen, advertise=advertise)
        yield from asyncio.run(reached)


def _reach(host: str, port: int, address: str) -> Check:
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        return Check("reach", "ok", f"{address} can be reached")
    except socket.gaierror as error:
        message, fix = f"unknown host {host}: {error.strerror}", "check the name, or DNS"
    except ConnectionRefusedError:
        message = f"nothing listens at {address}"
        fix = "start `fedhp coordinator` there, and check the port"
    except OSError as error:
        message = f"{address} cannot be reached: {error.strerror or error}"
        fix = f"open port {port} in the firewall there, and check the network"
    return Check("reach", "wrong", message, fix)


def _same_versions(remote: dict[str, str]) -> Check:
    local = installed()
    if local["fedhp"] != (other_fedhp := remote.get("fedhp", "unknown")):
        message = f"fedhp {local['fedhp']} here, {other_fedhp} at the coordinator"
        fix = "install the same checkout or wheel on all machines: " + install_extra("cluster")
        return Check("same versions", "wrong", message, fix)
    other = [
        f"{name} {local[name]} here, {remote[name]} there"
        for name in SAME_EVERYWHERE
        if local[name] != remote.get(name, local[name])
    ]
    if other:
        fix = "install the same versions everywhere to get the same bits as a simulation"
        return Check("same versions", "warning", "; ".join(other), fix)
    words = ", ".join(f"{name} {remote.get(name, '')}" for name in ("fedhp", *SAME_EVERYWHERE))
    return Check("same versions", "ok", f"{words} at the coordinator too")


def _etcd(url: str) -> Iterator[Check]:
    from fedhp.cluster.coordinator.process.finders import FEDERATION
    from fedhp.cluster.ledger.etcd import find_leader
    from fedhp.cluster.ledger.etcd_client import is_plain

    leader = asyncio.run(find_leader(url, FEDERATION, insecure=True))
    message = "etcd answers; nobody coordinates at the moment"
    if leader is not None:
        message = f"etcd answers; {leader.name} at {leader.address} coordinates"
    fix = "set up TLS in etcd and use etcds://; otherwise all need --insecure-etcd"
    plain = is_plain(url)
    message += "; it is not encrypted" if plain else ""
    yield _graded("etcd", message, warning=fix if plain else "")
