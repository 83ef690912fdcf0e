"""Help texts that fit the terminal: whole sentences, and no word broken at any width."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

MOST_COLUMNS = 80
LEAST_COLUMNS = 20
NARROW = 60  # below this, the text of an option stands under it
INDENT = 2
WIDEST_TERM = 30
NO_LIMIT = 10_000


# Of click, or of the click inside typer.
_Formatter: Any = typer.Context.formatter_class
_Context: Any = TyperCommand.context_class


class _HelpFormatter(_Formatter):  # type: ignore[misc]
    """Breaks lines at spaces only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        columns = shutil.get_terminal_size().columns
        self.width = max(LEAST_COLUMNS, min(columns, MOST_COLUMNS))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        # A required argument is written in braces by some versions of typer.
        text = re.sub(r"\{([^{}]*)\}", r"\1", args)
        start = f"{'Usage: ' if prefix is None else prefix}{prog}"
        self.write(_wrapped(f"{start} {text}", self.width, hang=4) + "\n")

    def write_text(self, text: str) -> None:
        for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
            lines = _wrapped(" ".join(paragraph.split()), self.width - self.current_indent)
            self.write("\n" * (number > 0) + self._indented(lines, self.current_indent))

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = WIDEST_TERM, col_spacing: int = INDENT
    ) -> None:
        # The type of an argument, which some versions of typer add, says nothing new.
        terms = [(re.sub(r"(?<=\S) <[^<>]*>$", "", term), text) for term, text in rows]
        widest = max((len(term) for term, _ in terms if len(term) <= col_max), default=0)
        below = self.width < NARROW
        indent = self.current_indent + (2 * INDENT if below else widest + col_spacing)
        for term, text in terms:
            term_lines = _wrapped(term, self.width - self.current_indent, hang=4)
            self.write(self._indented(term_lines, self.current_indent, end=""))
            same_line = not below and len(term) <= widest
            used = self.current_indent + len(term)
            words = re.sub(r"\[x>=(\d+)(?:\.0)?\]", r"[at least \1]", " ".join(text.split()))
            lines = self._indented(_wrapped(words, self.width - indent), indent)
            self.write(lines[used:] if same_line and text else f"\n{lines if text else ''}")

    @staticmethod
    def _indented(text: str, indent: int, end: str = "\n") -> str:
        return "\n".join(" " * indent + line for line in text.split("\n")) + end


def _wrapped(text: str, width: int, *, hang: int = 0) -> str:
    from fedhp.terminal import fit_text  # rich takes a while to import

    return fit_text(text, width, hang=hang)


class _HelpContext(_Context):  # type: ignore[misc]
    formatter_class = _HelpFormatter


class HelpCommand(TyperCommand):
    context_class = _HelpContext


class HelpGroup(TyperGroup):
    """A group of commands; the list says what each of them does in a whole sentence."""

    context_class = _HelpContext

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(NO_LIMIT)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class CommandApp(typer.Typer):
    def __init__(self, *, help: str) -> None:
        super().__init__(
            cls=HelpGroup,
            help=help,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
        )

    def command(self, *arguments: Any, **options: Any) -> Callable[[Any], Any]:
        return super().command(*arguments, cls=HelpCommand, **options)
