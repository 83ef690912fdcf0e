"""A fragment of a group average as a stream of pieces, and back.

Both ends know from their orders how many pieces there are and how many bytes each has: anything
else is refused at once, and nothing is allocated that was not expected. No piece cuts a block of
int8, so a node can add and code every piece as soon as it has it from all its children.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.codec import GroupStream, check_int8, finite, refuse
from fedhp.exchange.group import CHUNKS
from fedhp.learn.quantize import all_finite, from_int8_blocks, to_int8_blocks
from fedhp.timing import INT8_BLOCK, int8_bytes

if TYPE_CHECKING:
    from fedhp.learn.group_state import Columns

# What one member brings at most, in multiples of what the member in the middle does. In honest runs
# with unequal devices, skewed data and workers that return, it was at most 3.6.
LARGEST_RATIO = 10.0
LEAST_BLOCKS = 4  # of int8 in a piece: smaller messages would be mostly headers
_MOST_VALUES = limits.MODEL_CHUNK_BYTES // 8  # in a piece: a plain sum has 8 bytes per value

Values: TypeAlias = NDArray[Any]  # float32; float64 for a plain sum


@dataclass(frozen=True, slots=True)
class Piece:
    """Some columns of a fragment, of its trained or of its plain ones."""

    start: int
    stop: int
    plain: bool

    @property
    def columns(self) -> slice:
        """Counted from the first trained, or the first plain, column of the fragment."""
        return slice(self.start, self.stop)

    @property
    def count(self) -> int:
        """Values."""
        return self.stop - self.start


class FragmentCodec:
    """Cuts a fragment into pieces, and codes them."""

    def __init__(self, columns: Columns, compression: str) -> None:
        if compression not in ("int8", "none"):
            raise ValueError(f"group averages have no compression {compression!r}")
        self.columns = columns
        self.compression = compression
        trained, plain = columns.middle - columns.start, columns.stop - columns.middle
        blocks = max(LEAST_BLOCKS, -(-trained // (CHUNKS * INT8_BLOCK)))
        step = min(blocks * INT8_BLOCK, _MOST_VALUES // INT8_BLOCK * INT8_BLOCK)
        self.pieces = (
            *(Piece(at, min(at + step, trained), False) for at in range(0, trained, step)),
            *(
                Piece(at, min(at + _MOST_VALUES, plain), True)
                for at in range(0, plain, _MOST_VALUES)
            ),
        )

    def size(self, kind: GroupStream, piece: Piece) -> int:
        """Bytes of a piece."""
        if piece.plain:
            return piece.count * (8 if kind == "sum" else 4)
        if self.compression == "none":
            return piece.count * 4
        return int8_bytes(piece.count)

    def total(self, kind: GroupStream) -> int:
        """Bytes of a whole stream."""
        return sum(self.size(kind, piece) for piece in self.pieces)

    def encode(self, kind: GroupStream, piece: Piece, values: Values) -> bytes:
        """The bytes of a piece."""
        if not all_finite(values):
            refuse("nan", "a sum has values that are not finite; it cannot be sent")
        if piece.plain:
            return values.astype("<f8" if kind == "sum" else "<f4").tobytes()
        if self.compression == "none":
            return values.astype("<f4").tobytes()
        codes, scales = to_int8_blocks(values)
        return scales.tobytes() + codes.tobytes()

    def decode(self, kind: GroupStream, piece: Piece, data: bytes) -> Values:
        """The values of a piece, or BadModel."""
        if len(data) != self.size(kind, piece):
            expected = self.size(kind, piece)
            refuse("size", f"a piece has {len(data)} bytes; expected: {expected}")
        if piece.plain or self.compression == "none":
            dtype = "<f8" if piece.plain and kind == "sum" else "<f4"
            return finite(np.frombuffer(data, dtype=dtype))
        split = 4 * -(-piece.count // INT8_BLOCK)
        scales, codes = np.frombuffer(data[:split], "<f4"), np.frombuffer(data[split:], np.int8)
        check_int8(codes, scales)
        return finite(from_int8_blocks(codes, scales))


class PieceReader:
    """Takes one stream, piece by piece; raises BadModel as soon as something is wrong."""

    def __init__(self, codec: FragmentCodec, kind: GroupStream) -> None:
        self._codec = codec
        self._kind = kind
        self._digest = hashlib.sha256()
        self.taken = 0  # pieces
        self.bytes = 0
        self.timing = LinkTiming()

    @property
    def complete(self) -> bool:
        """Whether all pieces came, and the digest was that of the data."""
        return self.taken == len(self._codec.pieces)

    def push(self, chunk: wire.Chunk) -> tuple[int, Values]:
        """The number of the next piece, and its values."""
        arrived = time.monotonic()
        if self.complete:
            refuse("size", "there is data after the last piece")
        if not self.taken:
            total = self._codec.total(self._kind)
            if chunk.encoding != self._kind:
                refuse("encoding", f"the stream is {chunk.encoding[:20]!r}; expected: {self._kind}")
            if chunk.total != total:
                refuse("size", f"{chunk.total} bytes are announced; expected: {total}")
        elif chunk.total or chunk.encoding:
            refuse("header", "a later piece announces size or encoding again")
        number = self.taken
        if not 0 <= chunk.ready <= limits.FOREVER:
            refuse("range", "the time at which a piece was ready is negative or not finite")
        values = self._codec.decode(self._kind, self._codec.pieces[number], chunk.data)
        self._digest.update(chunk.data)
        last = number + 1 == len(self._codec.pieces)
        if chunk.digest != (self._digest.digest() if last else b""):
            refuse("digest", "the digest is not that of the data, or not in the last piece")
        self.taken += 1
        self.bytes += len(chunk.data)
        self.timing.add(len(chunk.data), arrived=arrived, ready=chunk.ready)
        return number, values


class PieceWriter:
    """Makes the chunks of one stream, in the order of the pieces."""

    def __init__(self, codec: FragmentCodec, kind: GroupStream, envelope: wire.Envelope) -> None:
        self._codec = codec
        self._kind = kind
        self._envelope = envelope
        self._digest = hashlib.sha256()
        self._sent = 0
        self._started = time.monotonic()

    def chunk(self, data: bytes, *, ticket: bytes = b"") -> wire.Chunk:
        """The next piece; the ticket goes with the first one."""
        self._digest.update(data)
        chunk = wire.Chunk(data=data)
        if not self._sent:
            self._started = time.monotonic()
            chunk.envelope.CopyFrom(self._envelope)
            chunk.total, chunk.encoding = self._codec.total(self._kind), self._kind
            chunk.ticket = ticket
        chunk.ready = time.monotonic() - self._started
        self._sent += 1
        if self._sent == len(self._codec.pieces):
            chunk.digest = self._digest.digest()
        return chunk


class LinkTiming:
    """How fast a link is, from when pieces were ready and when they came.

    The pieces of a tree keep the pace of its slowest link. A link shows its own speed only while
    pieces wait for it: they come later after they were ready than the quickest one.
    """

    WAITED = 0.005  # s; less may be the delay of a busy machine

    def __init__(self) -> None:
        self._pieces: list[tuple[int, float, float]] = []  # bytes, arrived, ready

    @property
    def started(self) -> float:
        """When the first piece came; 0: none did."""
        return self._pieces[0][1] if self._pieces else 0.0

    @property
    def seconds(self) -> float:
        """From the first piece to the last."""
        return self._pieces[-1][1] - self._pieces[0][1] if self._pieces else 0.0

    def add(self, size: int, *, arrived: float, ready: float) -> None:
        """A piece came."""
        self._pieces.append((size, arrived, ready))

    def busy(self) -> tuple[int, float]:
        """Bytes that came while others waited behind them, and the seconds that this took."""
        if not self._pieces:
            return 0, 0.0
        quickest = min(arrived - ready for _, arrived, ready in self._pieces)
        total, seconds, before = 0, 0.0, self._pieces[0][1]
        for size, arrived, ready in self._pieces[1:]:
            if arrived - ready - quickest > self.WAITED:
                total += size
                seconds += arrived - before
            before = arrived
        return total, seconds
