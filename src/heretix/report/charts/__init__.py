"""Charts: functions from records to Vega-Lite, and what turns those into pictures."""

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
from heretix.report.charts.output import chart_html, chart_json, chart_svg, embed_script, save_chart
from heretix.report.charts.studies import (
    JudgedClaim,
    drift,
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
    "expected_width",
    "market_history",
    "model_comparison",
    "reliability_diagram",
    "save_chart",
    "template_forest",
    "wealth_by_strategy",
]
