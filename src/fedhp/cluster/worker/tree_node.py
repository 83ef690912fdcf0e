"""One participant of a group average: sums go up the tree, the result comes down, by pieces.

Only numbers and queues: peer_server.py and peer_client.py move the bytes, learn/group.py has the
arithmetic. A piece is added as soon as all children have sent it, so that all links of the tree
are busy at once. Nothing takes effect before the whole fragment is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.cluster import failpoints
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import BadModel, GroupStream
from fedhp.cluster.protocol.group_codec import (
    LARGEST_RATIO,
    FragmentCodec,
    Piece,
    PieceReader,
    Values,
)
from fedhp.cluster.protocol.guard import Refused
from fedhp.learn.group import node_sum, plain_mean, plain_sum, root_change
from fedhp.learn.quantize import Row

AHEAD = 32  # pieces that a worker sends before it has the result of the first of them


class NotAvailable(Exception):
    """An honest peer asked for something that is not there yet, or no longer."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        self.text = text
        super().__init__(f"{reason}: {text}")


class AverageLost(Exception):
    """The average does not come: a neighbor in the tree is lost, or is waited for in vain."""

    def __init__(self, lost: dict[int, str], *, late: bool = False) -> None:
        self.lost = lost  # why, by worker
        self.late = late  # they were waited for until the end
        super().__init__(", ".join(f"worker {worker}: {why}" for worker, why in lost.items()))


@dataclass(frozen=True, slots=True)
class NodeRows:
    """What a participant brings, of one fragment: D trained and R plain columns."""

    change: Row  # [D] since the consensus that it holds
    residual: Row  # [D]
    plain: Row  # [R]
    consensus: Row  # [D]
    momentum: Row  # [D]
    root_residual: Row  # [D]


def rate_of(group: wire.GroupWork) -> float:
    """Of the step of the consensus; an older coordinator names none."""
    return group.rate or 1.0


class SizeLimit:
    """How large the values of one stream can be, all together: a norm that grows piece by piece."""

    def __init__(self, *, trained: float, plain: float) -> None:
        self._most = {False: trained, True: plain}  # by whether the columns are plain
        self._squares = {False: 0.0, True: 0.0}

    def add(self, piece: Piece, values: Values) -> None:
        """The next piece, or BadModel: no honest member sends so much."""
        self._squares[piece.plain] += float(np.square(values, dtype=np.float64).sum())
        norm, most = math.sqrt(self._squares[piece.plain]), self._most[piece.plain]
        if norm > most:
            raise BadModel("range", f"the norm of the values is {norm:.3g}, at most {most:.3g}")


