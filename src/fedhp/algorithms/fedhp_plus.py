"""FedHP+: train all the time, average exactly among the workers whose links are fast now.

A round averages one fragment of the model over a tree (group_tree.py) with momentum and one byte
per weight, while everyone trains on. Nobody is left out for more than `patience` averages of a
fragment in a row, and what a worker learned meanwhile is part of its next change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import Federation, Observation, Range, Settings, Space
from fedhp.algorithms.group_tree import build_tree, fastest_first
from fedhp.algorithms.pace import moving_average
from fedhp.algorithms.traits import About, Traits
from fedhp.exchange import GroupAverage
from fedhp.types import (
    BoolArray,
    Decision,
    FloatArray,
    GroupRole,
    IntArray,
    LinkVerdict,
    Participation,
    Plan,
    Reports,
    StepReason,
    StepRule,
)

SMALLEST_GROUP = 3
# Of a large federation not every size of the group is tried: so many, and so many workers in all.
SIZES_TRIED, WORKERS_TRIED = 64, 200_000
TRANSFER_SMOOTHING = 0.3
STEP_SMOOTHING = 0.5


@dataclass(frozen=True, slots=True)
class FedHPPlusState:
    """What the coordinator keeps between rounds; F fragments, N workers."""

    step_time: FloatArray  # [N] s; NaN: not measured yet
    left_out: IntArray  # [F, N] averages of the fragment in a row without the worker
    held: IntArray  # [F, N] the round whose consensus the worker holds, 0: the initial model
    since: IntArray  # [F, N] the first round of its present averages without a gap
    transfer_time: float  # s, smoothed; NaN: nothing was averaged yet
    deadline: float  # of the last round, s


@dataclass(frozen=True, slots=True)
class _Group:
    """The participants of a size that was tried."""

    exchange: GroupAverage
    transfer_time: float  # s, predicted
    added: int  # the worker that is there for its consensus alone, -1: none

    def cost(self, deadline: float) -> float:
        """Seconds of a round per participant."""
        return (deadline + self.transfer_time) / len(self.exchange.participants)


class FedHPPlus(Settings):
    """Group averages over the fast links of the moment, overlapped with training."""

    traits: ClassVar[Traits] = Traits(
        uses_rounds=False,
        uses_topology=False,
        local_work=False,
        group_average=True,
        compression="set algorithm.compression instead",
        plans_by="world",
    )
    about: ClassVar[About] = About(
        name="FedHP+",
        color="#000000",
        dashes="-",
        marker="*",
        width=1.8,
        order=4.0,
        favourite=2,
    )
    tunable: ClassVar[Space] = {
        **Settings.tunable,
        "momentum": Range(0.0, 0.95),
        "deadline_ratio": Range(0.05, 2.0),
    }
    learning_rate: Annotated[float, Field(gt=0)] | None = 0.3  # of SGD (rates.py)
    fragments: Annotated[int, Field(ge=1, le=1024)] = 2
    compression: Literal["int8", "none"] = "int8"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.7
    patience: Annotated[int, Field(ge=0, le=1_000_000)] = 3  # averages without a worker, at most
    min_share: Annotated[float, Field(ge=0, le=1)] = 0.4  # of the workers, in every group
    deadline_ratio: Annotated[float, Field(ge=0, le=1000)] = 0.2  # deadline / transfer time
    first_deadline: Annotated[float, Field(ge=1e-6, le=1e6)] = 0.3  # s
    min_steps: Annotated[int, Field(ge=1, le=100_000)] = 5  # of the fastest worker, per deadline
    max_steps: Annotated[int, Field(ge=1, le=100_000)] = 500  # of the fastest worker
    overlap: bool = True  # train during the transfer as well

    def configured(self) -> Traits:
        return replace(super().configured(), fragments=self.fragments)

    def start(self, federation: Federation) -> FedHPPlusState:
        """Everyone holds the initial model."""
        none = np.zeros((self.fragments, federation.workers), dtype=np.int64)
        return FedHPPlusState(
            step_time=np.full(federation.workers, np.nan),
            left_out=none,
            held=none,
            since=none,
            transfer_time=float("nan"),
            deadline=self.first_deadline,
        )

    def plan(
        self, state: FedHPPlusState, observation: Observation, reports: Reports
    ) -> tuple[FedHPPlusState, Plan]:
        """Choose who averages now, over which tree, and until when everyone trains afterwards."""
        state = replace(
            state,
            step_time=moving_average(state.step_time, reports.step_time, STEP_SMOOTHING),
            transfer_time=_smoothed(state.transfer_time, reports.transfer_time),
        )
        fragment = observation.round_index % self.fragments
        available = observation.available
        if observation.round_index == 1 or not available.any():
            return state, self._without_average(fragment, available)
        overdue = available & (state.left_out[fragment] >= self.patience)
        group = self._choose(state, observation, fragment, overdue)
        transfer_time = _smoothed(state.transfer_time, group.transfer_time)
        deadline = self._deadline(transfer_time, state.step_time[available])
        plan = Plan(
            exchange=group.exchange,
            deadline=deadline,
            overlap=self.overlap,
            decision=self._decision(
                group,
                observation,
                participation=_participation(
                    group, available, overdue=overdue, left_out=state.left_out[fragment]
                ),
                facts={
                    "deadline": deadline,
                    "smoothed_transfer_time": transfer_time,
                    "objective": group.cost(state.deadline),
                },
            ),
        )
        return _after(state, group.exchange, observation.round_index, deadline), plan

    def restart(self, state: FedHPPlusState, workers: BoolArray) -> FedHPPlusState:
        """They hold the initial model again, and return to the averages like others do."""
        held, since = state.held.copy(), state.since.copy()
        held[:, workers] = since[:, workers] = 0
        return replace(state, held=held, since=since)

    def _choose(
        self, state: FedHPPlusState, observation: Observation, fragment: int, overdue: BoolArray
    ) -> _Group:
        """Of the groups of every size, the one with the least time per participant."""
        network, held = observation.network, state.held[fragment]
        order = fastest_first(network, observation.available)
        count = len(order)
        least = min(count, max(SMALLEST_GROUP, int(np.ceil(self.min_share * count - 1e-9))))
        tried = min(SIZES_TRIED, WORKERS_TRIED // count + 2, count - least + 1)
        sizes = np.unique(np.linspace(least, count, tried).round().astype(np.int64))
        # Those that hold the newest consensus there is; workers that are away may hold a newer one.
        current = held == held[order].max()
        groups = []
        for size in sizes.tolist():
            chosen, added = overdue.copy(), -1
            chosen[order[:size]] = True
            if not (chosen & current).any():
                added = int(order[current[order]][0])
                chosen[added] = True
            members = order[chosen[order]]
            exchange = self._exchange(
                fragment,
                observation,
                holders=members[current[members]],
                since=state.since[fragment],
                returning=members[~current[members]],
            )
            groups.append(_Group(exchange, exchange.transfer_time(network), added))
        return min(groups, key=lambda group: group.cost(state.deadline))

    def _exchange(
        self,
        fragment: int,
        observation: Observation,
        *,
        holders: IntArray,
        returning: IntArray,
        since: IntArray,
    ) -> GroupAverage:
        """The tree over those that hold the consensus, with those that return as leaves. The root
        has taken part for longest: it knows the momentum. Where links are to be avoided, it is
        the one of them from which the tree reaches most."""
        trees, network, avoid = [], observation.network, observation.avoid
        # Of equals, the one with the fastest link.
        for root in holders[np.argsort(since[holders], kind="stable")].tolist():
            others = holders[holders != root].tolist()
            leaves = returning.tolist()
            trees.append(build_tree(network, root=root, others=others, leaves=leaves, avoid=avoid))
            if len(trees[-1].workers) == len(holders) + len(returning):
                break
        tree = max(trees, key=lambda each: len(each.workers))
        order = np.argsort(tree.workers)
        participants = tree.workers[order]
        returns = np.isin(participants, returning)
        return self._average(fragment, participants, tree.parents[order], returns)

    def _average(
        self, fragment: int, participants: IntArray, parents: IntArray, returning: BoolArray
    ) -> GroupAverage:
        return GroupAverage(
            participants,
            parents,
            returning,
            fragment,
            self.fragments,
            momentum=self.momentum,
            compression=self.compression,
        )

    def _deadline(self, transfer_time: float, step_time: FloatArray) -> float:
        """A share of the transfer time, with some steps at least for the fastest worker; a slower
        one carries its unfinished step over."""
        known = step_time[np.isfinite(step_time)]
        wanted = self.deadline_ratio * transfer_time
        if not known.size:
            return float(wanted or self.first_deadline)
        fastest = float(known.min())
        return max(min(wanted, self.max_steps * fastest), self.min_steps * fastest)

    def _decision(
        self,
        group: _Group,
        observation: Observation,
        *,
        participation: Participation,
        facts: dict[str, float],
    ) -> Decision:
        exchange = group.exchange
        links = exchange.links
        rule = StepRule.GROUP_OVERLAP if self.overlap else StepRule.GROUP_WAIT
        return Decision(
            links=links,
            verdicts=np.full(len(links), LinkVerdict.TREE, dtype=np.int64),
            link_time=exchange.link_times(observation.network),
            rule=StepReason(rule),
            facts={
                **facts,
                "fragment": float(exchange.fragment),
                "fragments": float(exchange.fragments),
                "participants": float(len(exchange.participants)),
                "planned_transfer_time": group.transfer_time,
            },
            participation=participation,
        )

    def _without_average(self, fragment: int, available: BoolArray) -> Plan:
        """The first round: nobody has learned anything yet."""
        nobody = np.empty(0, dtype=np.int64)
        never = np.zeros(len(available), dtype=np.int64)
        return Plan(
            exchange=self._average(fragment, nobody, nobody, nobody.astype(np.bool_)),
            deadline=self.first_deadline,
            overlap=self.overlap,
            decision=replace(
                Decision.without_links(StepReason(StepRule.GROUP_START)),
                facts={"deadline": self.first_deadline},
                participation=Participation(
                    tuple(_roles(available)), never, never.astype(np.bool_), root=-1
                ),
            ),
        )


def _roles(available: BoolArray) -> list[GroupRole]:
    """[N] of those that take no part."""
    return [GroupRole.LEFT_OUT if there else GroupRole.AWAY for there in available.tolist()]


def _smoothed(before: float, transfer_time: float) -> float:
    """The moving average of the transfer times; NaN stands for a missing one."""
    if np.isnan(transfer_time):
        return before
    if np.isnan(before):
        return transfer_time
    return (1 - TRANSFER_SMOOTHING) * before + TRANSFER_SMOOTHING * transfer_time


def _participation(
    group: _Group, available: BoolArray, *, overdue: BoolArray, left_out: IntArray
) -> Participation:
    exchange = group.exchange
    roles = _roles(available)
    for worker in exchange.participants.tolist():
        roles[worker] = GroupRole.OVERDUE if overdue[worker] else GroupRole.FAST
    if group.added >= 0:
        roles[group.added] = GroupRole.ADDED
    returning = np.zeros(len(available), dtype=np.bool_)
    returning[exchange.participants] = exchange.returning
    return Participation(
        roles=tuple(roles), left_out=left_out, returning=returning, root=exchange.root
    )


def _after(
    state: FedHPPlusState, exchange: GroupAverage, round_index: int, deadline: float
) -> FedHPPlusState:
    """The state once the group has the new consensus of its fragment."""
    fragment, members = exchange.fragment, exchange.participants
    left_out, held, since = state.left_out.copy(), state.held.copy(), state.since.copy()
    left_out[fragment] += 1
    left_out[fragment, members] = 0
    held[fragment, members] = round_index
    since[fragment, members[exchange.returning]] = round_index
    return replace(state, left_out=left_out, held=held, since=since, deadline=deadline)
