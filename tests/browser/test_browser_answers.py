"""Pages that no link leads to: answers to forms, mistakes, and what only people with accounts see."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from browsing import PASSWORD, Site, axe_findings

from heretix.accounts import Role

pytestmark = pytest.mark.browser

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture
def accounts_site(tmp_path, sqlite_template):
    """A server whose people sign in."""
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    people = {"root": Role.OPERATOR, "rita": Role.READER}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Site, path, tmp_path, people=people).result()
        yield running
        pool.submit(running.close).result()


def sign_in(page, name, password=PASSWORD):
    page.goto("/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def flaws(page):
    """Grave findings in both schemes, and what is wider than a phone."""
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")
    found = axe_findings(page)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    found += [f"dark: {one}" for one in axe_findings(page)]
    wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found + ([f"{page.url}: {wider} px wider than a phone"] if wider > 0 else [])


def test_what_people_with_accounts_see_is_sound(accounts_site, opened):
    """Signing in; the account, a new token; the price of a plan that lacks evidence."""
    watch, page = opened(accounts_site)
    page.goto("/sign-in")
    found = flaws(page)
    sign_in(page, "root")
    page.wait_for_url("**/")
    page.goto("/account")
    found += flaws(page)
    page.get_by_label("Label").fill("notebook")
    page.get_by_role("button", name="Make a token").click()
    page.get_by_text("It is shown this once").wait_for()
    found += flaws(page)
    page.goto("/measure")
    page.get_by_label("Claim", exact=True).fill("Zyxwv quonk blarg.")
    page.get_by_label("Model", exact=True).fill("mock:a")
    page.locator("#lens-MEL").check()
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_text("so it won't be measured").wait_for()
    found += flaws(page)
    assert found == []
    assert watch.complaints == []


def test_mistakes_are_answered_by_sound_pages(accounts_site, opened):
    """A wrong password, an address that leads nowhere, a room that is for others."""
    watch, page = opened(accounts_site)
    sign_in(page, "rita", "not the password")
    page.get_by_role("alert").wait_for()
    found = flaws(page)
    sign_in(page, "rita")
    page.wait_for_url("**/")
    for address in ("/nowhere", "/runs/none", "/measure", "/episodes/ep-none"):
        page.goto(address)
        found += flaws(page)
    assert found == []
    # A browser itself says of every refusal that it was one.
    assert all("status of 4" in complaint for complaint in watch.complaints), watch.complaints
