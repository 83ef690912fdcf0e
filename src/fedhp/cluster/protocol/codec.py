"""A model row as a stream of chunks, and back: the data is one safetensors file.

Parsed by hand, and only here, because it comes from the network in pieces: the receiver knows the
layout, so it refuses any other tensor before it allocates memory. It never holds more than one
chunk, the expected tensors and the model; for raw these two are the same memory.

Topk has error feedback: the sender knows what every reader has reconstructed and sends it the
largest differences; what was left out stays in the difference and is sent later.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.errors import FedhpError
from fedhp.learn.quantize import INT8_LEVELS, Row, all_finite, from_int8, to_half, to_int8
from fedhp.learn.topk import (
    Delta,
    add_delta,
    is_kept,
    largest_changes,
    largest_delta,
    topk_count,
)

if TYPE_CHECKING:
    from fedhp.learn.params import Layout

V = TypeVar("V")
# How models are sent, by the name of the compression in the settings.
ENCODING_OF = {"none": "raw", "fp16": "fp16", "int8": "int8", "topk": "topk"}
ENCODINGS = tuple(ENCODING_OF.values())
# What the streams of a group average have. Up the tree: sums. Down: the change of the consensus,
# or for a worker that returns the whole consensus.
GroupStream: TypeAlias = Literal["sum", "change", "whole"]
GROUP_STREAMS: tuple[GroupStream, ...] = ("sum", "change", "whole")

_LENGTH_BYTES = 8  # of the header's length, before the header
_SPARE_HEADER_BYTES = 1024  # that a header may have beyond ours, for blanks and metadata
# torch has no parameter whose name begins with a dot, so these are never a model's own.
_SCALES, _INDICES, _VALUES = ".scales", ".indices", ".values"
_ITEM_BYTES = {"F32": 4, "U32": 4, "F16": 2, "I8": 1}


class BadModel(ValueError):
    """A stream that is not the expected model; `reason` is one stable word."""

    def __init__(self, reason: str, sentence: str) -> None:
        self.reason, self.text = reason, sentence
        super().__init__(sentence)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A model ready to be sent; raw parts are views of the row, which must not change meanwhile."""

    encoding: str
    parts: tuple[bytes | memoryview, ...]
    total: int  # bytes of all parts
    digest: bytes  # SHA-256 of all parts

    @classmethod
    def of(cls, encoding: str, parts: Sequence[bytes | memoryview]) -> Encoded:
        """These parts, one after the other."""
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return cls(encoding, tuple(parts), sum(map(len, parts)), digest.digest())

    def chunks(self, envelope: wire.Envelope, size: int = 0) -> Iterator[wire.Chunk]:
        """The stream: the first chunk announces size and encoding, the last one has the digest.
        size: bytes of a chunk, if less than can be."""
        left, first = self.total, True
        for data in _pieces(self.parts, size or limits.MODEL_CHUNK_BYTES):
            left -= len(data)
            chunk = wire.Chunk(data=data)
            if first:
                chunk.envelope.CopyFrom(envelope)
                chunk.total, chunk.encoding = self.total, self.encoding
                first = False
            if not left:
                chunk.digest = self.digest
            yield chunk


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file, and where our own files have it."""

    name: str
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    start: int
    stop: int


class ModelCodec:
    """Encodes the columns of a layout's rows that travel, and decodes them."""

    def __init__(self, layout: Layout) -> None:
        self.width = layout.mixed
        self._slots = layout.sent_slots
        self.ends = layout.mixed_ends
        # They are the same for every model, and each round has many.
        self.frame = lru_cache(maxsize=16)(self._frame)
        # The most that is accepted: values of a delta, bytes of a header and of a file.
        self.max_count = dict.fromkeys(ENCODINGS, 0) | {"topk": largest_delta(self.width)}
        self.max_header = {
            encoding: len(self.frame(encoding, count)[0]) + _SPARE_HEADER_BYTES
            for encoding, count in self.max_count.items()
        }
        self.max_file = {
            encoding: _LENGTH_BYTES + self.max_header[encoding] + self.frame(encoding, count)[1]
            for encoding, count in self.max_count.items()
        }
        if (size := self.max_file[ENCODING_OF["none"]]) > limits.MODEL_BYTES:
            raise FedhpError(
                f"a model of {self.width} values is too large to be sent: {size} bytes",
                allowed=f"at most {limits.MODEL_BYTES} bytes",
                fix="use a smaller model (model.width)",
            )

    def encode(self, row: Row, encoding: str = "raw") -> Encoded:
        """Encode a contiguous float32 row [width] as raw, fp16 or int8."""
        if row.dtype != np.float32 or row.shape != (self.width,) or not row.flags.c_contiguous:
            raise ValueError(
                f"a row of {self.width} float32 is needed, not {row.dtype} {row.shape}"
            )
        if not all_finite(row):
            raise BadModel("nan", "the model has values that are not finite; it cannot be sent")
        if encoding == "raw":
            return self._encoded(encoding, [row])
        if encoding == "fp16":
            return self._encoded(encoding, [to_half(row)])
        if encoding == "int8":
            codes, scales = to_int8(row, self.ends)
            return self._encoded(encoding, [scales, codes])
        raise ValueError(f"a row cannot be encoded as {encoding!r}")

    def encode_delta(self, delta: Delta) -> Encoded:
        """Encode what topk adds to the copy of a reader."""
        return self._encoded("topk", [delta.indices, delta.values], count=len(delta.indices))

    def entries(self, encoding: str, count: int) -> Iterator[TensorEntry]:
        """The tensors of a file in our order; count: values of a delta."""
        tensors: list[tuple[str, str, tuple[int, ...]]]
        if encoding == "topk":
            tensors = [(_INDICES, "U32", (count,)), (_VALUES, "F32", (count,))]
        else:
            dtype = {"raw": "F32", "fp16": "F16", "int8": "I8"}[encoding]
            tensors = [(slot.name, dtype, slot.shape) for slot in self._slots]
            if encoding == "int8":
                tensors.insert(0, (_SCALES, "F32", (len(self._slots),)))
        start = 0
        for name, dtype, shape in tensors:
            stop = start + _ITEM_BYTES[dtype] * prod(shape)
            yield TensorEntry(name, dtype, shape, start, stop)
            start = stop

    def _frame(self, encoding: str, count: int) -> tuple[bytes, int]:
        """The header of our own files, and how many bytes their tensors have."""
        entries = list(self.entries(encoding, count))
        table = {
            entry.name: {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [entry.start, entry.stop],
            }
            for entry in entries
        }
        text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8), entries[-1].stop if entries else 0

    def _encoded(self, encoding: str, arrays: Sequence[NDArray[Any]], *, count: int = 0) -> Encoded:
        header, _ = self.frame(encoding, count)
        parts: list[bytes | memoryview] = [len(header).to_bytes(_LENGTH_BYTES, "little") + header]
        parts += [array.view(np.uint8).data for array in arrays if array.size]
        return Encoded.of(encoding, parts)


