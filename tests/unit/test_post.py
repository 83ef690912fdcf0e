"""The post of an asynchronous method: what is planned, on its way, in boxes and waited for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedhp.exchange.mailbox import Delivery, Gathering, Mail, Meeting, ring, ring_size
from fedhp.exchange.post import Post

N = 4


def sent() -> Post:
    """Worker 0 sends to 1 and 2, worker 3 sends a fragment to 1; 2 waits for a group."""
    post = Post(N)
    first = Delivery(to=(1, 2), weights=(0.25, 0.5))
    second = Delivery(to=(1,), fragments=(3,), overlap=False)
    for worker, mail, wait in ((0, first, 0), (3, second, 2)):
        post.plan(worker, mail, wait)
        assert post.mails[worker] == mail
        post.open_lines(worker, mail)
        post.send(worker, mail, 10.0, np.array([3.0, 1.0][: len(mail.to)]))
    return post


def test_a_post_begins_empty() -> None:
    post = Post(N)
    assert post.due == math.inf
    assert post.landed == [set()] * N
    for counts in (post.wait, post.since, post.sending, post.transfers):
        assert counts.tolist() == [0] * N
    assert post.running.tolist() == [-1] * N
    assert (post.mails, post.waiting) == ({}, {})
    assert post.end_group(0) == []


def test_messages_land_in_the_order_of_their_times_then_as_they_were_sent() -> None:
    post = sent()
    assert post.sending.tolist() == [2, 0, 0, 1]
    assert post.transfers.tolist() == [2, 2, 1, 1]
    landed = []
    while post.due < math.inf:
        due = post.due
        message = post.land()
        assert message.due == due
        landed.append((message.due, message.sender, message.receiver, message.duration))
    assert landed == [(11.0, 0, 2, 1.0), (13.0, 0, 1, 3.0), (13.0, 3, 1, 3.0)]
    assert post.landed == [set(), {0, 3}, {0}, set()]
    assert post.sending.tolist() == post.transfers.tolist() == [0] * N


def test_the_box_is_read_when_the_next_turn_begins() -> None:
    post = sent()
    post.land()
    post.plan(2, Mail(), 3)
    assert post.landed[2] == set()
    assert post.wait.tolist() == [0, 0, 3, 2]
    assert 2 not in post.mails  # three numbers tell how this turn ends
    post.plan(0, Meeting(1, overlap=True), 0)
    assert 0 not in post.mails


def test_a_group_averages_over_a_ring() -> None:
    post = Post(N)
    post.waiting[7] = [3, 0, 2]
    assert post.start_group(7) == [0, 2, 3]
    assert post.waiting == {}
    assert post.running.tolist() == [0, -1, 0, 0]
    assert post.transfers.tolist() == [2, 0, 2, 2]
    assert post.end_group(2) == [0, 2, 3]
    assert post.running.tolist() == [-1] * N
    assert post.transfers.tolist() == [0] * N
    assert post.end_group(2) == []


@pytest.mark.parametrize(
    ("members", "links"),
    [([1], []), ([2, 0], [(0, 2)]), ([0, 2, 3], [(0, 2), (0, 3), (2, 3)])],
)
def test_the_links_of_a_ring(members: list[int], links: list[tuple[int, int]]) -> None:
    assert ring(members) == links


def test_what_travels_over_the_links_of_a_ring() -> None:
    assert [ring_size(members) for members in (1, 2, 4)] == [0.0, 1.0, 1.5]


def test_a_post_comes_back_from_a_checkpoint() -> None:
    post = sent()
    post.land()
    post.since[3] = 2.5
    post.waiting = {5: [1]}
    post.plan(1, Gathering(size=3, group=5), 0)
    post.plan(2, Delivery(to=(0, 3), weights=(0.5, 0.25), overlap=False), 1)
    post.running[[0, 3]] = 0
    post.transfers[[0, 3]] += 1
    again = Post.restored(post.stored(), N)
    for name in ("wait", "since", "running", "sending", "transfers"):
        assert getattr(again, name).tolist() == getattr(post, name).tolist(), name
    assert again.landed == post.landed
    assert again.waiting == post.waiting
    assert again.mails[1] == post.mails[1]
    assert again.mails[2] == post.mails[2]
    for _ in range(2):
        expected, found = post.land(), again.land()
        assert str(replace(found, number=0)) == str(replace(expected, number=0))  # some are NaN
    assert again.due == post.due == math.inf


def test_a_checkpoint_of_a_method_without_boxes_has_nothing_of_the_post() -> None:
    again = Post.restored({}, N)
    assert again.stored().keys() == Post(N).stored().keys()
    assert again.due == math.inf
    for values in Post(N).stored().values():
        assert len(values) in (0, N)
