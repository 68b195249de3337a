"""Pictures of the demonstration world, for the documents and for whoever changes how pages look.

    HERETIX_SCREENSHOTS=docs/images pytest tests/browser/test_browser_screenshots.py

writes them there; otherwise they are taken, checked and dropped.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heretix.core.clock import SystemClock
from heretix.economy.episode.state import State
from heretix.economy.exchange import Exchange
from heretix.store.runs import select_runs_of_claim
from heretix.web.demo import DST, LENS_MODEL

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

# Read when tests are collected: while they run, variables of ours are hidden from them.
WANTED = os.environ.get("HERETIX_SCREENSHOTS")
MOST_BYTES = 200_000
WIDE, PHONE = (1280, 1000), (390, 844)
PICTURES = {
    "home": (WIDE, "light", "start"),
    "home-phone": (PHONE, "dark", "start"),
    "claim": (WIDE, "light", "claim"),
    "claim-phone": (PHONE, "light", "claim"),
    "episode": ((1280, 1200), "dark", "episode"),
    "episode-phone": (PHONE, "light", "episode"),
    "report": (WIDE, "light", "report"),
}
# Some are like others but for their size; whoever wants pictures gets them all.
SOAKED = () if WANTED else ("claim", "episode", "home-phone")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the pictures go."""
    if not WANTED:
        return tmp_path_factory.mktemp("screenshots")
    path = Path(WANTED).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module")
def addresses(demo_site, tmp_path_factory):
    """What is pictured."""
    store = demo_site.store
    (run,) = [
        run
        for run in store.read(select_runs_of_claim, DST)
        if (run.model, run.lens, run.variant) == (LENS_MODEL, "HEL", None)
    ]
    (episode,) = Exchange(store, clock=SystemClock()).episodes(state=State.CHALLENGE)
    report = tmp_path_factory.mktemp("report") / "report.html"
    return {
        "start": "/",
        "claim": f"/runs/{run.run_id}",
        "episode": f"/episodes/{episode.id}",
        "report": reported(demo_site, run.execution_id, report),
    }


def reported(site, ref, path):
    from heretix.cli.app import app

    result = CliRunner().invoke(app, ["report", ref, "--out", str(path), "--db", site.settings.db])
    assert result.exit_code == 0, result.output
    return path.as_uri()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] if name in SOAKED else []) for name in PICTURES],
)
def test_a_picture_is_taken(demo_site, opened, addresses, folder, name):
    """In the size it is asked for, small enough for a page, and not blank."""
    (width, height), scheme, what = PICTURES[name]
    watch, page = opened(
        demo_site, viewport={"width": width, "height": height}, color_scheme=scheme
    )
    page.goto(addresses[what])
    join = page.get_by_role("button", name="Join with a purse")
    if join.is_visible():
        # Whoever has a purse is shown more.
        join.click()
        page.get_by_role("button", name="Show the quote").wait_for()
    path = folder / f"{name}.png"
    content = page.screenshot(path=path)
    assert struct.unpack(">II", content[16:24]) == (width, height)
    # A blank page of this size takes a few kilobytes.
    assert 15_000 < len(content) < MOST_BYTES
    assert watch.complaints == []
