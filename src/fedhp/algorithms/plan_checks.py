"""Asks an algorithm for a plan or an action and checks the answer before anything acts on it.

A bad answer is refused with the problem, what is allowed, and the method's place in its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np

from fedhp.algorithms.base import Algorithm, AsyncAlgorithm, Observation, traits_of
from fedhp.errors import BadPlan, definition_place
from fedhp.graph import MixingRule, in_order, weights_problem
from fedhp.types import (
    Action,
    Decision,
    DirectedMixing,
    GroupAverage,
    IntArray,
    LinkVerdict,
    NeighborMixing,
    PeerScoring,
    Plan,
    Reports,
    Topology,
    WeightedMixing,
)

MOST_STEPS = 1_000_000  # of one worker in one round
WEIGHT_TOLERANCE = 1e-6  # of a sum of mixing weights
_RULES = get_args(MixingRule)


class _Unusable(Exception):
    """A problem, and what is allowed."""


def next_plan(
    algorithm: Algorithm, state: Any, *, observation: Observation, reports: Reports
) -> tuple[Any, Plan]:
    """The algorithm's next state and plan, checked."""
    answer: Any = algorithm.plan(state, observation, reports)
    try:
        _check_answer(answer, Plan, "plan")
        _check_plan(answer[1], len(observation.available))
        _check_carried(answer[1], algorithm)
        _check_present(answer[1], observation)
    except _Unusable as unusable:
        raise _bad_plan(algorithm, "plan", observation, unusable) from None
    return answer[0], answer[1]


def next_action(
    algorithm: AsyncAlgorithm, state: Any, worker: int, *, observation: Observation, turn: int
) -> tuple[Any, Action]:
    """The algorithm's next state and the worker's next action, checked."""
    answer: Any = algorithm.act(state, worker, observation, turn=turn)
    try:
        _check_answer(answer, Action, "act")
        _check_action(answer[1], worker, len(observation.available))
    except _Unusable as unusable:
        raise _bad_plan(algorithm, "act", observation, unusable) from None
    return answer[0], answer[1]


def _bad_plan(
    algorithm: Any, method: str, observation: Observation, unusable: _Unusable
) -> BadPlan:
    problem, allowed = unusable.args
    place = definition_place(getattr(type(algorithm), method))
    return BadPlan(
        f"{type(algorithm).__name__}, round {observation.round_index}: {problem}"
        + (f" ({method}() is at {place})" if place else ""),
        allowed=allowed,
        fix=f"change the settings in [algorithm], or correct {method}() if it is yours",
    )


def _check_answer(answer: Any, kind: type[Plan] | type[Action], method: str) -> None:
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], kind):
        return
    got = _kind(answer)
    if isinstance(answer, tuple):
        got = f"({', '.join(type(item).__name__ for item in answer)})"
    raise _Unusable(f"{method}() returned {got}", f"(state, {kind.__name__})")


def _check_plan(plan: Plan, workers: int) -> None:
    _check_work(plan, workers)
    _check_exchange(plan.exchange, workers)
    group = isinstance(plan.exchange, GroupAverage)
    if group and plan.local_steps is not None:
        raise _Unusable("its plan has a GroupAverage and local_steps", "a deadline only")
    if plan.overlap and not group:
        raise _Unusable(
            f"its plan has overlap and {_kind(plan.exchange)}", "overlap with a GroupAverage only"
        )
    _check_decision(plan.decision, workers)
    if plan.estimate is not None:
        estimate = np.asarray(plan.estimate)
        if estimate.shape != (workers,) or estimate.dtype != np.bool_:
            raise _Unusable(
                f"estimate is {estimate.dtype} of the shape {estimate.shape}",
                f"None, or booleans, one for each of the {workers} workers",
            )


