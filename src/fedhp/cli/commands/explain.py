"""`fedhp explain`: one round in words."""

from __future__ import annotations

from pathlib import Path

from fedhp.cli.parameters import argument, option


def explain(
    run: Path = argument("RUN", "A run folder.", default=...),
    round_index: int | None = option("N", "The round. Default: the last.", "--round"),
) -> None:
    """Explain what was decided in a round, and why."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from fedhp.record.reader import RunReader
    from fedhp.report.explain import explain_round
    from fedhp.report.rounds import check_round
    from fedhp.terminal import size_of_dumb_terminal

    console = Console(highlight=False)
    size_of_dumb_terminal(console)
    width = min(console.width, 92)  # lines longer than this are hard to read
    with RunReader(run) as reader:
        reader.check()
        for paragraph in explain_round(reader, check_round(reader, round_index)):
            console.print(Text(paragraph.heading, style="bold"))
            console.print(Padding(Text(paragraph.text), (0, 0, 0, 2)), width=width)
