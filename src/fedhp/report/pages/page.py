"""One HTML file with figures, tables and text: no script, no network; light, dark and print.

The page's own security policy forbids every fetch, so a page that is shown at all is complete.
Arguments that are not called HTML are plain text and are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from fedhp import __version__
from fedhp.report.figures.style import figure_svg, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
CELL_MARKS = ("good", "bad", "quiet")
SVG_SCALE = 1.4  # a paper's 8 points are small on a screen
PIXELS = 96 / 72  # per point
BROAD = 300  # points; a broader drawing scrolls sideways on a phone
LEFT_OUT = ("metadata", "style")  # the style of one drawing would apply to the whole page
COORDINATES = ("d", "x", "y")
DIGITS = re.compile(r"-?\d+\.\d{3,}")


@dataclass(frozen=True, slots=True)
class Section:
    title: str  # plain text
    anchor: str  # what follows the # of its address
    body: str  # safe HTML


def render_page(*, title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole document; title and lead are plain text (blank lines separate paragraphs)."""
    anchors = [section.anchor for section in sections]
    for anchor in anchors:
        if anchors.count(anchor) > 1 or anchor != slug(anchor):
            raise ValueError(f"the anchor {anchor!r} is used twice, or is not a valid anchor")
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
{parts}<footer>Made by fedhp {__version__}. This page is complete and loads nothing else.</footer>
</main>
</body>
</html>
"""


def figure_html(figure: Figure, *, name: str, caption: str, alt: str) -> str:
    """A figure inside the page with its caption; `name` makes its ids unique."""
    return svg_html(figure_svg(figure), name=name, caption=caption, alt=alt)


def svg_html(svg: str, *, name: str, caption: str, alt: str) -> str:
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
    meanings: Sequence[str] = (),
) -> str:
    """A table that scrolls where it is too wide; `numeric` columns are aligned right.

    `meanings` explain the headings, one each, when the pointer is on them. A mark is good, bad or
    quiet, by (row, column); line breaks in cells are kept.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"{len(row)} cells under {len(header)} headings: {row!r}")
    for mark in marks.values():
        if mark not in CELL_MARKS:
            raise ValueError(f"unknown mark {mark!r}; allowed: {', '.join(CELL_MARKS)}")
    names = ["num" if column in numeric else "" for column in range(len(header))]
    hints = [f' title="{escape(text)}"' if text else "" for text in meanings] or [""] * len(header)
    head = "".join(
        f'<th scope="col"{_classes(name)}{hint}>{_cell(text)}</th>'
        for text, name, hint in zip(header, names, hints, strict=True)
    )
    lines = []
    for index, row in enumerate(rows):
        cells = []
        for column, text in enumerate(row):
            kind = _classes(names[column], marks.get((index, column), ""))
            tag, scope = ("th", ' scope="row"') if column == 0 else ("td", "")
            cells.append(f"<{tag}{scope}{kind}>{_cell(text)}</{tag}>")
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    below = f"<caption>{_cell(caption)}</caption>\n" if caption else ""
    # A part that scrolls must be reachable by keyboard.
    return (
        f'<div class="wide" tabindex="0"><table>\n{below}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody>\n</table></div>"
    )


def text_html(text: str) -> str:
    """Paragraphs, separated by blank lines in the text."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text)]
    return "\n".join(f"<p>{escape(part)}</p>" for part in parts if part)


def details_html(summary: str, body: str) -> str:
    """A part that is folded until its summary is clicked; the body is safe HTML."""
    return (
        f"<details>\n<summary>{escape(summary)}</summary>\n"
        f'<div class="inside">\n{body}\n</div>\n</details>'
    )


def slug(text: str) -> str:
    """A text as an anchor, an id or a file name: only letters, digits, - and _."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")
    return plain if plain[:1].isalpha() else f"x{plain}"


def _cell(text: str) -> str:
    return escape(text).replace("-\n", "-").replace("\n", "<br>")


def _classes(*names: str) -> str:
    chosen = " ".join(name for name in names if name)
    return f' class="{chosen}"' if chosen else ""