def _check_work(plan: Plan, workers: int) -> None:
    if plan.local_steps is None:
        if not _is_number(plan.deadline) or not 0 < float(plan.deadline or 0) < np.inf:
            raise _Unusable(
                f"its plan has no local_steps, and the deadline {plan.deadline}",
                "local_steps, or a deadline in seconds above 0",
            )
        return
    wanted = f"whole numbers, one for each of the {workers} workers"
    steps = _array(plan.local_steps, "local_steps", wanted)
    if steps.dtype.kind == "f" and not np.isfinite(steps).all():
        worker = int(np.flatnonzero(~np.isfinite(steps))[0])
        raise _Unusable(f"local_steps holds {steps.flat[worker]} for worker {worker}", wanted)
    if steps.shape != (workers,) or steps.dtype.kind not in "iu":
        raise _Unusable(f"local_steps is {steps.dtype} of the shape {steps.shape}", wanted)
    wrong = np.flatnonzero((steps < 0) | (steps > MOST_STEPS))
    if len(wrong):
        worker = int(wrong[0])
        _check_step_count(int(steps[worker]), worker)


def _check_step_count(count: int, worker: int) -> None:
    if not 0 <= count <= MOST_STEPS:
        raise _Unusable(
            f"it plans {count} steps for worker {worker}",
            f"0 to {MOST_STEPS} steps for each worker",
        )


def _check_exchange(exchange: Any, workers: int) -> None:
    if isinstance(exchange, NeighborMixing):
        _check_neighbors(exchange, workers)
    elif isinstance(exchange, DirectedMixing):
        _check_sources(exchange.sources, "sources", workers)
    elif isinstance(exchange, PeerScoring):
        _check_sources(exchange.candidates, "candidates", workers)
        for name in ("keep", "samples"):
            count = getattr(exchange, name)
            if not _is_whole(count) or count < 1:
                raise _Unusable(f"{name} of its PeerScoring is {count!r}", "a whole number above 0")
        cost = exchange.cost_per_candidate
        if not _is_number(cost) or not 0 <= float(cost) < np.inf:
            raise _Unusable(
                f"cost_per_candidate of its PeerScoring is {cost!r}", "a number of at least 0"
            )
    elif isinstance(exchange, GroupAverage):
        _check_group(exchange, workers)
    elif isinstance(exchange, WeightedMixing):
        _check_weighted(exchange, workers)
    else:
        raise _Unusable(
            f"the exchange of its plan is {_kind(exchange)}",
            "a NeighborMixing, a DirectedMixing, a WeightedMixing, a PeerScoring or a GroupAverage",
        )


def _check_weighted(exchange: WeightedMixing, workers: int) -> None:
    links = _check_links(exchange.links, "its WeightedMixing", workers)
    itself = np.flatnonzero(links[:, 0] == links[:, 1])
    if len(itself):
        raise _Unusable(
            f"its WeightedMixing links worker {int(links[itself[0], 0])} to itself",
            "links between two different workers; own_weights are for the own model",
        )
    pairs, counts = np.unique(links, axis=0, return_counts=True)
    if (counts > 1).any():
        receiver, sender = pairs[counts > 1][0].tolist()
        raise _Unusable(
            f"its WeightedMixing has the link from {sender} to {receiver} more than once",
            "each (receiver, sender) once",
        )
    weights = _weights(exchange.weights, "weights", len(links))
    if (weights <= 0).any():
        receiver, sender = links[np.flatnonzero(weights <= 0)[0]].tolist()
        raise _Unusable(
            f"the model of worker {sender} has the weight "
            f"{float(weights[np.flatnonzero(weights <= 0)[0]]):g} at worker {receiver}",
            "numbers above 0; leave out a link that carries nothing",
        )
    own = _weights(exchange.own_weights, "own_weights", workers)
    if (own < 0).any():
        worker = int(np.flatnonzero(own < 0)[0])
        raise _Unusable(
            f"worker {worker} has the own weight {float(own[worker]):g}", "numbers of at least 0"
        )
    end, whose = (1, "sent by") if exchange.push_sum else (0, "of")
    sums = own + np.bincount(links[:, end], weights=weights, minlength=workers)
    wrong = np.flatnonzero(np.abs(sums - 1) > WEIGHT_TOLERANCE)
    if len(wrong):
        worker = int(wrong[0])
        raise _Unusable(
            f"the weights {whose} worker {worker} sum to {float(sums[worker]):.9g}",
            "a sum of 1 for every sender (columns)"
            if exchange.push_sum
            else "a sum of 1 for every receiver (rows); of every sender only with push_sum",
        )
    if exchange.push_sum and (own == 0).any():
        worker = int(np.flatnonzero(own == 0)[0])
        raise _Unusable(
            f"worker {worker} keeps nothing of its own model",
            "own_weights above 0 with push_sum: a weight of 0 cannot be divided by",
        )


