"""Exchanges one after the other in one round: each begins with what the one before left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from fedhp.exchange.base import Cost, Exchange, Exchanged, Executor, Moment, Part, Unusable, kind_of
from fedhp.graph import components_of, topology_from
from fedhp.rule import Rule
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray, Pair, Plan


@dataclass(frozen=True, slots=True)
class ExchangeSequence(Exchange):
    """Mixings one after the other; their times and bytes add up."""

    exchanges: tuple[Exchange, ...]

    @property
    def links(self) -> IntArray:
        return self._merged([each.links for each in self.exchanges])[0]

    @property
    def directed(self) -> bool:
        """A link that carries models both ways counts as two where another has a direction."""
        return any(each.directed for each in self.exchanges)

    @property
    def in_a_row(self) -> int:
        return sum(each.in_a_row for each in self.exchanges)

    def check(self, plan: Plan, workers: int) -> None:
        """Mixings alone: a group average begins with the round, and belongs to no sequence."""
        if not isinstance(self.exchanges, tuple) or not self.exchanges:
            raise Unusable(
                f"exchanges of its ExchangeSequence is {self.exchanges!r}", "a tuple of mixings"
            )
        for each in self.exchanges:
            if not isinstance(each, Exchange) or each.groups:
                raise Unusable(f"its ExchangeSequence has {kind_of(each)}", "mixings, in a tuple")
            each.check(plan, workers)

    def check_present(self, here: BoolArray) -> None:
        for each in self.exchanges:
            each.check_present(here)

    def check_rule(self, rule: Rule) -> None:
        """As each of them; what a rule makes of a mix, it makes of one in a round."""
        for each in self.exchanges:
            each.check_rule(rule)
        if rule.receives() and len(self.exchanges) > 1:
            raise Unusable(
                f"its workers have a rule that receives, and its plan mixes {len(self.exchanges)} "
                "times",
                "one mixing per round with such a rule",
            )

    def check_network(self) -> None:
        """A report names the peers that were kept once."""
        if len(self.exchanges) > 1 and any(each.scored for each in self.exchanges):
            raise Unusable(
                f"its plan has {len(self.exchanges)} exchanges in one round, and in one of them "
                "workers score models",
                "a PeerScoring alone in its round on a network; among several in a simulation",
            )
        for each in self.exchanges:
            each.check_network()

    def with_min_peers(
        self, available: BoolArray, network: Network, *, least: int, round_index: int
    ) -> Exchange:
        return ExchangeSequence(
            tuple(
                each.with_min_peers(available, network, least=least, round_index=round_index)
                for each in self.exchanges
            )
        )

    def without_links(self, avoid: Collection[Pair]) -> Exchange:
        return ExchangeSequence(tuple(each.without_links(avoid) for each in self.exchanges))

    def connected(
        self, available: BoolArray, network: Network, *, avoid: Collection[Pair]
    ) -> Exchange:
        """Each of them, unless they connect the workers together."""
        topology = topology_from(len(available), np.sort(self.links, axis=1).tolist())
        if len(np.unique(components_of(topology)[available])) <= 1:
            return self
        connected = (each.connected(available, network, avoid=avoid) for each in self.exchanges)
        return ExchangeSequence(tuple(connected))

    def carry_out(self, executor: Executor, *, round_index: int) -> Exchanged:
        """In this order; the distances are those before a link's first use."""
        parts: list[Exchanged] = []
        for each in self.exchanges:
            if parts:
                executor.proceed()
            parts.append(each.carry_out(executor, round_index=round_index))
        links, places = self._merged([part.links for part in parts])
        distance = np.full(len(links), np.nan)
        for part, place in reversed(list(zip(parts, places, strict=True))):
            for column in place.T:
                distance[column] = part.distance
        selected = max((part.selected for part in parts), key=lambda table: table.shape[1])
        return Exchanged(links, self.directed, distance, selected, parts=tuple(parts))

    def parts(self, workers: int) -> list[Part]:
        """The first one's, with those of the others in their order."""
        tables = {id(each): each.parts(workers) for each in self.exchanges}
        parts = []
        for worker in range(workers):
            mine = [tables[id(each)][worker] for each in self.exchanges]
            first, *then = [one for part in mine for one in (replace(part, then=()), *part.then)]
            parts.append(replace(first, then=tuple(then)))
        return parts

    def selected(self, kept: Mapping[int, Sequence[int]], workers: int) -> IntArray:
        tables = [each.selected(kept, workers) for each in self.exchanges]
        return max(tables, key=lambda table: table.shape[1])

    def extra_steps(self, workers: int) -> FloatArray:
        return np.asarray(sum(each.extra_steps(workers) for each in self.exchanges))

    def communication_time(self, network: Network, workers: int) -> FloatArray:
        return np.asarray(sum(each.communication_time(network, workers) for each in self.exchanges))

    def cost(self, exchanged: Exchanged, at: Moment) -> Cost:
        """The sums; a worker is ready for the next one when it has what the last one brings."""
        links, places = self._merged([part.links for part in exchanged.parts])
        seconds, sizes = np.zeros(len(links)), np.zeros(len(links), dtype=np.int64)
        communication = np.zeros(at.world.workers)
        for each, part, place in zip(self.exchanges, exchanged.parts, places, strict=True):
            cost = each.cost(part, replace(at, ready=at.ready + communication))
            communication = communication + cost.communication
            for column in place.T:
                seconds[column] += cost.link_time
                sizes[column] += cost.link_bytes // place.shape[1]
        return Cost(seconds, sizes, communication)

    def to_facts(self) -> dict[str, Any]:
        return {"sequence": self.weight_facts()}

    def weight_facts(self) -> list[dict[str, Any]]:
        """Of all of them; what is the same one in a row is there once."""
        rows: list[dict[str, Any]] = []
        for _, same in groupby(self.exchanges, key=id):
            first, *others = same
            once = first.weight_facts()
            if len(once) == 1:
                rows.append({**once[0], "times": (1 + len(others)) * once[0]["times"]})
            else:
                rows += (1 + len(others)) * once
        return rows

    def _merged(self, tables: Sequence[IntArray]) -> tuple[IntArray, list[IntArray]]:
        """Every link once, sorted, and where those of each table [E] are, [E, 1]; where only
        others have a direction there are two for each, [E, 2]."""
        both = [
            [links] if each.directed or not self.directed else [links, links[:, ::-1]]
            for each, links in zip(self.exchanges, tables, strict=True)
        ]
        merged, place = np.unique(
            np.concatenate([part for parts in both for part in parts]), axis=0, return_inverse=True
        )
        sizes = [len(part) for parts in both for part in parts]
        split = iter(np.split(place.ravel(), np.cumsum(sizes)[:-1]))
        return merged, [np.stack([next(split) for _ in parts], axis=1) for parts in both]
