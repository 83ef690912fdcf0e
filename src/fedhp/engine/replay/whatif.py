"""What if: the rounds of a recorded run under other planners or settings, without training.

The run's own planner is always replayed first: where its rounds come out bit for bit as they
were recorded, the replay is the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedhp import components
from fedhp.algorithms.base import abouts, built_ins, is_asynchronous, is_synchronous, traits_of
from fedhp.config import ExchangeConfig, Experiment, log_notes, parse, to_tables
from fedhp.config.origins import Origins
from fedhp.engine.replay.executor import ReplayExecutor, replay, world_difference
from fedhp.engine.runs.variants import Variant, parse_variant, split_algorithms, tables_of
from fedhp.engine.trial import try_algorithm
from fedhp.errors import ConfigError, RunError
from fedhp.record.measured import Distances, MeasuredRounds, Rounds
from fedhp.record.reader import RunReader
from fedhp.rounds.context import PlanningContext, federation_of, planning_context
from fedhp.tables import COMMAND_LINE, parse_override
from fedhp.topologies import ADDED_NAMES

LOCAL_WORK = ("training.local_steps", "training.local_epochs")
ALLOWED = (
    "world.*, topology.*, algorithm.* of the run's own planner, training.local_steps or "
    "training.local_epochs"
)
_TRAINS = "other models would be trained, and the measurements of these would not apply"
_NO_EFFECT = "it changes no plan and no time"
REFUSED = {
    **dict.fromkeys(("data", "augmentation", "exchange", "attack", "model", "task"), _TRAINS),
    **dict.fromkeys(("training", "algorithm.learning_rate"), _TRAINS),
    **dict.fromkeys(("rounds", "horizon"), "a replay has the rounds of the record"),
    **dict.fromkeys(("device", "engine", "executors", "memory"), _NO_EFFECT),
    **dict.fromkeys(("ray", "checkpoint", "compare"), _NO_EFFECT),
    "seed": "another seed is another world with other models, which are not in the record",
    "workers": "the record has no measurements of other workers",
    "evaluation": "nothing is trained, so there is nothing to test",
}
# recorded: the same as the record. exact: the times of a real run with this planner. assumed:
# plans rest on measurements of the recorded models, where a real run would have its own.
Sure = Literal["recorded", "exact", "assumed"]


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The rounds of one planner, and what they rest on. Times are in s; means are over the rounds,
    and over the workers where these have numbers of their own."""

    planner: str
    rounds: Rounds
    sure: Sure
    assumptions: tuple[str, ...] = ()

    @property
    def round_time(self) -> float:
        return float(self.rounds.round_time.mean())

    @property
    def mean_waiting_time(self) -> float:
        return float(self.rounds.waiting_time.mean())

    @property
    def mean_local_steps(self) -> float:
        return float(self.rounds.mean_steps.mean())

    @property
    def mean_links(self) -> float:
        return float(self.rounds.links.mean())

    @property
    def total_time(self) -> float:
        return float(self.rounds.clock[-1])

    @property
    def steps_per_second(self) -> float:
        """Local steps of all workers together per second of virtual time."""
        return float(self.rounds.local_steps.sum()) / self.total_time if self.total_time else np.nan

    def as_json(self) -> dict[str, Any]:
        return {
            "planner": self.planner,
            "rounds": len(self.rounds.clock),
            "round_time": self.round_time,
            "mean_waiting_time": self.mean_waiting_time,
            "mean_local_steps": self.mean_local_steps,
            "steps_per_second": self.steps_per_second if self.total_time else None,
            "mean_links": self.mean_links,
            "total_time": self.total_time,
            "sure": self.sure,
            "assumptions": list(self.assumptions),
        }


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recorded run, and the same rounds under other planners."""

    folder: Path
    seed: int
    overrides: tuple[str, ...]
    recorded: ReplayOutcome
    planners: tuple[ReplayOutcome, ...]
    own: ReplayOutcome  # the run's own planner, replayed: how far the replay can be trusted
    all_links: bool  # are on record, not a selection of them
    seconds: float  # the replay took

    @property
    def first_difference(self) -> int | None:
        """The first round of the own planner that is not as recorded; none: all are."""
        return self.own.rounds.first_difference(self.recorded.rounds)

    @property
    def best(self) -> ReplayOutcome:
        """The most local steps per second of virtual time."""
        return max(self.planners, key=lambda outcome: outcome.steps_per_second)

    def against_record(self, outcome: ReplayOutcome) -> tuple[float | None, float | None]:
        """How much longer rounds and waiting are, as shares; none where nothing was recorded."""
        return (
            _change(outcome.round_time, self.recorded.round_time),
            _change(outcome.mean_waiting_time, self.recorded.mean_waiting_time),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values; changes are shares of the recorded number."""
        return {
            "run": str(self.folder),
            "seed": self.seed,
            "overrides": list(self.overrides),
            "recorded": self.recorded.as_json(),
            "planners": [self._as_json(outcome) for outcome in self.planners],
            "best": self.best.planner,
            "check": {
                "round_time": self.own.round_time,
                "exact": self.first_difference is None,
                "first_difference": self.first_difference,
            },
            "seconds": self.seconds,
        }

    def _as_json(self, outcome: ReplayOutcome) -> dict[str, Any]:
        longer, waiting = self.against_record(outcome)
        return {**outcome.as_json(), "round_time_change": longer, "waiting_time_change": waiting}


