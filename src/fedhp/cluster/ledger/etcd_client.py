"""etcd v3 through its JSON gateway: requests, answers, failover, deadlines, and clear errors.

A call is sent again, to the next member, when no answer comes: a request must do no harm when it
is applied twice. No call takes much longer than its patience.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from fedhp.cluster.ledger.base import Unreachable
from fedhp.cluster.protocol.addresses import split_host_port
from fedhp.errors import ConfigError, FedhpError, StorageFull

Json = dict[str, Any]

KEY_PREFIX = "/fedhp"  # of all keys, where the address names none
ETCD_PORT = 2379
CALL_PATIENCE = 4.0  # s for one call, all members together
MEMBER_SHARE = 0.4  # of it for one member
SLOWEST_NETWORK = 500_000  # bytes/s; large calls get more time, enough for this speed
RETRY_PAUSE = 0.1  # s before the members are asked again
OLDEST_ETCD = "3.4"  # before it, the gateway was at another path and incomplete
NOT_FOUND = 5  # a code of gRPC, as are the next ones
_TEMPORARY = {1, 2, 4, 10, 13, 14}  # another member, or the same one later, may answer better
_STORAGE_FULL = 8
_DENIED = {7, 16}


class EtcdRefused(FedhpError):
    """etcd answers, but refuses the request, and a second attempt does not help."""

    def __init__(self, problem: str, *, allowed: str = "", fix: str = "", code: int = 0) -> None:
        super().__init__(problem, allowed=allowed, fix=fix)
        self.code = code  # gRPC's


class EtcdAddress(NamedTuple):
    members: tuple[str, ...]
    prefix: str


@dataclass(frozen=True, slots=True)
class Item:
    """A key as etcd has it; revisions rise over all keys."""

    value: bytes
    created: int
    changed: int
    lease: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended: the branch taken, and the results of its reads (None: no key)."""

    succeeded: bool
    revision: int
    items: tuple[Item | None, ...]


@dataclass(frozen=True, slots=True)
class _Failure:
    member: str
    reason: str
    silent: bool = False
    permanent: bool = False


def created_at(key: str, revision: int, *, target: str = "CREATE") -> Json:
    """The condition that a key was created at this revision; 0: that it does not exist."""
    condition = {"target": target, "key": encode_key(key), "result": "EQUAL"}
    return {**condition, f"{target.lower()}_revision": str(revision)}


def changed_at(key: str, revision: int) -> Json:
    """The condition that a key was last changed at this revision; 0: that it does not exist."""
    return created_at(key, revision, target="MOD")


def read(key: str) -> Json:
    return {"request_range": {"key": encode_key(key)}}


def put(key: str, value: bytes, *, lease: int = 0) -> Json:
    text = base64.b64encode(value).decode()
    return {"request_put": {"key": encode_key(key), "value": text, "lease": str(lease)}}


def delete(first: str, end: str) -> Json:
    """Delete the keys from first up to, not including, end, in a transaction."""
    return {"request_delete_range": {"key": encode_key(first), "range_end": encode_key(end)}}


