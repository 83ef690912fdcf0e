"""The report on any runs: one page, its figures for a paper, and all its numbers as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedhp.report.batches import Batch, Sorted, sort_runs
from fedhp.report.datasets import has_parquet, save_data
from fedhp.report.export import save_text
from fedhp.report.formatting import count, label_name, listed
from fedhp.report.groups import Comparison, read_comparison
from fedhp.report.pages.album import Album
from fedhp.report.pages.chapters import chapters
from fedhp.report.pages.findings import first_words
from fedhp.report.pages.page import Section, render_page, table_html, text_html

FILE = "report.html"
MOST_NAMES = 6  # labels in a title
CONTENTS = {
    "summary": "one row per run: what the comparison is made of",
    "means": "mean and 95 % interval of every number, per label, over the finished seeds",
    "rounds": "one row per round: clock, waiting, steps, links, bytes",
    "workers": "one row per round and worker: steps, times, bandwidth (bytes/s)",
    "links": "one row per round and link: time, distance, verdict",
    "verdicts": "how many links got which verdict",
    "facts": "the numbers behind every decision",
    "evaluations": "the tests: what the curves are made of",
    "worker_evaluations": "the tests, worker by worker",
    "final_evaluations": "the last models on the whole test set",
    "final_worker_evaluations": "the same, worker by worker",
    "wall": "real seconds per phase",
}


def run_sections(folders: Sequence[Path], *, album: Album | None = None) -> list[Section]:
    """All that a page tells of these runs; an album with a folder also saves the figures."""
    found = sort_runs(folders)
    return _sections(found, _compared(found.batches), Album() if album is None else album)


def save_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write report.html, figures/ and data/ into a folder; returns the files, the page first."""
    found = sort_runs(folders)
    comparisons = _compared(found.batches)
    album = Album(out / "figures")
    sections = _sections(found, comparisons, album)
    summaries = {
        run.folder: run.summary
        for comparison in comparisons
        for group in comparison.groups
        for run in group.runs
    }
    data = save_data(found.batches, summaries, out / "data")
    sections.append(Section("Files", "files", _files(album, data)))
    page = render_page(
        title=_title(found.batches), lead=_lead(found, comparisons), sections=sections
    )
    return [save_text(out / FILE, page), *album.paths, *data]


def _compared(batches: Sequence[Batch]) -> list[Comparison]:
    return [read_comparison(batch.folders) for batch in batches]


def _sections(found: Sorted, comparisons: Sequence[Comparison], album: Album) -> list[Section]:
    return [
        section
        for place, (batch, comparison) in enumerate(zip(found.batches, comparisons, strict=True))
        for section in chapters(batch, comparison, album, place=place)
    ]


def _title(batches: Sequence[Batch]) -> str:
    labels = list(dict.fromkeys(label for batch in batches for label in _labels(batch)))
    names = [label_name(label) for label in labels]
    runs = [run for batch in batches for run in batch.runs]
    if len(runs) == 1:
        return f"{names[0]}, seed {runs[0].seed}"
    if len(names) == 1:
        return f"{names[0]}, {len(runs)} runs"
    return listed(names, most=len(names) if len(names) <= MOST_NAMES else MOST_NAMES - 1)


def _labels(batch: Batch) -> list[str]:
    return [speaker.label for speaker in batch.representative_runs()]


def _lead(found: Sorted, comparisons: Sequence[Comparison]) -> str:
    runs = [run for batch in found.batches for run in batch.runs]
    facts = [
        count(len({run.label for run in runs}), "algorithm"),
        count(len({run.seed for run in runs}), "seed"),
        f"{_span([run.settings['workers'] for run in runs])} workers",
        f"{_span([run.rounds for run in runs])} rounds",
    ]
    if len(found.batches) > 1:
        facts.append(f"{len(found.batches)} settings, told of one after the other")
    parts = [f"{count(len(runs), 'run')}: {', '.join(facts)}."]
    for batch, comparison in zip(found.batches, comparisons, strict=True):
        start = f"{batch.name}: " if batch.name else ""
        parts.append(start + first_words(comparison))
    return "\n\n".join([*parts, *found.notes])


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _files(album: Album, data: Sequence[Path]) -> str:
    """What lies beside the page, so that a number or a figure is found quickly."""
    pictures = table_html(
        ("file", "figure"),
        list(album.names.items()),
        caption="Files in figures/ (.pdf, .svg and .png), sized for a paper.",
    )
    kinds = ".csv and .parquet" if has_parquet() else ".csv"
    stems = list(dict.fromkeys(path.stem for path in data))
    tables = table_html(
        ("table", "holds"),
        [(stem, CONTENTS.get(stem, "")) for stem in stems],
        caption=f"Files in data/ ({kinds}); each holds all runs, told apart by setting, label "
        "and seed; summary says where each run is.",
    )
    words = "Beside this page lie every figure, for a paper, and every number."
    return f"{text_html(words)}\n{tables}\n{pictures}"
