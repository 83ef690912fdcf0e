"""A model row as a stream of chunks, and back: the data is one safetensors file.

A receiver knows the layout, so it knows every tensor it will get: whatever is announced, it
refuses anything else before it allocates. It never holds more than one chunk, the expected
tensors and the model; for raw these two are the same memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.compression import (
    LEVELS,
    Delta,
    Row,
    added,
    all_finite,
    from_int8,
    most_values,
    to_half,
    to_int8,
)
from fedhp.errors import FedhpError

if TYPE_CHECKING:
    from fedhp.learn.params import Layout

ENCODINGS = ("raw", "fp16", "int8", "topk")
SPARE_HEADER = 1024  # bytes a header may have beyond ours, for blanks and metadata
METADATA = "__metadata__"
# torch has no parameter whose name begins with a dot, so these are never a model's own.
SCALES, INDICES, VALUES = ".scales", ".indices", ".values"
WIDTHS = {"F32": 4, "U32": 4, "F16": 2, "I8": 1}


class BadModel(ValueError):
    """A stream that is not the model it should be; `reason` is one stable word."""

    def __init__(self, reason: str, sentence: str) -> None:
        self.reason = reason
        super().__init__(sentence)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A model ready to be sent; raw parts are views of the row, which must not change meanwhile."""

    encoding: str
    parts: tuple[bytes | memoryview, ...]
    total: int  # bytes of all parts
    digest: bytes  # SHA-256 of all parts


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a file, and where our own files have it."""

    name: str
    kind: str  # safetensors' name of the dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class ModelCodec:
    """The travelling part of a layout's rows as streams of chunks."""

    def __init__(self, layout: Layout) -> None:
        self.width = layout.mixed
        self._slots = tuple(slot for slot in layout.slots if slot.stop <= layout.mixed)
        self.ends = tuple(slot.stop for slot in self._slots)
        self._longest = {
            encoding: len(self._header(encoding, self.most(encoding))) + SPARE_HEADER
            for encoding in ENCODINGS
        }
        if (largest := self.largest("raw")) > limits.MODEL_BYTES:
            raise FedhpError(
                f"a model of {self.width} values is too large to travel: {largest} bytes",
                allowed=f"at most {limits.MODEL_BYTES} bytes",
                fix="a smaller model (model.width)",
            )

    def encode(self, row: Row, encoding: str = "raw") -> Encoded:
        """A row [width], float32 without gaps, as raw, fp16 or int8."""
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
        raise ValueError(f"a row has no encoding {encoding!r}")

    def encode_delta(self, delta: Delta) -> Encoded:
        """What topk adds to the copy of a reader."""
        return self._encoded("topk", [delta.indices, delta.values], count=len(delta.indices))

    def chunks(self, encoded: Encoded, envelope: wire.Envelope) -> Iterator[wire.Chunk]:
        """The stream: the first chunk says what follows, the last one has the digest."""
        left, first = encoded.total, True
        for data in _cut(encoded.parts, limits.CHUNK_BYTES):
            left -= len(data)
            chunk = wire.Chunk(data=data)
            if first:
                chunk.envelope.CopyFrom(envelope)
                chunk.total, chunk.encoding = encoded.total, encoded.encoding
                first = False
            if not left:
                chunk.digest = encoded.digest
            yield chunk

    def receiver(
        self, encodings: Collection[str] = ("raw",), *, known: Row | None = None
    ) -> Receiver:
        """For one stream in one of these encodings; topk only on top of a known copy."""
        return Receiver(self, encodings, known=known)

    def fields(self, encoding: str, count: int) -> Iterator[Field]:
        """The tensors of a file, in the order in which it has them; count: of a delta."""
        shapes: list[tuple[str, str, tuple[int, ...]]]
        if encoding == "topk":
            shapes = [(INDICES, "U32", (count,)), (VALUES, "F32", (count,))]
        else:
            kind = {"raw": "F32", "fp16": "F16", "int8": "I8"}[encoding]
            shapes = [(slot.name, kind, slot.shape) for slot in self._slots]
            if encoding == "int8":
                shapes.insert(0, (SCALES, "F32", (len(self._slots),)))
        start = 0
        for name, kind, shape in shapes:
            stop = start + WIDTHS[kind] * prod(shape)
            yield Field(name, kind, shape, start, stop)
            start = stop

    def size(self, encoding: str, count: int) -> int:
        """Bytes of the tensors of a file."""
        if encoding == "topk":
            return 8 * count
        widths = {"raw": 4, "fp16": 2, "int8": 1}
        return widths[encoding] * self.width + 4 * len(self.ends) * (encoding == "int8")

    def most(self, encoding: str) -> int:
        """The largest count of a delta."""
        return most_values(self.width) if encoding == "topk" else 0

    def longest_header(self, encoding: str) -> int:
        """The longest header that is read, bytes."""
        return self._longest[encoding]

    def largest(self, encoding: str) -> int:
        """The largest file that is read, bytes."""
        return 8 + self._longest[encoding] + self.size(encoding, self.most(encoding))

    def _header(self, encoding: str, count: int) -> bytes:
        table = {
            field.name: {
                "dtype": field.kind,
                "shape": list(field.shape),
                "data_offsets": [field.start, field.stop],
            }
            for field in self.fields(encoding, count)
        }
        text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8)

    def _encoded(self, encoding: str, arrays: Sequence[NDArray[Any]], *, count: int = 0) -> Encoded:
        header = self._header(encoding, count)
        parts: list[bytes | memoryview] = [len(header).to_bytes(8, "little") + header]
        parts += [array.view(np.uint8).data for array in arrays if array.size]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return Encoded(encoding, tuple(parts), sum(map(len, parts)), digest.digest())


