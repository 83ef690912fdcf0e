"""Models as streams: round trips, the safetensors library, and every way to be refused."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.codec import BadModel, Encoded, ModelCodec, ModelReceiver
from fedhp.errors import FedhpError
from fedhp.learn.params import Layout, Slot
from fedhp.learn.quantize import Row, to_half, to_int8
from fedhp.learn.topk import Delta

SHAPES: dict[str, tuple[int, ...]] = {
    "conv.weight": (4, 3, 2),
    "ärger.bias": (5,),
    "scale": (),
    "nothing": (0, 3),
    "a.last": (7, 2),
}
ENVELOPE = wire.Envelope(version=1, run="ab" * 16, round=3, sender="w1")


def layout_with(shapes: dict[str, tuple[int, ...]], *, at_home: int = 3) -> Layout:
    slots, start = [], 0
    for name, shape in shapes.items():
        slots.append(Slot(name, shape, start, start + int(np.prod(shape))))
        start = slots[-1].stop
    slots.append(Slot("running.mean", (at_home,), start, start + at_home))
    width = start + at_home
    return Layout(tuple(slots), (), trainable=start, mixed=start, width=width, counter_width=0)


CODEC = ModelCodec(layout_with(SHAPES))


def row_of(codec: ModelCodec = CODEC, seed: int = 1) -> Row:
    return np.random.default_rng(seed).standard_normal(codec.width).astype(np.float32)


def tensors_of(row: Row) -> dict[str, np.ndarray[Any, Any]]:
    tensors, start = {}, 0
    for name, shape in SHAPES.items():
        stop = start + int(np.prod(shape))
        tensors[name] = row[start:stop].reshape(shape)
        start = stop
    return tensors


def file_of(encoded: Encoded) -> bytes:
    return b"".join(encoded.parts)


def stream(data: bytes, *, size: int = 50, encoding: str = "raw") -> Iterator[wire.Chunk]:
    """A stream of any bytes, in chunks of `size`, with a true total and digest."""
    for start in range(0, len(data), size):
        chunk = wire.Chunk(data=data[start : start + size])
        if not start:
            chunk.total, chunk.encoding = len(data), encoding
        if start + size >= len(data):
            chunk.digest = hashlib.sha256(data).digest()
        yield chunk


def received(chunks: Iterator[wire.Chunk], receiver: ModelReceiver | None = None) -> Row:
    receiver = receiver or ModelReceiver(CODEC, ("raw", "fp16", "int8"))
    for chunk in chunks:
        receiver.push(chunk)
    return receiver.finish()


def refused(chunks: Iterator[wire.Chunk], receiver: ModelReceiver | None = None) -> str:
    with pytest.raises(BadModel) as caught:
        received(chunks, receiver)
    assert len(str(caught.value)) > 15
    return caught.value.reason


def with_header(change: Callable[[dict[str, Any]], Any], *, row: Row | None = None) -> bytes:
    """A valid file whose header was changed."""
    data = file_of(CODEC.encode(row_of() if row is None else row))
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    table = change(table) or table
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 10_000])
def test_a_row_comes_back_bit_for_bit_however_it_is_cut(size: int) -> None:
    row = row_of()
    data = file_of(CODEC.encode(row))
    assert received(stream(data, size=size)).tobytes() == row.tobytes()


def test_the_stream_is_cut_announced_and_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MODEL_CHUNK_BYTES", 100)
    row = row_of()
    encoded = CODEC.encode(row)
    chunks = list(encoded.chunks(ENVELOPE))
    data = b"".join(chunk.data for chunk in chunks)
    assert len(data) == encoded.total == chunks[0].total
    assert all(len(chunk.data) == 100 for chunk in chunks[:-1])
    assert chunks[0].envelope == ENVELOPE
    assert chunks[0].encoding == "raw"
    assert not any(chunk.HasField("envelope") or chunk.total for chunk in chunks[1:])
    assert [bool(chunk.digest) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].digest == encoded.digest == hashlib.sha256(data).digest()
    assert received(iter(chunks)).tobytes() == row.tobytes()


def test_raw_is_sent_from_the_memory_of_the_row() -> None:
    row = row_of()
    view = CODEC.encode(row).parts[1]
    assert np.shares_memory(np.frombuffer(view, np.uint8), row)


def test_the_library_reads_what_is_sent() -> None:
    row = row_of()
    tensors = safetensors.numpy.load(file_of(CODEC.encode(row)))
    assert tensors.keys() == SHAPES.keys()
    for name, tensor in tensors_of(row).items():
        assert np.array_equal(tensors[name], tensor)
        assert tensors[name].shape == tensor.shape
    half = safetensors.numpy.load(file_of(CODEC.encode(row, "fp16")))
    assert all(tensor.dtype == np.float16 for tensor in half.values())
    codes = safetensors.numpy.load(file_of(CODEC.encode(row, "int8")))
    assert codes.pop(".scales").shape == (len(SHAPES),)
    assert all(tensor.dtype == np.int8 for tensor in codes.values())
    delta = Delta(np.array([1, 9], dtype="<u4"), np.array([1, 2], dtype="<f4"))
    pairs = safetensors.numpy.load(file_of(CODEC.encode_delta(delta)))
    assert pairs[".indices"].tolist() == [1, 9]
    assert pairs[".values"].tolist() == [1, 2]


@pytest.mark.parametrize("size", [1, 33, 10_000])
def test_what_the_library_writes_is_read_though_its_order_is_another(size: int) -> None:
    row = row_of()
    data = safetensors.numpy.save(tensors_of(row), metadata={"format": "pt"})
    length = int.from_bytes(data[:8], "little")
    places = json.loads(data[8 : 8 + length])
    assert places["a.last"]["data_offsets"][0] == 0  # by name, not as in the layout
    assert received(stream(data, size=size)).tobytes() == row.tobytes()
    half = {name: to_half(t.reshape(-1)).reshape(t.shape) for name, t in tensors_of(row).items()}
    data = safetensors.numpy.save(half)
    assert np.array_equal(received(stream(data, encoding="fp16")), to_half(row).astype("f4"))
    codes, scales = to_int8(row, CODEC.ends)
    ints = {n: t.astype(np.int8) for n, t in tensors_of(codes.astype(np.float32)).items()}
    data = safetensors.numpy.save({**ints, ".scales": scales})
    expected = received(stream(file_of(CODEC.encode(row, "int8")), encoding="int8"))
    assert np.array_equal(received(stream(data, encoding="int8")), expected)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=5), st.integers(1, 300))
def test_any_layout_survives_the_trip(shapes: list[list[int]], size: int) -> None:
    codec = ModelCodec(layout_with({f"t{i}": tuple(shape) for i, shape in enumerate(shapes)}))
    row = row_of(codec)
    for encoding in ("raw", "fp16", "int8"):
        data = file_of(codec.encode(row, encoding))
        safetensors.numpy.load(data)
        back = received(
            stream(data, size=size, encoding=encoding), ModelReceiver(codec, (encoding,))
        )
        assert back.shape == row.shape
        assert back.dtype == np.float32
        np.testing.assert_allclose(back, row, atol=0.05)


def test_a_wrong_row_is_not_sent() -> None:
    with pytest.raises(ValueError, match="float32"):
        CODEC.encode(row_of().astype(np.float64))
    with pytest.raises(ValueError, match="float32"):
        CODEC.encode(row_of()[:-1])
    with pytest.raises(ValueError, match="'topk'"):
        CODEC.encode(row_of(), "topk")
    row = row_of()
    row[3] = np.inf
    with pytest.raises(BadModel, match="not finite"):
        CODEC.encode(row)


def test_a_model_beyond_the_limit_is_refused_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MODEL_BYTES", 1000)
    with pytest.raises(FedhpError, match="too large"):
        ModelCodec(layout_with({"w": (300,)}))


@pytest.mark.parametrize("total", [1, 100, 10_000, 2**40, 2**64 - 1])
def test_another_size_is_refused_at_the_first_chunk(total: int) -> None:
    chunk = wire.Chunk(total=total, encoding="raw", data=b"x")
    assert refused(iter([chunk])) == "size"


def test_nothing_large_is_allocated_for_an_announcement() -> None:
    codec = ModelCodec(layout_with({"w": (50_000_000,)}))
    largest = codec.max_file["raw"]
    tracemalloc.start()
    try:
        for total in (largest, largest + 1, 2**50):
            receiver = ModelReceiver(codec)
            data = (2**62).to_bytes(8, "little") + b"{" * 1000
            assert refused(
                iter([wire.Chunk(total=total, encoding="raw", data=data)]), receiver
            ) == ("header" if total == largest else "size")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_model_is_received_into_one_buffer() -> None:
    codec = ModelCodec(layout_with({"w": (2_000_000,)}))
    chunks = list(codec.encode(row_of(codec)).chunks(ENVELOPE))
    tracemalloc.start()
    try:
        received(iter(chunks), ModelReceiver(codec))
        assert tracemalloc.get_traced_memory()[1] < 8_000_000 + 2 * limits.MODEL_CHUNK_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["", "zip", "fp16", "topk", "RAW", "x" * 1000])
def test_an_encoding_that_was_not_asked_for_is_refused(encoding: str) -> None:
    data = file_of(CODEC.encode(row_of()))
    assert (
        refused(stream(data, encoding=encoding), ModelReceiver(CODEC, ("raw", "topk")))
        == "encoding"
    )


def test_topk_is_refused_where_nothing_is_known() -> None:
    delta = Delta(np.array([0], dtype="<u4"), np.array([1], dtype="<f4"))
    data = file_of(CODEC.encode_delta(delta))
    receiver = ModelReceiver(CODEC, ("raw", "topk"), known=row_of())
    assert received(stream(data, encoding="topk"), receiver)[0] == row_of()[0] + 1
    assert (
        refused(stream(data, encoding="topk"), ModelReceiver(CODEC, ("raw", "topk"))) == "encoding"
    )


def moved(table: dict[str, Any], *, by: int) -> None:
    table["ärger.bias"]["data_offsets"] = [96 + by, 116 + by]


def shifted_border(table: dict[str, Any]) -> None:
    table["scale"]["data_offsets"] = [116, 124]
    table["nothing"]["data_offsets"] = [124, 124]
    table["a.last"]["data_offsets"] = [124, 176]


def renamed(table: dict[str, Any]) -> None:
    table["other"] = table.pop("scale")


HEADERS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "another name": ("name", renamed),
    "a name too few": ("name", lambda t: t.pop("nothing") and None),
    "a name too many": ("name", lambda t: t.update(more=t["nothing"])),
    "another dtype": ("dtype", lambda t: t["scale"].update(dtype="I32")),
    "a dtype that is not a text": ("dtype", lambda t: t["scale"].update(dtype=["F32"])),
    "another shape": ("shape", lambda t: t["a.last"].update(shape=[2, 7])),
    "a shape of floats": ("shape", lambda t: t["a.last"].update(shape=[7.0, 2])),
    "a shape of truths": ("shape", lambda t: t["nothing"].update(shape=[False, 3])),
    "no list as shape": ("shape", lambda t: t["a.last"].update(shape={"7": 2})),
    "a gap": ("offsets", lambda t: moved(t, by=4)),
    "an overlap": ("offsets", lambda t: moved(t, by=-4)),
    "a negative offset": ("offsets", lambda t: t["nothing"].update(data_offsets=[-1, -1])),
    "twice the same place": ("offsets", lambda t: moved(t, by=-96)),
    "a size that does not fit": ("offsets", lambda t: t["scale"].update(data_offsets=[116, 124])),
    "sizes that do not fit, without a gap": ("offsets", shifted_border),
    "an empty tensor far away": ("offsets", lambda t: t["nothing"].update(data_offsets=[999, 999])),
    "three offsets": ("offsets", lambda t: t["scale"].update(data_offsets=[116, 120, 120])),
    "offsets of floats": ("offsets", lambda t: t["scale"].update(data_offsets=[116.0, 120.0])),
    "no table in an entry": ("header", lambda t: t.update(scale=5)),
    "more in an entry": ("header", lambda t: t["scale"].update(more=1)),
    "metadata that is not a table": ("header", lambda t: t.update(__metadata__=[])),
    "metadata that is not a text": ("header", lambda t: t.update(__metadata__={"a": 1})),
    "metadata without bound": ("size", lambda t: t.update(__metadata__={"a": "b" * 2000})),
    "a list": ("header", lambda t: [t]),
}


@pytest.mark.parametrize("case", HEADERS)
def test_another_header_is_refused(case: str) -> None:
    reason, change = HEADERS[case]
    assert received(stream(with_header(lambda table: None))) is not None  # valid as it was
    assert refused(stream(with_header(change))) == reason


TEXTS: dict[str, bytes] = {
    "no JSON": b"{]",
    "no text": b"{\xff\xfe}",
    "too deep": b"[" * 1200,
    "too deep in a table": b'{"a":' * 240,
    "a number without end": b'{"a":' + b"9" * 1100 + b"}",
    "a name twice": b'{"__metadata__":{},"__metadata__":{}}',
    "another coding": "{}".encode("utf-16"),
    "blanks first": b"  {}",
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_header_that_is_no_table_is_refused(case: str) -> None:
    text = TEXTS[case]
    assert len(text) <= CODEC.max_header["raw"]
    data = len(text).to_bytes(8, "little") + text + b"\0" * CODEC.frame("raw", 0)[1]
    assert refused(stream(data)) == ("name" if case == "a number without end" else "header")


def test_a_header_longer_than_ours_by_far_is_refused() -> None:
    data = file_of(CODEC.encode(row_of()))
    long = CODEC.max_header["raw"] + 1
    for length in (0, 1, long, 2**63, 2**64 - 1):
        assert refused(stream(length.to_bytes(8, "little") + data[8:])) == "header"
    beyond_the_end = len(data) - 7
    assert beyond_the_end < long
    assert refused(stream(beyond_the_end.to_bytes(8, "little") + data[8:])) == "header"


def test_tensors_of_another_length_are_refused() -> None:
    data = file_of(CODEC.encode(row_of()))
    assert refused(stream(data + b"\0\0\0\0")) == "size"
    assert refused(stream(data[:-4])) == "size"


def test_data_after_the_end_is_refused() -> None:
    chunks = list(stream(file_of(CODEC.encode(row_of()))))
    assert refused(iter([*chunks, wire.Chunk(data=b"\0")])) == "size"
    assert refused(iter([*chunks, wire.Chunk(digest=b"\0" * 32)])) == "size"
    chunks[-1].data += b"\0"
    assert refused(iter(chunks)) == "size"


def test_a_stream_that_ends_early_is_refused() -> None:
    chunks = list(stream(file_of(CODEC.encode(row_of()))))
    for count in range(len(chunks)):
        assert refused(iter(chunks[:count])) == "truncated"
    assert refused(iter([*chunks[:-2], chunks[-1]])) == "truncated"


def test_a_chunk_is_never_empty_nor_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = list(stream(file_of(CODEC.encode(row_of()))))
    assert refused(iter([chunks[0], wire.Chunk()])) == "empty"
    monkeypatch.setattr(limits, "MODEL_CHUNK_BYTES", 49)
    assert refused(iter(chunks)) == "size"


def test_what_follows_is_said_once() -> None:
    chunks = list(stream(file_of(CODEC.encode(row_of()))))
    chunks[1].total = chunks[0].total
    assert refused(iter(chunks)) == "header"


def test_the_digest_is_that_of_the_data() -> None:
    data = file_of(CODEC.encode(row_of()))
    for place in (len(data) - 1, len(data) - 90):
        changed = bytearray(data)
        changed[place] ^= 1
        chunks = list(stream(bytes(changed)))
        received(iter(chunks))
        chunks[-1].digest = hashlib.sha256(data).digest()
        assert refused(iter(chunks)) == "digest"
    chunks = list(stream(data))
    chunks[-1].digest = b""
    assert refused(iter(chunks)) == "digest"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 10, -1])
def test_a_value_that_is_no_number_is_refused(value: float, place: int) -> None:
    row = row_of()
    data = file_of(CODEC.encode(row))
    row[place] = value
    assert refused(stream(data[: -row.nbytes] + row.tobytes())) == "nan"
    half = file_of(CODEC.encode(row_of(), "fp16"))
    data = half[: -row.nbytes // 2] + row.astype("<f2").tobytes()
    assert refused(stream(data, encoding="fp16")) == "nan"


def test_a_receiver_before_its_first_chunk_has_no_model() -> None:
    assert refused(iter([])) == "truncated"
