"""Envelopes: who may send, each message once, epochs that only rise, quarantine, no leaks."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedhp.cluster.protocol import guard as module
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import (
    BAD_REASONS,
    CALL_RULES,
    LATE_REASONS,
    OPERATOR_ROLE,
    STRIKE_SECONDS,
    WORKER_ROLE,
    CallRule,
    Envelopes,
    Guard,
    Refused,
    quoted,
)

RUN = "ab" * 16
ROLES = frozenset({WORKER_ROLE})
ANY = CallRule(ROLES, "any")


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def new_guard(epoch: int = 0, clock: Clock | None = None, quarantine: float | None = None) -> Guard:
    return Guard(run=RUN, epoch=epoch, quarantine=quarantine, clock=clock or Clock())


def sent(sequence: int, *, incarnation: int = 5, name: str = "w") -> wire.Envelope:
    return wire.Envelope(
        version=limits.PROTOCOL_VERSION,
        run=RUN,
        sender=name,
        incarnation=incarnation,
        sequence=sequence,
    )


def reason(guard: Guard, envelope: wire.Envelope, *, rule: CallRule = ANY, peer: str = "w") -> str:
    """The word of the refusal, empty if the message was taken."""
    try:
        guard.check(envelope, peer=peer, roles=ROLES, rule=rule)
    except Refused as refused:
        return refused.reason
    return ""


def test_envelopes_carry_what_is_asked_and_rise() -> None:
    envelopes = Envelopes("w", clock=lambda: 77)
    first = envelopes.make(run=RUN, attempt=Attempt(4, 3, 2))
    assert first == wire.Envelope(
        version=limits.PROTOCOL_VERSION,
        run=RUN,
        epoch=4,
        round=3,
        attempt=2,
        sender="w",
        incarnation=77,
        sequence=1,
    )
    assert envelopes.make().sequence == 2
    assert Envelopes("w").incarnation < Envelopes("w").incarnation


def test_a_clock_that_was_set_back_makes_no_older_process() -> None:
    assert Envelopes("w", after=100, clock=lambda: 7).incarnation == 101
    assert Envelopes("w", after=100, clock=lambda: 700).incarnation == 700


def test_threads_never_share_a_sequence_number() -> None:
    envelopes = Envelopes("w")
    sequences: list[int] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait(10)
        sequences.extend([envelopes.make().sequence for _ in range(500)])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places within a single statement
    try:
        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(sequences) == list(range(1, 4001))


def test_both_versions_and_who_must_update_are_named() -> None:
    for version, behind in (
        (limits.PROTOCOL_VERSION + 1, "receiver"),
        (limits.PROTOCOL_VERSION - 1, "sender"),
    ):
        envelope = sent(1)
        envelope.version = version
        with pytest.raises(Refused) as refused:
            new_guard().check(envelope, peer="w", roles=ROLES, rule=ANY)
        assert refused.value.reason == "version"
        assert f"version {version}" in refused.value.text
        assert f"version {limits.PROTOCOL_VERSION}" in refused.value.text
        assert f"update fedhp on the {behind}'s machine" in refused.value.text


def test_the_run_may_be_left_out_only_where_the_rule_says_so() -> None:
    guard, free = new_guard(), CallRule(ROLES, "any", without_run=True)
    empty, wrong = sent(1), sent(2)
    empty.run, wrong.run = "", "cd" * 16
    assert reason(guard, empty) == "run"
    assert reason(guard, wrong, rule=free) == "run"
    assert reason(guard, empty, rule=free) == ""
    assert [name for name, rule in CALL_RULES.items() if rule.without_run] == [
        *("Join", "Status", "DialBack")
    ]


def test_a_question_that_changes_nothing_replaces_no_process() -> None:
    """`fedhp doctor` with the name of a worker that runs does not stop that worker."""
    guard, question = new_guard(), CallRule(ROLES, "any", replaces=False)
    later = sent(1)
    later.incarnation += 1
    assert reason(guard, later, rule=question) == ""
    assert reason(guard, sent(1)) == ""
    assert [name for name, rule in CALL_RULES.items() if not rule.replaces] == [
        *("Status", "DialBack")
    ]


def test_a_process_without_a_run_takes_nothing_of_one() -> None:
    guard = Guard(run=None)
    with pytest.raises(Refused, match="not joined a run"):
        guard.check(sent(1), peer="w", roles=ROLES, rule=ANY)
    guard.run = RUN
    assert reason(guard, sent(1)) == ""


def test_only_the_roles_of_a_call_may_make_it() -> None:
    guard = new_guard()
    assert reason(guard, sent(1), rule=CALL_RULES["Command"]) == "role"
    both = frozenset({WORKER_ROLE, OPERATOR_ROLE})
    guard.check(sent(1), peer="w", roles=both, rule=CALL_RULES["Command"])


def test_strangers_leave_nothing_behind() -> None:
    guard = new_guard()
    for index in range(1000):
        name = f"stranger-{index}"
        with pytest.raises(Refused) as refused:
            guard.check(sent(1, name=name), peer=name, roles=frozenset(), rule=ANY)
        assert refused.value.reason == "unknown"
        assert not guard.strike(name, "unknown")
        assert not guard.strike(name, "sender")
    assert guard.counts() == {("", "unknown"): 1000, ("", "sender"): 1000}
    assert not guard._senders


def test_a_name_costs_the_same_however_much_and_however_oddly_it_sends() -> None:
    guard = new_guard()
    for sequence in (*range(1, 3 * limits.SEQUENCE_WINDOW), 2**40, 2**63, 2**64 - 1):
        assert reason(guard, sent(sequence)) == ""
        assert guard._senders["w"].seen.bit_length() <= limits.SEQUENCE_WINDOW
    for _ in range(1000):
        guard.strike("w", "nan")
    assert len(guard._senders["w"].strikes) == limits.STRIKES
    assert len(guard.counts()) == 1


def test_a_later_process_replaces_an_earlier_one_and_starts_over() -> None:
    guard = new_guard()
    assert reason(guard, sent(9, incarnation=5)) == ""
    assert reason(guard, sent(9, incarnation=6)) == ""
    assert reason(guard, sent(10, incarnation=5)) == "incarnation"
    assert reason(guard, sent(9, incarnation=6)) == "replay"
    assert reason(guard, sent(1, incarnation=6)) == ""


def test_a_refused_message_does_not_replace_a_process() -> None:
    guard = new_guard()
    forged = sent(1, incarnation=2**64 - 1)
    forged.run = "cd" * 16
    assert reason(guard, forged) == "run"
    assert reason(guard, sent(1)) == ""


def test_another_name_does_not_replace_a_process() -> None:
    guard = new_guard()
    assert reason(guard, sent(1)) == ""
    assert reason(guard, sent(1, incarnation=9), peer="x") == "sender"
    assert reason(guard, sent(2)) == ""


class NaiveWindow:
    """All that was ever seen, in sets; the rule of the window in plain words."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.seen: set[int] = set()

    def take(self, incarnation: int, sequence: int) -> str:
        if incarnation < self.incarnation:
            return "incarnation"
        if incarnation > self.incarnation:
            self.incarnation, self.seen = incarnation, set()
        oldest = max(self.seen, default=0) - limits.SEQUENCE_WINDOW + 1
        if sequence in self.seen or sequence < oldest:
            return "replay"
        self.seen.add(sequence)
        return ""


