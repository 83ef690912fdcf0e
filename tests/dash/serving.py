"""A server of the page in this process, and viewers of its stream."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from fedhp.dash.actions import Operator
from fedhp.dash.app import DashSettings, create_app
from fedhp.dash.listening import listening_socket
from fedhp.dash.security import LOOPBACK, Access
from waiting import PATIENCE, wait_until

LOCAL = Access(hosts=frozenset(LOOPBACK))


class AppClient:
    """Calls an application without a server in between; keeps cookies as a browser does."""

    def __init__(self, app: Any) -> None:
        self._transport = httpx.ASGITransport(app)
        self._cookies = httpx.Cookies()

    def __enter__(self) -> AppClient:
        return self

    def __exit__(self, *details: object) -> None:
        """Nothing is open."""

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request."""

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://localhost", cookies=self._cookies
            ) as client:
                response = await client.request(method, path, **options)
                self._cookies = client.cookies
                return response

        return asyncio.run(send())

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET."""
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """POST."""
        return self.request("POST", path, **options)


def client_of(
    folder: Path, *, access: Access = LOCAL, operator: Operator | None = None
) -> AppClient:
    """Calls the application of a folder."""
    return AppClient(create_app(DashSettings(folder, access, operator or Operator())))


@contextmanager
def listening(folder: Path, *, access: Access = LOCAL, port: int = 0) -> Iterator[int]:
    """A server on loopback; its port."""
    listener = listening_socket("127.0.0.1", port)
    config = uvicorn.Config(
        create_app(DashSettings(folder, access)),
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
        ws="none",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server listens")
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


@dataclass
class Message:
    """One message of a stream."""

    kind: str = "message"
    data: str = ""
    identity: str | None = None

    @property
    def facts(self) -> Any:
        return json.loads(self.data)


class Viewer:
    """Somebody who watches, as a browser's EventSource does."""

    def __init__(self, port: int, query: str, *, last_id: str = "") -> None:
        self.last_id = last_id
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        headers = {"Last-Event-ID": last_id} if last_id else {}
        self._connection.request("GET", f"/api/stream{query}", headers=headers)
        self.response = self._connection.getresponse()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *details: object) -> None:
        self._connection.close()

    def next(self) -> Message:
        """The next message that has data; ids without data are taken in."""
        message = Message()
        while True:
            line = self.response.readline().decode().rstrip("\n")
            if not line and message.data:
                return message
            if not line:
                message = Message()
            name, _, value = line.partition(": ")
            if name == "event":
                message.kind = value
            elif name == "data":
                message.data += value
            elif name == "id":
                self.last_id = value

    def until(self, kind: str, **facts: object) -> Any:
        """The facts of the next message of this kind with these facts."""
        while True:
            message = self.next()
            if message.kind == kind and facts.items() <= message.facts.items():
                return message.facts
