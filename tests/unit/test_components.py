"""Components by name or dotted path: found, settings checked, called, or refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from fedhp.components import (
    build,
    check_settings,
    defaults,
    is_dotted,
    make_importable,
    resolve,
)
from fedhp.errors import ConfigError, DataError

BUILTINS = {"full": "fedhp.graph:full", "star": "fedhp.graph:star"}


def component(
    first: int,
    *,
    size: Annotated[int, Field(ge=1, le=9)] = 3,
    share: float = 0.5,
    kind: Literal["plain", "fancy"] = "plain",
    pairs: tuple[tuple[int, int], ...] = (),
    place: Path = Path("x"),
    anything: Any = None,
    either: int | Literal["auto"] = "auto",
    many: Sequence[float] = (),
) -> dict[str, Any]:
    """A component with settings of many types."""
    return dict(locals())


def check(**settings: Any) -> dict[str, Any]:
    return check_settings(component, settings, prefix="part")


def refused(**settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check(**settings)
    return caught.value


def test_names_and_paths() -> None:
    assert is_dotted("a.b")
    assert is_dotted("a:b")
    assert not is_dotted("fedhp")
    assert resolve("star", BUILTINS, key="topology.name").__name__ == "star"
    assert resolve("fedhp.graph:ring", BUILTINS, key="topology.name").__name__ == "ring"
    assert resolve("fedhp.graph.ring", BUILTINS, key="topology.name").__name__ == "ring"


def test_an_unknown_name_lists_the_known_ones_and_guesses() -> None:
    with pytest.raises(ConfigError, match=r"^topology\.name: unknown topology") as caught:
        resolve("ful", BUILTINS, key="topology.name")
    assert "full, star" in caught.value.allowed
    assert "did you mean 'full'?" in caught.value.fix


def test_settings_keep_their_types_as_toml_has_them() -> None:
    checked = check(
        size=2, share=1, pairs=[[0, 1]], place="a/b", anything={"x": [1]}, either=4, many=[1, 2.5]
    )
    assert checked["share"] == 1.0
    assert isinstance(checked["share"], float)
    assert checked["pairs"] == ((0, 1),)
    assert checked["place"] == Path("a/b")
    assert checked["anything"] == {"x": [1]}
    assert checked["either"] == 4
    assert list(checked["many"]) == [1.0, 2.5]
    # What was checked once may be checked again: models are built many times.
    assert check(**checked) == checked


def test_only_given_settings_are_returned() -> None:
    assert check() == {}
    assert check(size=4) == {"size": 4}
    assert defaults(component)["size"] == 3


@pytest.mark.parametrize(
    ("settings", "key", "allowed"),
    [
        ({"size": 0}, "part.size", "a whole number from 1 to 9"),
        ({"size": "2"}, "part.size", "a whole number from 1 to 9"),
        ({"size": True}, "part.size", "a whole number from 1 to 9"),
        ({"size": 2.5}, "part.size", "a whole number from 1 to 9"),
        ({"share": "0.5"}, "part.share", "a number"),
        ({"share": False}, "part.share", "a number"),
        ({"kind": "fancier"}, "part.kind", "'plain' or 'fancy'"),
        ({"pairs": [[0]]}, "part.pairs.0", "a list of 2 whole numbers"),
        ({"pairs": [[0, "1"]]}, "part.pairs.0.1", "a whole number"),
        ({"either": "x"}, "part.either", "a whole number or 'auto'"),
        ({"many": "12"}, "part.many", "a list of numbers"),
        ({"sise": 2}, "part.sise", "size"),
        ({"first": 2}, "part.first", "size"),
    ],
)
def test_wrong_settings_name_the_key_the_file_and_what_is_allowed(
    settings: dict[str, Any], key: str, allowed: str
) -> None:
    error = refused(**settings)
    assert error.key == key
    assert str(error).startswith(f"{key}: ")
    assert allowed in error.allowed
    assert error.fix


def test_python_objects_can_be_passed_through_the_api() -> None:
    marker = object()
    assert check(anything=marker)["anything"] is marker


def test_a_missing_setting_is_named() -> None:
    def needy(*, size: int) -> int:
        return size

    with pytest.raises(ConfigError, match=r"model\.size: is required but missing") as caught:
        build(needy, settings={}, prefix="model")
    assert caught.value.allowed == "a whole number"


def test_a_class_with_fields_is_a_component() -> None:
    class Own(BaseModel):
        model_config = {"extra": "forbid"}
        steps: Annotated[int, Field(ge=1)] = 2

    assert build(Own, settings={"steps": 3}, prefix="algorithm").steps == 3
    with pytest.raises(ConfigError, match=r"algorithm\.steps"):
        build(Own, settings={"steps": "3"}, prefix="algorithm")


def test_what_a_component_raises_is_reported_in_one_line() -> None:
    def grumpy(*, size: int = 3) -> None:
        raise ValueError("not\ntoday")

    with pytest.raises(ConfigError, match="ValueError: not today") as caught:
        build(grumpy, settings={"size": 4}, prefix="model")
    assert "size = 4" in str(caught.value)
    assert "size" in caught.value.allowed
    assert "if it is yours" in caught.value.fix


def test_a_component_that_exits_is_reported_too() -> None:
    def leaving() -> None:
        raise SystemExit("bye")

    with pytest.raises(ConfigError, match="SystemExit: bye"):
        build(leaving, settings={}, prefix="task")


def test_clear_errors_pass_and_get_the_file() -> None:
    def picky() -> None:
        raise ConfigError("is too big", key="model.width", fix="smaller")

    def dataless() -> None:
        raise DataError("no data")

    with pytest.raises(ConfigError, match=r"^model\.width: is too big"):
        build(picky, settings={}, prefix="model")
    with pytest.raises(DataError, match="no data"):
        build(dataless, settings={}, prefix="model")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("broken_import_a", "raise RuntimeError('broken')", "RuntimeError: broken"),
        ("broken_import_b", "import sys\nsys.exit(3)", "SystemExit: 3"),
        ("broken_import_c", "def broken(:", "SyntaxError"),
        ("broken_import_d", "x = 3", "has no attribute 'Thing'"),
        ("broken_import_e", "Thing = 3", "is a int, which cannot be called"),
        ("broken_import_f", "Thing = dict", "cannot be read"),
        ("broken_import_g", "def Thing(*, x: 'Nowhere' = 1): ...", "cannot be read"),
    ],
)
def test_modules_that_fail_are_reported_in_one_message(
    name: str, content: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"model\.name") as caught:
        resolve(f"{name}:Thing", {}, key="model.name")
    assert words in str(caught.value)
    assert caught.value.allowed
    assert caught.value.fix


def test_odd_annotations_are_refused_and_not_a_traceback() -> None:
    def odd(*, size: Annotated[int, Field(min_length=3)] = 3) -> None: ...

    with pytest.raises(ConfigError, match=r"model\.name: the settings of .*odd cannot be checked"):
        check_settings(odd, {"size": 3}, prefix="model")


def test_folders_are_made_importable_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    make_importable(str(tmp_path), str(tmp_path))
    assert sys.path.count(str(tmp_path)) == 1
