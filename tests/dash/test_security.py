"""Who is refused: other hosts, other sites, other folders; and what names from outside can do."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dash.conftest import FIRST
from dash.serving import LOCAL, AppClient, client_of, listening
from fedhp.dash.actions import Operator
from fedhp.dash.security import LOOPBACK, Access, is_loopback, new_token, read_token
from fedhp.errors import ConfigError
from waiting import PATIENCE

TOKEN = "a-token-of-some-length"
SECRET = Access(hosts=frozenset(LOOPBACK), token=TOKEN, read_token=True)
ACTING = Access(hosts=frozenset(LOOPBACK), token=TOKEN)
EVIL = "<img src=x onerror=alert(1)>"


def files_below(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


OUTSIDE = [
    "../outside",
    "first/../../outside",
    "/etc",
    "..",
    "first//fedhp",
    "./first/fedhp",
    "first/fedhp/",
    "first/fedhp/.",
    "first\\fedhp",
    "%2e%2e/outside",
    "..%2foutside",
    "first/fedhp\0",
    "linked",
    "linked_parent/fedhp",
    "linked_record",
    "\ud800",
    "x" * 5000,
]


@pytest.fixture
def trapped(runs: Path) -> Path:
    """Runs, with another one outside, and links to it inside."""
    outside = runs.parent / "outside"
    (runs / "second").rename(outside)
    (runs / "linked").symlink_to(outside)
    (runs / "linked_parent").symlink_to(runs / "first")
    (runs / "linked_record").mkdir()
    (runs / "linked_record" / "record.sqlite").symlink_to(outside / "record.sqlite")
    return runs


@pytest.mark.parametrize("name", OUTSIDE, ids=range(len(OUTSIDE)))
@pytest.mark.parametrize("path", ["run", "summary", "stream"])
def test_nothing_outside_the_folder_is_read(trapped: Path, name: str, path: str) -> None:
    encoded = urllib.parse.quote(name, safe="", errors="surrogatepass")
    absolute = urllib.parse.quote(str(trapped.parent / "outside"), safe="")
    with client_of(trapped) as client:
        for value in (encoded, urllib.parse.quote(encoded, safe=""), absolute):
            response = client.get(f"/api/{path}?run={value}")
            assert response.status_code in (404, 422)
            assert set(response.json()) == {"error", "allowed", "fix"}


def test_links_are_not_listed(trapped: Path) -> None:
    with client_of(trapped) as client:
        assert [entry["run"] for entry in client.get("/api/runs").json()["runs"]] == [FIRST]


def test_static_files_are_those_of_the_page(real_runs: Path) -> None:
    with listening(real_runs) as port:
        for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "..\\app.py"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("GET", f"/static/{path}")
            response = connection.getresponse()
            assert response.status == 404
            assert b"import" not in response.read()
            connection.close()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8420",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "10.0.0.1",
        "",
        "localhost@evil.example",
        "evil.example/localhost",
        "[::2]",
        "localhost:x",
        "0.0.0.0",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/login.css", "/api/stop"])
def test_another_host_is_refused(client: AppClient, host: str, path: str) -> None:
    """A page of another site may let its own name lead to this server (DNS rebinding)."""
    response = client.get(path, headers={"Host": host})
    assert response.status_code == 421
    assert "first" not in response.text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:8420", "localhost."]
)
def test_names_of_this_machine_are_accepted(client: AppClient, host: str) -> None:
    assert client.get("/api/runs", headers={"Host": host}).status_code == 200


def test_a_server_for_others_knows_its_names_and_addresses() -> None:
    access = Access(hosts=frozenset([*LOOPBACK, "dash.example.org"]), any_address=True)
    assert access.knows_host("dash.example.org:8420")
    assert access.knows_host("192.0.2.7")
    assert access.knows_host("[2001:db8::1]:8420")
    assert not access.knows_host("192.0.2.7.nip.io")
    assert not access.knows_host("example.org")


def test_every_answer_has_the_headers(client: AppClient) -> None:
    answers = {
        200: client.get("/api/runs"),
        404: client.get("/api/run?run=x"),
        405: client.request("DELETE", "/api/runs"),
        421: client.get("/api/runs", headers={"Host": "evil.example"}),
        403: client.post("/api/stop", headers={"Origin": "http://evil.example"}),
    }
    for status, response in answers.items():
        assert response.status_code == status
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "unsafe" not in response.headers["content-security-policy"]
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["content-type"] == "application/json"


def test_names_from_outside_are_data(runs: Path) -> None:
    """A folder, a label and a message with markup in them come back as they are, as JSON."""
    (runs / "first").rename(runs / "&lt;<script>alert(1)<")
    run = "&lt;<script>alert(1)</fedhp"
    (runs / "comparison.json").write_text(json.dumps({"labels": {"fedhp": EVIL}}))
    with client_of(runs) as client:
        listed = client.get("/api/runs")
        entry = next(entry for entry in listed.json()["runs"] if entry["algorithm"] == "fedhp")
        assert (entry["run"], entry["label"]) == (run, EVIL)
        details = client.get("/api/run", params={"run": run})
        refused = client.get("/api/run", params={"run": EVIL})
        assert EVIL in refused.json()["error"]
        for response in (listed, details, refused):
            assert response.headers["content-type"] == "application/json"
            assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://localhost"}, 403),
        ({"Origin": "http://localhost:81"}, 403),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 400),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Cookie": f"fedhp_dash={ACTING.cookie()}", "Authorization": ""}, 401),
    ],
)
@pytest.mark.parametrize("action", ["stop", "drain"])
def test_a_command_needs_the_page_and_the_token(
    real_runs: Path, tmp_path: Path, action: str, headers: dict[str, str], status: int
) -> None:
    usual = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    body = json.dumps({"run": FIRST, **({"worker": "w1"} if action == "drain" else {})})
    with client_of(real_runs, access=ACTING, operator=Operator(tmp_path)) as client:
        response = client.post(f"/api/{action}", content=body, headers={**usual, **headers})
        assert response.status_code == status
        accepted = client.post(f"/api/{action}", content=body, headers=usual)
        assert accepted.status_code == 409  # a simulated run cannot be stopped from here


def test_without_a_token_there_are_no_commands(real_runs: Path) -> None:
    with client_of(real_runs) as client:
        for token in ("", "None", TOKEN):
            response = client.post(
                "/api/stop", json={"run": FIRST}, headers={"Authorization": f"Bearer {token}"}
            )
            assert response.status_code == 401


async def pieces() -> AsyncIterator[bytes]:
    """A body whose size is not said."""
    yield b"{}"


def test_a_large_or_endless_body_is_refused(real_runs: Path) -> None:
    with client_of(real_runs, access=ACTING) as client:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        large = client.post("/api/stop", content=b'"' + b"x" * 20_000 + b'"', headers=headers)
        chunked = client.post("/api/stop", content=pieces(), headers=headers)
    assert large.status_code == chunked.status_code == 400


@pytest.mark.parametrize(("size", "status"), [(16_384, 422), (16_385, 400)])
def test_the_largest_body(real_runs: Path, size: int, status: int) -> None:
    """One that is read is refused for what it says."""
    with client_of(real_runs, access=ACTING) as client:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        content = b'"' + b"x" * (size - 2) + b'"'
        assert client.post("/api/stop", content=content, headers=headers).status_code == status


READS = ("runs", "run", "summary", "progress", "decisions", "workers", "events", "openapi.json")


def test_no_get_changes_anything(runs: Path) -> None:
    before = files_below(runs)
    with client_of(runs, access=ACTING) as client:
        for path in (*READS, "stop", "drain", "login"):
            client.get(f"/api/{path}", params={"run": FIRST, "worker": "w1"})
        client.get("/api/round", params={"run": FIRST, "round": 1})
        client.get("/api/whatif", params={"run": FIRST, "planner": "dpsgd"})
        assert client.get("/api/stop").status_code == 405
    assert files_below(runs) == before


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(client: AppClient, method: str) -> None:
    response = client.request(method, "/api/runs")
    assert response.status_code == 405
    assert "access-control-allow-origin" not in response.headers


def test_reading_with_a_token(real_runs: Path) -> None:
    with client_of(real_runs, access=SECRET) as client:
        for path in ("/api/runs", "/api/openapi.json", "/api/stream", "/static/app.js"):
            assert client.get(path).status_code == 401
        page = client.get("/", headers={"Accept": "text/html"}, follow_redirects=False)
        assert (page.status_code, page.headers["location"]) == (303, "/login")
        assert client.get("/api/health").status_code == 200
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/runs", headers=right).status_code == 200
        assert client.get("/api/runs", headers={"Cookie": f"fedhp_dash={TOKEN}"}).status_code == 401


def test_the_login_sets_a_cookie_that_is_not_the_token(real_runs: Path) -> None:
    with client_of(real_runs, access=SECRET) as client:
        assert "<form" in client.get("/login").text
        wrong = client.post("/login", data={"token": "wrong"}, follow_redirects=False)
        assert (wrong.status_code, wrong.headers.get("set-cookie")) == (401, None)
        other = client.post(
            "/login", data={"token": TOKEN}, headers={"Origin": "http://evil.example"}
        )
        assert other.status_code == 403
        right = client.post("/login", data={"token": TOKEN}, follow_redirects=False)
        cookie = right.headers["set-cookie"]
        assert right.status_code == 303
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert client.get("/api/runs").status_code == 200
        response = client.post("/api/stop", json={"run": FIRST})
        assert response.status_code == 401  # a browser adds the cookie by itself


def test_over_tls_the_cookie_is_never_sent_in_the_clear(real_runs: Path) -> None:
    access = Access(hosts=frozenset(LOOPBACK), token=TOKEN, read_token=True, tls=True)
    with client_of(real_runs, access=access) as client:
        response = client.post("/login", data={"token": TOKEN}, follow_redirects=False)
        assert "Secure" in response.headers["set-cookie"]


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every comparison goes through hmac.compare_digest, with values of one length."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return first == second

    monkeypatch.setattr("fedhp.dash.security.hmac.compare_digest", compare)
    assert SECRET.is_token(TOKEN)
    assert not SECRET.is_token("a")
    assert not SECRET.is_token("ä\udcff" * 5000)
    assert not SECRET.is_cookie(TOKEN)
    assert len(compared) == 4
    assert {len(side) for pair in compared for side in pair} == {32}
    assert not LOCAL.is_token("")
    assert not LOCAL.is_token("None")


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("short", 0o600, "16 characters"),
        ("a token with spaces in it", 0o600, "one word"),
        ("line-one-of-a-token\nline-two", 0o600, "one"),
        ("long-enough-token-ü", 0o600, "ASCII"),
        ("long-enough-token", 0o644, "other users"),
        ("long-enough-token", 0o620, "other users"),
    ],
)
def test_a_bad_token_file_is_refused(tmp_path: Path, content: str, mode: int, words: str) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    os.chmod(file, mode)
    with pytest.raises(ConfigError, match="--token-file") as caught:
        read_token(file)
    assert words in str(caught.value)


def test_a_token_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for problem in ("No such file", "can't decode"):
        with pytest.raises(ConfigError, match=f"cannot be read: .*{problem}") as caught:
            read_token(file)
        assert caught.value.key == "--token-file"
        file.touch(0o600)
        file.write_bytes(b"long-enough-token\xff")


def test_a_good_token_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN


def test_hosts_that_only_this_machine_reaches() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.5", "::", "example.org", "localhost.org")))


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(50)}
    assert len(tokens) == 50
    assert {len(token) for token in tokens} == {32}  # 24 bytes in base64
