"""What travels instead of a model, number by number: attacks, half precision, int8, topk."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp.config import parse
from fedhp.learn.attack import attackers_of, flipped_labels, poisoned
from fedhp.learn.quantize import (
    LARGEST_HALF,
    all_finite,
    as_received,
    from_int8,
    from_int8_blocks,
    received_share,
    scales_for,
    to_half,
    to_int8,
    to_int8_blocks,
)
from fedhp.learn.topk import (
    COPY_ROUNDS,
    Delta,
    add_delta,
    delta_share,
    is_kept,
    largest_changes,
    topk_count,
)
from fedhp.seeds import Purpose, generator

ROW = np.array([1.0, -2.0, 0.5, 4.0], dtype=np.float32)
LARGEST = float(np.finfo(np.float32).max)


def sent(kind: str, *, scale: float = 2.0, row: np.ndarray = ROW, trainable: int = 3) -> np.ndarray:
    tables = {"workers": 4, "attack": {"kind": kind, "share": 0.25, "scale": scale}}
    attack = parse(tables).attack
    return poisoned(row, attack, trainable=trainable, seed=3, worker=1, round_index=7)


def test_an_attacker_changes_the_trainable_columns_alone() -> None:
    assert sent("sign_flip").tolist() == [-2.0, 4.0, -1.0, 4.0]
    noise = generator(3, Purpose.ATTACK_NOISE, 1, 7).standard_normal(3, dtype=np.float32)
    np.testing.assert_array_equal(sent("noise")[:3], ROW[:3] + np.float32(2.0) * noise)
    assert sent("noise")[3] == 4.0
    huge = np.array([LARGEST, -LARGEST], dtype=np.float32)
    assert sent("sign_flip", row=huge, trainable=2).tolist() == [-LARGEST, LARGEST]
    assert ROW.tolist() == [1.0, -2.0, 0.5, 4.0]


def test_who_attacks_and_what_a_flipped_label_is() -> None:
    attack = parse({"workers": 10, "attack": {"kind": "label_flip", "share": 0.3}}).attack
    chosen = attackers_of(attack, workers=10, seed=5)
    drawn = generator(5, Purpose.ATTACKERS).permutation(10)[:3]
    assert chosen == tuple(sorted(drawn.tolist()))
    assert poisoned(ROW, attack, trainable=4, seed=0, worker=0, round_index=1) is ROW
    assert flipped_labels(np.array([0, 1, 9]), 10).tolist() == [9, 8, 0]


def test_half_precision_is_never_infinite() -> None:
    row = np.array([1e9, -1e9, 0.1, 2.0], dtype=np.float32)
    half = to_half(row)
    assert half.tolist() == [LARGEST_HALF, -LARGEST_HALF, float(np.float16(0.1)), 2.0]
    np.testing.assert_array_equal(as_received(row, "fp16", [4]), half.astype(np.float32))
    assert as_received(row, "none", [4]) is row
    assert not all_finite(np.array([0.0, np.inf]))
    assert not all_finite(np.array([0.0, np.nan]))
    assert all_finite(row)


def test_int8_has_a_scale_for_each_tensor() -> None:
    row = np.array([1.27, -0.635, 0.0, 0.0, 254.0], dtype=np.float32)
    codes, scales = to_int8(row, [2, 4, 5])
    assert codes.tolist() == [127, -64, 0, 0, 127]
    np.testing.assert_allclose(scales, [0.01, 0.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(from_int8(codes, scales, [2, 4, 5]), [1.27, -0.64, 0, 0, 254])
    np.testing.assert_array_equal(
        as_received(row, "int8", [2, 4, 5]), from_int8(codes, scales, [2, 4, 5])
    )
    largest = scales_for(np.array([LARGEST]))[0]
    assert np.isfinite(np.float32(127) * largest)
    assert 127 * float(np.nextafter(largest, np.float32(np.inf))) > LARGEST


def test_int8_blocks_are_256_long_and_the_last_may_be_shorter() -> None:
    row = np.zeros(600, dtype=np.float32)
    row[[0, 255, 256, 599]] = [127.0, -1.0, 254.0, 63.5]
    codes, scales = to_int8_blocks(row)
    assert scales.tolist() == [1.0, 2.0, 0.5]
    assert codes[[0, 255, 256, 599]].tolist() == [127, -1, 127, 127]
    assert np.count_nonzero(codes) == 4
    np.testing.assert_array_equal(from_int8_blocks(codes, scales), row)


@pytest.mark.parametrize(
    ("compression", "ends", "share"),
    [
        ("none", [10], 1.0),
        ("fp16", [10], 0.5),
        ("int8", [10], 14 / 40),
        ("int8", [4, 10], 18 / 40),
        ("fp16", [], 1.0),
        ("int8", [], 1.0),
    ],
)
def test_bytes_as_a_share_of_the_row(compression: str, ends: list[int], share: float) -> None:
    assert received_share(compression, ends) == share


def test_topk_takes_the_largest_and_of_equal_ones_the_first() -> None:
    difference = np.array([3.0, -5.0, 3.0, 0.0, -3.0], dtype=np.float32)
    for count, chosen in ((0, []), (1, [1]), (2, [0, 1]), (3, [0, 1, 2]), (9, [0, 1, 2, 4])):
        delta = largest_changes(difference, count)
        assert delta.indices.tolist() == chosen
        assert delta.values.tolist() == difference[chosen].tolist()
    infinite = largest_changes(np.array([np.inf, -np.inf, 1.0], dtype=np.float32), 2)
    assert infinite.values.tolist() == [LARGEST, -LARGEST]
    delta = Delta(np.array([0, 3], dtype=np.uint32), np.array([1.0, -4.0], dtype=np.float32))
    assert add_delta(ROW, delta).tolist() == [2.0, -2.0, 0.5, 0.0]
    assert ROW[0] == 1.0


def test_when_topk_is_shorter_and_how_long_copies_count() -> None:
    assert [topk_count(share, 10) for share in (0.01, 0.1, 0.11, 0.5, 0.51)] == [1, 1, 2, 5, 0]
    assert topk_count(0.5, 11) == 0  # 6 values and their places are more than 11
    assert delta_share(5, 10) == 1.0
    assert delta_share(1, 10) == 0.2
    assert delta_share(0, 0) == 1.0
    assert is_kept(4, 4 + COPY_ROUNDS)
    assert not is_kept(4, 5 + COPY_ROUNDS)
