"""fetch and unpack: whole data sets from a local server, malicious and damaged archives."""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.config import DataConfig
from fedhp.data import load_data
from fedhp.data.download import RetryPolicy
from fedhp.data.fetch import SOURCES, DataSource, fetch
from fedhp.data.unpack import unpack
from fedhp.errors import ConfigError, DataError, StorageFull


class Quiet(SimpleHTTPRequestHandler):
    served: list[str]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        type(self).served.append(self.path)
        super().do_GET()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder served over HTTP, its address, and what was asked for."""
    folder = tmp_path / "web"
    folder.mkdir()
    handler = type("Handler", (Quiet,), {"served": []})
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}", handler.served  # type: ignore[attr-defined]
    server.shutdown()
    thread.join(10)
    server.server_close()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def make_zip(path: Path, files: dict[str, bytes]) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path.read_bytes()


def make_tar(path: Path, files: dict[str, bytes]) -> bytes:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path.read_bytes()


def test_files_are_fetched_once_and_again_when_damaged(
    web: tuple[Path, str, list[str]], mnist_folder: Path, tmp_path: Path
) -> None:
    folder, url, served = web
    files = []
    for path in sorted(mnist_folder.iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())
        files.append((path.name, md5(path.read_bytes())))
    source = DataSource(url, tuple(files), "mnist")
    result = fetch("mnist", source=source)
    assert result.path == tmp_path / "cache" / "mnist"
    assert len(result.downloaded) == 4
    data = load_data(DataConfig(name="mnist"))
    assert len(data.train_inputs) == 20, "load_data finds what fetch brought"
    again = fetch("mnist", source=source)
    assert again.downloaded == ()
    assert len(again.present) == 4
    assert len(served) == 4
    (result.path / files[0][0]).write_bytes(b"damaged")
    assert fetch("mnist", source=source).downloaded == (files[0][0],)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_is_unpacked_and_not_fetched_again(
    web: tuple[Path, str, list[str]], tmp_path: Path, kind: str
) -> None:
    folder, url, served = web
    make = make_zip if kind == "zip" else make_tar
    content = make(folder / f"a.{kind}", {"top/one.txt": b"1", "top/deep/two.txt": b"22"})
    source = DataSource(url, ((f"a.{kind}", md5(content)),), "set", archive=True)
    result = fetch("cifar10", to=tmp_path / "there", source=source)
    unpacked = tmp_path / "there" / "set"
    assert result.path == unpacked
    files = sorted(path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*"))
    assert files == [".fetched.json", "deep", "deep/two.txt", "one.txt"]
    assert fetch("cifar10", to=tmp_path / "there", source=source).downloaded == ()
    assert len(served) == 1
    (unpacked / "one.txt").write_bytes(b"x")
    again = fetch("cifar10", to=tmp_path / "there", source=source)
    assert again.downloaded == (f"a.{kind}",)
    assert (unpacked / "one.txt").read_bytes() == b"1"


def test_an_archive_already_here_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    content = make_zip(tmp_path / "set" / "a.zip", {"one.txt": b"1"})
    nobody = DataSource("http://127.0.0.1:9", (("a.zip", md5(content)),), "set", archive=True)
    assert fetch("emnist", to=tmp_path, source=nobody).present == ("a.zip",)
    assert (tmp_path / "set" / "one.txt").read_bytes() == b"1"
    assert not (tmp_path / "set" / "a.zip").exists()


def test_a_single_file_is_the_path_itself(web: tuple[Path, str, list[str]], tmp_path: Path) -> None:
    folder, url, _ = web
    content = make_zip(folder / "tiny-imagenet-200.zip", {"a": b"1"})
    source = DataSource("http://unused", (("tiny-imagenet-200.zip", md5(content)),), "")
    result = fetch("tiny_imagenet", to=tmp_path, source=source, mirror=url + "/")
    assert result.path == tmp_path / "tiny-imagenet-200.zip"


def test_names_and_mirrors_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown data set 'digits'"):
        fetch("digits")
    for mirror in ("file:///etc", "ftp://x/y", "somewhere", "http://", "http://[x"):
        with pytest.raises(ConfigError, match="--from: invalid address"):
            fetch("mnist", to=tmp_path, mirror=mirror)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        fetch("mnist", to=tmp_path / "file")


def test_the_catalogue() -> None:
    assert set(SOURCES) == {"mnist", "emnist", "cifar10", "tiny_imagenet"}
    for source in SOURCES.values():
        assert source.base.startswith("http")
        assert not source.base.endswith("/")
        assert all(len(digest) == 32 for _, digest in source.files)
        assert not source.archive or len(source.files) == 1


BAD_NAMES = ["../out.txt", "top/../../out.txt", "/out.txt", "top\\..\\out.txt", "C:out.txt"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_nothing_is_unpacked_outside(tmp_path: Path, name: str, kind: str) -> None:
    archive, target = tmp_path / "a", tmp_path / "deep" / "target"
    make = make_zip if kind == "zip" else make_tar
    make(archive, {"top/good.txt": b"1", name: b"bad"})
    with pytest.raises(DataError, match="points outside the target folder; nothing was unpacked"):
        unpack(archive, target)
    assert list(target.iterdir()) == []
    assert not list(tmp_path.rglob("out.txt"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_tar_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("top/link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(DataError, match="is a link or a device"):
        unpack(tmp_path / "a.tar", tmp_path / "target")


def test_zip_links_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(DataError, match="is a link"):
        unpack(tmp_path / "a.zip", tmp_path / "target")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/x", b"1")
        archive.writestr("./a/x", b"2")
    with pytest.raises(DataError, match="two files with the same name"):
        unpack(tmp_path / "a.zip", tmp_path / "target")


def test_no_room_to_unpack(tmp_path: Path) -> None:
    make_zip(tmp_path / "a.zip", {"x": bytes(5000)})
    with pytest.raises(StorageFull):
        unpack(tmp_path / "a.zip", tmp_path / "target", policy=RetryPolicy(free=lambda _: 4000))
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, kind: str) -> None:
    noise = np.random.default_rng(0).bytes(20_000)
    make = make_zip if kind == "zip" else make_tar
    content = bytearray(make(tmp_path / "a", {"top/x": b"1", "top/y": noise}))
    if kind == "zip":
        content[10_000:10_100] = bytes(100)
    else:
        del content[15_000:]
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot be unpacked|cut short"):
        unpack(tmp_path / "a", tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_a_file_that_is_not_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "a", tmp_path / "target")
