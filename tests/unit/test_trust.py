"""Whose code may be run: what the user grants, and what nobody should offer."""

from __future__ import annotations

import contextvars
import hashlib
import os
import sys
from pathlib import Path

import pytest

from fedhp.errors import ConfigError
from fedhp.trust import (
    NO_TRUST,
    Trust,
    TrustedModule,
    check_option,
    grant,
    granted,
    granting,
    home_of,
    limit,
    limited_to,
    load_trust,
    split_path,
)


def test_what_is_granted_lasts_and_adds_up() -> None:
    def work() -> None:
        assert granted() == ()
        grant(["one", "two"])
        assert granted() == ("one", "two")
        with granting(["three"]):
            assert granted() == ("one", "two", "three")
        assert granted() == ("one", "two")

    contextvars.copy_context().run(work)


def test_the_limit_ends_with_its_block_also_after_an_error() -> None:
    def work() -> None:
        with limited_to(NO_TRUST):
            assert limit() is NO_TRUST
            raise KeyError

    assert limit() is None
    with pytest.raises(KeyError):
        work()
    assert limit() is None


@pytest.mark.parametrize(
    ("name", "whose"), [("os", "Python"), ("os.path", "Python"), ("fedhp.rule", "fedhp")]
)
def test_what_needs_no_trust_cannot_be_trusted(name: str, whose: str) -> None:
    with pytest.raises(ConfigError, match=f"{name!r} is part of {whose}") as caught:
        check_option(["own_parts", name])
    assert caught.value.key == "--trust"
    check_option(["own_parts", "fedhp_parts.os"])


def test_paths_of_trusted_modules_alone() -> None:
    trust = Trust((TrustedModule("own", None, ""),), named=frozenset({"mine:Part"}))
    trust.check_path("own:Part", key="k")
    trust.check_path("mine:Part", key="k")
    for path in ("other:Part", "mine:Other", "own.inner:Part"):
        with pytest.raises(ConfigError, match="does not trust") as caught:
            trust.check_path(path, key="algorithm.name")
        assert caught.value.key == "algorithm.name"
        assert "trusts: own" in caught.value.allowed
    with pytest.raises(ConfigError, match="does not trust") as caught:
        NO_TRUST.check_path("own:Part", key="k")
    assert "trusts: none" in caught.value.allowed
    trust.check_part(Path, "mine:Part", key="k")
    with pytest.raises(ConfigError, match="defined in the module 'pathlib"):
        trust.check_part(Path, "own:Path", key="k")


def test_where_a_part_is_defined() -> None:
    assert home_of(Trust) == "fedhp.trust"
    assert home_of(3) == ""
    assert split_path("a.b:C.d") == ("a.b", "C.d")
    assert split_path("a.b.C") == ("a.b", "C")


def test_a_trusted_module_is_imported_once_and_its_file_is_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trusted_part_of_test.py"
    file.write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (module,) = load_trust([file.stem, file.stem]).modules
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert module == TrustedModule(file.stem, file, digest)
    assert sys.modules.pop(file.stem).VALUE == 3
    with pytest.raises(ConfigError, match="cannot be imported: ImportError: it was not found"):
        load_trust(["trusted_part_that_is_missing"])


def test_a_trusted_module_without_a_file_has_no_digest() -> None:
    """Its origin is a word, not a path."""
    assert load_trust(["_imp"]).modules == (TrustedModule("_imp", None, ""),)


def test_a_module_that_was_just_written_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python keeps what it has seen of a folder, by the time at which that was changed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    moment = tmp_path.stat().st_mtime_ns
    with pytest.raises(ConfigError, match="it was not found"):
        load_trust(["written_later_for_a_test"])
    (tmp_path / "written_later_for_a_test.py").write_text("")
    os.utime(tmp_path, ns=(moment, moment))
    assert load_trust(["written_later_for_a_test"]).modules[0].file is not None
    sys.modules.pop("written_later_for_a_test")
