"""Compression: bounds of the error, topk's error feedback, copies that never differ unnoticed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedhp.cluster.protocol import codec as model_exchange
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.codec import (
    BadModel,
    Encoded,
    IncomingModels,
    ModelCodec,
    ModelReceiver,
    OutgoingModel,
    row_digest,
)
from fedhp.learn.params import Layout, Slot
from fedhp.learn.quantize import LARGEST_FLOAT, LARGEST_HALF, Row, from_int8, to_half, to_int8
from fedhp.learn.topk import Delta, add_delta, largest_changes, topk_count

WIDTH = 1000
SLOTS = (Slot("a", (30, 20), 0, 600), Slot("b", (400,), 600, WIDTH))
CODEC = ModelCodec(Layout(SLOTS, (), WIDTH, WIDTH, WIDTH, 0))
ENVELOPE = wire.Envelope(version=1)
TINIEST = float(np.finfo(np.float32).smallest_subnormal)
ROWS = arrays.arrays(
    np.float32,
    st.integers(0, 60),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def walk(steps: int, *, size: float = 0.01, seed: int = 3) -> Iterator[Row]:
    """A model that moves as in training: all values, a few of them more."""
    rng = np.random.default_rng(seed)
    speed = size * np.exp(rng.standard_normal(WIDTH))
    row = rng.standard_normal(WIDTH)
    for _ in range(steps):
        row = row + speed * (0.5 + rng.standard_normal(WIDTH))
        yield row.astype(np.float32)


def sent_over(encoded: Encoded, receiver: ModelReceiver) -> ModelReceiver:
    for chunk in encoded.chunks(ENVELOPE):
        receiver.push(chunk)
    return receiver


def pull(outgoing: OutgoingModel, incoming: IncomingModels) -> tuple[str, Row]:
    base, receiver = incoming.begin("peer")
    encoded = outgoing.take("reader", base)
    return encoded.encoding, incoming.finish("peer", sent_over(encoded, receiver))


def pair(compression: str, share: float = 0.1) -> tuple[OutgoingModel, IncomingModels]:
    return (
        OutgoingModel(CODEC, compression=compression, share=share),
        IncomingModels(CODEC, compression=compression),
    )


def refused(data: bytes, encoding: str, known: Row | None = None) -> str:
    receiver = ModelReceiver(CODEC, (encoding,), known=known)
    digest = hashlib.sha256(data).digest()
    try:
        receiver.push(wire.Chunk(total=len(data), encoding=encoding, data=data, digest=digest))
        receiver.finish()
    except BadModel as error:
        return error.reason
    return "taken"


def tampered(encoded: Encoded, change: Callable[[bytearray], None]) -> bytes:
    """The same header, but other tensors."""
    body = bytearray(b"".join(encoded.parts[1:]))
    change(body)
    return bytes(encoded.parts[0]) + bytes(body)


@settings(deadline=None)
@given(ROWS)
def test_half_precision_is_near_and_never_infinite(row: Row) -> None:
    back = to_half(row).astype(np.float64)
    near = np.clip(row.astype(np.float64), -LARGEST_HALF, LARGEST_HALF)
    assert np.isfinite(back).all()
    assert (np.abs(back - near) <= np.abs(near) * 2.0**-11 + 2.0**-25).all()


def test_the_range_of_half_precision_ends_at_its_largest_number() -> None:
    row = np.array(
        [65504, 65519, 65520, 1e6, LARGEST_FLOAT, -65520, -LARGEST_FLOAT], dtype=np.float32
    )
    assert to_half(row).tolist() == [LARGEST_HALF] * 5 + [-LARGEST_HALF] * 2


@settings(deadline=None)
@given(ROWS, st.integers(0, 60))
def test_int8_is_half_a_step_off_at_most(row: Row, cut: int) -> None:
    ends = (min(cut, len(row)), len(row))
    codes, scales = to_int8(row, ends)
    back = from_int8(codes, scales, ends).astype(np.float64)
    assert np.isfinite(back).all()
    assert codes.min(initial=0) >= -127
    for start, end, scale in zip((0, ends[0]), ends, scales.tolist(), strict=True):
        top = float(np.abs(row[start:end].astype(np.float64)).max(initial=0.0))
        assert scale == pytest.approx(top / 127, rel=1e-6, abs=TINIEST)
        off = np.abs(back[start:end] - row[start:end])
        # Scales so small that float32 has few digits left are off by some of its least steps.
        assert (off <= scale * 0.5001 + top * 1e-6 + 128 * TINIEST).all()


def test_int8_has_one_scale_for_each_tensor() -> None:
    row = np.concatenate([np.full(600, 1e-4), np.full(400, 50.0)]).astype(np.float32)
    codes, scales = to_int8(row, CODEC.ends)
    np.testing.assert_allclose(from_int8(codes, scales, CODEC.ends), row, rtol=1e-6)
    row[:600] = 0
    codes, scales = to_int8(row, CODEC.ends)
    assert scales[0] == 0
    assert not codes[:600].any()
    assert not from_int8(codes, scales, CODEC.ends)[:600].any()


def test_int8_of_the_largest_numbers_stays_finite() -> None:
    for top in (LARGEST_FLOAT, np.nextafter(np.float32(LARGEST_FLOAT), np.float32(0))):
        row = np.array([top, -top, 1.0], dtype=np.float32)
        codes, scales = to_int8(row, (3,))
        assert codes.tolist() == [127, -127, 0]
        assert np.isfinite(from_int8(codes, scales, (3,))).all()


@pytest.mark.parametrize(("compression", "bound"), [("none", 0.0), ("fp16", 2e-3), ("int8", 0.02)])
def test_a_pull_brings_the_model(compression: str, bound: float) -> None:
    outgoing, incoming = pair(compression)
    with pytest.raises(LookupError, match="no model"):
        outgoing.take("reader")
    for row in walk(3):
        outgoing.offer(row)
        assert outgoing.take("a") is outgoing.take("b")  # encoded once
        encoding, back = pull(outgoing, incoming)
        assert encoding == {"none": "raw"}.get(compression, compression)
        assert np.abs(back - row).max() <= bound
        assert incoming.begin("peer")[0] == b""


@settings(deadline=None)
@given(ROWS, st.integers(0, 70))
def test_the_largest_are_chosen_by_rising_index(row: Row, count: int) -> None:
    delta = largest_changes(row, count)
    order = np.argsort(-np.abs(row), kind="stable")[:count]
    expected = np.sort(order[row[order] != 0])
    assert delta.indices.tolist() == expected.tolist()
    assert delta.values.tolist() == row[expected].tolist()


def test_topk_sends_the_share_of_the_values_that_was_asked_for() -> None:
    assert topk_count(0.1, 1000) == 100
    assert topk_count(0.0001, 1000) == 1
    assert topk_count(0.5, 1001) == 0  # as long as raw: raw is sent
    assert topk_count(1.0, 1000) == 0
    outgoing, incoming = pair("topk")
    first, second = walk(2)
    outgoing.offer(first)
    assert pull(outgoing, incoming)[0] == "raw"
    outgoing.offer(second)
    encoded = outgoing.take("reader", incoming.begin("peer")[0])
    assert encoded.total - len(encoded.parts[0]) == 8 * 100


def test_topk_with_error_feedback_follows_a_moving_model() -> None:
    """At 10 % of the values: as near as a few rounds of movement; without feedback it is lost."""
    outgoing, incoming = pair("topk")
    rows = list(walk(50))
    without = rows[0].copy()
    errors, lost = [], []
    for before, row in zip([rows[0], *rows], rows, strict=False):
        outgoing.offer(row)
        encoding, back = pull(outgoing, incoming)
        assert encoding == ("raw" if row is rows[0] else "topk")
        errors.append(float(np.linalg.norm(back - row)))
        without = add_delta(without, largest_changes(row - before, topk_count(0.1, WIDTH)))
        lost.append(float(np.linalg.norm(without - row)))
    moved = float(np.linalg.norm(rows[-1] - rows[0]))
    assert errors[-1] < 0.1 * moved
    assert errors[-1] < 1.3 * errors[20]  # it does not pile up
    assert lost[-1] > 3 * errors[-1]
    assert lost[-1] > 1.5 * lost[20]
    for _ in range(9):  # the model rests: all that was left out arrives
        back = pull(outgoing, incoming)[1]
    np.testing.assert_allclose(back, rows[-1], rtol=1e-6, atol=1e-6)


def test_a_transfer_that_failed_is_made_good() -> None:
    """Whatever is lost on the way, the copies of both sides agree at the next delta."""
    rng = np.random.default_rng(5)
    outgoing, incoming = pair("topk")
    encodings = []
    for row in walk(60):
        outgoing.offer(row)
        if rng.random() < 0.4:  # the reader never gets it
            outgoing.take("reader", incoming.begin("peer")[0])
            continue
        encoding, back = pull(outgoing, incoming)
        encodings.append(encoding)
        assert incoming.begin("peer")[0] == row_digest(back)
    assert encodings[0] == "raw"
    assert set(encodings[1:]) == {"topk"}
    for _ in range(9):
        back = pull(outgoing, incoming)[1]
    np.testing.assert_allclose(back, row, rtol=1e-6, atol=1e-6)


def test_a_copy_that_is_none_of_the_two_known_ones_gets_the_whole_model() -> None:
    outgoing, incoming = pair("topk")
    first, second, third, fourth = walk(4)
    outgoing.offer(first)
    pull(outgoing, incoming)
    old, receiver = incoming.begin("peer")
    outgoing.offer(second)
    late = outgoing.take("reader", old)  # on its way while the reader asks again
    outgoing.offer(third)
    outgoing.take("reader", old)
    incoming.finish("peer", sent_over(late, receiver))
    outgoing.offer(fourth)
    encoding, back = pull(outgoing, incoming)
    assert encoding == "raw"
    assert np.array_equal(back, fourth)
    assert outgoing.take("reader", b"x" * 32).encoding == "raw"
    assert outgoing.take("another", incoming.begin("peer")[0]).encoding == "raw"


def test_two_pulls_at_once_do_not_mix_their_copies() -> None:
    outgoing, incoming = pair("topk")
    first, second = walk(2)
    outgoing.offer(first)
    pull(outgoing, incoming)
    outgoing.offer(second)
    base, receiver = incoming.begin("peer")
    answer = sent_over(outgoing.take("reader", base), receiver)
    expected = pull(outgoing, incoming)[1]  # another one is faster
    assert np.array_equal(incoming.finish("peer", answer), expected)


def test_only_the_last_readers_and_peers_are_remembered() -> None:
    first, second = walk(2)
    outgoing = OutgoingModel(CODEC, compression="topk", readers=2)
    outgoing.offer(first)
    for reader in "abc":
        assert outgoing.take(reader).encoding == "raw"
    outgoing.offer(second)
    assert outgoing.take("c", row_digest(first)).encoding == "topk"
    assert outgoing.take("a", row_digest(first)).encoding == "raw"
    incoming = IncomingModels(CODEC, compression="topk", peers=2)
    for peer in "abc":
        incoming.finish(peer, sent_over(outgoing.take(peer), incoming.begin(peer)[1]))
    assert [bool(incoming.begin(peer)[0]) for peer in "abc"] == [False, True, True]


def test_a_failure_of_the_sender_does_not_spoil_what_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outgoing, incoming = pair("topk")
    first, second = walk(2)
    outgoing.offer(first)
    pull(outgoing, incoming)
    outgoing.offer(second)
    pull(outgoing, incoming)

    def no_memory(difference: Row, count: int) -> Delta:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(model_exchange, "largest_changes", no_memory)
        with pytest.raises(MemoryError):
            outgoing.take("reader", incoming.begin("peer")[0])
    for _ in range(2):
        assert pull(outgoing, incoming)[0] == "topk"


def test_a_copy_is_nobody_elses() -> None:
    outgoing, incoming = pair("topk")
    (row,) = walk(1)
    before = row.copy()
    outgoing.offer(row)
    back = pull(outgoing, incoming)[1]
    back -= 7
    row *= 2
    outgoing.offer(row)
    encoding, back = pull(outgoing, incoming)
    assert encoding == "topk"
    assert np.array_equal(back, add_delta(before, largest_changes(row - before, 100)))


def test_differences_that_float32_cannot_hold_arrive_in_the_end() -> None:
    outgoing, incoming = pair("topk", share=0.4)
    row = np.zeros(WIDTH, dtype=np.float32)
    row[:3] = -LARGEST_FLOAT
    outgoing.offer(row.copy())
    pull(outgoing, incoming)
    row[:3] = LARGEST_FLOAT
    outgoing.offer(row)
    for _ in range(3):
        encoding, back = pull(outgoing, incoming)
        assert encoding == "topk"
    assert np.array_equal(back, row)


DELTA = Delta(np.array([3, 5, 999], dtype="<u4"), np.array([1, 2, 3], dtype="<f4"))


def with_pairs(indices: list[int], values: list[float]) -> bytes:
    count = np.array(indices, dtype="<u4"), np.array(values, dtype="<f4")
    return b"".join(CODEC.encode_delta(Delta(*count)).parts)


@pytest.mark.parametrize(
    ("indices", "values", "reason"),
    [
        ([5, 3, 999], [1, 2, 3], "index"),
        ([3, 3, 999], [1, 2, 3], "index"),
        ([3, 5, 1000], [1, 2, 3], "index"),
        ([2**32 - 1], [1], "index"),
        ([3, 5, 999], [1, np.nan, 3], "nan"),
        ([3, 5, 999], [1, np.inf, 3], "nan"),
        ([3, 5, 999], [1, LARGEST_FLOAT, 3], "nan"),  # infinite once it is added
        (list(range(501)), [1.0] * 501, "size"),
    ],
)
def test_a_wrong_delta_is_refused(indices: list[int], values: list[float], reason: str) -> None:
    known = np.full(WIDTH, 1e38, dtype=np.float32)
    before = known.copy()
    assert refused(with_pairs(indices, values), "topk", known) == reason
    assert np.array_equal(known, before)


def test_a_signalling_nan_reaches_no_arithmetic() -> None:
    """It would make numpy warn; warnings are errors here."""

    def change(body: bytearray) -> None:
        body[-4:] = bytes.fromhex("0100807f")

    data = tampered(CODEC.encode_delta(DELTA), change)
    assert refused(data, "topk", np.ones(WIDTH, dtype=np.float32)) == "nan"


def test_a_delta_of_another_count_than_announced_is_refused() -> None:
    data = with_pairs([3, 5, 999], [1, 2, 3])
    assert refused(data[:-8], "topk", np.zeros(WIDTH, np.float32)) == "shape"
    assert refused(data[:-4], "topk", np.zeros(WIDTH, np.float32)) == "size"
    empty = ModelReceiver(CODEC, ("topk",), known=np.ones(WIDTH, np.float32))
    none = CODEC.encode_delta(Delta(DELTA.indices[:0], DELTA.values[:0]))
    assert sent_over(none, empty).finish().sum() == WIDTH


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, LARGEST_FLOAT / 100])
def test_a_wrong_scale_is_refused(scale: float) -> None:
    encoded = CODEC.encode(np.ones(WIDTH, dtype=np.float32), "int8")

    def change(body: bytearray) -> None:
        body[:4] = np.float32(scale).tobytes()

    assert refused(tampered(encoded, change), "int8") == (
        "nan" if scale == LARGEST_FLOAT / 100 else "scale"
    )


def test_a_code_below_the_least_is_refused() -> None:
    encoded = CODEC.encode(np.ones(WIDTH, dtype=np.float32), "int8")

    def change(body: bytearray) -> None:
        body[-1] = 0x80

    assert refused(tampered(encoded, change), "int8") == "range"
