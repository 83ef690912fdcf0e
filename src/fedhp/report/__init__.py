"""Runs turned into tables, figures, sentences and pages; nothing here prints.

groups.py and rounds.py read runs; formatting.py writes numbers; tables.py, describe.py, explain.py,
show.py, whatif.py and export.py answer the commands of the same names. claims/
judges runs against the paper and this project's bars, figures/ draws, pages/ makes HTML.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class _CallableReport(ModuleType):
    """`fedhp.report(...)` writes a report: Python replaces the function of that name by this
    package as soon as one of its modules is imported, so the package itself can be called."""

    def __call__(
        self, runs: str | Path | Sequence[str | Path], out: str | Path | None = None
    ) -> Path:
        from fedhp.report.pages.run_report import report_on

        return report_on(runs, out)[0]


sys.modules[__name__].__class__ = _CallableReport
