"""etcd v3 through its JSON gateway: addresses, failover, deadlines, and errors in words.

A call is sent again, to the next member, when its answer did not come: what is asked must bear
being asked twice. No call takes much longer than its patience.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from fedhp.cluster.ledger.base import Unreachable
from fedhp.cluster.ledger.etcd_messages import (
    EtcdRefused,
    Item,
    Json,
    Outcome,
    cluster_of,
    coded,
    error_of,
    first_item,
    is_passing,
    refusal,
)
from fedhp.cluster.protocol.addresses import split_host_port
from fedhp.errors import ConfigError

PREFIX = "/fedhp"  # of all keys, where the address names none
PORT = 2379
PATIENCE = 4.0  # s for one question, all members together
SHARE = 0.4  # of it for one member
SLOWEST = 500_000  # bytes/s of the slowest network for which there is more time, by size
PAUSE = 0.1  # s before the members are asked again
OLDEST = (3, 4)  # before it, the gateway was elsewhere and unfinished


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for etcds://: who signed etcd's certificate, and one's own."""

    authority: Path
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """A user of etcd, where it asks for one."""

    user: str
    password: str


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Where etcd is, and under which prefix the keys are."""

    members: tuple[str, ...]
    prefix: str


@dataclass(frozen=True, slots=True)
class _Failure:
    member: str
    words: str
    silent: bool = False
    hopeless: bool = False


def parse_etcd_url(url: str, *, key: str = "etcd") -> EtcdAddress:
    """etcd://h1:2379,h2:2379/prefix, or etcds:// for TLS."""
    scheme, _, rest = url.partition("://")
    hosts, _, path = rest.partition("/")
    # The port may be left out.
    members = [
        split_host_port(each) or split_host_port(f"{each}:{PORT}") for each in hosts.split(",")
    ]
    if scheme not in ("etcd", "etcds") or None in members or not re.fullmatch(r"[\w./-]*", path):
        raise ConfigError(
            f"{url!r} is not an address of etcd",
            key=key,
            allowed="etcd://host:port,host:port/prefix, or etcds://... for TLS",
            fix="for example etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/fedhp",
        )
    http = "https" if scheme == "etcds" else "http"
    urls = tuple(f"{http}://{member}" for member in members)
    return EtcdAddress(urls, "/" + path.strip("/") if path.strip("/") else PREFIX)


def files_of(environment: Mapping[str, str]) -> TlsFiles | None:
    """The files that etcdctl would use, by its own variables; None: those of the system."""
    authority = environment.get("ETCDCTL_CACERT", "")
    own = [environment.get(f"ETCDCTL_{name}", "") for name in ("CERT", "KEY")]
    if own[0] and not authority:
        raise ConfigError(
            "ETCDCTL_CERT is set, but ETCDCTL_CACERT is not",
            key="ETCDCTL_CACERT",
            allowed="the file of the authority that signed etcd's certificate",
            fix="export ETCDCTL_CACERT=/path/to/ca.pem",
        )
    certificate, key = (Path(each) if each else None for each in own)
    return TlsFiles(Path(authority), certificate, key) if authority else None


def login_of(environment: Mapping[str, str]) -> Login | None:
    """The user that etcdctl would be, by its own variables; None: nobody in particular."""
    user, _, password = environment.get("ETCDCTL_USER", "").partition(":")
    return Login(user, password or environment.get("ETCDCTL_PASSWORD", "")) if user else None