def _weights(values: Any, name: str, count: int) -> Any:
    wanted = f"{count} finite numbers"
    weights = _array(values, f"{name} of its WeightedMixing", wanted)
    if weights.shape != (count,) or weights.dtype.kind != "f":
        raise _Unusable(
            f"{name} of its WeightedMixing is {weights.dtype} of the shape {weights.shape}", wanted
        )
    if not np.isfinite(weights).all():
        bad = int(np.flatnonzero(~np.isfinite(weights))[0])
        raise _Unusable(f"{name}[{bad}] of its WeightedMixing is {weights[bad]}", wanted)
    return weights


def _check_present(plan: Plan, observation: Observation) -> None:
    """Who is away neither trains nor exchanges anything."""
    here, exchange = observation.available, plan.exchange
    steps = np.zeros_like(here) if plan.local_steps is None else plan.local_steps
    working = np.flatnonzero(~here & (steps > 0))
    if len(working):
        worker = int(working[0])
        raise _Unusable(
            f"it plans {int(steps[worker])} steps for worker {worker}, which is away",
            "0 steps for workers that are not available",
        )
    if isinstance(exchange, GroupAverage):
        missing = exchange.participants[~here[exchange.participants]]
        if len(missing):
            raise _Unusable(
                f"worker {int(missing[0])} takes part in its GroupAverage, and is away",
                "available workers as participants",
            )
        return
    links = _pulls(exchange)
    verb = "is linked to" if isinstance(exchange, NeighborMixing) else "takes from"
    away = np.flatnonzero(~here[links].all(axis=1))
    if len(away):
        receiver, sender = links[away[0]].tolist()
        who = receiver if not here[receiver] else sender
        raise _Unusable(
            f"in its {type(exchange).__name__} worker {receiver} {verb} {sender}, and {who} is "
            "away",
            "links between available workers",
        )


def _pulls(exchange: NeighborMixing | DirectedMixing | WeightedMixing | PeerScoring) -> IntArray:
    """The links of an exchange, (receiver, sender) where they have a direction, [E, 2]."""
    if isinstance(exchange, WeightedMixing):
        return exchange.links
    if isinstance(exchange, NeighborMixing):
        return exchange.topology.links
    sources = exchange.candidates if isinstance(exchange, PeerScoring) else exchange.sources
    receivers, columns = np.nonzero(sources >= 0)
    return np.stack([receivers, sources[receivers, columns]], axis=1)


def _check_carried(plan: Plan, algorithm: Any) -> None:
    """What travels with the models is known before the first round: the class declares it."""
    exchange = plan.exchange
    pushed = isinstance(exchange, WeightedMixing) and exchange.push_sum
    traits = traits_of(algorithm)
    if pushed != traits.push_sum:
        raise _Unusable(
            f"its plan has {_kind(exchange)} with{'' if pushed else 'out'} push_sum, but its class "
            f"has push_sum = {traits.push_sum}",
            "the same in the traits of the class and in every plan",
        )
    if traits.tracking and not isinstance(exchange, WeightedMixing):
        raise _Unusable(
            f"its class has tracking = True, and its plan has {_kind(exchange)}",
            "a WeightedMixing with tracking",
        )
    if (traits.push_sum or traits.tracking) and plan.estimate is not None:
        raise _Unusable(
            "its plan has estimate, and its class push_sum or tracking",
            "None: what is trained is not what travels",
        )


