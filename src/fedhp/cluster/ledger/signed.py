"""A ledger whose states are signed: only a coordinator of this federation can write one.

Wherever the bytes are stored, who can write there cannot make a coordinator act on them.
"""

from __future__ import annotations

from fedhp.cluster.ledger.base import Ledger, LedgerDamaged, Unreachable
from fedhp.cluster.security.identity import format_time
from fedhp.cluster.security.renewal import AnyIdentity, renewable
from fedhp.cluster.security.signatures import sign, verify
from fedhp.errors import IdentityError

PURPOSE = "the committed state of a run"


class SignedLedger:
    """Signs what this process commits, and verifies what it continues from."""

    def __init__(self, ledger: Ledger, identity: AnyIdentity, *, where: str) -> None:
        self._ledger, self._identity, self._where = ledger, renewable(identity), where
        self.lost = ledger.lost

    async def lead(self, *, name: str, address: str) -> int:
        """Wait until this process leads."""
        return await self._ledger.lead(name=name, address=address)

    def place(self) -> str:
        """Which copy of the ledger this is."""
        return self._ledger.place()

    def leads(self) -> bool:
        """Whether this process leads at this moment."""
        return self._ledger.leads()

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

    async def close(self) -> None:
        """Let another process lead."""
        await self._ledger.close()
