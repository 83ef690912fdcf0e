"""Tuning: an equal number of trials for every algorithm on tuning seeds, then the comparison of
the settings found, and of the defaults, on held-out seeds.

Optuna proposes the settings. Its random numbers and the order in which it learns of results are
fixed, so a search that is repeated over finished runs proposes the same: that is how one resumes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fedhp import components
from fedhp.algorithms.base import (
    ADAMW_LEARNING_RATES,
    ALGORITHMS,
    LEARNING_RATES,
    Choices,
    Range,
    Space,
    has_own_rate,
    load_algorithm,
)
from fedhp.algorithms.rates import check_rate_has_effect, is_rate_overridden
from fedhp.config import Draft, Experiment, check_origin, check_targets, parse, to_tables
from fedhp.config.origins import Origins
from fedhp.engine.runs.campaign import Cell, check_cells, plan_cells, refuse_repeated, refuse_seed
from fedhp.engine.runs.run import check_folder, is_run, run_storage_errors
from fedhp.engine.runs.variants import parse_variant, split_ranges, tables_of
from fedhp.errors import ConfigError, Diverged, FedhpError, RunError, combine_errors, install_extra
from fedhp.files import write_file
from fedhp.record.reader import (
    COMPARED,
    SEARCH_FILE,
    TRIALS,
    RunReader,
    RunSummary,
    mean,
    target_key,
)
from fedhp.seeds import Purpose
from fedhp.seeds import number as seed_number
from fedhp.tables import COMMAND_LINE, flatten, parse_override

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANDOM_TRIALS = 4  # the first ones of every algorithm
BATCH = 2  # trials of an algorithm that are proposed, and run, together after those
MOST_TRIALS = 1000


@dataclass(frozen=True, slots=True)
class TunedAlgorithm:
    """An algorithm with what is tried for its settings."""

    label: str  # with the settings that are fixed
    space: Space
    defaults: Mapping[str, Any] | None  # the first trial; None: the user's ranges exclude them

    @property
    def defaults_within(self) -> bool:
        """Whether the defaults are something that the search could propose."""
        return self.defaults is not None and all(
            _is_within(self.defaults[key], option) for key, option in self.space.items()
        )


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is tuned, and how. The experiment's targets include the target."""

    algorithms: tuple[TunedAlgorithm, ...]
    experiment: Experiment
    target: float | None  # None: by the final result
    budget: int  # trials per algorithm
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]  # of the comparison
    folder: Path

    def cells(self, labels: Sequence[str], *, compared: bool = False) -> list[Cell]:
        """The runs of these labels, on the tuning seeds or in the comparison."""
        return plan_cells(
            Draft(to_tables(self.experiment), self.experiment.origins),
            overrides=(),
            algorithms=labels,
            seeds=self.seeds if compared else self.tuning_seeds,
            out=self.folder / (COMPARED if compared else TRIALS),
        )

    @property
    def most_runs(self) -> int:
        """How many runs there are at most: a default may be the best of the trials."""
        of_each = self.budget * len(self.tuning_seeds) + 2 * len(self.seeds)
        return len(self.algorithms) * of_each


@dataclass(frozen=True, slots=True)
class SeededRuns:
    """The runs of one label with several seeds."""

    label: str
    runs: tuple[RunSummary, ...]
    target: str | None  # its key in time_to_target

    @property
    def failed(self) -> str:
        """Why it has no result, such as diverged; empty if every run finished."""
        statuses = [run.status for run in self.runs if run.status != "finished"]
        return statuses[0] if statuses else "" if self.runs else "not started"

    @property
    def times(self) -> list[float | None]:
        """The virtual time to the target of every run, None where it was not reached."""
        return [run.time_to_target.get(self.target or "") for run in self.runs]

    @property
    def sent(self) -> list[int | None]:
        return [run.bytes_to_target.get(self.target or "") for run in self.runs]

    @property
    def reached(self) -> int:
        return sum(time is not None for time in self.times)

    @property
    def finals(self) -> list[float]:
        return [run.final_accuracy for run in self.runs if run.final_accuracy is not None]

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is better. First those that reach the target with every seed, by the mean time;
        then those that do not, by the mean final result; last those that failed."""
        final = mean(self.finals)
        if self.failed or final is None:
            return 2, 0.0
        times = [time for time in self.times if time is not None]
        if self.target is not None and len(times) == len(self.runs):
            return 0, sum(times) / len(times)
        return (0 if self.target is None else 1), -final


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that were tried, and their runs on the tuning seeds."""

    algorithm: str  # the label of the TunedAlgorithm
    number: int  # from 1
    settings: Mapping[str, Any]
    measured: SeededRuns

    @property
    def label(self) -> str:
        """The algorithm with these settings, as `fedhp compare` takes it."""
        return self.measured.label


