"""An average over a server with a line of its own: some workers send it their models.

A participant receives the server's model before its steps and sends its own afterwards. On the
clock and in the bytes that is all. In the rows every worker has the server's new model at the end
of the round: what it would be sent if it took part in the next one. A network has no server:
there everyone takes the models of the participants and makes the same average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.exchange.base import Cost, Exchanged, Executor, Moment, Unusable, check_array
from fedhp.exchange.mixing import Mixing
from fedhp.graph import link_weights
from fedhp.rule import Rule
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray, Plan

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, slots=True)
class ServerAverage(Mixing):
    """The mean of the participants' models by their weights becomes everyone's model."""

    # [N] of the models, in any unit; 0: it takes no part. If nobody does, nothing is exchanged.
    weights: FloatArray

    @property
    def participants(self) -> IntArray:
        return np.flatnonzero(self.weights)

    @property
    def links(self) -> IntArray:
        """(receiver, sender) of everyone and each participant."""
        workers, senders = len(self.weights), self.participants
        pulls = np.stack([np.repeat(np.arange(workers), len(senders)), np.tile(senders, workers)])
        return np.asarray(pulls.T[pulls[0] != pulls[1]], dtype=np.int64)

    @property
    def lines(self) -> IntArray:
        """Each participant's line to the server: a link to itself."""
        return np.stack([self.participants] * 2, axis=1)

    def matrix(self) -> csr_array:
        total, links = self.weights.sum(), self.links
        shares = self.weights / total if total else np.ones_like(self.weights)
        return link_weights(links, shares[links[:, 1]], shares)

    # --- checks -----------------------------------------------------------------------------

    def check_rule(self, rule: Rule) -> None:
        """A server has no link of its own to each of the others."""
        Mixing.check_rule(self, rule)
        if rule.per_link():
            raise Unusable(
                f"its rule has send_to(), and its plan has a {self.name}",
                "a NeighborMixing, a DirectedMixing or a WeightedMixing with such a rule",
            )

    def check_weights(self, workers: int) -> None:
        wanted = f"{workers} finite numbers of at least 0"
        name = "weights of its ServerAverage"
        weights = check_array(self.weights, name, wanted, shape=(workers,), kinds="f")
        for worker in np.flatnonzero(~np.isfinite(weights) | (weights < 0)):
            raise Unusable(f"{name} holds {weights[worker]} for worker {worker}", wanted)

    def check(self, plan: Plan, workers: int) -> None:
        """Participants train, and nobody else does."""
        Mixing.check(self, plan, workers)
        if self.times > 1:
            raise Unusable(f"times of its ServerAverage is {self.times}", "1")
        if plan.local_steps is None:
            raise Unusable("its plan has a ServerAverage and no local_steps", "local_steps")
        for worker in np.flatnonzero((self.weights > 0) != (plan.local_steps > 0)):
            raise Unusable(
                f"worker {worker} has the weight {self.weights[worker]:g} in its ServerAverage, "
                f"and {plan.local_steps[worker]} local steps",
                "a weight and local steps for those that take part, 0 of both for the others",
            )

    def check_present(self, here: BoolArray) -> None:
        """Participants have steps, and nobody trains who is away."""

    def check_experiment(self, experiment: Experiment) -> None:
        if experiment.world.server is None:
            raise ConfigError(
                f"{experiment.algorithm.name!r} plans averages over a server, but there is none",
                key="world.server",
                allowed="uplink and downlink, in the unit of world.bandwidth",
                fix="add [world.server] with uplink and downlink",
            )
        settings = experiment.exchange
        for name, value, allowed in (
            ("robust", settings.robust, ("none",)),
            ("compression", settings.compression, ("none", "fp16", "int8")),
        ):
            if value not in allowed:
                raise ConfigError(
                    f"is {value!r}, but {experiment.algorithm.name!r} plans averages over a server",
                    key=f"exchange.{name}",
                    allowed=", ".join(map(repr, allowed)),
                    fix=f"set exchange.{name} = 'none'",
                )

    def mix_once(self, executor: Executor, *, round_index: int) -> Exchanged:
        """A server measures no distances."""
        exchanged = executor.average_over_server(self)
        return replace(exchanged, distance=np.full(len(exchanged.links), np.nan))

    # --- time and bytes ---------------------------------------------------------------------

    def cost(self, exchanged: Exchanged, at: Moment) -> Cost:
        """Down before the steps, up after them; the server's line is divided by the transfers."""
        world, lines, share = at.world, exchanged.links, exchanged.share
        server, who = world.server, lines[:, 0]
        assert server is not None
        size = np.ones(len(who)) if share is None else share[:, 0]
        jitter = 1.0 if world.jitter is None else world.jitter.factors(lines, at.event)
        bits = jitter * size * world.network(at.clock).model_bits

        def seconds(start: FloatArray, *, sending: bool) -> FloatArray:
            line = (server.downlink if sending else server.uplink) / max(1, len(who))

            def rate(network: Network) -> FloatArray:
                return np.minimum(network.line_rate(sending=sending)[who], line)

            # Fixed links are those of the round's start.
            starts = at.clock + start * world.follows_trace
            return world.transfer_time(bits, rate, starts=starts) + jitter * world.latency

        down = seconds(np.zeros(len(who)), sending=False)
        up = seconds(down + at.ready[who], sending=True)
        communication = np.zeros(world.workers)
        communication[who] = down + up
        return Cost(down + up, 2 * np.rint(size * at.model_bytes).astype(np.int64), communication)

    # --- history ----------------------------------------------------------------------------

    def to_facts(self) -> dict[str, Any]:
        return {"server": {"weights": self.weights.tolist()}}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> ServerAverage:
        return cls(np.array(facts["weights"], dtype=np.float64))
