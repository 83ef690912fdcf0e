"""`fedhp cluster verify`: a run of the network checked, and done again in simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedhp.cli.parameters import Json, redirect_user_prints
from fedhp.errors import FedhpError

if TYPE_CHECKING:
    from fedhp.cluster.audit.timeline import Violation
    from fedhp.cluster.audit.verify import Verified


class NotVerified(FedhpError):
    """The run was not as it should have been."""

    exit_code = 1


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run of the network.")
    ],
    as_json: Json = False,
) -> None:
    """Check what a run of the network promised, and that a simulation gives the same bits."""
    from fedhp.cluster.audit.invariants import check
    from fedhp.cluster.audit.verify import verify as do_again

    violations = check(folder)
    with redirect_user_prints(as_json):
        verified = do_again(folder)
    if as_json:
        print(json.dumps(_as_json(verified, violations)))
    else:
        _tell(verified, violations)
    if violations or not verified.equal:
        raise NotVerified(_verdict(verified, violations))


def _tell(verified: Verified, violations: list[Violation]) -> None:
    for violation in violations:
        print(f"broken promise: {violation}")
    if not violations:
        print("protocol: every promise was kept (rounds, epochs, reports, models, deadlines)")
    for line in _rounds(verified):
        print(line)
    errors = verified.times.errors
    if len(errors):
        print(
            f"round times: the simulator's rule with the measured times is off by "
            f"{100 * errors.mean():.1f} % in the mean, {100 * errors.max():.1f} % at worst"
        )


def _rounds(verified: Verified) -> list[str]:
    """One line for equal rounds in a row, one for each other round."""
    lines: list[str] = []
    first = models = 0
    for each in verified.rounds:
        last_of_run = each is verified.rounds[-1]
        if not each.different and not each.why_not:
            first, models = first or each.round_index, models + each.compared
            if not last_of_run:
                continue
        if first:
            until = each.round_index - (0 if not each.different and not each.why_not else 1)
            lines.append(f"rounds {first} to {until}: all {models} models equal, bit by bit")
            first = models = 0
        if each.different:
            others = ", ".join(map(str, each.different))
            lines.append(f"round {each.round_index}: other models at workers {others}")
        if each.why_not:
            lines.append(f"from round {each.round_index} on: not compared: {each.why_not}")
            break
    return lines


def _verdict(verified: Verified, violations: list[Violation]) -> str:
    if violations:
        return f"{len(violations)} promises were broken"
    if not any(each.compared for each in verified.rounds):
        return "no round could be compared"
    return "the simulation gave other models"


def _as_json(verified: Verified, violations: list[Violation]) -> dict[str, Any]:
    errors = verified.times.errors
    return {
        "algorithm": verified.algorithm,
        "equal": verified.equal,
        "whole": verified.whole,
        "violations": [str(each) for each in violations],
        "rounds": [
            {
                "round": each.round_index,
                "compared": each.compared,
                "different": list(each.different),
                "why_not": each.why_not,
            }
            for each in verified.rounds
        ],
        "round_time_error": {
            "mean": float(errors.mean()) if len(errors) else None,
            "worst": float(errors.max()) if len(errors) else None,
        },
    }
