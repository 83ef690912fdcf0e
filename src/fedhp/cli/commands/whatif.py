"""`fedhp whatif`: a recorded run under other planners or settings, without training."""

from __future__ import annotations

from pathlib import Path

from fedhp.cli import parameters as cli


def whatif(
    run: Path = cli.argument("RUN", "A run folder; the run may be unfinished.", default=...),
    overrides: list[str] | None = cli.argument("key=value", "Settings of the run to change."),
    planners: list[str] | None = cli.option(
        "VARIANT",
        "A planner such as fedhp:deadline=fill; may be repeated. "
        "Default: FedHP and the algorithms it is compared with.",
        "--planner",
    ),
    trust: cli.TrustedModules = None,
    as_json: cli.Json = False,
) -> None:
    """Replay a run with other planners or settings: how long would rounds and waiting be?"""
    from fedhp.console import Activity

    cli.trust_modules(trust)
    with cli.redirect_user_prints(as_json), Activity("replaying the run"):
        from fedhp.engine.replay.whatif import whatif as replayed

        result = replayed(run, planners or (), overrides=overrides or ())
    if as_json:
        import json

        print(json.dumps(result.as_json()))
        return
    from rich.text import Text

    from fedhp.report.whatif import whatif_table, whatif_words

    console = cli.table_console()
    console.print(whatif_table(result))
    console.print()
    for sentence in whatif_words(result):
        console.print(Text(sentence), width=min(console.width, 92))
