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
from pathlib import Path
from typing import Any

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
OLDEST_ETCD = (3, 4)  # before it, the gateway was at another path and incomplete
NOT_FOUND = 5  # a code of gRPC, as are the next ones
_TEMPORARY = {1, 2, 4, 10, 13, 14}  # another member, or the same one later, may answer better
_STORAGE_FULL = 8
_DENIED = {7, 16}


class EtcdRefused(FedhpError):
    """etcd answers, but refuses the request, and a second attempt does not help."""

    def __init__(self, problem: str, *, allowed: str = "", fix: str = "", code: int = 0) -> None:
        super().__init__(problem, allowed=allowed, fix=fix)
        self.code = code  # gRPC's


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for etcds://: the authority that signed etcd's certificate, and our own."""

    authority: Path
    certificate: Path | None = None
    key: Path | None = None

    def paths(self) -> list[Path]:
        """All files that are given."""
        return [path for path in (self.authority, self.certificate, self.key) if path is not None]


@dataclass(frozen=True, slots=True)
class Login:
    """A user of etcd, where it requires one."""

    user: str
    password: str


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Where etcd is, and under which prefix the keys are."""

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


# --- requests and answers ------------------------------------------------------------------


def created_at(key: str, revision: int) -> Json:
    """The condition that a key was created at this revision; 0: that it does not exist."""
    shared = {"target": "CREATE", "key": encode_key(key), "result": "EQUAL"}
    return {**shared, "create_revision": str(revision)}


def changed_at(key: str, revision: int) -> Json:
    """The condition that a key was last changed at this revision; 0: that it does not exist."""
    shared = {"target": "MOD", "key": encode_key(key), "result": "EQUAL"}
    return {**shared, "mod_revision": str(revision)}


def read(key: str) -> Json:
    """Read a key, in a transaction."""
    return {"request_range": {"key": encode_key(key)}}


def put(key: str, value: bytes, *, lease: int = 0) -> Json:
    """Write a key, in a transaction."""
    text = base64.b64encode(value).decode()
    return {"request_put": {"key": encode_key(key), "value": text, "lease": str(lease)}}


def delete(first: str, end: str) -> Json:
    """Delete the keys from first up to, not including, end, in a transaction."""
    return {"request_delete_range": {"key": encode_key(first), "range_end": encode_key(end)}}


def encode_key(key: str) -> str:
    """A key as the gateway's JSON carries it."""
    return base64.b64encode(key.encode()).decode()


def _first_item(answer: Json) -> Item | None:
    for entry in answer.get("kvs", ()):
        value = base64.b64decode(entry.get("value", ""))
        created, changed = int(entry["create_revision"]), int(entry["mod_revision"])
        return Item(value, created, changed, int(entry.get("lease", 0)))
    return None


def _cluster_id(answer: object) -> str:
    """Which etcd cluster an answer is from; empty if it is not from etcd."""
    header = answer.get("header") if isinstance(answer, dict) else None
    return str(header.get("cluster_id", "")) if isinstance(header, dict) else ""


def _error_in(answer: Json) -> tuple[int, str]:
    """gRPC's code and the text of an answer that is an error."""
    inner = answer["error"] if isinstance(answer.get("error"), dict) else answer
    code = inner.get("code", inner.get("grpc_code"))
    text = str(inner.get("message") or inner.get("error") or "no reason given")
    return code if isinstance(code, int) else 0, text


def _refusal(member: str, code: int, text: str) -> FedhpError:
    """The error for an answer that stays the same when asked again."""
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


# --- addresses and credentials -------------------------------------------------------------


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
    """Whether this is an address of etcd without TLS."""
    return url.startswith("etcd://")


def tls_files_from(environment: Mapping[str, str]) -> TlsFiles | None:
    """The files that etcdctl would use, by its own variables; None: those of the system."""
    authority, certificate, key = (
        environment.get(f"ETCDCTL_{name}", "") for name in ("CACERT", "CERT", "KEY")
    )
    if certificate and not authority:
        raise ConfigError(
            "ETCDCTL_CERT is set, but ETCDCTL_CACERT is not",
            key="ETCDCTL_CACERT",
            allowed="the file of the authority that signed etcd's certificate",
            fix="export ETCDCTL_CACERT=/path/to/ca.pem",
        )
    if not authority:
        return None
    return TlsFiles(
        Path(authority), Path(certificate) if certificate else None, Path(key) if key else None
    )


def login_from(environment: Mapping[str, str]) -> Login | None:
    """The user of etcdctl, by its own variables; None: no login."""
    user, _, password = environment.get("ETCDCTL_USER", "").partition(":")
    return Login(user, password or environment.get("ETCDCTL_PASSWORD", "")) if user else None


