"""Notebook views besides those of beliefs: progress of a measurement, a study, a panel."""

from __future__ import annotations

import sys
import time
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import HeretixError
from heretix.core.lenses import RPL
from heretix.measurement.runner import Tally
from heretix.report.findings import panel_finding, short_model
from heretix.report.panel import advice, findings, series_svg
from heretix.report.studies import study_findings, study_pictures, study_sections, study_warnings

if TYPE_CHECKING:
    from heretix.studies.panel import PanelReport
    from heretix.studies.study import StudyRecord

_EVERY_S: Final = 0.2
_SERIES_SHOWN: Final = 12
_STYLE: Final = "font-family:sans-serif"


class Bar(Tally):
    """A bar below the cell that measures; once it is done, what it took."""

    def __init__(self) -> None:
        super().__init__(0, lambda _: self._draw(), _EVERY_S)
        # Untyped, and there only where a notebook is.
        shown: Any = import_module("IPython.display")
        self._html = shown.HTML
        self._shown_as = shown.display(shown.HTML(""), display_id=True)

    def begin(self, total: int) -> None:
        """Show an empty bar, of so many samples."""
        self.total, self.done, self.cached, self.failed = total, 0, 0, 0
        self._begun = self._shown = time.monotonic()
        self._draw()

    def end(self) -> None:
        """Show what it took in place of the bar."""
        cached = f", {self.cached:,} from cache" if self.cached else ""
        failed = f", {self.failed:,} failed" if self.failed else ""
        said = f"{self.done:,} of {self.total:,} samples{cached}{failed} · {self.elapsed_s:,.1f} s"
        self._update(f'<span style="{_STYLE};color:#666">{said}</span>')

    def _draw(self) -> None:
        togo = "" if self.eta_s is None else f", {self.eta_s:,.0f} s to go"
        self._update(
            f'<progress max="{max(self.total, 1)}" value="{self.done}"></progress> '
            f'<span style="{_STYLE};color:#666">{escape(self.doing)}: {self.done:,} of '
            f"{self.total:,} samples: {escape(self.notes())}{togo}</span>"
        )

    def _update(self, content: str) -> None:
        if self._shown_as is not None:
            self._shown_as.update(self._html(content))


def make_bar() -> Bar | None:
    """Make a bar in the notebook that asks; None anywhere else."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return Bar() if hasattr(shell, "kernel") else None


def study_html(record: StudyRecord) -> str:
    """Write what a study found: a sentence a subject, its charts, its tables."""
    parts = [f"<strong>{escape(said)}</strong><br>" for said in study_findings(record)]
    parts += _draw_pictures(record)
    for title, columns, rows in study_sections(record):
        header = "".join(f"<th>{escape(name)}</th>" for name in columns)
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        parts.append(f"<div>{escape(title)}</div><table><tr>{header}</tr>{body}</table>")
    parts += [f"<div><em>{escape(text)}</em></div>" for text in study_warnings(record)]
    return f'<div style="{_STYLE}">{"".join(parts)}</div>'


def _draw_pictures(record: StudyRecord) -> list[str]:
    """Draw the charts; without the extra that draws, say so in their place."""
    from heretix.report.charts import chart_svg

    try:
        return [
            f"<div>{chart_svg(chart, prefix=f's{number}')}</div>"
            for number, (_, chart) in enumerate(study_pictures(record))
        ]
    except HeretixError as exc:
        return [f"<div><em>{escape(str(exc))}</em></div>"]


def panel_html(report: PanelReport) -> str:
    """Write what a panel found: a sentence, then beliefs wave by wave, those that moved first."""
    parts = [f"<strong>{escape(panel_finding(report).sentence)}</strong>"]
    parts += [f"<div>{escape(line)}</div>" for line in findings(report)]
    claims = [series for series in report.series if series.truth is None]
    claims.sort(key=lambda one: not (one.movement and one.movement.drifted))
    for series in claims[:_SERIES_SHOWN]:
        lens = "" if series.lens == RPL else f", {series.lens}"
        name = f"{series.claim} ({short_model(series.model)}{lens})"
        drawn = series_svg(series, report)
        parts.append(f'<div style="max-width:34em"><div>{escape(name)}</div>{drawn}</div>')
    if more := len(claims) - _SERIES_SHOWN:
        parts += [f"<div>… and {more:,} more</div>"] * (more > 0)
    parts += [f"<div><em>{escape(line)}</em></div>" for line in advice(report)]
    return f'<div style="{_STYLE}">{"".join(parts)}</div>'
