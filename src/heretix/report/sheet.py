"""A report as one drawing: the same sheet for SVG, PNG and PDF.

It holds what fits a picture: headline, charts, how the number was made, and where it came from.
The answers themselves stand in the HTML report.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Final

from heretix.errors import ConfigError
from heretix.measurement.verify import verify_artifact
from heretix.report.charts import bootstrap_distribution, chart_svg, template_forest
from heretix.report.charts.figure import drawable, listed, retitled, wrapped
from heretix.report.grouping import Picture, plain_runs, shared_pictures
from heretix.report.method import method_lines
from heretix.report.theme import FONT, LIGHT, Theme
from heretix.report.words import label_of, span
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heretix.measurement.record import Artifact, RunRecord

__all__ = ["report_svg"]

_MARGIN: Final = 36
_SIZE: Final = re.compile(r'width="([\d.]+)" height="([\d.]+)"')
_NAMED: Final = 3
_MOST_RUNS: Final = 200
"""More would make a picture too tall for what opens pictures."""
_CHARS_AT_1PX: Final = 0.5
"""How wide a character is on average, for each pixel of its font's size."""


@dataclass(slots=True)
class _Sheet:
    """A page that grows downwards."""

    theme: Theme
    width: float
    parts: list[str] = field(default_factory=list)
    y: float = _MARGIN

    def text(self, content: str, *, px: int, colour: str, bold: bool = False, gap: int = 6) -> None:
        """A paragraph, wrapped to the page."""
        room = int((self.width - 2 * _MARGIN) / (px * _CHARS_AT_1PX))
        weight = ' font-weight="bold"' if bold else ""
        for line in wrapped(content, room, lines=8):
            self.y += px * 1.35
            self.parts.append(
                f'<text x="{_MARGIN}" y="{self.y:.1f}" font-size="{px}" fill="{colour}"'
                f"{weight}>{escape(line)}</text>"
            )
        self.y += gap

    def drawing(self, svg: str) -> None:
        """A chart, below what is there."""
        height = _size(svg)[1]
        placed = svg.replace("<svg ", f'<svg x="{_MARGIN - 12}" y="{self.y:.1f}" ', 1)
        self.parts.append(placed)
        self.y += height + 8

    def finished(self, label: str) -> str:
        """The sheet as SVG."""
        height = self.y + _MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'role="img" aria-label="{escape(label, quote=True)}" width="{self.width:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {self.width:.0f} {height:.0f}" '
            f'font-family="{FONT}">'
            f'<rect width="100%" height="100%" fill="{self.theme.paper}"/>'
            f"{''.join(self.parts)}</svg>"
        )


def report_svg(artifacts: Sequence[Artifact], *, theme: Theme = LIGHT) -> str:
    """The sheet of these artifacts: of one run its charts, of several what they say together."""
    runs = plain_runs(artifacts)
    if len(runs) > _MOST_RUNS:
        raise ConfigError(
            f"`runs`: a sheet holds at most {_MOST_RUNS}, got {len(runs)}; name fewer, or write "
            "the report as .html"
        )
    claims = list(dict.fromkeys(run.claim for run in runs))
    pictures = list(_own_pictures(runs[0], theme)) if len(runs) == 1 else []
    pictures += shared_pictures(artifacts, theme=theme)
    drawings = [
        chart_svg(retitled(picture.chart, _titled(picture, claims)), prefix=f"p{number}")
        for number, picture in enumerate(pictures)
    ]
    widest = max(_size(drawing)[0] for drawing in drawings)
    sheet = _Sheet(theme=theme, width=widest + 2 * _MARGIN)
    title = claims[0] if len(claims) == 1 else f"{len(claims)} claims, {len(runs)} runs"
    sheet.text(title, px=22, colour=theme.ink, bold=True)
    if len(runs) == 1:
        _headline(sheet, runs[0])
    for drawing in drawings:
        sheet.drawing(drawing)
    _made(sheet, artifacts, runs)
    return sheet.finished(f"Report: {drawable(title)}")


def _titled(picture: Picture, claims: Sequence[str]) -> str:
    several = len(claims) > 1 and picture.claim is not None
    return f"{picture.title}: {picture.claim}" if several else picture.title


def _own_pictures(run: RunRecord, theme: Theme) -> Iterator[Picture]:
    forest = template_forest(run, theme=theme)
    yield Picture(title="What each wording gave", chart=forest, runs=(run,))
    if run.status == "ok":
        replicas = bootstrap_distribution(run, theme=theme)
        yield Picture(title="Where the interval comes from", chart=replicas, runs=(run,))


def _headline(sheet: _Sheet, run: RunRecord) -> None:
    belief, theme = run.aggregates, sheet.theme
    about = listed([run.model, f"lens {run.lens}", run.prompt_version, run.started_at[:10]])
    sheet.text(about, px=13, colour=theme.muted)
    if belief.prob_true_rpl is None or belief.ci95 is None:
        sheet.text(f"No estimate: {run.reason}", px=16, colour=theme.warn, bold=True)
    else:
        said = (
            f"p(true) {belief.prob_true_rpl:.3f}, 95% interval {span(*belief.ci95)}, "
            f"stability {belief.stability_score:.2f} ({belief.stability_band})"
        )
        sheet.text(said, px=17, colour=theme.ink, bold=True)
    if label := label_of(run):
        sheet.text(label, px=14, colour=theme.warn)


def _made(sheet: _Sheet, artifacts: Sequence[Artifact], runs: Sequence[RunRecord]) -> None:
    """How it was made, whether it verifies, and what it was made from."""
    theme = sheet.theme
    sheet.y += 10
    sheet.text("How it was made", px=15, colour=theme.ink, bold=True)
    if len(runs) == 1:
        for line in method_lines(runs[0]):
            sheet.text(line, px=12, colour=theme.ink)
    else:
        answers = sum(run.usage.compliant for run in runs)
        said = (
            f"{len(runs)} runs with {answers} answers. Each asks for the probability of a claim in "
            "several wordings, averages log-odds within and then over wordings, and draws "
            "wordings and answers anew for its 95% interval. The HTML report has the steps, the "
            "values and every answer of each run."
        )
        sheet.text(said, px=12, colour=theme.ink)
    found = [check for artifact in artifacts for check in verify_artifact(artifact)]
    wrong = [check.execution_id for check in found if not check.ok]
    if wrong:
        said = ", ".join(wrong[:_NAMED]) + ("" if len(wrong) <= _NAMED else ", …")
        said = f"NOT verified: {len(wrong)} of {len(found)} records ({said})"
        sheet.text(said, px=13, colour=theme.warn, bold=True)
    else:
        checked = sum(check.checked for check in found)
        said = f"Verified: {checked:,} values were derived again from the records, all equal."
        sheet.text(said, px=12, colour=theme.ink)
    for run in runs:
        sheet.text(f"{run.execution_id}  sha256 {run.sha256}", px=10, colour=theme.muted, gap=0)
    sheet.text(f"heretix {VERSION}", px=10, colour=theme.muted)


def _size(svg: str) -> tuple[float, float]:
    found = _SIZE.search(svg)
    assert found is not None, "a drawing says how large it is"
    return float(found.group(1)), float(found.group(2))
