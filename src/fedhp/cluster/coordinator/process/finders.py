"""How workers and operators find the coordinator that leads: in etcd, or in its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.process.announcements import read_announcement
from fedhp.cluster.ledger.base import PURPOSE, RunStopped, Unreachable
from fedhp.cluster.ledger.etcd import Leader, find_leader, read_committed
from fedhp.cluster.ledger.etcd_client import check_etcd_tls
from fedhp.cluster.security.signatures import verify
from fedhp.errors import IdentityError

FEDERATION = "federation"  # the run's name in etcd; the prefix distinguishes federations


def leader_finder(
    url: str, *, insecure: bool = False, authority: bytes = b""
) -> Callable[[], Awaitable[str]]:
    """For a worker: asks etcd for the leader's address; OSError while there is no leader.

    With the authority's certificate also whether nobody leads because the run was stopped.
    """
    check_etcd_tls(url, insecure=insecure)
    return partial(_ask_etcd, url, insecure=insecure, authority=authority)


async def _ask_etcd(url: str, *, insecure: bool, authority: bytes) -> str:
    return (await leader_in_etcd(url, insecure=insecure, authority=authority)).address


async def leader_in_etcd(url: str, *, insecure: bool = False, authority: bytes = b"") -> Leader:
    """The leader of the run in this etcd; OSError if there is none or etcd does not answer,
    RunStopped if the run was stopped, as far as a state that this authority signed says."""
    try:
        leader = await find_leader(url, FEDERATION, insecure=insecure)
        if leader is not None:
            return leader
        signed = await read_committed(url, FEDERATION, insecure=insecure) if authority else None
    except Unreachable as error:
        raise OSError(error.problem) from None
    if signed is not None:
        with contextlib.suppress(IdentityError, ValueError, KeyError):  # nobody's word
            content = verify(signed, authority=authority, purpose=PURPOSE, role="coordinator")
            run, why = CommittedState.stop_in(content)
            if why:
                raise RunStopped(run, why)
    raise OSError("nobody coordinates at the moment")


async def find_in_folder(folder: Path) -> str:
    """For a worker on the same machine: what the coordinator announced in its folder."""
    return read_announcement(folder).address