@dataclass(frozen=True, slots=True)
class Tuned:
    """All trials, and the runs of the comparison."""

    tuning: Tuning
    trials: tuple[Trial, ...]  # by algorithm, then by number
    compared: Mapping[str, SeededRuns]  # by label

    def of(self, algorithm: TunedAlgorithm) -> list[Trial]:
        return [trial for trial in self.trials if trial.algorithm == algorithm.label]

    def best(self, algorithm: TunedAlgorithm) -> Trial | None:
        return best_trial(self.of(algorithm))


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """The first of the best ranked; None if all failed."""
    best = min(trials, key=lambda trial: trial.measured.rank, default=None)
    return None if best is None or best.measured.rank[0] == 2 else best


def plan_tuning(
    draft: Draft,
    *,
    overrides: Sequence[str],
    algorithms: Sequence[str] | None,
    budget: int,
    target: float | None,
    tuning_seeds: Sequence[int],
    seeds: Sequence[int],
    out: Path,
) -> Tuning:
    """The whole search, checked as far as it can be known before the first run."""
    import_optuna()
    refuse_seed(overrides, fix="write --tuning-seeds and --seeds instead")
    _check_seeds(tuning_seeds, seeds)
    if not 1 <= budget <= MOST_TRIALS:
        raise ConfigError(
            f"invalid value {budget}",
            key="--budget",
            source=COMMAND_LINE,
            allowed=f"a whole number of trials per algorithm, from 1 to {MOST_TRIALS}",
            fix="write for example --budget 20",
        )
    experiment = draft.experiment(overrides)
    targets = experiment.evaluation.targets
    if target is None:
        target = max(targets, default=None)
    elif target not in targets:
        changed = {"targets": sorted({*targets, target})}
        evaluation = experiment.evaluation.model_copy(update=changed)
        experiment = experiment.model_copy(update={"evaluation": evaluation})
        try:
            check_targets(experiment)
        except ConfigError as error:
            raise ConfigError(
                error.detail,
                key="--target",
                source=COMMAND_LINE,
                allowed="a number from 0 to 1",
                fix=error.fix,
            ) from None
    entries = experiment.compare.algorithms if algorithms is None else algorithms
    listed = algorithms is not None
    tuned = tuple(_tuned_algorithm(entry, experiment, listed=listed) for entry in entries)
    return Tuning(tuned, experiment, target, budget, tuple(tuning_seeds), tuple(seeds), out)


