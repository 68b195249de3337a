"""Every page of the demonstration world in a real browser, light and dark, wide and narrow."""

from __future__ import annotations

import re
from collections import defaultdict
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2
import pytest
from browsing import WAIT_MS, axe_findings, expect, tab_to

# A slow machine takes minutes for them.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

SLICES = 8
MOST = 1_500
_ID = re.compile(
    r"(exec|job)-[0-9a-f-]{36}|heretix-[a-z]+-[0-9a-f]{12}|ep-[0-9a-f]{12}|[0-9a-f]{16,64}"
)
_NOT_A_PAGE = re.compile(r"\.(json|jsonl|parquet|svg|css|js|png|csv|bib)$|^/static/|^/api/")
_OF_A_KIND = defaultdict(lambda: 1, {"/episodes/*": 20, "/jobs/*": 4, "/runs/*": 4})
"""How many pages of a kind are opened. An episode looks different in each state, so all of them."""
# Where a form leads when it is sent, and what only a number can find.
_MORE = (
    "/admin",
    "/measure?lenses=all&claim=Bats+are+blind.",
    "/search?q=nothing+like+this",
    "/sign-in",
)

_DEPENDING = ("color-contrast", "link-in-text-block", "target-size", "scrollable-region-focusable")
"""Rules of axe-core whose finding can change with colours or width."""


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.elsewhere: list[dict[str, str | None]] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "form" and (values.get("action") or "").endswith("/verification"):
            self.found.append(values["action"])
        if tag != "a" or "download" in values or not values.get("href"):
            return
        if values["href"].startswith("http"):
            self.elsewhere.append(values)
        else:
            self.found.append(values["href"])


def kind(address: str) -> str:
    """What a page is, whichever of its kind."""
    parts = urlsplit(address)
    keys = sorted({key for key, _ in parse_qsl(parts.query)})
    return f"{_ID.sub('*', parts.path)}?{','.join(keys)}".removesuffix("?")


@pytest.fixture(scope="module")
def addresses(demo_site):
    """Addresses that links lead to from the start; every one of them answers."""
    seen, waiting, kinds = {"/", *_MORE}, ["/", *_MORE], defaultdict(list)
    with httpx2.Client(
        base_url=demo_site.url, timeout=120, trust_env=False, verify=False
    ) as client:
        while waiting and len(seen) < MOST:
            address = waiting.pop(0)
            answer = client.get(address, follow_redirects=True)
            assert answer.status_code == 200, f"{address}: {answer.status_code}"
            kinds[kind(address)].append(address)
            links = _Links()
            links.feed(answer.text)
            # A document's source is told nothing of who looks at it.
            assert all("noreferrer" in (link.get("rel") or "") for link in links.elsewhere)
            for href in links.found:
                found = urlsplit(urljoin(str(answer.url), href))
                path = found.path + (f"?{found.query}" if found.query else "")
                # Enough of a kind is enough to follow.
                if path in seen or _NOT_A_PAGE.search(found.path):
                    continue
                seen.add(path)
                if sum(kind(one) == kind(path) for one in seen) <= _OF_A_KIND[kind(path)]:
                    waiting.append(path)
    return [one for of_kind in kinds.values() for one in of_kind]


def test_the_crawl_finds_every_kind_of_page(addresses):
    """What no link leads to, no test would look at."""
    kinds = {kind(address) for address in addresses}
    assert {
        *("/", "/search", "/anomalies", "/compare", "/jobs", "/measure", "/policy", "/method"),
        *("/help", "/runs/*", "/runs/*/samples", "/runs/*/verification", "/bundles/*", "/jobs/*"),
        *("/episodes", "/episodes/new", "/episodes/*", "/episodes/*/verification"),
        *("/leaderboard", "/ledger", "/profile", "/panels", "/panels/demo-weekly"),
    } <= kinds
    assert sum(kind(address) == "/episodes/*" for address in addresses) == 9


SOAKED = [pytest.param(part, marks=pytest.mark.soak) for part in range(1, SLICES)]


