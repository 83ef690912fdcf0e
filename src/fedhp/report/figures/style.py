"""How figures look: sizes for a paper column, Okabe-Ito colours, one line style per label.

A label's colour depends only on the label, so an algorithm looks the same in every figure;
dashes and markers distinguish what colour does not. Only many variants of one algorithm share out
the colours that their figure leaves.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedhp.algorithms.base import about
from fedhp.algorithms.traits import Dashes
from fedhp.files import storage_errors
from fedhp.report.formatting import label_base

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.5, 7.2  # widths in inches
FIGURE_FORMATS = ("png", "svg", "pdf")
DPI = 200
UNDATED: Any = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
INK, QUIET, FAINT = "#222222", "#6b6b6b", "#d0d0d0"

# Okabe and Ito (2008): distinguishable with every common kind of colour vision.
VERMILLION, BLUE, GREEN, SKY = "#D55E00", "#0072B2", "#009E73", "#56B4E9"
PURPLE, ORANGE, BLACK = "#CC79A7", "#E69F00", "#000000"

SOLID: Dashes = "-"
DASHES: tuple[Dashes, ...] = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)))
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h", "o")
SHADES = (0.55, -0.35, 0.35, -0.55)  # towards white, towards black

RC: Any = {
    **dict.fromkeys(("font.size", "axes.labelsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7.5),
    "axes.titlesize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.7),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # editable text; publishers refuse Type 3
    "svg.hashsalt": "fedhp",  # the same figure gives the same file
}


@dataclass(frozen=True, slots=True)
class LineStyle:
    color: str
    dashes: Dashes
    marker: str
    width: float = 1.3
    order: float = 3.0


LineStyles: TypeAlias = Mapping[str, LineStyle]  # by label

OTHERS = (ORANGE, "#4d4d4d", "#7a5c00", "#5b5b9f")

# A few variants have shades of their algorithm's colour; more would be hard to tell apart.
MOST_SHADES = 2
WINE, OLIVE, BROWN, SLATE = "#882255", "#A3A31F", "#5B4A00", "#6A5ACD"
HUES = (ORANGE, GREEN, PURPLE, BLACK, SKY, VERMILLION, OLIVE, WINE, BLUE, BROWN, SLATE)


def known_style(name: str) -> LineStyle | None:
    known = about(name)
    if known is None:
        return None
    return LineStyle(known.color, known.dashes, known.marker, known.width, known.order)


def line_styles(labels: Sequence[str]) -> dict[str, LineStyle]:
    """The style of every label; two that would look alike get different markers."""
    known = {label for label in labels if known_style(label) is not None}
    variants = Counter(label_base(label) for label in labels if label not in known)
    many = {base for base, number in variants.items() if number > MOST_SHADES}
    chosen: dict[str, LineStyle] = {}
    for label in sorted(labels, key=lambda one: (one not in known, label_base(one) in many)):
        style = _preferred_style(label)
        if label not in known and label_base(label) in many:
            style = _style_of_many(style, chosen)
        taken = {(other.color, other.dashes) for other in chosen.values()}
        if (style.color, style.dashes) in taken:
            free = [d for d in (*DASHES, SOLID) if (style.color, d) not in taken]
            style = replace(style, dashes=free[0] if free else style.dashes)
        markers = {other.marker for other in chosen.values()}
        if style.marker in markers:
            unused = [marker for marker in (*MARKERS, "p", "d") if marker not in markers]
            style = replace(style, marker=unused[0] if unused else style.marker)
        chosen[label] = style
    return chosen


def _style_of_many(style: LineStyle, chosen: LineStyles) -> LineStyle:
    """A colour that is left, and the dashes that fewest lines have so far."""
    colors = {other.color for other in chosen.values()}
    free = [color for color in HUES if color not in colors]
    used = Counter(other.dashes for other in chosen.values())
    dashes = min((SOLID, *DASHES), key=lambda one: used[one])
    return replace(style, color=free[0] if free else style.color, dashes=dashes)


def _preferred_style(label: str) -> LineStyle:
    """The style of a label if no other label has it, from its name alone."""
    base = label_base(label)
    known = known_style(base)
    if known is not None and label == base:
        return known
    pick = zlib.crc32(label.encode())
    dashes, marker = DASHES[pick % len(DASHES)], MARKERS[pick % len(MARKERS)]
    if known is not None:
        shade = SHADES[pick // 64 % len(SHADES)]
        return LineStyle(_blend(known.color, shade), dashes, marker)
    return LineStyle(OTHERS[pick // 64 % len(OTHERS)], dashes, marker)


def _blend(color: str, share: float) -> str:
    """A colour moved towards white (share above 0) or black."""
    goal = 255 if share > 0 else 0
    parts = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = [round(part + abs(share) * (goal - part)) for part in parts]
    return "#" + "".join(f"{part:02X}" for part in mixed)


def device_styles(kinds: Sequence[str]) -> dict[str, LineStyle]:
    """From light (the first, fastest) to dark, in steps that also differ in grey."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    ramp = colormaps["cividis"]
    shapes = ("o", "s", "^", "D", "v", "P", "X", "h")
    last = max(1, len(kinds) - 1)
    return {
        kind: LineStyle(to_hex(ramp(0.92 - 0.72 * rank / last)), "", shapes[rank % len(shapes)])
        for rank, kind in enumerate(kinds)
    }


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw with these settings, whatever the user's matplotlibrc says."""
    import matplotlib

    # A missing glyph or a crowded layout is visible in the figure; the terminal stays clean.
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches; text is measured as the PNG will show it."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def key(label: str, **look: Any) -> Any:
    """A line or a marker of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def legend_above(figure: Figure, handles: Sequence[Any], *, columns: int = 2) -> None:
    figure.legend(handles=list(handles), loc="outside upper center", ncols=columns)


def marker(face: str, *, edge: str = INK, width: float = 0.5, size: float) -> dict[str, Any]:
    names = ("markerfacecolor", "markeredgecolor", "markeredgewidth", "markersize")
    return dict(zip(names, (face, edge, width, size), strict=True))


def line_options(style: LineStyle) -> dict[str, Any]:
    names = ("color", "linestyle", "linewidth", "marker", "zorder")
    values = (style.color, style.dashes, style.width, style.marker, style.order)
    return dict(zip(names, values, strict=True))


def plain_log(axes: Any, letter: str, locator: Any) -> None:
    """A logarithmic axis (x or y) with plain numbers, and ticks where the locator has them."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis = axes.xaxis if letter == "x" else axes.yaxis
    axes.set(**{f"{letter}scale": "log"})
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def grid_lines(axes: Any, axis: str) -> None:
    """Faint lines behind the data, at the ticks of this axis."""
    axes.grid(axis=axis, color=FAINT, linewidth=0.5, zorder=0)
    axes.set_axisbelow(True)


def right_text(axes: Any, y: float, text: str, *, gap: float, color: str = INK) -> None:
    place: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    look: Any = {"va": "center", "color": color, "fontsize": 7}
    axes.annotate(text, (1, y), xytext=(gap, 0), **place, **look)


@paper_style()
def figure_svg(figure: Figure) -> str:
    """A figure as the text of an SVG file, the same as `save_figure` writes."""
    _lay_out(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg", dpi=DPI, metadata=UNDATED["svg"])
    return text.getvalue()


@paper_style()
def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF; equal figures give equal files."""
    paths = [folder / f"{name}.{kind}" for kind in FIGURE_FORMATS]
    with storage_errors(folder, what="the figures"):
        folder.mkdir(parents=True, exist_ok=True)
        _lay_out(figure)
        for path, kind in zip(paths, FIGURE_FORMATS, strict=True):
            figure.savefig(path, dpi=DPI, metadata=UNDATED[kind])
    return paths


def _lay_out(figure: Figure) -> None:
    """Compute the layout once: otherwise every format would compute its own, slowly."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # "none" would draw every format twice
