"""An order of several exchanges in one round: what a worker accepts of it, at every limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.message_checks import check_order
from net.good_messages import GOOD, SCENE


def order_of(*exchanges: wire.MixWork) -> wire.Order:
    """The round of the good order, with these exchanges."""
    order: wire.Order = GOOD["Work"].make(SCENE)
    del order.work.weights[:]
    order.work.exchanges.extend(exchanges)
    return order


def mix(**changes: float) -> wire.MixWork:
    """Of the first peer."""
    peer = GOOD["Work"].make(SCENE).work.peers[0].worker
    settings = {"weight": 0.25, "own_weight": 0.75, "times": 1, **changes}
    return wire.MixWork(
        peers=[peer],
        weights=[settings["weight"]],
        own_weight=settings["own_weight"],
        times=int(settings["times"]),
    )


def check(order: wire.Order) -> None:
    check_order(order, workers=SCENE.workers, worker=SCENE.worker)


def test_exchanges_among_the_peers_of_the_order_are_accepted() -> None:
    check(order_of(mix(), mix(times=99_999)))
    check(order_of(mix(weight=1.0, own_weight=0.0)))
    check(order_of(mix(weight=0.25, own_weight=0.75 + 0.5e-6)))
    check(order_of(wire.MixWork(own_weight=1.0, times=1)))  # this worker has no part in it


def unknown_peer(order: wire.Order) -> None:
    order.work.exchanges[0].peers[0] = SCENE.worker


def peer_twice(order: wire.Order) -> None:
    first = order.work.exchanges[0]
    first.peers.append(first.peers[0])
    first.weights.append(0.0)


def unknown_reader(order: wire.Order) -> None:
    order.work.exchanges[0].readers.append(SCENE.worker)


def a_weight_too_few(order: wire.Order) -> None:
    del order.work.exchanges[0].weights[:]
    order.work.exchanges[0].own_weight = 1.0


def with_scores(order: wire.Order) -> None:
    order.work.keep = order.work.samples = 1


def with_a_group(order: wire.Order) -> None:
    order.work.group.SetInParent()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (unknown_peer, "worker"),
        (peer_twice, "worker"),
        (unknown_reader, "worker"),
        (a_weight_too_few, "weights"),
        (with_scores, "kind"),
        (with_a_group, "kind"),
    ],
)
def test_exchanges_that_do_not_fit_their_order(
    change: Callable[[wire.Order], None], reason: str
) -> None:
    order = order_of(mix())
    change(order)
    with pytest.raises(Refused) as caught:
        check(order)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "changes",
    [
        {"own_weight": 0.75 + 2e-6},
        {"own_weight": 0.75 - 2e-6},
        {"weight": -0.25, "own_weight": 1.25},
        {"weight": 1.25, "own_weight": -0.25},
        {"times": 0},
        {"times": 100_001},
    ],
)
def test_weights_and_counts_of_an_exchange_have_bounds(changes: dict[str, float]) -> None:
    with pytest.raises(Refused):
        check(order_of(mix(**changes)))


def test_all_exchanges_of_a_round_together_have_a_bound() -> None:
    check(order_of(mix(times=50_000), mix(times=50_000)))
    with pytest.raises(Refused, match="exchanges"):
        check(order_of(mix(times=50_000), mix(times=50_001)))
