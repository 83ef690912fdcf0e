"""What a worker says of its setup, and how two setups are compared: data, modules, model.

A part is a digest with the words for people. Nothing here computes with data or models
(own_setup.py); this module only carries and compares what others have computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedhp.cluster.protocol import wire_pb2 as wire

MAX_PARTS = 64
MAX_FACTS = 300  # characters
MAX_SCALED = 64  # channels whose scaling is sent and recorded
SKETCH = 2  # numbers that describe the initial values of a model
# Of two sketches, relative to the norm: processors and versions of torch round differently.
SKETCH_TOLERANCE = 1e-5
CORRECTION = ". To correct it: "  # between what is wrong and its fix
SHOWN_DIGITS = 12  # of a digest, in hex

DATA, TEST, MODEL, MODULE = "data", "test", "model", "module "
_WHAT = {
    DATA: "its data set is not the experiment's",
    TEST: "its test set, or what its samples are scaled by, is not the experiment's",
    MODEL: "its model is another one",
}
_FIX = {
    DATA: "give a worker with samples of its own --data FILE.npz, and every other worker the same "
    "files as the coordinator (--data-path)",
    TEST: "the experiment's data set must be the same on all machines, also with --data: copy it, "
    "and name it with --data-path",
    MODEL: "use the same modules, the same data set and the same versions of fedhp and torch",
}
_MODULE_FIX = "copy that file from the coordinator's machine, read it, and start this worker again"


@dataclass(frozen=True, slots=True)
class SetupPart:
    """One thing that must be the same on all machines."""

    name: str  # DATA, TEST, MODEL, or MODULE and the name of a module
    digest: str  # SHA-256, hex
    facts: str = ""  # for people
    sketch: tuple[float, ...] = ()  # of a model's initial values: their norm, and a projection

    def agrees(self, other: SetupPart) -> bool:
        """Whether both are the same; initial values may differ in their last bits."""
        if self.digest == other.digest:
            return True
        if not self.sketch or len(self.sketch) != len(other.sketch) or self.facts != other.facts:
            return False
        room = SKETCH_TOLERANCE * max(abs(self.sketch[0]), 1e-30)
        return all(
            abs(a - b) <= room and math.isfinite(b)
            for a, b in zip(self.sketch, other.sketch, strict=True)
        )

    def shown(self) -> str:
        """Digest and facts, short."""
        return f"{self.digest[:SHOWN_DIGITS]}" + (f" ({self.facts})" if self.facts else "")

    @classmethod
    def from_list(cls, values: list[Any]) -> SetupPart:
        """The part of its fields in order, as JSON has them."""
        name, digest, facts, sketch = values
        return cls(name, digest, facts, tuple(sketch))


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a worker says of what it is going to train."""

    parts: tuple[SetupPart, ...]
    private: bool = False  # it trains on samples of its own (--data)
    mean: tuple[float, ...] = ()  # of the scaling, by channel; empty: none, or too many channels
    deviation: tuple[float, ...] = ()

    def to_wire(self) -> wire.Setup:
        """As it is sent."""
        parts = [
            wire.SetupPart(
                name=part.name,
                digest=bytes.fromhex(part.digest),
                facts=part.facts,
                sketch=part.sketch,
            )
            for part in self.parts
        ]
        return wire.Setup(
            parts=parts, private_data=self.private, mean=self.mean, deviation=self.deviation
        )

    @classmethod
    def from_wire(cls, message: wire.Setup) -> Setup:
        """As it was sent; message_checks.py has checked it."""
        return cls(
            tuple(
                SetupPart(part.name, part.digest.hex(), part.facts, tuple(part.sketch))
                for part in message.parts
            ),
            message.private_data,
            tuple(message.mean),
            tuple(message.deviation),
        )


def difference(parts: Iterable[SetupPart], reference: Mapping[str, tuple[SetupPart, str]]) -> str:
    """How parts differ from those of the same names in the reference, with the fix; or "".

    reference: a part and whose it is, by name.
    """
    texts, fixes = [], []
    for part in sorted(parts, key=_order):
        other, owner = reference.get(part.name, (part, ""))
        if part.agrees(other):
            continue
        module = part.name.startswith(MODULE)
        what = f"its {part.name} is another version" if module else _WHAT.get(part.name, part.name)
        texts.append(f"{what}: it has {part.shown()}, {owner} has {other.shown()}")
        fixes.append(_MODULE_FIX if module else _FIX.get(part.name, ""))
    return f"{'; '.join(texts)}{CORRECTION}{fixes[0]}" if texts else ""


def _order(part: SetupPart) -> tuple[int, str]:
    """A module may be why the data and the model differ, and the data why the model does."""
    known = (DATA, TEST, MODEL)
    return (1 + known.index(part.name) if part.name in known else 0), part.name
