"""How a turn of an asynchronous worker ends: what it sends, to whom, and what arrives.

It keeps its change, meets a partner (both take the mean of their models when the transfer ends),
delivers a message into the boxes of others, joins a group that averages, or its change goes to
every worker's model at once. The event loop knows these forms by their questions alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import TYPE_CHECKING, ClassVar

from fedhp.exchange.base import Unusable, is_number, is_whole
from fedhp.rule import Rule
from fedhp.timing import INT8_BLOCK, int8_bytes
from fedhp.types import Action, StepReason, StepRule

if TYPE_CHECKING:
    from fedhp.engine.events import EventLoop
    from fedhp.engine.executor import EventExecutor

NOBODY, EVERYONE = -1, -2  # instead of a partner, where a turn is stored
# What a class may declare as Traits.mailbox, and those of them with which workers have a box.
MAILBOXES = ("meet", "newest", "once", "sum", "group")
BOXES = MAILBOXES[1:4]
# As checkpoints name it: the contents of all boxes one after the other; of each the receiver, the
# sender (-1: a sum) and its columns; its weight.
BOX_STATE = ("box", "box_keys", "box_weights")
# One byte for a number of four, and one scale of four bytes for each block of numbers.
INT8_SIZE = 1 / 4 + 1 / INT8_BLOCK
RULE = StepReason(StepRule.ASYNCHRONOUS)
TURN_RULES = {
    "meet": RULE,
    "group": StepReason(StepRule.GATHERING),
    **dict.fromkeys(BOXES, StepReason(StepRule.DELIVERY)),
}


@dataclass(frozen=True, slots=True)
class Here:
    """What an action is checked against."""

    worker: int
    workers: int
    rule: Rule
    mailbox: str = "meet"  # as the class declares it
    fragments: int = 1

    def check_worker(self, other: object, role: str) -> None:
        """Refuse who is not another worker."""
        if not is_whole(other) or not 0 <= other < self.workers:  # type: ignore[operator]
            raise Unusable(
                f"the {role} of worker {self.worker} is the unknown worker {other!r}",
                f"None, or a worker 0 to {self.workers - 1}",
            )
        if other == self.worker:
            raise Unusable(
                f"the {role} of worker {self.worker} is itself", "None, or another worker"
            )


@dataclass(frozen=True, slots=True)
class Mail:
    """Nothing is sent: the change is the worker's own."""

    rule: ClassVar[StepReason | None] = None  # that is recorded, if it is not its mailbox's
    mailboxes: ClassVar[tuple[str, ...]] = MAILBOXES  # with which it can be carried out
    partner: int = NOBODY
    overlap: bool = False  # the next steps start at once, while something is on its way
    int8: bool = False  # what travels is coded in 8 bits

    def check(self, here: Here) -> None:
        """Refuse what cannot be carried out."""

    def end_steps(self, executor: EventExecutor, worker: int) -> float:
        """The steps are done: the norm of their change."""
        return executor.apply(worker)

    def moved(self, workers: int) -> Sequence[int]:
        """Whose models changed with the steps, apart from the worker's own."""
        return ()

    def leave(self, loop: EventLoop, worker: int) -> bool:
        """After the steps: send, and whether the turn has ended with that."""
        return True

    def arrive(self, loop: EventLoop, worker: int, time: float) -> None:
        """What the worker waited for so long has ended."""

    @property
    def size(self) -> float:
        """Of what travels in one direction, as a share of the message's bits."""
        return 1.0

    def sent_bytes(self, message_bytes: int) -> int:
        """Over one link, in both directions together."""
        return round(self.size * message_bytes)


