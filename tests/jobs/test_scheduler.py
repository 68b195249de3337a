"""Episodes that run themselves: what is due is made by workers, each move once."""

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from episode_town import NOW, Town
from sqlalchemy import select

from heretix.accounts import LOCAL
from heretix.core.clock import utc_text
from heretix.core.errors import ProviderError
from heretix.economy.audit import verify_episode
from heretix.economy.episode.moves import find_due
from heretix.economy.episode.state import Fate, Ground, State
from heretix.economy.market import Side
from heretix.jobs import JobState, Worker
from heretix.jobs.scheduler import EpisodeScheduler
from heretix.jobs.worker import _MOST_LOSSES, MoveRunner
from heretix.store.jobs import update_job
from heretix.store.schema import events

pytestmark = pytest.mark.either


@pytest.fixture
def town(store):
    return Town(store)


def moves(town):
    """How often each move that nobody decides on changed an episode, by the chain of events."""
    with town.store.reading() as connection:
        rows = connection.execute(select(events.c.move, events.c.rows_json))
        found = Counter(row.move for row in rows if "episodes" in json.loads(row.rows_json))
    own = ("begin_challenge", "freeze", "judge", "measure", "conclude", "rule", "settle")
    return {name: found[name] for name in own if found[name]}


def next_due(town, episode):
    """The next move and its moment, or None at the end."""
    found = town.exchange.episode(episode.id)
    return find_due(found, town.exchange.positions(episode.id))


def hold_due(town, episode):
    """Hold the clock at the moment at which the next move is due; it, or None at the end."""
    due = next_due(town, episode)
    if due is not None:
        town.clock.hold(max(town.clock.now_ms(), due.at_ms))
    return due


def keep_to_the_end(town, episode):
    """Let workers come by whenever something is due."""
    while hold_due(town, episode) is not None:
        before = town.exchange.episode(episode.id)
        town.keep()
        assert town.exchange.episode(episode.id) != before


def test_an_episode_runs_itself_from_its_reveals_to_its_settlement(town):
    """Frozen, judged, measured twice and settled in time; nobody did anything by hand."""
    episode = town.revealed(papers=2)
    town.keep()
    assert town.exchange.episode(episode.id).state is State.CHALLENGE
    keep_to_the_end(town, episode)
    found = town.exchange.episode(episode.id)
    assert found.state is State.SETTLED
    assert {challenge.fate for challenge in found.challenges} <= {Fate.ACCEPTED, Fate.FAILED}
    once = {"begin_challenge": 1, "freeze": 1, "judge": 2, "measure": 2, "settle": 1}
    assert moves(town) == once
    assert [job.state for job in town.jobs.list(by=LOCAL)] == [JobState.DONE] * 4
    # Whoever comes by later finds nothing to do.
    town.clock.advance(10**9)
    assert town.keep() == 0
    assert moves(town) == once
    assert town.exchange.verify().ok
    assert verify_episode(town.exchange.record(episode.id)).ok


def test_what_is_due_is_made_at_its_moment_and_not_before(town):
    """A millisecond earlier nothing happens."""
    episode = town.revealed(papers=0)
    while (due := next_due(town, episode)) is not None:
        before = town.exchange.episode(episode.id)
        if due.at_ms > town.clock.now_ms():
            town.clock.hold(due.at_ms - 1)
            assert town.keep() == 0
            assert town.exchange.episode(episode.id) == before
        hold_due(town, episode)
        town.keep()
    assert town.exchange.episode(episode.id).state is State.SETTLED


def test_without_bets_on_both_sides_it_ends_by_itself(town):
    """Nothing is measured, and everything goes back."""
    episode = town.revealed(papers=0, sides=(Side.HERETIC,))
    keep_to_the_end(town, episode)
    assert town.exchange.episode(episode.id).state is State.VOID
    assert moves(town) == {"begin_challenge": 1, "freeze": 1, "conclude": 1, "settle": 1}


def test_a_dispute_that_can_be_worked_out_again_is_ruled_on_at_once(town):
    """For other grounds somebody has the dispute's own time to look; then the panel decides."""
    for ground, waits in (
        (Ground.WRONG_LENS_OR_MODEL, True),
        (Ground.RECOMPUTATION_MISMATCH, False),
    ):
        if waits:
            episode = town.disputed()
            assert town.keep() == 0
        else:
            town.exchange.dispute(episode.id, "cat", ground=ground, bond=200_000, key="again")
        found = town.exchange.episode(episode.id)
        due = find_due(found, ())
        window = found.terms.parameters.dispute_window_ms
        assert due == ("rule", found.disputes[-1].at_ms + (window if waits else 0))
        town.clock.hold(due.at_ms)
        town.keep()
        assert town.exchange.episode(episode.id).disputes[-1].upheld is not None
    keep_to_the_end(town, episode)
    assert moves(town)["rule"] == 2
    assert moves(town)["settle"] == 1


