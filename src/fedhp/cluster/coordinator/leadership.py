"""A coordinator's process: checked before it starts, term after term until the run is over.

With a journal there is one term. With etcd a process waits for its turn; whoever lost the lead
waits again. Each process writes a record of its own: a frozen leader may still hold its lock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedhp.algorithms.pens import PENS
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.coordinator import (
    Coordinator,
    CoordinatorSettings,
    Deposed,
    check_workers,
)
from fedhp.cluster.coordinator.metrics import Metrics, MetricsServer, snapshot_of
from fedhp.cluster.ledger.base import JournalLedger, Ledger, NotLeader, Unreachable
from fedhp.cluster.ledger.etcd import LEASE, EtcdLedger, find_leader
from fedhp.cluster.protocol.addresses import check_free, parse_address, parse_listen
from fedhp.cluster.security.certificates import Identity, load_identity
from fedhp.cluster.security.tls import AllowList
from fedhp.config import Experiment
from fedhp.engine.context import bare_stage
from fedhp.errors import ConfigError, IdentityError, Interrupted, RunError
from fedhp.files import make_folder, write_file
from fedhp.types import RoundRecord

LOG = logging.getLogger("fedhp.coordinator")
ANNOUNCED = "coordinator.json"  # in the folder: where this coordinator is
JOURNAL = "journal"
FEDERATION = "federation"  # the name of the run in etcd; the prefix tells federations apart
MODEL_BITS = 8e6  # a size to try the settings with; the workers tell the true one
SILENT = 3.0  # s without the lead until somebody is told of it
PAUSE = 1.0  # s before a process that lost the lead waits for it again


@dataclass(frozen=True, slots=True)
class CoordinatorProcessSettings:
    """What a coordinator's process is started with."""

    experiment: Experiment | None  # none: a standby's, which takes over what is committed
    certificates: Path
    folder: Path  # of the record, the history and the journal
    name: str = "coordinator"
    listen: str = "127.0.0.1:0"
    source: str = ""  # the experiment file, to blame
    allow: Path | None = None  # a file of names; none: everyone the authority signed
    advertise: str | None = None
    ha: str | None = None  # etcd://..., or the journal of this machine
    lease: float = LEASE  # s without a sign of the leader until another takes over, with etcd
    metrics: str | None = None


def check_seat(seat: CoordinatorProcessSettings) -> Identity:
    """Refuse what cannot work, before anything is started or written."""
    if seat.experiment is not None:
        check_network(seat.experiment, source=seat.source)
    identity = load_identity(seat.certificates, seat.name)
    if "coordinator" not in identity.roles:
        raise IdentityError(
            f"{seat.name} is {' and '.join(sorted(identity.roles))} by its certificate, "
            "not coordinator",
            fix=f"fedhp certs issue {seat.name} --role coordinator --host HOST --replace",
        )
    AllowList(seat.allow)
    listen = parse_listen(seat.listen, key="--listen")
    check_free(listen, key="--listen")
    if seat.metrics is not None:
        check_free(parse_listen(seat.metrics, key="--metrics"), key="--metrics")
    if seat.advertise is not None:
        parse_address(seat.advertise, key="--advertise")
    elif seat.ha is not None and listen.everywhere:
        raise ConfigError(
            f"with --ha the others must be told an address, and {listen} is none",
            key="--advertise",
            allowed="HOST:PORT at which the workers reach this machine",
            fix=f"add --advertise HOST:{listen.port or 'PORT'}",
        )
    return identity


def check_network(experiment: Experiment, *, source: str = "") -> None:
    """Refuse an experiment that machines cannot carry out."""
    check_workers(experiment)
    stage = bare_stage(experiment, model_bits=MODEL_BITS, source=source)
    if isinstance(stage.algorithm, PENS) and stage.algorithm.symmetric:
        raise ConfigError(
            "is true, which a network of machines does not offer: who pulls a model does not "
            "send one back",
            key="algorithm.symmetric",
            source=source,
            allowed="false, as in the paper",
            fix="remove algorithm.symmetric, or simulate it with: fedhp run",
        )


def check_standby(seat: CoordinatorProcessSettings) -> None:
    """Refuse a standby that could never take over."""
    if seat.ha is None:
        raise ConfigError(
            "a standby needs etcd, which says who leads",
            key="--standby",
            allowed="--standby together with --ha etcd://...",
            fix="add --ha, or leave --standby out",
        )
    if not parse_listen(seat.listen, key="--standby").port:
        raise ConfigError(
            f"{seat.listen} names no port, and the others are told it before it is opened",
            key="--standby",
            allowed="HOST:PORT with a port of its own",
            fix="for example --standby 0.0.0.0:7701",
        )
    check_seat(seat)


async def coordinate(
    seat: CoordinatorProcessSettings,
    *,
    stop: asyncio.Event,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
) -> None:
    """Coordinate until the run is over; Interrupted when `stop` was set before."""
    identity = check_seat(seat)
    make_folder(seat.folder, option="--out")
    metrics, current = Metrics(), _Current()
    server = None
    if seat.metrics is not None:
        server = MetricsServer(seat.metrics, metrics, lambda: snapshot_of(current.coordinator))
        LOG.info("metrics at port %d", server.port)

    def round_ended(record: RoundRecord) -> None:
        metrics.round_ended(record)
        on_round(record)

    async def terms() -> None:
        while not await _term(seat, identity, current=current, on_round=round_ended):
            await asyncio.sleep(PAUSE)

    running = asyncio.ensure_future(terms())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise Interrupted(
                "stopped\n  the run is saved; the same command goes on with it, the workers wait"
            )
        running.result()
    finally:
        stopping.cancel()
        if server is not None:
            await asyncio.to_thread(server.close)


