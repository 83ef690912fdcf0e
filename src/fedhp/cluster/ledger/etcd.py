"""A ledger in etcd: the process that holds the leader's key commits; the key depends on a lease.

Safety rests on etcd alone: every write is a transaction that requires the leader's key of this
epoch. Clocks, whose rates may differ a little, only say how soon a leader steps down.
Not promised: epochs that rise after etcd lost its data, and a quick handover while etcd itself
elects a leader, since it then extends every lease.
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
from typing import NamedTuple

from fedhp.cluster.ledger.base import NotLeader, Unreachable
from fedhp.cluster.ledger.etcd_client import (
    CALL_PATIENCE,
    NOT_FOUND,
    EtcdClient,
    EtcdRefused,
    Json,
    Outcome,
    changed_at,
    created_at,
    delete,
    put,
    read,
)
from fedhp.errors import ConfigError, FedhpError

LEASE = 10.0  # s without a sign of the leader until another may take over
LEADER_POLL = 0.5  # s between two checks whether the leader's key is free
DRIFT = 0.1  # share of a lease by which its holder stops earlier: the rates of clocks differ
PART_BYTES = 1 << 19  # of a state in one key; etcd accepts requests up to 1.5 MiB
STATE_BYTES = 1 << 28  # of a state, unpacked: 1,000 workers need 0.4 MB, a forged one may be a bomb
COMMIT_ATTEMPTS = 5  # our own earlier commits may arrive late, one after the other


@dataclass(frozen=True, slots=True)
class Leader:
    """The coordinator that leads."""

    name: str
    address: str
    epoch: int


class _Keys(NamedTuple):
    leader: str
    state: str  # the pointer: which parts make up the committed state
    parts: str

    def part(self, commit: str, number: int) -> str:
        return f"{self.parts}/{commit}/{number:04}"


class _Pointer(NamedTuple):
    """Where the committed state is: its parts are under the name of the commit."""

    commit: str
    parts: int
    digest: str  # SHA-256 of the state


def _pointer_in(value: bytes) -> _Pointer:
    try:
        commit, parts, digest = json.loads(value)
        return _Pointer(str(commit), int(parts), str(digest))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise _foreign(value) from None


def _keys_of(client: EtcdClient, run: str) -> _Keys:
    if not re.fullmatch(r"[\w.-]+", run):
        raise ConfigError(
            f"{run!r} cannot be part of a key in etcd",
            key="run",
            allowed="letters, digits, '.', '_' and '-'",
            fix="choose another name",
        )
    return _Keys(*(f"{client.prefix}/{run}/{name}" for name in ("leader", "state", "parts")))


def _foreign(value: bytes) -> EtcdRefused:
    return EtcdRefused(
        f"a key in etcd has a value that fedhp did not write: {value[:60]!r}",
        allowed="keys that only fedhp writes",
        fix="choose another prefix in the address of etcd",
    )


def elapsed() -> float:
    """A clock in seconds that also counts while the machine is suspended, where it can."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


async def find_leader(url: str, run: str, *, insecure: bool = False) -> Leader | None:
    """The leader of a run; None: nobody leads. Unreachable if etcd does not answer."""
    async with EtcdClient(url, insecure=insecure) as client:
        item = await client.get(_keys_of(client, run).leader)
    if item is None:
        return None
    try:
        leader = json.loads(item.value)
        return Leader(str(leader["name"]), str(leader["address"]), item.created)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _foreign(item.value) from None


async def read_committed(url: str, run: str, *, insecure: bool = False) -> bytes | None:
    """The committed state, for one who does not lead; None if there is none to be read now."""
    async with EtcdClient(url, insecure=insecure) as client:
        keys = _keys_of(client, run)
        item = await client.get(keys.state)
        return None if item is None else await _whole(client, keys, _pointer_in(item.value))


