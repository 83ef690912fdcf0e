"""Changes a protobuf message at a random place into another that still parses."""

from __future__ import annotations

import math
import random
from typing import Any

DOUBLES = (0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e308, -1e308, math.nan, math.inf, -math.inf)
TEXTS = (
    *("", "worker-1", "worker-2", "a:1", "[::1]:70000", "10.0.0.1:80", "unix:x", "..", "raw"),
    *("topk", "running", "ready", "\n", "\x1b[2J", "\0", "\u202e", "x" * 65, "ü" * 2001),
)
LENGTHS = (0, 1, 31, 32, 33, 64, 1000)


def mutate(message: Any, rng: random.Random) -> None:
    """Change one to four fields of the message or of those inside it."""
    for _ in range(rng.randint(1, 4)):
        _change(message, rng)


def _change(message: Any, rng: random.Random) -> None:
    field = rng.choice(message.DESCRIPTOR.fields)
    chosen = field.containing_oneof and message.WhichOneof(field.containing_oneof.name)
    if chosen and rng.random() < 0.9:  # another branch would throw away all that is in this one
        field = message.DESCRIPTOR.fields_by_name[chosen]
    inner = field.type == field.TYPE_MESSAGE
    if inner and field.message_type.GetOptions().map_entry:
        _change_map(getattr(message, field.name), field.message_type.fields_by_name, rng)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, rng)
    elif rng.random() < 0.05:
        message.ClearField(field.name)
    elif inner and message.HasField(field.name):
        _change(getattr(message, field.name), rng)
    elif inner:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), rng))


def _change_list(values: Any, field: Any, rng: random.Random) -> None:
    inner = field.type == field.TYPE_MESSAGE
    what = rng.random()
    if not values or what < 0.15:
        if inner:
            values.add()
        else:
            values.append(_value(field, _empty(field), rng))
    elif what < 0.3:
        del values[rng.randrange(len(values))]
    elif what < 0.4:
        values.extend([values[rng.randrange(len(values))]])
    elif what < 0.45:
        values.extend(list(values) * rng.randint(1, 4))
    elif inner:
        _change(rng.choice(values), rng)
    elif what < 0.6:
        values[:] = [_value(field, values[0], rng)] * len(values)
    else:
        values[rng.randrange(len(values))] = _value(field, rng.choice(values), rng)


def _change_map(values: Any, fields: Any, rng: random.Random) -> None:
    key = rng.choice(sorted(values)) if values else _empty(fields["key"])
    if values and rng.random() < 0.2:
        del values[key]
        return
    if rng.random() < 0.5:
        key = _value(fields["key"], key, rng)
    now = values[key] if key in values else _empty(fields["value"])
    values[key] = _value(fields["value"], now, rng)


def _empty(field: Any) -> str | int:
    return "" if field.type == field.TYPE_STRING else 0


def _value(field: Any, now: Any, rng: random.Random) -> Any:
    """A value of the field's type: an odd one, one near the present one, or any."""
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return rng.choice((*DOUBLES, rng.uniform(-2, 2), now + rng.uniform(-1, 1)))
    if field.type == field.TYPE_BOOL:
        return not now
    if field.type == field.TYPE_ENUM:
        return rng.choice((0, 1, 2, 3, 4, -1, 2**31 - 1))
    if field.type == field.TYPE_STRING:
        return rng.choice((*TEXTS, now * 2, now[1:], now + chr(rng.randrange(0xD800))))
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.choice(LENGTHS))
    most = 2**32 - 1 if field.type == field.TYPE_UINT32 else 2**64 - 1
    near = (now - 1, now + 1, now ^ 1 << rng.randrange(32), rng.randrange(12))
    return min(max(rng.choice((0, most, rng.randrange(most), *near)), 0), most)
