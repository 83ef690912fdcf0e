"""The figures of a page: numbered, each under a name of its own, and as files for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedhp.report.figures.style import figure_svg, save_figure
from fedhp.report.pages.page import slug, svg_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Album:
    """Collects figures; with a folder every one is also saved there as PNG, SVG and PDF."""

    def __init__(self, folder: Path | None = None, *, word: str = "Figure") -> None:
        self._word = word
        self._folder = folder
        self._names: dict[str, int] = {}
        self._shown = 0
        self.names: dict[str, str] = {}  # what a saved figure is called in the page, by file name
        self.paths: list[Path] = []

    def show(self, figure: Figure, *, name: str, caption: str, alt: str) -> str:
        """A figure for the page, as HTML with its number."""
        self._shown += 1
        name = self._own(name)
        self.names[name] = f"{self._word} {self._shown}"
        svg = self._save(figure, name)
        return svg_html(svg, name=name, caption=f"{self.names[name]}. {caption}", alt=alt)

    def keep(self, figure: Figure, *, name: str) -> None:
        """A figure that is saved only: the page shows the same in another form."""
        if self._folder is not None:
            name = self._own(name)
            self.names[name] = "not in the page"
            self._save(figure, name)

    def _own(self, name: str) -> str:
        """A name nobody else has; labels that differ in signs only would share one."""
        plain = slug(name)
        self._names[plain] = self._names.get(plain, 0) + 1
        return plain if self._names[plain] == 1 else self._own(f"{plain}-{self._names[plain]}")

    def _save(self, figure: Figure, name: str) -> str:
        if self._folder is None:
            return figure_svg(figure)
        paths = save_figure(figure, self._folder, name)
        self.paths += paths
        drawing = next(path for path in paths if path.suffix == ".svg")
        return drawing.read_text(encoding="utf-8")
