"""Downloads from a local server that cuts connections, stalls, lies and refuses."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedhp.data.download import RetryPolicy, download
from fedhp.errors import DataError, StorageFull

CONTENT = bytes(range(256)) * 4096  # 1 MiB
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class ServerScript:
    """What the server does; each list is consumed request by request."""

    content: bytes = CONTENT
    ranges: bool = True
    etag: str = '"v1"'
    cuts: list[int] = field(default_factory=list)  # close after so many bytes
    stalls: list[int] = field(default_factory=list)  # fall silent after so many bytes
    statuses: list[int] = field(default_factory=list)
    length: bool = True
    redirect: str = ""
    wrong_range: bool = False
    requests: list[dict[str, str]] = field(default_factory=list)
    silence: threading.Event = field(default_factory=threading.Event)
    url: str = ""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: ServerScript) -> None:
        self.script = script
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        script = self.server.script
        script.requests.append(dict(self.headers))
        if script.redirect and self.path == "/file.bin":
            self.send_response(302)
            self.send_header("Location", script.redirect)
            self.end_headers()
            return
        if script.statuses and (status := script.statuses.pop(0)) != 200:
            self.send_error(status)
            return
        start, content = 0, script.content
        asked = self.headers.get("Range", "")
        mark = self.headers.get("If-Range")
        if script.ranges and asked and mark in (None, script.etag):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            first = start + 1 if script.wrong_range else start
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        if script.etag:
            self.send_header("ETag", script.etag)
        if script.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if script.cuts:
            self.wfile.write(body[: script.cuts.pop(0)])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
        elif script.stalls:
            self.wfile.write(body[: script.stalls.pop(0)])
            self.wfile.flush()
            script.silence.wait(20)
        else:
            self.wfile.write(body)


@pytest.fixture
def script() -> Iterator[ServerScript]:
    script = ServerScript()
    server = Server(script)
    script.url = f"http://127.0.0.1:{server.server_port}/file.bin"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield script
    script.silence.set()
    server.shutdown()
    thread.join(10)
    server.server_close()


@dataclass
class Retries:
    """A retry policy that notes pauses instead of waiting."""

    pauses: list[float] = field(default_factory=list)

    def policy(self, **settings: Any) -> RetryPolicy:
        settings = {"timeout": 5.0, "sleep": self.pauses.append, "attempts": 3, **settings}
        return RetryPolicy(**settings)


@pytest.fixture
def retries() -> Retries:
    return Retries()


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_plain_download(script: ServerScript, retries: Retries, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    target = tmp_path / "file.bin"
    download(
        script.url,
        target,
        md5=MD5,
        policy=retries.policy(),
        progress=lambda *event: seen.append(event),
    )
    assert target.read_bytes() == CONTENT
    assert left_over(tmp_path) == ["file.bin"]
    assert seen[0] == ("file.bin", 0, len(CONTENT))
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert "Range" not in script.requests[0]


def test_a_cut_is_resumed_where_it_happened(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    script.cuts = [100_000, 200_000]
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    ranges = [request.get("Range") for request in script.requests]
    assert ranges == [None, "bytes=100000-", "bytes=300000-"]
    assert [request.get("If-Range") for request in script.requests] == [None, '"v1"', '"v1"']
    assert retries.pauses == [1.0, 2.0]


def test_a_later_run_continues(script: ServerScript, retries: Retries, tmp_path: Path) -> None:
    script.cuts = [1000, 1000, 1000]
    with pytest.raises(DataError, match=r"gave up after 3 attempts: .*cut after 3000 of 1048576"):
        download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert left_over(tmp_path) == ["file.bin.part", "file.bin.part.tag"]
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert script.requests[-1]["Range"] == "bytes=3000-"
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert left_over(tmp_path) == ["file.bin"]


def test_progress_forgives_earlier_failures(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    script.content = CONTENT * 6
    script.cuts = [10, 1 << 20, 10, 1 << 20, 10, 1 << 20]
    md5 = hashlib.md5(script.content).hexdigest()
    download(script.url, tmp_path / "file.bin", md5=md5, policy=retries.policy())
    assert retries.pauses == [1.0, 1.0, 2.0, 1.0, 2.0, 1.0]


def test_pauses_are_bounded(script: ServerScript, retries: Retries, tmp_path: Path) -> None:
    script.statuses = [503] * 9
    policy = retries.policy(attempts=9)
    with pytest.raises(DataError, match="gave up after 9 attempts: the server answered 503"):
        download(script.url, tmp_path / "file.bin", md5=MD5, policy=policy)
    assert retries.pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert left_over(tmp_path) == []


def test_a_server_without_ranges_starts_over(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    script.ranges = False
    script.cuts = [500_000]
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_file_that_changed_meanwhile_starts_over(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    script.cuts = [1000, 1, 1]
    with pytest.raises(DataError, match="gave up"):
        download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    script.content, script.etag = CONTENT[::-1], '"v2"'
    md5 = hashlib.md5(script.content).hexdigest()
    download(script.url, tmp_path / "file.bin", md5=md5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == script.content


def test_an_old_beginning_without_a_mark_is_found_out_by_the_checksum(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    script.etag = ""
    (tmp_path / "file.bin.part").write_bytes(b"of another file")
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert [request.get("Range") for request in script.requests] == ["bytes=15-", None]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_complete_part_is_only_checked(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert len(script.requests) == 1
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_that_is_too_long_starts_over(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_another_part_than_asked_for_starts_over(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    script.wrong_range = True
    script.cuts = [1000]
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_no_length_given(script: ServerScript, retries: Retries, tmp_path: Path) -> None:
    script.length = False
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("resumed", [False, True])
def test_a_wrong_checksum_keeps_nothing(
    script: ServerScript, retries: Retries, tmp_path: Path, resumed: bool
) -> None:
    if resumed:
        (tmp_path / "file.bin.part").write_bytes(CONTENT[:100])
    with pytest.raises(DataError) as caught:
        download(script.url, tmp_path / "file.bin", md5="0" * 32, policy=retries.policy())
    assert f"expected MD5 {'0' * 32}, got {MD5} (1048576 bytes)" in str(caught.value)
    assert "--from URL" in str(caught.value)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_refusal_is_final(
    script: ServerScript, retries: Retries, tmp_path: Path, status: int
) -> None:
    script.statuses = [status]
    with pytest.raises(DataError, match=f"the server answered {status}"):
        download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert len(script.requests) == 1
    assert left_over(tmp_path) == []


def test_a_temporary_failure_is_retried(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    script.statuses = [503, 429]
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_that_stalls_runs_into_the_timeout(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    script.stalls = [1000]
    policy = retries.policy(timeout=1.0, attempts=1)
    with pytest.raises(DataError, match="gave up after 1 attempts: no answer within 1 s"):
        download(script.url, tmp_path / "file.bin", md5=MD5, policy=policy)
    assert (tmp_path / "file.bin.part").stat().st_size == 1000, "what came is kept"
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_no_server_listens(retries: Retries, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/file.bin"
    with pytest.raises(DataError, match=r"gave up after 3 attempts: .*refused"):
        download(url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())


def test_a_full_disk_is_noticed_before(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    policy = retries.policy(free=lambda folder: 1 << 20)
    with pytest.raises(StorageFull, match="needs about 1 MB, 1 MB are free") as caught:
        download(script.url, tmp_path / "file.bin", md5=MD5, policy=policy)
    assert caught.value.exit_code == 2
    assert "--to DIR" in str(caught.value)
    assert (tmp_path / "file.bin.part").exists() is False


def test_a_disk_that_fills_up_on_the_way(script: ServerScript, retries: Retries) -> None:
    # /dev/full refuses every write, as a full disk does
    target = Path("/dev/full")
    if not target.exists():
        pytest.skip("this system has no /dev/full")
    from fedhp.data.download import _write

    with target.open("wb", buffering=0) as sink, pytest.raises(StorageFull, match="disk is full"):
        _write(sink, b"x")


def test_two_fetches_do_not_mix(script: ServerScript, retries: Retries, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / "file.bin.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is downloading"):
            download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert script.requests == []


def test_a_folder_that_cannot_be_written(
    script: ServerScript, retries: Retries, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        download(script.url, tmp_path / "no" / "file", md5=MD5, policy=retries.policy())


def test_a_redirect_is_followed(script: ServerScript, retries: Retries, tmp_path: Path) -> None:
    script.redirect = "/elsewhere.bin"
    download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [request["Accept-Encoding"] for request in script.requests] == ["identity"] * 2


def test_the_proxy_of_the_environment_is_used(
    script: ServerScript, retries: Retries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", script.url.removesuffix("/file.bin"))
    url = "http://data.invalid/file.bin"
    download(url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert script.requests[0]["Host"] == "data.invalid"


def test_a_proxy_of_an_unknown_kind(
    retries: Retries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "gopher://127.0.0.1:1")
    with pytest.raises(DataError, match="proxy settings cannot be used") as caught:
        download("http://data.invalid/x", tmp_path / "x", md5=MD5, policy=retries.policy())
    assert "NO_PROXY" in str(caught.value)


@pytest.mark.parametrize("length", [True, False])
def test_an_endless_file_is_refused(
    script: ServerScript,
    retries: Retries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    length: bool,
) -> None:
    monkeypatch.setattr("fedhp.data.download._LARGEST", 500_000)
    script.length = length
    with pytest.raises(DataError, match="the file has more than"):
        download(script.url, tmp_path / "file.bin", md5=MD5, policy=retries.policy())
    assert len(script.requests) == 1
    assert left_over(tmp_path) == []
