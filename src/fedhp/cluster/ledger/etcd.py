"""A ledger in etcd: whoever holds the leader's key commits, and the key hangs on a lease.

Safety rests on etcd alone: every write is a transaction that requires the leader's key to be the
one of this epoch. Clocks (of bounded rate, never compared) only say how soon a leader steps down.
Not promised: epochs that rise after etcd's data were lost, and a quick handover while etcd itself
elects a leader, since it then prolongs every lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from fedhp.cluster.ledger.base import NotLeader, Unreachable
from fedhp.cluster.ledger.etcd_client import PATIENCE, EtcdClient, Login, TlsFiles
from fedhp.cluster.ledger.etcd_messages import (
    NOT_FOUND,
    EtcdRefused,
    changed_at,
    created_at,
    delete,
    put,
    read,
)
from fedhp.errors import ConfigError, FedhpError

LEASE = 10.0  # s without a sign of the leader until another may take over
POLL = 0.5  # s between two looks whether the leader's key is free
DRIFT = 0.1  # share of a lease by which its holder lets go earlier: clocks may differ so in rate
PART_BYTES = 1 << 19  # of a state in one key; etcd takes requests up to 1.5 MiB
TRIES = 5  # commits of one's own that may turn up late, one after the other


@dataclass(frozen=True, slots=True)
class Leader:
    """Who coordinates."""

    name: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class _Keys:
    leader: str
    state: str  # the pointer: which parts make up the committed state
    parts: str

    @classmethod
    def of(cls, prefix: str, run: str) -> _Keys:
        if not re.fullmatch(r"[\w.-]+", run):
            raise ConfigError(
                f"{run!r} cannot be part of a key in etcd",
                key="run",
                allowed="letters, digits, '.', '_' and '-'",
                fix="choose another name",
            )
        base = f"{prefix}/{run}"
        return cls(f"{base}/leader", f"{base}/state", f"{base}/parts")


@dataclass(frozen=True, slots=True)
class _Pointer:
    """The committed state: its parts lie under the name of the commit."""

    commit: str
    parts: int
    digest: str  # SHA-256 of the state

    def encoded(self) -> bytes:
        return json.dumps([self.commit, self.parts, self.digest]).encode()

    @classmethod
    def decoded(cls, value: bytes) -> _Pointer:
        try:
            commit, parts, digest = json.loads(value)
            return cls(str(commit), int(parts), str(digest))
        except (ValueError, TypeError):
            raise _foreign(value) from None


def _foreign(value: bytes) -> EtcdRefused:
    return EtcdRefused(
        f"a key in etcd holds what fedhp did not write: {value[:60]!r}",
        allowed="keys that only fedhp writes",
        fix="choose another prefix in the address of etcd",
    )


def elapsed() -> float:
    """Seconds that went by, those of a suspended machine too, where the system can say."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


async def find_leader(
    url: str, run: str, *, tls: TlsFiles | None = None, login: Login | None = None
) -> Leader | None:
    """Who leads a run now; None: nobody. Unreachable when etcd cannot say."""
    client = EtcdClient(url, tls=tls, login=login)
    try:
        item = await client.get(_Keys.of(client.address.prefix, run).leader)
    finally:
        await client.close()
    if item is None:
        return None
    try:
        facts = json.loads(item.value)
        return Leader(str(facts["name"]), str(facts["address"]), item.created)
    except (ValueError, TypeError, KeyError):
        raise _foreign(item.value) from None