@pytest.mark.parametrize("part", [0, *SOAKED])
def test_every_page_is_sound(demo_site, opened, addresses, part):
    """No error, no other host, no finding at all in either scheme, nothing wider than a phone."""
    watch, page = opened(demo_site, viewport={"width": 1280, "height": 900})
    findings = []
    for address in addresses[part::SLICES]:
        page.set_viewport_size({"width": 1280, "height": 900})
        page.emulate_media(color_scheme="light")
        answer = page.goto(address)
        assert answer is not None
        assert answer.ok, address
        findings += axe_findings(page)
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 390, "height": 844})
        findings += [f"dark: {one}" for one in axe_findings(page, *_DEPENDING)]
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wider > 0:
            findings.append(f"{address}: {wider} px wider than a phone")
    assert findings == []
    assert watch.complaints == []


def test_every_page_says_that_it_is_a_demonstration(demo_site, opened):
    """Whoever arrives anywhere in the demonstration is told, in words and for screen readers."""
    _, page = opened(demo_site)
    for address in ("/", "/episodes", "/ledger", "/measure"):
        page.goto(address)
        note = page.get_by_role("note").first
        assert "Demonstration" in note.inner_text()


def test_the_keyboard_reaches_the_content_and_the_search(demo_site, opened):
    """Skip past the masthead, search, open the first result: no mouse."""
    watch, page = opened(demo_site)
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused(timeout=WAIT_MS)
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused(timeout=WAIT_MS)
    page.focus("#q")
    page.keyboard.type("great wall")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=great+wall")
    page.get_by_role("link", name="The Great Wall of China").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/claims/*")
    assert watch.complaints == []


def test_from_the_list_of_episodes_to_a_bet_by_keyboard_alone(played_site, opened):
    """Find an open question, join, say a side and an amount, look at the quote, stake: no mouse."""
    watch, page = opened(played_site)
    page.goto("/episodes")
    tab_to(page, "li:has(.tag.good) a.feed-claim")
    page.keyboard.press("Enter")
    page.wait_for_url("**/episodes/ep-*")
    tab_to(page, "form[action='/profile/join'] button")
    page.keyboard.press("Enter")
    page.locator("form.bet").wait_for()
    tab_to(page, "#side-heretic")
    page.keyboard.press("Space")
    tab_to(page, "#amount")
    page.keyboard.type("25")
    page.keyboard.press("Enter")
    page.wait_for_url("**/quote*")
    tab_to(page, "form[action$='/stake'] button[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/episodes/ep-[0-9a-f]{12}(\?|$)"))
    assert "25.00 PLAY" in page.locator("main").inner_text()
    assert watch.complaints == []


def test_the_reader_chooses_the_colours(demo_site, opened):
    """The choice outlasts the page, whatever the system says."""
    _, page = opened(demo_site, color_scheme="light")
    page.goto("/method")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Use dark colours").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.goto("/help")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_the_two_sides_of_a_market_add_up(demo_site, opened):
    """What the prices of both sides imply is a whole."""
    _, page = opened(demo_site)
    page.goto("/episodes")
    rows = page.locator(".balance-row").all_inner_texts()
    assert len(rows) == 8
    for row in rows:
        up, down = (float(number) for number in re.findall(r"([\d.]+)%", row))
        assert up + down == pytest.approx(100, abs=0.11)


def test_the_chart_of_a_market_shows_the_bets_that_count(demo_site, opened):
    """What came after the close was given back, and isn't drawn."""
    _, page = opened(demo_site)
    page.goto("/episodes")
    links = page.locator(".episodes li:has(.balance-row) a.feed-claim").all()
    checked = 0
    for address in [link.get_attribute("href") for link in links]:
        page.goto(address)
        drawn = page.locator("svg.fig-time")
        if not drawn.count():
            continue  # all bets were made at one moment
        told = drawn.first.get_attribute("aria-label")
        up = page.locator(".balance-row").first.inner_text().split("%")[0].strip("▲ ")
        assert told.endswith(f"to {float(up) / 100:.2f}")
        checked += 1
    assert checked


def test_the_records_verify_in_the_browser(demo_site, opened, addresses):
    """A run, an episode and the whole ledger are worked out again by a click."""
    watch, page = opened(demo_site)
    page.goto(next(one for one in addresses if kind(one) == "/runs/*"))
    with page.expect_navigation(url="**/verification*"):
        page.get_by_role("button", name=re.compile("Verify")).first.click()
    assert page.locator(".note.bad").count() == 0
    page.goto(next(one for one in addresses if kind(one) == "/episodes/*/verification"))
    assert page.locator(".note.bad").count() == 0
    assert watch.complaints == []
