"""Wrong files, overrides, options and folders: exit code 2, one message, no folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from cli.support import Command, write


def out_of(folder: Path) -> Path:
    return folder / "out"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("=3", "not of the form key=value"),
        ("rounds", "not of the form key=value"),
        ("data.=1", "data.: 'data.=1' is not of the form key=value"),
        ("data..skew=1", "data..skew: 'data..skew=1' is not of the form key=value"),
        ("data=3", "command line: data: invalid value 3"),
        ("workers.x=1", "command line: workers.x: 'workers' is a value, not a section"),
        ("rounds=many", "command line: rounds: invalid value 'many'"),
        ("rounds=", "command line: rounds: invalid value ''"),
        ("training.learning_rate=nan", "training.learning_rate: invalid value nan"),
        ("algorithm.name=fedph", "algorithm.name: unknown algorithm 'fedph'"),
        ("algorithm.stepz=3", "algorithm.stepz: unknown key"),
        ("skew=0.8", "command line: skew: unknown key"),
        ("data={name = 'npz', path = 'no.npz'}", "command line: data.path = "),
        ("world.trace=nowhere.csv", "command line: world.trace = "),
        ("device=cuda:7", "device: 'cuda:7' is set"),
    ],
)
def test_overrides(command: Command, tmp_path: Path, override: str, words: str) -> None:
    result = command("run", write(tmp_path), override, "--out", out_of(tmp_path))
    assert result.code == 2
    assert words in result.err
    assert "fix:" in result.err
    assert result.out == ""
    assert not out_of(tmp_path).exists()


def test_overrides_that_are_right(command: Command, tmp_path: Path) -> None:
    result = command(
        *("run", write(tmp_path), "rounds=1", "training.decay_by=time"),
        *(
            "data={name = 'digits'}",
            'data.partition="iid"',
            "world.bandwidth.sharing=true",
            "model.hidden=[4, 4]",
        ),
        *("evaluation.targets=[0.05]", "algorithm={name = 'fedhp', deadline = 'fill'}"),
        *("--out", out_of(tmp_path), "--json"),
    )
    assert result.code == 0, result.err
    assert result.json()["runs"][0]["rounds"] == 1
    assert list(result.json()["runs"][0]["time_to_target"]) == ["0.05"]


@pytest.mark.parametrize("what", ["run", "compare"])
def test_files_that_cannot_be_read(command: Command, tmp_path: Path, what: str) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes('# grüße\nname = "é"'.encode("latin-1"))
    broken = tmp_path / "broken.toml"
    broken.write_text("workers = 3\nrounds = = 4\n")
    cases = {
        tmp_path / "absent.toml": "does not exist",
        tmp_path: "cannot be read: Is a directory",
        latin: "fix: save it as UTF-8",
        broken: "not valid TOML: Invalid value (at line 2, column 10)",
        tmp_path / ("x" * 300 + ".toml"): "cannot be read: File name too long",
        broken / "inside.toml": "cannot be read: Not a directory",
    }
    for file, words in cases.items():
        result = command(what, file, "--out", out_of(tmp_path))
        assert result.code == 2
        assert f"error: {file}: " in result.err
        assert words in result.err
        assert "fix:" in result.err
        assert not out_of(tmp_path).exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--algorithms", ""], "compare.algorithms: the list is empty"),
        (["--algorithms", " , "], "compare.algorithms: the list is empty"),
        (["--algorithms", "fedhp,dpsgd,fedhp"], "compare.algorithms: 'fedhp' is given twice"),
        (["--algorithms", "fedph"], "fedph: algorithm.name: unknown algorithm 'fedph'"),
        (["--algorithms", ":deadline=fill"], "':deadline=fill' names no algorithm"),
        (["--algorithms", "fedhp:name=pens"], "names two algorithms"),
        (["--algorithms", "fedhp:deadline=never"], "algorithm.deadline: invalid value 'never'"),
        (["--algorithms", "fedhp:deadlin=fill"], "algorithm.deadlin: unknown key"),
        (["--algorithms", "fedhp:fill"], "'fill' is not of the form key=value"),
        (["--algorithms", "fedhp:=fill"], "'=fill' is not of the form key=value"),
        (["--algorithms", "dpsgd:steps=0"], "dpsgd:steps=0: algorithm.steps: invalid value 0"),
        (["--algorithms", "dpsgd:data.skew=7"], "dpsgd:data.skew=7: data.skew: invalid value 7"),
        (["--algorithms", "dpsgd:workers.x=7"], "workers.x: 'workers' is a value"),
        (
            ["--algorithms", "dpsgd:exchange.compression=int8:exchange.topk_share=0.2"],
            "exchange.topk_share: the value 0.2 has no effect: exchange.compression is 'int8'",
        ),
        (["attack.scale=2"], "command line: attack.scale: the value 2.0 has no effect"),
        (
            ["--algorithms", "pens", "exchange.robust=krum", "workers=10"],
            "exchange.robust: is 'krum', which needs the models of 6 peers",
        ),
        (["--algorithms", "no_such_module:Alg"], "cannot import 'no_such_module:Alg'"),
        (["--algorithms", ".."], "algorithm.name"),
        (["--seeds", ""], "'' is not a list of seeds"),
        (["--seeds", "0,x"], "'0,x' is not a list of seeds"),
        (["--seeds", "0,,1"], "'0,,1' is not a list of seeds"),
        (["--seeds", "-1"], "'-1' is not a list of seeds"),
        (["--seeds", "4294967296"], "is not a list of seeds"),
        (["--seeds", "1,2,1"], "compare.seeds: 1 is given twice"),
        (["compare.seeds=[]"], "compare.seeds: the list is empty"),
        (["compare.algorithms=[]"], "compare.algorithms: the list is empty"),
        (["compare.algorithms=fedhp"], "compare.algorithms: invalid value 'fedhp'"),
        (["--jobs", "0"], "--jobs"),
        (["--jobs", "two"], "--jobs"),
        (["--nonsense"], "No such option"),
    ],
)
def test_options_of_compare(
    command: Command, tmp_path: Path, options: list[str], words: str
) -> None:
    result = command("compare", write(tmp_path), *options, "--out", out_of(tmp_path))
    assert result.code == 2
    assert words in result.err
    assert result.out == ""
    assert not out_of(tmp_path).exists()


@pytest.mark.parametrize("what", ["run", "compare"])
def test_folders_that_cannot_be_written(command: Command, tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    folders = ["/proc/fedhp", "/dev/null/x", tmp_path / "file" / "x", tmp_path / ("y" * 300)]
    folders += [tmp_path / "loop" / "x"] + ([tmp_path / "file"] if what == "run" else [])
    file = write(tmp_path, compare={"algorithms": ["dpsgd"]})
    before = sorted(tmp_path.iterdir())
    for folder in folders:
        result = command(what, file, "--out", folder)
        assert result.code == 2, result.err
        assert f"--out {folder}" in result.err
        assert "fix: choose another --out" in result.err
        assert sorted(tmp_path.iterdir()) == before


def test_a_folder_without_permission(command: Command, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("permissions do not bind root")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    result = command("run", write(tmp_path), "--out", closed / "run")
    assert result.code == 2
    assert "Permission denied" in result.err


def test_a_folder_that_holds_something_else(command: Command, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("precious")
    for options in ([], ["--resume"]):
        result = command("run", write(tmp_path), "--out", taken, *options)
        assert result.code == 2
        assert "exists and is not a run folder" in result.err
    assert [path.name for path in taken.iterdir()] == ["thesis.tex"]
    result = command("compare", write(tmp_path), "--out", tmp_path, "--algorithms", "taken:steps=3")
    assert result.code == 2


def test_an_empty_folder_may_be_used(command: Command, tmp_path: Path) -> None:
    out_of(tmp_path).mkdir()
    assert command("run", write(tmp_path), "--out", out_of(tmp_path)).code == 0
    assert (out_of(tmp_path) / "experiment.toml").is_file()


def test_data_that_does_not_fit(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", x=np.ones((30, 4)), y=np.arange(30) % 3)
    file = write(tmp_path, data={"name": "npz", "path": "flat.npz"}, model={"name": "cnn"})
    result = command("run", file, "--out", out_of(tmp_path))
    assert result.code == 2
    assert f"{file}: model.name: cnn is for images" in result.err
    result = command("run", file, "model.name=mlp", "workers=40", "--out", out_of(tmp_path))
    assert "workers: 40 workers cannot share 24 training samples" in result.err
    assert not out_of(tmp_path).exists()


def test_an_override_of_a_component_is_blamed_on_the_command_line(
    command: Command, tmp_path: Path
) -> None:
    file = write(tmp_path)
    told = command("run", file, "algorithm.stepz=3", "--out", tmp_path / "run")
    assert told.code == 2
    assert told.err.startswith("error: command line: algorithm.stepz: unknown key")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "rounds=1", "rounds=2"], "command line: rounds: is given twice: 1 and 2"),
        (["run", "data.skew=0.1", "data={skew = 0.2}"], "data.skew=0.1 and data={skew = 0.2}"),
        (["compare", "rounds=1", "rounds=1"], "command line: rounds: is given twice: 1 and 1"),
        (["cluster", "up", "workers=4", "--workers", "3"], "is given twice: 4 and 3"),
        (["compare", "--algorithms", "pens:m=1:m=2"], "gives m twice: m=1 and m=2"),
        (["compare", "seed=3"], "command line: seed: would have no effect"),
        (["reproduce", "--set", "data.skew=0.3"], "command line: data.skew: cannot be changed"),
        (["reproduce", "--sets", ""], "command line: --sets: '' is not a data set"),
        (["reproduce", "--set", "seed=3"], "command line: seed: would have no effect"),
    ],
)
def test_what_is_given_twice_or_would_be_ignored_is_refused(
    command: Command, tmp_path: Path, arguments: list[str], words: str
) -> None:
    settings = [word for word in arguments if word not in ("run", "compare", "cluster", "up")]
    names = arguments[: len(arguments) - len(settings)]
    file = [] if "reproduce" in arguments else [write(tmp_path)]
    result = command(*names, *file, *settings, "--out", out_of(tmp_path))
    assert result.code == 2
    assert words in result.err
    assert not out_of(tmp_path).exists()


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (["run", "FILE"], "FILE: data.path = "),
        (["run", "FILE", "data.path=b.npz"], "command line: data.path = "),
        (["compare", "FILE", "data.path=b.npz"], "command line: data.path = "),
        (["sweep", "FILE", "data.path=b.npz,c.npz"], "command line: data.path = "),
        (["data", "split", "FILE", "data.path=b.npz"], "command line: data.path = "),
        (["run", "FILE", "data.name=mnist"], "FILE: data.path = "),
        (["run", "GOOD", "workers=2"], "GOOD with workers=2 on the command line: topology.degree"),
        (
            ["compare", "GOOD", "--algorithms", "dpsgd,pens:peers=x"],
            "command line, pens:peers=x: algorithm.peers: invalid value 'x'",
        ),
        (["compare", "GOOD"], "GOOD, pens:peers=y: algorithm.peers: invalid value 'y'"),
        (
            ["compare", "GOOD", "--algorithms", "dpsgd", "--seeds", "0,0"],
            "command line: compare.seeds",
        ),
        (["compare", "GOOD", "--algorithms", "pens,pens"], "command line: compare.algorithms"),
        (["sweep", "GOOD", "rounds=1,2", "--seeds", "0,0"], "command line: compare.seeds"),
        (["sweep", "GOOD", "evaluation.targets=[90],[1]"], "command line: evaluation.targets"),
    ],
)
def test_the_source_of_a_wrong_value_is_named(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    source: str,
) -> None:
    (tmp_path / "bad").mkdir()
    files = {
        "FILE": write(tmp_path / "bad", data={"name": "npz", "path": "a.npz"}),
        "GOOD": write(
            tmp_path,
            topology={"name": "random_regular", "degree": 4},
            compare={"algorithms": ["dpsgd", "pens:peers=y"]},
        ),
    }
    monkeypatch.chdir(tmp_path)
    result = command(*(files.get(word, word) for word in arguments))
    assert result.code == 2
    for name, file in files.items():
        source = source.replace(name, str(file))
    assert result.err.startswith(f"error: {source}")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["pens=x"], "does not name an algorithm"),
        (["dpsgd="], "does not name an algorithm"),
        (["dpsgd"], "does not name an algorithm"),
        (["dpsgd=FedHP"], "the same name, also fedhp"),
        (["dpsgd=x", "fedhp=x"], "the same name"),
        (["dpsgd=x", "dpsgd=y"], "is the second name of dpsgd: 'x'"),
        (["dpsgd=x\ny"], "is not one line"),
    ],
)
def test_a_label_needs_an_algorithm_and_a_name_of_its_own(
    command: Command, tmp_path: Path, labels: list[str], words: str
) -> None:
    options = [word for label in labels for word in ("--label", label)]
    said = command("compare", write(tmp_path), "--algorithms", "fedhp,dpsgd", *options)
    assert said.code == 2
    assert "command line: --label" in said.err
    assert words in said.err
    assert "fedhp, dpsgd" in said.err