class PageFigures:
    """The figures of a page: numbered, each under its own name; with a folder also saved there."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        word: str = "Figure",
        drawn: Callable[[int], None] = lambda amount: None,
    ) -> None:
        """`drawn` is called with the number of figures so far after each of them."""
        self._word, self._drawn = word, drawn
        self._folder = folder
        self.suffix = ""  # of the names of the figures from now on
        self._uses: dict[str, int] = {}  # of each plain name
        self._shown = 0
        self.names: dict[str, str] = {}  # the figure's name in the page, by file name
        self.paths: list[Path] = []

    def show(self, figure: Figure, *, name: str, caption: str, alt: str) -> str:
        self._shown += 1
        name = self._unique(name + self.suffix)
        self.names[name] = f"{self._word} {self._shown}"
        svg = self._svg(figure, name)
        return svg_html(svg, name=name, caption=f"{self.names[name]}. {caption}", alt=alt)

    def save_only(self, figure: Figure, *, name: str) -> None:
        """A figure that is only saved: the page shows the same in another form."""
        if self._folder is not None:
            name = self._unique(name + self.suffix)
            self.names[name] = "not in the page"
            self._svg(figure, name)

    def _unique(self, name: str) -> str:
        """A name that no other figure has; labels that differ only in signs would share one."""
        plain = slug(name)
        self._uses[plain] = self._uses.get(plain, 0) + 1
        return plain if self._uses[plain] == 1 else self._unique(f"{plain}-{self._uses[plain]}")

    def _svg(self, figure: Figure, name: str) -> str:
        if self._folder is None:
            return figure_svg(figure)
        paths = save_figure(figure, self._folder, name)
        self.paths += paths
        self._drawn(len(self.names))
        drawing = next(path for path in paths if path.suffix == ".svg")
        return drawing.read_text(encoding="utf-8")


def inline_svg(svg: str, *, prefix: str, alt: str) -> str:
    """An SVG file as an element of an HTML page: unique ids, no outside links, fewer digits."""
    root = ElementTree.fromstring(svg)
    text = ElementTree.tostring(root, encoding="unicode")
    referenced = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    for element in list(root.iter()):
        _simplify(element, prefix, referenced)
        for child in [child for child in element if _local_name(child.tag) in LEFT_OUT]:
            element.remove(child)
    _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
    content = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    size = f'width="{SVG_SCALE * PIXELS * width:.0f}" height="{SVG_SCALE * PIXELS * height:.0f}"'
    broad = ' class="broad"' if width > BROAD else ""
    content = re.sub(r">\s+<", "><", content)
    return (
        f'<svg{broad} role="img" aria-label="{escape(alt)}" {size} '
        f'viewBox="0 0 {width:g} {height:g}">'
        f"{content.strip()}</svg>"
    )


def _local_name(tag: str) -> str:
    """A tag or attribute without its namespace: HTML has none."""
    return tag.rpartition("}")[2]


def _simplify(element: ElementTree.Element, prefix: str, referenced: set[str]) -> None:
    element.tag = _local_name(element.tag)
    attributes = {_local_name(key): value for key, value in element.attrib.items()}
    own = attributes.pop("id", None)
    for key, value in attributes.items():
        if key in COORDINATES:
            # A hundredth of a point is less than any screen or printer shows.
            value = DIGITS.sub(lambda match: f"{float(match[0]):.2f}", value)
            attributes[key] = " ".join(value.split())
        elif key == "href":
            local = f"#{prefix}-{value[1:]}" if value.startswith("#") else "".join(value.split())
            attributes[key] = local
        else:
            attributes[key] = value.replace("url(#", f"url(#{prefix}-")
    if own in referenced:
        attributes["id"] = f"{prefix}-{own}"
    element.attrib.clear()
    element.attrib.update(attributes)


STYLE = """\
:root {
  color-scheme: light dark;
  --ink: #1d2126; --soft: #59616b; --line: #d9dde2; --paper: #ffffff; --side: #f6f7f9;
  --link: #005a8f; --good: #e4f2ea; --good-ink: #0b5a3c; --bad: #fbe9e1; --bad-ink: #8f3a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e7ea; --soft: #a2abb5; --line: #363c44; --paper: #15181c; --side: #1b1f24;
    --link: #7cc4f0; --good: #15382a; --good-ink: #8fdcb8; --bad: #43240f; --bad-ink: #f5b28a;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans",
    "Liberation Sans", Arial, sans-serif;
  display: grid; grid-template-columns: 15.5rem minmax(0, 1fr);
}
a { color: var(--link); text-underline-offset: 0.15em; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }

