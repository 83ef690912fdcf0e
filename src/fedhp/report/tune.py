"""The results of a tuning: every algorithm's best settings and its defaults, on the tuning seeds
and on the held-out ones, as a table, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedhp.engine.runs.tune import SeededRuns, Trial, Tuned, TunedAlgorithm
from fedhp.record.statistics import Interval, interval
from fedhp.report.export import csv_text
from fedhp.report.formatting import (
    ACCURACY,
    MISSING,
    count,
    data_size,
    decimals_for,
    final_meaning,
    listed,
    score,
    seconds,
    setting_words,
    target_name,
)
from fedhp.report.labels import names_for
from fedhp.report.paired import compare_all
from fedhp.report.tables import markdown_table, new_table, paired_lines, with_spread

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class TuneRow:
    """One line of the table: an algorithm with the settings found, or with its defaults."""

    algorithm: TunedAlgorithm
    name: str
    settings: str
    tuned: bool
    trial: SeededRuns | None  # on the tuning seeds; None: it was not tried there
    compared: SeededRuns  # on the held-out seeds


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What `fedhp tune` found, and how it does on held-out seeds."""

    found: Tuned

    @property
    def target(self) -> float | None:
        """The target that settings were ranked by; None: by the final result."""
        return self.found.tuning.target

    @property
    def metric(self) -> str:
        """What the runs measure."""
        measured = [*(trial.measured for trial in self.found.trials), *self.found.compared.values()]
        return next((run.metric for each in measured for run in each.runs), ACCURACY)

    @property
    def names(self) -> dict[str, str]:
        """The names of the algorithms, by label."""
        return names_for(algorithm.label for algorithm in self.found.tuning.algorithms)

    def best_settings(self) -> dict[str, dict[str, Any]]:
        """The settings found, by the algorithm's label; empty where every trial failed."""
        best = {a.label: self.found.best(a) for a in self.found.tuning.algorithms}
        return {label: dict(trial.settings) if trial else {} for label, trial in best.items()}

    def rows(self) -> list[TuneRow]:
        """For every algorithm the settings found, then its defaults if they are others."""
        rows = []
        for algorithm in self.found.tuning.algorithms:
            best, trials = self.found.best(algorithm), self.found.of(algorithm)
            name, compared = self.names[algorithm.label], self.found.compared
            default = next((t for t in trials if t.label == algorithm.label), None)
            if best is not None:
                words = settings_words(best) + (" (the defaults)" if best is default else "")
                runs = best.measured, compared[best.label]
                rows.append(TuneRow(algorithm, name, words, True, *runs))
            if best is None or best is not default:
                words = "defaults" if best else "defaults (every trial failed)"
                tried = default.measured if default else None
                compared_runs = compared[algorithm.label]
                rows.append(TuneRow(algorithm, name, words, False, tried, compared_runs))
        return rows

    def rule(self) -> str:
        """How the settings were chosen, in words."""
        tuning = self.found.tuning
        seeds, held_out = (listed(map(str, s)) for s in (tuning.tuning_seeds, tuning.seeds))
        word = "seed" if len(tuning.tuning_seeds) == 1 else "seeds"
        start = f"tuned: the best of {count(tuning.budget, 'trial')} on {word} {seeds} by the mean "
        if self.target is None:
            return f"{start}final result; held-out seeds: {held_out}"
        return (
            f"{start}time to {target_name(self.target, self.metric)}; a trial that misses it with "
            "any of these seeds ranks below, by its final result, and one that diverges last; "
            f"held-out seeds: {held_out}"
        )

    def verdicts(self) -> list[str]:
        """The tuned algorithms against each other on the held-out seeds, in words."""
        rows = [row for row in self.rows() if row.tuned]
        names = {row.compared.label: f"tuned {row.name}" for row in rows}
        return paired_lines([run for row in rows for run in row.compared.runs], names=names)

    def as_json(self) -> dict[str, Any]:
        """Plain values: the search, every algorithm's settings and numbers, every trial."""
        tuning = self.found.tuning
        runs = [run for row in self.rows() for run in row.compared.runs]
        return {
            "target": tuning.target,
            "budget": tuning.budget,
            "tuning_seeds": list(tuning.tuning_seeds),
            "seeds": list(tuning.seeds),
            "rule": self.rule(),
            "rows": [
                {
                    "algorithm": row.algorithm.label,
                    "label": row.compared.label,
                    "tuned": row.tuned,
                    "tuning_seeds": None if row.trial is None else _numbers(row.trial),
                    "held_out_seeds": _numbers(row.compared),
                }
                for row in self.rows()
            ],
            "settings": self.best_settings(),
            "trials": [
                {
                    "algorithm": trial.algorithm,
                    "trial": trial.number,
                    "label": trial.label,
                    "settings": dict(trial.settings),
                    **_numbers(trial.measured),
                }
                for trial in self.found.trials
            ],
            "runs": [run.as_json() for run in runs],
            "paired": [paired.as_json() for paired in compare_all(runs)],
        }


