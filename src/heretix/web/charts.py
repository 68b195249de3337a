"""Charts as pages show them: the specification alone, fetched when the page is there.

A page stays small and quick this way, and its charts are kept by the browser on their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heretix.report.charts import chart_json
from heretix.report.theme import LIGHT, TEXT_PX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["page_chart"]


def page_chart(chart: Mapping[str, Any]) -> bytes:
    """A chart without the headline that stands on the page already; what it is of stays."""
    title = chart.get("title")
    if not isinstance(title, dict) or not title.get("subtitle"):
        return chart_json(dict(chart)).encode()
    # All of it in one voice: a line that was broken in two is still one line.
    said = {
        "text": title["subtitle"],
        "fontSize": TEXT_PX,
        "fontWeight": "normal",
        "lineHeight": 17,
        "color": LIGHT.muted,
    }
    return chart_json({**chart, "title": said}).encode()
