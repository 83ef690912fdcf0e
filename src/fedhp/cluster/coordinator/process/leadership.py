"""The process of a coordinator: checks its settings, then leads, once or again and again.

With a local ledger it leads once. With etcd it waits for the lead, and waits again after losing it.
Each process writes its own record: a frozen leader may still hold the lock of its folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.coordinator import Coordinator, CoordinatorSettings, Deposed
from fedhp.cluster.coordinator.process.announcements import AnnouncingLedger, read_announcement
from fedhp.cluster.coordinator.process.finders import FEDERATION
from fedhp.cluster.coordinator.process.metrics import Metrics, snapshot_of
from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.cluster.coordinator.process.standby import StandbyService, standing_by
from fedhp.cluster.ledger.base import Ledger, NotLeader, SignedLedger, Unreachable
from fedhp.cluster.ledger.etcd import LEASE, EtcdLedger, Leader, find_leader
from fedhp.cluster.ledger.etcd_client import check_etcd_tls, is_plain, parse_etcd_url
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.metrics_server import Health, MetricsServer
from fedhp.cluster.protocol.addresses import HostPort, check_free, parse_address, parse_listen
from fedhp.cluster.security.identity import Identity, load_identity
from fedhp.cluster.security.renewal import ExpiryWatch, RenewableIdentity
from fedhp.cluster.security.tls import AllowList
from fedhp.config import Experiment, check_trusted
from fedhp.config.origins import UNKNOWN, Origins
from fedhp.errors import ConfigError, IdentityError, Interrupted, RunError, TryAgain
from fedhp.files import make_folder
from fedhp.trust import load_trust
from fedhp.types import RoundRecord

LOG = logging.getLogger("fedhp.coordinator")
LEDGER = "ledger"  # the folder of a local ledger, in that of the run
COMMITTED = "the committed experiment"
CANDIDATE_RETRY_SECONDS = 1.0  # until a process that lost the lead waits for it again


@dataclass(frozen=True, slots=True)
class CoordinatorProcessSettings:
    """What a coordinator's process is started with."""

    experiment: Experiment | None  # None for a standby, which takes over what is committed
    certificates: Path
    folder: Path  # of the record, the history and the local ledger
    name: str = "coordinator"
    listen: str = "127.0.0.1:0"
    allow: Path | None = None  # a file of names; None: everyone whom the authority signed
    advertise: str | None = None
    ha: str | None = None  # etcd://..., or None for a local ledger
    resume: bool = False  # continue a run that an operator stopped
    moved: bool = False  # the folder was moved or restored here; the original is gone
    insecure_etcd: bool = False  # etcd without TLS, on purpose
    lease: float = LEASE  # s without a sign of the leader until another takes over, with etcd
    metrics: str | None = None
    compares: bool = False  # the workers' data and models with those of this machine
    trust: tuple[str, ...] = ()  # modules whose parts a committed experiment may use at a standby


def check_settings(settings: CoordinatorProcessSettings) -> Identity:
    """Refuse what cannot work, before anything is started or written."""
    if settings.experiment is not None:
        with settings.experiment.origins.named():
            check_network(settings.experiment)
    identity = load_identity(settings.certificates, settings.name)
    if "coordinator" not in identity.roles:
        raise IdentityError(
            f"{settings.name} is {' and '.join(sorted(identity.roles))} by its certificate, "
            "not coordinator",
            fix=f"fedhp certs issue {settings.name} --role coordinator --replace; a worker needs "
            "another certificate",
        )
    AllowList(settings.allow)
    listen = parse_listen(settings.listen, key="--listen")
    check_free(listen, key="--listen")
    if settings.metrics is not None:
        check_free(parse_listen(settings.metrics, key="--metrics"), key="--metrics")
    if settings.ha is not None:
        check_etcd(settings.ha, insecure=settings.insecure_etcd)
    if settings.advertise is not None:
        parse_address(settings.advertise, key="--advertise")
    elif settings.ha is not None and listen.everywhere:
        raise ConfigError(
            f"with --ha the others need an address to call, and {listen} is not one",
            key="--advertise",
            allowed="HOST:PORT at which the workers reach this machine",
            fix=f"add --advertise HOST:{listen.port or 'PORT'}",
        )
    return identity


def check_etcd(url: str, *, insecure: bool) -> None:
    """Refuse an address of etcd that cannot be used, and one without TLS unless it is wanted."""
    parse_etcd_url(url, key="--ha")
    check_etcd_tls(url, insecure=insecure)


def warn_of_plain_etcd(url: str | None) -> None:
    """Say loudly that etcd is used without TLS."""
    if url is not None and is_plain(url):
        LOG.warning(
            "INSECURE: etcd is used without TLS (--insecure-etcd). Anyone who reaches it can stop "
            "the run, decide who leads and read its state; states that no coordinator of this "
            "federation signed are still refused"
        )


def check_standby(settings: CoordinatorProcessSettings) -> None:
    """Refuse a standby that could never take over."""
    if settings.ha is None:
        raise ConfigError(
            "a standby needs etcd, which decides who leads",
            key="--standby",
            allowed="--standby together with --ha etcd://...",
            fix="add --ha, or remove --standby",
        )
    if not parse_listen(settings.listen, key="--standby").port:
        raise ConfigError(
            f"{settings.listen} names no port, and the others must know it before it is opened",
            key="--standby",
            allowed="HOST:PORT with a fixed port",
            fix="for example --standby 0.0.0.0:7701",
        )
    check_settings(settings)