class EtcdLedger:
    """A run's ledger in etcd; any number of processes may wait to lead."""

    def __init__(
        self,
        url: str,
        run: str,
        *,
        lease_seconds: float = LEASE,
        tls: TlsFiles | None = None,
        login: Login | None = None,
        patience: float = PATIENCE,
        clock: Callable[[], float] = elapsed,
    ) -> None:
        self.lost = asyncio.Event()
        self._client = EtcdClient(url, tls=tls, login=login, patience=patience)
        self._keys = _Keys.of(self._client.address.prefix, run)
        self._seconds = max(1.0, lease_seconds)  # etcd may make it longer
        self._clock = clock
        self._lease = 0
        self._until = -math.inf  # by our clock, before which the lease cannot have ended
        self._epoch = 0  # 0: does not lead
        self._why = "it did not take the lead"
        self._commits = 0
        self._changed = 0  # the pointer's revision, as far as we know
        self._busy = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def lead(self, *, name: str, address: str) -> int:
        """Wait for the leader's key; outages are waited out, but not before the first answer."""
        if self._tasks:
            raise RuntimeError("a ledger leads only once")
        value = json.dumps({"name": name, "address": address}).encode()
        await self._client.check()
        answered = False
        while True:
            try:
                epoch = await self._take(value)
                answered = True
            except Unreachable:
                if not answered:
                    raise
                epoch = 0
            if epoch and self._clock() < self._until:
                self._epoch, self._why = epoch, ""
                self._tasks = [asyncio.create_task(task) for task in (self._renew(), self._watch())]
                return epoch
            await asyncio.sleep(POLL)

    async def _take(self, value: bytes) -> int:
        """The epoch if the leader's key is ours now, else 0."""
        key = self._keys.leader
        holder = await self._client.get(key)
        if holder is None:
            if self._until - self._clock() < self._seconds / 2:
                await self._take_lease()
            try:
                outcome = await self._client.transact(
                    [created_at(key, 0)], [put(key, value, lease=self._lease)], [read(key)]
                )
            except EtcdRefused as error:
                if error.code != NOT_FOUND:
                    raise
                self._until = -math.inf  # the lease ended in between
                return 0
            if outcome.succeeded:
                return outcome.revision
            holder = outcome.items[0]
        # A transaction whose answer was lost may have been ours.
        ours = holder is not None and holder.lease == self._lease
        return holder.created if ours and holder is not None else 0

    async def _take_lease(self) -> None:
        sent = self._clock()
        self._lease, self._seconds = await self._client.grant(math.ceil(self._seconds))
        self._until = sent + self._seconds * (1 - DRIFT)

    async def _renew(self) -> None:
        # A member that was cut off from the others may renew a lease that has ended elsewhere:
        # a renewal counts only when a majority says that the key is still ours.
        while self.leads():
            left = self._until - self._clock()
            await asyncio.sleep(min(left / 2, self._seconds / 3))
            sent = self._clock()
            # So short that there is time for other members before the lease ends.
            patience = min(self._seconds / 3, max(0.1, self._until - sent))
            try:
                seconds = await self._client.keep_alive(self._lease, patience=patience)
                holder = await self._client.get(self._keys.leader, patience=patience)
            except FedhpError as error:
                self._why = error.problem
                await asyncio.sleep(self._seconds / 30)
                continue
            if seconds <= 0 or holder is None or holder.created != self._epoch:
                self._step_down("its lease ended, or its key was removed")
            elif self.leads():
                self._until = sent + seconds * (1 - DRIFT)

    async def _watch(self) -> None:
        # Sleeps are short, since a suspended machine's sleep does not count the suspension.
        while self.leads():
            await asyncio.sleep(min(0.2, max(0.01, self._until - self._clock())))

    def leads(self) -> bool:
        """Whether the lease cannot have ended yet, by a clock of our own."""
        if self._epoch and self._clock() >= self._until:
            self._step_down(f"its lease was not renewed in time: {self._why}")
        return self._epoch > 0

    def _step_down(self, why: str) -> None:
        self._why = why
        self._epoch = 0
        self.lost.set()

    def _must_lead(self) -> int:
        if not self.leads():
            raise NotLeader(
                f"this process does not lead under {self._keys.leader}: {self._why}",
                allowed="commits of the process that leads",
                fix="start it again: it then waits for its turn",
            )
        return self._epoch

    async def committed(self) -> bytes | None:
        """The last committed state, as a majority has it."""
        async with self._busy:
            for _ in range(TRIES):
                epoch = self._must_lead()
                mine = created_at(self._keys.leader, epoch)
                outcome = await self._client.transact([mine], [read(self._keys.state)])
                if not outcome.succeeded:
                    self._step_down("another process took over")
                    self._must_lead()
                item = outcome.items[0]
                if item is None:
                    return None
                self._changed = item.changed
                state = await self._whole(_Pointer.decoded(item.value))
                if state is not None:
                    return state
            raise EtcdRefused(
                f"the state under {self._keys.state} misses a part or was changed",
                allowed="keys that only fedhp writes",
                fix=f"bring back a snapshot of etcd, or delete {self._keys.state} to start anew",
            )

    async def _whole(self, pointer: _Pointer) -> bytes | None:
        parts = []
        for number in range(pointer.parts):
            name = self._part(pointer.commit, number)
            part = await self._client.get(name, expected=2 * PART_BYTES)
            if part is None:
                return None  # a commit of ours came late, and took the parts away
            parts.append(part.value)
        try:
            state = await asyncio.to_thread(zlib.decompress, b"".join(parts))
        except zlib.error:
            return None
        return state if hashlib.sha256(state).hexdigest() == pointer.digest else None

    async def commit(self, state: bytes) -> None:
        """Write the parts, then turn the pointer to them; all of it only while we lead."""
        async with self._busy:
            epoch = self._must_lead()
            self._commits += 1
            name = f"{epoch:016x}-{self._commits:08x}"
            packed = await asyncio.to_thread(zlib.compress, state, 1)
            parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
            pointer = _Pointer(name, len(parts), hashlib.sha256(state).hexdigest())
            for _ in range(TRIES):
                for number, part in enumerate(parts[:-1]):
                    await self._put_part(name, number, part)
                if await self._point_to(pointer, parts[-1]):
                    return
            raise Unreachable(
                f"the commit under {self._keys.state} was overtaken {TRIES} times",
                allowed="keys that only fedhp writes",
                fix="this goes on by itself, unless something else writes this key",
            )

    async def _put_part(self, name: str, number: int, part: bytes) -> None:
        mine = created_at(self._keys.leader, self._must_lead())
        outcome = await self._client.transact([mine], [put(self._part(name, number), part)])
        if not outcome.succeeded:
            self._step_down("another process took over")
            self._must_lead()

    async def _point_to(self, pointer: _Pointer, last: bytes) -> bool:
        """Make this the committed state; False if the pointer was not where we thought."""
        # The pointer's revision is a condition too: of a request that was sent twice, or comes
        # late, only one can ever be applied, and none after a later commit. And since parts are
        # only deleted where the pointer is turned, those written before are still there.
        keys = self._keys
        epoch = self._must_lead()
        own = f"{keys.parts}/{pointer.commit}"
        outcome = await self._client.transact(
            [created_at(keys.leader, epoch), changed_at(keys.state, self._changed)],
            [
                put(keys.state, pointer.encoded()),
                put(self._part(pointer.commit, pointer.parts - 1), last),
                # '0' follows '/': all parts but this commit's, half ones of the dead as well.
                delete(f"{keys.parts}/", f"{own}/"),
                delete(f"{own}0", f"{keys.parts}0"),
            ],
            [read(keys.leader), read(keys.state)],
        )
        if outcome.succeeded:
            self._changed = outcome.revision
            return True
        holder, item = outcome.items
        self._changed = 0 if item is None else item.changed
        if item is not None and item.value == pointer.encoded():
            return True  # the answer was lost, not the commit
        if holder is None or holder.created != epoch:
            self._step_down("another process took over")
            self._must_lead()
        return False  # there is the commit of an earlier leader, or one of ours came late

    def _part(self, commit: str, number: int) -> str:
        return f"{self._keys.parts}/{commit}/{number:04}"

    async def close(self) -> None:
        """End the lease, so that the next one leads at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._clock() < self._until:
            with contextlib.suppress(FedhpError):
                await self._client.revoke(self._lease)
        self._epoch, self._until, self._why = 0, -math.inf, "it was closed"
        await self._client.close()
