"""The parts of a setup: when two agree, in which order differences are named, what is sent."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.own_setup import data_parts, model_part, module_parts, setup_of
from fedhp.cluster.protocol.setup import (
    DATA,
    MODEL,
    MODULE,
    SKETCH_TOLERANCE,
    TEST,
    Setup,
    SetupPart,
    difference,
)
from fedhp.trust import NO_TRUST, Trust, TrustedModule
from fedhp.types import Dataset, FloatArray, Scaling

SKETCHED = SetupPart(MODEL, "a" * 64, "3 numbers", (100.0, -5.0))


@pytest.mark.parametrize(
    ("sketch", "agrees"),
    [
        ((100.0, -5.0), True),
        ((100.0009, -5.0009), True),
        ((99.9991, -4.9991), True),
        ((100.0011, -5.0), False),
        ((100.0, -5.0011), False),
        ((math.nan, -5.0), False),
        ((100.0,), False),
        ((), False),
    ],
)
def test_initial_values_agree_within_a_hundred_thousandth_of_the_norm(
    sketch: tuple[float, ...], agrees: bool
) -> None:
    other = replace(SKETCHED, digest="b" * 64, sketch=sketch)
    assert SKETCHED.agrees(other) is agrees
    assert replace(SKETCHED, sketch=sketch).agrees(SKETCHED)  # the digest is the same
    assert not SKETCHED.agrees(replace(other, facts="4 numbers"))


def test_without_a_sketch_only_the_digest_counts() -> None:
    part = SetupPart(DATA, "a" * 64)
    assert part.agrees(SetupPart(DATA, "a" * 64, "other words"))
    assert not part.agrees(SetupPart(DATA, "b" * 64))
    zero = SetupPart(MODEL, "a" * 64, sketch=(0.0, 0.0))
    assert zero.agrees(replace(zero, digest="b" * 64))
    at_the_limit = SetupPart(MODEL, "b" * 64, sketch=(1.0, SKETCH_TOLERANCE))
    assert SetupPart(MODEL, "a" * 64, sketch=(1.0, 0.0)).agrees(at_the_limit)


def test_what_is_shown_and_sent_of_a_part() -> None:
    assert SKETCHED.shown() == "aaaaaaaaaaaa (3 numbers)"
    assert SetupPart(DATA, "b" * 64).shown() == "bbbbbbbbbbbb"
    assert SetupPart.from_list(json.loads(json.dumps(astuple(SKETCHED)))) == SKETCHED
    setup = Setup((SKETCHED, SetupPart(DATA, "b" * 64)), True, (0.5,), (2.0, 4.0))
    sent = wire.Setup.FromString(setup.to_wire().SerializeToString())
    assert Setup.from_wire(sent) == setup
    plain = Setup(())
    assert (plain.private, plain.mean, plain.deviation) == (False, (), ())


def test_differences_are_named_with_the_likeliest_cause_first() -> None:
    names = (MODEL, TEST, DATA, f"{MODULE}own")
    here = [SetupPart(name, "a" * 64, "mine") for name in names]
    reference = {name: (SetupPart(name, "b" * 64), "w3") for name in names}
    text = difference(here, reference)
    places = [
        text.index(words)
        for words in ("its module own is", "its data set", "its test set", "its model is another")
    ]
    assert places == sorted(places)
    assert "it has aaaaaaaaaaaa (mine), w3 has bbbbbbbbbbbb" in text
    assert text.endswith("read it, and start this worker again")
    without = difference(here[:3], reference)
    assert "(--data-path)" in without.partition("To correct it")[2]
    assert difference(here, {}) == ""
    assert (
        difference(here, {name: (part, "w3") for name, part in zip(names, here, strict=True)}) == ""
    )


def test_modules_of_the_interpreter_are_not_compared() -> None:
    file = TrustedModule("own", Path("own.py"), "c" * 64)
    trust = Trust((file, TrustedModule("_imp", None, "")))
    assert module_parts(trust) == [SetupPart(f"{MODULE}own", "c" * 64)]


def dataset(*, classes: int | None = 2, channels: int = 1, scaled: bool = False) -> Dataset:
    """Three training samples and two test samples."""
    inputs = np.arange(5 * channels, dtype=np.float32).reshape(5, channels)
    values: FloatArray = np.full(channels, 0.5)
    scaling = Scaling(values.astype(np.float32), 2 * values.astype(np.float32))
    targets = np.zeros(5, dtype=np.int64)
    return Dataset(
        *("small", inputs[:3], targets[:3], inputs[3:], targets[3:], classes),
        scaling=scaling if scaled else None,
    )


def test_the_parts_of_a_data_set() -> None:
    train, test = data_parts(dataset())
    assert (train.name, train.facts) == (DATA, "3 training samples")
    assert (test.name, test.facts) == (TEST, "2 test samples of 1, 2 classes")
    assert data_parts(dataset(), private=True) == [test]
    (test,) = data_parts(dataset(classes=None, scaled=True), private=True)
    assert test.facts == "2 test samples of 1, no classes, scaled by 3 training samples"


@pytest.mark.parametrize(("channels", "sent"), [(1, 1), (64, 64), (65, 0)])
def test_the_scaling_is_sent_of_few_channels(channels: int, sent: int) -> None:
    module = nn.Linear(channels, 2)
    setup = setup_of(dataset(channels=channels, scaled=True), module, trust=NO_TRUST, private=True)
    assert (setup.mean, setup.deviation) == ((0.5,) * sent, (1.0,) * sent)
    assert setup.private
    assert [part.name for part in setup.parts] == [TEST, MODEL]
    plain = setup_of(dataset(), nn.Linear(1, 2), trust=NO_TRUST, private=False)
    assert (plain.mean, plain.deviation, plain.private) == ((), (), False)
    assert [part.name for part in plain.parts] == [DATA, TEST, MODEL]


def test_the_sketch_of_a_model() -> None:
    """The norm of all values, and their product with a cosine that goes on over all tensors."""
    module = nn.Linear(2, 3)
    values = np.concatenate([tensor.numpy().ravel() for tensor in module.state_dict().values()])
    part = model_part(module)
    assert part.name == MODEL
    assert part.facts == "9 numbers: weight 3x2, bias 3"
    norm, projection = part.sketch
    assert norm == pytest.approx(np.linalg.norm(values.astype(np.float64)))
    assert projection == pytest.approx(float(values @ np.cos(np.arange(9))))
    assert model_part(nn.BatchNorm1d(1)).facts.endswith("num_batches_tracked one number")


def test_the_facts_of_a_large_model_are_cut_and_still_tell_models_apart() -> None:
    facts = [
        model_part(nn.Sequential(*(nn.Linear(1, 1) for _ in range(count)))).facts
        for count in (40, 41)
    ]
    assert all(len(text) <= 300 for text in facts)
    assert facts[0][-8:] != facts[1][-8:]
    whole = "80 numbers: " + ", ".join(
        f"{index}.{name}" for index in range(40) for name in ("weight 1x1", "bias 1")
    )
    assert facts[0] == f"{whole[:280]} ... {hashlib.sha256(whole.encode()).hexdigest()[:8]}"
