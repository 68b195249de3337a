"""A browser, the demonstration world, and servers over copies of it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from browsing import Site, Watch

from chromium import NoBrowserError, running_chromium


@pytest.fixture(scope="module")
def chromium():
    """One browser for the tests of a file; where there can't be one, they are skipped."""
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(running_chromium())
        except NoBrowserError as exc:
            pytest.skip(str(exc))
        yield browser


@pytest.fixture
def opened(chromium):
    """Open a context on a site: a watch over everything it does, and a page in it."""
    with ExitStack() as stack:

        def open_context(site: Site, **options):
            watch = Watch(site.url)
            context = chromium.new_context(base_url=site.url, **options)
            stack.callback(context.close)
            watch.over(context)
            return watch, context.new_page()

        yield open_context


@pytest.fixture
def site(tmp_path, sqlite_template):
    """A server over an empty store."""
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    # In a thread, because a browser's event loop already runs in this one.
    running = _elsewhere(Site, path, tmp_path)
    yield running
    _elsewhere(running.close)


@pytest.fixture(scope="module")
def demo_site(tmp_path_factory, demo_template):
    """A server over a copy of the demonstration world, for tests that only read."""
    folder = tmp_path_factory.mktemp("demo_site")
    running = _elsewhere(Site, shutil.copy(demo_template, folder / "demo.sqlite"), folder)
    yield running
    _elsewhere(running.close)


@pytest.fixture
def played_site(tmp_path, demo_template):
    """A server over a copy of the demonstration world of a test's own, to take part in."""
    running = _elsewhere(Site, shutil.copy(demo_template, tmp_path / "demo.sqlite"), tmp_path)
    yield running
    _elsewhere(running.close)


def _elsewhere(work, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *arguments).result()
