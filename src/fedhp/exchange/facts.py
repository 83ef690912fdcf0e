"""What histories say of exchanges: only here the forms are told apart by what is stored.

Of a mixing by a rule, who mixed with whom is in the record, not in the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedhp.exchange.base import Exchange
from fedhp.exchange.group import DisjointGroups, GroupAverage
from fedhp.exchange.mixing import WeightedMixing
from fedhp.exchange.sequence import ExchangeSequence
from fedhp.exchange.server import ServerAverage


def _sequence(rows: Sequence[Mapping[str, Any]]) -> ExchangeSequence:
    mixings = [(WeightedMixing.from_facts(row["weighted"]), int(row["times"])) for row in rows]
    return ExchangeSequence(tuple(mixing for mixing, times in mixings for _ in range(times)))


_FORMS: Mapping[str, Callable[[Any], Exchange]] = {
    "group": GroupAverage.from_facts,
    "groups": DisjointGroups.from_facts,
    "weighted": WeightedMixing.from_facts,
    "sequence": _sequence,
    "server": ServerAverage.from_facts,
}


def from_facts(facts: Mapping[str, Any]) -> Exchange | None:
    """The exchange that these facts hold; None: they do not hold all of it."""
    return next((read(facts[key]) for key, read in _FORMS.items() if key in facts), None)


def rule_in(facts: Mapping[str, Any]) -> str:
    """The rule of the mixing weights; "": there is none, or an earlier release wrote the facts."""
    return str(facts.get("rule", ""))


def participants_in(facts: Mapping[str, Any]) -> frozenset[int] | None:
    """Who takes part in averages over trees; None: there are none."""
    trees = [facts["group"]] if "group" in facts else facts.get("groups")
    return None if trees is None else frozenset().union(*(tree["participants"] for tree in trees))
