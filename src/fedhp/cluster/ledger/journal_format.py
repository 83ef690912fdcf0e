"""The bytes of a journal, and the judgement over a file: whole, torn at its end, or damaged.

A record is a head (mark, length, kind, number, check), the body, and a link: a hash over the link
before it, the number and the body, which chains the records. The check of a head is keyed by the
file's identity and stands alone, so that a head behind damage is found again.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from fedhp.errors import RunError

VERSION = 1
BODY_BYTES = 256 << 20  # the largest body

_MAGIC = b"fedhp\r\n\x1a"
_START = struct.Struct(">8sI16s16s")  # magic, version, identity, check
_FIELDS = struct.Struct(">4sIHQ")  # mark, length, kind, number
_MARK = b"\xf5Rec"
_CHECK_BYTES = 16
_LINK_BYTES = 32
_HEAD_BYTES = _FIELDS.size + _CHECK_BYTES
_SECTOR = 512  # what a disk writes whole or not at all


class JournalDamaged(RunError):
    """A journal with damage that no torn write explains."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry; what a kind (0 to 65535) means is the caller's business."""

    kind: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next record goes, and what it is chained to."""

    identity: bytes  # of the file
    offset: int
    count: int  # of the records before it
    link: bytes  # of the last of them


@dataclass(frozen=True, slots=True)
class Found:
    """A file that can be gone on with, once the rest behind its last whole record is cut off."""

    records: tuple[Record, ...]
    place: Place
    rest: int  # bytes of an unfinished write


def begin() -> tuple[bytes, Place]:
    """The first bytes of a new file, with an identity of its own."""
    identity = os.urandom(16)
    plain = _START.pack(_MAGIC, VERSION, identity, b"")[:-_CHECK_BYTES]
    check = hashlib.blake2b(plain, digest_size=_CHECK_BYTES).digest()
    return plain + check, Place(identity, _START.size, 0, check)


def encode(record: Record, place: Place) -> tuple[bytes, Place]:
    """A record as it stands at this place, and the place behind it."""
    size = len(record.body)
    if size > BODY_BYTES:
        raise RunError(
            f"a record of {size} bytes does not fit into a journal",
            allowed=f"at most {BODY_BYTES} bytes",
            fix="fewer workers",
        )
    head = _head(size, record.kind, place.count, identity=place.identity)
    link = _next_link(place, record.body)
    data = b"".join((head, record.body, link))
    return data, Place(place.identity, place.offset + len(data), place.count + 1, link)


def scan(data: bytes, path: Path) -> Found:
    """The records of a file; JournalDamaged unless all of it is sound or a torn write's rest."""
    place = _first_place(data, path)
    records: list[Record] = []
    view = memoryview(data)
    while place.offset < len(data):
        head = _parsed(data, place.offset, place.identity)
        if head is None:
            _refuse_a_changed_head(data, place, path)
            _refuse_later_records(data, place, path)
            break
        length, kind, number = head
        if number != place.count:
            found = f"record {number + 1} stands where record {place.count + 1} must"
            raise _damaged(path, place, found)
        first = place.offset + _HEAD_BYTES
        end = first + length + _LINK_BYTES
        body = view[first : first + length]
        link = _next_link(place, body)
        if view[first + length : end] != link:
            if end <= len(data) and not _has_empty_sector(data, place.offset, end):
                raise _damaged(path, place, "the next record was changed")
            _refuse_later_records(data, place, path)
            break
        records.append(Record(kind, bytes(body)))
        place = Place(place.identity, end, place.count + 1, link)
    return Found(tuple(records), place, len(data) - place.offset)


def _head(length: int, kind: int, number: int, *, identity: bytes) -> bytes:
    fields = _FIELDS.pack(_MARK, length, kind, number)
    return fields + hashlib.blake2b(fields, key=identity, digest_size=_CHECK_BYTES).digest()


def _next_link(place: Place, body: bytes | memoryview) -> bytes:
    chained = hashlib.blake2b(place.link + place.count.to_bytes(8), digest_size=_LINK_BYTES)
    chained.update(body)
    return chained.digest()


def _first_place(data: bytes, path: Path) -> Place:
    # A journal gets its name only when its first bytes are on the disk: they cannot be torn.
    if len(data) < _START.size or data[: len(_MAGIC)] != _MAGIC:
        raise _damaged(path, None, "it does not begin as a journal does")
    _, version, identity, check = _START.unpack_from(data)
    plain = data[: _START.size - _CHECK_BYTES]
    if check != hashlib.blake2b(plain, digest_size=_CHECK_BYTES).digest():
        raise _damaged(path, None, "its first bytes were changed")
    if version != VERSION:
        raise RunError(
            f"{path}: the journal has version {version}",
            allowed=f"version {VERSION}",
            fix="use the version of fedhp that wrote it",
        )
    return Place(identity, _START.size, 0, check)


def _parsed(data: bytes, at: int, identity: bytes) -> tuple[int, int, int] | None:
    """Length, kind and number of the head at this offset, if there is a sound one."""
    if data[at : at + len(_MARK)] != _MARK or at + _HEAD_BYTES > len(data):
        return None
    _, length, kind, number = _FIELDS.unpack_from(data, at)
    if data[at : at + _HEAD_BYTES] != _head(length, kind, number, identity=identity):
        return None
    return length, kind, number


def _refuse_a_changed_head(data: bytes, place: Place, path: Path) -> None:
    # If all that is left is a body with its true link, the record was once whole. Only a head
    # that never reached the disk, with the rest already there, is a torn write.
    first = place.offset + _HEAD_BYTES
    last = len(data) - _LINK_BYTES
    if first > last or _has_empty_sector(data, place.offset, len(data)):
        return
    if data[last:] == _next_link(place, memoryview(data)[first:last]):
        raise _damaged(path, place, "the head of the last record was changed")


def _refuse_later_records(data: bytes, place: Place, path: Path) -> None:
    # A torn write is the last thing in a file; a later record shows that this was none.
    at = data.find(_MARK, place.offset + 1)
    while at >= 0:
        if _parsed(data, at, place.identity) is not None:
            raise _damaged(path, place, f"yet there is a sound record at offset {at}")
        at = data.find(_MARK, at + 1)


def _has_empty_sector(data: bytes, start: int, end: int) -> bool:
    """Whether a part that a disk writes at once is all zeros: it was never written."""
    for at in range(start - start % _SECTOR, end, _SECTOR):
        part = data[max(start, at) : min(end, at + _SECTOR)]
        # One or two zeros at either end prove nothing: they may be by chance, or a flipped bit.
        if len(part) >= 4 and not any(part):
            return True
    return False


def _damaged(path: Path, place: Place | None, how: str) -> JournalDamaged:
    if place is None:
        return JournalDamaged(
            f"{path}: not a sound journal: {how}",
            allowed="a file that only fedhp wrote to",
            fix="bring back a copy of the file, or choose another folder",
        )
    last = f"record {place.count} is the last good one" if place.count else "no good record"
    return JournalDamaged(
        f"{path}: damaged at offset {place.offset} ({last}): {how}",
        allowed="a file that only fedhp wrote to",
        fix="bring back a copy of the file; or, if all after the last good record may be lost: "
        f"truncate -s {place.offset} {path}",
    )