def _change(value: float, recorded: float) -> float | None:
    return value / recorded - 1 if recorded > 0 else None


def whatif(
    folder: str | Path,
    planners: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    trust: Sequence[str] = (),
) -> WhatIf:
    """Replay a run's recorded rounds with other planners ("fedhp:deadline=fill", "dpsgd"), by
    default FedHP's and its rivals', and with changed settings of the run ("world.drift=0").

    trust: modules whose parts the run folder may name; a planner named here needs no trust.
    """
    with components.parts_of_record(trust, named=_named(planners, overrides)):
        return _whatif(folder, planners, overrides)


def _named(planners: Sequence[str], overrides: Sequence[str]) -> Iterator[str]:
    """The dotted paths that the user wrote, not the record."""
    variants = [parse_variant(text, key="--planner") for text in _entries(planners)]
    yield from (variant.name for variant in variants)
    changed = [value for variant in variants for value in variant.overrides.values()]
    for value in (*changed, *(parse_override(override)[1] for override in overrides)):
        if isinstance(value, str):
            yield value


def _entries(planners: Sequence[str]) -> list[str]:
    # An empty entry is kept, so that it is refused as such.
    return [entry for text in planners for entry in split_algorithms(text) or [text]]


def _whatif(folder: str | Path, planners: Sequence[str], overrides: Sequence[str]) -> WhatIf:
    started = time.monotonic()
    with RunReader(folder) as run:
        origins = Origins(str(run.folder / "experiment.toml"))
        own = parse(_tables(run), origins=origins, stored=True)
        base = _changed(own, overrides)
        variants = _variants(planners, base, overrides)
        measured = MeasuredRounds(run)
        context = _context(own, measured)
        _check_world(context, measured, folder=run.folder)
        label = run.meta("label")
        given = base.with_origins(replace(base.origins, name=COMMAND_LINE))
        changed = [(label, _context(given, measured))] if overrides else []
        contexts = [
            (variant.label, _context(_of_variant(variant, base), measured)) for variant in variants
        ]
        keys = [parse_override(override)[0] for override in overrides]
        with Origins(COMMAND_LINE).named():
            _check_local_work(keys, [other for _, other in (contexts if planners else changed)])
        for variant, (_, other) in zip(variants, contexts, strict=True):
            with Origins(_option(variant.label)).named():
                _check_local_work(list(variant.overrides), [other])
        if not planners:
            contexts = _different([*changed, *contexts], [] if overrides else [context])
        executors = _executors([context, *(other for _, other in contexts)], measured)
        first, *others = replay(executors, measured.rounds)
        recorded = measured.outcome()
        return WhatIf(
            folder=run.folder,
            seed=own.seed,
            overrides=tuple(overrides),
            recorded=ReplayOutcome(label, recorded, "recorded"),
            planners=tuple(
                _outcome(name, executor, rounds, measured=measured, recorded=recorded)
                for (name, _), executor, rounds in zip(contexts, executors[1:], others, strict=True)
            ),
            own=_outcome(label, executors[0], first, measured=measured, recorded=recorded),
            all_links=measured.all_links,
            seconds=time.monotonic() - started,
        )


