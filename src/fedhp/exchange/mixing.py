"""Mixing: each worker takes its own model and those of others by weights, after its steps.

Who takes how much from whom is given in one of three ways: neighbors by a rule, which stays a rule
however many links there are; tables of sources, in equal parts, perhaps the best of them only;
or links with a weight each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from fedhp.errors import ConfigError
from fedhp.exchange.base import (
    Cost,
    Exchange,
    Exchanged,
    Executor,
    Moment,
    Part,
    Unusable,
    check_array,
    check_distinct,
    check_links,
    check_values,
    is_number,
    is_whole,
    kind_of,
)
from fedhp.exchange.sequence import ExchangeSequence
from fedhp.graph import (
    MixingRule,
    components_of,
    directed_weights,
    in_order,
    link_weights,
    mixing_weights,
    topology_from,
    weights_problem,
)
from fedhp.rule import Rule
from fedhp.timing import Network, slowest_link, slowest_pull
from fedhp.types import BoolArray, FloatArray, IntArray, Pair, Plan, Topology

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_TIMES = 1000
WEIGHT_TOLERANCE = 1e-6  # of a sum of mixing weights
_RULES = get_args(MixingRule)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Each worker scores the models on its own samples and averages the best with its own."""

    keep: int
    samples: int
    cost_per_candidate: float  # in step times of the scoring worker
    symmetric: bool = False  # average in both directions with symmetric weights

    def check(self) -> None:
        keep, samples, cost = self.keep, self.samples, self.cost_per_candidate
        positive = "a whole number above 0"
        costs = is_number(cost) and 0 <= float(cost) < np.inf
        check_values(
            "PeerScoring",
            ("keep", keep, is_whole(keep) and keep >= 1, positive),
            ("samples", samples, is_whole(samples) and samples >= 1, positive),
            ("cost_per_candidate", cost, costs, "a number of at least 0"),
        )


