"""Models in fewer bytes: half precision, 8-bit integers, and only what changed most (topk).

Topk has error feedback: the sender knows what every reader has reconstructed and sends the
largest differences to it; what was left out stays in the difference and is sent later.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedhp.cluster.protocol.codec import Encoded, ModelCodec, Receiver

Row = NDArray[np.float32]

OF_COMPRESSION = {"none": "raw", "fp16": "fp16", "int8": "int8", "topk": "topk"}

LEVELS = 127  # of int8 on either side of zero
LARGEST = float(np.finfo(np.float32).max)
LARGEST_HALF = float(np.finfo(np.float16).max)
_BLOCK = 1 << 18  # values worked on at a time: temporary arrays stay small and near the core


@dataclass(frozen=True, slots=True)
class Delta:
    """What is added to a reader's copy of a model: values [k] at strictly rising indices [k]."""

    indices: NDArray[np.uint32]
    values: Row


def digest_of(row: Row) -> bytes:
    """The name of a model: SHA-256 of its values."""
    return hashlib.sha256(np.ascontiguousarray(row, dtype="<f4").data).digest()


def all_finite(values: NDArray[Any]) -> bool:
    """Whether no value is NaN or infinite."""
    return all(bool(np.isfinite(values[block]).all()) for block in _blocks(len(values)))


def to_half(row: Row) -> NDArray[np.float16]:
    """Half precision; what is beyond its range becomes its largest number, never infinite."""
    half = np.empty(len(row), dtype="<f2")
    for block in _blocks(len(row)):
        half[block] = np.clip(row[block], -LARGEST_HALF, LARGEST_HALF)
    return half


def to_int8(row: Row, ends: Sequence[int]) -> tuple[NDArray[np.int8], Row]:
    """Codes [D] and the scale of each tensor; `ends` are where the tensors end in the row."""
    codes = np.zeros(len(row), dtype=np.int8)
    scales = np.zeros(len(ends), dtype="<f4")
    start = 0
    for index, end in enumerate(ends):
        tensor, target = row[start:end], codes[start:end]
        scale = scales[index] = _scale(tensor)
        start = end
        if not scale:  # all zero, or so small that its scale is
            continue
        for block in _blocks(len(tensor)):
            np.clip(
                np.rint(tensor[block] / np.float64(scale)),
                -LEVELS,
                LEVELS,
                out=target[block],
                casting="unsafe",
            )
    return codes, scales


def from_int8(codes: NDArray[np.int8], scales: Row, ends: Sequence[int]) -> Row:
    """The row of these codes; a scale that is too large gives infinite values."""
    row = np.empty(len(codes), dtype=np.float32)
    start = 0
    with np.errstate(over="ignore"):
        for scale, end in zip(scales, ends, strict=True):
            np.multiply(codes[start:end], scale, out=row[start:end])
            start = end
    return row


def count_of(share: float, width: int) -> int:
    """How many values topk sends of a row; 0 where sending all of them costs no more."""
    count = math.ceil(share * width)
    return count if count <= most_values(width) else 0


def most_values(width: int) -> int:
    """Of a delta: an index costs as much as a value, so above half of them raw is shorter."""
    return width // 2


def largest(difference: Row, count: int) -> Delta:
    """The `count` largest values by magnitude (fewer where others are zero), by rising index."""
    count = min(count, len(difference))
    if not count:
        return Delta(np.empty(0, dtype="<u4"), np.empty(0, dtype="<f4"))
    magnitude = np.abs(difference)
    magnitude.partition(len(magnitude) - count)
    least = magnitude[len(magnitude) - count]
    np.abs(difference, out=magnitude)
    chosen = np.flatnonzero(magnitude > least)
    if least > 0:
        ties = np.flatnonzero(magnitude == least)[: count - len(chosen)]
        chosen = np.union1d(chosen, ties)
    # A difference of two huge values may be infinite: what is missing is sent next time.
    values = np.clip(difference[chosen], -LARGEST, LARGEST)
    return Delta(chosen.astype("<u4"), values.astype("<f4", copy=False))


def added(row: Row, delta: Delta) -> Row:
    """A copy of the row with the delta added; the same bits on every machine."""
    result = row.copy()
    with np.errstate(over="ignore"):
        result[delta.indices] += delta.values
    return result


class Outgoing:
    """What a worker serves: one model, encoded once for all readers or, with topk, for each."""

    def __init__(
        self, codec: ModelCodec, *, compression: str = "none", share: float = 0.1, readers: int = 32
    ) -> None:
        self.codec = codec
        self.encoding = OF_COMPRESSION[compression]
        self._sent = Sent(count_of(share, codec.width), readers=readers)
        self._offered: tuple[Row, Encoded] | None = None  # both change at once, for threads

    def offer(self, row: Row) -> None:
        """Serve this row from now on; it must not change while it is served."""
        whole = "raw" if self.encoding == "topk" else self.encoding
        self._offered = row, self.codec.encode(row, whole)

    def take(self, reader: str, base: bytes = b"") -> Encoded:
        """What to send to a reader; base: its copy's digest, from its request."""
        if self._offered is None:
            raise LookupError("no model is offered yet")
        row, encoded = self._offered
        if self.encoding != "topk":
            return encoded
        delta = self._sent.next(reader, row, base=base)
        return encoded if delta is None else self.codec.encode_delta(delta)

    def forget(self, reader: str) -> None:
        """Free what topk remembers of a reader."""
        self._sent.forget(reader)


