"""A group average: one fragment of the model, summed up a tree and sent back down.

It starts with the round, from the models of its start. The fragment travels in CHUNKS pieces, up
to the root and back down at the same time: the slowest link sets the pace, and the pieces need two
more of their times per level of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.exchange.base import (
    Cost,
    Exchange,
    Exchanged,
    Executor,
    GroupPart,
    Moment,
    Part,
    Unusable,
    check_array,
    check_values,
    is_number,
    is_whole,
    kind_of,
)
from fedhp.timing import INT8_BLOCK, Network, int8_bytes
from fedhp.types import BoolArray, FloatArray, GroupRole, IntArray, Plan

if TYPE_CHECKING:
    from fedhp.world import World

CHUNKS = 128
LARGEST_RATE = 100.0
INT8_SHARE = 1 / 4 + 1 / INT8_BLOCK  # one byte per value, and a scale of 32 bits per block


class _Averages(Exchange):
    """One or several groups that average at the same time: what both forms have."""

    __slots__ = ()

    @property
    def required(self) -> Sequence[int]:
        """A sum that lacks one of them is none."""
        return sorted(worker for group in self.groups for worker in group.participants.tolist())

    def check_present(self, here: BoolArray) -> None:
        for worker in self.required:
            if not here[worker]:
                raise Unusable(
                    f"worker {worker} takes part in its GroupAverage, and is away",
                    "available workers as participants",
                )

    def without_group(self, plan: Plan) -> Plan:
        """The same round in which everyone only trains."""
        decision, nobody = plan.decision, np.empty(0, dtype=np.int64)
        participation = decision.participation
        if participation is not None:
            roles = tuple(
                role if role is GroupRole.AWAY else GroupRole.LEFT_OUT
                for role in participation.roles
            )
            returning = np.zeros_like(participation.returning)
            participation = replace(participation, roles=roles, returning=returning, root=-1)
        decision = replace(
            decision,
            links=np.empty((0, 2), dtype=np.int64),
            verdicts=nobody,
            link_time=np.empty(0),
            facts={**decision.facts, "participants": 0.0, "planned_transfer_time": 0.0},
            participation=participation,
        )
        alone = replace(
            self.groups[0], participants=nobody, parents=nobody, returning=nobody.astype(np.bool_)
        )
        return replace(plan, exchange=alone, decision=decision)

    def carry_out(self, executor: Executor, *, round_index: int) -> Exchanged:
        """All at once. Of sums no distances are measured, and nobody is selected."""
        executor.average_groups(self.groups)
        links, nobody = self.links, np.empty((executor.workers, 0), dtype=np.int64)
        return Exchanged(links, False, np.full(len(links), np.nan), nobody)

    def parts(self, workers: int) -> list[Part]:
        parts = [Part(group=GroupPart(self.groups[0]))] * workers
        for group in self.groups:
            for worker, place in group.places():
                parts[worker] = Part(group=place)
        return parts

    def lead_time(self, network: Network) -> float | None:
        """Until the last participant has the new consensus."""
        return max(group.transfer_time(network) for group in self.groups)


@dataclass(frozen=True, slots=True)
class GroupAverage(_Averages):
    """The participants add the mean of their changes, with Nesterov momentum, to a consensus.

    One fragment of the model travels over a tree: summed up to the root, then sent back down.
    """

    participants: IntArray  # [P] rising; empty: nothing is exchanged
    parents: IntArray  # [P] the worker above each participant in the tree, -1 for the root
    returning: BoolArray  # [P] those that do not hold the current consensus: leaves of the tree
    fragment: int = 0  # from 0
    fragments: int = 1  # contiguous and about equal parts of the model
    momentum: float = 0.7
    compression: str = "int8"  # of the messages, or "none"
    rate: float = 1.0  # of the step of the consensus

    @property
    def root(self) -> int:
        """The participant at the top of the tree, -1 without participants."""
        top = self.participants[self.parents < 0]
        return int(top[0]) if len(top) else -1

    @property
    def links(self) -> IntArray:
        """The links of the tree, smaller worker first, sorted, [P - 1, 2]."""
        ends = self._ends()
        return np.asarray(ends[_order(ends)], dtype=np.int64)

    @property
    def groups(self) -> tuple[GroupAverage, ...]:
        return (self,)

    # --- checks -----------------------------------------------------------------------------

    def check(self, plan: Plan, workers: int) -> None:
        for name, kinds in (("participants", "iu"), ("parents", "iu"), ("returning", "b")):
            wanted = "one-dimensional arrays of equal length: workers, workers, booleans"
            values, whose = getattr(self, name), f"{name} of its GroupAverage"
            check_array(values, whose, wanted, shape=(len(self.participants),), kinds=kinds)
        members = self.participants.tolist()
        if members != sorted(set(members) & set(range(workers))):
            raise Unusable(
                f"the participants of its GroupAverage are {members}",
                f"different workers 0 to {workers - 1}, in ascending order",
            )
        _check_tree(members, self.parents.tolist(), self.returning.tolist())
        part, parts, momentum, rate = self.fragment, self.fragments, self.momentum, self.rate
        if not is_whole(parts) or not is_whole(part) or not 0 <= part < parts:
            raise Unusable(
                f"its GroupAverage has fragment {part} of {parts}",
                "a whole number of fragments, and one of them, counted from 0",
            )
        moving = is_number(momentum) and 0 <= momentum < 1
        going = is_number(rate) and 0 < rate <= LARGEST_RATE
        known = self.compression in ("int8", "none")
        check_values(
            "GroupAverage",
            ("momentum", momentum, moving, "a number from 0 to below 1"),
            ("compression", self.compression, known, "int8, none"),
            ("rate", rate, going, f"a number above 0, at most {LARGEST_RATE:g}"),
        )
        if plan.local_steps is not None:
            raise Unusable("its plan has a GroupAverage and local_steps", "a deadline only")

    # --- carried out ------------------------------------------------------------------------

    def places(self) -> Iterator[tuple[int, GroupPart]]:
        for worker, parent, returning in zip(
            self.participants.tolist(), self.parents.tolist(), self.returning.tolist(), strict=True
        ):
            below = self.parents == worker
            yield (
                worker,
                GroupPart(
                    self,
                    members=len(self.participants),
                    returning=returning,
                    parent=parent,
                    children=tuple(self.participants[below].tolist()),
                    returning_children=tuple(self.participants[below & self.returning].tolist()),
                ),
            )

    # --- time and bytes ---------------------------------------------------------------------

    def lead_time_in(self, world: World, *, clock: float, event: int) -> float | None:
        jitter = None if world.jitter is None else world.jitter.factors(self.links, event)
        if not world.follows_trace or len(self.participants) < 2:
            return self.transfer_time(world.network(clock), jitter=jitter)
        # The share of the transfer that is done per second, on the links of each moment.
        seconds = world.transfer_time(
            1.0,
            lambda network: np.array([1 / self.streaming_time(network, jitter=jitter)]),
            starts=np.array([clock]),
        )
        return float(seconds[0]) + self.tree_latency(world.latency)

    def cost(self, exchanged: Exchanged, at: Moment) -> Cost:
        """Of each link's messages; nobody waits for it after its steps."""
        world, network = at.world, at.world.network(at.clock)
        seconds = self.link_times(network)
        if world.jitter is not None:
            seconds = seconds * world.jitter.factors(exchanged.links, at.event)
        return Cost(seconds, self.link_bytes(network.model_bits), np.zeros(world.workers))

    def transfer_time(self, network: Network, *, jitter: FloatArray | None = None) -> float:
        """Seconds until the last participant has the new consensus. jitter: by how much each link
        takes longer, [E]."""
        return self.streaming_time(network, jitter=jitter) + self.tree_latency(network.latency)

    def streaming_time(self, network: Network, *, jitter: FloatArray | None = None) -> float:
        """The part of transfer_time that the bandwidth sets; 0 where nothing travels."""
        if len(self.participants) < 2:
            return 0.0
        seconds = self._link_seconds(network)
        if jitter is not None:
            seconds = seconds[_order(self._ends())] * jitter
        return float(seconds.max()) * (1 + 2 * self.depth / CHUNKS)

    def tree_latency(self, latency: float) -> float:
        """The part of transfer_time that does not depend on the bandwidth: one latency per hop."""
        return 2 * self.depth * latency if len(self.participants) else 0.0

    def link_times(self, network: Network) -> FloatArray:
        """Seconds that each link needs for its messages, [E]."""
        seconds = self._link_seconds(network) + network.latency
        return np.asarray(seconds[_order(self._ends())])

    def link_bytes(self, model_bits: float) -> IntArray:
        """Bytes over each link, up and down together, [E]."""
        values = round(model_bits / 32)
        first, last = (
            part * values // self.fragments for part in (self.fragment, self.fragment + 1)
        )
        message = 4 * (last - first) if self.compression == "none" else int8_bytes(last - first)
        return np.full(len(self.links), 2 * message, dtype=np.int64)

    def message_bits(self, model_bits: float) -> float:
        """Bits of a fragment as a message of the tree, up or down."""
        return model_bits / self.fragments * (1 if self.compression == "none" else INT8_SHARE)

    @property
    def depth(self) -> int:
        """Links between the root and the farthest participant."""
        above = dict(zip(self.participants.tolist(), self.parents.tolist(), strict=True))
        depth: dict[int, int] = {-1: -1}
        for worker in above:
            path = []
            while worker not in depth:
                path.append(worker)
                worker = above[worker]
            for node in reversed(path):
                depth[node] = depth[above[node]] + 1
        return max(depth.values())

    def _ends(self) -> IntArray:
        """Both ends of each participant's link to its parent, smaller worker first."""
        below = self.parents >= 0
        ends = np.stack([self.participants[below], self.parents[below]], axis=1)
        ends.sort(axis=1)
        return ends

    def _link_seconds(self, network: Network) -> FloatArray:
        """Seconds of each participant's link to its parent, the root left out; without latency."""
        message = self.message_bits(network.model_bits)
        below = self.parents >= 0
        child, parent = self.participants[below], self.parents[below]
        lower = upper = np.full(len(child), message)
        if network.sharing:
            # What a worker sends goes over its bandwidth, and what it receives, both at once.
            degree = np.bincount(np.concatenate([child, parent]), minlength=len(network.bandwidth))
            lower, upper = message * degree[child], message * degree[parent]
        if network.bandwidth.ndim == 1:
            by_child = lower / network.bandwidth[child]
            by_parent = upper / network.bandwidth[parent]
            return np.asarray(np.maximum(by_child, by_parent))
        return np.asarray(np.maximum(lower, upper) / network.bandwidth[child, parent])

    # --- history ----------------------------------------------------------------------------

    def to_facts(self) -> dict[str, Any]:
        tree = {
            "participants": self.participants.tolist(),
            "parents": self.parents.tolist(),
            "returning": self.participants[self.returning].tolist(),
            "fragment": self.fragment,
            "fragments": self.fragments,
            "momentum": self.momentum,
            "compression": self.compression,
            "rate": self.rate,
        }
        return {"group": tree}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> GroupAverage:
        participants = np.array(facts["participants"], dtype=np.int64)
        return cls(
            participants=participants,
            parents=np.array(facts["parents"], dtype=np.int64),
            returning=np.isin(participants, facts["returning"]),
            fragment=int(facts["fragment"]),
            fragments=int(facts["fragments"]),
            momentum=float(facts["momentum"]),
            compression=str(facts["compression"]),
            rate=float(facts.get("rate", 1.0)),  # histories of earlier releases do not have it
        )


