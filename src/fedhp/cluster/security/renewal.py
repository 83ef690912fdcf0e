"""Certificates over time: takes up renewed ones without a restart, and warns before they expire.

An open TLS connection outlives its certificates; only the next one fails. So expiry is noticed by
looking at the dates, of the own certificate and of those that others have shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedhp.cluster.security.identity import (
    CertificateInfo,
    Identity,
    certificate_info,
    file_stamp,
    format_time,
    load_identity,
    parse_certificate,
    renewal_command,
)
from fedhp.errors import IdentityError

LOG = logging.getLogger("fedhp.certificates")
WARNED_BEFORE = timedelta(days=30)
WARNING_PERIOD = timedelta(days=1)  # between two warnings of the same certificate
EXPIRED_PERIOD = timedelta(hours=1)  # the same, after it has expired
CHECK_SECONDS = 60.0  # between two checks of the dates
LOOK_SECONDS = 1.0  # between two looks whether the files have changed


utc_now = functools.partial(datetime.now, UTC)


class RenewableIdentity:
    """A machine's identity as its files have it now; safe to use from several threads."""

    def __init__(self, identity: Identity, *, now: Callable[[], datetime] = utc_now) -> None:
        self.name = identity.name
        self._identity, self._now = identity, now
        self._next_look = 0.0
        self._refused = identity.stamp  # files that were looked at and cannot be used
        self._lock = threading.Lock()

    def current(self) -> Identity:
        """The identity; a new object after its files were replaced by valid ones."""
        with self._lock:
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + LOOK_SECONDS
                self._look()
            return self._identity

    def expired(self) -> bool:
        return self._now() > self.current().ends

    def _look(self) -> None:
        known = self._identity
        stamp = file_stamp(known.folder, known.name)
        if stamp == known.stamp:
            return
        try:
            renewed = load_identity(known.folder, known.name, now=self._now())
        except IdentityError as error:
            # They may be copied at this moment, one after the other: look again.
            if stamp != self._refused:
                LOG.warning("the new certificate files are not used yet: %s", error.problem)
            self._refused = stamp
            return
        self._identity = renewed
        if renewed.certificate != known.certificate:
            until = format_time(renewed.ends)
            LOG.info("took up the renewed certificate of %s, valid until %s", renewed.name, until)


AnyIdentity = Identity | RenewableIdentity


def renewable(identity: AnyIdentity) -> RenewableIdentity:
    return identity if isinstance(identity, RenewableIdentity) else RenewableIdentity(identity)


class ExpiryWatch:
    """Knows when the own certificate and those of the others end, and says so in time."""

    def __init__(self, own: RenewableIdentity, *, now: Callable[[], datetime] = utc_now) -> None:
        self._own, self._now = own, now
        self._others: dict[str, tuple[bytes, CertificateInfo]] = {}  # what they showed
        self._said: dict[str, tuple[datetime, datetime]] = {}  # by name: of which date, and when

    def see(self, name: str, pem: bytes) -> None:
        """Note the certificate of a caller; cheap if it is the one that was seen before."""
        if pem and (name not in self._others or self._others[name][0] != pem):
            with contextlib.suppress(IdentityError):  # TLS accepted it, so it can be ignored here
                self._others[name] = pem, _info(name, pem)
                self._check_other(name)

    def seconds_left(self) -> dict[str, float]:
        """Seconds until the certificates end by name, negative afterwards; the own one too."""
        ends = {name: info.ends for name, (_, info) in self._others.items()}
        ends[self._own.name] = self._own.current().ends
        now = self._now()
        return {name: (moment - now).total_seconds() for name, moment in sorted(ends.items())}

    def expiring(self) -> dict[str, float]:
        """The same for those that expire within 30 days or have expired, the first to end first."""
        left = sorted(self.seconds_left().items(), key=lambda item: item[1])
        return {name: seconds for name, seconds in left if seconds <= WARNED_BEFORE.total_seconds()}

    def check(self) -> None:
        """Log what expires soon or has expired, each certificate once a day or hour."""
        own = self._own.current()
        self._say(own.name, _info(own.name, own.certificate), str(own.folder))
        for name in self._others:
            self._check_other(name)

    def _check_other(self, name: str) -> None:
        if name != self._own.name:
            self._say(name, self._others[name][1], "that machine")

    async def run(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(CHECK_SECONDS)

    def _say(self, name: str, info: CertificateInfo, place: str) -> None:
        ends, now = info.ends, self._now()
        left = ends - now
        if left > WARNED_BEFORE:
            return
        expired = left < timedelta(0)
        said_of, said_at = self._said.get(name, (ends, datetime.min.replace(tzinfo=UTC)))
        period = EXPIRED_PERIOD if expired else WARNING_PERIOD
        if said_of == ends and now - said_at < period:
            return
        self._said[name] = ends, now
        if expired:
            when = f"expired on {format_time(ends)}: new connections with it are refused"
        else:
            when = f"expires on {format_time(ends)}, in {left.days} days"
        text = "the certificate of %s %s; renew it: %s, then copy both files to %s; "
        level = logging.ERROR if expired else logging.WARNING
        text += "no restart is needed"
        LOG.log(level, text, name, when, renewal_command(info), place)


def _info(name: str, pem: bytes) -> CertificateInfo:
    file = Path(f"{name}.crt")
    return certificate_info(file, parse_certificate(file, pem))