class ModelReceiver:
    """Takes one stream in one of these encodings, chunk by chunk; raises BadModel as soon as
    something is wrong. Topk needs the known copy to which it adds."""

    def __init__(
        self, codec: ModelCodec, encodings: Collection[str] = ("raw",), *, known: Row | None = None
    ) -> None:
        self._codec = codec
        self._known = known
        self._encodings = [each for each in encodings if each != "topk" or known is not None]
        self._encoding = ""
        self._total = 0  # announced
        self._received = 0  # bytes so far
        self._head = bytearray()  # length and header, as far as they have arrived
        self._head_end = _LENGTH_BYTES  # bytes of both, once the length is known
        self._tensors: NDArray[np.uint8] | None = None  # all of them, in the order of our files
        self._spans: list[tuple[int, int]] = []  # (end in the file, shift to our order)
        self._span = 0
        self._digest = hashlib.sha256()
        self._complete = False

    def push(self, chunk: wire.Chunk) -> None:
        """Take the next chunk of the stream."""
        data = chunk.data
        if not self._total:
            if chunk.encoding not in self._encodings:
                allowed = ", ".join(self._encodings)
                refuse("encoding", f"the encoding is {chunk.encoding[:20]!r}; expected: {allowed}")
            least = _LENGTH_BYTES + len("{}") + self._codec.frame(chunk.encoding, 0)[1]
            largest = self._codec.max_file[chunk.encoding]
            if not least <= chunk.total <= min(largest, limits.MODEL_BYTES):
                refuse("size", f"{chunk.total} bytes announced; expected: {least} to {largest}")
            self._total, self._encoding = chunk.total, chunk.encoding
        elif chunk.total or chunk.encoding:
            refuse("header", "a later chunk announces size or encoding again")
        if self._complete or len(data) > self._total - self._received:
            refuse("size", f"there is data after the announced end of {self._total} bytes")
        if len(data) > limits.MODEL_CHUNK_BYTES:
            refuse("size", f"a chunk has {len(data)} bytes, over {limits.MODEL_CHUNK_BYTES}")
        if not data and not chunk.digest:
            refuse("empty", "a chunk has no data")
        self._digest.update(data)
        self._take(memoryview(data))
        if chunk.digest:
            if self._received < self._total:
                self._refuse_truncated()
            if chunk.digest != self._digest.digest():
                refuse("digest", "the digest is not that of the data")
            self._complete = True

    def finish(self) -> Row:
        """The model, float32 [width]; for topk the known copy with the delta added."""
        if self._received < self._total or not self._total:
            self._refuse_truncated()
        if not self._complete or self._tensors is None:
            refuse("digest", "the stream ends without the digest of its data")
        return finite(self._decoded(self._tensors))

    def _take(self, data: memoryview) -> None:
        """Copy data to where it belongs: the header first, then the tensors."""
        while self._tensors is None and len(data):
            part = data[: self._head_end - len(self._head)]
            self._head += part
            self._received += len(part)
            data = data[len(part) :]
            if len(self._head) == self._head_end:
                self._read_head()
        if self._tensors is None:
            return
        target, at = self._tensors.data, self._received - self._head_end
        self._received += len(data)
        while len(data):
            end, shift = self._spans[self._span]
            part = data[: end - at]
            target[at + shift : at + shift + len(part)] = part
            at += len(part)
            data = data[len(part) :]
            if at == end:
                self._span += 1

    def _read_head(self) -> None:
        if self._head_end == _LENGTH_BYTES:
            length = int.from_bytes(self._head, "little")
            longest = self._codec.max_header[self._encoding]
            if not 2 <= length <= min(longest, self._total - _LENGTH_BYTES):
                refuse("header", f"the header has {length} bytes; expected: 2 to {longest}")
            self._head_end = _LENGTH_BYTES + length
            return
        size = self._total - self._head_end
        count = size // 8 if self._encoding == "topk" else 0
        own_header, expected = self._codec.frame(self._encoding, count)
        if size != expected or count > self._codec.max_count[self._encoding]:
            refuse("size", f"the tensors have {size} bytes; expected: {expected}")
        header = bytes(self._head[_LENGTH_BYTES:])
        if header == own_header:
            self._spans = [(size, 0)]  # written by this program, for this model
        else:
            table = _parse_header(header)
            self._spans = _spans(table, list(self._codec.entries(self._encoding, count)))
        self._tensors = np.empty(size, dtype=np.uint8)

    def _refuse_truncated(self) -> NoReturn:
        refuse("truncated", f"the stream ends after {self._received} of {self._total} bytes")

    def _decoded(self, tensors: NDArray[np.uint8]) -> Row:
        if self._encoding == "raw":
            return tensors.view("<f4")
        if self._encoding == "fp16":
            return tensors.view("<f2").astype(np.float32)
        if self._encoding == "int8":
            split = 4 * len(self._codec.ends)
            scales, codes = tensors[:split].view("<f4"), tensors[split:].view(np.int8)
            check_int8(codes, scales)
            return from_int8(codes, scales, self._codec.ends)
        indices, values = np.split(tensors.view("<u4"), 2)
        if (indices[1:] <= indices[:-1]).any() or (indices[-1:] >= self._codec.width).any():
            refuse("index", f"the indices do not rise strictly below {self._codec.width}")
        assert self._known is not None  # topk is refused without
        return add_delta(self._known, Delta(indices, finite(values.view("<f4"))))


