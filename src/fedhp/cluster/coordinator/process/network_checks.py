"""Which experiments a network of machines can carry out."""

from __future__ import annotations

from fedhp.algorithms.base import built_ins, rule_of, traits_of
from fedhp.config import Experiment
from fedhp.errors import ConfigError, RunError
from fedhp.rounds.context import PlanningContext, planning_context

TRIAL_MODEL_BITS = 8e6  # to check the settings with; the workers report the true size


def check_network(experiment: Experiment) -> None:
    """Refuse an experiment that machines cannot carry out."""
    if experiment.cluster.min_workers > experiment.workers:
        raise RunError(
            f"cluster.min_workers is {experiment.cluster.min_workers}, but workers is "
            f"{experiment.workers}",
            allowed="at most as many as there are workers",
            fix="lower cluster.min_workers, or raise workers",
        )
    for key, value, what in (
        ("data.own_test", experiment.data.own_test, "on samples that it holds back"),
        ("evaluation.per_class", experiment.evaluation.per_class, "for every class"),
    ):
        if value:
            raise ConfigError(
                f"is {value!r}, but a worker of a network does not report results {what}",
                key=key,
                allowed="this setting in simulations only",
                fix=f"remove {key}, or simulate it with: fedhp run",
            )
    for key, length in (
        ("horizon", experiment.horizon),
        ("evaluation.seconds", experiment.evaluation.seconds),
    ):
        if length is not None:
            raise ConfigError(
                f"is {length:g} s of virtual time, but a network has no virtual time",
                key=key,
                allowed="this setting in simulations only",
                fix="set rounds and until.clock (real seconds)"
                if key == "horizon"
                else "set evaluation.every (rounds)",
            )
    stage = planning_context(experiment, model_bits=TRIAL_MODEL_BITS)
    _check_groups(experiment, stage.algorithm)
    _check_changing(experiment, stage)
    if experiment.cluster.emulate and experiment.world.device_trace is not None:
        raise ConfigError(
            "is set, but workers of a network that emulate step times do not read this file",
            key="world.device_trace",
            allowed="world.trace, which every worker gets with --trace FILE",
            fix="simulate it, and write world.trace with: fedhp export RUN --trace FILE",
        )
    traits = traits_of(stage.algorithm)
    problem = traits.simulated
    if not problem and traits.mailbox != "meet":
        problem = (
            f"has Traits(mailbox={traits.mailbox!r}), but workers of a network meet in pairs: they "
            "neither deliver into boxes nor gather in groups"
        )
    if not problem and rule_of(stage.algorithm).per_link():
        problem = (
            "has a rule with send_to(), but a worker of a network sends the same message to all "
            "that read it"
        )
    if problem:
        on_network = built_ins(lambda part: not part.traits.simulated)
        raise ConfigError(
            f"{experiment.algorithm.name!r} {problem}",
            key="algorithm.name",
            allowed=f"{', '.join(on_network)}, or your own",
            fix="choose another algorithm, or simulate it with: fedhp run",
        )
    for name, problem in traits.simulated_settings.items():
        raise ConfigError(
            problem,
            key=f"algorithm.{name}",
            allowed="this setting in simulations only",
            fix=f"remove algorithm.{name}, or simulate it with: fedhp run",
        )


def _check_changing(experiment: Experiment, stage: PlanningContext) -> None:
    """Refuse robust mixing with the few peers that a changing topology has in a round."""
    robust = experiment.exchange.robust
    changes = stage.federation.changing is not None and traits_of(stage.algorithm).uses_topology
    if changes and robust in ("trimmed_mean", "median", "krum"):
        raise ConfigError(
            f"is {robust!r}, but topology.name = {experiment.topology.name!r} changes over rounds, "
            "and a worker has too few peers in a round to outvote a poisoned one",
            key="exchange.robust",
            allowed="'none' or 'clip' with a topology that changes",
            fix="set exchange.robust = 'clip', or choose a fixed topology",
            others=("topology.name",),
        )


def _check_groups(experiment: Experiment, algorithm: object) -> None:
    """Refuse what group averages do not offer."""
    if not traits_of(algorithm).group_average:
        return
    if not hasattr(algorithm, "restart"):
        raise ConfigError(
            f"{experiment.algorithm.name!r} averages groups of workers, but cannot continue when a "
            "machine has lost its models",
            key="algorithm.name",
            allowed="a class with Traits(group_average=True) and restart(state, workers)",
            fix="add restart() to the class (docs/own-parts.md), or simulate it with: fedhp run",
        )
