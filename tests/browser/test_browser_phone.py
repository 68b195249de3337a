"""Charts on a phone: laid out for its width, not cut and not shrunk."""

from __future__ import annotations

import pytest
from browsing import WAIT_MS, expect

from heretix.core.clock import SystemClock
from heretix.economy.episode.state import State
from heretix.economy.exchange import Exchange
from heretix.store.runs import select_runs_of_claim
from heretix.web.demo import DST, LENS_MODEL

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def addresses(demo_site):
    """A page with rows, one with curves, and one with runs below each other."""
    store = demo_site.store
    runs = [run for run in store.read(select_runs_of_claim, DST) if run.model == LENS_MODEL]
    settled, *_ = Exchange(store, clock=SystemClock()).episodes(state=State.SETTLED)
    (whole,) = [run for run in runs if (run.lens, run.variant) == ("HEL", None)]
    refs = "&".join(f"ref={run.run_id}" for run in runs if run.variant is None)
    return {
        "claim": f"/runs/{whole.run_id}",
        "episode": f"/episodes/{settled.id}",
        "compare": f"/compare?{refs}",
    }


@pytest.mark.parametrize("name", ["claim", "episode", "compare"])
def test_a_chart_fits_a_phone(demo_site, opened, addresses, name):
    """All of it is seen without scrolling sideways, in letters of the usual size."""
    watch, page = opened(demo_site, viewport=PHONE)
    page.goto(addresses[name])
    expect(page.locator("figure[data-chart]:not(:has(svg))")).to_have_count(0, timeout=WAIT_MS)
    charts = page.locator("figure[data-chart]")
    assert charts.count() >= 1
    for chart in charts.all():
        width, room = chart.evaluate("figure => [figure.scrollWidth, figure.clientWidth]")
        assert width <= room
        drawn, asked = chart.locator("svg").first.evaluate(
            "svg => [svg.getBoundingClientRect().width, svg.viewBox.baseVal.width]"
        )
        assert drawn / asked > 0.9
    assert watch.complaints == []


def test_a_wide_screen_keeps_words_beside_their_rows(demo_site, opened, addresses):
    """Only a phone's chart is laid out anew."""
    _, page = opened(demo_site, viewport={"width": 1280, "height": 900})
    page.goto(addresses["claim"])
    expect(page.locator("figure[data-chart]:not(:has(svg))")).to_have_count(0, timeout=WAIT_MS)
    widths = [
        svg.evaluate("svg => svg.viewBox.baseVal.width")
        for svg in page.locator("figure[data-chart] svg").all()
    ]
    assert max(widths) > 600