WINDOW = limits.SEQUENCE_WINDOW
NEAR = st.sampled_from([1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 2**64 - 1])
NUMBERS = st.one_of(NEAR, st.integers(1, 12), st.integers(1, 3 * WINDOW), st.integers(1, 2**64 - 1))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), NUMBERS), max_size=60))
@example([(1, WINDOW + 1), (1, 1), (1, 2), (1, 2)])
@example([(1, 1), (1, WINDOW), (1, 1), (1, WINDOW + 1), (1, 1)])
@example([(1, 1), (1, 2**64 - 1), (1, 2**64 - WINDOW), (1, 2**64 - WINDOW - 1)])
def test_the_window_is_that_of_plain_sets(messages: list[tuple[int, int]]) -> None:
    guard, naive = new_guard(), NaiveWindow()
    for incarnation, sequence in messages:
        refusal = reason(guard, sent(sequence, incarnation=incarnation))
        assert refusal == naive.take(incarnation, sequence), (incarnation, sequence)


@settings(deadline=None)
@given(st.permutations(range(1, 41)), st.lists(st.integers(0, 39), max_size=40))
def test_a_shuffled_stream_is_taken_whole_and_once(order: list[int], again: list[int]) -> None:
    guard = new_guard()
    assert [reason(guard, sent(sequence)) for sequence in order] == [""] * len(order)
    assert {reason(guard, sent(order[index])) for index in again} <= {"replay"}


def test_threads_that_bring_one_message_get_it_in_once() -> None:
    guard = new_guard()
    taken: list[int] = []
    start = threading.Barrier(4)

    def bring() -> None:
        start.wait(10)
        taken.extend(sequence for sequence in range(1, 500) if not reason(guard, sent(sequence)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=bring) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(taken) == list(range(1, 500))


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=30))
def test_a_worker_obeys_epochs_that_never_fall(epochs: list[int]) -> None:
    guard, largest = new_guard(), 1
    for epoch in epochs:
        if epoch >= largest:
            guard.obey(epoch)
            largest = epoch
        else:
            with pytest.raises(Refused, match="epoch") as refused:
                guard.obey(epoch)
            assert not refused.value.bad
    assert guard.epoch == max(epochs, default=0)


