"""Where a wrong value was given is known from the experiment, not from the text of an error."""

from __future__ import annotations

import pickle

import pytest

from fedhp.config import Experiment, parse, to_tables
from fedhp.config.origins import Origins
from fedhp.errors import ConfigError, DataError, about

LISTED = Origins("e.toml").with_label("pens:peers=2", ["algorithm.peers"], listed=True)
FROM_FILE = Origins("e.toml").with_label("pens:peers=2", ["algorithm.peers"], listed=False)
OVERRIDDEN = Origins("e.toml").with_overrides(["data={name = 'npz'}", "workers=2"])


@pytest.mark.parametrize(
    ("origins", "key", "others", "expected"),
    [
        (Origins(), "rounds", (), ""),
        (Origins("e.toml"), "rounds", ("workers",), "e.toml"),
        (OVERRIDDEN, "rounds", (), "e.toml"),
        (OVERRIDDEN, "workers", (), "command line"),
        (OVERRIDDEN, "data.name", (), "command line"),
        (OVERRIDDEN, "dat", (), "e.toml"),
        (OVERRIDDEN, "topology.degree", ("workers",), "e.toml with workers=2 on the command line"),
        (Origins("command line").with_overrides(["workers=2"]), "x", ("workers",), "command line"),
        (LISTED, "algorithm.peers", (), "command line, pens:peers=2"),
        (LISTED, "algorithm.keep", (), "e.toml, pens:peers=2"),
        (FROM_FILE, "algorithm.peers", (), "e.toml, pens:peers=2"),
        (
            LISTED.with_overrides(["workers=2"]),
            "topology.degree",
            ("workers",),
            "e.toml, pens:peers=2 with workers=2 on the command line",
        ),
    ],
)
def test_where_a_setting_was_given(
    origins: Origins, key: str, others: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(ConfigError) as caught, origins.named():
        raise ConfigError("is wrong", key=key, others=others)
    assert caught.value.source == expected
    assert caught.value.problem == ": ".join(filter(None, [expected, key, "is wrong"]))


def test_what_an_error_says_itself_stays() -> None:
    with pytest.raises(ConfigError, match=r"^--seeds: is wrong"), OVERRIDDEN.named():
        raise ConfigError("is wrong", key="", source="--seeds")


def test_data_is_that_of_all_runs_of_a_campaign() -> None:
    changed = LISTED.with_overrides(["data.path=b.npz"])
    for keys, expected in ((("data.path",), "command line"), ((), "e.toml")):
        refused = pytest.raises(DataError, match=rf"^{expected}: no such file")
        with refused, changed.named(), about(*keys):
            raise DataError("no such file")


def test_origins_travel_with_an_experiment_but_are_no_part_of_it() -> None:
    experiment = parse({"rounds": 3}, ["workers=4"], origins=Origins("e.toml"))
    assert experiment.origins.of("workers") == "command line"
    copies = [
        experiment.model_copy(update={"seed": 3}),
        pickle.loads(pickle.dumps(experiment)),
    ]
    for copy in copies:
        assert copy.origins.of("workers") == "command line"
        assert copy.origins.of("rounds") == "e.toml"
    again = parse(to_tables(experiment))
    assert again == experiment
    assert again.origins.of("workers") == ""
    assert "origins" not in Experiment.model_fields
