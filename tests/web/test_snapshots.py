"""A page reads one snapshot of the store: one transaction, an episode loaded once."""

import contextlib

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
    for path in (f"/runs/{run.run_id}", f"/runs/{run.execution_id}", "/"):
        measured_site.get(path)
        with transactions(measured_site.store) as begun:
            assert measured_site.get(path).status_code == 200
        assert (path, len(begun)) == (path, 1)


def test_an_episode_reads_one_snapshot_in_every_state(accounts_site, loads):
    """Its page loads the episode once: before bets, after them, and settled."""
    accounts_site.state.clock = HeldClock(NOW)
    play = Play(accounts_site)
    visitor = play.alice
    _look(play, visitor, loads)
    play.to_frozen(evidence=False)
    _look(play, visitor, loads)
    play.worked(f"{play.path}/measure", {"key": "measure-first"})
    play.clock.advance(7 * 86_400_000)
    play.worked(f"{play.path}/measure", {"key": "measure-second"})
    play.clock.advance(2 * 86_400_000)
    play.move("settle")
    _look(play, visitor, loads)


def _look(play, visitor, loads):
    """The session of a visitor is looked up before; the page itself is one transaction."""
    visitor.get("/account")
    with transactions(play.town.store) as begun:
        assert visitor.get("/method").status_code == 200
    signing_in = len(begun)
    loads.clear()
    with transactions(play.town.store) as begun:
        assert visitor.get(play.path).status_code == 200
    assert len(begun) - signing_in == 1
    assert loads == [play.id]
