"""`fedhp cluster verify`: check a run of the network and repeat it in simulation."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhp.cli import parameters as cli
from fedhp.errors import FedhpError

if TYPE_CHECKING:
    from fedhp.cluster.audit.invariants import Violation
    from fedhp.cluster.audit.timeline import Pause
    from fedhp.cluster.audit.verify import Verification


class NotVerified(FedhpError):
    """The run broke a promise, or its models could not be reproduced."""

    exit_code = 1


def verify(
    folder: Path = cli.argument("DIR", "The folder of a run over the network.", default=...),
    trust: cli.TrustedModules = None,
    as_json: cli.Json = False,
) -> None:
    """Check that a run kept the protocol's promises and that a simulation gives the same bits."""
    from fedhp.console import Activity

    cli.trust_modules(trust)
    with cli.redirect_user_prints(as_json), Activity("checking the run and repeating it"):
        from fedhp.cluster.audit.invariants import check_invariants, find_pauses
        from fedhp.cluster.audit.verify import verify as repeat

        violations = check_invariants(folder)
        pauses = find_pauses(folder)
        verification = repeat(folder)
    if as_json:
        print(json.dumps(_as_json(verification, violations, pauses)))
    else:
        _print(verification, violations, pauses)
    if violations or (verification.comparable and not verification.equal):
        raise NotVerified(_problem(verification, violations))


def _print(verification: Verification, violations: list[Violation], pauses: list[Pause]) -> None:
    if verification.missing:
        cli.say(f"only a part of the run can be checked: {verification.missing}")
    for violation in violations:
        cli.say(f"broken promise: {violation}")
    if not violations:
        cli.say("protocol: every promise was kept (rounds, epochs, reports, models, deadlines)")
    for pause in pauses:
        cli.say(f"pause of {pause.end - pause.start:.1f} s, which does not count: {pause.why}")
    if verification.comparable:
        for line in _round_lines(verification):
            cli.say(line)
    elif verification.rounds:
        cli.say(f"models: not comparable: {verification.rounds[0].why_not}")
    errors = verification.time_errors
    if len(errors):
        cli.say(
            f"round times: predicted from the measured times with an error of "
            f"{100 * errors.mean():.1f} % on average, {100 * errors.max():.1f} % at most"
        )


def _round_lines(verification: Verification) -> list[str]:
    """One line for consecutive rounds of which the same is to be said, one for every round in
    which models differ."""
    lines: list[str] = []
    for (why_not, different), group in groupby(
        verification.rounds, key=lambda verdict: (verdict.why_not, verdict.different)
    ):
        verdicts = list(group)
        first, last = verdicts[0].round_index, verdicts[-1].round_index
        rounds = f"rounds {first} to {last}" if last > first else f"round {first}"
        models = sum(verdict.compared for verdict in verdicts)
        if different:
            workers = ", ".join(map(str, different))
            lines.append(f"{rounds}: the models of workers {workers} differ")
        elif not why_not:
            lines.append(f"{rounds}: all {models} models are bit-identical")
        elif models:
            lines.append(
                f"{rounds}: {models} models are bit-identical, others not compared: {why_not}"
            )
        else:
            lines.append(f"{rounds}: not compared: {why_not}")
    return lines


def _problem(verification: Verification, violations: list[Violation]) -> str:
    if violations:
        return f"broken promises: {len(violations)}"
    if not any(verdict.compared for verdict in verification.rounds):
        return "no round could be compared"
    return "the simulation gave different models"


def _as_json(
    verification: Verification, violations: list[Violation], pauses: list[Pause]
) -> dict[str, Any]:
    errors = verification.time_errors
    return {
        "algorithm": verification.algorithm,
        "equal": verification.equal,
        "whole": verification.whole,
        "private": list(verification.private),
        "violations": [str(violation) for violation in violations],
        "pauses": [
            {"start": pause.start, "seconds": pause.end - pause.start, "why": pause.why}
            for pause in pauses
        ],
        "rounds": [
            {
                "round": verdict.round_index,
                "compared": verdict.compared,
                "different": list(verdict.different),
                "why_not": verdict.why_not,
            }
            for verdict in verification.rounds
        ],
        "round_time_error": {
            "mean": float(errors.mean()) if len(errors) else None,
            "worst": float(errors.max()) if len(errors) else None,
        },
    }