def _check_group(group: GroupAverage, workers: int) -> None:
    for name, kinds in (("participants", "iu"), ("parents", "iu"), ("returning", "b")):
        wanted = "one-dimensional arrays of equal length: workers, workers, booleans"
        column = _array(getattr(group, name), name, wanted)
        if column.shape != (len(group.participants),) or column.dtype.kind not in kinds:
            raise _Unusable(
                f"{name} of its GroupAverage is {column.dtype} of the shape {column.shape}", wanted
            )
    members = group.participants.tolist()
    if members != sorted(set(members) & set(range(workers))):
        raise _Unusable(
            f"the participants of its GroupAverage are {members}",
            f"different workers 0 to {workers - 1}, in ascending order",
        )
    _check_tree(members, group.parents.tolist(), group.returning.tolist())
    if not _is_whole(group.fragments) or not _is_whole(group.fragment):
        raise _Unusable("the fragment of its GroupAverage is not a whole number", "whole numbers")
    if not 0 <= group.fragment < group.fragments:
        raise _Unusable(
            f"its GroupAverage has fragment {group.fragment} of {group.fragments}",
            f"a fragment from 0 to {group.fragments - 1}",
        )
    if not _is_number(group.momentum) or not 0 <= group.momentum < 1:
        raise _Unusable(
            f"momentum of its GroupAverage is {group.momentum!r}", "a number from 0 to below 1"
        )
    if group.compression not in ("int8", "none"):
        raise _Unusable(
            f"its GroupAverage has the unknown compression {group.compression!r}", "int8, none"
        )


def _check_tree(members: list[int], parents: list[int], returning: list[bool]) -> None:
    """One root, everyone else below it, and nobody below a worker that returns."""
    above = dict(zip(members, parents, strict=True))
    roots = [worker for worker, parent in above.items() if parent < 0]
    if members and len(roots) != 1:
        raise _Unusable(
            f"the tree of its GroupAverage has the roots {roots}", "exactly one parent of -1"
        )
    back = {worker for worker, returns in zip(members, returning, strict=True) if returns}
    if back & set(roots):
        raise _Unusable(
            f"the root {roots[0]} of its GroupAverage returns", "a root that holds the consensus"
        )
    below_root = set(roots)
    for worker in members:
        path: dict[int, None] = {}
        while worker not in below_root:
            parent = above[worker]
            if parent not in above or worker in path or parent in back:
                raise _Unusable(
                    f"in the tree of its GroupAverage worker {worker} is below {parent}",
                    "a path to the root over participants that do not return",
                )
            path[worker] = None
            worker = parent
        below_root |= set(path)


def _check_neighbors(exchange: NeighborMixing, workers: int) -> None:
    if exchange.weights not in _RULES:
        raise _Unusable(
            f"its NeighborMixing has the unknown weights {exchange.weights!r}", ", ".join(_RULES)
        )
    topology = exchange.topology
    if not isinstance(topology, Topology):
        raise _Unusable(f"its topology is {_kind(topology)}", "a fedhp.Topology")
    if topology.workers != workers:
        raise _Unusable(
            f"its topology is for {topology.workers} workers", f"a topology for {workers} workers"
        )
    links = _check_links(topology.links, "its topology", workers)
    problem = weights_problem(topology)
    if problem:
        raise _Unusable(
            f"the weights of its topology cannot be mixed by: {problem}",
            "None, or a weight above 0 for each link in ascending order, at most 1 per worker",
        )
    if in_order(links):
        return
    same = np.flatnonzero(links[:, 0] == links[:, 1])
    if len(same):
        raise _Unusable(
            f"its topology links worker {int(links[same[0], 0])} to itself",
            "links between two different workers",
        )
    ordered = np.sort(links, axis=1)
    pairs, counts = np.unique(ordered, axis=0, return_counts=True)
    if (counts > 1).any():
        first, second = pairs[counts > 1][0].tolist()
        raise _Unusable(
            f"its topology has the link {first} - {second} more than once", "each link once"
        )