def sent_to_target(measured: SeededRuns) -> Interval | None:
    """Bytes to the target, over the seeds that reached it."""
    return interval([sent for sent in measured.sent if sent is not None])


def time_to_target(measured: SeededRuns) -> Interval | None:
    """Virtual time to the target, over the seeds that reached it."""
    return interval([time for time in measured.times if time is not None])


def final_result(measured: SeededRuns) -> Interval | None:
    return interval(measured.finals)


def _numbers(measured: SeededRuns) -> dict[str, Any]:
    spreads = {
        "time_to_target": time_to_target(measured),
        "bytes_to_target": sent_to_target(measured),
        "final_accuracy": final_result(measured),
    }
    return {
        "status": measured.failed or "finished",
        "reached": measured.reached,
        **{name: None if s is None else s.as_json() for name, s in spreads.items()},
    }


def settings_words(trial: Trial) -> str:
    texts = [f"{key}={_short(value)}" for key, value in trial.settings.items()]
    return ", ".join(map(setting_words, texts))


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def trial_words(trial: Trial, *, name: str, target: float | None, best: bool) -> str:
    """AD-PSGD trial 3 (lr 0.314, 12 steps): 34.2 s to 90 %, final 93.1 %, the best so far."""
    measured = trial.measured
    metric = measured.runs[0].metric if measured.runs else ACCURACY
    final, time = final_result(measured), time_to_target(measured)
    missed = len(measured.runs) - measured.reached
    words = [] if final is None else [f"final {score(final.mean, metric)}"]
    if measured.failed:
        words = [measured.failed]
    elif target is not None and time is not None and not missed:
        words.insert(0, f"{seconds(time.mean)} to {target_name(target, metric)}")
    elif target is not None:
        part = f" with {count(missed, 'seed')}" if time else ""
        words.insert(0, f"{target_name(target, metric)} not reached{part}")
    words += ["the best so far"] if best else []
    return f"{name} trial {trial.number} ({settings_words(trial)}): {', '.join(words)}"


def tune_table(result: TuneResult) -> Table:
    from rich.markup import escape

    headers, rows, caption = tune_rows(result)
    algorithm, settings, tuning, held_out, *others = headers
    return new_table(
        *headers,
        rows=[
            [escape(text) for text in (*row[:2], *(cell.replace(" (", "\n(") for cell in row[2:]))]
            for row in rows
        ],
        left=(algorithm, settings),
        drop_first=("trials", *reversed(others), tuning),
        keep=(algorithm, settings, held_out),
        caption=caption,
    )


def tune_markdown(result: TuneResult) -> str:
    headers, rows, caption = tune_rows(result)
    notes = [f"- {line}" for line in result.verdicts()]
    return markdown_table(headers, rows, left=2) + "\n".join(["", caption, "", *notes]) + "\n"