@dataclass(frozen=True, slots=True)
class Mixing(Exchange):
    """x_i <- own_i x_i + sum_j w_ij x_j, Eq. (5)."""

    times: int = field(default=1, kw_only=True)  # in a row: gossip repeated
    directed = True  # models are pulled
    push_sum = False  # whether a scalar travels with every model

    @abstractmethod
    def matrix(self) -> csr_array:
        """The weights, sparse [N, N] with the diagonal, columns ascending."""

    @abstractmethod
    def check_weights(self, workers: int) -> None:
        """Refuse what cannot be mixed by."""

    @property
    def in_a_row(self) -> int:
        return self.times

    def check(self, plan: Plan, workers: int) -> None:
        """Weights of known workers; nothing goes on while models travel."""
        self.check_weights(workers)
        if not is_whole(self.times) or not 1 <= self.times <= MOST_TIMES:
            raise Unusable(
                f"times of its {self.name} is {self.times!r}",
                f"a whole number from 1 to {MOST_TIMES}",
            )
        if plan.overlap:
            raise Unusable(
                f"its plan has overlap and a {self.name}", "overlap with a GroupAverage only"
            )

    def check_rule(self, rule: Rule) -> None:
        """Weights sum to 1 by sender where a mass travels, and only there."""
        if self.times > 1:
            self._repeated().check_rule(rule)
        if self.push_sum != bool(rule.mass):
            raise Unusable(
                f"its plan has a {self.name} with{'' if self.push_sum else 'out'} push_sum, but "
                f"the mass of its rule is {rule.mass!r}",
                "push_sum=True in every plan if the rule has a mass, and in none without",
            )

    def check_present(self, here: BoolArray) -> None:
        links = self.links
        for receiver, sender in links[~here[links].all(axis=1)].tolist():
            who = receiver if not here[receiver] else sender
            verb = "takes from" if self.directed else "is linked to"
            raise Unusable(
                f"in its {self.name} worker {receiver} {verb} {sender}, and {who} is away",
                "links between available workers",
            )

    def check_network(self) -> None:
        if self.times > 1:
            self._repeated().check_network()

    def carry_out(self, executor: Executor, *, round_index: int) -> Exchanged:
        if self.times > 1:
            return self._repeated().carry_out(executor, round_index=round_index)
        return self.mix_once(executor, round_index=round_index)

    def mix_once(self, executor: Executor, *, round_index: int) -> Exchanged:
        return executor.mix(self, round_index=round_index)

    def _repeated(self) -> ExchangeSequence:
        return ExchangeSequence((replace(self, times=1),) * self.times)

    def parts(self, workers: int) -> list[Part]:
        if self.times > 1:
            return self._repeated().parts(workers)
        matrix = self.matrix()
        # Plain lists, since slicing a sparse matrix row by row costs more than all the rest.
        starts, columns, values = (
            array.tolist() for array in (matrix.indptr, matrix.indices, matrix.data)
        )
        parts = []
        for worker, (start, stop) in enumerate(pairwise(starts)):
            weights = dict(zip(columns[start:stop], values[start:stop], strict=True))
            own = weights.pop(worker, 0.0)
            parts.append(Part(list(weights), list(weights.values()), own, push_sum=self.push_sum))
        return parts

    def to_facts(self) -> dict[str, Any]:
        """What the record does not say, or several in a row by their weights."""
        return self._facts() if self.times == 1 else self._repeated().to_facts()

    def _facts(self) -> dict[str, Any]:
        return {}

    def weight_facts(self) -> list[dict[str, Any]]:
        weights = self.matrix().tocoo()
        links = np.stack([weights.row, weights.col], axis=1).astype(np.int64)
        between = links[:, 0] != links[:, 1]
        once = WeightedMixing(
            links[between], weights.data[between], self.matrix().diagonal(), self.push_sum
        )
        return [{**once.to_facts(), "times": self.times}]

    def communication_time(self, network: Network, workers: int) -> FloatArray:
        """The slowest link of each worker."""
        links = self.links
        transfers = np.bincount(links.ravel(), minlength=workers)
        return self.times * slowest_link(workers, links, network.link_time(links, transfers))

    def cost(self, exchanged: Exchanged, at: Moment) -> Cost:
        """Whole or compressed models over the links; a receiver waits for its slowest one."""
        if self.times > 1:
            return self._repeated().cost(exchanged, at)
        links, directed, share = exchanged.links, exchanged.directed, exchanged.share
        transfers = np.bincount(links.ravel(), minlength=at.world.workers)
        if share is None:
            longer = np.ones(len(links))
            sizes = np.full(len(links), (1 if directed else 2) * at.model_bytes, dtype=np.int64)
        else:  # of the longer direction, where the two carry different sizes
            longer = share.max(axis=1)
            sizes = np.rint(share * at.model_bytes).sum(axis=1).astype(np.int64)
        seconds = np.empty(len(links))
        for size in np.unique(longer).tolist():
            of_this_size = longer == size
            seconds[of_this_size] = at.world.link_time(
                links,
                transfers,
                clock=at.clock,
                ready=at.ready,
                size=size,
                directed=directed,
                event=at.event,
            )[of_this_size]
        slowest = slowest_pull if directed else slowest_link
        return Cost(seconds, sizes, slowest(at.world.workers, links, seconds))


