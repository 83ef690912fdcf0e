"""What plans and virtual time need: algorithm, federation and world, but no data and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedhp.algorithms import Algorithm, AsyncAlgorithm, Federation, load_algorithm
from fedhp.algorithms.base import built_ins, is_asynchronous, is_synchronous, rule_of, traits_of
from fedhp.algorithms.rates import own_learning_rate
from fedhp.algorithms.topology_checks import check_topology
from fedhp.components import is_dotted
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.exchange.mailbox import kept_messages
from fedhp.graph import topologies
from fedhp.timing import epoch_steps
from fedhp.types import IntArray
from fedhp.world import World, build_world

MOST_EPOCH_STEPS = 100_000  # of a worker in a round, as of training.local_steps
TRANSFER_INTERVALS = 100_000  # of the links' changes in one transfer, at most


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """What the loops and planners need of an experiment; Prepared adds what training needs."""

    experiment: Experiment
    algorithm: Algorithm | AsyncAlgorithm
    federation: Federation  # what the algorithm knows before the first round
    world: World
    transfer_share: float  # of a model's bytes that one transfer takes, compressed
    # [N] the steps of training.local_epochs, of one step each where samples are not known; None:
    # it is not set.
    epoch_steps: IntArray | None
    model_bytes: int = field(init=False)  # counted for one transfer, by the world's size of a model
    learning_rate: float = field(init=False)  # the first: the algorithm's own, or the experiment's

    def __post_init__(self) -> None:
        training = self.experiment.training
        own = own_learning_rate(self.algorithm, optimizer=training.optimizer)
        rate = training.learning_rate if own is None else own
        object.__setattr__(self, "learning_rate", rate)
        object.__setattr__(self, "model_bytes", round(self.world.model_bits / 8))


def momentum_of(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> float:
    own = traits_of(algorithm).momentum
    return experiment.training.momentum if own is None else own


def serving_of(
    experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm
) -> Literal["", "mixed", "average"]:
    """What an asynchronous worker serves and is tested on, if that is not its current model.

    Tests by virtual time meet it between two exchanges: it serves the model of the last one.
    """
    if is_synchronous(algorithm):
        return ""
    traits, by_time = traits_of(algorithm), experiment.evaluation.seconds is not None
    if traits.serves == "average":
        return "average"
    return "mixed" if by_time and not traits.single_steps else ""


def extra_state(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> tuple[str, ...]:
    """What a worker keeps besides its row, in the size of a model, as checkpoints name it."""
    if is_synchronous(algorithm):
        return ()
    served = ("served",) if serving_of(experiment, algorithm) else ()
    return (*served, *kept_messages(traits_of(algorithm).mailbox, rule_of(algorithm)))


def planning_context(
    experiment: Experiment,
    *,
    model_bits: float,
    transfer_share: float | None = None,
    samples: Sequence[int] | None = None,
    trains: bool = True,
) -> PlanningContext:
    """The context of an experiment whose model is not built; model_bits is its size, and
    transfer_share what a transfer takes of it, where that is known. samples: of each worker.
    trains: false in a replay, where the settings of the optimizer are those of another run."""
    part = experiment.algorithm
    algorithm = load_algorithm(part.name, part.settings)
    federation = federation_of(experiment)
    world = world_of(experiment, model_bits=model_bits)
    check_topology(algorithm, federation, experiment, recorded_away=world.recorded_away)
    check_exchange(experiment, algorithm)
    check_local_epochs(experiment, algorithm)
    if trains:
        check_optimizer(experiment, algorithm)
    if transfer_share is None:
        transfer_share = nominal_share(experiment)
    return PlanningContext(
        experiment,
        algorithm,
        federation,
        world,
        transfer_share,
        epoch_steps_of(experiment, samples or [1] * experiment.workers),
    )


def epoch_steps_of(experiment: Experiment, samples: Sequence[int]) -> IntArray | None:
    """What training.local_epochs is in steps, for workers with so many samples; 0: unknown."""
    training, counts = experiment.training, np.array(samples, dtype=np.int64)
    if training.local_epochs is None:
        return None
    steps = epoch_steps(counts, epochs=training.local_epochs, batch_size=training.batch_size)
    return np.where(counts > 0, np.minimum(steps, MOST_EPOCH_STEPS), 0)


def check_local_epochs(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> None:
    """Refuse local epochs for an algorithm that has no use for them, or has steps of its own."""
    epochs, name = experiment.training.local_epochs, experiment.algorithm.name
    if epochs is None:
        return
    traits, yours = traits_of(algorithm), is_dotted(name)
    if not traits.local_epochs:
        why = "it trains by time" if traits.group_average else "it sets the steps by itself"
        names = built_ins(lambda part: part.traits.local_epochs)
        raise ConfigError(
            f"is {epochs:g}, but has no effect on {name!r}: {why}",
            key="training.local_epochs",
            allowed=f"{', '.join(names)} with training.local_epochs"
            + (", or your own with traits = Traits(local_epochs=True)" if yours else ""),
            fix="remove training.local_epochs"
            + (", or use observation.epoch_steps (docs/own-parts.md)" if yours else ""),
        )
    if traits.own_steps:
        own = experiment.algorithm.settings[traits.own_steps]
        raise ConfigError(
            f"the value {epochs:g} has no effect: algorithm.{traits.own_steps} is {own}",
            key="training.local_epochs",
            allowed=f"one of training.local_epochs and algorithm.{traits.own_steps}",
            fix="remove one of the two",
        )


def nominal_share(experiment: Experiment) -> float:
    """What a transfer takes of a model's bytes, as far as that is known without the model."""
    exchange, training = experiment.exchange, experiment.training
    if training.optimizer_state == "mix":  # the velocity, or AdamW's two moments, travel along
        return 3.0 if training.optimizer == "adamw" else 2.0
    topk = 2 * exchange.topk_share
    shares = {"fp16": 0.5, "int8": 0.25, "topk": topk if topk <= 1 else 1.0}
    return shares.get(exchange.compression, 1.0)


