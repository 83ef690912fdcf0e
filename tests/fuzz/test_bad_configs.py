"""2,200 generated bad configurations: one clear message each, never another exception."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from fedhp.cli import call
from fedhp.config import parse
from fedhp.config.origins import Origins
from fedhp.engine.prepare import prepare
from fedhp.engine.trial import try_algorithm
from fedhp.errors import ConfigError, FedhpError
from fuzz.cases import Case, make_cases
from fuzz.material import write_material

COUNT = 2200
BY_COMMAND = 100
SEED = 20_240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(autouse=True)
def _limited_memory() -> Iterator[None]:
    """If a memory check fails, the test fails instead of the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 6 * 10**9, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(autouse=True)
def _no_data_around(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Components are found in the folder; official data sets are not."""
    monkeypatch.delenv("FEDHP_DATA", raising=False)
    monkeypatch.setenv("FEDHP_CACHE", str(folder / "no_cache"))
    monkeypatch.syspath_prepend(str(folder))


def raised_error(case: Case, source: str) -> FedhpError | None:
    """The error of checking a case."""
    try:
        try_algorithm(prepare(parse(case.tables, origins=Origins.of_file(source))))
    except FedhpError as error:
        return error
    return None


def problem_with_message(case: Case, error: FedhpError | None, source: str) -> str:
    """What is wrong with an error message; empty if it is right."""
    if error is None:
        return "was accepted"
    text = str(error)
    if error.exit_code != 2:
        return f"exit code {error.exit_code}"
    if not error.fix:
        return f"no fix: {text}"
    if isinstance(error, ConfigError):
        if not any(error.key == key or error.key.startswith(f"{key}.") for key in case.keys):
            return f"names {error.key}: {text}"
    elif not any(key in text for key in case.keys):
        return f"names no key: {text}"
    if source not in text:
        return f"does not name the file: {text}"
    if "Traceback" in text or len(text) > 1500 or len(text.splitlines()) > 4:
        return f"is not short: {text}"
    return ""


def test_every_bad_configuration_gets_one_clear_message(folder: Path) -> None:
    source = str(folder / "bad.toml")
    cases = make_cases(folder, COUNT, SEED)
    assert len(cases) == COUNT
    wrong = []
    for case in cases:
        try:
            problem = problem_with_message(case, raised_error(case, source), source)
        except Exception as error:  # this must not happen
            problem = f"{type(error).__name__}: {error}"
        if problem:
            wrong.append(f"{case.title}: {problem}")
    assert not wrong, f"{len(wrong)} of {COUNT}:\n" + "\n".join(wrong[:40])


def test_the_command_reports_it_too_and_leaves_nothing_behind(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = make_cases(folder, COUNT, SEED + 1)[:BY_COMMAND]
    for number, case in enumerate(cases):
        file, out = folder / f"case-{number}.toml", tmp_path / f"out-{number}"
        file.write_text(tomli_w.dumps(case.tables), encoding="utf-8")
        command = "compare" if number % 10 == 0 and "compare" not in case.tables else "run"
        code = call([command, str(file), "--out", str(out)])
        output = capsys.readouterr()
        assert code == 2, (case.title, output.err)
        assert "Traceback" not in output.err + output.out
        assert any(key in output.err for key in case.keys), (case.title, output.err)
        assert "fix:" in output.err
        assert output.out == ""
        assert not out.exists()
        assert list(tmp_path.iterdir()) == []
