"""A measurement in a real browser: live, without scripts, sent twice, and through an outage."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from browsing import WAIT_MS, Site, expect, send_twice, tab_to

from faultserver import FaultServer, answer, silence
from heretix.accounts import LOCAL

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

CLAIM = "Coffee beans are the seeds of a fruit."
LIVE = "openai-compatible:m"
# Notes every number of finished samples that the page shows, for the test to look at afterwards.
WATCH_PROGRESS = """
() => {
  const seen = JSON.parse(sessionStorage.getItem("seen") || "[]");
  const note = () => {
    const done = document.querySelector("[data-done]");
    if (!done) return;
    const text = `${done.textContent} of ${document.querySelector("[data-total]").textContent}`;
    if (seen.at(-1) !== text) seen.push(text);
    sessionStorage.setItem("seen", JSON.stringify(seen));
  };
  addEventListener("DOMContentLoaded", () => {
    note();
    new MutationObserver(note).observe(document.documentElement,
      { subtree: true, childList: true, characterData: true });
  });
}
"""


@pytest.fixture
def provider():
    """Answers calls when the test says so, however long a page takes to show something."""
    with FaultServer() as running:
        yield running


@pytest.fixture
def site(tmp_path, sqlite_template, provider):
    """A server over an empty store, at which `LIVE` is that provider."""
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    base_url = provider.url("openai-compatible")
    # In a thread, because a browser's event loop already runs in this one.
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Site, path, tmp_path, HERETIX_BASE_URL=base_url).result()
        yield running
        pool.submit(running.close).result()


def plan(page, *, model, **fields):
    """Fill the form in and have the plan shown."""
    page.goto("/measure")
    page.get_by_label("Claim").fill(CLAIM)
    page.get_by_label("Model", exact=True).fill(model)
    if fields:
        page.get_by_text("Precision, budget, experiments").click()
        for label, value in fields.items():
            page.locator(f"#{label}").fill(value)
    page.get_by_role("button", name="Show the plan and the price").click()
    page.get_by_text("calls to make").wait_for()


def start(page):
    """Start what is planned; the address of the job."""
    page.get_by_role("button", name="Start measuring").click()
    page.wait_for_url("**/jobs/*")
    return page.url


def wait_for_progress(page, done):
    """Until the page of the job says by itself that so many samples are done."""
    expect(page.locator("[data-done]")).to_have_text(str(done), timeout=WAIT_MS)


def wait_for_result(page):
    """Until the page of the job says so by itself, and is the one that shows the results."""
    page.locator("[data-ended]").get_by_role("heading", name="Done").wait_for()


def jobs(site):
    return site.state.jobs.list(by=LOCAL)


def test_from_the_form_to_the_result_with_live_progress(site, provider, opened):
    """Plan and price, then a bar that moves by itself, then the belief."""
    watch, page = opened(site)
    page.add_init_script(f"({WATCH_PROGRESS})()")
    provider.script(*[answer()] * 10)
    held, release = provider.held(answer())
    provider.always(held)
    plan(page, model=LIVE, K="16", R="4")
    start(page)
    wait_for_progress(page, 10)
    release()
    wait_for_result(page)
    seen = page.evaluate("JSON.parse(sessionStorage.getItem('seen'))")
    done = [int(text.split(" of ")[0]) for text in seen if text.endswith("of 64")]
    assert done == sorted(done)
    assert [n for n in done if 0 < n < 64], f"never seen under way: {seen}"
    assert done[-1] == 64
    page.get_by_role("link", name=CLAIM).click()
    page.wait_for_url("**/runs/*")
    assert page.locator("p.claim").inner_text() == CLAIM
    page.wait_for_selector("svg.rule")
    assert watch.complaints == []


def test_everything_works_without_scripts(site, provider, opened):
    """Form, plan, job and result are the server's; the page of a job loads itself again."""
    watch, page = opened(site, java_script_enabled=False)
    provider.script(*[answer()] * 3)
    held, release = provider.held(answer())
    provider.always(held)
    plan(page, model=LIVE, K="8", R="1")
    start(page)
    wait_for_progress(page, 3)
    release()
    wait_for_result(page)
    page.get_by_role("link", name=CLAIM).click()
    page.wait_for_url("**/runs/*")
    assert page.locator("p.claim").inner_text() == CLAIM
    assert watch.complaints == []


