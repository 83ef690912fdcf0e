"""Arguments and options that several commands share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedhp.errors import ConfigError
from fedhp.tables import COMMAND_LINE
from fedhp.texts import printable

if TYPE_CHECKING:
    from rich.console import Console

    from fedhp.config import Experiment

WIDE = 160  # columns of a table in a file or pipe
MOST_SEEDS = 10_000
_reserved: list[Path] = []  # folders that choose_folder made for this command


def shared_option(metavar: str, text: str, *names: str, **settings: Any) -> Any:
    """An option of several commands, for Annotated; `metavar` stands for its value in the help."""
    return typer.Option(*names, help=text, metavar=metavar or None, **settings)


def shared_argument(metavar: str, text: str) -> Any:
    return typer.Argument(help=text, metavar=metavar)


def option(metavar: str, text: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """An option of one command; a default of ... means that it must be given."""
    return typer.Option(default, *names, help=text, metavar=metavar or None, **settings)


def flag(text: str, name: str) -> Any:
    return typer.Option(False, name, help=text)


def argument(metavar: str, text: str, *, default: Any = None) -> Any:
    return typer.Argument(default, help=text, metavar=metavar)


ExperimentFile = Annotated[Path, shared_argument("EXPERIMENT.toml", "The experiment file.")]
Overrides = Annotated[
    list[str] | None, shared_argument("key=value", "Settings that override those in the file.")
]
Out = Annotated[
    Path | None, shared_option("DIR", "Folder to write to. Default: runs/NAME-1, runs/NAME-2, ...")
]
Resume = Annotated[
    bool,
    shared_option(
        "",
        "Continue the runs in the folder. The results are bit-identical to those without an "
        "interruption.",
        "--resume",
    ),
]
Seeds = Annotated[
    str | None,
    shared_option(
        "LIST",
        "Seeds and ranges, separated by commas, such as 0-9 or 0-4,7. "
        "Default: compare.seeds in the file.",
    ),
]
Ray = Annotated[
    str | None,
    shared_option(
        "ADDRESS",
        "Spread the runs over Ray: HOST:PORT of a cluster, auto for the cluster on this "
        "machine, or local to start one.",
    ),
]
Jobs = Annotated[
    int | None, shared_option("N", "Runs at the same time. Default: one per core.", min=1)
]
TrustedModules = Annotated[
    list[str] | None,
    shared_option(
        "MODULE", "Let the run folder use parts of this module of yours; may be repeated."
    ),
]
Json = Annotated[bool, shared_option("", "Print one JSON object on standard output.", "--json")]


def redirect_user_prints(as_json: bool) -> AbstractContextManager[object]:
    """Send what the user's own code prints to standard error, so that stdout is only JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def wrong_option(name: str, problem: str, *, allowed: str, fix: str) -> ConfigError:
    return ConfigError(problem, key=name, source=COMMAND_LINE, allowed=allowed, fix=fix)


def choose_folder(out: Path | None, experiment: Path, *, resume: bool) -> Path:
    """The --out folder, else a new one below runs/, or with resume the last one that has files.

    A new folder is made here: of two commands at the same time, each gets its own. The command's
    end removes it again if nothing was written to it.
    """
    if out is not None:
        return out
    runs = Path("runs")
    number = 1
    while (runs / f"{experiment.stem}-{number}").exists():
        number += 1
    if resume:
        for earlier in range(number - 1, 0, -1):
            folder = runs / f"{experiment.stem}-{earlier}"
            if not folder.is_dir() or any(folder.iterdir()):
                return folder
    while True:
        folder = runs / f"{experiment.stem}-{number}"
        try:
            if not runs.exists():
                runs.mkdir(exist_ok=True)
                _reserved.append(runs)
            folder.mkdir()
        except FileExistsError:
            if not folder.exists():  # runs itself is a file; the check of the folder says so
                return folder
            number += 1
            continue
        except FileNotFoundError:
            continue  # another command has just removed the empty folder runs
        except OSError:
            return folder  # the check of the folder says why
        _reserved.append(folder)
        return folder


def remove_unused_folders() -> None:
    for folder in sorted(_reserved, key=lambda folder: len(folder.parts), reverse=True):
        with suppress(OSError):  # it has files, or is gone
            folder.rmdir()
    _reserved.clear()


def trust_modules(names: Sequence[str] | None, *, error: bool = True) -> None:
    """Import the modules of --trust, say which files they are, and let run folders name them."""
    if not names:
        return
    from fedhp import trust
    from fedhp.components import make_importable

    trust.check_option(names)
    make_importable(str(Path.cwd()))
    for module in trust.load_trust(names).modules:
        say(f"trusts {module.name} ({module.file}, SHA-256 {module.sha256})", error=error)
    trust.grant(names)