def check_exchange(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> None:
    """Refuse ways to send, combine and attack models that this experiment cannot have."""
    exchange = experiment.exchange
    if exchange.compression == "topk" and exchange.robust != "none":
        raise ConfigError(
            f"is {exchange.robust!r}, but with exchange.compression = 'topk' a model arrives in "
            "parts over several rounds, and a rule cannot tell a late part from a poisoned one",
            key="exchange.robust",
            allowed="'none' with topk; any rule with none, fp16 and int8",
            fix="set exchange.compression = 'int8', or remove exchange.robust",
            others=("exchange.compression",),
        )
    _check_mixes_models(experiment, algorithm)
    _check_rule(experiment, algorithm)


def check_optimizer(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> None:
    """Refuse settings of the optimizer that have no effect, or that this algorithm cannot have."""
    training, momentum = experiment.training, momentum_of(experiment, algorithm)
    if training.optimizer == "adamw" and momentum:
        raise ConfigError(
            f"is {momentum:g}, but training.optimizer is 'adamw', which has no such momentum",
            key="algorithm.momentum",
            allowed="algorithm.momentum with training.optimizer = 'sgd' only",
            fix="remove algorithm.momentum (AdamW has training.beta1), or set "
            "training.optimizer = 'sgd'",
        )
    if training.nesterov and not momentum:
        raise ConfigError(
            "is true, but has no effect: the momentum is 0",
            key="training.nesterov",
            allowed="training.nesterov with a momentum above 0",
            fix="set training.momentum, for example to 0.9, or remove training.nesterov",
        )
    if traits_of(algorithm).single_steps:
        _check_single_steps(experiment)
    if training.optimizer_state == "keep":
        return
    if training.optimizer == "sgd" and not momentum:
        raise ConfigError(
            f"is {training.optimizer_state!r}, but SGD without momentum keeps no state",
            key="training.optimizer_state",
            allowed="training.optimizer_state with momentum, or with training.optimizer = 'adamw'",
            fix="set training.momentum, for example to 0.9, or remove training.optimizer_state",
        )
    why = _why_state_cannot_travel(experiment, algorithm)
    if training.optimizer_state == "mix" and why:
        raise ConfigError(
            f"is 'mix', but {why}",
            key="training.optimizer_state",
            allowed="'keep' or 'reset' here",
            fix="set training.optimizer_state = 'keep' or 'reset'",
            others=("exchange.robust", "attack.kind"),
        )


def _check_single_steps(experiment: Experiment) -> None:
    """Refuse what acts from the second step of a turn on, where every turn has one step."""
    training, name = experiment.training, experiment.algorithm.name
    if training.proximal:
        raise ConfigError(
            f"the value {training.proximal:g} has no effect on {name!r}: a worker takes one step "
            "from the shared model at a time, so it is never away from where it began",
            key="training.proximal",
            allowed=f"0 with {name!r}",
            fix="remove training.proximal, or leave this algorithm out",
        )
    if training.optimizer_state == "reset" and training.momentum:
        raise ConfigError(
            f"is 'reset', but {name!r} shares its model after every step: a velocity that begins "
            "again at every step adds up nothing",
            key="training.optimizer_state",
            allowed=f"'keep' with {name!r} and momentum",
            fix="set training.optimizer_state = 'keep', or remove training.momentum as well",
        )


def _why_state_cannot_travel(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> str:
    """Why an optimizer's state cannot be mixed together with the models; empty if it can."""
    name, exchange = experiment.algorithm.name, experiment.exchange
    traits = traits_of(algorithm)
    if is_asynchronous(algorithm):
        return (
            f"{name!r} averages models while the workers train, and a worker's state is then in use"
        )
    if traits.group_average:
        return f"{name!r} averages changes of a consensus in groups, not models"
    rule = rule_of(algorithm)
    if rule.per_link() or any(vector.travels for vector in rule.vectors):
        return f"the models of {name!r} travel with vectors of their own"
    if exchange.compression != "none":
        return (
            f"exchange.compression is {exchange.compression!r}, and rounding would spoil a state "
            "whose values are small or must not be negative"
        )
    if exchange.robust != "none":
        return f"exchange.robust = {exchange.robust!r} compares models, not states"
    if experiment.attack.kind in ("sign_flip", "noise"):
        return f"attack.kind = {experiment.attack.kind!r} acts on models, not on states"
    return ""


def _check_rule(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> None:
    """Refuse what would break the sums that a rule needs, as it declares them."""
    rule, name = rule_of(algorithm), experiment.algorithm.name
    if rule.is_plain():
        return
    if traits_of(algorithm).group_average:
        raise ConfigError(
            f"{name!r} has a rule of its workers, but does not mix models in rounds",
            key="algorithm.name",
            allowed="a rule without group_average",
            fix="remove the rule from the class of the algorithm",
        )
    mailbox = traits_of(algorithm).mailbox
    if is_asynchronous(algorithm) and rule.acts() and mailbox == "meet":
        raise ConfigError(
            f"the rule of {name!r} sends or receives, but its workers meet partners that are in "
            "the middle of their turns",
            key="algorithm.name",
            allowed="Traits(mailbox=...) with newest, once, sum or group, or a rule with "
            "gradient() alone",
            fix="set mailbox in the traits of the class, and end turns with a Delivery or a "
            "Gathering",
        )
    if rule.mass and is_asynchronous(algorithm) and mailbox != "sum":
        raise ConfigError(
            f"the rule of {name!r} has a mass, which only boxes that add it keep",
            key="algorithm.name",
            allowed="Traits(mailbox='sum') with this rule",
            fix="set mailbox = 'sum' in the traits of the class",
        )
    if rule.per_link() and (rule.mass or is_asynchronous(algorithm)):
        raise ConfigError(
            f"the rule of {name!r} has send_to(), and "
            + (f"the mass {rule.mass!r}" if rule.mass else "its workers have turns, not rounds"),
            key="algorithm.name",
            allowed="send_to() in rules without a mass, and with plan() instead of act()",
            fix="remove send_to() from the rule, or write the method with rounds and no mass",
        )
    if rule.per_link() and experiment.attack.kind in ("sign_flip", "noise"):
        raise ConfigError(
            f"is {experiment.attack.kind!r}, but workers of {name!r} send another message to each "
            "receiver, not their models",
            key="attack.kind",
            allowed="none or label_flip with this algorithm",
            fix="set attack.kind = 'label_flip', or choose another algorithm",
        )
    compression, robust = experiment.exchange.compression, experiment.exchange.robust
    if robust != "none" and rule.acts():
        raise ConfigError(
            f"is {robust!r}, but {name!r} needs the sums of all messages, and a robust rule leaves "
            "some out",
            key="exchange.robust",
            allowed="none with this algorithm",
            fix="remove exchange.robust",
        )
    travels = any(vector.travels for vector in rule.vectors)
    lossy = {"topk"} if travels else {"fp16", "int8"} if rule.public else set()
    lossy = {"fp16", "int8", "topk"} if rule.mass or rule.per_link() else lossy
    if compression in lossy:
        exact = {"none", "fp16", "int8", "topk"} - lossy
        raise ConfigError(
            f"is {compression!r}, but what the workers of {name!r} send has to arrive exactly",
            key="exchange.compression",
            allowed=" or ".join(sorted(exact)),
            fix="remove exchange.compression",
        )


def _check_mixes_models(experiment: Experiment, algorithm: Algorithm | AsyncAlgorithm) -> None:
    """Refuse what acts on models that travel where others than models do."""
    traits = traits_of(algorithm)
    if traits.group_average:
        why = "a group average sends sums, not models"
    elif is_asynchronous(algorithm):
        why = "an asynchronous algorithm averages models in pairs, without rounds"
    else:
        return
    own = f"{traits.compression}, or " if traits.compression else ""
    names = built_ins(lambda part: not part.traits.group_average and is_synchronous(part))
    mixing = f"one of {', '.join(names)}"
    instead = (
        ("exchange.compression", f"{own}remove it, or leave this algorithm out"),
        ("exchange.robust", f"choose {mixing}"),
        ("attack.kind", f"set attack.kind = 'label_flip', or choose {mixing}"),
    )
    for key, fix in instead:
        section, _, name = key.partition(".")
        value = getattr(getattr(experiment, section), name)
        if value not in ("none", "label_flip"):
            allowed = "none or label_flip" if key == "attack.kind" else "none"
            raise ConfigError(
                f"is {value!r}, but {experiment.algorithm.name!r} does not mix models in rounds: "
                f"{why}",
                key=key,
                allowed=f"{allowed} with this algorithm",
                fix=fix,
            )


def federation_of(experiment: Experiment) -> Federation:
    base, changing = topologies(
        experiment.topology.name,
        experiment.topology.settings,
        workers=experiment.workers,
        seed=experiment.seed,
    )
    return Federation(
        workers=experiment.workers,
        rounds=experiment.rounds,
        seed=experiment.seed,
        local_steps=experiment.training.local_steps,
        base_topology=base,
        changing=changing,
    )


def world_of(experiment: Experiment, *, model_bits: float) -> World:
    """The world, checked: links are drawn interval by interval, so that a transfer must not take
    too many of them."""
    world = build_world(
        experiment.world,
        workers=experiment.workers,
        rounds=experiment.rounds,
        seed=experiment.seed,
        model_bits=model_bits,
        batch_size=experiment.training.batch_size,
    )
    if world.constant is not None or (world.trace is not None and world.trace.has_links):
        return world  # its links change rarely, or never
    links = experiment.world.bandwidth
    sharing = experiment.workers if links.sharing else 1
    line = 1.0 if world.lines is None else float(world.lines.both.min())
    slowest = world.model_bits * sharing / (line * links.low * world.unit_bits) + links.latency
    if slowest > TRANSFER_INTERVALS * links.interval:
        raise ConfigError(
            f"a transfer may take {slowest:.3g} s, but links change every {links.interval:g} s",
            key="world.bandwidth.interval",
            allowed=f"at least {slowest / TRANSFER_INTERVALS:.3g} with links that slow",
            fix="raise world.bandwidth.interval or low, or lower world.model_megabits or latency",
        )
    return world
