"""Both sides of a model transfer: what to send to a reader, how to read what a peer sends.

Topk has error feedback: the sender knows what every reader has reconstructed and sends it the
largest differences; what was left out stays in the difference and is sent later.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import numpy as np

from fedhp.cluster.protocol.codec import ENCODING_OF, Encoded, ModelCodec, ModelReceiver
from fedhp.cluster.protocol.compression import row_digest
from fedhp.learn.quantize import Row
from fedhp.learn.topk import Delta, add_delta, is_kept, largest_changes, topk_count

V = TypeVar("V")


class OutgoingModel:
    """The model a worker serves: encoded once for all readers or, with topk, for each reader."""

    def __init__(
        self, codec: ModelCodec, *, compression: str = "none", share: float = 0.1, readers: int = 32
    ) -> None:
        self.codec = codec
        self.encoding = ENCODING_OF[compression]
        self._copies = ReaderCopies(topk_count(share, codec.width), readers=readers)
        self._offered: tuple[Row, Encoded] | None = None  # both change at once, for threads

    def begin_round(self, round_index: int) -> None:
        """Forget what readers have that were not served for some rounds."""
        self._copies.begin_round(round_index)

    def offer(self, row: Row) -> None:
        """Serve this row from now on; it must not change while it is served."""
        whole = "raw" if self.encoding == "topk" else self.encoding
        self._offered = row, self.codec.encode(row, whole)

    def take(self, reader: str, base: bytes = b"") -> Encoded:
        """What to send to a reader; base: the digest of its copy, from its request."""
        if self._offered is None:
            raise LookupError("no model is offered yet")
        row, encoded = self._offered
        if self.encoding != "topk":
            return encoded
        delta = self._copies.next_delta(reader, row, base=base)
        return encoded if delta is None else self.codec.encode_delta(delta)

    def forget(self, reader: str) -> None:
        """Free what topk remembers of a reader."""
        self._copies.forget(reader)


class IncomingModels:
    """The models a worker pulls: a receiver for each stream and, with topk, a copy per peer."""

    def __init__(self, codec: ModelCodec, *, compression: str = "none", peers: int = 32) -> None:
        self.codec = codec
        self.encoding = ENCODING_OF[compression]
        self._copies = PeerCopies(peers=peers)

    def begin_round(self, round_index: int) -> None:
        """Forget the copies of peers that were not read for some rounds."""
        self._copies.begin_round(round_index)

    def begin(self, peer: str) -> tuple[bytes, ModelReceiver]:
        """For one pull: the base to name in the request, and the receiver of the answer."""
        known, base = self._copies.get(peer)  # one copy for both, whatever arrives meanwhile
        return base, self.codec.receiver(sorted({"raw", self.encoding}), known=known)

    def finish(self, peer: str, receiver: ModelReceiver) -> Row:
        """The peer's model, once its stream has ended; remembered for the next delta."""
        row = receiver.finish()
        if self.encoding == "topk":
            self._copies.keep(peer, row)
        return row

    def forget(self, peer: str) -> None:
        """Free the copy of a peer's model."""
        self._copies.forget(peer)


class _RecentlyUsed(OrderedDict[str, V]):
    """Keeps the values that were put in last, at most `limit` of them, for COPY_ROUNDS rounds."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._round = 0
        self._put_in: dict[str, int] = {}  # the round of each

    def begin_round(self, round_index: int) -> None:
        self._round = round_index
        for key in [key for key in self if not is_kept(self._put_in[key], round_index)]:
            del self[key]
        self._put_in = {key: self._put_in[key] for key in self}

    def put(self, key: str, value: V) -> None:
        self[key] = value
        self._put_in[key] = self._round
        self.move_to_end(key)
        while len(self) > self._limit:
            self.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _ReaderCopy:
    row: Row  # owned by this entry
    digest: bytes
    delta: Delta | None = None  # sent last, not yet confirmed
    after: bytes = b""  # digest of the row with the delta


class ReaderCopies:
    """The sender's side of topk: what each reader has, as far as the reader has confirmed it.

    Two states are kept for a reader: the one it last named, and that state with the last
    delta. It names one of them in its next request, so a transfer that failed is noticed.
    """

    def __init__(self, count: int, *, readers: int) -> None:
        """count: values in a delta, 0 for none; another reader than the last ones starts over."""
        self.count = count
        self._copies: _RecentlyUsed[_ReaderCopy] = _RecentlyUsed(readers)
        self._lock = Lock()

    def begin_round(self, round_index: int) -> None:
        """Drop the copies that were not used for some rounds."""
        with self._lock:
            self._copies.begin_round(round_index)

    def next_delta(self, reader: str, row: Row, *, base: bytes) -> Delta | None:
        """What to send to a reader whose copy has the digest `base`; None: the whole row."""
        with self._lock:
            known = self._known(reader, base) if self.count else None
            if known is None:
                self._copies.put(reader, _ReaderCopy(row.copy(), row_digest(row)))
                return None
            with np.errstate(over="ignore"):
                delta = largest_changes(row - known, self.count)
            after = row_digest(add_delta(known, delta))
            self._copies.put(reader, _ReaderCopy(known, base, delta, after))
            return delta

    def forget(self, reader: str) -> None:
        """Free what is remembered of a reader."""
        with self._lock:
            self._copies.pop(reader, None)

    def _known(self, reader: str, base: bytes) -> Row | None:
        """The reader's copy, if it is one of the two states that are known."""
        copy = self._copies.get(reader)
        if copy is None or not base:
            return None
        if base == copy.digest:
            return copy.row
        if copy.delta is not None and base == copy.after:
            copy.row[copy.delta.indices] += copy.delta.values
            # Stored at once: the delta must not be added twice if what follows fails.
            self._copies[reader] = _ReaderCopy(copy.row, base)
            return copy.row
        return None


class PeerCopies:
    """The reader's side of topk: its copy of each peer's model, and the copies' digests."""

    def __init__(self, *, peers: int) -> None:
        self._copies: _RecentlyUsed[tuple[Row, bytes]] = _RecentlyUsed(peers)
        self._lock = Lock()

    def begin_round(self, round_index: int) -> None:
        """Drop the copies that were not used for some rounds."""
        with self._lock:
            self._copies.begin_round(round_index)

    def get(self, peer: str) -> tuple[Row | None, bytes]:
        """The copy of this peer's model, never written to, and its digest; or None and b""."""
        with self._lock:
            return self._copies.get(peer, (None, b""))

    def keep(self, peer: str, row: Row) -> None:
        """Remember a copy of this peer's model as it was reconstructed."""
        copy = row.copy(), row_digest(row)
        with self._lock:
            self._copies.put(peer, copy)

    def forget(self, peer: str) -> None:
        """Free the copy of a peer's model."""
        with self._lock:
            self._copies.pop(peer, None)
