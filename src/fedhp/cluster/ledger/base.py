"""Where the committed state of a run is stored: what every ledger promises.

A ledger leads at most once: a process that lost the lead starts again with a new one. Commits of
one ledger are made one after the other.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from fedhp.cluster.security.identity import format_time
from fedhp.cluster.security.renewal import AnyIdentity, renewable
from fedhp.cluster.security.signatures import sign, verify
from fedhp.errors import FedhpError, IdentityError, RunError

PURPOSE = "the committed state of a run"


class NotLeader(FedhpError):
    """This process does not lead any more; only the next leader can say what was committed."""


class Unreachable(FedhpError):
    """It is not known whether the commit was made; the same commit must be tried again."""


class RunStopped(OSError):
    """Nobody leads, because an operator stopped the run."""

    def __init__(self, run: str, why: str) -> None:
        super().__init__(f"nobody coordinates: the run was {why}")
        self.run, self.why = run, why


class LedgerDamaged(RunError):
    """What is stored is not what was committed."""


class Ledger(Protocol):
    """Stores the committed state of one run, and decides who may commit."""

    lost: asyncio.Event  # set when leadership is lost

    async def lead(self, *, name: str, address: str) -> int:
        """Wait until this process leads; its epoch, larger than any before."""

    def place(self) -> str:
        """Which copy of the ledger this is, for a leader; empty where there can be only one."""

    def leads(self) -> bool:
        """Whether this process still leads right now: to be asked before orders are given."""

    async def committed(self) -> bytes | None:
        """The last committed state, for a leader."""

    async def commit(self, state: bytes) -> None:
        """Make this the committed state; it is durable when this returns."""

    async def close(self) -> None:
        """Let another process lead."""


class SignedLedger:
    """Signs what this process commits, and verifies what it continues from: whoever can write where
    the bytes are stored cannot make a coordinator act on them."""

    def __init__(self, ledger: Ledger, identity: AnyIdentity, *, where: str) -> None:
        self._ledger, self._identity, self._where = ledger, renewable(identity), where
        self.lost, self.lead, self.leads = ledger.lost, ledger.lead, ledger.leads
        self.place, self.close = ledger.place, ledger.close

    async def committed(self) -> bytes | None:
        """The last committed state; LedgerDamaged unless a coordinator signed it."""
        signed = await self._ledger.committed()
        if signed is None:
            return None
        try:
            authority = self._identity.current().authority
            return verify(signed, authority=authority, purpose=PURPOSE, role="coordinator")
        except IdentityError as error:
            raise LedgerDamaged(
                f"{self._where}: the committed state is refused: {error.problem}",
                allowed="a state that a coordinator with a certificate of this authority signed",
                fix="find out who wrote it; restore a copy, or start a new run",
            ) from None

    async def commit(self, state: bytes) -> None:
        """Sign this state and make it the committed one; Unreachable with an expired certificate,
        since nobody would accept such a signature."""
        identity = self._identity.current()
        if self._identity.expired():
            raise Unreachable(
                f"the certificate of {identity.name}, which signs the state, expired on "
                f"{format_time(identity.ends)}",
                allowed="a certificate that is valid when it signs",
                fix=f"issue it again with --replace and copy it to {identity.folder}: the run "
                "continues by itself",
            )
        await self._ledger.commit(sign(identity, state, purpose=PURPOSE))
