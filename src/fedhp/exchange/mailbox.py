"""How a turn of an asynchronous worker ends: what it sends, to whom, and what arrives.

It meets a partner (both take the mean of their models when the transfer ends), its change goes to
every worker's model at once, or it keeps the change to itself. The event loop knows these forms by
their questions alone; a checkpoint stores them as three numbers of a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from fedhp.exchange.checks import Unusable, is_whole
from fedhp.timing import INT8_BLOCK, int8_bytes
from fedhp.types import Action, StepReason, StepRule

NOBODY, EVERYONE = -1, -2  # instead of a partner, where a turn is stored
# One byte for a number of four, and one scale of four bytes for each block of numbers.
INT8_SIZE = 1 / 4 + 1 / INT8_BLOCK
RULE = StepReason(StepRule.ASYNCHRONOUS)


class TurnExecutor(Protocol):
    """Has the models of the workers, or nothing in a replay."""

    def apply(self, worker: int) -> float:
        """Add the change that training made to the worker's current model; its norm."""

    def share(self, worker: int) -> float:
        """Add the change that training made to every worker's model; its norm."""

    def average(self, worker: int, partner: int, *, compression: str = "none") -> float:
        """Set both models to their mean; the distance between them before."""


@dataclass(frozen=True, slots=True)
class Mail:
    """Nothing is sent: the change is the worker's own."""

    rule: ClassVar[StepReason] = RULE
    partner: int = NOBODY
    overlap: bool = False  # the next steps start at once, while something is on its way
    int8: bool = False  # what travels is coded in 8 bits

    @property
    def travels(self) -> bool:
        """Whether anything is sent over a link."""
        return False

    def end_steps(self, executor: TurnExecutor, worker: int) -> float:
        """The steps are done: the norm of their change."""
        return executor.apply(worker)

    def moved(self, workers: int) -> Sequence[int]:
        """Whose models changed with the steps, apart from the worker's own."""
        return ()

    @property
    def size(self) -> float:
        """Of what travels in one direction, as a share of the model's bits."""
        return 0.0

    def sent_bytes(self, model_bytes: int) -> int:
        """In both directions together."""
        return 0

    def arrive(self, executor: TurnExecutor, worker: int) -> float:
        """The transfer has ended: the distance between the two before."""
        return float("nan")


@dataclass(frozen=True, slots=True)
class Meeting(Mail):
    """Both take the mean of their current models on arrival: the mean of all stays."""

    @property
    def travels(self) -> bool:
        """A model in each direction."""
        return True

    @property
    def size(self) -> float:
        """Of a model, whole or coded."""
        return INT8_SIZE if self.int8 else 1.0

    def sent_bytes(self, model_bytes: int) -> int:
        """A model in each direction."""
        return 2 * (int8_bytes(round(model_bytes / 4)) if self.int8 else model_bytes)

    def arrive(self, executor: TurnExecutor, worker: int) -> float:
        """They average."""
        compression = "int8" if self.int8 else "none"
        return executor.average(worker, self.partner, compression=compression)


@dataclass(frozen=True, slots=True)
class Shared(Mail):
    """The change goes to every worker's model at once, at no cost: the limit."""

    rule: ClassVar[StepReason] = StepReason(StepRule.SHARED_MODEL)
    partner: int = EVERYONE

    def end_steps(self, executor: TurnExecutor, worker: int) -> float:
        """Everyone has it now."""
        return executor.share(worker)

    def moved(self, workers: int) -> Sequence[int]:
        """All of them."""
        return range(workers)


def mail_of(action: Action) -> Mail:
    """How the turn of this action ends."""
    coded = action.compression == "int8"
    partner = NOBODY if action.partner is None else action.partner
    return stored_mail(EVERYONE if action.shared else partner, action.overlap, coded)


def stored_mail(partner: int, overlap: bool, int8: bool) -> Mail:
    """The same from its three numbers."""
    form = {NOBODY: Mail, EVERYONE: Shared}.get(partner, Meeting)
    return form(partner, overlap, int8)


def check_action(action: Action, worker: int, workers: int) -> None:
    """Refuse what cannot be carried out."""
    if action.compression not in ("none", "int8"):
        raise Unusable(f"its compression is {action.compression!r}", "'none' or 'int8'")
    partner = action.partner
    if partner is None:
        return
    if not is_whole(partner) or not 0 <= partner < workers:
        raise Unusable(
            f"the partner of worker {worker} is the unknown worker {partner!r}",
            f"None, or a worker 0 to {workers - 1}",
        )
    if partner == worker:
        raise Unusable(f"the partner of worker {worker} is itself", "None, or another worker")
