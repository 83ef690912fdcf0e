"""The hooks of a rule (fedhp.rule), carried out on rows of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedhp.errors import ConfigError, at_user_place
from fedhp.learn.params import Layout
from fedhp.rule import Rule, Step


class RowVectors:
    """The vectors in some rows [n, width], by name. What a hook sets is written when it is done:
    what it has read before does not change under its hands."""

    def __init__(self, rows: Tensor, layout: Layout) -> None:
        self._rows, self._layout = rows, layout
        self._set: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._set[name] if name in self._set else self._rows[:, self._columns(name)]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._columns(name)
        self._set[name] = value

    @property
    def x(self) -> Tensor:
        """The models in these rows."""
        return self._rows[:, : self._layout.trainable]

    @property
    def stays(self) -> list[str]:
        """What was set of that which does not travel."""
        return [name for name in self._set if self._columns(name).stop > self._layout.mixed]

    def write(self, result: Tensor) -> Tensor:
        """Write what was set; the result of the hook, apart from what is written over."""
        values = {name: self._apart(torch.as_tensor(value)) for name, value in self._set.items()}
        result = self._apart(result) if values else result
        for name, value in values.items():
            self._rows[:, self._columns(name)] = value
        return result

    def _apart(self, value: Tensor) -> Tensor:
        here = self._rows.untyped_storage().data_ptr()
        return value.clone() if value.untyped_storage().data_ptr() == here else value

    def _columns(self, name: str) -> slice:
        columns, width = self._layout.columns(name), self._rows.shape[1]
        if columns is None or columns.stop > width:
            slots = [slot for slot in self._layout.carried if slot.stop <= width]
            declared = ", ".join(slot.vector.name for slot in slots)
            raise KeyError(f"the rule has no vector {name!r}; declared: {declared or 'none'}")
        return columns


def steered(rule: Rule, layout: Layout, gradients: Tensor, rows: Tensor, step: Step) -> Tensor:
    """The gradients [n, D] of a local step that a rule makes of the true ones."""
    vectors = RowVectors(rows, layout)
    result = rule.gradient(gradients, rows[:, : layout.trainable], vectors, step)
    return vectors.write(_checked(result, gradients, rule, "gradient"))


def send(rule: Rule, layout: Layout, before: Tensor, after: Tensor, step: Step) -> None:
    """Turn the trained models in `after` into messages, in place; before: the round's start."""
    trained, vectors = slice(layout.trainable), RowVectors(after, layout)
    x0, x = before[:, trained], after[:, trained]
    message = rule.send(x0, x, vectors, step)
    after[:, trained] = vectors.write(_checked(message, x, rule, "send"))
    if rule.mass:
        # Of statistics a true mean: a variance plus a change could be negative.
        for columns in layout.untrained:
            after[:, columns] *= vectors[rule.mass]


def receive(
    rule: Rule, layout: Layout, before: Tensor, after: Tensor, mixed: Tensor, step: Step
) -> None:
    """Turn the mixed messages in `mixed` into the new models, in place; after: the own messages."""
    trained, vectors = slice(layout.trainable), RowVectors(mixed, layout)
    x0, x = before[:, trained], after[:, trained]
    model = rule.receive(x0, x, vectors, mixed[:, trained], step)
    mixed[:, trained] = vectors.write(_checked(model, x, rule, "receive"))
    if rule.mass:
        for columns in layout.untrained:
            mixed[:, columns] /= vectors[rule.mass]


def send_to(rule: Rule, layout: Layout, own: Tensor, heard: Sequence[Tensor], step: Step) -> Tensor:
    """The message [mixed] of a worker, whose own one is in the row `own` [1, width], for one
    receiver; heard: the last ones of all others."""
    row = own.clone()
    vectors = RowVectors(row, layout)
    x = row[:, : layout.trainable]
    message = _checked(
        rule.send_to(x, vectors, _heard(heard, own, layout), step), x, rule, "send_to"
    )
    if vectors.stays:
        raise ValueError(
            f"{type(rule).__name__}.send_to sets {vectors.stays[0]!r}; allowed: vectors that travel"
        )
    row[:, : layout.trainable] = vectors.write(message)
    return row[0, : layout.mixed]


def receive_from(
    rule: Rule,
    layout: Layout,
    before: Tensor,
    after: Tensor,
    mixed: Tensor,
    heard: Sequence[Tensor],
    step: Step,
) -> None:
    """Turn the last messages of all others into the new model of one worker, in the row `mixed`
    [1, width]; what is not trained was mixed, and what travels stays its own."""
    frozen, statistics = layout.untrained
    mixed[:, frozen.stop : statistics.start] = after[:, frozen.stop : statistics.start]
    trained, vectors = slice(layout.trainable), RowVectors(mixed, layout)
    x0, x = before[:, trained], after[:, trained]
    model = rule.receive_from(x0, x, vectors, _heard(heard, after, layout), step)
    mixed[:, trained] = vectors.write(_checked(model, x, rule, "receive_from"))


def _heard(messages: Sequence[Tensor], like: Tensor, layout: Layout) -> RowVectors:
    rows = torch.stack(list(messages)) if messages else like.new_empty(0, layout.mixed)
    return RowVectors(rows, layout)


def try_rule(rule: Rule, layout: Layout, initial: Tensor, *, rate: float) -> None:
    """Call every hook once, on two workers with the initial model: a mistake is found here."""
    if rule.is_plain():
        return
    names = [slot.vector.name for slot in layout.carried]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{type(rule).__name__}: two vectors are called {twice!r}",
            key="algorithm.name",
            allowed="a name for each vector that no other and no optimizer uses",
            fix="give one of them another name",
        )
    before, after, mixed = (initial.repeat(2, 1) for _ in range(3))
    step = Step(1, rate, torch.ones(2, 1), lambda rows: rows, 2)
    try:
        steered(rule, layout, torch.zeros_like(after[:, : layout.trainable]), after, step)
        send(rule, layout, before, after, step)
        if not rule.per_link():
            receive(rule, layout, before, after, mixed, step)
            return
        step, one = replace(step, local_steps=torch.ones(1, 1)), slice(1)
        for count in range(3):  # before anything has come, too
            heard = [send_to(rule, layout, after[one], (), step)] * count
            send_to(rule, layout, after[one], heard, step)
            receive_from(rule, layout, before[one], after[one], mixed[one], heard, step)
    except Exception as error:  # the code of a user may fail in any way
        words = " ".join(str(error).split())
        raise ConfigError(
            f"the rule of the workers fails: {type(error).__name__}: {words}{at_user_place(error)}",
            key="algorithm.name",
            allowed="gradient(), send(), receive(), send_to() and receive_from() as in "
            "docs/own-parts.md",
            fix="correct its code",
        ) from error


def _checked(result: Tensor, like: Tensor, rule: Rule, hook: str) -> Tensor:
    if not isinstance(result, Tensor) or result.shape != like.shape:
        found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(
            f"{type(rule).__name__}.{hook} returned {found}; allowed: rows {tuple(like.shape)}"
        )
    return result