nav {
  position: sticky; top: 0; height: 100vh; overflow-y: auto; padding: 2rem 1.25rem;
  background: var(--side); border-right: 1px solid var(--line); font-size: 0.875rem;
}
nav a { display: block; padding: 0.28rem 0; color: var(--soft); text-decoration: none; }
nav a:hover { color: var(--link); text-decoration: underline; }
nav .home { color: var(--ink); font-weight: 650; line-height: 1.35; margin-bottom: 0.6rem; }
nav ul { list-style: none; margin: 0; padding: 0; line-height: 1.35; }

main { width: 100%; max-width: 70rem; padding: 2.2rem 2.5rem 3rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 0.8rem; }
h2 {
  font-size: 1.35rem; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 0.9rem;
  padding-top: 1.6rem; border-top: 1px solid var(--line);
}
h3 { font-size: 1.05rem; margin: 1.8rem 0 0.5rem; }
h4 { font-size: 0.9rem; margin: 0.8rem 0 0.1rem; }
section { margin-top: 2.2rem; }
p, dl, ul, figcaption, caption { max-width: 46rem; }
p { margin: 0.55rem 0; }
.lead { font-size: 1.08rem; }
.quiet, footer { color: var(--soft); }
code {
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 0.88em; overflow-wrap: anywhere;
}

figure { margin: 1.2rem 0 1.6rem; }
.card {
  background: #ffffff; border: 1px solid var(--line); border-radius: 6px; padding: 0.9rem;
  overflow-x: auto; width: fit-content; max-width: 100%;
}
.card svg { display: block; max-width: 100%; height: auto; }
.card svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { color: var(--soft); font-size: 0.9rem; margin-top: 0.5rem; }
.row { display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: flex-start; }
.row > figure { flex: 0 1 auto; min-width: 0; max-width: 31.5rem; }

.wide { overflow-x: auto; margin: 1rem 0 1.4rem; }
table { border-collapse: collapse; font-size: 0.875rem; line-height: 1.4; }
caption {
  caption-side: bottom; text-align: left; color: var(--soft); padding-top: 0.5rem;
  font-size: 0.875rem;
}
thead { border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink); }
tbody { border-bottom: 1.5px solid var(--ink); }
th, td { padding: 0.32rem 0.75rem; text-align: left; vertical-align: top; }
th:first-child, td:first-child { padding-left: 0.2rem; }
thead th { vertical-align: bottom; font-weight: 600; }
tbody th { font-weight: 400; }
tbody tr + tr { border-top: 1px solid var(--line); }
th.num, td.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.good, td.good { font-weight: 650; background: var(--good); color: var(--good-ink); }
th.bad, td.bad { background: var(--bad); color: var(--bad-ink); }
th.quiet, td.quiet { color: var(--soft); }

details { border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; }
summary { cursor: pointer; padding: 0.5rem 0.8rem; font-size: 0.95rem; }
summary:hover { color: var(--link); }
details[open] > summary { border-bottom: 1px solid var(--line); }
.inside { padding: 0.4rem 0.9rem 0.8rem; }
.inside details > summary { font-size: 0.9rem; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line);
  font-size: 0.85rem; }

@media (max-width: 62rem) {
  html { scroll-padding-top: 3.6rem; }
  body { display: block; }
  nav {
    height: auto; padding: 0.5rem 1.1rem; border-right: 0; border-bottom: 1px solid var(--line);
    z-index: 2; overflow-x: auto;
  }
  nav .home { display: none; }
  nav ul { display: flex; gap: 1.3rem; white-space: nowrap; }
  main { padding: 1.4rem 1.1rem 2.5rem; }
  h1 { font-size: 1.55rem; }
  .card { padding: 0.5rem; }
}
@media (max-width: 40rem) {
  .card svg.broad { width: 42rem; max-width: none; }
  caption { max-width: 88vw; }
}
@media print {
  :root {
    color-scheme: light;
    --ink: #000000; --soft: #444444; --line: #bbbbbb; --paper: #ffffff; --link: #000000;
    --good: #eeeeee; --good-ink: #000000; --bad: #ffffff; --bad-ink: #000000;
  }
  body { display: block; font-size: 10pt; }
  nav { display: none; }
  main { max-width: none; padding: 0; }
  h2, h3, h4 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  .card { border: 0; padding: 0; }
  .wide { overflow: visible; }
  details { border: 0; }
  a { text-decoration: none; }
}
"""
