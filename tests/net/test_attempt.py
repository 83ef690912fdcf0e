"""Attempts: their order, and every form in which they are written down and read back."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Envelopes

ATTEMPTS = st.builds(
    Attempt, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)
)


def test_attempts_are_in_order() -> None:
    assert INITIAL < Attempt(1, 9, 9) < Attempt(2, 1, 1) < Attempt(2, 1, 2) < Attempt(2, 2, 1)
    assert Attempt(0, 0, 0) == INITIAL


def test_what_names_an_attempt() -> None:
    assert str(Attempt(3, 2, 1)) == "epoch 3, round 2, attempt 1"
    assert Attempt.after(Attempt(3, 2, 1), epoch=5) == Attempt(5, 2, 0)


@given(ATTEMPTS)
def test_an_attempt_comes_back_from_every_form(attempt: Attempt) -> None:
    sent = wire.Stand.FromString(attempt.to_wire().SerializeToString())
    assert Attempt.from_wire(sent) == attempt
    assert Attempt.from_wire(Envelopes("w").make(attempt=attempt)) == attempt
    assert Attempt.from_facts(json.loads(json.dumps(attempt.to_facts()))) == attempt
    assert Attempt.from_list(json.loads(json.dumps(attempt.to_list()))) == attempt


def test_the_attempt_of_an_order() -> None:
    committed = Attempt(2, 5, 3)
    order = wire.Order(epoch=4, committed=committed.to_wire())
    order.wait.SetInParent()
    assert Attempt.from_order(order) == committed
    order.work.round, order.work.attempt = 6, 2
    assert Attempt.from_order(order) == Attempt(4, 6, 2)
    order.act.round = 7
    assert Attempt.from_order(order) == Attempt(4, 7, 1)
