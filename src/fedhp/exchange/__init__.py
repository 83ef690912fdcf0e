"""The ways in which models meet: each form is one file and one class, and nothing outside this
package asks which one a plan has.

base.py has what a loop, a coordinator and a replay ask of any form. mixing.py: each worker mixes
the models of others into its own. group.py: a group averages its changes over a tree. facts.py
reads what histories say. checks.py refuses what cannot be carried out. Pure: no tensors.
"""

from fedhp.exchange.base import Exchange, Exchanged
from fedhp.exchange.group import GroupAverage
from fedhp.exchange.mixing import (
    DirectedMixing,
    Mixing,
    NeighborMixing,
    PeerScoring,
    Scoring,
    WeightedMixing,
)

__all__ = [
    "DirectedMixing",
    "Exchange",
    "Exchanged",
    "GroupAverage",
    "Mixing",
    "NeighborMixing",
    "PeerScoring",
    "Scoring",
    "WeightedMixing",
]
