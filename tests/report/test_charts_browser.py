"""Charts in a real browser, under a policy without inline scripts, inline styles or evaluation."""

from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from drawn import every_chart, loose

from chromium import NoBrowserError, running_chromium
from heretix.report.charts import chart_html, chart_json, embed_script, template_forest
from heretix.report.charts.theme import DARK, LIGHT, css_variables, dark_css, tooltip_css
from heretix.report.document import report_html

pytestmark = pytest.mark.browser

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'"
HOST = "http://heretix.test"


@pytest.fixture(scope="module")
def browser(clean_run, faulty_run, lost_run, markup_run, vector_artifact):
    """Chromium, where there is one.

    Everything is measured before: an event loop of the browser's runs in this thread from then on,
    and measuring needs one of its own.
    """
    with ExitStack() as stack:
        try:
            running = stack.enter_context(running_chromium())
        except NoBrowserError as exc:
            pytest.skip(str(exc))
        yield running


@pytest.fixture
def visit(browser):
    """Open pages that this process answers for; whatever else is asked for is a complaint."""
    context = browser.new_context(color_scheme="dark")
    context.set_default_timeout(120_000)
    complaints = []

    def opened(files, policy):
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))

        def answer(route):
            path = urlsplit(route.request.url).path
            if path == "/favicon.ico":
                return route.fulfill(status=204)
            if not route.request.url.startswith(HOST) or path not in files:
                complaints.append(route.request.url)
                return route.abort()
            kind, body = files[path]
            headers = {"Content-Security-Policy": policy} if policy else {}
            return route.fulfill(body=body, content_type=f"{kind}; charset=utf-8", headers=headers)

        page.route("**/*", answer)
        page.goto(f"{HOST}/")
        return page

    yield opened, complaints
    context.close()


def test_every_chart_is_drawn_under_a_strict_policy(
    visit, clean_run, faulty_run, lost_run, vector_artifact
):
    """Mounted in place of what readers without scripts see, with no violation and no request."""
    opened, complaints = visit
    runs = {"clean_run": clean_run, "faulty_run": faulty_run, "lost_run": lost_run}
    charts = every_chart(LIGHT, vector_artifact=vector_artifact, **runs)
    body = "".join(
        f'<figure data-chart="{name}"><p>a table</p><figcaption>{name}</figcaption></figure>'
        f'<script type="application/json" id="{name}">{chart_json(chart)}</script>'
        for name, chart in charts.items()
    )
    html = (
        '<!doctype html><title>t</title><link rel="stylesheet" href="/style.css">'
        f'<script src="/charts.js" defer></script>{body}'
    )
    style = css_variables() + dark_css() + tooltip_css()
    files = {
        "/": ("text/html", html),
        "/charts.js": ("text/javascript", embed_script()),
        "/style.css": ("text/css", style),
    }
    page = opened(files, POLICY)
    page.wait_for_function(f"document.querySelectorAll('figure svg').length == {len(charts)}")
    assert page.locator("figure p").count() == 0
    assert page.locator("figcaption").count() == len(charts)
    colour = "getComputedStyle(document.querySelector('figure svg')).backgroundColor"
    dark = tuple(int(DARK.paper[place : place + 2], 16) for place in (1, 3, 5))
    assert page.evaluate(colour) == f"rgb{dark}"
    assert complaints == []


def test_a_saved_page_and_a_report_open_without_complaint(visit, markup_run):
    """Their own policies allow all that they hold, and nothing that a claim asks for."""
    opened, complaints = visit
    page = opened({"/": ("text/html", chart_html(template_forest(markup_run)))}, None)
    page.wait_for_function("document.querySelector('figure').dataset.drawn == '1'")
    page.wait_for_selector("figure div svg")

    opened({"/": ("text/html", report_html([loose([markup_run])]))}, None)
    assert complaints == []