@dataclass(frozen=True, slots=True)
class NeighborMixing(Mixing):
    """Symmetric exchange over the links, with the topology's own weights if it has some, and
    otherwise by a rule of graph.mixing_weights."""

    topology: Topology
    weights: str = "max_degree"
    directed = False  # models go both ways

    @property
    def links(self) -> IntArray:
        return self.topology.links

    def matrix(self) -> csr_array:
        return mixing_weights(self.topology, self.weights)

    def check_weights(self, workers: int) -> None:
        if self.weights not in _RULES:
            raise Unusable(
                f"its NeighborMixing has the unknown weights {self.weights!r}", ", ".join(_RULES)
            )
        topology = self.topology
        if not isinstance(topology, Topology):
            raise Unusable(f"its topology is {kind_of(topology)}", "a fedhp.Topology")
        if topology.workers != workers:
            raise Unusable(
                f"its topology is for {topology.workers} workers",
                f"a topology for {workers} workers",
            )
        links = check_links(topology.links, "its topology", workers)
        if topology.weights is not None and (problem := weights_problem(topology)):
            raise Unusable(
                f"the weights of its topology cannot be mixed by: {problem}",
                "None, or a weight above 0 for each link in ascending order, at most 1 per worker",
            )
        if not in_order(links):
            check_distinct(np.sort(links, axis=1), "its topology")

    def with_min_peers(
        self, available: BoolArray, network: Network, *, least: int, round_index: int
    ) -> Exchange:
        """With the fastest links of workers that have too few."""
        if least <= 0 or not len(self.links):
            return self
        degrees = self.topology.degrees.copy()
        present = np.flatnonzero(available)
        if (degrees[present] >= least).all():
            return self
        first, second = np.triu_indices(len(present), 1)
        pairs = np.stack([present[first], present[second]], axis=1).astype(np.int64)
        fastest_first = np.argsort(network.link_time(pairs), kind="stable")
        links = {(int(a), int(b)) for a, b in self.links}
        for a, b in pairs[fastest_first].tolist():
            if (a, b) not in links and min(degrees[a], degrees[b]) < least:
                links.add((a, b))
                degrees[[a, b]] += 1
        return replace(self, topology=topology_from(self.topology.workers, sorted(links)))

    def without_links(self, avoid: Collection[Pair]) -> Exchange:
        if not avoid:
            return self
        kept = np.array([(a, b) not in avoid for a, b in self.links.tolist()], dtype=np.bool_)
        return replace(self, topology=self.topology.keep(kept))

    def connected(
        self, available: BoolArray, network: Network, *, avoid: Collection[Pair]
    ) -> Exchange:
        """A base topology may fall apart when machines are missing."""
        present, topology = np.flatnonzero(available), self.topology
        while len(present) > 1:
            labels = components_of(topology)[present]
            if (labels == labels[0]).all():
                break
            inside, outside = present[labels == labels[0]], present[labels != labels[0]]
            pairs = np.stack(
                [np.repeat(inside, len(outside)), np.tile(outside, len(inside))], axis=1
            )
            pairs.sort(axis=1)
            works = [(a, b) not in avoid for a, b in pairs.tolist()]
            pairs = pairs[works] if any(works) else pairs
            fastest = pairs[network.link_time(pairs).argmin()]
            added = (int(fastest[0]), int(fastest[1]))
            topology = topology_from(topology.workers, [*topology.links.tolist(), added])
        return self if topology is self.topology else replace(self, topology=topology)

    def _facts(self) -> dict[str, Any]:
        return {"rule": self.weights}


