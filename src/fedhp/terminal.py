"""Text that fits the terminal: shortened labels, and tables that drop columns instead of cutting.

A table never splits a word or a number. What does not fit is left out, and the table says so.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.table import Column, Table
from rich.text import Text

ELLIPSIS = "…"
GAP = 2  # columns between two columns of a table
NARROW_LABEL, WIDE_LABEL = 14, 24  # a label gets this much before a column is dropped for it
LEAST_STACKED = 72  # prose in columns needs a terminal at least this wide
WIDEST_CAPTION = 100
# A word, or a number and its unit.
UNBROKEN = re.compile(r" *(?:[-+(±]*\d\S* (?:%|s|ms|min|h|B|kB|MB|GB|TB)(?![^\s,;:.)])\S*|[^ ]+)")


def shorten(text: str, width: int) -> str:
    """The text with an ellipsis in its middle if it is wider than this."""
    if cell_len(text) <= width:
        return text
    for kept in range(width - 1, 0, -1):
        tail = kept // 2
        short = text[: kept - tail] + ELLIPSIS + (text[-tail:] if tail else "")
        if cell_len(short) <= width:
            return short
    return ELLIPSIS[: max(0, width)]


def duration(seconds: float) -> str:
    """A duration for people: 1 h 05 min, 12 min, 40 s."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if minutes >= 2 else f"{max(1, round(seconds))} s"


def stream_width(stream: TextIO) -> int | None:
    """The columns of the terminal that a stream writes to; None for a file or pipe."""
    try:
        if not stream.isatty():
            return None
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdigit() else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # closed, or no real file
        return None


