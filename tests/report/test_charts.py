"""Every chart: valid, described, in the theme's colours, and nothing in it but data."""

import re
from xml.etree import ElementTree as ET

import pytest
import vl_convert
from drawn import NAMES, every_chart, leaves

from heretix.report.charts import chart_svg
from heretix.report.charts.figure import shorten, strip_controls, wrap_text
from heretix.report.charts.theme import (
    DARK,
    LIGHT,
    colour_pairs,
    css_variables,
    dark_css,
    tooltip_css,
)

COLOUR = re.compile(r"#[0-9a-f]{6}")
THEMES = {"light": LIGHT, "dark": DARK}


@pytest.fixture(scope="module", params=sorted(THEMES))
def drawn(request, clean_run, faulty_run, lost_run, vector_artifact):
    """All charts in one theme."""
    theme = THEMES[request.param]
    runs = {"clean_run": clean_run, "faulty_run": faulty_run, "lost_run": lost_run}
    return theme, every_chart(theme, vector_artifact=vector_artifact, **runs)


@pytest.fixture(scope="module")
def pictures(drawn):
    """The same, as they stand on one page."""
    return {name: chart_svg(chart, prefix=name) for name, chart in drawn[1].items()}


def axes_of(value):
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and isinstance(value.get("axis"), dict) and "type" in value:
        yield value["axis"]
    for part in parts:
        yield from axes_of(part)


def colours(theme):
    return {pair[theme.dark] for _, pair in colour_pairs()}


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_compiles_without_a_warning(drawn, name, capfd):
    """The engine has nothing to say against it, and what it draws is well-formed."""
    _, charts = drawn
    svg = vl_convert.vegalite_to_svg(charts[name], vl_version="6.4", show_warnings=True)
    assert capfd.readouterr() == ("", "")
    assert ET.fromstring(svg).tag.endswith("svg")


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_says_what_it_shows_and_how_much_of_it(drawn, pictures, name):
    """A title, n below it, axes with titles, and a description for those who can't see."""
    _, charts = drawn
    chart = charts[name]
    assert " ".join(chart["title"]["text"])
    assert re.search(r"\bn\b", " ".join(chart["title"]["subtitle"]))
    assert len(chart["description"]) > 30
    svg = ET.fromstring(pictures[name])
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == chart["description"]
    assert all(axis["title"] for axis in axes_of(chart))


@pytest.mark.parametrize("name", NAMES)
def test_colours_come_from_the_theme(drawn, name):
    """No colour stands in a chart that a theme doesn't give a meaning."""
    theme, charts = drawn
    used = {v for _, v in leaves(charts[name]) if isinstance(v, str) and COLOUR.fullmatch(v)}
    assert used
    assert used <= colours(theme)


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_fetches_nothing_and_evaluates_no_record(drawn, name):
    """Data stand inside; expressions are ours and constant."""
    _, charts = drawn
    keys = {key for key, _ in leaves(charts[name])}
    assert not keys & {"url", "href", "signal", "expr", "calculate", "filter"}
    expressions = {value for key, value in leaves(charts[name]) if key == "labelExpr"}
    assert expressions <= {"abs(datum.value) < 1e-9 ? '0' : format(datum.value, '+.2f')"}


def test_several_drawings_fit_one_page(pictures):
    """With prefixes no id stands twice, and references still lead to theirs."""
    text = "".join(pictures.values())
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES.values(), ids=sorted(THEMES, reverse=True))
def test_colours_can_be_told_from_the_paper(theme):
    """WCAG: 4.5 for text, 3 for what is drawn."""
    for name in ("ink", "muted", "warn", "heretic", "orthodox"):
        assert contrast(getattr(theme, name), theme.paper) >= 4.5, name
    drawn = {name: pair[theme.dark] for name, pair in colour_pairs()}
    for name in drawn.keys() - {"paper", "grid", "band"}:
        assert contrast(drawn[name], theme.paper) >= 3, name


def test_light_colours_are_told_apart_by_their_text():
    """A drawn colour names one meaning, so it can be turned into the dark one."""
    pairs = dict(colour_pairs())
    assert len(colours(LIGHT)) == len(pairs)
    for light, dark in pairs.values():
        assert f'[fill="{light}"]{{fill:{dark}}}' in dark_css()
    assert f"--hx-heretic:{LIGHT.heretic};" in css_variables()
    assert "@media screen and" in css_variables(), "print stays light"
    assert "#vg-tooltip-element" in tooltip_css()


def test_text_is_made_fit_to_draw():
    """Control and direction signs are replaced, joiners stay, and length is kept in check."""
    assert strip_controls("a\x00b \u202egnp.exe\n c") == "a�b �gnp.exe c"
    assert strip_controls("می\u200cخواهم") == "می\u200cخواهم"
    assert shorten("x" * 50, 10) == "x" * 9 + "…"
    assert wrap_text("word " * 100, 20, lines=2)[-1].endswith("…")
    assert wrap_text("", 20) == [""]
    assert wrap_text("its odds ×\u00a02.5", 11) == ["its odds", "×\u00a02.5"]