class EtcdClient:
    """Asks one of the members, and the next one if it does not answer.

    Files and user come from etcdctl's own variables unless given: no secret in a command line.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: TlsFiles | None = None,
        login: Login | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.address = parse_etcd_url(url)
        self.patience = patience
        self._login = login or login_of(os.environ)
        self._token = ""
        self._cluster = ""
        self._turn = 0
        verify = _context(tls or files_of(os.environ)) if url.startswith("etcds") else False
        # No proxy from the environment, and no deadline of httpx: it is set call by call.
        self._http = httpx.AsyncClient(verify=verify, timeout=None, trust_env=False)

    async def call(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        patience: float | None = None,
        expected: int = 0,
    ) -> Json:
        """The answer, of about so many bytes, of the first member that gives one."""
        clock = asyncio.get_running_loop().time
        content = json.dumps(body).encode()
        patience = self.patience if patience is None else patience
        more = (len(content) + expected) / SLOWEST
        deadline = clock() + patience + more
        members = self.address.members
        failures: dict[str, _Failure] = {}  # the last one of each
        while True:
            for _ in members:
                member = members[self._turn % len(members)]
                left = deadline - clock()
                found = await self._ask(
                    member, path, content, seconds=min(SHARE * patience + more, max(left, 0.05))
                )
                if not isinstance(found, _Failure):
                    return found
                self._turn += 1
                failures[member] = found
                if clock() >= deadline:
                    raise await self._unreachable(failures.values())
            if all(failure.hopeless for failure in failures.values()):
                words = "; ".join(f"{each.member} {each.words}" for each in failures.values())
                raise EtcdRefused(
                    f"etcd cannot be used: {words}",
                    allowed=f"etcd {OLDEST[0]}.{OLDEST[1]} or later, all members of one cluster",
                    fix="check the address, the TLS files, and the version of etcd",
                )
            await asyncio.sleep(PAUSE)

    async def _ask(
        self, member: str, path: str, content: bytes, *, seconds: float
    ) -> Json | _Failure:
        try:
            async with asyncio.timeout(seconds):
                if self._login is not None and not self._token:
                    await self._log_in(member, self._login)
                headers = {"Authorization": self._token} if self._token else {}
                answer = await self._http.post(f"{member}{path}", content=content, headers=headers)
        except TimeoutError:
            return _Failure(member, f"did not answer within {seconds:.1f} s", silent=True)
        except (httpx.HTTPError, OSError) as error:  # an alert of TLS comes as it is
            return _transport_failure(member, error)
        return self._judge(member, answer)

    async def _log_in(self, member: str, login: Login) -> None:
        body = {"name": login.user, "password": login.password}
        answer = await self._http.post(f"{member}/v3/auth/authenticate", json=body)
        found = self._judge(member, answer)
        if not isinstance(found, _Failure):
            self._token = str(found.get("token", ""))

    def _judge(self, member: str, answer: httpx.Response) -> Json | _Failure:
        try:
            # A streaming call answers with a line per message; only the first is of interest.
            found = json.loads(answer.text.splitlines()[0] if answer.text else "")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            words = f"answers {answer.status_code} and no JSON: not etcd's v3 gateway, or too old"
            return _Failure(member, words, hopeless=True)
        if answer.is_success and "error" not in found:
            found = found.get("result", found)
            cluster = cluster_of(found)
            if not cluster:
                return _Failure(member, "does not answer as etcd does", hopeless=True)
            if cluster != self._cluster and self._cluster:
                return _Failure(member, "belongs to another cluster", hopeless=True)
            self._cluster = cluster
            return dict(found)
        code, words = error_of(found)
        if "invalid auth token" in words and self._login is not None:
            self._token = ""  # it has expired: the next try logs in again
            return _Failure(member, f"says: {words}")
        if is_passing(code, words):
            return _Failure(member, f"says: {words}")
        raise refusal(member, code, words)

    async def _unreachable(self, failures: Iterable[_Failure]) -> Unreachable:
        """Say more of members that are up but silent: mostly they miss the others."""
        said = []
        for failure in failures:
            words = failure.words
            if failure.silent:
                status = await self._status(failure.member, seconds=0.3)
                if status is not None and status.get("leader", "0") == "0":
                    words = "is up but without a leader: most members are down or cut off"
            said.append(f"{failure.member} {words}")
        return Unreachable(
            f"etcd cannot be reached: {'; '.join(said)}",
            allowed="a majority of etcd's members up, and one of the given ones reachable",
            fix="start etcd again, or mend the network; this goes on by itself then",
        )

    async def _status(self, member: str, *, seconds: float) -> Json | None:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._http.post(f"{member}/v3/maintenance/status", json={})
            found = answer.json()
        except (httpx.HTTPError, OSError, ValueError):
            return None
        return found if cluster_of(found) else None

    async def check(self) -> None:
        """Refuse members of different clusters, and members that are too old."""
        asked = (
            self._status(member, seconds=SHARE * self.patience) for member in self.address.members
        )
        answers = zip(self.address.members, await asyncio.gather(*asked), strict=True)
        known = {member: status for member, status in answers if status is not None}
        for member, status in known.items():
            version = tuple(
                int(part) for part in re.findall(r"\d+", str(status.get("version")))[:2]
            )
            if version < OLDEST:
                raise EtcdRefused(
                    f"{member} is etcd {status.get('version')}",
                    allowed=f"etcd {OLDEST[0]}.{OLDEST[1]} or later",
                    fix="install a later etcd",
                )
        if len({cluster_of(status) for status in known.values()}) > 1:
            raise EtcdRefused(
                f"these are not one etcd but several: {', '.join(known)}",
                allowed="addresses of the members of one cluster",
                fix="join them to one cluster, or give the address of one",
            )

    async def get(
        self, key: str, *, patience: float | None = None, expected: int = 0
    ) -> Item | None:
        """What a majority has under a key now: about so many bytes."""
        body = {"key": coded(key)}
        found = await self.call("/v3/kv/range", body, patience=patience, expected=expected)
        return first_item(found)

    async def transact(
        self, conditions: Sequence[Json], then: Sequence[Json], otherwise: Sequence[Json] = ()
    ) -> Outcome:
        """All of one branch at once."""
        body = {"compare": conditions, "success": then, "failure": otherwise}
        found = await self.call("/v3/kv/txn", body)
        reads = [
            answer["response_range"]
            for answer in found.get("responses", ())
            if "response_range" in answer
        ]
        revision = int(found["header"]["revision"])
        return Outcome(bool(found.get("succeeded")), revision, tuple(map(first_item, reads)))

    async def grant(self, seconds: int) -> tuple[int, float]:
        """A new lease, and how many seconds it holds."""
        found = await self.call("/v3/lease/grant", {"TTL": str(seconds)})
        return int(found["ID"]), float(found["TTL"])

    async def keep_alive(self, lease: int, *, patience: float) -> float:
        """Renew a lease; the seconds it holds from now on, 0 if there is none any more."""
        found = await self.call("/v3/lease/keepalive", {"ID": str(lease)}, patience=patience)
        return float(found.get("TTL", 0))

    async def revoke(self, lease: int) -> None:
        """End a lease, and the keys with it."""
        await self.call("/v3/lease/revoke", {"ID": str(lease)})

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _context(files: TlsFiles | None) -> ssl.SSLContext:
    try:
        if files is None:
            return ssl.create_default_context()
        context = ssl.create_default_context(cafile=files.authority)
        if files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key)
        return context
    except OSError as error:  # of a missing file, and of one that ssl cannot use
        raise ConfigError(
            f"the TLS files for etcd cannot be used: {error.strerror or error}: "
            f"{', '.join(str(each) for each in _all_of(files))}",
            key="etcd",
            allowed="PEM files: the authority, and one's own certificate with its key",
            fix="check the three paths",
        ) from None


def _all_of(files: TlsFiles | None) -> tuple[Path, ...]:
    given = () if files is None else (files.authority, files.certificate, files.key)
    return tuple(each for each in given if each is not None)


def _transport_failure(member: str, error: Exception) -> _Failure:
    words = " ".join(str(error).split())
    if "certificate" in words.lower() or "[SSL" in words:
        return _Failure(member, f"cannot be trusted: {words}", hopeless=True)
    return _Failure(member, f"cannot be reached: {words or type(error).__name__}")