@dataclass(frozen=True, slots=True)
class Meeting(Mail):
    """Both take the mean of their current models on arrival: the mean of all stays."""

    mailboxes: ClassVar[tuple[str, ...]] = ("meet",)

    def check(self, here: Here) -> None:
        here.check_worker(self.partner, "partner")
        if self.int8 and any(vector.travels for vector in here.rule.vectors):
            raise Unusable("its compression is 'int8', and a vector travels", "'none'")

    def leave(self, loop: EventLoop, worker: int) -> bool:
        return loop.meet(worker, self)

    def arrive(self, loop: EventLoop, worker: int, time: float) -> None:
        loop.met(worker, self, time)

    @property
    def size(self) -> float:
        return INT8_SIZE if self.int8 else 1.0

    def sent_bytes(self, message_bytes: int) -> int:
        """A model in each direction."""
        return 2 * (int8_bytes(round(message_bytes / 4)) if self.int8 else message_bytes)

    def average(self, executor: EventExecutor, worker: int) -> float:
        compression = "int8" if self.int8 else "none"
        return executor.average(worker, self.partner, compression=compression)


@dataclass(frozen=True, slots=True)
class Shared(Mail):
    """The change goes to every worker's model at once, at no cost: the limit."""

    rule: ClassVar[StepReason | None] = StepReason(StepRule.SHARED_MODEL)
    mailboxes: ClassVar[tuple[str, ...]] = ("meet",)
    partner: int = EVERYONE

    def check(self, here: Here) -> None:
        if not here.rule.is_plain():
            raise Unusable("its action is shared, and its class has a rule", "no rule")

    def end_steps(self, executor: EventExecutor, worker: int) -> float:
        return executor.share(worker)

    def moved(self, workers: int) -> Sequence[int]:
        return range(workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Mail):
    """The worker's message goes into the boxes of others, which read them when their next turn
    begins. While it is on its way, the worker sends no other one.

    With Traits(mailbox="newest" or "once") a box holds the newest message of each sender and
    fragment, until a newer one comes, or until it is read once. The reader mixes them by their
    weights, its own model by what is left to 1; without weights it takes the mean. With "sum" the
    messages times their weights are added in the box; a mass of the rule leaves the sender.
    """

    mailboxes: ClassVar[tuple[str, ...]] = BOXES
    partner: int = field(default=NOBODY, init=False)
    int8: bool = field(default=False, init=False)
    overlap: bool = True  # nobody waits
    to: tuple[int, ...]  # whose boxes; one for each entry of the others
    weights: tuple[float, ...] = ()
    fragments: tuple[int, ...] = ()  # of Traits.fragments, which one; none: the whole message

    def check(self, here: Here) -> None:
        for receiver in self.to:
            here.check_worker(receiver, "receiver")
        count = len(self.to)
        for name, values in (("weights", self.weights), ("fragments", self.fragments)):
            if values and len(values) != count:
                raise Unusable(f"{count} receivers have {len(values)} {name}", f"none, or {count}")
        if not all(is_number(weight) and 0 < weight <= 1 for weight in self.weights):
            raise Unusable(f"its weights are {self.weights}", "weights above 0, at most 1")
        whole = here.fragments
        if not all(is_whole(part) and 0 <= part < whole for part in self.fragments):
            raise Unusable(f"its fragments are {self.fragments}", f"0 to {whole - 1} of {whole}")
        if len(set(self.parts)) < count:
            raise Unusable(f"worker {here.worker} sends the same twice", "a receiver once")
        if here.mailbox == "sum" and (self.fragments or not self.weights) and count:
            raise Unusable(
                "a message that is added has no weights, or fragments", "weights, and no fragments"
            )
        if here.rule.mass and sum(self.weights) >= 1:
            raise Unusable(
                f"the weights of worker {here.worker} sum to {sum(self.weights):g}, and nothing of "
                f"its {here.rule.mass} is left",
                "a sum below 1",
            )

    @property
    def parts(self) -> list[tuple[int, float, int]]:
        """Receiver, weight (NaN: none) and fragment (-1: the whole) of each transfer."""
        count = len(self.to)
        weights = self.weights or (nan,) * count
        return [*zip(self.to, weights, self.fragments or (-1,) * count, strict=True)]

    @classmethod
    def of_parts(cls, parts: Sequence[tuple[int, float, int]], *, overlap: bool) -> Delivery:
        to, weights, fragments = zip(*parts, strict=True)
        return cls(
            to=to,
            weights=() if isnan(weights[0]) else weights,
            fragments=() if fragments[0] < 0 else fragments,
            overlap=overlap,
        )

    def leave(self, loop: EventLoop, worker: int) -> bool:
        return loop.deliver(worker, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering(Mail):
    """The worker waits until so many have come to the group of this number; they average over a
    ring. Where no one else can come, those who are there do."""

    mailboxes: ClassVar[tuple[str, ...]] = ("group",)
    partner: int = field(default=NOBODY, init=False)
    int8: bool = field(default=False, init=False)
    overlap: bool = field(default=False, init=False)
    size: int
    group: int = 0

    def check(self, here: Here) -> None:
        if not is_whole(self.size) or not 2 <= self.size <= here.workers:
            raise Unusable(
                f"worker {here.worker} joins a group of {self.size!r}",
                f"groups of 2 to {here.workers} workers",
            )
        if not is_whole(self.group) or self.group < 0:
            raise Unusable(f"the number of its group is {self.group!r}", "a whole number from 0")

    def leave(self, loop: EventLoop, worker: int) -> bool:
        return loop.gather(worker, self)

    def arrive(self, loop: EventLoop, worker: int, time: float) -> None:
        loop.gathered(worker, time)


@dataclass(frozen=True, slots=True, order=True)
class MessageTransfer:
    """A message, or a fragment of one, on its way into a box."""

    due: float  # virtual time of its arrival
    number: int  # of those with the same time, the first one sent arrives first
    sender: int
    receiver: int
    weight: float  # NaN: none
    fragment: int  # -1: the whole
    duration: float  # s


def ring(members: Sequence[int]) -> list[tuple[int, int]]:
    """The links over which a group averages, the lower worker first."""
    pairs = zip(members, [*members[1:], members[0]], strict=True)
    return sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]})


