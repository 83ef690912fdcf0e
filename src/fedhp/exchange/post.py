"""Deliveries and groups of an asynchronous algorithm, in virtual time: what is planned, on its way,
in the boxes and waited for. The messages themselves are in the shards (shard/turns.py)."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.exchange.mailbox import Delivery, Gathering, Mail, MessageTransfer, ring, stored_mail
from fedhp.types import FloatArray


class Post:
    """What workers send and wait for, apart from meetings of two."""

    def __init__(self, workers: int) -> None:
        self.mails: dict[int, Mail] = {}  # how turns end, where three numbers do not tell
        self.landed: list[set[int]] = [set() for _ in range(workers)]  # senders, since it was read
        self.wait = np.zeros(workers, dtype=np.int64)  # so many senders, before the next turn
        self.since = np.zeros(workers)  # virtual time at which it began to wait
        self.waiting: dict[int, list[int]] = {}  # who has come to a group, by its number
        self.running = np.full(workers, -1, dtype=np.int64)  # the lowest member of its group
        self.sending = np.zeros(workers, dtype=np.int64)  # own transfers on their way
        self.transfers = np.zeros(workers, dtype=np.int64)  # all that have an end here
        self._queue: list[MessageTransfer] = []
        self._sent = 0

    @property
    def due(self) -> float:
        return self._queue[0].due if self._queue else np.inf

    def plan(self, worker: int, mail: Mail, wait: int) -> None:
        """How a turn that begins will end, and what its worker waits for then."""
        self.landed[worker].clear()
        self.wait[worker] = wait
        self.mails.pop(worker, None)
        if mail != stored_mail(mail.partner, mail.overlap, mail.int8):
            self.mails[worker] = mail

    def open_lines(self, worker: int, delivery: Delivery) -> None:
        """The transfers of a delivery take part of shared links from now on."""
        for receiver in delivery.to:
            self._count(worker, receiver, 1)

    def send(self, worker: int, delivery: Delivery, clock: float, times: FloatArray) -> None:
        """They are on their way, for so long each."""
        for (receiver, weight, fragment), time in zip(delivery.parts, times.tolist(), strict=True):
            self._sent += 1
            transfer = MessageTransfer(
                clock + time, self._sent, worker, receiver, weight, fragment, duration=time
            )
            heappush(self._queue, transfer)

    def land(self) -> MessageTransfer:
        transfer = heappop(self._queue)
        self._count(transfer.sender, transfer.receiver, -1)
        self.landed[transfer.receiver].add(transfer.sender)
        return transfer

    def start_group(self, number: int) -> list[int]:
        """Those who have come to a group begin their average; rising."""
        members = sorted(self.waiting.pop(number))
        self.running[members] = members[0]
        self._count_ring(members, 1)
        return members

    def end_group(self, worker: int) -> list[int]:
        """The members of a worker's group, which has averaged; nobody if they know already."""
        if self.running[worker] < 0:
            return []
        members: list[int] = np.flatnonzero(self.running == self.running[worker]).tolist()
        self.running[members] = -1
        self._count_ring(members, -1)
        return members

    def stored(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint: what is on its way in the order of arrival, then what turns will end
        with, due never."""
        rows = [
            ((item.sender, item.receiver, item.fragment, 1), (item.due, item.duration, item.weight))
            for item in sorted(self._queue)
        ]
        gatherings = []
        for worker, mail in sorted(self.mails.items()):
            match mail:
                case Delivery():
                    rows += [
                        ((worker, receiver, fragment, int(mail.overlap)), (np.inf, 0.0, weight))
                        for receiver, weight, fragment in mail.parts
                    ]
                case Gathering():
                    waits = worker in self.waiting.get(mail.group, ())
                    gatherings.append((worker, mail.group, mail.size, int(waits)))
        landed = [(to, sender) for to, box in enumerate(self.landed) for sender in sorted(box)]
        return {
            "post.wait": self.wait.copy(),
            "post.since": self.since.copy(),
            "post.running": self.running.copy(),
            "post.landed": np.array(landed, dtype=np.int64).reshape(-1, 2),
            "post.gatherings": np.array(gatherings, dtype=np.int64).reshape(-1, 4),
            "post.ends": np.array([ends for ends, _ in rows], dtype=np.int64).reshape(-1, 4),
            "post.times": np.array([times for _, times in rows]).reshape(-1, 3),
        }

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]], workers: int) -> Post:
        """From a checkpoint; one of a method without boxes and groups has nothing of it."""
        post = cls(workers)
        if "post.wait" not in arrays:
            return post
        post.wait, post.since, post.running = (
            arrays[f"post.{name}"].copy() for name in ("wait", "since", "running")
        )
        for receiver, sender in arrays["post.landed"].tolist():
            post.landed[receiver].add(sender)
        for worker, group, size, waits in arrays["post.gatherings"].tolist():
            post.mails[worker] = Gathering(size=size, group=group)
            if waits:
                post.waiting.setdefault(group, []).append(worker)
        for lowest in np.unique(post.running[post.running >= 0]).tolist():
            post._count_ring(np.flatnonzero(post.running == lowest).tolist(), 1)
        planned: dict[tuple[int, int], list[tuple[int, float, int]]] = {}
        rows = zip(arrays["post.ends"].tolist(), arrays["post.times"].tolist(), strict=True)
        for (sender, receiver, fragment, overlap), (due, duration, weight) in rows:
            if np.isinf(due):
                planned.setdefault((sender, overlap), []).append((receiver, weight, fragment))
                continue
            post._sent += 1
            post._count(sender, receiver, 1)
            post._queue.append(
                MessageTransfer(due, post._sent, sender, receiver, weight, fragment, duration)
            )
        for (worker, overlap), parts in planned.items():
            post.mails[worker] = Delivery.of_parts(parts, overlap=bool(overlap))
        return post

    def _count(self, sender: int, receiver: int, change: int) -> None:
        self.sending[sender] += change
        self.transfers[[sender, receiver]] += change

    def _count_ring(self, members: list[int], change: int) -> None:
        for link in ring(members):
            self.transfers[list(link)] += change
