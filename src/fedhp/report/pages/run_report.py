"""The report on any runs: one page, its figures for a paper, and all its numbers as tables.

All runs count in the comparison of a batch; the other sections look into one run per label.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from html import escape
from itertools import zip_longest
from pathlib import Path

from fedhp.record.reader import RunReader, RunSummary, find_runs
from fedhp.record.statistics import class_means
from fedhp.report.behind import workers_behind
from fedhp.report.claims.judging import INTERVAL_SEEDS
from fedhp.report.describe import describe_run
from fedhp.report.differences import difference_words
from fedhp.report.explain import explain_round, round_line
from fedhp.report.export import has_parquet, save_report_data, save_text
from fedhp.report.figures.comparison import (
    accuracy_over_rounds,
    accuracy_over_time,
    local_steps,
    overview,
    overview_words,
    spread_note,
    time_to_target,
    waiting_time,
)
from fedhp.report.figures.run import (
    CROWDED,
    bandwidth_of,
    link_maps,
    local_steps_of,
    read_links,
    step_map,
    timelines,
    topology,
    varies,
    world,
)
from fedhp.report.formatting import (
    count,
    data_size,
    final_meaning,
    from_to,
    label_name,
    listed,
    score,
    seconds,
)
from fedhp.report.groups import Batch, Comparison, RunEntry, SortedRuns, read_comparison, sort_runs
from fedhp.report.pages.findings import (
    result_sentences,
    round_words,
    some_away,
    step_words,
    topology_words,
    world_words,
)
from fedhp.report.pages.page import (
    PageFigures,
    Section,
    details_html,
    render_page,
    table_html,
    text_html,
)
from fedhp.report.paired import comparison_pairs, pair_cells
from fedhp.report.rounds import check_round, read_round, selection_note
from fedhp.report.tables import comparison_grid, spread_evenly

PAGE_FILE = "report.html"
REPORT_FOLDER = "report"
MOST_NAMES = 6  # labels in a title
OPEN_LABELS = 2  # the others are folded
LOG_ROUNDS = 12  # of a decision log
RUN_FACTS = ("algorithm", "label", "seed", "status", "fedhp")  # that differ from run to run
CONTENTS = {
    "summary": "one row per run: the numbers of the comparison; final_accuracy and "
    "mean_model_accuracy are means of the last final_tests tests",
    "means": "mean and 95 % interval of every number, per label, over the finished seeds",
    "paired": "every two labels paired by seed: ratio of times, difference of final results, "
    "verdict on the first",
    "rounds": "one row per round: clock, waiting, steps, links, bytes",
    "workers": "one row per round and worker: steps, times, bandwidth (bytes/s)",
    "links": "one row per round and link: time, distance, verdict",
    "verdicts": "how many links got which verdict",
    "facts": "the numbers behind every decision",
    "evaluations": "the tests: the numbers of the curves",
    "worker_evaluations": "the tests, worker by worker",
    "final_evaluations": "the last models on the whole test set",
    "final_worker_evaluations": "the same, worker by worker",
    "test_metrics": "the loss of the tests; whole = 1: on the whole test set",
    "worker_test_metrics": "the same, worker by worker",
    "participation": "who took part in a group average and why, with FedHP+",
    "own_test_metrics": "every worker on the samples it held back, if data.own_test is set",
    "class_test_metrics": "the accuracy of every class, if evaluation.per_class is set",
    "phases": "when each worker trained and transferred, without a barrier",
    "wall": "real seconds per phase",
}


def run_sections(folders: Sequence[Path], figures: PageFigures | None = None) -> list[Section]:
    """The sections about these runs; `figures` with a folder also saves the figures."""
    runs = sort_runs(folders)
    comparisons = [read_comparison(batch.folders) for batch in runs.batches]
    return _sections(runs, comparisons, figures or PageFigures())


def report_folder(runs: Sequence[Path]) -> Path:
    """Inside the one folder that was given, or in the folder that contains all of them."""
    if len(runs) == 1:
        return runs[0] / REPORT_FOLDER
    common = Path(os.path.commonpath([path.absolute() for path in runs]))
    current = Path.cwd()
    relative = common.relative_to(current) if common.is_relative_to(current) else common
    return relative / REPORT_FOLDER


def report_on(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> list[Path]:
    """The report on run folders and on folders that contain runs; returns the files."""
    paths = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    folders = [folder for path in paths for folder in find_runs(path)]
    return save_report(folders, report_folder(paths) if out is None else Path(out))


def save_report(
    folders: Sequence[Path], out: Path, *, progress: Callable[[str], None] = lambda step: None
) -> list[Path]:
    """Write report.html, figures/ and data/ into a folder; returns the files, the page first.

    `progress` is called with a few words when a step is done.
    """
    progress("reading")
    runs = sort_runs(folders)
    comparisons = [read_comparison(batch.folders) for batch in runs.batches]
    figures = PageFigures(
        out / "figures", drawn=lambda amount: progress(f"{count(amount, 'figure')} drawn")
    )
    sections = _sections(runs, comparisons, figures)
    summaries = {
        run.folder: run.summary
        for comparison in comparisons
        for group in comparison.groups
        for run in group.runs
    }
    progress("writing the numbers")
    data = save_report_data(runs.batches, summaries, out / "data")
    sections.append(Section("Files", "files", _files(figures, data)))
    page = render_page(title=_title(runs.batches), lead=_lead(runs, comparisons), sections=sections)
    return [save_text(out / PAGE_FILE, page), *figures.paths, *data]


def _sections(
    runs: SortedRuns, comparisons: Sequence[Comparison], figures: PageFigures
) -> list[Section]:
    sections = []
    for number, (batch, comparison) in enumerate(zip(runs.batches, comparisons, strict=True), 1):
        figures.suffix = f"-{number}" if number > 1 else ""  # keeps names and anchors unique
        name = f": {batch.name}" if batch.name else ""
        sections += [
            Section(title + name, anchor + figures.suffix, body)
            for anchor, title, body in _batch_sections(batch, comparison, figures)
        ]
    return sections


def _batch_sections(
    batch: Batch, comparison: Comparison, figures: PageFigures
) -> list[tuple[str, str, str]]:
    """Anchor, title and body of the sections of one batch."""
    runs = batch.representative_runs()
    result = "Comparison" if len(batch.runs) > 1 else "Result"

    def per_label(draw: Callable[[RunEntry, PageFigures], str]) -> str:
        return _folded([(run.title, draw(run, figures)) for run in runs])

    return [
        ("result", result, _result(comparison, figures) + _behind(runs)),
        ("world", "Devices and links", _world(runs[0], figures)),
        ("topology", "Topology", per_label(_topology)),
        ("round", "Time in a round", _rounds(runs, figures)),
        ("steps", "Local steps", per_label(_steps)),
        ("decisions", "Decisions and reasons", _decisions(runs)),
        ("settings", "Settings and runs", _settings(batch, comparison)),
    ]


def _title(batches: Sequence[Batch]) -> str:
    labels = {run.label: run.title for batch in batches for run in batch.representative_runs()}
    names, runs = list(labels.values()), [run for batch in batches for run in batch.runs]
    if len(runs) == 1:
        return runs[0].name
    if len(names) == 1:
        return f"{names[0]}, {len(runs)} runs"
    return listed(names, most=len(names) if len(names) <= MOST_NAMES else MOST_NAMES - 1)


def _lead(sorted_runs: SortedRuns, comparisons: Sequence[Comparison]) -> str:
    batches = sorted_runs.batches
    runs = [run for batch in batches for run in batch.runs]
    facts = [
        count(len({run.label for run in runs}), "algorithm"),
        count(len({run.seed for run in runs}), "seed"),
        f"{from_to([run.settings['workers'] for run in runs])} workers",
        f"{from_to([run.rounds for run in runs])} rounds",
    ]
    if len(batches) > 1:
        facts.append(f"{len(batches)} settings, reported one after the other")
    parts = [f"{count(len(runs), 'run')}: {', '.join(facts)}."]
    for batch, comparison in zip(batches, comparisons, strict=True):
        start = f"{batch.name}: " if batch.name else ""
        parts.append(start + result_sentences(comparison)[0])
    return "\n\n".join([*parts, *sorted_runs.notes])


def _behind(entries: Sequence[RunEntry]) -> str:
    sentences = []
    for entry in entries:
        with RunReader(entry.folder) as run:
            behind = workers_behind(run)
        if behind is not None:
            sentences.append(f"{entry.title}: {behind.text}" if len(entries) > 1 else behind.text)
    return text_html("\n\n".join(sentences))


def _result(comparison: Comparison, figures: PageFigures) -> str:
    summaries = [run.summary for group in comparison.groups for run in group.runs]
    names_by_label = {group.label: group.title for group in comparison.groups}
    grid = comparison_grid(summaries, names=names_by_label)
    marks = {
        (i, j): "good" for i, row in enumerate(grid.rows) for j, cell in enumerate(row) if cell.best
    }
    table = table_html(
        grid.headers,
        [[cell.text for cell in row] for row in grid.rows],
        caption=grid.full_caption,
        numeric=range(1, len(grid.headers)),
        marks=marks,
        meanings=grid.meanings,
    )
    names = listed(group.name for group in comparison.groups)
    sentences = result_sentences(comparison)
    bands = " Bands and whiskers: 95 % intervals over the seeds." if spread_note(comparison) else ""
    parts = [
        # The page's lead has the first sentence; alone it need not be repeated.
        text_html(" ".join(sentences) if len(sentences) > 1 else ""),
        table,
        _paired_table(summaries, names_by_label),
        _class_table(comparison),
        figures.show(
            overview(comparison),
            name="overview",
            caption=f"{overview_words(comparison)}.{bands}",
            alt=f"Curves and bars that compare {names}; the numbers are in the table above.",
        ),
    ]
    row = figures.show(
        accuracy_over_rounds(comparison),
        name="accuracy_over_rounds",
        caption=f"Test {comparison.metric} over rounds, which take different times.",
        alt=f"Test {comparison.metric} over rounds of {names}.",
    )
    if len(comparison.targets) > 1 and len(comparison.groups) > 1:
        row += figures.show(
            time_to_target(comparison),
            name="time_to_target",
            caption="Virtual time until each target is reached for the first time.",
            alt=f"Bars of the time to each target for {names}.",
        )
    elif comparison.targets:
        figures.save_only(time_to_target(comparison), name="time_to_target")
    figures.save_only(accuracy_over_time(comparison), name="accuracy_over_time")
    figures.save_only(waiting_time(comparison), name="waiting_time")
    figures.save_only(local_steps(comparison), name="local_steps")
    return "\n".join([*parts, f'<div class="row">{row}</div>'])


def _paired_table(summaries: Sequence[RunSummary], names: Mapping[str, str]) -> str:
    """The verdicts of the runs paired by seed; empty where there is nothing to compare."""
    metric = summaries[0].metric
    rows = [pair_cells(paired, metric, names) for paired in comparison_pairs(summaries)]
    if not rows:
        return ""
    return table_html(
        ("pair", "number", "first compared with second", "verdict on the first"),
        rows,
        caption="Runs of the same seed are pairs, because they have the same world. A "
        f"verdict needs {INTERVAL_SEEDS} seeds and a 95 % interval that excludes no difference.",
    )


def _class_table(comparison: Comparison) -> str:
    """The result of every class, the mean over the finished seeds; empty if not tested."""
    means = {}
    for group in comparison.groups:
        tested = [c for run in group.finished if (c := run.summary.class_accuracy)]
        if tested:
            means[group.name] = class_means(tested)
    by_class = list(zip_longest(*means.values()))  # None, which is missing, for unknown classes
    if not by_class:
        return ""
    rows = [
        [str(index), *(score(value, comparison.metric, unit=False) for value in values)]
        for index, values in enumerate(by_class)
    ]
    table = table_html(
        ("class", *(f"{name}\n%" for name in means)),
        rows,
        caption="Accuracy by class: mean of the workers, final as in the table above.",
        numeric=range(1, len(means) + 1),
    )
    return details_html(f"Accuracy of each of {count(len(rows), 'class', 'classes')}", table)


def _world(entry: RunEntry, figures: PageFigures) -> str:
    with RunReader(entry.folder) as run:
        words, moving = world_words(run), varies(bandwidth_of(run)[0])
        figure = world(run)
    links = " Right: the bandwidth of every worker at the start of each round." if moving else ""
    left = "Left: the" if moving else "The"
    shown = figures.show(
        figure,
        name="world",
        caption=f"{left} mean time of a local step of every worker; the line spans nine tenths of "
        f"the rounds.{links} Workers are ordered by device kind and speed, the fastest on top. "
        f"Numbers are from the run of {entry.name}.",
        alt=f"Step times and bandwidths of all workers. {words}",
    )
    return f"{text_html(words)}\n{shown}"


def _topology(entry: RunEntry, figures: PageFigures) -> str:
    with RunReader(entry.folder) as run:
        last = check_round(run, None)
        rounds = list(dict.fromkeys((1, (last + 1) // 2, last)))
        links = [read_links(run, round_index) for round_index in rounds]
        fixed = all(sorted(each.pairs) == sorted(links[0].pairs) for each in links)
        rounds = rounds[-1:] if fixed else rounds
        words = topology_words(run)
        figure = topology(run, rounds)
        dense = max(len(each.pairs) for each in links) > CROWDED and not selection_note(run)
        tables = link_maps(run, rounds) if dense else None
    same = ", the same in the first, the middle and the last round" if fixed and last > 1 else ""
    shown = figures.show(
        figure,
        name=f"topology_{entry.label}",
        caption=f"{entry.name}: links in use{same}; wider lines are faster. {words}",
        alt=f"Workers on a circle, joined by the links that {entry.title} uses. {words}",
    )
    if tables is None:
        return shown
    way = " Each row receives from the columns." if any(each.directed for each in links) else ""
    return shown + figures.show(
        tables,
        name=f"links_{entry.label}",
        caption=f"{entry.name}: the same links pair by pair, coloured by their speed; white: no "
        f"link. Workers are ordered by device kind and speed, the fastest first.{way}",
        alt=f"Tables of all pairs of workers that show the links {entry.title} uses. {words}",
    )


def _rounds(entries: Sequence[RunEntry], figures: PageFigures) -> str:
    """One round of the first two runs side by side; each of the others by itself."""
    least = min(entry.rounds for entry in entries[:OPEN_LABELS])
    middle = max((least + 1) // 2, min(2, least))

    def show(shown: Sequence[RunEntry]) -> str:
        round_index = min(middle, *(entry.rounds for entry in shown))
        titles = {entry.label: entry.title for entry in shown}
        with ExitStack() as stack:
            runs = [stack.enter_context(RunReader(entry.folder)) for entry in shown]
            figure = timelines(runs, round_index, names=titles)
            words = round_words(runs, round_index, names=titles)
        names = listed(entry.title for entry in shown)
        drawing = figures.show(
            figure,
            name="_".join(["timeline", *(entry.label for entry in shown)]),
            caption=f"{names}, seed {shown[0].seed}: what every worker does in round "
            f"{round_index}. {_timeline_key(shown)}",
            alt=f"Bars of computing, communicating and waiting per worker. {words}",
        )
        return f"{text_html(words)}\n{drawing}"

    pair = show(entries[:OPEN_LABELS])
    rest = [details_html(entry.title, show([entry])) for entry in entries[OPEN_LABELS:]]
    return "\n".join([pair, *rest])


def _timeline_key(shown: Sequence[RunEntry]) -> str:
    keys = {
        False: "First its local steps, then its slowest link, then waiting for the others; with a "
        "group average it trains while its model is on the way. A dot marks the worker "
        "that finished last, a hollow circle the one that the plan expected to.",
        True: "Without a barrier there is no common start: some turns around the round (grey), "
        "where they were in virtual time; lines lead to the worker with which a model was "
        "averaged.",
    }
    kinds = {entry.asynchronous for entry in shown}
    return " ".join(text for kind, text in keys.items() if kind in kinds)


def _steps(entry: RunEntry, figures: PageFigures) -> str:
    with RunReader(entry.folder) as run:
        words = step_words(run)
        if not varies(local_steps_of(run)):
            return text_html(words)
        figure = step_map(run)
        away = " Grey: away." if some_away(run) else ""
    ended = ", counted where a turn ends" if entry.asynchronous else ""
    return figures.show(
        figure,
        name=f"steps_{entry.label}",
        caption=f"{entry.name}: local steps of every worker in every round{ended}; workers are "
        f"ordered by device kind and speed, the fastest on top. {words}{away}",
        alt=f"A map of local steps, workers by rounds. {words}",
    )


def _decisions(entries: Sequence[RunEntry]) -> str:
    parts = []
    for entry in entries:
        with RunReader(entry.folder) as run:
            parts.append((entry.name, decision_log(run)))
    return _folded(parts, shown=1)


def decision_log(run: RunReader) -> str:
    """Some rounds in words, chosen evenly with the first and the last, each folded."""
    last = check_round(run, None)
    chosen = [row + 1 for row in spread_evenly(last, LOG_ROUNDS)]
    parts = []
    for index in chosen:
        first, *others = explain_round(run, index)
        texts = [f"<h4>{escape(p.heading)}</h4>\n{text_html(p.text)}" for p in others]
        body = "\n".join([text_html(first.text), *texts])
        parts.append(details_html(round_line(read_round(run, index)), body))
    some = f"{len(chosen)} of {count(last, 'round')}. Any other" if len(chosen) < last else ""
    command = f"<code>{escape(f'fedhp explain {run.folder} --round N')}</code>"
    note = f"{some or 'The same'} in a terminal: {command}"
    return "\n".join([*parts, f'<p class="quiet">{note}</p>'])


def _folded(parts: Sequence[tuple[str, str]], *, shown: int = OPEN_LABELS) -> str:
    """The first labels open, the others folded; a single one needs no heading."""
    if len(parts) == 1:
        return parts[0][1]
    first = [f"<h3>{escape(name)}</h3>\n{body}" for name, body in parts[:shown]]
    return "\n".join([*first, *(details_html(name, body) for name, body in parts[shown:])])


def _settings(batch: Batch, comparison: Comparison) -> str:
    entries = batch.representative_runs()
    with RunReader(entries[0].folder) as run:
        facts = [fact for fact in describe_run(run) if fact[0] not in RUN_FACTS]
    algorithms = "\n".join(_algorithm(entry) for entry in entries)
    seeds = listed(str(seed) for seed in sorted({run.seed for run in batch.runs}))
    rows = [("algorithm" if len(entries) == 1 else "algorithms", algorithms), ("seeds", seeds)]
    others = f" {difference_words(entries)}" if len(entries) > 1 else ""
    caption = f"The settings of {entries[0].title}.{others}"
    table = table_html(("setting", "value"), [*rows, *facts], caption=caption)
    tests = [run.summary.final_tests for group in comparison.groups for run in group.runs]
    names = ("run", "label", "seed", "status", "rounds", "virtual\ntime", "final", "digest")
    runs = table_html(
        (*names, "real\ntime", "peak\nmemory"),
        _run_rows(comparison),
        caption=f"final: {final_meaning(tests)}.",
        numeric=(2, 4, 5, 6, 8, 9),
    )
    return f"{table}\n{details_html(count(len(batch.runs), 'run'), runs)}"


def _algorithm(entry: RunEntry) -> str:
    settings = ", ".join(f"{k} = {v}" for k, v in entry.algorithm.items() if k != "name")
    return label_name(entry.algorithm["name"]) + (f" ({settings})" if settings else "")


def _run_rows(comparison: Comparison) -> list[list[str]]:
    rows = []
    for label, curves in ((group.label, run) for group in comparison.groups for run in group.runs):
        summary = curves.summary
        with RunReader(curves.folder) as run:
            cost = seconds(run.meta("seconds")), data_size(run.meta("peak_memory"))
        row = [str(curves.folder), label, str(summary.seed), summary.status, str(summary.rounds)]
        row += [seconds(summary.completion_time), score(summary.final_accuracy, summary.metric)]
        rows.append([*row, summary.digest[:12], *cost])
    return rows


def _files(figures: PageFigures, data: Sequence[Path]) -> str:
    """Which files are next to the page, so that a number or a figure is found quickly."""
    pictures = table_html(
        ("file", "figure"),
        list(figures.names.items()),
        caption="Files in figures/ (.pdf, .svg and .png), sized for a paper.",
    )
    kinds = ".csv and .parquet" if has_parquet() else ".csv"
    stems = list(dict.fromkeys(path.stem for path in data))
    tables = table_html(
        ("table", "content"),
        [(stem, CONTENTS.get(stem, "")) for stem in stems],
        caption=f"Files in data/ ({kinds}). Each has the rows of all runs, distinguished by "
        "setting, label and seed; summary has the folder of each run.",
    )
    words = "All figures, sized for a paper, and all numbers are in files next to this page."
    return f"{text_html(words)}\n{tables}\n{pictures}"