class Receiver:
    """Takes one stream, chunk by chunk; raises BadModel as soon as something is wrong."""

    def __init__(self, codec: ModelCodec, encodings: Collection[str], *, known: Row | None) -> None:
        self._codec = codec
        self._known = known
        self._encodings = [e for e in encodings if e != "topk" or known is not None]
        self._encoding = ""
        self._total = 0  # announced
        self._seen = 0  # bytes so far
        self._head = bytearray()  # length and header, as far as they are here
        self._head_end = 8  # bytes of both; 8 until the length is known
        self._arena: NDArray[np.uint8] | None = None  # all tensors, in the order of our files
        self._spans: list[tuple[int, int]] = []  # (end in the file, shift to the arena)
        self._span = 0
        self._digest = hashlib.sha256()
        self._complete = False

    def push(self, chunk: wire.Chunk) -> None:
        """The next chunk of the stream."""
        data = chunk.data
        if not self._total:
            self._announce(chunk)
        elif chunk.total or chunk.encoding:
            _refuse("header", "a later chunk says again what follows")
        if self._complete or len(data) > self._total - self._seen:
            _refuse("size", f"there is data after the announced end of {self._total} bytes")
        if len(data) > limits.CHUNK_BYTES:
            _refuse("size", f"a chunk has {len(data)} bytes, over {limits.CHUNK_BYTES}")
        if not data and not chunk.digest:
            _refuse("empty", "a chunk has no data")
        self._digest.update(data)
        self._take(memoryview(data))
        if chunk.digest:
            self._end(chunk.digest)

    def finish(self) -> Row:
        """The model, float32 [width]; for topk the known copy with what was added."""
        if self._seen < self._total or not self._total:
            _refuse("truncated", f"the stream ends after {self._seen} of {self._total} bytes")
        if not self._complete or self._arena is None:
            _refuse("digest", "the stream ends without the digest of its data")
        return _numbers(self._decoded(self._arena))

    def _announce(self, chunk: wire.Chunk) -> None:
        """Refuse at once what cannot be the expected file, by its size."""
        total = chunk.total
        if chunk.encoding not in self._encodings:
            allowed = ", ".join(self._encodings)
            _refuse("encoding", f"the encoding is {chunk.encoding[:20]!r}; expected: {allowed}")
        least = 8 + 2 + self._codec.size(chunk.encoding, 0)
        largest = self._codec.largest(chunk.encoding)
        if not least <= total <= min(largest, limits.MODEL_BYTES):
            _refuse("size", f"{total} bytes are announced; expected: {least} to {largest}")
        self._total, self._encoding = total, chunk.encoding

    def _take(self, data: memoryview) -> None:
        """Copy data to where it belongs: the header first, then the tensors."""
        while self._arena is None and len(data):
            part = data[: self._head_end - len(self._head)]
            self._head += part
            self._seen += len(part)
            data = data[len(part) :]
            if len(self._head) == self._head_end:
                self._read_head()
        if self._arena is None:
            return
        target, place = self._arena.data, self._seen - self._head_end
        self._seen += len(data)
        while len(data):
            end, shift = self._spans[self._span]
            part = data[: end - place]
            target[place + shift : place + shift + len(part)] = part
            place += len(part)
            data = data[len(part) :]
            if place == end:
                self._span += 1

    def _read_head(self) -> None:
        if self._head_end == 8:
            length = int.from_bytes(self._head, "little")
            longest = self._codec.longest_header(self._encoding)
            if not 2 <= length <= min(longest, self._total - 8):
                _refuse("header", f"the header has {length} bytes; expected: 2 to {longest}")
            self._head_end = 8 + length
            return
        size = self._total - self._head_end
        count = size // 8 if self._encoding == "topk" else 0
        expected = self._codec.size(self._encoding, count)
        if size != expected or count > self._codec.most(self._encoding):
            _refuse("size", f"the tensors have {size} bytes; expected: {expected}")
        table = _table(bytes(self._head[8:]))
        self._spans = _spans(table, list(self._codec.fields(self._encoding, count)))
        self._arena = np.empty(size, dtype=np.uint8)

    def _end(self, digest: bytes) -> None:
        if self._seen < self._total:
            _refuse("truncated", f"the stream ends after {self._seen} of {self._total} bytes")
        if digest != self._digest.digest():
            _refuse("digest", "the digest is not that of the data")
        self._complete = True

    def _decoded(self, arena: NDArray[np.uint8]) -> Row:
        if self._encoding == "raw":
            return arena.view("<f4")
        if self._encoding == "fp16":
            return arena.view("<f2").astype(np.float32)
        if self._encoding == "int8":
            split = 4 * len(self._codec.ends)
            scales, codes = arena[:split].view("<f4"), arena[split:].view(np.int8)
            if not all_finite(scales) or (scales < 0).any():
                _refuse("scale", "a scale is negative or not finite")
            if len(codes) and codes.min() < -LEVELS:
                _refuse("range", f"a code is below {-LEVELS}")
            return from_int8(codes, scales, self._codec.ends)
        return self._changed(arena)

    def _changed(self, arena: NDArray[np.uint8]) -> Row:
        indices, values = np.split(arena.view("<u4"), 2)
        if (indices[1:] <= indices[:-1]).any() or (indices[-1:] >= self._codec.width).any():
            _refuse("index", f"the indices do not rise strictly below {self._codec.width}")
        assert self._known is not None  # topk is refused without
        return added(self._known, Delta(indices, _numbers(values.view("<f4"))))