class TreeNode:
    """The sums of one attempt at one worker; what it has after `wait` is public."""

    def __init__(
        self, attempt: Attempt, group: wire.GroupWork, codec: FragmentCodec, rows: NodeRows
    ) -> None:
        self.attempt = attempt
        self.codec = codec
        self.closed = False
        self.parent = group.parent.worker if group.HasField("parent") else -1
        self.children = {child.name: child.worker for child in group.children}
        self.readers: dict[int, PieceReader] = {}  # by worker, of the streams that have begun
        self._group = group
        self._rows = rows
        self._limits = self._size_limits()
        self._result_digest, self._whole_digest = hashlib.sha256(), hashlib.sha256()
        self.digest = b""  # of the result, as this worker made or received it
        self.whole_digest = b""  # of what it sent to workers that return; empty: there are none
        count = len(codec.pieces)
        self._arrived: list[dict[int, Values]] = [{} for _ in range(count)]
        self.residual = np.zeros_like(rows.residual)  # [D] what its message left out
        self.root_residual = np.zeros_like(rows.root_residual)  # [D] of the root, likewise
        self.consensus_change = np.zeros_like(rows.change)  # [D] of the consensus
        self.whole = np.zeros_like(rows.change)  # [D] the consensus, of a worker that returns
        self.plain = np.zeros_like(rows.plain)  # [R]
        self._up: asyncio.Queue[bytes] = asyncio.Queue()
        self._sent: list[bytes] = []  # to the parent
        self._down: dict[int, asyncio.Queue[bytes]] = {
            worker: asyncio.Queue() for worker in self.children.values()
        }
        self._received = 0  # pieces of the result
        self._progress = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())

    def begin(self) -> None:
        """A worker that is alone in its group has the result at once."""
        if not self.codec.pieces:
            self._finish()
        if not self.children and self.parent < 0:
            for number in range(len(self.codec.pieces)):
                self._sum(number)

    # --- the result ------------------------------------------------------------------------

    async def wait(self, *, until: float) -> None:
        """Wait for the average, until a moment of the event loop's clock; or AverageLost."""
        try:
            async with asyncio.timeout_at(until):
                await asyncio.shield(self._done)
        except TimeoutError:
            raise AverageLost(self._waited_for(), late=True) from None

    async def ended(self) -> None:
        """Wait until the average is there, or lost."""
        await asyncio.wait({self._done})

    def lose(self, worker: int, why: str) -> None:
        """A neighbor is lost: its part never comes."""
        if not self._done.done():
            self._done.set_exception(AverageLost({worker: why}))

    def run(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a job until `close`; the streams outlive an attempt that failed, so that no
        neighbor takes this worker for the one that is lost."""
        task = asyncio.ensure_future(job)
        self.keep(task)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Cancel this task with `close`, unless it ends before."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        for task in list(self._tasks):
            task.cancel()
        self._done.cancel()

    def _waited_for(self) -> dict[int, str]:
        """The neighbors that did not send what was due: children first, then the parent."""
        late = {
            worker: "deadline"
            for worker in self.children.values()
            if worker not in self.readers or not self.readers[worker].complete
        }
        return late or ({self.parent: "deadline"} if self.parent >= 0 else {})

    # --- pieces in -------------------------------------------------------------------------

    def reader(self, worker: int) -> PieceReader:
        """For the stream of a child, or of the parent; one per attempt: a sum that was broken off
        is not begun again."""
        if worker in self.readers:
            raise NotAvailable(
                "attempt", f"worker {worker} has sent a stream in this attempt already"
            )
        kind: GroupStream = "sum"
        if worker == self.parent:
            kind = "whole" if self._group.returning else "change"
        self.readers[worker] = PieceReader(self.codec, kind)
        return self.readers[worker]

    def take(self, worker: int, chunk: wire.Chunk) -> None:
        """The next piece from a neighbor."""
        number, values = self.readers[worker].push(chunk)
        self._limits[worker].add(self.codec.pieces[number], values)
        if worker == self.parent:
            self._take_result(number, values, chunk.data)
            return
        self._arrived[number][worker] = values
        if len(self._arrived[number]) == len(self.children):
            self._sum(number)

    # --- pieces out ------------------------------------------------------------------------

    async def pieces_up(self) -> AsyncIterator[bytes]:
        """What the parent gets; from the first piece on, if it is asked for again. A worker is
        never far ahead of the result: else the sums of those with fast links would stand in the
        way of the result on links that both share."""
        for number in range(len(self.codec.pieces)):
            while number - self._received >= AHEAD:
                self._progress.clear()
                await self._progress.wait()
            if number == len(self._sent):
                if not self.children:  # all sums are the worker's own
                    self._sum(number)
                self._sent.append(await self._up.get())
            yield self._sent[number]

    async def pieces_down(self, worker: int) -> AsyncIterator[bytes]:
        """What a child gets."""
        for _ in self.codec.pieces:
            yield await self._down[worker].get()

    def kind_for(self, worker: int) -> GroupStream:
        """What a child gets."""
        return "whole" if worker in self._group.returning_children else "change"

    # --- inside ----------------------------------------------------------------------------

    def _size_limits(self) -> dict[int, SizeLimit]:
        """What each neighbor can send at most, by worker. A child: as much as the members below
        it together. The parent: the step that the root makes of such a mean. The consensus of one
        that returns has no limit: it may have been away for long."""
        group, factor = self._group, self._group.momentum
        plain = LARGEST_RATIO * max(1.0, _norm(self._rows.plain))
        limits = {
            child.worker: SizeLimit(trained=most or math.inf, plain=group.members * plain)
            for child, most in zip(group.children, group.largest_sums, strict=True)
        }
        mean = group.largest_mean or math.inf
        # What a momentum comes to where every mean was so large.
        steady = mean / (1.0 - factor) if factor < 1.0 else math.inf
        step = (1.0 + factor) * mean + factor**2 * max(steady, _norm(self._rows.momentum))
        trained = math.inf if group.returning else rate_of(group) * step
        return {**limits, self.parent: SizeLimit(trained=trained, plain=plain)}

    def _sum(self, number: int) -> None:
        """Own values, then the children's by rising worker; then up, or back down."""
        piece, arrived = self.codec.pieces[number], self._arrived[number]
        parts = [arrived[worker] for worker in sorted(arrived)]
        self._arrived[number] = {}
        try:
            if piece.plain:
                self._sum_plain(number, piece, parts)
            else:
                self._sum_trained(number, piece, parts)
        except BadModel as error:  # of finite values: no child is to blame
            if not self._done.done():
                self._done.set_exception(error)

    def _sum_trained(self, number: int, piece: Piece, parts: list[Row]) -> None:
        rows, columns = self._rows, piece.columns
        total = node_sum(rows.change[columns], rows.residual[columns], parts)
        if self.parent >= 0:
            data = self.codec.encode("sum", piece, total)
            self.residual[columns] = total - self.codec.decode("sum", piece, data)
            self._up.put_nowait(data)
            return
        step = root_change(
            total,
            members=self._group.members,
            momentum=rows.momentum[columns],
            root_residual=rows.root_residual[columns],
            factor=self._group.momentum,
            rate=rate_of(self._group),
        )
        data = self.codec.encode("change", piece, step)
        change = self.codec.decode("change", piece, data)
        self.root_residual[columns] = step - change
        self._take_result(number, change, data)

    def _sum_plain(self, number: int, piece: Piece, parts: list[Values]) -> None:
        total = plain_sum(self._rows.plain[piece.columns], parts)
        if self.parent >= 0:
            self._up.put_nowait(self.codec.encode("sum", piece, total))
            return
        mean = plain_mean(total, members=self._group.members)
        self._take_result(number, mean, self.codec.encode("change", piece, mean))

    def _take_result(self, number: int, values: Values, data: bytes) -> None:
        """A piece of the result: keep it, and pass it on."""
        piece = self.codec.pieces[number]
        columns = piece.columns
        if piece.plain:
            self.plain[columns] = values
        elif self._group.returning:
            self.whole[columns] = values
        else:
            self.consensus_change[columns] = values
        self._result_digest.update(data)
        whole = data
        if self._group.returning_children and not piece.plain:
            whole = self.codec.encode("whole", piece, self._rows.consensus[columns] + values)
        self._whole_digest.update(whole)
        for worker, queue in self._down.items():
            queue.put_nowait(data if self.kind_for(worker) == "change" else whole)
        self._received += 1
        self._progress.set()
        if self._received == len(self.codec.pieces):
            self._finish()
        failpoints.reach("worker.broadcasting", self.attempt.round_index)

    def _finish(self) -> None:
        self.digest = self._result_digest.digest()
        if self._group.returning_children:
            self.whole_digest = self._whole_digest.digest()
        if not self._done.done():
            self._done.set_result(None)


def _norm(values: Row) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


class OpenAverage:
    """The node of the current attempt; children may ask for it before this worker has its order."""

    def __init__(self) -> None:
        self.attempt = INITIAL
        self._node: TreeNode | None = None
        self._changed = asyncio.Condition()

    async def open(self, attempt: Attempt, node: TreeNode | None) -> None:
        """Begin an attempt, with its node if this worker is a participant."""
        async with self._changed:
            if self._node is not None:
                self._node.close()
            self.attempt, self._node = attempt, node
            self._changed.notify_all()

    async def take(self, attempt: Attempt, *, child: str, patience: float) -> TreeNode:
        """The node of an attempt, for one of its children."""
        try:
            async with asyncio.timeout(patience), self._changed:
                while attempt > self.attempt:
                    await self._changed.wait()
        except TimeoutError:
            raise NotAvailable("patience", "this worker has not begun that attempt") from None
        if attempt < self.attempt or self._node is None:
            raise NotAvailable("attempt", "this worker is at a later attempt, or takes no part")
        if child not in self._node.children:
            raise Refused("role", "it is not below this worker in the tree")
        return self._node
