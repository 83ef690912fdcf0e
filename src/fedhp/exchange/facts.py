"""What histories say of exchanges: only here the forms are told apart by what is stored.

Of a mixing by a rule, who mixed with whom is in the record, not in the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedhp.exchange.base import Exchange
from fedhp.exchange.group import GroupAverage
from fedhp.exchange.mixing import WeightedMixing

_FORMS: Mapping[str, Callable[[Mapping[str, Any]], Exchange]] = {
    "group": GroupAverage.from_facts,
    "weighted": WeightedMixing.from_facts,
}


def from_facts(facts: Mapping[str, Any]) -> Exchange | None:
    """The exchange that these facts hold; None: they do not hold all of it."""
    return next((read(facts[key]) for key, read in _FORMS.items() if key in facts), None)


def rule_in(facts: Mapping[str, Any]) -> str:
    """The rule of the mixing weights; "": there is none, or an earlier release wrote the facts."""
    return str(facts.get("rule", ""))


def participants_in(facts: Mapping[str, Any]) -> frozenset[int] | None:
    """Who takes part in the average over a tree; None: there is none."""
    return frozenset(facts["group"]["participants"]) if "group" in facts else None