def _refuse(reason: str, sentence: str) -> NoReturn:
    raise BadModel(reason, sentence)


def _numbers(values: NDArray[Any]) -> NDArray[Any]:
    """The same values; before any arithmetic, for a signalling NaN makes numpy complain."""
    if not all_finite(values):
        _refuse("nan", "the model has values that are not finite")
    return values


def _cut(parts: Sequence[bytes | memoryview], size: int) -> Iterator[bytes]:
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


def _table(header: bytes) -> Mapping[str, Any]:
    """The entries of a header, without the metadata."""
    try:
        table = json.loads(header.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:  # of the header itself, or of a number in it
        raise BadModel("header", "the header is not JSON, or says something twice") from error
    if header[:1] != b"{" or not isinstance(table, dict):
        _refuse("header", "the header is no table")
    metadata = table.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _refuse("header", "the metadata of the header is no table of texts")
    return table


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(table := dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice")
    return table


def _spans(table: Mapping[str, Any], fields: Sequence[Field]) -> list[tuple[int, int]]:
    """Where a file's tensors go, in its order: (end in the file, shift to the place in ours)."""
    if table.keys() != {field.name for field in fields}:
        _refuse("name", "the header does not name exactly the tensors of the model")
    placed = sorted((*_offsets(table[field.name], field), field.start) for field in fields)
    spans: list[tuple[int, int]] = []
    at = 0
    for start, stop, ours in placed:
        if start != at:
            _refuse("offsets", "tensors overlap, or leave a gap")
        at = stop
        if spans and spans[-1][1] == ours - start:
            spans[-1] = (stop, ours - start)
        elif stop > start:
            spans.append((stop, ours - start))
    return spans


def _offsets(entry: Any, field: Field) -> tuple[int, int]:
    """Where a file has this tensor, if it is the one that is expected."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse("header", "an entry of the header is not dtype, shape and data_offsets")
    if entry["dtype"] != field.kind:
        _refuse("dtype", f"{field.name} does not hold {field.kind}")
    if not _whole(entry["shape"]) or entry["shape"] != list(field.shape):
        _refuse("shape", f"the shape of {field.name} is not {list(field.shape)}")
    offsets = entry["data_offsets"]
    if not _whole(offsets) or len(offsets) != 2:
        _refuse("offsets", f"the offsets of {field.name} are not two numbers")
    start, stop = offsets
    if stop - start != field.stop - field.start:
        _refuse("offsets", f"the offsets of {field.name} do not fit its shape")
    return start, stop


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)
