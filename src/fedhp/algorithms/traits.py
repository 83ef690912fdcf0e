"""What an algorithm declares of itself: for the engine and the coordinator, and for reports.

Nothing else in the tree asks which algorithm it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fedhp.exchange import Scoring


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What has to be known of an algorithm before the first round; the defaults are those of a
    class that declares nothing. Whether it has rounds or turns follows from plan() or act()."""

    uses_rounds: bool = True  # the number of rounds; if not, a finished run can be extended
    follows_changes: bool = False  # of a topology that changes over rounds
    uses_topology: bool = True  # [topology] has an effect
    local_epochs: bool = False  # takes the steps of training.local_epochs from its observation
    local_work: bool = True  # training.local_steps or local_epochs changes its plans
    own_steps: str = ""  # its setting that replaces both, if set
    group_average: bool = False  # plans have a GroupAverage, for which workers keep more state
    fragments: int = 1  # of the model, that group averages take in turn, or that are delivered
    # How turns end: meetings of two; deliveries into boxes, which keep the newest of each sender,
    # keep it until it is read once, or add them; or groups that average.
    mailbox: Literal["meet", "newest", "once", "sum", "group"] = "meet"
    scoring: Scoring | None = None  # of the plans with PeerScoring
    single_steps: bool = False  # every turn is one step, from one shared model
    serves: Literal["model", "average"] = "model"  # of asynchronous workers
    compression: str = ""  # what to set instead of exchange.compression
    momentum: float | None = None  # of local SGD; None: training.momentum
    learning_rate: float | None = None  # None: training.learning_rate
    sgd_rate: bool = False  # learning_rate is a default, which counts with SGD only
    # For `fedhp whatif`: does it plan by the clock, the world and the seed alone, or by reports
    # of models as well; does it use estimates of smoothness; beta_1 of the distances.
    plans_by: Literal["world", "models"] = "models"
    uses_estimates: bool = False
    distance_smoothing: float = 0.5
    # Why no network can run it, and what is wrong with the value of a setting on a network.
    simulated: str = ""
    simulated_settings: Mapping[str, str] = field(default_factory=dict)


Dashes: TypeAlias = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """How reports call and draw a built-in algorithm, and what they know of it by its name."""

    name: str
    color: str
    dashes: Dashes
    marker: str
    width: float = 1.3
    order: float = 3.0  # of drawing
    favourite: int = 0  # the others are compared with the greatest
    limit: bool = False  # it is no rival: its links cost nothing
    work: float = 1.0  # local steps per round relative to fixed steps; only to weigh runs
    most_steps: int | None = None  # of a worker in a round, unless max_steps is set
    own_momentum: bool = False  # its setting momentum is that of local SGD
    # What `fedhp whatif` replays by default: settings, one text for each planner. on_topology: the
    # setting with which it mixes on [topology] instead of its own ring.
    planners: tuple[str, ...] = ()
    on_topology: str = ""