def ring_size(members: int) -> float:
    """What travels over each link of a ring in each direction that it is used in, as a share of a
    message: two members use their one link in both."""
    return 2 * (members - 1) / members


def kept_messages(mailbox: str, rule: Rule) -> tuple[str, ...]:
    """What a worker keeps in the size of a model, where its turns end with messages: its own one
    until the next turn begins, and the one on its way."""
    if mailbox in BOXES:
        return ("messages", "outbox")
    return ("messages",) if rule.acts() else ()


def mail_of(action: Action) -> Mail:
    """How the turn of this action ends."""
    if action.mail is not None:
        return action.mail
    coded = action.compression == "int8"
    partner = NOBODY if action.partner is None else action.partner
    return stored_mail(EVERYONE if action.shared else partner, action.overlap, coded)


def stored_mail(partner: int, overlap: bool, int8: bool) -> Mail:
    """The same from its three numbers."""
    form = {NOBODY: Mail, EVERYONE: Shared}.get(partner, Meeting)
    return form(partner, overlap, int8)


def check_action(action: Action, here: Here) -> None:
    if action.compression not in ("none", "int8"):
        raise Unusable(f"its compression is {action.compression!r}", "'none' or 'int8'")
    if not is_whole(action.wait) or not 0 <= action.wait < here.workers:
        raise Unusable(f"it waits for {action.wait!r} workers", f"0 to {here.workers - 1}")
    if action.wait and here.mailbox not in BOXES:
        raise Unusable(
            f"it waits for {action.wait} deliveries, but its class has no box",
            f"Traits(mailbox=...) with one of {', '.join(BOXES)}",
        )
    given = action.partner is not None or action.shared or action.compression != "none"
    if action.mail is not None and (given or not isinstance(action.mail, Mail)):
        raise Unusable(
            "its action has a mail that is none, or a partner as well",
            "a Delivery or a Gathering alone, or a partner",
        )
    if action.partner is not None:  # NOBODY and EVERYONE are no partners that may be named
        here.check_worker(action.partner, "partner")
    mail = mail_of(action)
    if here.mailbox not in mail.mailboxes:
        raise Unusable(
            f"its action is a {type(mail).__name__}, but its class has "
            f"Traits(mailbox={here.mailbox!r})",
            f"Traits(mailbox=...) with one of {', '.join(mail.mailboxes)}",
        )
    mail.check(here)
