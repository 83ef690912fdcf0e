"""A model row as a stream of chunks, and back: the data is one safetensors file.

Parsed by hand, and only here, because it comes from the network in pieces: the receiver knows the
layout, so it refuses any other tensor before it allocates memory. It never holds more than one
chunk, the expected tensors and the model; for raw these two are the same memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.errors import FedhpError
from fedhp.learn.quantize import INT8_LEVELS, Row, all_finite, from_int8, to_half, to_int8
from fedhp.learn.topk import Delta, add_delta, largest_delta

if TYPE_CHECKING:
    from fedhp.learn.params import Layout

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
        # Without a count these are the same for every model, and each round has many.
        self._headers = {encoding: self._new_header(encoding, 0) for encoding in ENCODINGS}
        self._sizes = {encoding: self._tensor_bytes(encoding, 0) for encoding in ENCODINGS}
        self._max_header = {
            encoding: len(self.header(encoding, self.max_count(encoding))) + _SPARE_HEADER_BYTES
            for encoding in ENCODINGS
        }
        if (size := self.max_file(ENCODING_OF["none"])) > limits.MODEL_BYTES:
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

    def chunks(self, encoded: Encoded, envelope: wire.Envelope) -> Iterator[wire.Chunk]:
        """The stream: the first chunk announces size and encoding, the last one has the digest."""
        left, first = encoded.total, True
        for data in _pieces(encoded.parts, limits.MODEL_CHUNK_BYTES):
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
    ) -> ModelReceiver:
        """For one stream in one of these encodings; topk needs the known copy it adds to."""
        return ModelReceiver(self, encodings, known=known)

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

    def size(self, encoding: str, count: int) -> int:
        """Bytes of the tensors of a file."""
        return self._tensor_bytes(encoding, count) if count else self._sizes[encoding]

    def max_count(self, encoding: str) -> int:
        """The largest number of values in a delta."""
        return largest_delta(self.width) if encoding == "topk" else 0

    def max_header(self, encoding: str) -> int:
        """The longest header that is accepted, bytes."""
        return self._max_header[encoding]

    def max_file(self, encoding: str) -> int:
        """The largest file that is accepted, bytes."""
        tensors = self.size(encoding, self.max_count(encoding))
        return _LENGTH_BYTES + self._max_header[encoding] + tensors

    def header(self, encoding: str, count: int) -> bytes:
        """The header of our own files."""
        return self._new_header(encoding, count) if count else self._headers[encoding]

    def _tensor_bytes(self, encoding: str, count: int) -> int:
        return max((entry.stop for entry in self.entries(encoding, count)), default=0)

    def _new_header(self, encoding: str, count: int) -> bytes:
        table = {
            entry.name: {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [entry.start, entry.stop],
            }
            for entry in self.entries(encoding, count)
        }
        text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8)

    def _encoded(self, encoding: str, arrays: Sequence[NDArray[Any]], *, count: int = 0) -> Encoded:
        header = self.header(encoding, count)
        parts: list[bytes | memoryview] = [len(header).to_bytes(_LENGTH_BYTES, "little") + header]
        parts += [array.view(np.uint8).data for array in arrays if array.size]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return Encoded(encoding, tuple(parts), sum(map(len, parts)), digest.digest())


class ModelReceiver:
    """Takes one stream, chunk by chunk; raises BadModel as soon as something is wrong."""

    def __init__(self, codec: ModelCodec, encodings: Collection[str], *, known: Row | None) -> None:
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
            self._announce(chunk)
        elif chunk.total or chunk.encoding:
            _refuse("header", "a later chunk announces size or encoding again")
        if self._complete or len(data) > self._total - self._received:
            _refuse("size", f"there is data after the announced end of {self._total} bytes")
        if len(data) > limits.MODEL_CHUNK_BYTES:
            _refuse("size", f"a chunk has {len(data)} bytes, over {limits.MODEL_CHUNK_BYTES}")
        if not data and not chunk.digest:
            _refuse("empty", "a chunk has no data")
        self._digest.update(data)
        self._take(memoryview(data))
        if chunk.digest:
            self._end(chunk.digest)

    def finish(self) -> Row:
        """The model, float32 [width]; for topk the known copy with the delta added."""
        if self._received < self._total or not self._total:
            self._refuse_truncated()
        if not self._complete or self._tensors is None:
            _refuse("digest", "the stream ends without the digest of its data")
        return _finite(self._decoded(self._tensors))

    def _announce(self, chunk: wire.Chunk) -> None:
        """Refuse at once what cannot be the expected file, by its encoding and size."""
        total = chunk.total
        if chunk.encoding not in self._encodings:
            allowed = ", ".join(self._encodings)
            _refuse("encoding", f"the encoding is {chunk.encoding[:20]!r}; expected: {allowed}")
        least = _LENGTH_BYTES + len("{}") + self._codec.size(chunk.encoding, 0)
        largest = self._codec.max_file(chunk.encoding)
        if not least <= total <= min(largest, limits.MODEL_BYTES):
            _refuse("size", f"{total} bytes are announced; expected: {least} to {largest}")
        self._total, self._encoding = total, chunk.encoding

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
            longest = self._codec.max_header(self._encoding)
            if not 2 <= length <= min(longest, self._total - _LENGTH_BYTES):
                _refuse("header", f"the header has {length} bytes; expected: 2 to {longest}")
            self._head_end = _LENGTH_BYTES + length
            return
        size = self._total - self._head_end
        count = size // 8 if self._encoding == "topk" else 0
        expected = self._codec.size(self._encoding, count)
        if size != expected or count > self._codec.max_count(self._encoding):
            _refuse("size", f"the tensors have {size} bytes; expected: {expected}")
        header = bytes(self._head[_LENGTH_BYTES:])
        if header == self._codec.header(self._encoding, count):
            self._spans = [(size, 0)]  # written by this program, for this model
        else:
            table = _parse_header(header)
            self._spans = _spans(table, list(self._codec.entries(self._encoding, count)))
        self._tensors = np.empty(size, dtype=np.uint8)

    def _end(self, digest: bytes) -> None:
        if self._received < self._total:
            self._refuse_truncated()
        if digest != self._digest.digest():
            _refuse("digest", "the digest is not that of the data")
        self._complete = True

    def _refuse_truncated(self) -> NoReturn:
        _refuse("truncated", f"the stream ends after {self._received} of {self._total} bytes")

    def _decoded(self, tensors: NDArray[np.uint8]) -> Row:
        if self._encoding == "raw":
            return tensors.view("<f4")
        if self._encoding == "fp16":
            return tensors.view("<f2").astype(np.float32)
        if self._encoding == "int8":
            split = 4 * len(self._codec.ends)
            scales, codes = tensors[:split].view("<f4"), tensors[split:].view(np.int8)
            if not all_finite(scales) or (scales < 0).any():
                _refuse("scale", "a scale is negative or not finite")
            if len(codes) and codes.min() < -INT8_LEVELS:
                _refuse("range", f"a code is below {-INT8_LEVELS}")
            return from_int8(codes, scales, self._codec.ends)
        indices, values = np.split(tensors.view("<u4"), 2)
        if (indices[1:] <= indices[:-1]).any() or (indices[-1:] >= self._codec.width).any():
            _refuse("index", f"the indices do not rise strictly below {self._codec.width}")
        assert self._known is not None  # topk is refused without
        return add_delta(self._known, Delta(indices, _finite(values.view("<f4"))))


def _refuse(reason: str, sentence: str) -> NoReturn:
    raise BadModel(reason, sentence)


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    """The same values; before any arithmetic, for a signalling NaN makes numpy warn."""
    if not all_finite(values):
        _refuse("nan", "the model has values that are not finite")
    return values


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
        _refuse("header", "the header is not a table")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _refuse("header", "the metadata of the header is not a table of texts")
    return table


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(table := dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice")
    return table


def _spans(table: Mapping[str, Any], entries: Sequence[TensorEntry]) -> list[tuple[int, int]]:
    """Where a file's tensors go, in its order: (end in the file, shift to our order)."""
    if table.keys() != {entry.name for entry in entries}:
        _refuse("name", "the header does not name exactly the tensors of the model")
    placed = sorted((*_offsets(table[entry.name], entry), entry.start) for entry in entries)
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


def _offsets(received: Any, entry: TensorEntry) -> tuple[int, int]:
    """Where a file has this tensor, if its header entry is the expected one."""
    if not isinstance(received, dict) or received.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse("header", "an entry of the header is not dtype, shape and data_offsets")
    if received["dtype"] != entry.dtype:
        _refuse("dtype", f"{entry.name} is not of dtype {entry.dtype}")
    if not _is_int_list(received["shape"]) or received["shape"] != list(entry.shape):
        _refuse("shape", f"the shape of {entry.name} is not {list(entry.shape)}")
    offsets = received["data_offsets"]
    if not _is_int_list(offsets) or len(offsets) != 2:
        _refuse("offsets", f"the offsets of {entry.name} are not two numbers")
    start, stop = offsets
    if stop - start != entry.stop - entry.start:
        _refuse("offsets", f"the offsets of {entry.name} do not fit its shape")
    return start, stop


def _is_int_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)