def tune_rows(result: TuneResult) -> tuple[list[str], list[list[str]], str]:
    rows, metric = result.rows(), result.metric
    unit = "%" if metric == ACCURACY else metric
    headers = ["algorithm", "settings"]
    columns = [[row.name for row in rows], [row.settings for row in rows]]
    finals = _finals(rows, metric)
    if result.target is None:
        headers += [f"final {unit}\ntuning seeds", f"final {unit}\nheld-out seeds"]
        columns += finals
    else:
        goal = target_name(result.target, metric)
        headers += [f"to {goal} (s)\ntuning seeds", f"to {goal} (s)\nheld-out seeds"]
        headers += [f"final {unit}\nheld-out seeds", f"data to\n{goal}"]
        columns += [*_times(rows), finals[1], [_sizes(row.compared) for row in rows]]
    headers.append("trials")
    columns.append([_trials(result, row) for row in rows])
    notes = [result.rule()]
    if len(result.found.tuning.seeds) > 1:
        notes.append("mean ± half-width of the 95 % interval over the held-out seeds")
    tests = [run.final_tests for row in rows for run in row.compared.runs]
    if tests:
        notes.append(f"final: {final_meaning(tests)}")
    cells = [list(row) for row in zip(*columns, strict=True)]
    return headers, cells, "; ".join(notes)


def _times(rows: Sequence[TuneRow]) -> list[list[str]]:
    spreads = _spreads(rows, time_to_target)
    decimals = decimals_for(s.mean if s else None for column in spreads for s in column)

    def text(measured: SeededRuns | None, spread: Interval | None) -> str:
        if measured is None:
            return MISSING
        runs, missing = len(measured.runs), "not reached"
        text = with_spread(spread, decimals, runs=runs, part="reached", missing=missing)
        return measured.failed or text

    measured: list[list[SeededRuns | None]] = [[r.trial for r in rows], [r.compared for r in rows]]
    return [list(map(text, runs, column)) for runs, column in zip(measured, spreads, strict=True)]


def _finals(rows: Sequence[TuneRow], metric: str) -> list[list[str]]:
    scale = 100.0 if metric == ACCURACY else 1.0

    def final(measured: SeededRuns) -> Interval | None:
        return None if measured.failed else interval([scale * v for v in measured.finals])

    spreads = _spreads(rows, final)
    means = (s.mean if s else None for column in spreads for s in column)
    decimals = 1 if metric == ACCURACY else decimals_for(means)
    return [[with_spread(spread, decimals) for spread in column] for column in spreads]


def _spreads(
    rows: Sequence[TuneRow], value: Callable[[SeededRuns], Interval | None]
) -> list[list[Interval | None]]:
    """A number on the tuning seeds, where it was selected as the best and an interval would
    promise too much, and on the held-out seeds."""
    tried = [None if row.trial is None else value(row.trial) for row in rows]
    means = [None if s is None else replace(s, low=None, high=None) for s in tried]
    return [means, [value(row.compared) for row in rows]]


def _sizes(measured: SeededRuns) -> str:
    spread = sent_to_target(measured)
    return MISSING if spread is None or measured.failed else data_size(spread.mean)


def _trials(result: TuneResult, row: TuneRow) -> str:
    if not row.tuned:
        return ""
    trials = result.found.of(row.algorithm)
    failed = sum(bool(trial.measured.failed) for trial in trials)
    return f"{len(trials)} ({failed} failed)" if failed else str(len(trials))


def trials_csv(result: TuneResult) -> str:
    trials = result.found.trials
    keys = list(dict.fromkeys(key for trial in trials for key in trial.settings))
    best = [result.found.best(algorithm) for algorithm in result.found.tuning.algorithms]
    numbers = ("time_to_target", "bytes_to_target", "final_accuracy")
    rows: list[list[Any]] = [
        ["algorithm", "trial", "best", "status", "seeds", "reached", *numbers, *keys]
    ]
    for trial in trials:
        measured = trial.measured
        spreads = time_to_target(measured), sent_to_target(measured), final_result(measured)
        about = [trial.algorithm, trial.number, int(trial in best), measured.failed or "finished"]
        about += [len(measured.runs), measured.reached, *(s and s.mean for s in spreads)]
        rows.append([*about, *(trial.settings.get(key, "") for key in keys)])
    return csv_text(rows)
