"""fedhp data: download data sets, check files, show how samples are split among workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhp.cli.help import CommandApp
from fedhp.cli.parameters import Json, argument, option, redirect_user_prints, say, table_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fedhp.config import Experiment
    from fedhp.data.check import DataFinding
    from fedhp.types import IntArray

app = CommandApp(help="Download, check and split data sets.")

_MOST_COLUMNS = 20  # classes with a column each; of more, a worker's largest are listed
_MOST_ROWS = 60  # workers with a row each
_LEAST_FOR_BARS = 80  # columns
_MOST_LISTED = 6  # classes that are listed


@app.command()
def fetch(
    name: str = argument("NAME", "mnist, emnist, cifar10 or tiny_imagenet.", default=...),
    to: Path | None = option("DIR", "Target folder. Default: the cache folder."),
    mirror: str | None = option("URL", "A mirror that has the same files.", "--from"),
) -> None:
    """Download the official files of a data set, verify and unpack them."""
    from fedhp.data.fetch import fetch as fetch_data

    with _download_display(name) as show:
        result = fetch_data(name, to=to, mirror=mirror, progress=show)
    for file in result.present:
        say(f"{file}: already present, checksum correct")
    for file in result.downloaded:
        say(f"{file}: downloaded, checksum correct")
    say(f"{name} is in {result.path}")
    say(f'use it with: data.name = "{name}"')
    if to is not None:
        say(f'             data.path = "{result.path}"')


@contextmanager
def _download_display(name: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar per file in a wide terminal, else one line of words."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from fedhp.console import Activity
    from fedhp.console.heartbeat import error_console, is_live
    from fedhp.report.formatting import data_size

    console = error_console()
    if is_live(console) and console.width >= _LEAST_FOR_BARS:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), DownloadColumn())
        tasks: dict[str, Any] = {}
        with Progress(*columns, TimeRemainingColumn(), console=console) as bars:

            def draw(file: str, done: int, total: int | None) -> None:
                if file not in tasks:
                    tasks[file] = bars.add_task(file)
                bars.update(tasks[file], completed=done, total=total)

            yield draw
        return
    with Activity(f"downloading {name}", console=console) as activity:

        def describe(file: str, done: int, total: int | None) -> None:
            of = "" if total is None else f" of {data_size(total)}"
            activity.note(f"{file}, {data_size(done)}{of}")

        yield describe


@app.command()
def check(path: Path = argument("PATH", "A file or folder.", default=...)) -> None:
    """Show what data a file or folder holds and how to use it."""
    from rich.console import Console

    from fedhp.console import Activity
    from fedhp.data.check import check as check_path
    from fedhp.terminal import size_of_dumb_terminal

    console = Console(highlight=False)
    size_of_dumb_terminal(console)
    with Activity("reading the files"):
        findings = check_path(path)
    for finding in findings:
        _print_finding(console, finding)
    problems = [finding.problem for finding in findings if finding.problem is not None]
    if problems:
        raise problems[0]


@app.command()
def split(
    experiment: str | None = argument(
        "EXPERIMENT.toml", "The experiment file. Default: the default settings."
    ),
    overrides: list[str] | None = argument(
        "key=value", "Settings that override those in the file, such as data.skew=0.8."
    ),
    plot: Path | None = option("FILE", "Also save a plot to this file (.png, .pdf or .svg)."),
    as_json: Json = False,
) -> None:
    """Show how many samples of each class each worker gets."""
    from fedhp.components import is_dotted
    from fedhp.console import Activity
    from fedhp.data import class_counts, load_data, partition
    from fedhp.report.formatting import count

    settings = _experiment(experiment, overrides or [])
    data = settings.data
    with (
        Activity("loading and splitting the data"),
        redirect_user_prints(as_json),
        settings.origins.named(),
    ):
        if is_dotted(settings.task.name):  # it has its own data, and needs torch
            from fedhp.learn.task import load_task
            from fedhp.learn.trial import task_data

            dataset = task_data(load_task(settings.task))
        else:
            dataset = load_data(data)
        parts = partition(
            dataset.train_targets,
            classes=dataset.classes,
            workers=settings.workers,
            config=data,
            seed=settings.seed,
            groups=dataset.groups,
        )
    import numpy as np

    sizes = np.array([len(part) for part in parts])
    counts = None
    if dataset.classes is not None:
        labels = dataset.train_targets.astype(np.int64)
        counts = class_counts(parts, labels, dataset.classes)
    title = f"{dataset.name}: {count(len(dataset.train_inputs), 'sample')}, {_rule(settings)}"
    console = table_console()
    names = dataset.class_names or tuple(map(str, range(dataset.classes or 0)))
    if as_json:
        import json

        rows = [] if counts is None else counts.tolist()
        print(json.dumps({"classes": list(names), "samples": sizes.tolist(), "counts": rows}))
        return
    say(title)
    for part in split_tables(sizes, counts, names=names, width=console.width):
        console.print(part)
    if len(sizes) > _MOST_ROWS:
        say(f"... and {count(len(sizes) - _MOST_ROWS, 'more worker')}; --plot shows all")
    say(f"samples per worker: {sizes.min()} to {sizes.max()}, median {int(np.median(sizes))}")
    unused = len(dataset.train_targets) - int(sizes.sum())
    if unused:
        say(f"not used: {count(unused, 'sample')} that the partition gives to no worker")
    if data.partition == "natural" and dataset.groups is not None:
        users = [len(np.unique(dataset.groups[part])) for part in parts]
        say(f"users per worker: {min(users)} to {max(users)}, {sum(users)} in total")
    if plot is not None:
        from fedhp.report.figures.split import plot_split

        with Activity("drawing the plot"):
            plot_split(sizes, counts, path=plot, title=title, names=dataset.class_names)
        say(f"plot: {plot}")


def _experiment(name: str | None, overrides: list[str]) -> Experiment:
    """The experiment; if the first argument is key=value, there is no file."""
    from fedhp.components import make_importable
    from fedhp.config import load, own_parts, parse
    from fedhp.config.origins import Origins
    from fedhp.tables import COMMAND_LINE

    if name is not None and "=" in name and not Path(name).exists():
        overrides = [name, *overrides]
        name = None
    if name is None:
        settings = parse({}, overrides, origins=Origins(COMMAND_LINE))
    else:
        settings = load(name, overrides)
    if own_parts(settings):
        make_importable(*settings.origins.folders)
    return settings


def _rule(settings: Experiment) -> str:
    from fedhp.report.describe import partition_rule
    from fedhp.report.formatting import count

    rule = partition_rule(settings.data.model_dump())
    return f"{count(settings.workers, 'worker')}, {rule}, seed {settings.seed}"


def split_tables(
    sizes: IntArray, counts: IntArray | None, *, names: Sequence[str], width: int
) -> list[RenderableType]:
    """The samples of each worker, in a form that fits: a column per class, or the largest classes.

    Long class names are listed first and replaced by their numbers.
    """
    from rich.cells import cell_len
    from rich.markup import escape
    from rich.text import Text

    from fedhp.report.tables import new_table
    from fedhp.terminal import GAP, shorten_words

    rows = range(min(len(sizes), _MOST_ROWS))
    if counts is None:
        table = new_table("worker", "samples")
        for worker in rows:
            table.add_row(str(worker), str(sizes[worker]))
        return [table]
    digits = len(str(max(1, int(counts.max()))))
    left_over = width - len("worker") - len("samples") - GAP

    def fits(headers: Sequence[str]) -> bool:
        wide = sum(GAP + max(digits, cell_len(header)) for header in headers)
        return len(headers) <= _MOST_COLUMNS and wide <= left_over

    numbers = tuple(map(str, range(len(names))))
    if fits(names) or fits(numbers):
        legend: list[RenderableType] = []
        if not fits(names):
            words = ", ".join(f"{number} {name}" for number, name in enumerate(names))
            legend = [Text(shorten_words(f"classes: {words}", width))]
            names = numbers
        table = new_table("worker", "samples", *map(escape, names))
        for worker in rows:
            cells = [str(amount) if amount else "·" for amount in counts[worker]]
            table.add_row(str(worker), str(sizes[worker]), *cells)
        return [*legend, table]
    table = new_table("worker", "samples", "classes", "most of", left=("most of",))
    room = left_over - len("classes") - 2 * GAP
    for worker in rows:
        row = counts[worker]
        largest = [label for label in (-row).argsort(kind="stable")[:_MOST_LISTED] if row[label]]
        texts = [f"{names[label]} {row[label]}" for label in largest]
        while len(texts) > 1 and cell_len(", ".join(texts)) > room:
            texts.pop()
        listed = escape(", ".join(texts))
        table.add_row(str(worker), str(sizes[worker]), str((row > 0).sum()), listed)
    return [table]


def _print_finding(console: Console, finding: DataFinding) -> None:
    from rich.text import Text

    from fedhp.terminal import fit_text

    width = console.width if console.is_terminal else None

    def line(text: str, *, styled: int = 0, style: str = "") -> None:
        fitted = Text(fit_text(text, width))
        fitted.stylize(style, len(text) - len(text.lstrip()), styled)
        console.print(fitted, soft_wrap=True)

    line(f"{finding.title}  {finding.path}", styled=len(finding.title), style="bold")
    if finding.problem is not None:
        line(f"  problem: {finding.problem.problem}", styled=len("  problem:"), style="red")
        return
    images = f"{finding.train_images}"
    if finding.test_images is not None:
        images += f" for training, {finding.test_images} for test"
    line(f"  samples: {images}")
    if finding.shape:
        line(f"  shape:   {'x'.join(map(str, finding.shape))}")
    kinds = "none: values to predict" if finding.classes is None else str(finding.classes)
    if finding.classes is not None or finding.test_images is not None:
        line(f"  classes: {kinds}")
    for title, counts in (("training", finding.train_counts), ("test", finding.test_counts)):
        if counts is not None:
            line(f"  {title}: {_per_class(finding, counts)}")
    if finding.official:
        line(f"  {finding.official}")
    for text in finding.lines:  # to be copied into a file, so never broken
        console.print(f"  {text}", markup=False, soft_wrap=True)


def _per_class(finding: DataFinding, counts: IntArray) -> str:
    names = finding.class_names or tuple(map(str, range(len(counts))))
    if len(set(counts.tolist())) == 1:
        return f"{counts[0]} of each class"
    if len(counts) > 2 * _MOST_COLUMNS:
        return f"{counts.min()} to {counts.max()} per class"
    return ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
