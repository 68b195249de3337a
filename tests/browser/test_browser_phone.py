"""Figures at the width of a phone and of a desk: not cut and not shrunk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import browsing  # skips where there is no browser
import pytest

from heretix.api import measure
from heretix.core.canonical import sha256_text
from heretix.core.clock import SystemClock
from heretix.economy.episode.state import State
from heretix.economy.exchange import Exchange
from heretix.store.runs import select_runs_of_claim
from heretix.web.demo import DST, LENS_MODEL

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


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


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["claim", "episode", "compare"])
def test_a_figure_fits_its_page(demo_site, opened, addresses, name, width):
    """All of it is seen without scrolling sideways and without a script, in letters as large as
    the words around it."""
    watch, page = opened(
        demo_site, viewport={"width": width, "height": 844}, java_script_enabled=False
    )
    page.goto(addresses[name])
    figures = page.locator("svg.fig, svg.rule")
    assert figures.count() >= 1
    for figure in figures.all():
        if figure.is_visible():
            box = figure.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
    assert watch.complaints == []


@pytest.fixture
def torn(site):
    """A site whose one claim was answered by wording: with documents, and without."""
    with ThreadPoolExecutor(1) as pool:  # A browser's event loop already runs in this thread.
        asked = pool.submit(
            measure,
            DST,
            lenses="RPL,MEL,HEL",
            model="sim:torn?template_sd=2&hel=-1.8",
            store=site.store.name,
            B=100,
        )
        beliefs = asked.result().beliefs.values()
    site.state.anomalies.wait_s = 60
    assert all(belief.ci[1] - belief.ci[0] > 0.2 for belief in beliefs)
    return site


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_beliefs_that_depend_on_the_wording_are_bars_within_the_page(torn, opened, width, scheme):
    """Two intervals in words and in the picture need no more room across than two numbers."""
    watch, page = opened(torn, viewport={"width": width, "height": 844}, color_scheme=scheme)
    digest = sha256_text(DST)[:16]
    for path in ("/", "/search", "/anomalies", f"/claims/{digest}", f"/embed/claims/{digest}"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        bars = page.locator("svg.fig-row rect")
        assert bars.count() >= 2
        for bar in bars.all():
            box = bar.bounding_box()
            assert 0 <= box["x"] < box["x"] + box["width"] <= width
        assert page.locator("svg.fig-row circle").count() == 0
        assert browsing.axe_findings(page) == []
    assert watch.complaints == []
