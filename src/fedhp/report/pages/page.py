"""One HTML file with figures, tables and text: no script, no network; light, dark and print.

The page's own security policy forbids every fetch, so that a page which shows, shows all it has.
Whatever is not called HTML here is plain text and is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from fedhp import __version__
from fedhp.report.figures.style import figure_svg
from fedhp.report.pages.inline_svg import inline_svg
from fedhp.report.pages.page_style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
MARKS = ("good", "bad", "quiet")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, with its entry in the navigation."""

    title: str  # plain text
    anchor: str  # what follows the # of its address
    body: str  # safe HTML


def render_page(*, title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole document; title and lead are plain text (blank lines part paragraphs)."""
    anchors = [section.anchor for section in sections]
    for anchor in anchors:
        if anchors.count(anchor) > 1 or anchor != slug(anchor):
            raise ValueError(f"the anchor {anchor!r} is there twice, or is none")
    entries = "".join(
        f'<li><a href="#{section.anchor}">{escape(section.title)}</a></li>\n'
        for section in sections
    )
    parts = "".join(
        f'<section id="{section.anchor}">\n<h2>{escape(section.title)}</h2>\n'
        f"{section.body}\n</section>\n"
        for section in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="fedhp {__version__}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{STYLE}</style>
</head>
<body>
<nav aria-label="Sections">
<a class="home" href="#top">{escape(title)}</a>
<ul>
{entries}</ul>
</nav>
<main id="top">
<header>
<h1>{escape(title)}</h1>
<div class="lead">
{text_html(lead)}
</div>
</header>
{parts}<footer>Made by fedhp {__version__}. It holds all it shows and fetches nothing.</footer>
</main>
</body>
</html>
"""


def figure_html(figure: Figure, *, name: str, caption: str, alt: str) -> str:
    """A figure as an inline drawing with its caption; `name` makes its ids unique in the page."""
    return svg_html(figure_svg(figure), name=name, caption=caption, alt=alt)


def svg_html(svg: str, *, name: str, caption: str, alt: str) -> str:
    """The same for a figure that is drawn already."""
    drawing = inline_svg(svg, prefix=slug(name), alt=alt)
    return (
        f'<figure id="figure-{slug(name)}">\n<div class="card">{drawing}</div>\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>"
    )


def table_html(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    numeric: Container[int] = (),
    marks: Mapping[tuple[int, int], str] = {},
) -> str:
    """A table that scrolls where it is too wide; `numeric` columns stand to the right.

    A mark is good, bad or quiet, by (row, column); line breaks in cells are kept.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells under {len(header)} headings: {row!r}")
    for mark in marks.values():
        if mark not in MARKS:
            raise ValueError(f"there is no mark {mark!r}, only {', '.join(MARKS)}")
    names = [_classes("num" if column in numeric else "") for column in range(len(header))]
    head = "".join(
        f'<th scope="col"{names[column]}>{_cell(text)}</th>' for column, text in enumerate(header)
    )
    lines = []
    for place, row in enumerate(rows):
        cells = []
        for column, text in enumerate(row):
            kind = _classes("num" if column in numeric else "", marks.get((place, column), ""))
            tag, scope = ("th", ' scope="row"') if column == 0 else ("td", "")
            cells.append(f"<{tag}{scope}{kind}>{_cell(text)}</{tag}>")
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    told = f"<caption>{_cell(caption)}</caption>\n" if caption else ""
    # A part that scrolls must be reachable by keyboard.
    return (
        f'<div class="wide" tabindex="0"><table>\n{told}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody>\n</table></div>"
    )


def text_html(text: str) -> str:
    """Paragraphs, parted by blank lines."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text)]
    return "\n".join(f"<p>{escape(part)}</p>" for part in parts if part)


def details_html(summary: str, body: str) -> str:
    """A part that is folded until its summary is clicked; the body is safe HTML."""
    return (
        f"<details>\n<summary>{escape(summary)}</summary>\n"
        f'<div class="inside">\n{body}\n</div>\n</details>'
    )


def slug(text: str) -> str:
    """A text as an anchor, an id or a file name: letters, digits, - and _ only."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")
    return plain if plain[:1].isalpha() else f"x{plain}"


def _cell(text: str) -> str:
    return escape(text).replace("-\n", "-").replace("\n", "<br>")


def _classes(*names: str) -> str:
    chosen = " ".join(name for name in names if name)
    return f' class="{chosen}"' if chosen else ""