def encode_key(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _first_item(answer: Json) -> Item | None:
    for entry in answer.get("kvs", ()):
        value = base64.b64decode(entry.get("value", ""))
        created, changed = int(entry["create_revision"]), int(entry["mod_revision"])
        return Item(value, created, changed, int(entry.get("lease", 0)))
    return None


def _cluster_id(answer: object) -> str:
    header = answer.get("header") if isinstance(answer, dict) else None
    return str(header.get("cluster_id", "")) if isinstance(header, dict) else ""


def _error_in(answer: Json) -> tuple[int, str]:
    inner = answer["error"] if isinstance(answer.get("error"), dict) else answer
    code = inner.get("code", inner.get("grpc_code"))
    text = str(inner.get("message") or inner.get("error") or "no reason given")
    return code if isinstance(code, int) else 0, text


def _refusal(member: str, code: int, text: str) -> FedhpError:
    if code == _STORAGE_FULL or "space exceeded" in text:
        return StorageFull(
            f"etcd at {member} has no space left: {text}",
            allowed="a database below etcd's quota",
            fix="run etcd with --auto-compaction-retention=1h; now: etcdctl compact, "
            "etcdctl defrag, etcdctl alarm disarm",
        )
    if code in _DENIED or "user" in text or "auth" in text:
        return EtcdRefused(
            f"etcd at {member} denies access: {text}",
            allowed="a user with the right to read and write under the prefix",
            fix="set ETCDCTL_USER and ETCDCTL_PASSWORD; the gateway does not accept a "
            "certificate in place of a user",
            code=code,
        )
    return EtcdRefused(f"etcd at {member} refuses: {text}", fix="check etcd's log", code=code)


def parse_etcd_url(url: str, *, key: str = "etcd") -> EtcdAddress:
    """etcd://h1:2379,h2:2379/prefix, or etcds:// for TLS; the port may be left out."""
    scheme, _, rest = url.partition("://")
    hosts, _, path = rest.partition("/")
    members = [
        split_host_port(host) or split_host_port(f"{host}:{ETCD_PORT}") for host in hosts.split(",")
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
    return EtcdAddress(urls, "/" + path.strip("/") if path.strip("/") else KEY_PREFIX)


def check_etcd_tls(url: str, *, insecure: bool) -> None:
    """Refuse etcd:// unless the operator insists: without TLS anyone on the way can change keys."""
    if is_plain(url) and not insecure:
        raise ConfigError(
            f"{url} is not encrypted: anyone who reaches etcd could decide who leads, and read the "
            "run's state",
            key="--ha",
            allowed="etcds://HOST:PORT,..., with certificates from ETCDCTL_CACERT, ETCDCTL_CERT "
            "and ETCDCTL_KEY",
            fix="set up TLS in etcd, or add --insecure-etcd if only trusted machines reach it",
        )


def is_plain(url: str) -> bool:
    return url.startswith("etcd://")


def _tls_context() -> ssl.SSLContext:
    """With the files that etcdctl would use, by its own variables; without any, the system's."""
    names = ("CACERT", "CERT", "KEY")
    authority, certificate, key = (os.environ.get(f"ETCDCTL_{name}", "") for name in names)
    if certificate and not authority:
        raise ConfigError(
            "ETCDCTL_CERT is set, but ETCDCTL_CACERT is not",
            key="ETCDCTL_CACERT",
            allowed="the file of the authority that signed etcd's certificate",
            fix="export ETCDCTL_CACERT=/path/to/ca.pem",
        )
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
        return context
    except OSError as error:  # of a missing file, and of one that ssl cannot use
        paths = ", ".join(filter(None, (authority, certificate, key)))
        raise ConfigError(
            f"the TLS files for etcd cannot be used: {error.strerror or error}: {paths}",
            key="etcd",
            allowed="PEM files: the authority, and your own certificate with its key",
            fix="check the three paths",
        ) from None


class EtcdClient:
    """Asks one of the members, and the next one if it does not answer.

    TLS files and user come from etcdctl's own variables, so that no secret is in a command line.
    Without TLS only if it is `insecure` on purpose.
    """

    def __init__(
        self, url: str, *, patience: float = CALL_PATIENCE, insecure: bool = False
    ) -> None:
        self.members, self.prefix = parse_etcd_url(url)
        check_etcd_tls(url, insecure=insecure)
        self.patience = patience
        user, _, password = os.environ.get("ETCDCTL_USER", "").partition(":")
        password = password or os.environ.get("ETCDCTL_PASSWORD", "")
        self._login = {"name": user, "password": password} if user else None
        self._token = ""
        self._cluster = ""
        self._next_member = 0
        verify = _tls_context() if url.startswith("etcds") else False
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
        clock = asyncio.get_running_loop().time
        content = json.dumps(body).encode()
        patience = self.patience if patience is None else patience
        transfer = (len(content) + expected) / SLOWEST_NETWORK
        deadline = clock() + patience + transfer
        members = self.members
        failures: dict[str, _Failure] = {}  # the last one of each member
        while True:
            for _ in members:
                member = members[self._next_member % len(members)]
                left = max(deadline - clock(), 0.05)
                seconds = min(MEMBER_SHARE * patience + transfer, left)
                answer = await self._ask(member, path, content, seconds=seconds)
                if not isinstance(answer, _Failure):
                    return answer
                self._next_member += 1
                failures[member] = answer
                if clock() >= deadline:
                    raise await self._unreachable(failures.values())
            if all(failure.permanent for failure in failures.values()):
                reasons = "; ".join(f"{each.member} {each.reason}" for each in failures.values())
                raise EtcdRefused(
                    f"etcd cannot be used: {reasons}",
                    allowed=f"etcd {OLDEST_ETCD} or later, all members of one cluster",
                    fix="check the address, the TLS files, and the version of etcd",
                )
            await asyncio.sleep(RETRY_PAUSE)

    async def _ask(
        self, member: str, path: str, content: bytes, *, seconds: float
    ) -> Json | _Failure:
        try:
            async with asyncio.timeout(seconds):
                if self._login is not None and not self._token:
                    url = f"{member}/v3/auth/authenticate"
                    login = self._checked(member, await self._http.post(url, json=self._login))
                    if not isinstance(login, _Failure):
                        self._token = str(login.get("token", ""))
                headers = {"Authorization": self._token} if self._token else {}
                answer = await self._http.post(f"{member}{path}", content=content, headers=headers)
        except TimeoutError:
            return _Failure(member, f"did not answer within {seconds:.1f} s", silent=True)
        except (httpx.HTTPError, OSError) as error:  # httpx does not wrap an alert of TLS
            text = " ".join(str(error).split())
            if "certificate" in text.lower() or "[SSL" in text:
                return _Failure(member, f"cannot be trusted: {text}", permanent=True)
            return _Failure(member, f"cannot be reached: {text or type(error).__name__}")
        return self._checked(member, answer)

    def _checked(self, member: str, answer: httpx.Response) -> Json | _Failure:
        try:
            # A streaming call answers with a line per message; only the first is of interest.
            content = json.loads(answer.text.splitlines()[0] if answer.text else "")
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            reason = f"answers {answer.status_code} without JSON: not etcd's v3 gateway, or too old"
            return _Failure(member, reason, permanent=True)
        if answer.is_success and "error" not in content:
            content = content.get("result", content)
            cluster = _cluster_id(content)
            if not cluster:
                return _Failure(member, "does not answer as etcd does", permanent=True)
            if cluster != self._cluster and self._cluster:
                return _Failure(member, "belongs to another cluster", permanent=True)
            self._cluster = cluster
            return dict(content)
        code, text = _error_in(content)
        expired = "invalid auth token" in text and self._login is not None
        if expired:
            self._token = ""  # the next attempt logs in again
        if expired or code in _TEMPORARY or "too many requests" in text:
            return _Failure(member, f"says: {text}")
        raise _refusal(member, code, text)

    async def _unreachable(self, failures: Iterable[_Failure]) -> Unreachable:
        """Say more of members that are up but silent: mostly they miss the others."""
        reasons = []
        for failure in failures:
            reason = failure.reason
            if failure.silent:
                status = await self._status(failure.member, seconds=0.3)
                if status is not None and status.get("leader", "0") == "0":
                    reason = "is up but without a leader: most members are down or cut off"
            reasons.append(f"{failure.member} {reason}")
        return Unreachable(
            f"etcd cannot be reached: {'; '.join(reasons)}",
            allowed="a majority of etcd's members up, and one of the given ones reachable",
            fix="start etcd again, or repair the network; the run then continues by itself",
        )

    async def _status(self, member: str, *, seconds: float) -> Json | None:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._http.post(f"{member}/v3/maintenance/status", json={})
            content = answer.json()
        except (httpx.HTTPError, OSError, ValueError, RecursionError):
            return None
        return content if _cluster_id(content) else None

    async def check(self) -> None:
        """Refuse members of different clusters, and members that are too old."""
        seconds = MEMBER_SHARE * self.patience
        asked = (self._status(member, seconds=seconds) for member in self.members)
        answers = zip(self.members, await asyncio.gather(*asked), strict=True)
        statuses = {member: status for member, status in answers if status is not None}
        for member, status in statuses.items():
            version = re.findall(r"\d+", str(status.get("version")))[:2]
            if [*map(int, version)] < [*map(int, OLDEST_ETCD.split("."))]:
                raise EtcdRefused(
                    f"{member} is etcd {status.get('version')}",
                    allowed=f"etcd {OLDEST_ETCD} or later",
                    fix="install a later etcd",
                )
        if len({_cluster_id(status) for status in statuses.values()}) > 1:
            raise EtcdRefused(
                f"these members belong to different clusters: {', '.join(statuses)}",
                allowed="addresses of the members of one cluster",
                fix="join them to one cluster, or give the address of one",
            )

    async def get(
        self, key: str, *, patience: float | None = None, expected: int = 0
    ) -> Item | None:
        """What a majority has under a key now: about `expected` bytes."""
        body = {"key": encode_key(key)}
        answer = await self.call("/v3/kv/range", body, patience=patience, expected=expected)
        return _first_item(answer)

    async def transact(
        self, conditions: Sequence[Json], then: Sequence[Json], otherwise: Sequence[Json] = ()
    ) -> Outcome:
        body = {"compare": conditions, "success": then, "failure": otherwise}
        answer = await self.call("/v3/kv/txn", body)
        items = [
            _first_item(response["response_range"])
            for response in answer.get("responses", ())
            if "response_range" in response
        ]
        revision = int(answer["header"]["revision"])
        return Outcome(bool(answer.get("succeeded")), revision, tuple(items))

    async def grant(self, seconds: int) -> tuple[int, float]:
        answer = await self.call("/v3/lease/grant", {"TTL": str(seconds)})
        return int(answer["ID"]), float(answer["TTL"])

    async def keep_alive(self, lease: int, *, patience: float) -> float:
        """Renew a lease; the seconds it holds from now on, 0 if it has ended."""
        answer = await self.call("/v3/lease/keepalive", {"ID": str(lease)}, patience=patience)
        return float(answer.get("TTL", 0))

    async def revoke(self, lease: int) -> None:
        await self.call("/v3/lease/revoke", {"ID": str(lease)})

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> EtcdClient:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()
