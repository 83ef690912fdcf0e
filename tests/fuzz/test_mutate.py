"""Some of the fuzzer's messages, without atheris: those that are changed field by field."""

from __future__ import annotations

import contextlib
import random

import pytest

from fedhp.cluster.protocol.guard import Refused
from fuzz.mutate import mutate
from net.good_messages import GOOD, SCENE, new_guard, take

MESSAGES = 200


@pytest.mark.parametrize("name", GOOD)
def test_a_changed_message_is_taken_or_refused(name: str) -> None:
    kind, rng = GOOD[name], random.Random(name)
    message = kind.make(SCENE)
    for number in range(MESSAGES):
        if number % 5 == 0:
            message = kind.make(SCENE)
        mutate(message, rng)
        received = type(message).FromString(message.SerializeToString())
        with contextlib.suppress(Refused):
            take(received, kind, guard=new_guard())
        with contextlib.suppress(Refused):  # the envelope rarely fits: check the fields anyway
            kind.check(received, SCENE)
