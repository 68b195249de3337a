"""A page reads one snapshot of the store: one transaction, an episode loaded once."""

import contextlib
import importlib
import json
import math
import pkgutil
import shutil

import pytest
from economyplay import DAY, NOW, Play
from sqlalchemy import event
from website import PASSWORD, PEOPLE, WEATHER, quick_passwords, run_of, serving, state_over

from heretix.accounts import LOCAL, People
from heretix.core.canonical import sha256_text
from heretix.core.clock import ManualClock
from heretix.core.event_loop import run_async
from heretix.economy.exchange import EpisodeRepository
from heretix.economy.heads import sign_head
from heretix.measurement.service import Results, measure
from heretix.store import Store
from heretix.studies.panel import keep_wave, load_panel, prepare_panel, prepare_wave
from heretix.web import pages
from heretix.web.state import PageCache


@contextlib.contextmanager
def transactions(store):
    """Collect the statements of each transaction that the store begins."""
    begun = []

    def begin(connection):
        begun.append(connection)

    event.listen(store._engine, "begin", begin)
    try:
        yield begun
    finally:
        event.remove(store._engine, "begin", begin)


@pytest.fixture
def loads(monkeypatch):
    """The ids of episodes as they are loaded."""
    found, load = [], EpisodeRepository.load

    def noting(self, connection, episode_id, **options):
        found.append(episode_id)
        return load(self, connection, episode_id, **options)

    monkeypatch.setattr(EpisodeRepository, "load", noting)
    return found


