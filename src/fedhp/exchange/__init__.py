"""The ways in which models meet: each form is one file and one class, and nothing outside this
package asks which one a plan has.

base.py has what a loop, a coordinator and a replay ask of any form. mixing.py: each worker mixes
the models of others into its own; sequence.py: several times in a round. group.py: a group averages
its changes over a tree; server.py: over a server. mailbox.py: how the turn of an asynchronous
worker ends; post.py: what is on its way then. facts.py reads what histories say. Pure: no tensors.
"""

from fedhp.exchange.base import Exchange, Exchanged
from fedhp.exchange.group import DisjointGroups, GroupAverage
from fedhp.exchange.mixing import (
    DirectedMixing,
    Mixing,
    NeighborMixing,
    PeerScoring,
    Scoring,
    WeightedMixing,
)
from fedhp.exchange.sequence import ExchangeSequence
from fedhp.exchange.server import ServerAverage

__all__ = [
    "DirectedMixing",
    "DisjointGroups",
    "Exchange",
    "ExchangeSequence",
    "Exchanged",
    "GroupAverage",
    "Mixing",
    "NeighborMixing",
    "PeerScoring",
    "Scoring",
    "ServerAverage",
    "WeightedMixing",
]
