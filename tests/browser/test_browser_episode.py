"""An episode from open to settlement, by three people in three browsers."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from browsing import PASSWORD, Site, axe_findings, send_twice

from heretix.accounts import Role
from heretix.core.clock import ManualClock
from heretix.economy.episode.state import State

# A slow machine takes minutes for them.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

CLAIM = "Tin whiskers cause short circuits in satellites."
PAPER = "Three satellites were lost to tin whiskers, the review board found in its 1998 report."
DAY_MS = 86_400_000
PEOPLE = {"alice": Role.EXPLORER, "bob": Role.EXPLORER, "olga": Role.OPERATOR}


@pytest.fixture
def clock():
    """A clock that the test moves on."""
    return ManualClock(1_790_000_000_000)


@pytest.fixture
def accounts_site(tmp_path, sqlite_template, clock):
    """A server whose people sign in."""
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Site, path, tmp_path, clock=clock, people=PEOPLE).result()
        yield running
        pool.submit(running.close).result()


@pytest.fixture
def pages(accounts_site, opened):
    """A browser for each, signed in; and all that went wrong in them."""
    complaints = []
    found = {}
    for name in PEOPLE:
        watch, page = opened(accounts_site)
        watch.complaints = complaints
        page.goto("/episodes")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        with page.expect_navigation(url="**/episodes"):
            page.get_by_role("button", name="Sign in").click()
        found[name] = page
    return found, complaints


def opened_episode(page):
    """The operator proposes it; what the models believe now is measured."""
    page.goto("/episodes/new")
    page.get_by_label("Claim").fill(CLAIM)
    page.get_by_label("Practise").check()
    page.get_by_text("Sampling, judges, times and the seed").click()
    for name, value in {"R": "1", "B": "500", "judges": "3"}.items():
        page.locator(f"#{name}").fill(value)
    page.get_by_role("button", name="Measure and open").click()
    page.get_by_role("link", name="Look at the episode").click()
    page.get_by_role("heading", name="Bets and evidence are taken").wait_for()
    return page.url.rpartition("/")[2]


def bet(page, episode, side, amount):
    """Join, ask for a quote and take it."""
    page.goto(f"/episodes/{episode}")
    page.get_by_role("button", name="Join with a purse").click()
    page.get_by_role("radio", name=side).check()
    page.get_by_label("Amount").fill(amount)
    page.get_by_role("button", name="Show the quote").click()
    button = page.get_by_role("button", name="Stake")
    send_twice(page, button, "**/stake", then=f"**/episodes/{episode}?*")
    page.get_by_role("status").get_by_text("is taken").wait_for()


def bring_evidence(page, episode, folder, clock):
    """Seal, save the file, commit; and reveal with the file when no bet is taken any more."""
    page.goto(f"/episodes/{episode}")
    page.get_by_role("link", name="Bring evidence").click()
    page.get_by_label("Document 1: title").fill("Review board")
    page.get_by_label("Document 1: text").fill(PAPER)
    # The bond has to cover the whole move, else it comes back and nothing is paid.
    page.get_by_label("Stake").fill("900")
    page.get_by_role("button", name="Seal it").click()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save reveal").click()
    file = folder / saved.value.suggested_filename
    saved.value.save_as(file)
    page.get_by_label("I have saved the reveal file").check()
    page.get_by_role("button", name="Commit, with").click()
    page.locator("#challenge-0 .tag").get_by_text("sealed", exact=True).wait_for()
    reveal = page.get_by_role("link", name="Reveal your evidence")
    assert reveal.count() == 0, "evidence stays sealed while bets are taken"
    clock.advance(7 * DAY_MS + 1)
    page.goto(f"/episodes/{episode}")
    page.get_by_text("You have sealed evidence here").wait_for()
    reveal.click()
    page.get_by_label("Reveal file").set_input_files(file)
    page.get_by_role("button", name="Reveal it").click()
    page.locator("#challenge-0").get_by_text("revealed").wait_for()


def move(page, episode, label):
    """The operator does what is due, and waits for what has to be measured."""
    page.goto(f"/episodes/{episode}")
    # Not its address: the page that the button is on may have the one that it leads to.
    with page.expect_navigation():
        page.locator(".operator").get_by_role("button", name=label).click()
    if "/jobs/" in page.url:
        page.get_by_role("link", name="Look at the episode").click()
        page.wait_for_url(f"**/episodes/{episode}")


def test_an_episode_from_open_to_settlement_by_three_people(accounts_site, pages, clock, tmp_path):
    """Two bet against each other, one brings evidence, one operates; all see what came of it."""
    people, complaints = pages
    alice, bob, olga = (people[name] for name in PEOPLE)
    episode = opened_episode(olga)
    bet(alice, episode, "Heretic", "200")
    bet(bob, episode, "Orthodox", "150.50")
    bring_evidence(alice, episode, tmp_path, clock)
    assert bob.locator(".operator").count() == 0, "operators' moves are theirs alone"
    clock.advance(DAY_MS)
    move(olga, episode, "Freeze")
    move(olga, episode, "Judge")
    move(olga, episode, "Measure")
    clock.advance(7 * DAY_MS)
    move(olga, episode, "Measure")
    clock.advance(2 * DAY_MS)
    move(olga, episode, "Settle")

    exchange = accounts_site.state.exchange
    ended = exchange.episode(episode)
    assert ended.state is State.SETTLED
    assert len(exchange.positions(episode)) == 4, "a double click is one bet"
    assert exchange.balance("alice") > 1_000_000 > exchange.balance("bob")
    for page in (alice, bob, olga):
        page.goto(f"/episodes/{episode}")
        page.get_by_role("heading", name="Settled").wait_for()
        assert axe_findings(page) == []
    bob.goto("/profile")
    assert CLAIM in bob.inner_text("main")
    alice.goto(f"/episodes/{episode}/verification")
    assert alice.locator(".note.bad").count() == 0
    assert complaints == []
