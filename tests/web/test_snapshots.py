"""A page reads one snapshot of the store: one transaction, an episode loaded once."""

import contextlib
import math

import pytest
from economyplay import NOW, Play
from sqlalchemy import event
from website import run_of

from heretix.core.clock import HeldClock
from heretix.economy.exchange import EpisodeRepository


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


def test_a_claim_and_the_start_read_one_snapshot(measured_site):
    """However many look-ups a page is made of."""
    run = run_of(measured_site, lens="HEL")
    # Whether there are accounts by now is asked again every other second; that isn't the page.
    measured_site.state._looked_at = math.inf
    compared = f"/compare?a={run.run_id}&b={run.execution_id}"
    for path in (f"/runs/{run.run_id}", f"/runs/{run.execution_id}", "/", compared, "/anomalies"):
        measured_site.get(path)
        with transactions(measured_site.store) as begun:
            assert measured_site.get(path).status_code == 200
        assert (path, len(begun)) == (path, 1)


def test_pages_of_a_person_read_one_snapshot(accounts_site):
    """Forms too: what they offer, what is left of quotas and purses, as of one moment."""
    accounts_site.state.clock = HeldClock(NOW)
    play = Play(accounts_site)
    offered = f"{play.path}/quote?side=heretic&amount=10"
    fixed = ("/measure", "/jobs", "/account", "/profile", "/leaderboard", "/ledger", "/episodes")
    for path in (*fixed, offered, f"{play.path}/challenge"):
        assert (path, _count_begun(play, path)) == (path, 1)


def test_an_episode_reads_one_snapshot_in_every_state(accounts_site, loads):
    """Its page loads the episode once: before bets, after them, and settled."""
    accounts_site.state.clock = HeldClock(NOW)
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
