"""The chapters of a report on runs of one setting: figures with the words that belong to them.

Every run counts in the comparison; the other chapters look into one run per label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from fedhp.record.reader import RunReader
from fedhp.report.batches import Batch, Entry
from fedhp.report.describe import describe_run
from fedhp.report.figures.comparison import (
    accuracy_over_rounds,
    accuracy_over_time,
    local_steps,
    overview,
    time_to_target,
    topology,
    waiting_time,
)
from fedhp.report.figures.panels import spread_note
from fedhp.report.figures.run_panels import CROWD, read_links
from fedhp.report.figures.world import (
    bandwidth_of,
    link_maps,
    step_map,
    steps_of,
    timelines,
    varies,
    world,
)
from fedhp.report.formatting import count, data_size, label_name, listed, score, seconds
from fedhp.report.groups import Comparison
from fedhp.report.pages.album import Album
from fedhp.report.pages.decisions import decision_log
from fedhp.report.pages.findings import (
    first_words,
    result_words,
    round_words,
    step_words,
    topology_words,
    world_words,
)
from fedhp.report.pages.page import Section, details_html, table_html, text_html
from fedhp.report.rounds import check_round, selection_note
from fedhp.report.tables import BEST, comparison_grid

OPEN = 2  # labels in sight; the others are folded
OF_RUNS = ("algorithm", "label", "seed", "status", "fedhp")  # facts that differ from run to run


def chapters(
    batch: Batch, comparison: Comparison, album: Album, *, place: int = 0
) -> list[Section]:
    """The sections of one batch; `place` tells several batches' anchors apart."""
    representative_runs = batch.representative_runs()
    several = len(batch.runs) > 1
    found: dict[str, tuple[str, str]] = {
        "result": ("Comparison" if several else "Result", _result(comparison, album, place)),
        "world": ("The world", _world(representative_runs[0], album, place)),
        "topology": ("Who talks to whom", _per_label(representative_runs, _topology, album, place)),
        "round": ("How a round is spent", _rounds(representative_runs, album, place)),
        "steps": ("Local steps", _per_label(representative_runs, _steps, album, place)),
        "decisions": ("Decisions and reasons", _decisions(representative_runs)),
        "settings": ("Settings and runs", _settings(batch, comparison)),
    }
    suffix = f": {batch.name}" if batch.name else ""
    return [
        Section(title + suffix, _mark(anchor, place), body)
        for anchor, (title, body) in found.items()
    ]


def _mark(name: str, place: int) -> str:
    """A name that other batches do not have."""
    return f"{name}-{place + 1}" if place else name


def _result(comparison: Comparison, album: Album, place: int) -> str:
    summaries = [run.summary for group in comparison.groups for run in group.runs]
    grid = comparison_grid(summaries)
    rows = [[label_name(row[0].text), *(cell.text for cell in row[1:])] for row in grid.rows]
    marks = {
        (i, j): "good" for i, row in enumerate(grid.rows) for j, cell in enumerate(row) if cell.best
    }
    table = table_html(
        grid.headers,
        rows,
        caption=grid.caption if marks else grid.caption.replace(BEST, "").strip("; "),
        numeric=range(1, len(grid.headers)),
        marks=marks,
    )
    names = listed(group.name for group in comparison.groups)
    words, spread = result_words(comparison), spread_note(comparison)
    bands = " Bands and whiskers: 95 % intervals over the seeds." if spread else ""
    parts = [
        # The page's lead begins with the first words; they need not be said twice.
        text_html(words if words != first_words(comparison) else ""),
        table,
        album.show(
            overview(comparison),
            name=_mark("overview", place),
            caption=f"Test {comparison.metric} over virtual time, time to target, mean waiting "
            f"time per round and local steps by device kind.{bands}",
            alt=f"Curves and bars that compare {names}; the numbers are in the table above.",
        ),
    ]
    columns = [
        album.show(
            accuracy_over_rounds(comparison),
            name=_mark("accuracy_over_rounds", place),
            caption=f"Test {comparison.metric} over rounds, which take different times.",
            alt=f"Test {comparison.metric} over rounds of {names}.",
        )
    ]
    if len(comparison.targets) > 1 and len(comparison.groups) > 1:
        columns.append(
            album.show(
                time_to_target(comparison),
                name=_mark("time_to_target", place),
                caption="Virtual time until each target is reached for the first time.",
                alt=f"Bars of the time to each target for {names}.",
            )
        )
    elif comparison.targets:
        album.keep(time_to_target(comparison), name=_mark("time_to_target", place))
    for name, draw in (
        ("accuracy_over_time", accuracy_over_time),
        ("waiting_time", waiting_time),
        ("local_steps", local_steps),
    ):
        album.keep(draw(comparison), name=_mark(name, place))
    return "\n".join([*parts, f'<div class="row">{"".join(columns)}</div>'])


