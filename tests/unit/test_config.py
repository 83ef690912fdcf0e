"""The experiment schema: files, overrides, paths, profiles, and what a resumed run may change."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w

from fedhp.algorithms.base import ALGORITHMS
from fedhp.components import resolve
from fedhp.config import (
    Experiment,
    differences,
    load,
    parse,
    to_tables,
)
from fedhp.config.load import NONE_IS_A_VALUE
from fedhp.config.origins import Origins
from fedhp.config.schema import PARTITIONS, PROFILES
from fedhp.errors import ConfigError
from fedhp.graph import TOPOLOGIES
from fedhp.learn.names import MODELS
from fedhp.tables import merge_tables, parse_override, read_toml, set_key


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("seed=3", "seed", 3),
        ("data.skew=0.8", "data.skew", 0.8),
        ("data.skew = 0.8", "data.skew", 0.8),
        ("training.decay_by=time", "training.decay_by", "time"),
        ('model.name="mlp"', "model.name", "mlp"),
        ("model.hidden=[32, 16]", "model.hidden", [32, 16]),
        ("world.bandwidth.sharing=true", "world.bandwidth.sharing", True),
        ("world.devices={laptop = 3}", "world.devices", {"laptop": 3}),
        ("data.path=a=b", "data.path", "a=b"),
        ("data.path=", "data.path", ""),
        ("data.path=/a b/c", "data.path", "/a b/c"),
        ("model.name=own:Net", "model.name", "own:Net"),
        ("x=[1", "x", "[1"),
        ("x=1\ny = 2", "x", "1\ny = 2"),  # one override sets one key
        ("x=" + "[" * 5000, "x", "[" * 5000),
        ("x=" + "9" * 5000, "x", "9" * 5000),
    ],
)
def test_an_override_is_a_key_and_a_value_in_toml_or_a_bare_word(
    text: str, key: str, value: Any
) -> None:
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize("text", ["", "=", "=3", "a", "a.=1", ".a=1", "a..b=1", "a. .b=1", "."])
def test_a_malformed_override_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not of the form key=value") as caught:
        parse({}, [text])
    assert "command line" in str(caught.value)
    assert "data.skew=0.8" in caught.value.allowed


def test_an_override_cannot_open_a_value() -> None:
    with pytest.raises(ConfigError, match=r"workers\.x") as caught:
        parse({"workers": 3}, ["workers.x=1"])
    assert caught.value.source == "command line"
    with pytest.raises(ConfigError, match="workers"):
        parse({}, ["workers.x=1"])


def test_set_key_creates_the_sections_it_needs() -> None:
    tree: dict[str, Any] = {"data": {"name": "digits"}}
    set_key(tree, "data.skew", 0.5)
    set_key(tree, "world.bandwidth.low", 2)
    assert tree == {
        "data": {"name": "digits", "skew": 0.5},
        "world": {"bandwidth": {"low": 2}},
    }


def test_changes_are_laid_over_nested_tables() -> None:
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3, "f": {"g": 4}}
    merged = merge_tables(base, {"a": {"b": 5}, "e": {"h": 6}, "f": 7})
    assert merged == {"a": {"b": 5, "c": {"d": 2}}, "e": {"h": 6}, "f": 7}
    merged["a"]["c"]["d"] = 0
    assert base["a"] == {"b": 1, "c": {"d": 2}}, "the result shares no table"


def test_a_wrong_override_is_blamed_on_the_command_line_and_the_rest_on_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^command line: rounds: invalid value -1"):
        parse({"workers": 3}, ["rounds=-1"], origins=Origins("demo.toml"))
    with pytest.raises(ConfigError, match=r"^command line: data: invalid value 3"):
        parse({}, ["data=3"], origins=Origins("demo.toml"))
    with pytest.raises(ConfigError, match=r"^demo\.toml: workers: invalid value 0"):
        parse({"workers": 0}, ["rounds=1"], origins=Origins("demo.toml"))


@pytest.mark.parametrize(
    ("tables", "fix"),
    [
        ({"algorithm": "fedhp"}, "write algorithm.name = 'fedhp'"),
        ({"data": 3}, "a line [data]"),
        ({"workers": "3"}, "write it without quotes: workers = 3"),
        ({"world": {"shuffle_devices": "true"}}, "without quotes: world.shuffle_devices = true"),
        ({"data": {"partition": "dirichle"}}, "did you mean 'dirichlet'?"),
        ({"trainig": {}}, "did you mean 'training'?"),
        ({"evaluation": {"every": 0}}, "for example 1"),
    ],
)
def test_the_fix_fits_the_mistake(tables: dict[str, Any], fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tables)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("tables", "allowed"),
    [
        ({"workers": 0}, "a whole number from 1 to 100000"),
        ({"seed": -1}, "a whole number of at least 0, below 4294967296"),
        ({"training": {"decay": 0}}, "a number above 0, at most 1"),
        ({"executors": "all"}, "'auto' or a whole number from 1 to 256"),
        ({"compare": {"seeds": 3}}, "a list of whole numbers, each of at least 0"),
        ({"world": {"away": 3}}, "a list of tables, each with the keys worker, first, last"),
        ({"data": {"name": ""}}, "text that is not empty"),
        ({"topology": 3}, "a table with name and settings"),
    ],
)
def test_what_is_allowed_is_said_in_words(tables: dict[str, Any], allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tables)
    assert allowed in caught.value.allowed


def test_a_name_that_looks_like_the_branch_of_a_union_is_named_whole() -> None:
    for name in ("int", "list", "dict_of", "literal"):
        with pytest.raises(ConfigError) as caught:
            parse({"world": {name: 3}})
        assert caught.value.key == f"world.{name}"
    with pytest.raises(ConfigError) as caught:
        parse({"world": {"devices": {"int": 0}}})
    assert caught.value.key.startswith("world.devices")


def test_whole_numbers_are_accepted_as_numbers() -> None:
    whole = parse({"world": {"bandwidth": {"low": 1, "high": 2}}, "evaluation": {"targets": [1]}})
    same = parse(
        {"world": {"bandwidth": {"low": 1.0, "high": 2.0}}, "evaluation": {"targets": [1.0]}}
    )
    assert to_tables(whole) == to_tables(same)
    assert differences(to_tables(whole), to_tables(same)) == []
    assert isinstance(to_tables(whole)["world"]["bandwidth"]["low"], float)


def test_every_profile_is_valid_and_can_be_overridden() -> None:
    for name in PROFILES:
        world = parse({"world": {"profile": name}}).world
        assert world.bandwidth.low == PROFILES[name]["bandwidth"]["low"]
    changed = parse({"world": {"profile": "slow_links", "bandwidth": {"high": 3}}}).world
    assert (changed.bandwidth.high, changed.bandwidth.unit) == (3, "Mb/s")


def test_an_experiment_survives_a_round_trip_through_toml(tmp_path: Path) -> None:
    tables = {
        "workers": 5,
        "algorithm": {"name": "fedhp", "deadline": "fill"},
        "model": {"name": "mlp", "hidden": [8, 4]},
        "world": {
            "device": {"slow": {"step_time": 2}},
            "devices": {"slow": 5},
            "away": [{"worker": 1, "first": 2, "last": 3}],
        },
    }
    experiment = parse(tables)
    file = tmp_path / "again.toml"
    file.write_text(tomli_w.dumps(to_tables(experiment)))
    assert load(file) == experiment


def test_parsing_does_not_change_the_given_tables() -> None:
    tables: dict[str, Any] = {"data": {"path": "x.npz", "name": "npz"}, "world": {}}
    parse(tables, ["data.pool=2", "world.bandwidth.low=2"])
    assert tables == {"data": {"path": "x.npz", "name": "npz"}, "world": {}}


def test_paths_start_at_the_file_and_overrides_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    file = tmp_path / "e.toml"
    file.write_text('[data]\nname = "npz"\npath = "a.npz"\n')
    assert load(file).data.path == str(tmp_path / "a.npz")
    assert load(file, ["data.path=a.npz"]).data.path == str(tmp_path / "current" / "a.npz")


def test_differences_leave_out_what_does_not_change_the_numbers() -> None:
    old = to_tables(parse({"executors": 1, "data": {"skew": 0.5}}))
    new = to_tables(
        parse({"executors": 2, "checkpoint": {"seconds": 3}, "compare": {"seeds": [4]}, "seed": 1})
    )
    assert differences(old, new) == [("data.skew", 0.5, None), ("seed", 0, 1)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"workers = \n", "not valid TOML"),
        (b"workers = 3\nworkers = 4\n", "not valid TOML"),
        (b"[data\n", "not valid TOML"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_toml(file)
    assert str(file) in str(caught.value)
    assert caught.value.fix


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file does not exist"):
        load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / ("x" * 300))
    with pytest.raises(ConfigError, match="cannot be read"):
        load("a\0b")


def test_a_number_with_thousands_of_digits_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "huge.toml"
    file.write_text("workers = 0x" + "f" * 6000)
    with pytest.raises(
        ConfigError, match="workers: invalid value a number with thousands of digits"
    ):
        load(file)


def test_the_defaults_are_a_valid_experiment() -> None:
    assert parse({}) == Experiment.model_validate(to_tables(parse({})))
    assert math.isclose(parse({}).training.learning_rate, 0.1)


def test_a_component_without_a_name_is_the_default_one() -> None:
    algorithm = parse({"algorithm": {"deadline": "fill"}}).algorithm
    assert (algorithm.name, algorithm.settings) == ("fedhp", {"deadline": "fill"})


def test_another_component_on_the_command_line_drops_the_settings_of_the_files() -> None:
    tables = {"model": {"name": "mlp", "hidden": [32]}}
    assert parse(tables, ["model.name=cnn"]).model.settings == {}
    swapped = parse(tables, ["model.width=0.5", "model.name=cnn"]).model
    assert (swapped.name, swapped.settings) == ("cnn", {"width": 0.5})
    assert parse(tables, ["model.name=mlp"]).model.settings == {"hidden": [32]}


@pytest.mark.parametrize(
    ("tables", "override", "dropped"),
    [
        ({"data": {"skew": 0.8}}, "data.partition=dirichlet", ["data.skew = 0.8"]),
        (
            {"data": {"partition": "dirichlet", "alpha": 0.3}},
            "data.partition=skew",
            ["data.alpha = 0.3"],
        ),
        ({"data": {"partition": "dirichlet", "alpha": 0.3}}, "data.partition=quantity", []),
        ({"data": {"skew": 0.8}}, "data.partition=skew", []),
        (
            {"data": {"partition": "own:by_river", "partition_options": {"year": 3}}},
            "data.partition=iid",
            ["data.partition_options = {'year': 3}"],
        ),
        ({"data": {"name": "npz", "path": "a.npz"}}, "data.name=digits", ["data.path = "]),
        (
            {"data": {"name": "emnist", "split": "letters"}},
            "data.name=mnist",
            ["data.split = 'letters'"],
        ),
        ({"algorithm": {"deadline": "fill"}}, "algorithm.name=dpsgd", ["algorithm.deadline"]),
        ({"model": {"name": "mlp", "hidden": [8]}}, "model.name=cnn", ["model.hidden = [8]"]),
        (
            {"topology": {"name": "star", "center": 1}},
            "topology.name=ring",
            ["topology.center = 1"],
        ),
        (
            {"world": {"drift": 0.3, "bandwidth": {"low": 2.0, "sharing": True}}},
            "world.profile=uniform",
            ["world.drift = 0.3", "world.bandwidth.low = 2.0"],
        ),
        (
            {"training": {"decay_by": "time", "decay_seconds": 3.0}},
            "training.decay_by=round",
            ["training.decay_seconds = 3.0"],
        ),
        (
            {"training": {"schedule": "step", "milestones": [3], "factor": 0.5}},
            "training.schedule=cosine",
            ["training.milestones = [3]", "training.factor = 0.5"],
        ),
        ({"training": {"decay": 0.9}}, "training.schedule=constant", ["training.decay = 0.9"]),
        (
            {"exchange": {"compression": "topk", "topk_share": 0.05}},
            "exchange.compression=int8",
            ["exchange.topk_share = 0.05"],
        ),
        (
            {"exchange": {"robust": "median", "trim": 0.3}},
            "exchange.robust=clip",
            ["exchange.trim = 0.3"],
        ),
        ({"exchange": {"robust": "median", "trim": 0.3}}, "exchange.robust=krum", []),
        (
            {"exchange": {"robust": "clip", "radius": 0.3}},
            "exchange.robust=none",
            ["exchange.radius = 0.3"],
        ),
        (
            {"attack": {"kind": "noise", "share": 0.3, "scale": 2.0}},
            "attack.kind=label_flip",
            ["attack.scale = 2.0"],
        ),
        (
            {"attack": {"kind": "noise", "share": 0.3, "scale": 2.0}},
            "attack.kind=none",
            ["attack.share = 0.3", "attack.scale = 2.0"],
        ),
        (
            {"world": {"devices": {"phone": 30}, "device": {"phone": {"step_time": 1.0}}}},
            "world.device_trace=/d.json",
            ["world.devices = {'phone': 30}", "world.device = "],
        ),
        (to_tables(parse({"world": {"profile": "uniform"}})), "world.device_trace=/d.json", []),
        (to_tables(parse({})), "training.schedule=constant", []),
        (to_tables(parse({"data": {"skew": 0.8}})), "data.partition=iid", ["data.skew = 0.8"]),
        (to_tables(Experiment()), "world.profile=uniform", []),
    ],
)
def test_another_kind_on_the_command_line_drops_the_settings_of_the_files(
    tables: dict[str, Any], override: str, dropped: list[str]
) -> None:
    notes: list[str] = []
    experiment = parse(tables, [override], notes=notes)
    kind, _, value = override.partition("=")
    section, _, name = kind.partition(".")
    assert getattr(getattr(experiment, section), name) == value
    assert len(notes) == bool(dropped)
    for setting in dropped:
        assert setting in notes[0]
        assert override in notes[0]


@pytest.mark.parametrize(
    ("setting", "kinds"),
    [
        ({"skew": 0.5}, ["skew"]),
        ({"alpha": 0.3}, ["dirichlet", "quantity"]),
        ({"shards_per_worker": 3}, ["shards"]),
    ],
)
def test_a_setting_of_another_partition_is_refused(
    setting: dict[str, Any], kinds: list[str]
) -> None:
    (name,) = setting
    for kind in (*PARTITIONS, "own:by_river"):
        tables = {"data": {"partition": kind, **setting}}
        if kind in kinds:
            assert parse(tables).data.partition == kind
            continue
        with pytest.raises(ConfigError, match=f"data.partition is '{kind}'") as caught:
            parse(tables)
        assert caught.value.key == f"data.{name}"
        assert f"data.partition = {kinds[0]!r}" in caught.value.fix
        kept = to_tables(parse({"data": {"partition": kind}}))  # with the defaults
        assert parse(kept).data.partition == kind


RULES = ["none", "clip", "trimmed_mean", "median", "krum"]


@pytest.mark.parametrize(
    ("kind", "values", "setting", "kinds"),
    [
        ("exchange.compression", ["none", "fp16", "int8", "topk"], {"topk_share": 0.05}, ["topk"]),
        ("exchange.robust", RULES, {"trim": 0.3}, ["trimmed_mean", "median", "krum"]),
        ("exchange.robust", RULES, {"clip": 3.0}, ["clip"]),
        ("exchange.robust", RULES, {"radius": 0.5}, ["clip"]),
        (
            "attack.kind",
            ["none", "sign_flip", "noise", "label_flip"],
            {"share": 0.3},
            ["sign_flip", "noise", "label_flip"],
        ),
        (
            "attack.kind",
            ["none", "sign_flip", "noise", "label_flip"],
            {"scale": 2.0},
            ["sign_flip", "noise"],
        ),
    ],
)
def test_a_setting_of_another_way_to_exchange_or_attack_is_refused(
    kind: str, values: list[str], setting: dict[str, Any], kinds: list[str]
) -> None:
    section, _, name = kind.partition(".")
    ((key, value),) = setting.items()
    for chosen in values:
        tables = {section: {name: chosen, **setting}}
        if chosen in kinds:
            assert getattr(getattr(parse(tables), section), key) == value
            continue
        with pytest.raises(ConfigError, match=f"the value {value} has no effect") as caught:
            parse(tables)
        assert caught.value.key == f"{section}.{key}"
        assert f"{kind} is {chosen!r}" in caught.value.detail
        assert f"{kind} = {kinds[0]!r}" in caught.value.fix
        kept = parse({section: {name: chosen}})
        assert parse({section: getattr(kept, section).model_dump()}) == kept, "all at defaults"
        assert parse(tables, stored=True) == kept, "a record is still read"
        with pytest.raises(ConfigError, match=rf"^command line: {section}\.{key}: "):
            parse({section: {name: chosen}}, [f"{section}.{key}={value}"])


def test_a_fixed_radius_replaces_the_clipping_by_median_distances() -> None:
    file = {"exchange": {"robust": "clip", "clip": 3.0}}
    notes: list[str] = []
    exchange = parse(file, ["exchange.radius=0.5"], origins=Origins("e.toml"), notes=notes).exchange
    assert (exchange.clip, exchange.radius) == (2.0, 0.5)
    assert notes == ["exchange.radius=0.5 replaces exchange.clip = 3.0 in e.toml"]
    with pytest.raises(
        ConfigError, match=r"clip: the value 3 has no effect: exchange\.radius is 0"
    ):
        parse({"exchange": {"robust": "clip", "clip": 3.0, "radius": 0.5}})


@pytest.mark.parametrize(
    ("world", "key"),
    [
        ({"availability_speed": 2.0}, "availability_speed"),
        ({"availability_speed": 2.0, "device_trace": "d.json"}, "availability_speed"),
        ({"trace_clients": "first"}, "trace_clients"),
        ({"trace_clients": "first", "trace": "w.csv"}, "trace_clients"),
        ({"trace_repeat": True}, "trace_repeat"),
        ({"device_trace": "d.json", "devices": ["laptop"]}, "devices"),
        ({"device_trace": "d.json", "shuffle_devices": False}, "shuffle_devices"),
        ({"device_trace": "d.json", "device": {"a": {"step_time": 1.0}}}, "device"),
        ({"device_trace": "d.json", "drift": 0.1}, "drift"),
        ({"device_trace": "d.json", "floor": 0.1}, "floor"),
        ({"device_trace": "d.json", "bandwidth": {"low": 2.0}}, "bandwidth.low"),
        ({"device_trace": "d.json", "bandwidth": {"high": 20.0}}, "bandwidth.high"),
        ({"device_trace": "d.json", "bandwidth": {"interval": 5.0}}, "bandwidth.interval"),
        ({"device_trace": "d.json", "bandwidth": {"correlation": 0.5}}, "bandwidth.correlation"),
    ],
)
def test_a_setting_of_the_world_without_effect_is_refused(world: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match="has no effect") as caught:
        parse({"world": world})
    assert caught.value.key == f"world.{key}"
    assert caught.value.allowed
    assert caught.value.fix
    stored = parse({"world": world}, stored=True)
    without = {name: value for name, value in world.items() if name != key.split(".")[0]}
    assert stored == parse({"world": without}), "a record is still read"
    for profile in PROFILES:
        clients = {"profile": profile, "device_trace": "d.json", "trace_clients": "first"}
        experiment = parse({"world": clients})
        assert parse(to_tables(experiment)) == experiment, "what a profile sets is not refused"


def test_settings_of_recordings_go_with_their_files() -> None:
    file = {
        "world": {
            "device_trace": "/d.json",
            "availability_trace": "/a.json",
            "availability_speed": 3.0,
            "trace_clients": "first",
        }
    }
    off = ["world.availability_trace=none", "world.device_trace=none"]
    notes: list[str] = []
    world = parse(file, off[:1], origins=Origins("e.toml"), notes=notes).world
    assert (world.availability_speed, world.trace_clients) == (1.0, "first")
    assert notes == [
        "world.availability_trace=none drops settings without effect in e.toml: "
        "world.availability_speed = 3.0"
    ]
    world = parse(file, off).world
    assert (world.availability_speed, world.trace_clients) == (1.0, "random")
    repeated = {"world": {"trace": "/w.csv", "trace_repeat": True}}
    assert not parse(repeated, ["world.trace=none"]).world.trace_repeat
    everything = parse({"world": {**file["world"]}}).world.without_files()
    assert everything == Experiment().world, "what is left can be validated again"


def test_a_profile_on_the_command_line_is_the_whole_profile() -> None:
    file = {"world": {"drift": 0.3, "bandwidth": {"low": 2.0, "sharing": True}}}
    world = parse(file, ["world.profile=uniform"]).world
    assert (world.drift, world.bandwidth.low, world.bandwidth.sharing) == (0.0, 5.0, True)
    assert parse(file, ["world.profile=uniform", "world.drift=0.1"]).world.drift == 0.1


def test_a_dropped_setting_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "e.toml"
    file.write_text("[data]\nskew = 0.8\n")
    assert load(file, ["data.partition=dirichlet"]).data.skew is None
    (message,) = [record.getMessage() for record in caplog.records]
    assert "data.skew = 0.8" in message


def test_a_section_given_as_a_whole_says_what_it_replaces() -> None:
    notes: list[str] = []
    experiment = parse(
        {"data": {"skew": 0.8, "pool": 2}},
        ["data={pool = 4}"],
        origins=Origins("demo.toml"),
        notes=notes,
    )
    assert (experiment.data.skew, experiment.data.pool) == (None, 4)
    assert notes == ["data={...} drops the other settings in demo.toml: data.skew = 0.8"]


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^command line: seed: is given twice: 1 and 2"):
        parse({}, ["seed=1", "rounds=3", "seed=2"])
    with pytest.raises(ConfigError, match=r"data\.skew=1 and data=\{\}"):
        parse({}, ["data.skew=1", "data={}"])
    assert parse({}, ["data={pool = 2}", "data.skew=1"]).data.pool == 2


def test_none_unsets_a_key() -> None:
    file = {"data": {"skew": 0.8}, "workers": 5, "algorithm": {"name": "dpsgd", "steps": 3}}
    assert parse(file, ["data.skew=none"]).data.skew is None
    assert parse(file, ["workers=none"]).workers == 30
    assert parse(file, ["data=none"]).data == Experiment().data
    assert parse(file, ["algorithm.steps=none"]).algorithm.settings == {}
    assert parse(file, ["algorithm.name=none"]).algorithm == Experiment().algorithm
    assert parse(file, ["world.trace=none"]).world.trace is None, "it need not be set"
    with pytest.raises(ConfigError, match=r"^command line: data\.skwe: unknown key"):
        parse(file, ["data.skwe=none"])


def test_none_stays_a_value_where_it_is_one() -> None:
    file = {"exchange": {"robust": "median"}, "algorithm": {"bound": "update", "mine": 1}}
    experiment = parse(
        file, ["exchange.robust=none", "algorithm.bound=none", 'algorithm.mine="none"']
    )
    assert experiment.exchange.robust == "none"
    assert experiment.algorithm.settings == {"bound": "none", "mine": "none"}


def test_every_built_in_setting_with_the_value_none_is_known() -> None:
    tables = {"algorithm": ALGORITHMS, "model": MODELS, "topology": TOPOLOGIES}
    keys = {
        f"{section}.{name}"
        for section, parts in tables.items()
        for path in parts.values()
        for name, parameter in inspect.signature(
            resolve(path, {}, key=section), eval_str=True
        ).parameters.items()
        if "none" in get_args(parameter.annotation)
    }
    assert keys == set(NONE_IS_A_VALUE)


def test_a_combination_that_the_command_line_breaks_is_blamed_on_it() -> None:
    file = {"world": {"bandwidth": {"low": 3.0, "high": 9.0}}}
    with pytest.raises(ConfigError, match=r"^command line: world\.bandwidth\.low"):
        parse(file, ["world.bandwidth.high=2"], origins=Origins("demo.toml"))
    with pytest.raises(ConfigError, match=r"^demo\.toml: workers"):
        parse({"workers": 0, **file}, ["world.bandwidth.high=20"], origins=Origins("demo.toml"))


def test_a_target_in_percent_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text("[evaluation]\ntargets = [0.8, 90]\n")
    with pytest.raises(ConfigError, match="invalid value 90") as caught:
        load(file)
    assert caught.value.source == str(file)
    assert "did you mean 0.9?" in caught.value.fix
    with pytest.raises(ConfigError, match=r"^command line: evaluation\.targets: invalid value -1"):
        load(file, ["evaluation.targets=[-1]"])
    assert load(file, ["evaluation.targets=[1]"]).evaluation.targets == [1.0]
    assert load(file, ["task.name=own:Rivers"]).evaluation.targets == [0.8, 90]
    assert parse({"evaluation": {"targets": [90.0]}}), "a record of before still opens"


def test_a_byte_order_mark_is_accepted_and_utf_16_is_named(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_bytes(b"\xef\xbb\xbfworkers = 7\n")
    assert load(file).workers == 7
    file.write_text("workers = 7\n", encoding="utf-16")
    with pytest.raises(ConfigError, match="UTF-16"):
        load(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = 1\nb = 2\na = 3\n", "a is set twice, in line 1 and in line 3"),
        ("a = 1\n\na = 3", "a is set twice, in line 1 and in line 3"),
        ("[d]\nx = 1\n[e]\n[d]\n", r"\[d\] is set twice, in line 1 and in line 4"),
        ("x = 0\n[d]\nx = 1 # c\n\nx = 2\n\n", r"\[d\] x is set twice, in line 3 and in line 5"),
        ("d.x = 1\n[d]\nx = 2\n", "line 2"),
    ],
)
def test_a_key_that_is_set_twice_is_named_with_both_lines(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "e.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load(file)


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("model.name=mlp", "model.name"),
        ("model.name=cnn", "model.name"),
        ("model.hidden=[8]", "model.name"),
        ("data.name=digits", "data.name"),
        ("data.standardize=true", "data.standardize"),
        ("data.train_images=5", "data.train_images"),
    ],
)
def test_settings_that_an_own_task_replaces_are_refused(setting: str, key: str) -> None:
    """Also at their defaults: somebody who wrote them expects something of them."""
    own = {"task": {"name": "parts:Reviews"}}
    with pytest.raises(ConfigError) as caught:
        parse(own, [setting])
    assert caught.value.key == key
    assert "has no effect: the task 'parts:Reviews'" in caught.value.problem
    kept = parse(own, ["data.partition=iid"])
    assert parse(to_tables(kept)) == kept  # what is written to a file can be read again
    stored = to_tables(kept) | {"model": {"name": "mlp"}}
    assert parse(stored, stored=True) == kept