def _tables(run: RunReader) -> dict[str, Any]:
    """The settings of a run that has something to replay."""
    if not run.rounds_done:
        raise RunError(
            f"{run.folder}: the run has no round yet",
            allowed="a run with at least one round, finished or not",
            fix="wait for its first round, or choose another run",
        )
    tables = run.meta("experiment")
    if not isinstance(tables, dict):
        raise RunError(
            f"{run.folder}: the record does not say with which settings the run was started",
            allowed="a record this program wrote, unchanged",
            fix="replay another run",
        )
    return tables


def _changed(own: Experiment, overrides: Sequence[str]) -> Experiment:
    """The run's own experiment with these settings; the measurements must stay valid."""
    with Origins(COMMAND_LINE).named():
        for override in overrides:
            _check_key(parse_override(override)[0])
    notes: list[str] = []
    changed = parse(to_tables(own), overrides, origins=own.origins, notes=notes)
    log_notes(notes)
    return changed


def _check_key(key: str) -> None:
    why = REFUSED.get(key) or REFUSED.get(key.partition(".")[0], "")
    fix = "remove it, or start a new run with it"
    if key in LOCAL_WORK:
        return
    if key in ("algorithm", "algorithm.name"):
        why, fix = "the planner is chosen with --planner", "write --planner NAME"
    if key == "world.profile":
        why = "the record has every setting of its world, so it would change nothing"
        fix = "set the key itself, such as world.bandwidth.unit or world.drift"
    if why:
        raise ConfigError(
            f"cannot be changed in a replay: {why}", key=key, allowed=ALLOWED, fix=fix
        )


def _check_local_work(changed: Sequence[str], contexts: Sequence[PlanningContext]) -> None:
    """Refuse local steps or epochs that none of these planners uses."""
    keys = [key for key in changed if key in LOCAL_WORK]
    traits = [traits_of(context.algorithm) for context in contexts]
    if not keys or any(each.local_work and not each.own_steps for each in traits):
        return
    fixed = built_ins(lambda part: part.configured().local_work)
    names = ", ".join(dict.fromkeys(repr(other.experiment.algorithm.name) for other in contexts))
    raise ConfigError(
        f"would change nothing: {names} sets the steps by itself",
        key=keys[0],
        allowed=f"a planner with fixed steps ({', '.join(fixed)}; without algorithm.steps), or "
        "FedHP with deadline = 'fill'",
        fix="remove it, or name the planners whose steps it sets, such as --planner dpsgd",
    )


def _variants(planners: Sequence[str], base: Experiment, overrides: Sequence[str]) -> list[Variant]:
    """The planners asked for, or all; each may be replayed, and each setting has its planner."""
    chosen = _entries(planners) or _default_planners(base)
    variants = [parse_variant(text, key="--planner") for text in dict.fromkeys(chosen)]
    for variant in variants:
        with Origins(_option(variant.label)).named():
            for key in (*variant.overrides, *(f"algorithm.{name}" for name in variant.settings)):
                _check_key(key)
    name = base.algorithm.name
    for override in overrides if planners else ():
        key = parse_override(override)[0]
        if key.startswith("algorithm.") and all(variant.name != name for variant in variants):
            raise ConfigError(
                f"is a setting of {name!r}, which is not among the planners",
                key=key,
                source=COMMAND_LINE,
                allowed="settings of the run's own planner, where that is replayed",
                fix=f"add --planner {name}, or write it after a planner: NAME:key=value",
            )
    return variants


def _default_planners(base: Experiment) -> list[str]:
    """All that can plan on the topology (where it changes, those that follow it) and have the
    run's exchange."""
    following = {name: part.on_topology for name, part in abouts().items() if part.on_topology}
    on_topology = [f"{name}:{setting}" for name, setting in following.items()]
    with base.origins.named():
        changing = federation_of(base).changing
    if changing is not None:
        return on_topology
    plain = base.exchange == ExchangeConfig() and base.attack.kind in ("none", "label_flip")
    with_rounds = built_ins(is_synchronous)
    planners = [
        f"{name}:{settings}".rstrip(":")
        for name, part in abouts().items()
        for settings in part.planners
        if plain or name in with_rounds
    ]
    if base.training.local_epochs is not None:
        planners = [name for name in planners if ":steps=" not in name]
    if base.topology.name in ADDED_NAMES:
        return [*(name for name in planners if name not in following), *on_topology]
    return planners