async def coordinate(
    settings: CoordinatorProcessSettings,
    *,
    stop: asyncio.Event,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
) -> str:
    """Coordinate until the run is over; Interrupted if `stop` is set before.

    Returns why an operator ended the run; empty if it has all its rounds.
    """
    identity = check_settings(settings)
    warn_of_plain_etcd(settings.ha)
    make_folder(settings.folder, option="--out", private=True)
    own = RenewableIdentity(identity)
    expiry = ExpiryWatch(own)
    metrics, current = Metrics(), _Current()
    server = None

    def update() -> Health:
        now = snapshot_of(current.coordinator)
        return metrics.update(replace(now, certificates=expiry.seconds_left()))

    if settings.metrics is not None:
        server = MetricsServer(settings.metrics, metrics.registry, update)
        LOG.info("metrics at port %d", server.port)

    def counted(record: RoundRecord) -> None:
        metrics.round_ended(record)
        on_round(record)

    async def lead_until_over() -> None:
        while not await _lead_once(
            settings, own, expiry=expiry, current=current, on_round=counted if server else on_round
        ):
            await asyncio.sleep(CANDIDATE_RETRY_SECONDS)

    watching = asyncio.ensure_future(expiry.run())
    leading = asyncio.ensure_future(lead_until_over())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not leading.done():
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            raise Interrupted(
                "stopped\n  the run is saved; the same command continues it, the workers wait"
            )
        leading.result()
        return current.stopped
    finally:
        stopping.cancel()
        watching.cancel()
        if server is not None:
            await asyncio.to_thread(server.close)


async def stand_by(settings: CoordinatorProcessSettings, *, stop: asyncio.Event) -> None:
    """Be ready to coordinate, with etcd: take over a run that others began, until it is over."""
    check_standby(settings)
    await coordinate(settings, stop=stop)


class _Current:
    """The coordinator that this process runs at the moment."""

    coordinator: Coordinator | None = None
    stopped: str = ""  # why an operator ended the run
    port: int = 0  # one that the system chose stays the same: workers know it


async def _lead_once(
    settings: CoordinatorProcessSettings,
    identity: RenewableIdentity,
    *,
    expiry: ExpiryWatch,
    current: _Current,
    on_round: Callable[[RoundRecord], None],
) -> bool:
    """Wait for the lead and coordinate; False if the lead was lost before the run was over."""
    listen = parse_listen(settings.listen, key="--listen")
    if not listen.port:
        listen = replace(listen, port=current.port)
    ledger = AnnouncingLedger(
        _ledger(settings, identity),
        settings.folder,
        lambda address: _stand_by(settings, identity, listen, address),
    )
    try:
        experiment = settings.experiment
        origins = UNKNOWN if experiment is None else experiment.origins
        if experiment is None:
            committed = await ledger.lead_first(
                name=settings.name, address=settings.advertise or str(listen)
            )
            if committed is None:
                return False  # nobody has begun the run yet
            experiment = CommittedState.from_bytes(committed).experiment
            check_trusted(experiment.with_origins(Origins(COMMITTED)), load_trust(settings.trust))
        current.coordinator = Coordinator(
            CoordinatorSettings(
                experiment=experiment,
                identity=identity,
                listen=str(listen),
                folder=settings.folder,
                allowed=AllowList(settings.allow),
                advertise=settings.advertise,
                resume=settings.resume,
                moved=settings.moved,
                expiry=expiry,
                on_round=on_round,
                folders=origins.folders if settings.compares else None,
            ),
            ledger,
        )
        await current.coordinator.run()
        current.stopped = current.coordinator.stopped
        return True
    except (Deposed, NotLeader, Unreachable) as error:
        if settings.ha is None:
            raise RunError(f"{settings.folder}: {error}") from None
        # A standby waits for an etcd that comes later; a coordinator says what is missing.
        waits = ledger.has_led or settings.experiment is None
        if isinstance(error, Unreachable) and not waits:
            raise TryAgain(error.problem, allowed=error.allowed, fix=error.fix) from None
        LOG.warning("a candidate again: %s", error)
        return False
    finally:
        if current.coordinator is not None and current.coordinator.address:
            current.port = parse_address(current.coordinator.address, key="--advertise").port
        current.coordinator = None
        await ledger.close()


def _ledger(settings: CoordinatorProcessSettings, identity: RenewableIdentity) -> Ledger:
    """Whatever stores the state, only what a coordinator signed is continued."""
    if settings.ha is None:
        folder = settings.folder / LEDGER
        return SignedLedger(LocalLedger(folder), identity, where=str(folder))
    insecure, seconds = settings.insecure_etcd, settings.lease
    ledger = EtcdLedger(settings.ha, FEDERATION, lease_seconds=seconds, insecure=insecure)
    return SignedLedger(ledger, identity, where=settings.ha)


def _stand_by(
    settings: CoordinatorProcessSettings,
    identity: RenewableIdentity,
    listen: HostPort,
    address: str,
) -> AbstractAsyncContextManager[None]:
    """Say who leads, to those who call this process while it waits for the lead."""

    async def lookup() -> Leader | None:
        if settings.ha is not None:
            return await find_leader(settings.ha, FEDERATION, insecure=settings.insecure_etcd)
        leader = read_announcement(settings.folder)
        return Leader(leader.name, leader.address, leader.epoch)

    if not listen.port:  # the system chose one for this process, and it is known by now
        listen = replace(listen, port=parse_address(address, key="--advertise").port)
    service = StandbyService(
        settings.name, address, lookup=lookup, allowed=AllowList(settings.allow)
    )
    return standing_by(identity, listen, service)