def import_optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise FedhpError(
            "fedhp tune needs the Python package 'optuna', which is not installed",
            allowed="an installation with the extra 'tune'",
            fix=install_extra("tune"),
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _check_seeds(tuning_seeds: Sequence[int], seeds: Sequence[int]) -> None:
    for option, numbers in (("--tuning-seeds", tuning_seeds), ("--seeds", seeds)):
        fix = f"correct {option}"
        refuse_repeated(numbers, key=option, fix=fix, what="the seed ")
    both = [seed for seed in seeds if seed in tuning_seeds]
    if both:
        raise ConfigError(
            f"the seed {both[0]} is also one of --tuning-seeds: on seeds that chose the settings, "
            "these settings look better than they are",
            key="--seeds",
            source=COMMAND_LINE,
            allowed="seeds that are not tuned on",
            fix="give other seeds, such as --tuning-seeds 0-2 --seeds 6-8",
        )


def _tuned_algorithm(entry: str, experiment: Experiment, *, listed: bool) -> TunedAlgorithm:
    """An entry of --algorithms: what it fixes, and what is tried for the rest."""
    label, ranges = split_ranges(entry)
    with experiment.origins.with_label(label, (), listed=listed).named():
        variant = parse_variant(label)
    origins = experiment.origins.with_label(label, variant.keys, listed=listed)
    default = parse(tables_of(variant, experiment), origins=origins)
    check_origin(default)
    if components.is_dotted(variant.name):
        components.make_importable(*origins.folders)
    with origins.named():
        part = components.resolve(variant.name, ALGORITHMS, key="algorithm.name")
        space = _declared_space(part, variant.name)
    if is_rate_overridden(variant.overrides.items()):
        check_rate_has_effect(default)
    fixed = {*variant.settings, *variant.overrides}
    if default.training.local_epochs is not None:
        fixed.add("training.local_steps")  # the epochs of the experiment count
    if default.training.optimizer == "adamw":
        fixed.add("training.momentum")  # which AdamW does not have
        space = {
            key: ADAMW_LEARNING_RATES if option == LEARNING_RATES else option
            for key, option in space.items()
        }
    space = {
        key: option
        for key, option in space.items()
        if key not in fixed and not (isinstance(option, Range) and option.unset in fixed)
    }
    of_experiment = {**flatten(default.model_dump()), **flatten(to_tables(default))}
    given = {**components.defaults(part), **default.algorithm.settings}
    if default.training.optimizer != "sgd" and "learning_rate" not in default.algorithm.settings:
        given["learning_rate"] = None  # the default of the class is a rate of SGD

    def value_of(key: str, option: Range | Choices | None) -> Any:
        value = of_experiment.get(key) if "." in key else given.get(key)
        unset = option.unset if isinstance(option, Range) else ""
        return of_experiment.get(unset) if value is None else value

    narrowed: dict[str, Range] = {}
    for match in ranges:
        key = match[1]
        declared = space.get(key)
        narrowed[key] = _given_range(match, declared, value_of(key, declared))
    space = {**space, **narrowed}
    if not space:
        raise ConfigError(
            f"{entry!r} fixes every setting that could be tuned",
            key="--algorithms",
            source=COMMAND_LINE,
            allowed="at least one setting to tune",
            fix="remove a setting from the entry, or give a range such as steps=5..50",
        )
    defaults = {key: value_of(key, option) for key, option in space.items()}
    excluded = any(not _is_within(defaults[key], option) for key, option in narrowed.items())
    for key, option in space.items():
        ends = (option.low, option.high) if isinstance(option, Range) else option
        for end in ends:  # a wrong range is found now, not by the trial that meets it
            at_end = label_with(label, {key: end})
            tried = parse(tables_of(parse_variant(at_end), experiment), origins=Origins(at_end))
            with tried.origins.named():
                load_algorithm(tried.algorithm.name, tried.algorithm.settings)
            if key == LEARNING_RATES.unset:
                check_rate_has_effect(tried)
    return TunedAlgorithm(label, space, None if excluded else defaults)


def _declared_space(part: Callable[..., Any], name: str) -> Space:
    """What the class declares; the learning rate is tuned for every algorithm."""
    declared = getattr(part, "tunable", {})
    if not isinstance(declared, Mapping) or not all(map(_is_option, declared.values())):
        raise ConfigError(
            f"tunable of {name} is {declared!r}",
            key="algorithm.name",
            allowed="a dictionary of settings, each with a Range(low, high) or a tuple of values",
            fix="correct tunable in the class; docs/own-parts.md has an example",
        )
    if has_own_rate(part) or {"learning_rate", LEARNING_RATES.unset} & set(declared):
        return dict(declared)
    return {LEARNING_RATES.unset: LEARNING_RATES, **declared}


def _is_option(option: object) -> bool:
    if isinstance(option, Range):
        return option.low < option.high
    return isinstance(option, tuple) and len(option) > 1


def _given_range(match: re.Match[str], declared: Range | Choices | None, value: Any) -> Range:
    """A range of the command line. It has whole numbers if the setting does."""
    texts = match[2], match[3]
    if isinstance(declared, Range):
        whole = declared.whole
    else:
        whole = isinstance(value, int) or (value is None and not any("." in t for t in texts))
    low, high = (parse_override(f"{match[1]}={text}")[1] for text in texts)
    if low >= high or (whole and not (isinstance(low, int) and isinstance(high, int))):
        problem = "whole numbers" if low < high else "a range from a smaller to a larger number"
        raise ConfigError(
            f"{match[0].strip()!r} is not a range of this setting",
            key="--algorithms",
            source=COMMAND_LINE,
            allowed=problem,
            fix=f"write for example {match[1]}=" + ("5..50" if whole else "0.1..0.5"),
        )
    unset = declared.unset if isinstance(declared, Range) else ""
    return Range(low, high, unset) if whole else Range(float(low), float(high), unset)


def _is_within(value: Any, option: Range | Choices) -> bool:
    if not isinstance(option, Range):
        return value in option
    number = isinstance(value, int if option.whole else (int, float))
    return number and not isinstance(value, bool) and option.low <= value <= option.high


def label_with(label: str, settings: Mapping[str, Any]) -> str:
    """A label with more settings; numbers have three significant digits."""
    return ":".join([label, *(f"{key}={_text(value)}" for key, value in settings.items())])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class Search:
    """Proposes the settings of one algorithm, and learns from the ranks of what was tried."""

    def __init__(self, algorithm: TunedAlgorithm, *, seed: int) -> None:
        optuna = import_optuna()
        self.algorithm = algorithm
        self.trials: list[Trial] = []
        key = crc32(algorithm.label.encode())
        sampler = optuna.samplers.TPESampler(
            seed=seed_number(seed, Purpose.SEARCH, key) % 2**32,
            n_startup_trials=RANDOM_TRIALS,
            constant_liar=True,  # of a batch, the second proposal knows the first
        )
        self._study = optuna.create_study(sampler=sampler)  # in memory, minimising
        self._space = {key: _distribution(option) for key, option in algorithm.space.items()}
        self._asked: list[Any] = []
        if algorithm.defaults is not None and algorithm.defaults_within:
            self._study.enqueue_trial(dict(algorithm.defaults))

    def ask(self, budget: int) -> list[tuple[str, dict[str, Any]]]:
        """The next batch, up to this many trials in all: labels with their settings."""
        size = RANDOM_TRIALS if not self.trials else BATCH
        size = min(size, budget - len(self.trials))
        algorithm, first = self.algorithm, len(self.trials) + 1
        proposals = []
        for number in range(first, first + size):
            if number == 1 and algorithm.defaults is not None:
                within = algorithm.defaults_within
                self._asked.append(self._study.ask(self._space) if within else None)
                proposals.append((algorithm.label, dict(algorithm.defaults)))
                continue
            trial = self._study.ask(self._space)
            self._asked.append(trial)
            settings = {k: _rounded(trial.params[k], o) for k, o in algorithm.space.items()}
            proposals.append((label_with(algorithm.label, settings), settings))
        return proposals

    def tell(self, trials: Sequence[Trial]) -> None:
        """The results of the batch, in its order."""
        for asked, trial in zip(self._asked, trials, strict=True):
            if asked is None:  # the defaults, outside the ranges
                continue
            group, value = trial.measured.rank
            # The sampler sees only the order: group by group, each within an interval of length 1.
            self._study.tell(asked, group + 0.5 + value / (2 + 2 * abs(value)))
        self.trials += trials
        self._asked = []


def _distribution(option: Range | Choices) -> BaseDistribution:
    from optuna import distributions

    if not isinstance(option, Range):
        return distributions.CategoricalDistribution(option)
    low, high, log = option.low, option.high, option.logarithmic
    if option.whole:
        return distributions.IntDistribution(int(low), int(high), log=log)
    return distributions.FloatDistribution(low, high, log=log)


def _rounded(value: Any, option: Range | Choices) -> Any:
    """A proposed value as the label has it: three significant digits, within the range."""
    if not isinstance(value, float) or not isinstance(option, Range):
        return value
    return min(max(float(f"{value:.3g}"), option.low), option.high)


@dataclass(frozen=True, slots=True)
class CellBatch:
    """Runs that do not wait for each other."""

    cells: tuple[Cell, ...]
    names: Mapping[Path, tuple[str, str]]  # by folder: the algorithm's label, and "trial 3 seed 0"
    later: int  # how many runs may follow


RunCells = Callable[[CellBatch], list[FedhpError]]
Proposals = Sequence[tuple["Search", Sequence[tuple[str, Mapping[str, Any]]]]]


def check_tuning(tuning: Tuning, *, resume: bool) -> None:
    """Find every mistake before the first run: settings, data, models, the folder."""
    folder = tuning.folder
    with run_storage_errors(folder):
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if used and not ((folder / SEARCH_FILE).is_file() and resume):
        tuned = (folder / SEARCH_FILE).is_file()
        what = "already holds a tuning" if tuned else "exists and is not the folder of a tuning"
        raise RunError(
            f"--out {folder}: {what}",
            allowed="a folder that does not exist yet, or --resume to continue a tuning",
            fix="add --resume, or choose another --out" if tuned else "choose another --out",
        )
    if used:
        _read_search(tuning)
    labels = [algorithm.label for algorithm in tuning.algorithms]
    check_cells(tuning.cells(labels, compared=True), resume=resume)


def tune(
    tuning: Tuning,
    *,
    run: RunCells,
    trial_ended: Callable[[Trial, bool], None] = lambda trial, best: None,
) -> tuple[Tuned, list[FedhpError]]:
    """Search, then compare. Returns the errors of the comparison.

    A trial that diverges is a result; any other error in a trial ends the search. `trial_ended`
    learns whether the trial is the best so far.
    """
    searches = [Search(each, seed=min(tuning.tuning_seeds)) for each in tuning.algorithms]
    earlier = _read_search(tuning)
    while any(len(search.trials) < tuning.budget for search in searches):
        proposals = [(search, search.ask(tuning.budget)) for search in searches]
        _check_repeated(tuning, proposals, earlier)
        _write_search(tuning, proposals, earlier)
        errors = run(_trial_batch(tuning, proposals))
        failures = [error for error in errors if not isinstance(error, Diverged)]
        if failures:
            raise combine_errors(failures)
        for search, proposed in proposals:
            ended = [
                Trial(search.algorithm.label, number, settings, measure(tuning, label))
                for number, (label, settings) in enumerate(proposed, len(search.trials) + 1)
            ]
            search.tell(ended)
            for trial in ended:
                trial_ended(trial, best_trial(search.trials[: trial.number]) is trial)
    trials = tuple(trial for search in searches for trial in search.trials)
    found = Tuned(tuning, trials, {})
    batch = _comparison_batch(found)
    errors = run(batch)
    labels = dict.fromkeys(cell.label for cell in batch.cells)
    compared = {label: measure(tuning, label, compared=True) for label in labels}
    return Tuned(tuning, trials, compared), errors


def _trial_batch(tuning: Tuning, proposals: Proposals) -> CellBatch:
    later = 2 * len(tuning.algorithms) * len(tuning.seeds)
    names: list[tuple[str, str, str]] = []
    for search, proposed in proposals:
        done = len(search.trials)
        later += (tuning.budget - done - len(proposed)) * len(tuning.tuning_seeds)
        for number, (label, _) in enumerate(proposed, done + 1):
            names.append((search.algorithm.label, label, f"trial {number}"))
    return _batch(tuning, names, later=later)


def _comparison_batch(found: Tuned) -> CellBatch:
    names: list[tuple[str, str, str]] = []
    for algorithm in found.tuning.algorithms:
        best = found.best(algorithm)
        labels = {} if best is None else {best.label: "tuned"}
        labels.setdefault(algorithm.label, "default")
        names += [(algorithm.label, label, name) for label, name in labels.items()]
    return _batch(found.tuning, names, compared=True)


def _batch(
    tuning: Tuning,
    names: Sequence[tuple[str, str, str]],
    *,
    compared: bool = False,
    later: int = 0,
) -> CellBatch:
    """The runs of labels, each after its algorithm's label and before its name; no folder may hold
    a run with other settings."""
    cells: dict[Path, Cell] = {}  # two trials with the same settings have the same runs
    shown: dict[Path, tuple[str, str]] = {}
    for algorithm, label, name in names:
        for cell in tuning.cells([label], compared=compared):
            cells.setdefault(cell.folder, cell)
            shown.setdefault(cell.folder, (algorithm, f"{name} seed {cell.seed}"))
    for cell in cells.values():
        check_folder(cell.experiment, cell.folder, resume=True)
    return CellBatch(tuple(cells.values()), shown, later)


def measure(tuning: Tuning, label: str, *, compared: bool = False) -> SeededRuns:
    """The results of the runs of a label that have begun."""
    runs = []
    for cell in tuning.cells([label], compared=compared):
        if is_run(cell.folder):
            with RunReader(cell.folder) as reader:
                runs.append(reader.summary())
    key = None if tuning.target is None else target_key(tuning.target)
    return SeededRuns(label, tuple(runs), key)


def _search_of(tuning: Tuning, algorithm: TunedAlgorithm) -> dict[str, Any]:
    space = {
        key: [option.low, option.high] if isinstance(option, Range) else list(option)
        for key, option in algorithm.space.items()
    }
    return {
        "target": tuning.target,
        "tuning_seeds": list(tuning.tuning_seeds),
        "space": space,
        "defaults": None if algorithm.defaults is None else dict(algorithm.defaults),
    }


def _read_search(tuning: Tuning) -> dict[str, Any]:
    """The searches that the folder holds, by label; refused if they had other settings."""
    file = tuning.folder / SEARCH_FILE
    if not file.is_file():
        return {}
    try:
        earlier = json.loads(file.read_bytes())
        searches = dict(earlier["algorithms"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        raise RunError(
            f"{file}: cannot be read, so the search cannot be continued",
            allowed="the file as fedhp tune wrote it",
            fix="put the file back, or choose another --out",
        ) from None
    for algorithm in tuning.algorithms:
        now, before = _search_of(tuning, algorithm), searches.get(algorithm.label, {})
        for key in now if before else ():
            if now[key] != before.get(key):
                shown = key.replace("_", " ")
                raise RunError(
                    f"{tuning.folder}: the {shown} of {algorithm.label} is {now[key]}, but the "
                    f"search was started with {before.get(key)}",
                    allowed="the seeds, target, ranges and defaults the search was started with",
                    fix="set it back, or choose another --out",
                )
    return {label: search for label, search in searches.items() if isinstance(search, dict)}


def _check_repeated(tuning: Tuning, proposals: Proposals, earlier: Mapping[str, Any]) -> None:
    """Refuse to go on if the search proposes something else than when it was started."""
    for search, proposed in proposals:
        recorded = earlier.get(search.algorithm.label, {})
        known = recorded.get("trials", [])[len(search.trials) :]
        for number, ((label, _), before) in enumerate(zip(proposed, known, strict=False)):
            if label != before:
                raise RunError(
                    f"{tuning.folder}: trial {len(search.trials) + number + 1} would be {label}, "
                    f"but it was {before} (Optuna {recorded.get('optuna')} then, "
                    f"{import_optuna().__version__} now)",
                    allowed="the version of Optuna that the search was started with",
                    fix="install that version, or choose another --out",
                )


def _write_search(tuning: Tuning, proposals: Proposals, earlier: dict[str, Any]) -> None:
    """Keep what was proposed so far, before it is run."""
    for search, proposed in proposals:
        label = search.algorithm.label
        labels = [trial.label for trial in search.trials] + [label for label, _ in proposed]
        known = earlier.get(label, {}).get("trials", [])
        earlier[label] = {
            **_search_of(tuning, search.algorithm),
            "optuna": import_optuna().__version__,
            "trials": [*labels, *known[len(labels) :]],
        }
    with run_storage_errors(tuning.folder):
        text = json.dumps({"algorithms": earlier}, indent=1)
        tuning.folder.mkdir(parents=True, exist_ok=True)
        write_file(tuning.folder / SEARCH_FILE, text.encode())