def test_sent_twice_and_gone_back_to_it_is_one_job(site, opened):
    """Neither a double click nor the browser's way back measures anything twice."""
    watch, page = opened(site)
    plan(page, model="mock:demo-a")
    button = page.get_by_role("button", name="Start measuring")
    send_twice(page, button, "**/measure/start", then="**/jobs/*")
    wait_for_result(page)
    address = page.url
    page.go_back()
    page.get_by_role("button", name="Start measuring").click()
    page.wait_for_url("**/jobs/*")
    assert page.url == address
    assert len(jobs(site)) == 1
    assert watch.complaints == []


def test_a_page_that_is_reloaded_in_the_middle_goes_on(site, provider, opened):
    """The job doesn't notice, and the page shows it from where it is."""
    watch, page = opened(site)
    provider.script(*[answer()] * 3)
    held, release = provider.held(answer())
    provider.always(held)
    plan(page, model=LIVE, K="8", R="2")
    address = start(page)
    wait_for_progress(page, 3)
    page.reload()
    wait_for_progress(page, 3)
    release()
    wait_for_result(page)
    assert page.url == address
    assert len(jobs(site)) == 1
    assert watch.complaints == []


def test_a_job_is_cancelled_and_goes_on(site, provider, opened):
    """Cancelled at once, resumed with a click: what was answered isn't asked again."""
    watch, page = opened(site)
    provider.script(*[answer()] * 5)
    provider.always(silence())
    plan(page, model=LIVE, K="16", R="4")
    start(page)
    wait_for_progress(page, 5)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("heading", name="Cancelled").wait_for()
    provider.always(answer())
    page.get_by_role("button", name="Go on").click()
    wait_for_result(page)
    assert page.get_by_role("link", name=CLAIM).count() == 1
    (job,) = jobs(site)
    assert job.progress.cached == 5
    assert watch.complaints == []


@pytest.mark.soak
def test_a_lost_connection_heals_by_itself(site, provider, opened):
    """The server goes away in the middle of a job and comes back: the page says so, and ends."""
    _, page = opened(site)
    provider.script(*[answer()] * 5)
    provider.always(silence())
    plan(page, model=LIVE, K="16", R="4")
    address = start(page)
    wait_for_progress(page, 5)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(site.stop).result()
        page.get_by_text("The connection is lost").wait_for()
        provider.always(answer())
        pool.submit(site.start).result()
    wait_for_result(page)
    assert page.url == address
    (job,) = jobs(site)
    assert job.attempt == 2
    # The first attempt's answers were stored, so the second took them from there.
    assert job.progress.cached == 5


def test_a_mistake_comes_back_with_what_was_typed(site, opened):
    """The message is announced, and nothing has to be typed again."""
    watch, page = opened(site)
    page.goto("/measure")
    page.get_by_label("Claim").fill(CLAIM)
    page.get_by_label("Model", exact=True).fill("nobody:knows")
    page.get_by_role("button", name="Show the plan and the price").click()
    assert "no known provider" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Claim").input_value() == CLAIM
    # A browser notes every answer that isn't a success; this one is meant.
    assert [one for one in watch.complaints if "422" not in one] == []


@pytest.mark.parametrize(
    "document",
    [
        "Coffee is a bean of no plant, a survey of 2019 found.",
        pytest.param("", marks=pytest.mark.soak),
    ],
)
def test_from_the_form_to_a_card_by_keyboard_alone(site, opened, document):
    """The first measurement, and one that is shown a document: no mouse from form to card."""
    watch, page = opened(site)
    page.goto("/measure")
    tab_to(page, "#claims")
    page.keyboard.type(CLAIM)
    tab_to(page, "#models")
    page.keyboard.type("mock:demo-a")
    if document:
        tab_to(page, "details:has(#doc-text-1) > summary")
        page.keyboard.press("Enter")
        tab_to(page, "#doc-text-1")
        page.keyboard.type(document)
    tab_to(page, "form.measure button[type=submit]")
    page.keyboard.press("Enter")
    page.get_by_text("calls to make").wait_for()
    tab_to(page, "form[action='/measure/start'] button")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")
    page.locator("h1.finding a").wait_for()
    assert "demo-a" in page.locator("h1.finding").inner_text()
    tab_to(page, "h1.finding a")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    # The belief, and where the document took it.
    assert page.locator(".hero-figure").count() == 1
    assert page.locator(".hero-figure .fig-from").count() == bool(document)
    tab_to(page, "details.share > summary")
    page.keyboard.press("Enter")
    tab_to(page, "details.share a[href$='card.png']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/card.png")
    assert watch.complaints == []
