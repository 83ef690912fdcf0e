"""Who is the cause when a group average does not come: no clock, no network.

A link has two ends, and either of them may be the one that does not tell the truth. So a broken
link counts for both, whoever speaks; the next attempt goes without that link. A member that wants
to spoil every average has to break one link after the other, and is soon at the end of most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedhp.cluster.coordinator.conductor import Failure
from fedhp.types import Pair

FIRST_AVOIDED, LONGEST_AVOIDED = 16, 64  # rounds that the next trees go without a broken link
REMEMBERED_ROUNDS = 100  # that an attempt counts for the ends of its broken links
ATTEMPTS_TO_BLAME = 2  # of one member, before it can be taken for the cause


class Blame:
    """The links that spoiled averages, and how often each member was at an end of one."""

    def __init__(self) -> None:
        self._links: dict[Pair, tuple[int, int]] = {}  # the round of the last time, and how often
        self._attempts: dict[int, list[int]] = {}  # by worker: the rounds of those attempts

    def judge(
        self,
        failures: Mapping[int, Failure],
        *,
        absent: Iterable[int],
        misses: Mapping[int, int],
        round_index: int,
    ) -> set[int]:
        """The members without which the round is tried again. absent: members that owe a word
        and gave none; misses: by worker, how often others waited for it in vain."""
        nameless = {worker for worker, failure in failures.items() if not failure.lost}
        certain = set(absent) | nameless
        if certain:
            return certain
        broken = _broken_links(failures)
        for link in broken:
            _, times = self._links.get(link, (0, 0))
            self._links[link] = round_index, times + 1
        ends = {worker for link in broken for worker in link}
        for worker in ends:
            recent = [*self._attempts.get(worker, ()), round_index]
            since = round_index - REMEMBERED_ROUNDS
            self._attempts[worker] = [each for each in recent if each > since]

        def weight(worker: int) -> tuple[int, int, int]:
            partners = sum(worker in link for link in self._links)
            return len(self._attempts[worker]), partners, misses.get(worker, 0)

        most = max((weight(worker) for worker in ends), default=(0, 0, 0))
        first = [worker for worker in ends if weight(worker) == most]
        known = most[0] >= ATTEMPTS_TO_BLAME or most[2] > 0
        return set(first) if len(first) == 1 and known else set()

    def avoided(self, round_index: int) -> frozenset[Pair]:
        """The links that the next tree goes without; those of long ago are forgotten."""
        self._links = {
            link: (last, times)
            for link, (last, times) in self._links.items()
            if round_index <= last + REMEMBERED_ROUNDS
        }
        return frozenset(
            link
            for link, (last, times) in self._links.items()
            if round_index <= last + min(FIRST_AVOIDED << min(times - 1, 10), LONGEST_AVOIDED)
        )

    def forgive(self, worker: int) -> None:
        """The operator let it in again."""
        self._attempts.pop(worker, None)
        self._links = {link: each for link, each in self._links.items() if worker not in link}


def _broken_links(failures: Mapping[int, Failure]) -> set[Pair]:
    """Who waits for a member that itself waits for another one has no quarrel with it."""
    return {
        (min(worker, lost), max(worker, lost))
        for worker, failure in failures.items()
        for lost in failure.lost
        if lost not in failures or worker in failures[lost].lost
    }