def row_digest(row: Row) -> bytes:
    """SHA-256 of the values: names a copy of a model."""
    return hashlib.sha256(np.ascontiguousarray(row, dtype="<f4").data).digest()


def refuse(reason: str, sentence: str) -> NoReturn:
    """End a stream that is not the expected one."""
    raise BadModel(reason, sentence)


def finite(values: NDArray[Any]) -> NDArray[Any]:
    """The same values; before any arithmetic, for a signalling NaN makes numpy warn."""
    if not all_finite(values):
        refuse("nan", "the model has values that are not finite")
    return values


def check_int8(codes: NDArray[np.int8], scales: NDArray[np.float32]) -> None:
    """Refuse codes and scales that no sender makes."""
    if not all_finite(scales) or (scales < 0).any():
        refuse("scale", "a scale is negative or not finite")
    if len(codes) and codes.min() < -INT8_LEVELS:
        refuse("range", f"a code is below {-INT8_LEVELS}")


def _pieces(parts: Sequence[bytes | memoryview], size: int) -> Iterator[bytes]:
    """All parts one after the other, in pieces of `size` bytes; the last one may be shorter."""
    gathered: list[memoryview] = []
    room = size
    for part in parts:
        rest = memoryview(part)
        while len(rest):
            gathered.append(rest[:room])
            rest = rest[room:]
            room -= len(gathered[-1])
            if not room:
                yield b"".join(gathered)
                gathered, room = [], size
    if gathered:
        yield b"".join(gathered)