@dataclass(frozen=True, slots=True)
class DirectedMixing(Mixing):
    """Each worker pulls the models of its sources and averages them with its own model."""

    sources: IntArray  # [N, M], -1 where there is none
    score: Scoring | None = None  # it averages the best of them only

    @property
    def name(self) -> str:
        return "DirectedMixing" if self.score is None else "PeerScoring"

    @property
    def scored(self) -> bool:
        return self.score is not None

    @property
    def links(self) -> IntArray:
        return pulls(self.sources)

    def matrix(self) -> csr_array:
        return directed_weights(self.sources)

    def kept_links(self, kept: IntArray) -> IntArray:
        """The links, and with symmetric scoring also those back to the peers [N, keep] that were
        kept."""
        if self.score is None or not self.score.symmetric:
            return self.links
        return np.unique(np.concatenate([self.links, pulls(kept)[:, ::-1]]), axis=0)

    def kept_matrix(self, kept: IntArray) -> csr_array:
        """The weights of the peers [N, keep] that were kept."""
        if self.score is None or not self.score.symmetric:
            return directed_weights(kept)
        return mixing_weights(topology_from(len(kept), pulls(kept)), "metropolis")

    def check_weights(self, workers: int) -> None:
        name = "sources" if self.score is None else "candidates"
        wanted = f"whole numbers of the shape [{workers}, peers]: worker numbers, or -1 for none"
        sources = check_array(self.sources, name, wanted)
        if sources.ndim != 2 or len(sources) != workers or sources.dtype.kind not in "iu":
            raise Unusable(f"{name} is {sources.dtype} of the shape {sources.shape}", wanted)
        for worker, column in np.argwhere((sources < -1) | (sources >= workers)).tolist():
            raise Unusable(
                f"worker {worker} pulls from the unknown worker {int(sources[worker, column])}",
                f"workers 0 to {workers - 1}, or -1 for none",
            )
        for worker, _ in np.argwhere(sources == np.arange(workers)[:, None]).tolist():
            raise Unusable(
                f"worker {worker} pulls from itself",
                "other workers only: a worker's own model is part of the average already",
            )
        if self.score is not None:
            self.score.check()

    def check_rule(self, rule: Rule) -> None:
        """Messages that are scored have to be models."""
        if self.score is None:
            Mixing.check_rule(self, rule)
        else:
            Exchange.check_rule(self, rule)

    def with_min_peers(
        self, available: BoolArray, network: Network, *, least: int, round_index: int
    ) -> Exchange:
        """With the fastest others where an available worker has too few; how many it scores is
        its own affair."""
        present, counts = np.flatnonzero(available), (self.sources >= 0).sum(axis=1)
        short = present[counts[present] < least]
        if self.score is not None or least <= 0 or not len(short) or not counts.any():
            return self
        room = max(0, least - self.sources.shape[1])
        table = np.pad(self.sources, ((0, 0), (0, room)), constant_values=-1)
        for worker in short.tolist():
            others = np.setdiff1d(present, [worker, *self.sources[worker]])
            links = np.stack([np.full(len(others), worker), others], axis=1)
            seconds = network.link_time(links, directed=True)
            added = others[np.argsort(seconds, kind="stable")][: least - counts[worker]]
            table[worker, np.flatnonzero(table[worker] < 0)[: len(added)]] = added
        return replace(self, sources=table)

    def mix_once(self, executor: Executor, *, round_index: int) -> Exchanged:
        if self.score is None:
            return executor.mix(self, round_index=round_index)
        return executor.score(self, self.score, round_index=round_index)

    def parts(self, workers: int) -> list[Part]:
        """Without weights where the models are scored."""
        parts = Mixing.parts(self, workers)
        if self.score is None or self.times > 1:
            return parts
        return [Part(part.sources, score=self.score) for part in parts]

    def selected(self, kept: Mapping[int, Sequence[int]], workers: int) -> IntArray:
        """None without scoring, whatever a worker says."""
        known = kept if self.score is not None else {}
        width = max((len(peers) for peers in known.values()), default=0)
        table = np.full((workers, width), -1, dtype=np.int64)
        for worker, peers in known.items():
            table[worker, : len(peers)] = list(peers)
        return table

    def extra_steps(self, workers: int) -> FloatArray:
        if self.score is None:
            return np.zeros(workers)
        scored = (self.sources >= 0).sum(axis=1)
        return np.asarray(self.times * self.score.cost_per_candidate * scored, dtype=np.float64)


def PeerScoring(
    candidates: IntArray,
    keep: int,
    samples: int,
    cost_per_candidate: float,
    symmetric: bool = False,
) -> DirectedMixing:
    """Each worker pulls candidates [N, M] (-1 where there is none), scores them on its own samples
    and averages the best. The cost is in step times of the scoring worker; symmetric: average in
    both directions with symmetric weights."""
    return DirectedMixing(candidates, Scoring(keep, samples, cost_per_candidate, symmetric))