class Incoming:
    """What a worker pulls: a receiver for each stream and, with topk, a copy of every peer."""

    def __init__(self, codec: ModelCodec, *, compression: str = "none", peers: int = 32) -> None:
        self.codec = codec
        self.encoding = OF_COMPRESSION[compression]
        self._copies = Copies(peers=peers)

    def begin(self, peer: str) -> tuple[bytes, Receiver]:
        """For one pull: what to name as base in the request, and the receiver of its answer."""
        known, base = self._copies.get(peer)  # one copy for both, whatever else arrives meanwhile
        return base, self.codec.receiver(sorted({"raw", self.encoding}), known=known)

    def finish(self, peer: str, receiver: Receiver) -> Row:
        """The peer's model, once its stream has ended; remembered for the next delta."""
        row = receiver.finish()
        if self.encoding == "topk":
            self._copies.keep(peer, row)
        return row

    def forget(self, peer: str) -> None:
        """Free the copy of a peer's model."""
        self._copies.forget(peer)


class Sent:
    """The sender's side of topk: what each reader has, as far as the reader itself has said.

    Two states are kept for a reader: the one it last named, and that state with the last
    delta. It names one of them in its next request, so a transfer that failed is noticed.
    """

    def __init__(self, count: int, *, readers: int) -> None:
        self.count = count
        self.readers = readers  # remembered at once; another one begins with a whole model
        self._states: OrderedDict[str, _State] = OrderedDict()
        self._lock = Lock()

    def next(self, reader: str, row: Row, *, base: bytes) -> Delta | None:
        """What to send to a reader whose copy has the digest `base`; None: the whole row."""
        with self._lock:
            known = self._known(reader, base) if self.count else None
            if known is not None:
                with np.errstate(over="ignore"):
                    delta = largest(row - known, self.count)
                after = digest_of(added(known, delta))
                self._remember(reader, _State(known, base, delta, after))
                return delta
            self._remember(reader, _State(row.copy(), digest_of(row)))
            return None

    def forget(self, reader: str) -> None:
        """Free what is remembered of a reader."""
        with self._lock:
            self._states.pop(reader, None)

    def _known(self, reader: str, base: bytes) -> Row | None:
        """The reader's copy, if it is one of the two states that are known."""
        state = self._states.get(reader)
        if state is None or not base:
            return None
        if base == state.digest:
            return state.row
        if state.delta is not None and base == state.after:
            state.row[state.delta.indices] += state.delta.values
            self._states[reader] = _State(state.row, base)  # never added twice, even if we fail
            return state.row
        return None

    def _remember(self, reader: str, state: _State) -> None:
        self._states[reader] = state
        self._states.move_to_end(reader)
        while len(self._states) > self.readers:
            self._states.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _State:
    row: Row  # a copy of its own
    digest: bytes
    delta: Delta | None = None  # sent last, to be confirmed
    after: bytes = b""  # digest of the row with the delta


class Copies:
    """The reader's side of topk: its copy of each peer's model, and the copies' digests."""

    def __init__(self, *, peers: int) -> None:
        self.peers = peers  # copies kept at once
        self._copies: OrderedDict[str, tuple[Row, bytes]] = OrderedDict()
        self._lock = Lock()

    def get(self, peer: str) -> tuple[Row | None, bytes]:
        """The copy of this peer's model, never written to, and its digest; None and empty."""
        with self._lock:
            return self._copies.get(peer, (None, b""))

    def keep(self, peer: str, row: Row) -> None:
        """Remember a copy of what was reconstructed of this peer's model."""
        copy = row.copy(), digest_of(row)
        with self._lock:
            self._copies[peer] = copy
            self._copies.move_to_end(peer)
            while len(self._copies) > self.peers:
                self._copies.popitem(last=False)

    def forget(self, peer: str) -> None:
        """Free the copy of a peer's model."""
        with self._lock:
            self._copies.pop(peer, None)


def _scale(tensor: Row) -> np.float32:
    top = max((float(np.abs(tensor[block]).max()) for block in _blocks(len(tensor))), default=0.0)
    scale = np.float32(top / LEVELS)
    # Rounded up, the largest code could stand for more than float32 can hold.
    if float(scale) * LEVELS > LARGEST:
        scale = np.nextafter(scale, np.float32(0))
    return scale


def _blocks(length: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, length, _BLOCK))