def _parse_header(header: bytes) -> Mapping[str, Any]:
    """The entries of a safetensors header by name, without the metadata."""
    try:
        table = json.loads(header.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:  # of the header itself, or of a number in it
        raise BadModel("header", "the header is not JSON, or has a name twice") from error
    if header[:1] != b"{" or not isinstance(table, dict):
        refuse("header", "the header is not a table")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        refuse("header", "the metadata of the header is not a table of texts")
    return table


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(table := dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice")
    return table


def _spans(table: Mapping[str, Any], entries: Sequence[TensorEntry]) -> list[tuple[int, int]]:
    """Where a file's tensors go, in its order: (end in the file, shift to our order)."""
    if table.keys() != {entry.name for entry in entries}:
        refuse("name", "the header does not name exactly the tensors of the model")
    placed = sorted((*_offsets(table[entry.name], entry), entry.start) for entry in entries)
    spans: list[tuple[int, int]] = []
    at = 0
    for start, stop, ours in placed:
        if start != at:
            refuse("offsets", "tensors overlap, or leave a gap")
        at = stop
        if spans and spans[-1][1] == ours - start:
            spans[-1] = (stop, ours - start)
        elif stop > start:
            spans.append((stop, ours - start))
    return spans


def _offsets(received: Any, entry: TensorEntry) -> tuple[int, int]:
    """Where a file has this tensor, if its header entry is the expected one."""
    if not isinstance(received, dict) or received.keys() != {"dtype", "shape", "data_offsets"}:
        refuse("header", "an entry of the header is not dtype, shape and data_offsets")
    if received["dtype"] != entry.dtype:
        refuse("dtype", f"{entry.name} is not of dtype {entry.dtype}")
    if not _is_int_list(received["shape"]) or received["shape"] != list(entry.shape):
        refuse("shape", f"the shape of {entry.name} is not {list(entry.shape)}")
    offsets = received["data_offsets"]
    if not _is_int_list(offsets) or len(offsets) != 2:
        refuse("offsets", f"the offsets of {entry.name} are not two numbers")
    start, stop = offsets
    if stop - start != entry.stop - entry.start:
        refuse("offsets", f"the offsets of {entry.name} do not fit its shape")
    return start, stop


def _is_int_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


# --- both sides of a transfer: what to send to a reader, how to read what a peer sends ---------


class _RecentlyUsed(OrderedDict[str, V]):
    """Keeps the values that were put in last, at most `limit` of them, for COPY_ROUNDS rounds."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._round = 0
        self._put_in: dict[str, int] = {}  # the round of each
        self.lock = Lock()

    def begin_round(self, round_index: int) -> None:
        """Drop the values that were not put in for some rounds."""
        with self.lock:
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


class OutgoingModel:
    """The model a worker serves: encoded once for all readers or, with topk, for each reader.

    With topk two states are kept for a reader: the one it last named, and that state with the last
    delta. It names one of them in its next request, so a transfer that failed is noticed.
    """

    def __init__(
        self, codec: ModelCodec, *, compression: str = "none", share: float = 0.1, readers: int = 32
    ) -> None:
        """readers: of which topk remembers a copy; another one than the last ones starts over."""
        self.codec = codec
        topk = compression == "topk"
        self._encoding = "raw" if topk else ENCODING_OF[compression]  # of the whole model
        self._count = topk_count(share, codec.width) if topk else 0  # values in a delta
        self.copies: _RecentlyUsed[_ReaderCopy] = _RecentlyUsed(readers)
        # By exchange of the round; both change at once, for threads.
        self._offered: dict[int, tuple[Row, Encoded]] = {}

    def offer(self, row: Row, exchange: int = 0) -> None:
        """Serve this row in an exchange of the round; it must not change while it is served. The
        first one ends the round before."""
        offered = row, self.codec.encode(row, self._encoding)
        self._offered = {**self._offered, exchange: offered} if exchange else {0: offered}

    def withdraw(self, exchange: int) -> None:
        """Free the row of an exchange that all its readers have had."""
        self._offered.pop(exchange, None)

    def take(self, reader: str, base: bytes = b"", exchange: int = 0) -> Encoded:
        """What to send to a reader; base: the digest of its copy, from its request."""
        if exchange not in self._offered:
            raise LookupError("no model is offered for this exchange")
        row, encoded = self._offered[exchange]
        if not self._count:
            return encoded
        with self.copies.lock:
            known = self._known(reader, base)
            if known is None:
                self.copies.put(reader, _ReaderCopy(row.copy(), row_digest(row)))
                return encoded
            with np.errstate(over="ignore"):
                delta = largest_changes(row - known, self._count)
            after = row_digest(add_delta(known, delta))
            self.copies.put(reader, _ReaderCopy(known, base, delta, after))
        return self.codec.encode_delta(delta)

    def _known(self, reader: str, base: bytes) -> Row | None:
        """The reader's copy, if it is one of the two states that are known."""
        copy = self.copies.get(reader)
        if copy is None or not base:
            return None
        if base == copy.digest:
            return copy.row
        if copy.delta is not None and base == copy.after:
            copy.row[copy.delta.indices] += copy.delta.values
            # Stored at once: the delta must not be added twice if what follows fails.
            self.copies[reader] = _ReaderCopy(copy.row, base)
            return copy.row
        return None


class IncomingModels:
    """The models a worker pulls: a receiver for each stream and, with topk, a copy per peer."""

    def __init__(self, codec: ModelCodec, *, compression: str = "none", peers: int = 32) -> None:
        self.codec = codec
        self._encodings = sorted({"raw", ENCODING_OF[compression]})
        # Of each peer's model, never written to, and its digest.
        self.copies: _RecentlyUsed[tuple[Row, bytes]] = _RecentlyUsed(peers)

    def begin(self, peer: str) -> tuple[bytes, ModelReceiver]:
        """For one pull: the base to name in the request, and the receiver of the answer."""
        known, base = self.copies.get(peer, (None, b""))  # one for both, whatever arrives meanwhile
        return base, ModelReceiver(self.codec, self._encodings, known=known)

    def finish(self, peer: str, receiver: ModelReceiver) -> Row:
        """The peer's model, once its stream has ended; remembered for the next delta."""
        row = receiver.finish()
        if "topk" in self._encodings:
            copy = row.copy(), row_digest(row)
            with self.copies.lock:
                self.copies.put(peer, copy)
        return row