@pytest.fixture
def whole_site(tmp_path, measured_template):
    """A server with something on every page: runs, a wave, a key, people, and episodes."""
    path = shutil.copy(measured_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store:
        state = state_over(store, tmp_path, HERETIX_SIGNING_KEY=str(tmp_path / "key.pem"))
        state.people = People(store, passwords=quick_passwords())
        for name, role in PEOPLE.items():
            state.people.add(name, role=role, password=PASSWORD)
        state.clock, state.anomalies.wait_s = ManualClock(NOW), 60
        file = tmp_path / "panel.yaml"
        file.write_text(json.dumps({"name": "p", "models": ["sim:m"], "claims": ["Tea."]}))
        panel = load_panel(file)
        # The first signature makes the key, by which heads are shown from then on.
        zeros = "0" * 64
        sign_head(seq=1, root=zeros, chains=zeros, at_ms=NOW, key_file=tmp_path / "key.pem")
        wave, measurement = run_async(
            prepare_wave(panel, prepare_panel(panel, state.settings), store)
        )
        results = Results()
        run_async(measure(measurement, store, results))
        keep_wave(panel, store, wave, results.executions.values())
        with serving(state, loopback_only=False) as site:
            yield site


def addresses_of(site):
    """Every page there is, by its route, with addresses that show something."""
    settled = Play(site)
    settled.to_measured()
    settled.clock.advance(2 * DAY)
    settled.move("settle")
    settled.join(settled.root)
    opened = Play(site, claim="Bees see ultraviolet light.", key="open-another")
    run, digest = run_of(site, lens="HEL"), sha256_text(WEATHER)[:16]
    jobs = site.state.jobs.list(by=LOCAL, limit=100)
    shared = [f"claims/{digest}", "panels/p", f"episodes/{settled.id}"]
    whats = ("card.png", "card.svg", "data.csv", "cite.bib", "report.html")
    fixed = (
        *("/account", "/admin", "/episodes", "/episodes/new", "/profile", "/leaderboard"),
        *("/ledger/heads", "/ledger/head.json", "/ledger/verification", "/policy"),
        *("/method", "/help", "/", "/search", "/all", "/anomalies", "/measure", "/jobs", "/panels"),
        "/sign-in",
    )
    given = {
        "/runs/{ref}": [f"/runs/{run.run_id}", f"/runs/{run.execution_id}"],
        "/runs/{ref}/samples": [f"/runs/{run.execution_id}/samples"],
        "/runs/{ref}/verification": [f"/runs/{run.execution_id}/verification"],
        "/runs/{ref}/artifact.json": [f"/runs/{run.run_id}/artifact.json"],
        "/claims/{digest}": [f"/claims/{digest}"],
        "/claims": [f"/claims?text={WEATHER}"],
        "/compare": [f"/compare?a={run.run_id}&b={run.execution_id}", "/compare"],
        "/episodes/{episode_id}": [opened.path, settled.path],
        "/episodes/{episode_id}/quote": [f"{opened.path}/quote?side=heretic&amount=10"],
        "/episodes/{episode_id}/challenge": [f"{opened.path}/challenge"],
        "/episodes/{episode_id}/reveal": [f"{settled.path}/reveal"],
        "/episodes/{episode_id}/record.json": [f"{settled.path}/record.json"],
        "/episodes/{episode_id}/verification": [f"{settled.path}/verification"],
        "/ledger": ["/ledger", f"/ledger?episode={settled.id}", "/ledger?account=alice"],
        "/bundles/{ref}": [f"/bundles/{run.bundle_id}"],
        "/jobs/{job_id}": [f"/jobs/{job.id}" for job in jobs],
        "/panels/{name}": ["/panels/p"],
        "/share/{kind}/{key}/{what}": [f"/share/{one}/{what}" for one in shared for what in whats],
        "/embed/{kind}/{key}": [f"/embed/{one}" for one in shared],
    }
    return {route: given.get(route, [route]) for route in (*fixed, *given)}, opened


def page_routes():
    """Routes of all modules of pages that are looked at."""
    for found in pkgutil.iter_modules(pages.__path__):
        module = importlib.import_module(f"{pages.__name__}.{found.name}")
        for route in module.router.routes if hasattr(module, "router") else ():
            if "GET" in route.methods:
                yield route.path


def test_every_page_reads_one_snapshot(whole_site):
    """Seen first and seen again, however many look-ups it is made of: as of one moment."""
    addresses, play = addresses_of(whole_site)
    # A stream is no page: it looks again and again for as long as it is open.
    assert set(page_routes()) - {"/jobs/{job_id}/events"} == set(addresses)
    # Whether there are accounts by now is asked again every other second, and anomalies are ranked
    # in a thread of their own: neither is the page.
    whole_site.state._looked_at = math.inf
    whole_site.state.anomalies.read()
    visitor = count_visits(play.root, "/help")[1]
    more = {}
    for route, paths in addresses.items():
        for path in paths:
            first, again = (count - visitor for count in count_visits(play.root, path))
            # A glance says if a run's page takes but a moment to make; a thread makes the others,
            # and takes nothing over from the glance.
            if first > 1 + (route == "/runs/{ref}") or again > 1:
                more[path] = (first, again)
    assert more == {}


def count_visits(browser, path):
    """Count the transactions of a first visit, with nothing in the cache, and of the next."""
    browser.state.cache = PageCache(browser.store)
    found = []
    for _ in range(2):
        with transactions(browser.store) as begun:
            assert browser.get(path).status_code in {200, 303}, path
        found.append(len(begun))
    return found


def test_an_episode_reads_one_snapshot_in_every_state(accounts_site, loads):
    """Its page loads the episode once: before bets, after them, and settled."""
    accounts_site.state.clock = ManualClock(NOW)
    play = Play(accounts_site)
    _look(play, loads)
    play.to_frozen(evidence=False)
    _look(play, loads)
    play.worked(f"{play.path}/measure", {"key": "measure-first"})
    play.clock.advance(7 * 86_400_000)
    play.worked(f"{play.path}/measure", {"key": "measure-second"})
    play.clock.advance(2 * 86_400_000)
    play.move("settle")
    _look(play, loads)


def _count_begun(play, path):
    """Count a page's own transactions: the session of its visitor is looked up before."""
    found = []
    for each in ("/method", path):
        play.alice.get(each)
        with transactions(play.town.store) as begun:
            assert play.alice.get(each).status_code == 200
        found.append(len(begun))
    return found[1] - found[0]


def _look(play, loads):
    """The page is one transaction, in which its episode is loaded once."""
    assert _count_begun(play, play.path) == 1
    loads.clear()
    assert play.alice.get(play.path).status_code == 200
    assert loads == [play.id]
