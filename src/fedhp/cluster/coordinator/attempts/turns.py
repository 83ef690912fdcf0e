"""Turns of an asynchronous algorithm: a round is over when enough of them have ended."""

from __future__ import annotations

import numpy as np

from fedhp.cluster.coordinator.attempts.deadlines import (
    PACE_FACTOR,
    WITHHELD,
    RoundDeadlines,
    Suspensions,
    shortest_turn,
)
from fedhp.cluster.coordinator.attempts.orders import GivenWork
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.planning.planning import Planning
from fedhp.cluster.coordinator.planning.turn_planner import TurnOrder, usual_turns
from fedhp.cluster.coordinator.reachability import Reachability
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Refused

MANY_TURNS = "many_turns"  # key of a warning


class GivenTurns:
    """Gives turns to members, ends them, and judges partners that nobody could swap with."""

    def __init__(
        self,
        context: LeaderContext,
        *,
        planning: Planning,
        work: GivenWork,
        suspensions: Suspensions,
        reachability: Reachability,
        deadlines: RoundDeadlines,
    ) -> None:
        self._context, self._conductor = context, context.conductor
        self._planning, self._work, self._suspensions = planning, work, suspensions
        self._reachability, self._deadlines = reachability, deadlines
        self._waited_in_vain: dict[int, set[int]] = {}  # partners of a swap, and who waited

    def turn_of(self, member: Member, *, round_index: int, now: float) -> TurnOrder:
        """The turn of a member: a new one, or the one that it was given and never ended."""
        turn = self._work.turns.get(member.worker)
        if turn is None:
            alive = [other.worker for other in self._conductor.alive(now)]
            turn = self._planning.turns.next_turn(
                member.worker,
                round_index=round_index,
                present=np.isin(np.arange(self._context.experiment.workers), alive),
                epoch_steps=self._planning.epoch_steps(),
                avoid=self._reachability.refused(round_index=self._context.round_index, now=now),
            )
        self._work.begin_turn(member.worker, turn)
        return turn

    def is_complete(self, now: float) -> bool:
        """Whether enough turns of the round have ended."""
        alive = [member.worker for member in self._conductor.alive(now)]
        return self._planning.turns.is_complete(alive)

    def end(self, member: Member, report: wire.RoundReport, *, now: float) -> None:
        """A member reports its turn; Refused if it is not under way."""
        turn = self._work.turns.get(member.worker)
        if turn is None or turn.number != report.turn:
            raise Refused("attempt", f"turn {report.turn} is over or was never given")
        given, steps = self._work.take(member.worker)
        times = [other.step_time for other in self._conductor.members.values()]
        if now - given < shortest_turn(steps, times):
            self._suspensions.missed(member, "its turns are shorter than is possible")
            return
        self._planning.turns.end_turn(turn, report)
        self._suspensions.was_punctual(member)
        self.judge_partner(member, report)

    def end_round(self, *, seconds: float, now: float) -> None:
        """A round of turns is over. Of a member with far more turns than the others no more than
        theirs count, but an operator should know."""
        self._deadlines.round_ended(seconds, ())
        turns = self._planning.turns.turns_by_worker()
        usual = usual_turns(turns, [member.worker for member in self._conductor.alive(now)])
        warnings = self._context.warnings
        for worker, member in self._conductor.members.items():
            own = turns[worker]
            if own > PACE_FACTOR * max(1, usual):
                text = (
                    f"{member.name} ended {own} turns in one round, the member in the middle "
                    f"{usual}: only so many of each member count"
                )
                warnings.set(MANY_TURNS, members=(member.name,), value=own, text=text)
            else:
                warnings.end(MANY_TURNS, members=(member.name,))

    def judge_partner(self, member: Member, report: wire.RoundReport) -> None:
        """A partner that two members waited for in vain, since its last swap, is put aside."""
        for link in report.links:
            if link.lost not in WITHHELD:
                self._waited_in_vain.pop(link.worker, None)
                continue
            callers = self._waited_in_vain.setdefault(link.worker, set())
            callers.add(member.worker)
            partner = self._conductor.members.get(link.worker)
            if len(callers) >= 2 and partner is not None:
                self._waited_in_vain.pop(link.worker)
                self._suspensions.missed(partner, "others waited for a swap with it in vain")
