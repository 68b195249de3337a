"""Charts: functions from records to Vega-Lite, and what turns those into pictures."""

from heretix.report.charts.bootstrap import bootstrap_distribution
from heretix.report.charts.comparison import model_comparison
from heretix.report.charts.drift import drift
from heretix.report.charts.figure import Chart
from heretix.report.charts.forest import template_forest
from heretix.report.charts.influence import document_influence, evidence_controls
from heretix.report.charts.lenses import belief_vector
from heretix.report.charts.market import market_history
from heretix.report.charts.output import chart_html, chart_json, chart_svg, embed_script, save_chart
from heretix.report.charts.path import credited_path
from heretix.report.charts.reliability import JudgedClaim, reliability_diagram
from heretix.report.charts.wealth import WealthPoint, WealthSummary, wealth_by_strategy

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
    "market_history",
    "model_comparison",
    "reliability_diagram",
    "save_chart",
    "template_forest",
    "wealth_by_strategy",
]