def test_operators_may_act_by_hand(town):
    """What they did is found done; what they have under way is left to them."""
    episode = town.revealed()
    town.clock.hold(episode.terms.freeze_at_ms)
    town.exchange.freeze(episode.id)
    job = town.ask("judge", town.exchange.episode(episode.id))
    scheduler = EpisodeScheduler(town.store, town.settings, clock=town.clock)
    assert scheduler.make_due_moves() == 0
    assert town.work() == 1
    assert town.jobs.get(job.id, by=LOCAL).state is JobState.DONE
    assert scheduler.make_due_moves() == 1
    assert town.work() == 1
    assert len(town.exchange.episode(episode.id).measurements) == 1


def test_many_workers_make_each_move_once(town):
    """They look at the same moment; one job measures, and the chain tells of each move once."""
    episode = town.revealed()
    people = 4
    keepers = [EpisodeScheduler(town.store, town.settings, clock=town.clock) for _ in range(people)]
    with ThreadPoolExecutor(people) as pool:
        while hold_due(town, episode) is not None:
            list(pool.map(lambda scheduler: scheduler.make_due_moves(), keepers))
            town.work()
    assert town.exchange.episode(episode.id).state is State.SETTLED
    assert moves(town) == {"begin_challenge": 1, "freeze": 1, "judge": 1, "measure": 2, "settle": 1}
    assert len(town.jobs.list(by=LOCAL)) == 4
    assert town.exchange.verify().ok


def test_a_measurement_that_fails_is_tried_again_later_and_not_for_ever(town, monkeypatch):
    """After ten minutes, twenty, forty and eighty; what was called off isn't begun again."""

    async def fail(self):
        raise ProviderError("nobody is there")

    episode = town.judged()
    monkeypatch.setattr(MoveRunner, "run", fail)
    wall = [NOW / 1000]
    scheduler = EpisodeScheduler(town.store, town.settings, clock=town.clock, wall=lambda: wall[0])

    def tries():
        """Whether it begins now; it fails at this moment."""
        begun = scheduler.make_due_moves()
        town.work()
        (job,) = (job for job in town.jobs.list(by=LOCAL) if job.request.move == "measure")
        # Workers write when a job has failed by the time of the machine.
        with town.store.writing() as connection:
            update_job(connection, job.id, {"updated_at": utc_text(wall[0])})
        return begun

    assert tries() == 1
    for minutes in (10, 20, 40, 80):
        wall[0] += 60 * minutes - 1
        assert scheduler.make_due_moves() == 0
        wall[0] += 1
        assert tries() == 1
    wall[0] += 10**7
    assert scheduler.make_due_moves() == 0
    assert town.exchange.episode(episode.id).measurements == ()


def test_a_measurement_whose_workers_were_killed_is_tried_again(town):
    """However often it was taken up: they were killed, and it never failed by itself."""
    episode = town.judged()
    wall = [NOW / 1000]
    scheduler = EpisodeScheduler(town.store, town.settings, clock=town.clock, wall=lambda: wall[0])
    assert scheduler.make_due_moves() == 1
    (job,) = (job for job in town.jobs.list(by=LOCAL) if job.request.move == "measure")
    gone = {"state": "running", "worker": "elsewhere/7/1/x", "lease_until": 1.0}
    with town.store.writing() as connection:
        update_job(connection, job.id, {**gone, "attempt": 8, "losses": _MOST_LOSSES})
    town.work()
    assert town.jobs.get(job.id, by=LOCAL).state is JobState.FAILED
    with town.store.writing() as connection:
        update_job(connection, job.id, {"updated_at": utc_text(wall[0])})
    wall[0] += 600
    assert scheduler.make_due_moves() == 1
    town.work()
    assert len(town.exchange.episode(episode.id).measurements) == 1


def test_one_episode_that_cannot_be_moved_keeps_no_other_from_its_time(town, caplog, monkeypatch):
    """What is wrong with it is logged once; the others go on."""
    broken = town.opened().id
    other = town.opened(claim="Daylight saving time saves electricity.")
    scheduler = EpisodeScheduler(town.store, town.settings, clock=town.clock)
    load = scheduler._exchange.episode

    def refuse(episode_id):
        if episode_id == broken:
            raise ProviderError("its record is torn")
        return load(episode_id)

    monkeypatch.setattr(scheduler._exchange, "episode", refuse)
    town.clock.hold(other.terms.freeze_at_ms)
    for _ in range(2):
        scheduler.make_due_moves()
    assert town.exchange.episode(other.id).state is State.MEASURED
    assert town.exchange.episode(broken).state is State.CHALLENGE
    assert caplog.text.count("its record is torn") == 1


def test_a_worker_that_does_not_keep_leaves_episodes_alone(town):
    """Only those that are told to make moves do."""
    episode = town.revealed()
    town.clock.hold(episode.terms.freeze_at_ms)
    asyncio.run(Worker(town.store, town.settings, clock=town.clock).run_until_idle())
    assert town.exchange.episode(episode.id).state is State.CHALLENGE
