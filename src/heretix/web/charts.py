"""Charts as pages show them: the specification alone, fetched when the page is there.

A page stays small and quick this way, and its charts are kept by the browser on their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heretix.report.charts import chart_json

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["page_chart"]


def page_chart(chart: Mapping[str, Any]) -> bytes:
    """A chart without the headline that stands on the page already; what it is of stays."""
    title = chart.get("title")
    if not isinstance(title, dict) or not title.get("subtitle"):
        return chart_json(dict(chart)).encode()
    first, *rest = title["subtitle"]
    said: dict[str, Any] = {"text": first, "fontSize": 12, "fontWeight": "normal"}
    if rest:
        said["subtitle"] = rest
    return chart_json({**chart, "title": said}).encode()