@pytest.mark.parametrize(
    ("call", "taken"), [("Report", {5}), ("Pull", {5, 6}), ("Next", {0, 4, 5, 6})]
)
def test_the_epochs_that_a_call_may_be_of(call: str, taken: set[int]) -> None:
    guard = new_guard(epoch=5)
    accepted = set()
    for sequence, epoch in enumerate((0, 4, 5, 6), start=1):
        envelope = sent(sequence)
        envelope.epoch = epoch
        if not reason(guard, envelope, rule=CALL_RULES[call]):
            accepted.add(epoch)
    assert accepted == taken
    assert guard.epoch == 5, "only a coordinator's order raises it"


def test_bad_messages_end_in_quarantine_and_a_pardon_ends_it() -> None:
    guard = new_guard()
    assert reason(guard, sent(1)) == ""
    struck = [guard.strike("w", "nan") for _ in range(limits.STRIKES)]
    assert struck == [False] * (limits.STRIKES - 1) + [True]
    assert guard.is_quarantined("w")
    assert guard.quarantined() == {"w"}
    assert reason(guard, sent(2)) == "quarantined"
    guard.pardon("w")
    assert not guard.is_quarantined("w")
    assert reason(guard, sent(1)) == "replay", "a pardon opens no door for replays"
    assert reason(guard, sent(2)) == ""
    assert not guard.strike("w", "nan"), "it counts from nothing again"
    assert guard.counts() == {("w", "nan"): limits.STRIKES + 1}


@pytest.mark.parametrize("word", sorted(LATE_REASONS))
def test_lateness_is_no_strike(word: str) -> None:
    guard = new_guard()
    assert reason(guard, sent(1)) == ""
    assert not any(guard.strike("w", word) for _ in range(100))
    assert guard.counts() == {("w", word): 100}


@pytest.mark.parametrize("word", sorted(BAD_REASONS))
def test_everything_else_is_a_strike(word: str) -> None:
    guard = new_guard()
    assert reason(guard, sent(1)) == ""
    assert any(guard.strike("w", word) for _ in range(limits.STRIKES))


def test_strikes_fall_on_the_certificate_and_not_on_the_name_in_the_message() -> None:
    guard = new_guard()
    for sequence in range(1, limits.STRIKES + 1):
        forged = sent(sequence, name="victim")
        assert reason(guard, forged, peer="forger") == "sender"
        guard.strike("forger", "sender")
    assert guard.quarantined() == {"forger"}


def test_strikes_are_forgotten_in_time_and_a_quarantine_is_not() -> None:
    clock = Clock()
    guard = new_guard(clock=clock)
    assert reason(guard, sent(1)) == ""
    for _ in range(3 * limits.STRIKES):
        assert not guard.strike("w", "nan")
        clock.now += STRIKE_SECONDS / (limits.STRIKES - 1)
    for _ in range(limits.STRIKES):
        guard.strike("w", "nan")
    clock.now += 100 * STRIKE_SECONDS
    assert guard.is_quarantined("w")


def test_a_quarantine_between_workers_ends_in_time() -> None:
    clock = Clock()
    guard = new_guard(clock=clock, quarantine=600.0)
    assert reason(guard, sent(1)) == ""
    for _ in range(2):
        for _ in range(limits.STRIKES):
            guard.strike("w", "nan")
        clock.now += 599.0
        assert guard.quarantined() == {"w"}
        assert reason(guard, sent(2)) == "quarantined"
        clock.now += 1.0
        assert guard.quarantined() == set()
        assert not guard.strike("w", "nan"), "it counts from nothing again"
        guard.pardon("w")
    assert reason(guard, sent(2)) == ""


def test_a_name_that_is_forgotten_starts_over() -> None:
    guard = new_guard()
    assert reason(guard, sent(1, incarnation=2**64 - 1)) == ""
    assert reason(guard, sent(1)) == "incarnation"
    guard.strike("w", "incarnation")
    guard.strike("stranger", "sender")
    guard.forget("w")
    assert guard.counts() == {("", "sender"): 1}
    assert reason(guard, sent(1)) == ""


def test_nobody_is_struck_pardoned_or_forgotten_by_a_wrong_name() -> None:
    guard = new_guard()
    guard.pardon("nobody")
    guard.forget("nobody")
    assert not guard.is_quarantined("nobody")
    assert not guard._senders


def test_a_foreign_text_is_quoted_in_one_short_line() -> None:
    assert quoted("a\nb\u202e") == r"'a\nb\u202e'"
    assert len(quoted("\U0001f600" * 10_000)) < 700
    assert module.Refused("nan", "it is not a number").args == ("nan: it is not a number",)
