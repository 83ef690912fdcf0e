"""Who leads and where, in the folder of the run: for processes of the same machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedhp.cluster.ledger.base import Ledger
from fedhp.cluster.protocol.addresses import parse_listen
from fedhp.errors import FedhpError
from fedhp.files import PRIVATE_FILE, storage_errors, write_file

LOG = logging.getLogger("fedhp.coordinator")
ANNOUNCEMENT = "coordinator.json"  # in the folder: where this coordinator is
STANDBY_ANNOUNCEMENT = "standby.json"  # the same, from before it has led
QUIET_SECONDS = 3.0  # of waiting for the lead before that is logged
STANDBY_SECONDS = 1.0  # of waiting for the lead before callers are told who leads


@dataclass(frozen=True, slots=True)
class Announcement:
    """Where a coordinator of this machine is."""

    name: str
    address: str
    epoch: int
    process: int


def read_announcement(folder: Path, file: str = ANNOUNCEMENT) -> Announcement:
    """The last leader that writes into this folder; OSError if there was none."""
    try:
        return Announcement(**json.loads((folder / file).read_bytes()))
    except (ValueError, TypeError):
        raise OSError(f"{folder / file} is damaged") from None


class AnnouncingLedger:
    """A ledger that writes into the folder who leads and where. While it waits for the lead, it
    logs that and lets others ask who leads."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        stand_by: Callable[[str], AbstractAsyncContextManager[None]],
    ) -> None:
        self._ledger, self._folder, self._stand_by = ledger, folder, stand_by
        self.lost, self.leads, self.place = ledger.lost, ledger.leads, ledger.place
        self.committed, self.commit, self.close = ledger.committed, ledger.commit, ledger.close
        self.has_led = False
        self._epoch = 0

    async def lead_first(self, *, name: str, address: str) -> bytes | None:
        """Take the lead before there is a coordinator; what is committed, or None."""
        self._epoch = await self._wait_for_lead(name, address)
        return await self._ledger.committed()

    async def lead(self, *, name: str, address: str) -> int:
        """Wait for the lead, and announce it."""
        epoch = self._epoch or await self._wait_for_lead(name, address)
        self.has_led = True
        self._announce(ANNOUNCEMENT, name, address, epoch)
        return epoch

    async def _wait_for_lead(self, name: str, address: str) -> int:
        waiting = asyncio.ensure_future(self._while_waiting(name, address))
        try:
            return await self._ledger.lead(name=name, address=address)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)  # then the port is free

    async def _while_waiting(self, name: str, address: str) -> None:
        await asyncio.sleep(STANDBY_SECONDS)
        async with self._stand_by(address):
            with contextlib.suppress(FedhpError):  # a full disk: others can still ask
                self._announce(STANDBY_ANNOUNCEMENT, name, address, 0)
            await asyncio.sleep(QUIET_SECONDS - STANDBY_SECONDS)
            LOG.info("waiting for the lead: another process coordinates this run")
            await asyncio.Event().wait()  # until it is cancelled

    def _announce(self, file: str, name: str, address: str, epoch: int) -> None:
        announcement = Announcement(name, _local_address(address), epoch, os.getpid())
        content = json.dumps(asdict(announcement)).encode()
        with storage_errors(self._folder / file, option="--out"):
            write_file(self._folder / file, content, mode=PRIVATE_FILE)


def _local_address(address: str) -> str:
    """How processes of this machine call it: 0.0.0.0 and [::] cannot be called."""
    listen = parse_listen(address, key="--advertise")
    if not listen.everywhere:
        return address
    return str(replace(listen, host="::1" if ":" in listen.host else "127.0.0.1"))
