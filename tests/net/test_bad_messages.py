"""Every bad message of the table is refused with its word; every good one is taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import BAD_REASONS, CALL_RULES, LATE_REASONS, Refused
from fedhp.cluster.protocol.message_checks import check_address, check_report, check_text, one_line
from net.bad_messages import BAD_MESSAGES, Bad
from net.good_messages import GOOD, SCENE, Kind, Scene, new_guard, take

SCENES = [SCENE, Scene(name="a", worker=0, workers=10_000), Scene(name="b", worker=5)]


def copied(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def refusal(message: Any, kind: Kind) -> str | None:
    try:
        take(message, kind, guard=new_guard())
    except Refused as refused:
        return refused.reason
    return None


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
@pytest.mark.parametrize("name", GOOD)
def test_a_good_message_is_taken(name: str, scene: Scene) -> None:
    kind = GOOD[name]
    take(copied(kind.make(scene)), kind, guard=new_guard(scene), scene=scene)


@pytest.mark.parametrize("bad", BAD_MESSAGES, ids=lambda bad: bad.name)
def test_a_bad_message_is_refused_with_its_word(bad: Bad) -> None:
    kind, guard = GOOD[bad.kind], new_guard()
    message = kind.make(SCENE)
    if bad.second:
        take(message, kind, guard=guard)
        message = copied(message)
    bad.spoil(message, SCENE)
    with pytest.raises(Refused) as refused:
        take(copied(message), kind, guard=guard)
    assert refused.value.reason == bad.reason
    assert refused.value.bad == (bad.reason in BAD_REASONS)
    check_text(refused.value.text, "the text of a refusal", most=400)


@pytest.mark.parametrize("name", [name for name, kind in GOOD.items() if kind.call])
def test_the_checks_want_an_envelope_even_where_no_guard_stands(name: str) -> None:
    message = GOOD[name].make(SCENE)
    message.ClearField("envelope")
    with pytest.raises(Refused, match="has no envelope"):
        GOOD[name].check(message, SCENE)


def test_the_table_has_every_word_and_kind_and_no_name_twice() -> None:
    names = [bad.name for bad in BAD_MESSAGES]
    assert len(set(names)) == len(names) >= 60
    # These depend on who calls or what, not on what the message says: test_guard.py,
    # attacks/test_partners.py and attacks/test_garbage.py have them.
    callers = {"unknown", "quarantined", "role", "ticket", "method"}
    assert {bad.reason for bad in BAD_MESSAGES} == (BAD_REASONS | LATE_REASONS) - callers
    assert {bad.kind for bad in BAD_MESSAGES} | {"Status"} == set(GOOD)
    assert not BAD_REASONS & LATE_REASONS


def test_every_call_of_the_services_has_a_rule_and_every_request_a_good_message() -> None:
    services = wire.DESCRIPTOR.services_by_name.values()
    calls = {method.name: method for service in services for method in service.methods}
    assert set(CALL_RULES) == set(calls)
    for call, method in calls.items():
        messages = [kind.make(SCENE) for kind in GOOD.values() if kind.call == call]
        assert messages, call
        assert {message.DESCRIPTOR for message in messages} == {method.input_type}


def doubles(message: Any) -> Iterator[tuple[Any, str]]:
    """Every double in a message, inner messages too, as (owner, field)."""
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_DOUBLE and not field.is_repeated:
            yield message, field.name
        if field.type == field.TYPE_MESSAGE:
            value = getattr(message, field.name)
            if field.is_repeated:
                yield from itertools.chain.from_iterable(map(doubles, value))
            elif message.HasField(field.name):
                yield from doubles(value)


@pytest.mark.parametrize("name", GOOD)
def test_no_infinite_number_is_taken_anywhere(name: str) -> None:
    kind = GOOD[name]
    for index in range(len(list(doubles(kind.make(SCENE))))):
        for value in (float("inf"), float("-inf")):
            message = kind.make(SCENE)
            owner, field = list(doubles(message))[index]
            setattr(owner, field, value)
            with pytest.raises(Refused, match="infinite"):
                take(message, kind, guard=new_guard())


MEASURED = {"smoothness", "gradient_variance", "start_loss", "accuracy", "whole_accuracy"}


@pytest.mark.parametrize("name", GOOD)
def test_nan_is_taken_only_where_it_says_not_measured(name: str) -> None:
    kind = GOOD[name]
    taken = set()
    for index in range(len(list(doubles(kind.make(SCENE))))):
        message = kind.make(SCENE)
        owner, field = list(doubles(message))[index]
        setattr(owner, field, float("nan"))
        if refusal(message, kind) is None:
            taken.add(field)
        else:
            assert refusal(message, kind) == "nan", field
    wanted = {
        "Next": {"distance"},
        **dict.fromkeys(("Report", "Group report", "Failed"), MEASURED | {"distance"}),
        "StatusReply": {"accuracy"},
    }
    assert taken == wanted.get(name, set())


def texts(message: Any) -> Iterator[tuple[Any, str]]:
    """Every text in a message outside its envelope, as (owner, field)."""
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING and field.containing_oneof is None:
            yield message, field.name
        if field.type == field.TYPE_MESSAGE and field.name != "envelope":
            value = getattr(message, field.name)
            if field.is_repeated:
                yield from itertools.chain.from_iterable(map(texts, value))
            elif message.HasField(field.name):
                yield from texts(value)


@pytest.mark.parametrize("name", GOOD)
def test_no_text_anywhere_may_be_endless_or_hold_a_control_character(name: str) -> None:
    kind: Kind = GOOD[name]
    for index in range(len(list(texts(kind.make(SCENE))))):
        for value in ("x" * (limits.EXPERIMENT_BYTES + 1), "a\0b", "\x1b[2J"):
            message = kind.make(SCENE)
            owner, field = list(texts(message))[index]
            if owner.DESCRIPTOR.fields_by_name[field].is_repeated:
                getattr(owner, field).append(value)
            else:
                setattr(owner, field, value)
            with pytest.raises(Refused):
                take(message, kind, guard=new_guard())


ADDRESSES = [
    *("localhost:1", "node_1:65535", "a.b-c.example:7000", "xn--bcher-kva.example:443"),
    *("127.0.0.1:7000", "[::1]:7000", "[2001:db8::1]:7000", "[::ffff:10.0.0.1]:80"),
]
NO_ADDRESSES = [
    *("", ":", ":80", "a:", "a:b", "a:-1", "a:+80", "a: 80", "a:0x50", "a:000080", "a..b:80"),
    *(".a:80", "a.:80", "-a:80", "a-:80", "a/b:80", "a b:80", "ä:80", "é.example:80", "a:80:80"),
    *("[]:80", "[::1]", "::1:80", "[::1%lo]:80", "[127.0.0.1]:80", "[::1]]:80", "[::]:80"),
    *("1.2.3:80", "256.1.1.1:80", "127.1:80", "0x7f000001:80", "01.2.3.4:80", "224.0.0.1:80"),
    *("a" * 64 + ":80", "http://a:80", "unix:a", "ipv4:1.2.3.4:80", "a:80\n", "a\n:80", "a\0:80"),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address(address: str) -> None:
    check_address(address, "it")


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_no_address(address: str) -> None:
    with pytest.raises(Refused, match="address"):
        check_address(address, "it")


@settings(deadline=None)
@given(st.text(max_size=100), st.integers(3, 120))
def test_one_line_of_any_text_is_taken(text: str, most: int) -> None:
    line = one_line(text, most=most)
    check_text(line, "it", most=most)
    if text.isprintable() and text == " ".join(text.split()) and len(text) <= most:
        assert line == text


def test_a_whole_report_of_a_large_federation_is_taken() -> None:
    scene = Scene(worker=0, workers=limits.MAX_WORKERS)
    report = GOOD["Report"].make(scene)
    del report.links[:], report.selected[:]
    report.links.extend(wire.LinkReport(worker=worker) for worker in range(1, limits.MAX_WORKERS))
    check_report(report, workers=scene.workers, worker=0, attempt=scene.attempt)