async def stand_by(seat: CoordinatorProcessSettings, *, stop: asyncio.Event) -> None:
    """Be ready to coordinate, with etcd: take over a run that others began, until it is over."""
    check_standby(seat)
    await coordinate(seat, stop=stop)


def leader_finder(url: str) -> Callable[[], Awaitable[str]]:
    """For a worker: the address of whoever coordinates now, by etcd; OSError while nobody does."""

    async def find() -> str:
        try:
            leader = await find_leader(url, FEDERATION)
        except Unreachable as error:
            raise OSError(error.problem) from None
        if leader is None:
            raise OSError("nobody coordinates at the moment")
        return leader.address

    return find


def file_finder(folder: Path) -> Callable[[], Awaitable[str]]:
    """For a worker on the same machine: what the coordinator wrote into its folder."""

    async def find() -> str:
        return announced(folder).address

    return find


@dataclass(frozen=True, slots=True)
class Announced:
    """Where a coordinator of this machine is."""

    name: str
    address: str
    epoch: int
    process: int


def announced(folder: Path) -> Announced:
    """The coordinator that last led into this folder; OSError if there was none."""
    try:
        return Announced(**json.loads((folder / ANNOUNCED).read_bytes()))
    except (ValueError, TypeError):
        raise OSError(f"{folder / ANNOUNCED} is damaged") from None


class _Current:
    """Who holds this process's office just now."""

    coordinator: Coordinator | None = None
    port: int = 0  # one that the system chose stays the same: workers know it


async def _term(
    seat: CoordinatorProcessSettings,
    identity: Identity,
    *,
    current: _Current,
    on_round: Callable[[RoundRecord], None],
) -> bool:
    """One term of office; whether the run is over."""
    ledger = AnnouncingLedger(_ledger(seat), seat.folder)
    listen = parse_listen(seat.listen, key="--listen")
    if not listen.port:
        listen = replace(listen, port=current.port)
    try:
        experiment = seat.experiment
        if experiment is None:
            state = await ledger.lead_first(name=seat.name, address=seat.advertise or str(listen))
            if state is None:
                return False  # nobody has begun the run yet
            experiment = CommittedState.from_bytes(state).experiment
        settings = CoordinatorSettings(
            experiment=experiment,
            identity=identity,
            listen=str(listen),
            folder=seat.folder,
            allowed=AllowList(seat.allow),
            advertise=seat.advertise,
            on_round=on_round,
        )
        current.coordinator = Coordinator(settings, ledger)
        await current.coordinator.run()
        return True
    except (Deposed, NotLeader, Unreachable) as error:
        if seat.ha is None or (not ledger.has_led and isinstance(error, Unreachable)):
            raise RunError(f"{seat.folder}: {error}") from None
        LOG.warning("a candidate again: %s", error)
        return False
    finally:
        if current.coordinator is not None and current.coordinator.address:
            current.port = parse_address(current.coordinator.address, key="--advertise").port
        current.coordinator = None
        await ledger.close()


def _ledger(seat: CoordinatorProcessSettings) -> Ledger:
    if seat.ha is not None:
        return EtcdLedger(seat.ha, FEDERATION, lease_seconds=seat.lease)
    return JournalLedger(seat.folder / JOURNAL)


class AnnouncingLedger:
    """A ledger that tells people who leads, and where."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self._ledger, self._folder = ledger, folder
        self.lost = ledger.lost
        self.told: tuple[str, ...] = ()
        self.has_led = False
        self._epoch = 0

    async def lead_first(self, *, name: str, address: str) -> bytes | None:
        """Take the lead before there is a coordinator; what others committed, None: nothing."""
        self._epoch = await self._ledger.lead(name=name, address=address)
        return await self._ledger.committed()

    async def lead(self, *, name: str, address: str) -> int:
        """Wait for the lead, and say so if it takes long."""
        telling = asyncio.ensure_future(self._tell_of_waiting())
        try:
            epoch = self._epoch or await self._ledger.lead(name=name, address=address)
        finally:
            telling.cancel()
        self.has_led, self.told = True, self._ledger.told
        for line in self.told:
            LOG.warning(line)
        here = _reachable(address)
        facts = {"name": name, "address": here, "epoch": epoch, "process": os.getpid()}
        write_file(self._folder / ANNOUNCED, json.dumps(facts).encode())
        return epoch

    async def _tell_of_waiting(self) -> None:
        await asyncio.sleep(SILENT)
        LOG.info("waiting for the lead: another process coordinates this run")

    def leads(self) -> bool:
        """As the ledger says."""
        return self._ledger.leads()

    async def committed(self) -> bytes | None:
        """As the ledger says."""
        return await self._ledger.committed()

    async def commit(self, state: bytes) -> None:
        """By the ledger."""
        await self._ledger.commit(state)

    async def close(self) -> None:
        """Let the next one lead."""
        await self._ledger.close()


def _reachable(address: str) -> str:
    """The address for this machine's own use: what means all addresses is none to call."""
    place = parse_listen(address, key="--advertise")
    if not place.everywhere:
        return address
    return str(replace(place, host="::1" if ":" in place.host else "127.0.0.1"))