@dataclass(frozen=True, slots=True)
class WeightedMixing(Mixing):
    """Each worker i takes own_weights[i] of its own model and the links' weights of others'.

    A link is (receiver, sender): an undirected one is there twice. The weights of a worker sum to
    1 (rows). With push_sum those that a model is sent with do (columns): then a scalar travels
    with every model, and the models are divided by it (push-sum).
    """

    links: IntArray = field()  # [E, 2] (receiver, sender), each once
    weights: FloatArray = field()  # [E] above 0
    own_weights: FloatArray = field()  # [N]
    push_sum: bool = False  # as the mass of the algorithm's rule says

    def matrix(self) -> csr_array:
        return link_weights(self.links, self.weights, self.own_weights)

    def check_weights(self, workers: int) -> None:
        links = check_links(self.links, "its WeightedMixing", workers)
        check_distinct(links, "its WeightedMixing")
        weights = _numbers(self.weights, "weights", len(links))
        for link in np.flatnonzero(weights <= 0):
            receiver, sender = links[link].tolist()
            raise Unusable(
                f"the model of worker {sender} has the weight {weights[link]:g} at worker "
                f"{receiver}",
                "numbers above 0; leave out a link that carries nothing",
            )
        own = _numbers(self.own_weights, "own_weights", workers)
        for worker in np.flatnonzero(own < 0):
            raise Unusable(
                f"worker {worker} has the own weight {own[worker]:g}", "numbers of at least 0"
            )
        end, whose = (1, "sent by") if self.push_sum else (0, "of")
        sums = own + np.bincount(links[:, end], weights=weights, minlength=workers)
        for worker in np.flatnonzero(np.abs(sums - 1) > WEIGHT_TOLERANCE):
            raise Unusable(
                f"the weights {whose} worker {worker} sum to {sums[worker]:.9g}",
                "a sum of 1 for every sender (columns)"
                if self.push_sum
                else "a sum of 1 for every receiver (rows); of every sender only with push_sum",
            )
        for worker in np.flatnonzero(own == 0) if self.push_sum else ():
            raise Unusable(
                f"worker {worker} keeps nothing of its own model",
                "own_weights above 0 with push_sum: a weight of 0 cannot be divided by",
            )

    def with_min_peers(
        self, available: BoolArray, network: Network, *, least: int, round_index: int
    ) -> Exchange:
        """Weights of an own algorithm cannot be completed: with too few peers they are refused."""
        counts = np.bincount(self.links[:, 0], minlength=len(self.own_weights))
        for worker in np.flatnonzero((counts > 0) & (counts < least)):
            raise ConfigError(
                f"needs the models of {least} peers, but in round {round_index} the WeightedMixing "
                f"of the algorithm gives worker {worker} {counts[worker]}: poisoned models would "
                "count",
                key="exchange.robust",
                allowed=f"'none' or 'clip', or plans with at least {least} links for every worker "
                "that mixes",
                fix="plan more links, lower exchange.trim, or set exchange.robust = 'clip'",
            )
        return self

    def _facts(self) -> dict[str, Any]:
        return {
            "weighted": {
                "links": self.links.tolist(),
                "weights": self.weights.tolist(),
                "own_weights": self.own_weights.tolist(),
                "push_sum": self.push_sum,
            }
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> WeightedMixing:
        return cls(
            links=np.array(facts["links"], dtype=np.int64).reshape(-1, 2),
            weights=np.array(facts["weights"], dtype=np.float64),
            own_weights=np.array(facts["own_weights"], dtype=np.float64),
            push_sum=bool(facts["push_sum"]),
        )


def _numbers(values: Any, name: str, count: int) -> Any:
    wanted = f"{count} finite numbers"
    whose = f"{name} of its WeightedMixing"
    weights = check_array(values, whose, wanted, shape=(count,), kinds="f")
    for bad in np.flatnonzero(~np.isfinite(weights)):
        raise Unusable(f"{name}[{bad}] of its WeightedMixing is {weights[bad]}", wanted)
    return weights


def pulls(sources: IntArray) -> IntArray:
    """(receiver, sender) for every source in [N, M] that is not -1, [E, 2]."""
    receivers, columns = np.nonzero(sources >= 0)
    return np.stack([receivers, sources[receivers, columns]], axis=1).astype(np.int64)
