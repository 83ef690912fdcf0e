"""The forms etcd's gateway wants and gives: conditions, writes, reads, and refusals in words."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from fedhp.errors import FedhpError, StorageFull

Json = dict[str, Any]

NOT_FOUND = 5
_PASSING = {1, 2, 4, 10, 13, 14}  # gRPC codes of trouble that may be over soon, or elsewhere
_FULL = 8


class EtcdRefused(FedhpError):
    """etcd is there but does not do what is asked, and asking again does not help."""

    def __init__(self, problem: str, *, allowed: str = "", fix: str = "", code: int = 0) -> None:
        super().__init__(problem, allowed=allowed, fix=fix)
        self.code = code  # gRPC's


@dataclass(frozen=True, slots=True)
class Item:
    """A key as etcd has it; revisions rise over all keys."""

    value: bytes
    created: int
    changed: int
    lease: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended: the branch taken, and what its reads found (None: no such key)."""

    succeeded: bool
    revision: int
    items: tuple[Item | None, ...]


def created_at(key: str, revision: int) -> Json:
    """The condition that a key was made at this revision; 0: that there is none."""
    shared = {"target": "CREATE", "key": coded(key), "result": "EQUAL"}
    return {**shared, "create_revision": str(revision)}


def changed_at(key: str, revision: int) -> Json:
    """The condition that a key was last changed at this revision; 0: that there is none."""
    shared = {"target": "MOD", "key": coded(key), "result": "EQUAL"}
    return {**shared, "mod_revision": str(revision)}


def read(key: str) -> Json:
    """Read a key, in a transaction."""
    return {"request_range": {"key": coded(key)}}


def put(key: str, value: bytes, *, lease: int = 0) -> Json:
    """Write a key, in a transaction."""
    text = base64.b64encode(value).decode()
    return {"request_put": {"key": coded(key), "value": text, "lease": str(lease)}}


def delete(first: str, end: str) -> Json:
    """Delete the keys from first up to, not including, end, in a transaction."""
    return {"request_delete_range": {"key": coded(first), "range_end": coded(end)}}


def coded(key: str) -> str:
    """A key as JSON carries it."""
    return base64.b64encode(key.encode()).decode()


def first_item(answer: Json) -> Item | None:
    """The key that a read found."""
    for found in answer.get("kvs", ()):
        value = base64.b64decode(found.get("value", ""))
        created, changed = int(found["create_revision"]), int(found["mod_revision"])
        return Item(value, created, changed, int(found.get("lease", 0)))
    return None


def error_of(answer: Json) -> tuple[int, str]:
    """gRPC's code and the words of an answer that is an error."""
    inner = answer["error"] if isinstance(answer.get("error"), dict) else answer
    code = inner.get("code", inner.get("grpc_code"))
    words = str(inner.get("message") or inner.get("error") or "no reason given")
    return code if isinstance(code, int) else 0, words


def cluster_of(answer: object) -> str:
    """Which etcd an answer is from; empty if it is not from one."""
    header = answer.get("header") if isinstance(answer, dict) else None
    return str(header.get("cluster_id", "")) if isinstance(header, dict) else ""


def is_passing(code: int, words: str) -> bool:
    """Whether another member, or the same one a little later, may answer better."""
    return code in _PASSING or "too many requests" in words


def refusal(member: str, code: int, words: str) -> FedhpError:
    """The error for an answer that will not change by asking again."""
    if code == _FULL or "space exceeded" in words:
        return StorageFull(
            f"etcd at {member} has no room left: {words}",
            allowed="a database below etcd's quota",
            fix="run etcd with --auto-compaction-retention=1h; now: etcdctl compact, "
            "etcdctl defrag, etcdctl alarm disarm",
        )
    if code in (7, 16) or "user" in words or "auth" in words:
        return EtcdRefused(
            f"etcd at {member} does not let us in: {words}",
            allowed="a user with the right to read and write under the prefix",
            fix="give the user and password that etcd asks for; behind its gateway, etcd does "
            "not take a certificate for a user",
            code=code,
        )
    return EtcdRefused(
        f"etcd at {member} refuses: {words}", fix="look into etcd's own log", code=code
    )