def _world(speaker: Entry, album: Album, place: int) -> str:
    with RunReader(speaker.folder) as run:
        words, moving = world_words(run), varies(bandwidth_of(run)[0])
        figure = world(run)
    links = " Right: the bandwidth of every worker at the start of each round." if moving else ""
    left = "Left: the" if moving else "The"
    shown = album.show(
        figure,
        name=_mark("world", place),
        caption=f"{left} mean time of a local step of every worker; the line spans nine tenths of "
        f"the rounds.{links} Workers stand by device kind and speed, the fastest on top. As in the "
        f"run of {_who(speaker)}.",
        alt=f"Step times and bandwidths of all workers. {words}",
    )
    return f"{text_html(words)}\n{shown}"


def _topology(speaker: Entry, album: Album, place: int) -> str:
    with RunReader(speaker.folder) as run:
        last = check_round(run, None)
        rounds = list(dict.fromkeys((1, (last + 1) // 2, last)))
        links = [read_links(run, index) for index in rounds]
        fixed = all(sorted(each.pairs) == sorted(links[0].pairs) for each in links)
        rounds = rounds[-1:] if fixed else rounds
        words = topology_words(run)
        figure = topology(run, rounds)
        dense = max(len(each.pairs) for each in links) > CROWD and not selection_note(run)
        tables = link_maps(run, rounds) if dense else None
    same = "the same in the first, the middle and the last round" if fixed and last > 1 else ""
    name = label_name(speaker.label)
    shown = album.show(
        figure,
        name=_mark(f"topology_{speaker.label}", place),
        caption=f"{_who(speaker)}: links in use{', ' + same if same else ''}; the wider, the "
        f"faster. {words}",
        alt=f"Workers on a circle, joined by the links that {name} uses. {words}",
    )
    if tables is None:
        return shown
    directed = any(each.directed for each in links)
    way = " Each row receives from the columns." if directed else ""
    return shown + album.show(
        tables,
        name=_mark(f"links_{speaker.label}", place),
        caption=f"{_who(speaker)}: the same links pair by pair, coloured by their speed; white: "
        f"no link. Workers stand by device kind and speed, the fastest first.{way}",
        alt=f"Tables of all pairs of workers that show the links {name} uses. {words}",
    )


def _rounds(representative_runs: Sequence[Entry], album: Album, place: int) -> str:
    """One round of the first two side by side; of the others each by itself."""
    least = min(speaker.rounds for speaker in representative_runs[:OPEN])
    middle = max((least + 1) // 2, min(2, least))

    def drawn(shown: Sequence[Entry]) -> str:
        index = min(middle, *(speaker.rounds for speaker in shown))
        runs = [RunReader(speaker.folder) for speaker in shown]
        try:
            figure, words = timelines(runs, index), round_words(runs, index)
        finally:
            for run in runs:
                run.close()
        names = listed(label_name(speaker.label) for speaker in shown)
        drawing = album.show(
            figure,
            name=_mark("_".join(["timeline", *(speaker.label for speaker in shown)]), place),
            caption=f"{names}, seed {shown[0].seed}: what every worker does in round {index}. "
            + _order(shown),
            alt=f"Bars of computing, communicating and waiting per worker. {words}",
        )
        return f"{text_html(words)}\n{drawing}"

    pair = drawn(representative_runs[:OPEN])
    rest = [
        details_html(label_name(each.label), drawn([each])) for each in representative_runs[OPEN:]
    ]
    return "\n".join([pair, *rest])


def _order(shown: Sequence[Entry]) -> str:
    """How the bars of a timeline are to be read."""
    words = []
    if not all(speaker.asynchronous for speaker in shown):
        words.append("First its local steps, then its slowest link, then waiting for the others.")
    if any(speaker.asynchronous for speaker in shown):
        words.append(
            "Without a barrier turns may have begun before the round and are not in order."
        )
    return " ".join(words)


def _steps(speaker: Entry, album: Album, place: int) -> str:
    with RunReader(speaker.folder) as run:
        words = step_words(run)
        if not varies(steps_of(run)):
            return text_html(words)
        figure = step_map(run)
    away = " Grey: away." if "away" in words else ""
    ended = ", counted where a turn ends" if speaker.asynchronous else ""
    return album.show(
        figure,
        name=_mark(f"steps_{speaker.label}", place),
        caption=f"{_who(speaker)}: local steps of every worker in every round{ended}; workers "
        f"stand by device kind and speed, the fastest on top. {words}{away}",
        alt=f"A map of local steps, workers by rounds. {words}",
    )


def _decisions(representative_runs: Sequence[Entry]) -> str:
    parts = []
    for speaker in representative_runs:
        with RunReader(speaker.folder) as run:
            parts.append((f"{label_name(speaker.label)}, seed {speaker.seed}", decision_log(run)))
    return _folded(parts, shown=1)


def _per_label(
    representative_runs: Sequence[Entry],
    draw: Callable[[Entry, Album, int], str],
    album: Album,
    place: int,
) -> str:
    return _folded(
        [(label_name(each.label), draw(each, album, place)) for each in representative_runs]
    )


def _folded(parts: Sequence[tuple[str, str]], *, shown: int = OPEN) -> str:
    """The first labels in sight, the others to be opened; one alone needs no heading."""
    if len(parts) == 1:
        return parts[0][1]
    first = [f"<h3>{escape(name)}</h3>\n{body}" for name, body in parts[:shown]]
    return "\n".join([*first, *(details_html(name, body) for name, body in parts[shown:])])


def _settings(batch: Batch, comparison: Comparison) -> str:
    representative_runs = batch.representative_runs()
    with RunReader(representative_runs[0].folder) as run:
        facts = [fact for fact in describe_run(run) if fact[0] not in OF_RUNS]
    algorithms = "\n".join(_algorithm(speaker) for speaker in representative_runs)
    seeds = listed(str(seed) for seed in sorted({run.seed for run in batch.runs}))
    rows = [
        ("algorithm" if len(representative_runs) == 1 else "algorithms", algorithms),
        ("seeds", seeds),
    ]
    others = " The others differ in what their labels say." if len(representative_runs) > 1 else ""
    table = table_html(
        ("setting", "value"),
        [*rows, *facts],
        caption=f"As {label_name(representative_runs[0].label)} was run.{others}",
    )
    names = ("run", "label", "seed", "status", "rounds", "virtual\ntime", "final", "digest")
    runs = table_html(
        (*names, "real\ntime", "peak\nmemory"), _runs(comparison), numeric=(2, 4, 5, 6, 8, 9)
    )
    return f"{table}\n{details_html(count(len(batch.runs), 'run'), runs)}"


def _algorithm(speaker: Entry) -> str:
    given = ", ".join(f"{k} = {v}" for k, v in speaker.algorithm.items() if k != "name")
    name = speaker.algorithm["name"]
    known = label_name(name)
    return f"{known} ({given})" if given else known


def _runs(comparison: Comparison) -> list[list[str]]:
    rows = []
    for group in comparison.groups:
        for each in group.runs:
            summary = each.summary
            with RunReader(each.folder) as run:
                took, memory = run.meta("seconds"), run.meta("peak_memory")
            rows.append(
                [
                    str(each.folder),
                    group.label,
                    str(summary.seed),
                    summary.status,
                    str(summary.rounds),
                    seconds(summary.completion_time),
                    score(summary.final_accuracy, summary.metric),
                    summary.digest[:12],
                    seconds(took),
                    data_size(memory),
                ]
            )
    return rows


def _who(speaker: Entry) -> str:
    return f"{label_name(speaker.label)}, seed {speaker.seed}"