def _check_links(values: Any, name: str, workers: int) -> Any:
    wanted = "whole numbers of the shape [links, 2]"
    links = _array(values, f"the links of {name}", wanted)
    if links.ndim != 2 or links.shape[1] != 2 or links.dtype.kind not in "iu":
        raise _Unusable(f"the links of {name} are {links.dtype} of the shape {links.shape}", wanted)
    if links.size and (links.min() < 0 or links.max() >= workers):
        bad = int(links.max() if links.max() >= workers else links.min())
        raise _Unusable(
            f"{name} has a link of the unknown worker {bad}", f"workers 0 to {workers - 1}"
        )
    return links


def _check_sources(values: Any, name: str, workers: int) -> None:
    wanted = f"whole numbers of the shape [{workers}, peers]: worker numbers, or -1 for none"
    sources = _array(values, name, wanted)
    if sources.ndim != 2 or len(sources) != workers or sources.dtype.kind not in "iu":
        raise _Unusable(f"{name} is {sources.dtype} of the shape {sources.shape}", wanted)
    unknown = np.argwhere((sources < -1) | (sources >= workers))
    if len(unknown):
        worker, column = unknown[0].tolist()
        raise _Unusable(
            f"worker {worker} pulls from the unknown worker {int(sources[worker, column])}",
            f"workers 0 to {workers - 1}, or -1 for none",
        )
    itself = np.flatnonzero((sources == np.arange(workers)[:, None]).any(axis=1))
    if len(itself):
        raise _Unusable(
            f"worker {int(itself[0])} pulls from itself",
            "other workers only: a worker's own model is part of the average already",
        )


def _check_decision(decision: Any, workers: int) -> None:
    if not isinstance(decision, Decision):
        raise _Unusable(f"the decision of its plan is {_kind(decision)}", "a fedhp.Decision")
    links = _check_links(decision.links, "its decision", workers)
    columns = {"verdicts": decision.verdicts, "link_time": decision.link_time}
    if decision.distance is not None:
        columns["distance"] = decision.distance
    for name, values in columns.items():
        wanted = f"numbers, one for each of the {len(links)} links of the decision"
        column = _array(values, f"{name} of its decision", wanted)
        if column.shape != (len(links),) or column.dtype.kind not in "iuf":
            raise _Unusable(
                f"{name} of its decision is {column.dtype} of the shape {column.shape}", wanted
            )
    verdicts = np.asarray(decision.verdicts)
    if verdicts.size and (verdicts.min() < 0 or verdicts.max() >= len(LinkVerdict)):
        bad = verdicts.max() if verdicts.max() >= len(LinkVerdict) else verdicts.min()
        raise _Unusable(f"its decision has the unknown verdict {bad}", "a fedhp.LinkVerdict")
    setter = decision.pace_setter
    if setter is not None and not (_is_whole(setter) and 0 <= setter < workers):
        raise _Unusable(
            f"pace_setter of its decision is {setter!r}", f"None, or a worker 0 to {workers - 1}"
        )
    if not isinstance(decision.facts, Mapping) or not all(
        _is_number(value) for value in decision.facts.values()
    ):
        raise _Unusable(
            f"facts of its decision is {decision.facts!r}", "a table of names and numbers"
        )


def _check_action(action: Action, worker: int, workers: int) -> None:
    if not _is_whole(action.local_steps):
        raise _Unusable(
            f"it plans {action.local_steps!r} steps for worker {worker}",
            f"a whole number from 0 to {MOST_STEPS}",
        )
    _check_step_count(int(action.local_steps), worker)
    if action.compression not in ("none", "int8"):
        raise _Unusable(f"its compression is {action.compression!r}", "'none' or 'int8'")
    partner = action.partner
    if partner is None:
        return
    if not _is_whole(partner) or not 0 <= partner < workers:
        raise _Unusable(
            f"the partner of worker {worker} is the unknown worker {partner!r}",
            f"None, or a worker 0 to {workers - 1}",
        )
    if partner == worker:
        raise _Unusable(f"the partner of worker {worker} is itself", "None, or another worker")


def _array(values: Any, name: str, wanted: str) -> Any:
    try:
        return np.asarray(values)
    except Exception as error:  # rows of different lengths, or an object of the user's own
        raise _Unusable(f"{name} is not an array: {error}", wanted) from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
