"""The worker's side of a method: what it keeps, how it steps, what it sends, how it uses a mix.

A rule is pure arithmetic on rows [n, D], one worker each (n = 1 on a network), with operators
only: nothing here imports torch. D are the trained parameters. What a rule declares is laid out in
the workers' rows (learn/params.py), so that it is checkpointed, stored, counted and, if it
travels, sent and mixed with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Rows: TypeAlias = "Tensor"


@dataclass(frozen=True, slots=True)
class Vector:
    """What a worker keeps besides its model, by name: a number for each trained parameter, or one.

    One that travels is sent with the model and mixed by the same weights. One that stays is the
    worker's own; `returning` says what becomes of it when the worker continues from another's
    model: it is kept, or begins again.
    """

    name: str
    start: Literal["zero", "one", "model"] = "zero"
    scalar: bool = False
    travels: bool = False
    returning: Literal["keep", "start"] = "keep"

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"the name of a vector is {self.name!r}; allowed: a Python identifier")
        if self.start not in ("zero", "one", "model") or (self.scalar and self.start == "model"):
            raise ValueError(
                f"vector {self.name!r} starts with {self.start!r}; allowed: 'zero', 'one', or "
                "'model' if it has a number for each parameter"
            )
        if self.returning not in ("keep", "start"):
            raise ValueError(
                f"vector {self.name!r} has returning = {self.returning!r}; allowed: 'keep', 'start'"
            )


class Vectors(Protocol):
    """The vectors of these workers, by name: rows [n, D], or [n, 1] of a scalar."""

    def __getitem__(self, name: str) -> Rows: ...

    def __setitem__(self, name: str, value: Rows) -> None: ...


class LastMessages(Protocol):
    """The last messages that have come from other workers, a row each, by rising sender [k, D]:
    the models, and what travelled with them by name. Nothing has come before the first round."""

    @property
    def x(self) -> Rows: ...

    def __getitem__(self, name: str) -> Rows: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What a rule knows of the round."""

    round_index: int  # from 1
    learning_rate: float
    local_steps: Rows  # [n, 1] of each worker; 1 where there was none, to divide by
    compress: Callable[[Rows], Rows]  # each row as exchange.compression = 'topk' cuts it
    workers: int = 1  # of the run


class Rule:
    """Train, send the model, take the mix: a method changes what it needs to."""

    vectors: ClassVar[tuple[Vector, ...]] = ()
    # The name of a scalar that travels, if the sums of all models count and not their means
    # (push-sum): the weights of a sender sum to 1, and what is not trained is weighed by it.
    mass: ClassVar[str] = ""
    # Whether the message is a copy that all readers have from before: with topk its largest
    # changes are sent, and nothing else may change in a round than `compress` lets through.
    public: ClassVar[bool] = False

    def gradient(self, g: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """The gradient of a local step; v may change."""
        return g

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """The message after the local steps, from x0 to x; v may change, and travels as it is."""
        return x

    def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
        """The new model after mixing. x is the own message; of v, what travels is mixed."""
        return mixed

    # A message that depends on its receiver: a rule with send_to() has receive_from() instead of
    # receive(), and both are called for one worker at a time. Each keeps the last message of every
    # other from which one has come.

    def send_to(self, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        """The message for one receiver, from the own one and the last ones of all others; what is
        set in v has to travel, and goes to this receiver."""
        return x

    def receive_from(self, x0: Rows, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        """The new model from the own message and the last ones of all; v is the worker's own."""
        return x

    def is_plain(self) -> bool:
        """Whether workers do nothing else than train, send the model and take the mix."""
        return not (self.vectors or self.steers() or self.acts())

    def steers(self) -> bool:
        """Whether local steps take another gradient."""
        return type(self).gradient is not Rule.gradient

    def acts(self) -> bool:
        """Whether an exchange sends or makes something else than the trained and mixed models."""
        return type(self).send is not Rule.send or self.receives()

    def receives(self) -> bool:
        """Whether a worker makes something else of a mix than its model."""
        return type(self).receive is not Rule.receive or self.per_link()

    def per_link(self) -> bool:
        """Whether a message depends on its receiver."""
        return type(self).send_to is not Rule.send_to


class PushSum(Rule):
    """x = w z + the local change travels with w; both are mixed, and z = x / w is the model again.
    On directed links, whose weights sum to 1 by sender, every z tends to the mean of all."""

    vectors: ClassVar[tuple[Vector, ...]] = (
        Vector("push_weight", start="one", scalar=True, travels=True),
    )
    mass: ClassVar = "push_weight"

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """The weight times the model, plus the change."""
        return x + (v["push_weight"] - 1) * x0

    def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
        """The model again."""
        return mixed / v["push_weight"]


class Tracking(Rule):
    """A side vector follows the mean change of all workers; a worker moves by it instead of its
    own change."""

    vectors: ClassVar = (Vector("side", travels=True), Vector("last_change"))

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """side <- side + change - last change; the message is x0 + side."""
        change = x - x0
        v["side"] = v["side"] + (change - v["last_change"])
        v["last_change"] = change
        return x0 + v["side"]


class TrackedPushSum(PushSum):
    """Both together."""

    vectors: ClassVar = (*PushSum.vectors, *Tracking.vectors)

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """Track first, then weigh."""
        return super().send(x0, Tracking().send(x0, x, v, step), v, step)