def _option(label: str) -> str:
    return f"--planner {label}"


def _of_variant(variant: Variant, base: Experiment) -> Experiment:
    notes: list[str] = []
    origins = replace(base.origins, name=_option(variant.label))
    changed = parse(tables_of(variant, base, notes=notes), origins=origins)
    log_notes(notes)
    return changed


def _context(experiment: Experiment, measured: MeasuredRounds) -> PlanningContext:
    """A planner and its world, tried; the model is as large as it was unless a setting says so."""
    with experiment.origins.named():
        context = planning_context(
            experiment,
            model_bits=8.0 * measured.model_bytes,
            transfer_share=measured.transfer_share,
            samples=measured.samples,
            trains=False,
        )
    try_algorithm(context)
    return context


def _check_world(context: PlanningContext, measured: MeasuredRounds, *, folder: Path) -> None:
    """Refuse to replay in a world that is not the one of the record."""
    asynchronous = is_asynchronous(context.algorithm)
    difference = world_difference(measured, context.world, asynchronous=asynchronous)
    if difference:
        raise RunError(
            f"{folder}: the world cannot be rebuilt as it was recorded: {difference}",
            allowed="a run of this version of fedhp, its world.trace (if any) unchanged",
            fix="replay it with the version that wrote it, or put the trace file back",
        )


def _different(
    contexts: list[tuple[str, PlanningContext]], known: list[PlanningContext]
) -> list[tuple[str, PlanningContext]]:
    """Without those whose planner is among the known ones or before them."""
    different: list[tuple[str, PlanningContext]] = []
    for label, context in contexts:
        if all(context.algorithm != other.algorithm for other in known):
            different.append((label, context))
            known = [*known, context]
    return different


def _executors(
    contexts: Sequence[PlanningContext], measured: MeasuredRounds
) -> list[ReplayExecutor]:
    """The first is the run's own; those with one base topology share the distances."""
    own = contexts[0]
    traits = traits_of(own.algorithm)
    kept = None if traits.scoring is None else measured.kept_peers()
    shared: dict[bytes, Distances] = {}
    executors = []
    for context in contexts:
        base = context.federation.base_topology
        key = base.links.tobytes()
        if key not in shared:
            shared[key] = Distances(measured, base, smoothing=traits.distance_smoothing)
        same = context.algorithm == own.algorithm and key == next(iter(shared))
        executors.append(
            ReplayExecutor(context, measured, distances=shared[key], kept=kept if same else None)
        )
    return executors


def _outcome(
    label: str,
    executor: ReplayExecutor,
    rounds: Rounds,
    *,
    measured: MeasuredRounds,
    recorded: Rounds,
) -> ReplayOutcome:
    if rounds.first_difference(recorded) is None:
        return ReplayOutcome(label, rounds, "recorded")
    assumptions = tuple(_assumptions(executor, measured))
    return ReplayOutcome(label, rounds, "assumed" if assumptions else "exact", assumptions)


def _assumptions(executor: ReplayExecutor, measured: MeasuredRounds) -> Iterator[str]:
    """What a planner was given that would have been different in a run with it."""
    algorithm = executor.context.algorithm
    traits = traits_of(algorithm)
    if is_asynchronous(algorithm) or traits.plans_by == "world":
        return
    if traits.scoring is not None:
        if executor.kept is None and (traits.scoring.symmetric or executor.drew_peers):
            yield "its scores are not on record: peers are kept as if by chance"
        return
    share = executor.links_measured / max(1, executor.links_asked)
    rough = ": a rough guess" if share < 0.5 else ""
    yield (
        "it plans by update norms and distances of the recorded models; of the distances it asks "
        f"for, {100 * share:.0f} % were measured in the same round, the others are estimated from "
        f"those{rough}"
    )
    if traits.uses_estimates and not np.isfinite(measured.smoothness).any():
        yield "the run measured no smoothness or gradient variance: the pace stays as it starts"
    if not measured.all_links:
        yield "the record holds a selection of the links of a round, not all"
