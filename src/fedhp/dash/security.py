"""Who may ask: the Host header, the token, the site of a request, and headers of every answer.

A page of another site must neither read an answer (its name does not resolve to this server as far
as Host is concerned: DNS rebinding), nor make the browser start work here (Sec-Fetch-Site, Origin),
nor make it send a command (also the content type and a token that no browser adds by itself).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedhp.dash.answers import problem_response
from fedhp.errors import ConfigError
from fedhp.tables import COMMAND_LINE

LOOPBACK = ("localhost", "127.0.0.1", "::1")
COOKIE = "fedhp_dash"
LOGIN = "/login"
OPEN_PATHS = (LOGIN, "/static/login.css", "/api/health")  # served without the token
LARGEST_BODY = 16_384  # bytes
LEAST_TOKEN, LARGEST_TOKEN = 16, 1024  # characters
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer" a browser's form has Origin: null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Access:
    hosts: frozenset[str]  # names that the Host header may have
    any_address: bool = False  # also the literal addresses of this machine
    token: str | None = None  # for commands; None: nobody may
    read_token: bool = False  # reading needs it as well
    tls: bool = False

    def is_token(self, word: str) -> bool:
        """Whether a word is the token; takes as long for a wrong one as for a right one."""
        return self.token is not None and same_text(word, self.token)

    def is_cookie(self, value: str) -> bool:
        return self.token is not None and same_text(value, self.cookie())

    def cookie(self) -> str:
        """The value of the cookie: made from the token, which it does not contain."""
        key = (self.token or "").encode()
        return hmac.new(key, b"fedhp dash, the cookie of the login", hashlib.sha256).hexdigest()

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server; its port does not matter."""
        name = host_name(header)
        return name in self.hosts or (self.any_address and is_address(name))


def same_text(given: str, expected: str) -> bool:
    """Compare in constant time; the hash hides the length too."""
    texts = (text.encode("utf-8", "surrogatepass") for text in (given, expected))
    return hmac.compare_digest(*(hashlib.sha256(text).digest() for text in texts))


def host_name(header: str) -> str:
    """The name in a Host header, without the port; empty if it is none."""
    try:
        parts = urlsplit(f"//{header}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return ""
    if name is None or parts.path or parts.query or parts.fragment or "@" in header:
        return ""
    return name.rstrip(".").lower()


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at this host."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def new_token() -> str:
    return secrets.token_urlsafe(24)


def read_token(file: Path) -> str:
    """The token in a file that only its user can read."""
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong_token(file, f"cannot be read: {error}") from None
    if mode & 0o077:
        raise _wrong_token(file, "can be read or written by other users of this machine")
    word = text.isascii() and text.isprintable() and " " not in text
    if not word or not LEAST_TOKEN <= len(text) <= LARGEST_TOKEN:
        raise _wrong_token(file, f"does not hold one word of {LEAST_TOKEN} characters or more")
    return text


def _wrong_token(file: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"{file} {problem}",
        key="--token-file",
        source=COMMAND_LINE,
        allowed=f"a file with one word of at least {LEAST_TOKEN} ASCII characters, readable by its "
        "user alone",
        fix=f"umask 077; openssl rand -base64 24 > {file}",
    )


class SecurityMiddleware:
    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no websockets
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        secured = _with_headers(send, api=scope["path"].startswith("/api"))
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        refusal = self._refusal(scope["method"], scope["path"], headers, hosts=len(hosts))
        if refusal is not None:
            await refusal(scope, receive, secured)
        else:
            await self._app(scope, receive, secured)

    def _refusal(
        self, method: str, path: str, headers: Mapping[str, str], *, hosts: int
    ) -> ASGIApp | None:
        access = self._access
        if hosts != 1 or not access.knows_host(headers["host"]):
            return problem_response(
                421,
                f"this server is not called {headers.get('host', '')[:200]!r}",
                allowed="localhost, 127.0.0.1, [::1], the --host of the server and its "
                "--allow-host names",
                fix="use one of these names, or start the server with --allow-host NAME",
            )
        if (path.startswith("/api") or method not in ("GET", "HEAD")) and self._is_foreign(headers):
            return problem_response(
                403,
                "the request comes from another site",
                allowed="requests of the page of this server, and of programs",
                fix="open the page at this address",
            )
        reads = method in ("GET", "HEAD")
        if not reads and (refusal := self._post_refusal(method, path, headers)) is not None:
            return refusal
        if access.read_token and path not in OPEN_PATHS and not self._has_token(headers):
            return _sign_in(method, path, headers)
        return None

    def _post_refusal(self, method: str, path: str, headers: Mapping[str, str]) -> ASGIApp | None:
        if method != "POST":
            return problem_response(405, f"{method} is not used here", allowed="GET, POST")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        wanted = "application/x-www-form-urlencoded" if path == LOGIN else "application/json"
        if kind != wanted:
            return problem_response(
                400, f"the content type is {kind[:100]!r}", allowed=wanted, fix=f"send {wanted}"
            )
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and int(length[:9]) <= LARGEST_BODY):
            return problem_response(
                400,
                "the size of the body is not given, or too large",
                allowed=f"a Content-Length of at most {LARGEST_BODY} bytes",
                fix="send less",
            )
        return None

    def _is_foreign(self, headers: Mapping[str, str]) -> bool:
        """Whether a browser says that a page of another site asks; programs say nothing."""
        site = headers.get("sec-fetch-site", "same-origin")
        own = f"{'https' if self._access.tls else 'http'}://{headers['host'].lower()}"
        # A program, or a browser that loads from its own site, names no origin.
        return site not in ("same-origin", "none") or headers.get("origin", own).lower() != own

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        cookies = [value for name, _, value in parts if name == COOKIE]
        return self._access.is_token(bearer(headers)) or any(map(self._access.is_cookie, cookies))


def bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def posted_token(body: bytes) -> str:
    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=4)
    return fields.get("token", [""])[0].strip()


def _sign_in(method: str, path: str, headers: Mapping[str, str]) -> ASGIApp:
    if method in ("GET", "HEAD") and path == "/" and "text/html" in headers.get("accept", ""):
        return RedirectResponse(LOGIN, status_code=303)
    return problem_response(
        401,
        "the token is missing or wrong",
        allowed="the header Authorization: Bearer TOKEN, or the cookie of the login",
        fix="sign in at /login with the token of the server",
        headers={"www-authenticate": 'Bearer realm="fedhp dash"'},
    )


def _with_headers(send: Send, *, api: bool) -> Send:
    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("cache-control", "no-store" if api else "no-cache")
        await send(message)

    return secured
