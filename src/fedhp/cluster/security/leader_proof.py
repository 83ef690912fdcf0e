"""The proof that a coordinator leads: its signature of the reply to one worker's join.

The connection has shown already that a coordinator is at its other end (tls.py). The signature
names the caller as the coordinator's own connection showed it, and the number that the caller
drew for this request: a reply that was made for another worker or another request is refused.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Leadership
from fedhp.cluster.protocol.message_checks import NONCE_BYTES
from fedhp.cluster.security.identity import Identity
from fedhp.cluster.security.signatures import sign, verify
from fedhp.errors import IdentityError

PURPOSE = "fedhp reply to a join"


def new_nonce() -> bytes:
    """A number for one join, which no earlier one had."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(
    identity: Identity, reply: wire.JoinReply, *, caller: str, nonce: bytes, address: str
) -> None:
    """Sign the reply to a join; the caller is the name in the certificate of its connection.

    address: where this coordinator can be called.
    """
    statement = {**_statement(reply, caller=caller, nonce=nonce), "address": address}
    reply.proof = sign(identity, json.dumps(statement).encode("ascii"), purpose=PURPOSE)


def check_proof(reply: wire.JoinReply, *, authority: bytes, caller: str, nonce: bytes) -> str:
    """The leader's address; IdentityError unless a coordinator signed this reply for this request.

    A later release may sign more.
    """
    content = verify(
        reply.proof, authority=authority, purpose=PURPOSE, role="coordinator", fresh=True
    )
    statement: dict[str, Any] = json.loads(content)  # a coordinator wrote it
    for key, value in _statement(reply, caller=caller, nonce=nonce).items():
        if statement.get(key) != value:
            why = "for another worker or request" if key in ("caller", "nonce") else "differently"
            raise IdentityError(f"it was signed {why} ({key})")
    return str(statement["address"])


def _statement(reply: wire.JoinReply, *, caller: str, nonce: bytes) -> dict[str, Any]:
    """What makes the sender of the reply the leader, and what the worker gets from it."""
    line = [Leadership.from_wire(leader).to_list() for leader in reply.leaders]
    return {
        "caller": caller,
        "nonce": nonce.hex(),
        "run": reply.run,
        "epoch": reply.epoch,
        "worker": reply.worker,
        "leaders": hashlib.sha256(json.dumps(line).encode("ascii")).hexdigest(),
        "committed": Attempt.from_wire(reply.committed).to_list(),
        "experiment": hashlib.sha256(reply.experiment.encode()).hexdigest(),
        "key": hashlib.sha256(reply.key).hexdigest(),
    }
