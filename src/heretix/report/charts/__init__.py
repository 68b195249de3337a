"""Charts: functions from records to Vega-Lite, and what turns those into pictures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heretix.report.charts.beliefs import (
        belief_vector,
        bootstrap_distribution,
        document_influence,
        evidence_controls,
        model_comparison,
        template_forest,
    )
    from heretix.report.charts.economy import (
        WealthPoint,
        WealthSummary,
        credited_path,
        market_history,
        wealth_by_strategy,
    )
    from heretix.report.charts.figure import Chart
    from heretix.report.charts.output import (
        chart_html,
        chart_json,
        chart_svg,
        embed_script,
        save_chart,
    )
    from heretix.report.charts.studies import (
        JudgedClaim,
        drift,
        evidence_over_time,
        expected_width,
        reliability_diagram,
    )

__all__ = [
    "Chart",
    "JudgedClaim",
    "WealthPoint",
    "WealthSummary",
    "belief_vector",
    "bootstrap_distribution",
    "chart_html",
    "chart_json",
    "chart_svg",
    "credited_path",
    "document_influence",
    "drift",
    "embed_script",
    "evidence_controls",
    "evidence_over_time",
    "expected_width",
    "market_history",
    "model_comparison",
    "reliability_diagram",
    "save_chart",
    "template_forest",
    "wealth_by_strategy",
]

_HOMES = ("beliefs", "economy", "figure", "output", "studies")


def __getattr__(name: str) -> Any:
    # Loaded when one is first asked for: colours alone need no arithmetic, and pages need them.
    if name in __all__:
        for home in (import_module(f"{__name__}.{home}") for home in _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