async def _whole(client: EtcdClient, keys: _Keys, pointer: _Pointer) -> bytes | None:
    """The state that a pointer names; None if the parts are not there any more, or changed."""
    parts = []
    for number in range(pointer.parts):
        part = await client.get(keys.part(pointer.commit, number), expected=2 * PART_BYTES)
        if part is None:
            return None  # a commit that came late deleted the parts
        parts.append(part.value)
    try:
        state = await asyncio.to_thread(unpacked, b"".join(parts))
    except zlib.error:
        return None
    return state if hashlib.sha256(state).hexdigest() == pointer.digest else None


def unpacked(content: bytes) -> bytes:
    """The state in these bytes; zlib.error if they are damaged or too many."""
    unpacker = zlib.decompressobj()
    state = unpacker.decompress(content, STATE_BYTES)
    if not unpacker.eof:
        raise zlib.error("incomplete, or larger than a state can be")
    return state


class EtcdLedger:
    """The ledger of a run in etcd; any number of processes may wait to lead."""

    def __init__(
        self,
        url: str,
        run: str,
        *,
        lease_seconds: float = LEASE,
        patience: float = CALL_PATIENCE,
        clock: Callable[[], float] = elapsed,
        insecure: bool = False,
    ) -> None:
        self.lost = asyncio.Event()
        self._client = EtcdClient(url, patience=patience, insecure=insecure)
        self._keys = _keys_of(self._client, run)
        self._lease_seconds = max(1.0, lease_seconds)  # etcd may make it longer
        self._clock = clock
        self._lease = 0
        self._valid_until = -math.inf  # by our clock, before which the lease cannot have ended
        self._epoch = 0  # 0: does not lead
        self._reason = "it did not take the lead"
        self._commits = 0
        self._changed = 0  # the pointer's revision, as far as we know
        self._one_at_a_time = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def lead(self, *, name: str, address: str) -> int:
        """Wait for the leader's key, also through outages of etcd after its first answer."""
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
            if epoch and self._clock() < self._valid_until:
                self._epoch, self._reason = epoch, ""
                self._tasks = [asyncio.create_task(task) for task in (self._renew(), self._watch())]
                return epoch
            await asyncio.sleep(LEADER_POLL)

    async def _take(self, value: bytes) -> int:
        """The epoch if the leader's key is ours now, else 0."""
        key = self._keys.leader
        holder = await self._client.get(key)
        if holder is None:
            if self._valid_until - self._clock() < self._lease_seconds / 2:
                sent, seconds = self._clock(), math.ceil(self._lease_seconds)
                self._lease, self._lease_seconds = await self._client.grant(seconds)
                self._valid_until = sent + self._lease_seconds * (1 - DRIFT)
            try:
                outcome = await self._client.transact(
                    [created_at(key, 0)], [put(key, value, lease=self._lease)], [read(key)]
                )
            except EtcdRefused as error:
                if error.code != NOT_FOUND:
                    raise
                self._valid_until = -math.inf  # the lease ended in between
                return 0
            if outcome.succeeded:
                return outcome.revision
            holder = outcome.items[0]
        # A transaction whose answer was lost may have been ours.
        return 0 if holder is None or holder.lease != self._lease else holder.created

    async def _renew(self) -> None:
        # A member that is cut off from the others may renew a lease that has ended elsewhere:
        # a renewal counts only when a majority says that the key is still ours.
        while self.leads():
            left = self._valid_until - self._clock()
            await asyncio.sleep(min(left / 2, self._lease_seconds / 3))
            sent = self._clock()
            # Short enough to ask other members before the lease ends.
            patience = min(self._lease_seconds / 3, max(0.1, self._valid_until - sent))
            try:
                seconds = await self._client.keep_alive(self._lease, patience=patience)
                holder = await self._client.get(self._keys.leader, patience=patience)
            except FedhpError as error:
                self._reason = error.problem
                await asyncio.sleep(self._lease_seconds / 30)
                continue
            if seconds <= 0 or holder is None or holder.created != self._epoch:
                self._step_down("its lease ended, or its key was removed")
            elif self.leads():
                self._valid_until = sent + seconds * (1 - DRIFT)

    async def _watch(self) -> None:
        # Short sleeps: a sleep does not count the time while the machine is suspended.
        while self.leads():
            await asyncio.sleep(min(0.2, max(0.01, self._valid_until - self._clock())))

    def place(self) -> str:
        return ""

    def leads(self) -> bool:
        if self._epoch and self._clock() >= self._valid_until:
            self._step_down(f"its lease was not renewed in time: {self._reason}")
        return self._epoch > 0

    def _step_down(self, reason: str) -> None:
        self._reason = reason
        self._epoch = 0
        self.lost.set()

    def _check_leads(self) -> int:
        if not self.leads():
            raise NotLeader(
                f"this process does not lead under {self._keys.leader}: {self._reason}",
                allowed="commits of the process that leads",
                fix="start it again: it then waits until it can lead",
            )
        return self._epoch

    async def _transact_as_leader(self, request: Json) -> Outcome:
        is_leader = created_at(self._keys.leader, self._check_leads())
        outcome = await self._client.transact([is_leader], [request])
        if not outcome.succeeded:
            self._step_down("another process took over")
            self._check_leads()
        return outcome

    async def committed(self) -> bytes | None:
        async with self._one_at_a_time:
            for _ in range(COMMIT_ATTEMPTS):
                outcome = await self._transact_as_leader(read(self._keys.state))
                item = outcome.items[0]
                if item is None:
                    return None
                self._changed = item.changed
                state = await _whole(self._client, self._keys, _pointer_in(item.value))
                if state is not None:
                    return state
            raise EtcdRefused(
                f"the state under {self._keys.state} lacks a part or was changed",
                allowed="keys that only fedhp writes",
                fix=f"restore a snapshot of etcd, or delete {self._keys.state} to start over",
            )

    async def commit(self, state: bytes) -> None:
        async with self._one_at_a_time:
            epoch = self._check_leads()
            self._commits += 1
            name = f"{epoch:016x}-{self._commits:08x}"
            packed = await asyncio.to_thread(zlib.compress, state, 1)
            parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
            pointer = _Pointer(name, len(parts), hashlib.sha256(state).hexdigest())
            for _ in range(COMMIT_ATTEMPTS):
                for number, part in enumerate(parts[:-1]):
                    await self._transact_as_leader(put(self._keys.part(name, number), part))
                if await self._point_to(pointer, parts[-1]):
                    return
            raise Unreachable(
                f"the commit under {self._keys.state} was overtaken {COMMIT_ATTEMPTS} times",
                allowed="keys that only fedhp writes",
                fix="the run continues by itself, unless something else writes this key",
            )

    async def _point_to(self, pointer: _Pointer, last: bytes) -> bool:
        """Make this the committed state; False if the pointer changed in between."""
        # The pointer's revision is a condition too: of a request that was sent twice, or comes
        # late, only one can ever be applied, and none after a later commit. And since parts are
        # only deleted where the pointer changes, those written before are still there.
        keys = self._keys
        epoch = self._check_leads()
        own, content = f"{keys.parts}/{pointer.commit}", json.dumps(pointer).encode()
        outcome = await self._client.transact(
            [created_at(keys.leader, epoch), changed_at(keys.state, self._changed)],
            [
                put(keys.state, content),
                put(keys.part(pointer.commit, pointer.parts - 1), last),
                # '0' follows '/': all parts but this commit's, also those of unfinished commits.
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
        if item is not None and item.value == content:
            return True  # the answer was lost, not the commit
        if holder is None or holder.created != epoch:
            self._step_down("another process took over")
            self._check_leads()
        return False  # an earlier leader committed, or one of our own commits came late

    async def close(self) -> None:
        """End the lease, so that the next one leads at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._clock() < self._valid_until:
            with contextlib.suppress(FedhpError):
                await self._client.revoke(self._lease)
        self._epoch, self._valid_until, self._reason = 0, -math.inf, "it was closed"
        await self._client.close()