@dataclass(frozen=True, slots=True)
class DisjointGroups(_Averages):
    """Several groups average at the same time, each with a consensus of its own."""

    # No worker in two of them; all with the same fragment.
    groups: tuple[GroupAverage, ...] = field()

    @property
    def links(self) -> IntArray:
        links = self._links()
        return links[_order(links)]

    def _links(self) -> IntArray:
        return np.concatenate([group.links for group in self.groups])

    def check(self, plan: Plan, workers: int) -> None:
        if not isinstance(self.groups, tuple) or not self.groups:
            raise Unusable(
                f"groups of its DisjointGroups is {self.groups!r}", "a tuple of GroupAverages"
            )
        for group in self.groups:
            if not isinstance(group, GroupAverage):
                raise Unusable(f"its DisjointGroups has {kind_of(group)}", "GroupAverages alone")
            group.check(plan, workers)
        for worker, other in pairwise(self.required):
            if worker == other:
                raise Unusable(
                    f"worker {worker} is in two groups of its DisjointGroups",
                    "each worker in one group at most",
                )
        fragments = sorted({(group.fragment, group.fragments) for group in self.groups})
        if len(fragments) > 1:
            raise Unusable(
                f"its DisjointGroups has the fragments {fragments}", "the same fragment for all"
            )

    def lead_time_in(self, world: World, *, clock: float, event: int) -> float | None:
        times = [group.lead_time_in(world, clock=clock, event=event) for group in self.groups]
        return max(time or 0.0 for time in times)

    def cost(self, exchanged: Exchanged, at: Moment) -> Cost:
        """As each of them: they share no link and no worker."""
        workers = at.world.workers
        nobody = np.empty((workers, 0), dtype=np.int64)
        costs = [
            group.cost(Exchanged(group.links, False, np.empty(0), nobody), at)
            for group in self.groups
        ]
        order = _order(self._links())
        return Cost(
            np.concatenate([cost.link_time for cost in costs])[order],
            np.concatenate([cost.link_bytes for cost in costs])[order],
            np.zeros(workers),
        )

    def to_facts(self) -> dict[str, Any]:
        return {"groups": [group.to_facts()["group"] for group in self.groups]}

    @classmethod
    def from_facts(cls, facts: Sequence[Mapping[str, Any]]) -> DisjointGroups:
        return cls(tuple(GroupAverage.from_facts(each) for each in facts))


def _order(ends: IntArray) -> IntArray:
    """How links are sorted."""
    return np.lexsort((ends[:, 1], ends[:, 0]))


def _check_tree(members: list[int], parents: list[int], returning: list[bool]) -> None:
    """One root, everyone else below it, and nobody below a worker that returns."""
    above = dict(zip(members, parents, strict=True))
    roots = [worker for worker, parent in above.items() if parent < 0]
    if members and len(roots) != 1:
        raise Unusable(
            f"the tree of its GroupAverage has the roots {roots}", "exactly one parent of -1"
        )
    back = {worker for worker, returns in zip(members, returning, strict=True) if returns}
    if back & set(roots):
        raise Unusable(
            f"the root {roots[0]} of its GroupAverage returns", "a root that holds the consensus"
        )
    below_root = set(roots)
    for worker in members:
        path: dict[int, None] = {}
        while worker not in below_root:
            parent = above[worker]
            if parent not in above or worker in path or parent in back:
                raise Unusable(
                    f"in the tree of its GroupAverage worker {worker} is below {parent}",
                    "a path to the root over participants that do not return",
                )
            path[worker] = None
            worker = parent
        below_root |= set(path)