def load_settings(experiment: Path, overrides: Sequence[str]) -> Experiment:
    """The experiment. A wrong key is found before torch is imported, which takes seconds."""
    from fedhp.algorithms.rates import check_rate_of_command_line
    from fedhp.config import load

    settings = load(experiment, overrides)
    check_builtin_parts(settings)
    check_rate_of_command_line(settings, overrides)
    return settings


def check_compared(experiment: Path, overrides: Sequence[str], algorithms: str | None) -> None:
    """Find a wrong key of a comparison before torch is imported."""
    from fedhp.config import load, parse
    from fedhp.engine.runs.variants import parse_variant, split_algorithms, tables_of

    base = load(experiment, overrides, notes=[])  # the comparison itself reports what is dropped
    labels = base.compare.algorithms if algorithms is None else split_algorithms(algorithms)
    for label in labels:
        variant = parse_variant(label)
        listed = algorithms is not None
        origins = base.origins.with_label(variant.label, variant.keys, listed=listed)
        check_builtin_parts(parse(tables_of(variant, base), origins=origins))


def check_builtin_parts(settings: Experiment) -> None:
    """Check the names of the parts and the keys of the built-in ones, without importing torch."""
    from fedhp.algorithms import load_algorithm
    from fedhp.components import check_keys, check_name, check_settings, is_dotted, resolve
    from fedhp.data.load import BUILTINS
    from fedhp.graph import TOPOLOGIES
    from fedhp.learn.names import MODEL_SETTINGS, MODELS, TASKS

    algorithm, topology, model = settings.algorithm, settings.topology, settings.model
    with settings.origins.named():
        if not is_dotted(algorithm.name):
            load_algorithm(algorithm.name, algorithm.settings)
        if not is_dotted(topology.name):
            graph = resolve(topology.name, TOPOLOGIES, key="topology.name")
            check_settings(graph, topology.settings, prefix="topology")
        check_name(settings.data.name, BUILTINS, key="data.name")
        check_name(settings.task.name, TASKS, key="task.name")
        check_name(model.name, MODELS, key="model.name")
        if not is_dotted(model.name):
            check_keys(MODEL_SETTINGS[model.name], model.settings, prefix="model")
        if not is_dotted(settings.task.name):
            check_keys((), settings.task.settings, prefix="task")


def next_commands(folder: Path, rounds: int) -> list[str]:
    """What to type next to look at a run, ready for a shell."""
    path = shlex.quote(str(folder))
    explain = [f"fedhp explain {path} --round {min(2, rounds)}"] if rounds else []
    return [f"fedhp show {path}", *explain, f"fedhp dash {path} --open"]


def say(text: str, *, error: bool = False) -> None:
    """Print for people; a terminal gets lines that are broken between words."""
    stream = sys.stderr if error else sys.stdout
    text = "\n".join(map(printable, text.split("\n")))  # names of files may have escapes
    if stream.isatty():
        from fedhp.terminal import fit_text, stream_width

        text = fit_text(text, stream_width(stream))
    try:
        print(text, file=stream, flush=True)
    except OSError as problem:
        from fedhp.files import DISK_FULL

        if problem.errno not in DISK_FULL:  # a file of lines must not end a run
            raise


def suggest(intro: str, commands: Sequence[str]) -> None:
    from fedhp.terminal import fit_commands, stream_width

    print(fit_commands(intro, commands, stream_width(sys.stdout)), flush=True)


def table_console() -> Console:
    """The console for tables: as wide as the terminal, or wide enough in a file or pipe."""
    from rich.console import Console

    from fedhp.terminal import size_of_dumb_terminal

    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    size_of_dumb_terminal(console)
    return console


def parse_seeds(text: str, *, option: str = "--seeds") -> list[int]:
    """The seeds of a list such as 0,1,2 or 0-4,7; a range includes both ends."""
    seeds: list[int] = []
    for part in text.split(","):
        low, separator, high = (word.strip() for word in part.partition("-"))
        ends = [low, high] if separator else [low]
        if not all(word.isascii() and word.isdigit() and len(word) < 20 for word in ends):
            raise _wrong_seeds(text, "", option)
        first, last = int(ends[0]), int(ends[-1])
        if last >= 2**32:
            raise _wrong_seeds(text, f": {last} is too large", option)
        if first > last:
            raise _wrong_seeds(text, f": the range {part.strip()} ends before it starts", option)
        if last - first >= MOST_SEEDS - len(seeds):
            raise _wrong_seeds(text, f": it has more than {MOST_SEEDS} entries", option)
        seeds += range(first, last + 1)
    return seeds


def _wrong_seeds(text: str, reason: str, option: str) -> ConfigError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return wrong_option(
        option,
        f"{shown!r} is not a list of seeds{reason}",
        allowed="whole numbers from 0 to 4294967295 and ranges of them, separated by commas, "
        f"at most {MOST_SEEDS}",
        fix=f"write {option} 0,1,2 or {option} 0-9",
    )