def fit_text(text: str, width: int | None, *, hang: int = 2) -> str:
    """The text with lines broken at spaces; a continued line is indented by `hang` more.

    A number stays with its unit. A word that is wider than the terminal, such as a path, is broken
    after a slash, comma or colon; if it has none there, it stays whole.
    """
    if not width:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        hanging = " " * (indent + hang if indent + hang <= width // 2 else 2)
        current = ""
        for word in _pieces(line, width - len(hanging)):
            if current.strip() and cell_len(current + word) > width:
                lines.append(current)
                current = hanging + word.lstrip(" ")
            else:
                current += word
        lines.append(current)
    return "\n".join(lines)


def _pieces(line: str, width: int) -> Iterator[str]:
    """The parts of a line that must not be broken, each with the spaces before it."""
    for word in UNBROKEN.findall(line):
        if cell_len(word.strip(" ")) <= width:
            yield word
        else:
            yield from re.findall(r"[^/,:]*[/,:]+|[^/,:]+", word)


def fit_commands(intro: str, commands: Sequence[str], width: int | None) -> str:
    """Commands ready for a shell, on one line if they fit, else each on its own.

    A command that does not fit continues after a backslash, so that it can still be pasted.
    """
    line = f"{intro} {'; '.join(commands)}"
    if not width or cell_len(line) <= width:
        return line
    lines = [intro]
    for command in commands:
        current = " "
        for word in map(shlex.quote, shlex.split(command)):
            if current.strip() and cell_len(f"{current} {word} \\") > width:
                lines.append(f"{current} \\")
                current = "   "
            current += f" {word}"
            if cell_len(current) > width:  # a long path: its parts begin in the first column
                *parts, current = _word_lines(current, width)
                lines += parts
        lines.append(current)
    return "\n".join(lines)


def _word_lines(line: str, width: int) -> list[str]:
    """A line with a single word, broken after slashes and commas in the way a shell joins again."""
    indent = len(line) - len(line.lstrip(" "))
    lines, current = [], " " * indent
    for piece in re.findall(r"[^/,]*[/,]+|[^/,]+", shlex.split(line)[0]):
        if current.strip() and cell_len(current + shlex.quote(piece)) + 1 > width:
            lines.append(f"{current}\\")
            current = ""
        current += shlex.quote(piece)
    return [*lines, current]


def shorten_words(text: str, width: int) -> str:
    """The text with every word that is wider than this shortened, so that lines break at spaces."""
    lines = text.split("\n")
    return "\n".join(" ".join(shorten(word, width) for word in line.split(" ")) for line in lines)


def size_of_dumb_terminal(console: Console) -> None:
    """Give the console of a dumb terminal its real width; rich assumes 80 columns."""
    if console.is_dumb_terminal:
        size = shutil.get_terminal_size()
        console.size = ConsoleDimensions(size.columns, size.lines)


class FittingTable(Table):
    """A table that drops its least important columns where the terminal is too narrow.

    Left-aligned columns hold labels: they wrap at spaces, and long words get an ellipsis.
    """

    def __init__(
        self,
        *headers: str,
        left: Sequence[str] = (),
        drop_first: Sequence[str] = (),
        keep: Sequence[str] = (),
        caption: str | None = None,
    ) -> None:
        """`drop_first` names the columns to drop, in this order; then the last ones go.

        Those in `keep` always stay; without it, the first two.
        """
        super().__init__(caption=caption)
        self.bold_caption = ""  # added where something bold is shown
        self.short_labels: list[str] = []  # of the first column, for where the others do not fit
        self._drop_first = list(drop_first)
        self._keep = list(keep or headers[:2])
        for header in headers:
            self.add_column(header, justify="left" if header in left else "right")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        width = options.max_width
        labels = list(self.columns[0].cells)
        natural = [max(map(_width, (c.header, *c.cells))) for c in self.columns]
        shown, widths = self._layout(natural, width)
        if widths[0] < natural[0] and self.short_labels:
            labels = list(self.short_labels)
            natural[0] = max(_width(cell) for cell in (self.columns[0].header, *labels))
            shown, widths = self._layout(natural, width)
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
        cells: list[list[RenderableType]] = []
        for index, column_width in zip(shown, widths, strict=True):
            column = self.columns[index]
            table.add_column(
                _fitted(column.header, column_width),
                justify=column.justify,
                vertical="top",
                width=column_width,
                overflow="fold",
            )
            shown_cells = column.cells if index else labels
            cells.append([_fitted(cell, column_width) for cell in shown_cells])
        for row in zip(*cells, strict=True):
            table.add_row(*row)
        yield table
        notes = [str(self.caption)] if self.caption else []
        styled = console.is_terminal and console.color_system is not None
        texts = [cell for column in cells for cell in column if isinstance(cell, Text)]
        bold = any(span.style == "bold" for text in texts for span in text.spans)
        if self.bold_caption and styled and bold:
            notes.append(self.bold_caption)
        hidden = [column.header for i, column in enumerate(self.columns) if i not in shown]
        if hidden:
            words = ", ".join(_text(header).plain for header in hidden)
            words = re.sub(r"(?<=[-.])\n", "", words).replace("\n", " ")
            notes.append(f"no room for: {words}")
        if notes:
            caption = shorten_words("; ".join(notes), width)
            style = "table.caption" if styled else ""
            yield Text("\n").join(Text(caption, style).wrap(console, min(width, WIDEST_CAPTION)))

    def _layout(self, natural: Sequence[int], width: int) -> tuple[list[int], list[int]]:
        shown = self._fitting(natural, width)
        columns = [self.columns[i] for i in shown]
        return shown, _column_widths(columns, [natural[i] for i in shown], width)

    def _fitting(self, natural: Sequence[int], width: int) -> list[int]:
        least_label = min(max(width // 4, NARROW_LABEL), WIDE_LABEL)
        least = [
            min(size, least_label) if column.justify == "left" else size
            for column, size in zip(self.columns, natural, strict=True)
        ]
        shown = list(range(len(least)))
        by_header = {str(column.header): index for index, column in enumerate(self.columns)}
        first = [by_header[header] for header in self._drop_first if header in by_header]
        kept = [by_header[header] for header in self._keep if header in by_header]
        order = [*first, *(index for index in reversed(shown) if index not in first)]
        for index in order:
            if sum(least[i] for i in shown) + GAP * (len(shown) - 1) <= width:
                break
            if index in shown and index not in kept:
                shown.remove(index)
        return shown


def _width(cell: RenderableType) -> int:
    return max((cell_len(line) for line in _text(cell).plain.split("\n")), default=0)


def _text(cell: RenderableType) -> Text:
    return Text.from_markup(cell) if isinstance(cell, str) else Text(str(cell))


def _fitted(cell: RenderableType, width: int) -> RenderableType:
    text = _text(cell)
    longest = max((cell_len(word) for word in text.plain.split()), default=0)
    return text if longest <= width else Text(shorten_words(text.plain, width))


def _column_widths(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """The natural widths, with the labels made narrower where they must be."""
    widths = list(natural)
    labels = [i for i, column in enumerate(columns) if column.justify == "left"] or [0]
    for _ in range(sum(widths) + GAP * (len(widths) - 1) - width):
        widest = max(labels, key=lambda i: widths[i])
        widths[widest] = max(1, widths[widest] - 1)
    return widths


class ProseTable:
    """A table of sentences: columns in a wide terminal, one block per row in a narrow one."""

    def __init__(
        self, *headers: str, rows: Sequence[Sequence[str]], title: str = "", caption: str = ""
    ) -> None:
        self._headers, self._rows = headers, rows
        self._title, self._caption = title, caption

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        width = options.max_width
        columns = list(zip(self._headers, *self._rows, strict=True))
        least = [
            max(cell_len(w) for cell in column for w in [*cell.split(), ""]) for column in columns
        ]
        natural = [max(_width(Text(cell)) for cell in column) for column in columns]
        room = width - 3 * len(columns) - 1 - sum(least)
        if self._title:
            yield Text(shorten_words(self._title, width), style="bold")
        if room >= 0 and width >= LEAST_STACKED:
            yield self._in_columns(least, natural, room)
        else:
            yield from self._stacked(width)
        if self._caption:
            yield Text(shorten_words(self._caption, width))

    def _in_columns(self, least: Sequence[int], natural: Sequence[int], room: int) -> Table:
        wanted = [most - few for few, most in zip(least, natural, strict=True)]
        share = min(1.0, room / max(1, sum(wanted)))
        table = Table(show_lines=True)
        for header, few, more in zip(self._headers, least, wanted, strict=True):
            table.add_column(header, width=few + int(share * more), overflow="fold")
        for row in self._rows:
            table.add_row(*(Text(cell) for cell in row))
        return table

    def _stacked(self, width: int) -> Iterator[Text]:
        for row in self._rows:
            yield Text("")
            yield Text(shorten_words(row[0], width))
            for header, cell in zip(self._headers[1:], row[1:], strict=True):
                if cell:
                    yield Text(shorten_words(f"{header}: {cell}", width))
        yield Text("")
