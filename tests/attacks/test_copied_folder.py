"""Finding 5: a copied run folder must not lead next to the original."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from attacks.places import SOON, Place, worker
from fedhp.cluster.history import read_history
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import (
    CALL_RULES,
    LONGEST_LINE,
    Envelopes,
    Follower,
    Guard,
    Leadership,
    Line,
    Refused,
    check_leader,
    check_line,
    extended,
)
from fedhp.errors import RunError
from net.identities import make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("copies"), 1)


def refusals(state: Path) -> list[dict[str, Any]]:
    lines = read_history(state / "history-w0.jsonl")
    return [line for line in lines if line["event"] == "refused" and line["what"] == "leader"]


def test_a_copy_does_not_lead_unless_the_operator_says_that_the_original_is_gone(
    certificates: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Place(tmp_path / "run", certificates).leading():
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            with pytest.raises(RunError, match="this ledger is a copy") as refused:
                async with Place(tmp_path / "copy", certificates).leading():
                    pass
            assert "--moved" in refused.value.fix
        async with Place(tmp_path / "run", certificates).leading():  # a restart is not a copy
            pass
        (tmp_path / "run").rename(tmp_path / "renamed")
        async with Place(tmp_path / "renamed", certificates).leading():
            pass
        async with Place(tmp_path / "copy", certificates, moved=True).leading():
            pass
        async with Place(tmp_path / "copy", certificates).leading():  # now it is the original
            pass

    asyncio.run(scenario())


def test_a_worker_refuses_the_copy_and_says_why(certificates: Path, tmp_path: Path) -> None:
    """The original goes on; then its copy comes up and has the larger epoch."""
    state = tmp_path / "w0"

    async def scenario() -> None:
        async with (
            Place(tmp_path / "run", certificates).leading() as original,
            worker(certificates, state, original.coordinator.address),
        ):
            await original.rounds(1)
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            # A commit under way may be in the copy too, and a worker that starts again only knows
            # that the older of its two models was committed.
            await original.rounds(3)
        # The original is restarted; its copy is started, twice, and has the larger epoch.
        async with (
            Place(tmp_path / "run", certificates).leading() as original,
            Place(tmp_path / "copy", certificates, moved=True).leading(),
        ):
            pass
        async with (
            Place(tmp_path / "run", certificates).leading() as original,
            Place(tmp_path / "copy", certificates).leading() as copy,
        ):
            copied, real = copy.coordinator, original.coordinator
            with pytest.raises(RunError, match="has seen"):
                async with worker(certificates, state, copied.address) as task:
                    await asyncio.wait_for(task, SOON)
            async with worker(certificates, state, copied.address, real.address):
                before = copy.round_index
                await original.rounds(2)
            assert copy.round_index == before
            assert refusals(state)
            assert any("from a copy" in event["why"] for event in copy.events("leave"))

    asyncio.run(scenario())


def test_a_worker_goes_on_with_the_same_coordinator_after_its_restart(
    certificates: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        state = tmp_path / "w0"
        for _ in range(3):
            async with (
                Place(tmp_path / "run", certificates).leading() as original,
                worker(certificates, state, original.coordinator.address),
            ):
                await original.rounds(1)
        assert not refusals(state)

    asyncio.run(scenario())


# --- the rule by itself ----------------------------------------------------------------------


def line(*leaders: tuple[int, str, int]) -> Line:
    return tuple(
        Leadership(epoch, token.encode() * 16, Attempt(epoch - 1, start, 1) if start else INITIAL)
        for epoch, token, start in leaders
    )


ORIGINAL = line((1, "a", 0), (2, "b", 10))


def follower(committed: Attempt = INITIAL) -> Follower:
    one = Follower()
    one.follow(ORIGINAL, epoch=2, committed=Attempt(1, 10, 1))
    one.check_reply(2, b"b" * 16, committed)
    return one


@pytest.mark.parametrize(
    ("leaders", "committed", "words"),
    [
        (line((1, "a", 0)), Attempt(1, 30, 1), "follows epoch 2"),
        (line((1, "a", 0), (2, "x", 10)), Attempt(2, 30, 1), "another coordinator also has"),
        (line((1, "a", 0), (2, "x", 10), (3, "y", 20)), Attempt(3, 30, 1), "does not know"),
        (line((1, "a", 0), (3, "y", 20)), Attempt(3, 30, 1), "does not know"),
        (line((1, "a", 0), (2, "b", 10), (3, "y", 15)), Attempt(3, 30, 1), "seen the commit"),
        (line((1, "a", 0), (2, "b", 10), (3, "y", 20)), Attempt(2, 12, 1), "has seen round 20"),
        ((), Attempt(3, 30, 1), "does not know"),
    ],
)
def test_another_line_of_leaders_is_refused(leaders: Line, committed: Attempt, words: str) -> None:
    one = follower(Attempt(2, 20, 1))
    epoch = leaders[-1].epoch if leaders else 3
    with pytest.raises(Refused, match=words) as refused:
        one.follow(leaders, epoch=epoch, committed=committed)
    assert refused.value.reason == "epoch"
    assert not refused.value.bad
    assert (one.epoch, one.token) == (2, b"b" * 16)  # it still follows the original


def test_the_same_line_is_followed() -> None:
    one = follower(Attempt(2, 20, 1))
    one.follow(ORIGINAL, epoch=2, committed=Attempt(2, 20, 1))  # it joins again
    one.check_reply(2, b"b" * 16)
    for epoch, token in ((2, b"x" * 16), (3, b"b" * 16), (2, b"")):
        with pytest.raises(Refused, match="coordinator"):
            one.check_reply(epoch, token)
    later = (*ORIGINAL, *line((7, "c", 0)))
    start = Attempt(2, 21, 1)
    later = (*later[:-1], Leadership(7, b"c" * 16, start))
    one.follow(later, epoch=7, committed=start)
    assert one.epoch == 7


def test_a_line_has_a_new_token_for_every_leader_and_does_not_grow_for_ever() -> None:
    leaders: Line = ()
    for epoch in range(1, LONGEST_LINE + 3):
        leaders = extended(leaders, epoch, start=INITIAL)
    assert len(leaders) == LONGEST_LINE
    assert len({leader.token for leader in leaders}) == LONGEST_LINE
    check_line([leader.to_wire() for leader in leaders], epoch=leaders[-1].epoch)
    assert Leadership.from_list(leaders[0].to_list()) == leaders[0]


@pytest.mark.parametrize(
    ("leaders", "epoch", "reason"),
    [
        (line((2, "a", 0), (1, "b", 0)), 1, "order"),
        (line((1, "a", 0), (1, "b", 0)), 1, "order"),
        (line((1, "a", 0)), 2, "order"),
        (line((1, "", 0)), 1, "missing"),
        (line((1, "ab", 0)), 1, "size"),
        (line(*((epoch, "a", 0) for epoch in range(1, LONGEST_LINE + 2))), 1, "size"),
    ],
)
def test_a_malformed_line_is_refused(leaders: Line, epoch: int, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        check_line([leader.to_wire() for leader in leaders], epoch=epoch)
    assert refused.value.reason == reason
    with pytest.raises(Refused):
        check_leader(1, b"short")


def test_messages_of_the_followers_of_another_leader_are_refused() -> None:
    """Two coordinators with the same epoch: their workers do not exchange models or reports."""
    guard = Guard(run="a" * 32, epoch=4)
    guard.token = b"a" * 16

    def check(token: bytes, epoch: int = 4) -> None:
        envelope: wire.Envelope = Envelopes("w0").make(
            run="a" * 32, attempt=Attempt(epoch, 1, 1), token=token
        )
        rule, roles = CALL_RULES["Pull"], frozenset({"worker"})
        guard.check(envelope, peer="w0", roles=roles, rule=rule)

    check(b"a" * 16)
    check(b"")
    check(b"b" * 16, epoch=5)  # a later leader, of which this one has not heard yet
    with pytest.raises(Refused, match="another coordinator") as refused:
        check(b"b" * 16)
    assert not refused.value.bad