def _tls_context(files: TlsFiles | None) -> ssl.SSLContext:
    try:
        if files is None:
            return ssl.create_default_context()
        context = ssl.create_default_context(cafile=files.authority)
        if files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key)
        return context
    except OSError as error:  # of a missing file, and of one that ssl cannot use
        paths = "" if files is None else ", ".join(map(str, files.paths()))
        raise ConfigError(
            f"the TLS files for etcd cannot be used: {error.strerror or error}: {paths}",
            key="etcd",
            allowed="PEM files: the authority, and your own certificate with its key",
            fix="check the three paths",
        ) from None


# --- the client ----------------------------------------------------------------------------


class EtcdClient:
    """Asks one of the members, and the next one if it does not answer.

    TLS files and user come from etcdctl's own variables unless given, so that no secret is in a
    command line. Without TLS only if it is `insecure` on purpose.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: TlsFiles | None = None,
        login: Login | None = None,
        patience: float = CALL_PATIENCE,
        insecure: bool = False,
    ) -> None:
        self.address = parse_etcd_url(url)
        check_etcd_tls(url, insecure=insecure)
        self.patience = patience
        self._login = login or login_from(os.environ)
        self._token = ""
        self._cluster = ""
        self._next_member = 0
        secure = url.startswith("etcds")
        verify = _tls_context(tls or tls_files_from(os.environ)) if secure else False
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
        """The answer, of about `expected` bytes, of the first member that gives one."""
        clock = asyncio.get_running_loop().time
        content = json.dumps(body).encode()
        patience = self.patience if patience is None else patience
        transfer = (len(content) + expected) / SLOWEST_NETWORK
        deadline = clock() + patience + transfer
        members = self.address.members
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
                    allowed=f"etcd {_dotted(OLDEST_ETCD)} or later, all members of one cluster",
                    fix="check the address, the TLS files, and the version of etcd",
                )
            await asyncio.sleep(RETRY_PAUSE)

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
        except (httpx.HTTPError, OSError) as error:  # httpx does not wrap an alert of TLS
            return _transport_failure(member, error)
        return self._checked(member, answer)

    async def _log_in(self, member: str, login: Login) -> None:
        body = {"name": login.user, "password": login.password}
        answer = await self._http.post(f"{member}/v3/auth/authenticate", json=body)
        content = self._checked(member, answer)
        if not isinstance(content, _Failure):
            self._token = str(content.get("token", ""))

    def _checked(self, member: str, answer: httpx.Response) -> Json | _Failure:
        """The content of an answer, or why the next member must be asked."""
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
        if "invalid auth token" in text and self._login is not None:
            self._token = ""  # it has expired: the next attempt logs in again
            return _Failure(member, f"says: {text}")
        if code in _TEMPORARY or "too many requests" in text:
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
        members = self.address.members
        seconds = MEMBER_SHARE * self.patience
        answers = await asyncio.gather(*(self._status(each, seconds=seconds) for each in members))
        statuses = {
            member: status
            for member, status in zip(members, answers, strict=True)
            if status is not None
        }
        for member, status in statuses.items():
            version = re.findall(r"\d+", str(status.get("version")))[:2]
            if tuple(map(int, version)) < OLDEST_ETCD:
                raise EtcdRefused(
                    f"{member} is etcd {status.get('version')}",
                    allowed=f"etcd {_dotted(OLDEST_ETCD)} or later",
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
        """All of one branch at once."""
        body = {"compare": conditions, "success": then, "failure": otherwise}
        answer = await self.call("/v3/kv/txn", body)
        reads = [
            response["response_range"]
            for response in answer.get("responses", ())
            if "response_range" in response
        ]
        revision = int(answer["header"]["revision"])
        return Outcome(bool(answer.get("succeeded")), revision, tuple(map(_first_item, reads)))

    async def grant(self, seconds: int) -> tuple[int, float]:
        """A new lease, and how many seconds it holds."""
        answer = await self.call("/v3/lease/grant", {"TTL": str(seconds)})
        return int(answer["ID"]), float(answer["TTL"])

    async def keep_alive(self, lease: int, *, patience: float) -> float:
        """Renew a lease; the seconds it holds from now on, 0 if it has ended."""
        answer = await self.call("/v3/lease/keepalive", {"ID": str(lease)}, patience=patience)
        return float(answer.get("TTL", 0))

    async def revoke(self, lease: int) -> None:
        """End a lease, and the keys with it."""
        await self.call("/v3/lease/revoke", {"ID": str(lease)})

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _transport_failure(member: str, error: Exception) -> _Failure:
    text = " ".join(str(error).split())
    if "certificate" in text.lower() or "[SSL" in text:
        return _Failure(member, f"cannot be trusted: {text}", permanent=True)
    return _Failure(member, f"cannot be reached: {text or type(error).__name__}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
