"""The brakes of a lane: as fast as a provider bears, fair, and nobody left waiting."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics

import pytest
import virtual_time
from hypothesis import given, settings
from hypothesis import strategies as st

from heretix.core.errors import RateLimitedError, RejectedError, ServerError
from heretix.measurement.pacing import Limits, Pace
from heretix.providers.base import RateLimits

ADAPTIVE = Limits(concurrency=256, fixed=False)


class Server:
    """A provider as a lane sees it: calls that take a while, and fail when told to."""

    def __init__(self, *, latency_s=lambda server: 0.2, fault=lambda server: None, reply=None):
        self._latency_s = latency_s
        self._fault = fault
        self.reply = reply or (lambda server: (None, None))
        self.begun_s = []
        self.windows = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.faults = 0

    @property
    def calls(self):
        return len(self.begun_s)

    async def ask(self, pace):
        self.begun_s.append(now())
        self.windows.append(pace.limit)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        assert self.in_flight <= pace.limit or self.in_flight <= max(self.windows)
        try:
            fault = self._fault(self)
            await asyncio.sleep(self._latency_s(self))
        finally:
            self.in_flight -= 1
        if fault is not None:
            self.faults += 1
            raise fault


def now():
    return asyncio.get_running_loop().time()


async def call(pace, server, *, guess=0):
    """One call through the brakes; True when it was answered."""
    try:
        async with pace.call(guess) as reserved:
            await server.ask(pace)
            limits, tokens = server.reply(server)
            pace.note_reply(limits, tokens, reserved=reserved)
    except (RateLimitedError, ServerError):
        return False
    return True


async def drive(pace, server, calls, *, tasks=256, guess=0):
    """Make so many calls, from as many tasks as a lane would have."""
    left = iter(range(calls))

    async def work():
        for _ in left:
            await call(pace, server, guess=guess)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())


def driven(limits, server, calls, **options):
    """The same, in a loop of its own; the brakes as they were left."""

    async def main():
        pace = Pace(limits)
        await drive(pace, server, calls, **options)
        assert pace.in_flight == 0
        return pace

    return virtual_time.run(main())


def most_in(times, span_s):
    """The most events within any span of that length."""
    return max(sum(1 for t in times if start <= t < start + span_s) for start in times)


# The window


def test_an_adaptive_window_doubles_each_round_up_to_its_cap():
    """From 16 calls in flight to 256 within five round trips, though all come home at once."""
    server = Server()
    pace = driven(ADAPTIVE, server, 16 + 32 + 64 + 128 + 256)
    assert server.windows[0] == 16
    assert pace.limit == 256
    assert max(server.begun_s) <= 0.2 * 4 + 1e-6


def test_a_window_grows_though_answers_take_now_long_now_short():
    """Latencies of a reasoning model differ tenfold by themselves: no sign of a queue."""
    chance = random.Random(1)
    server = Server(latency_s=lambda _: chance.lognormvariate(1.0, 0.7))
    pace = driven(ADAPTIVE, server, 2000)
    assert pace.limit == 256
    assert server.windows[600] > 128


def test_a_single_quick_answer_does_not_stop_growth():
    """One that came out of some cache is no measure for the others."""
    server = Server(latency_s=lambda s: 0.001 if s.calls == 3 else 1.0)
    pace = driven(ADAPTIVE, server, 1000)
    assert pace.limit == 256


def test_a_window_stops_growing_where_calls_only_queue_up():
    """A server that works on 15 at a time makes the others wait: more of them gain nothing."""
    server = Server(latency_s=lambda s: 0.5 * max(1.0, s.in_flight / 15))
    pace = driven(ADAPTIVE, server, 4000)
    assert 30 <= pace.limit <= 128


def test_a_window_that_is_not_used_does_not_grow():
    """Three callers say nothing about what 17 would do."""
    pace = driven(ADAPTIVE, Server(), 300, tasks=3)
    assert pace.limit == 16


def test_a_window_does_not_grow_while_a_rate_is_the_brake():
    """Calls that wait for the minute to pass are not in flight and prove nothing."""
    server = Server()
    pace = driven(Limits(concurrency=256, fixed=False, rpm=600), server, 400)
    assert pace.limit == 16
    assert server.most_in_flight <= 3


def test_a_fixed_window_is_open_from_the_start():
    """`--concurrency` means what it says."""
    server = Server()
    driven(Limits(concurrency=100), server, 100)
    assert max(server.begun_s) == 0.0
    assert server.most_in_flight == 100


def test_too_many_requests_halve_the_window_once_for_all_calls_in_flight():
    """64 calls that are turned away together are one event, not 64."""
    server = Server(fault=lambda s: RateLimitedError("429") if s.calls <= 64 else None)
    driven(Limits(concurrency=64), server, 100)
    assert server.windows[64] == 32
    assert min(server.windows) == 32


def test_calls_that_began_after_a_cut_and_are_turned_away_cut_again():
    """It goes on halving as long as it is told to, and never below one."""
    server = Server(fault=lambda s: RateLimitedError("429"))
    pace = driven(Limits(concurrency=64), server, 300)
    assert pace.limit == 1
    assert [w for w, _ in itertools.groupby(server.windows)] == [64, 32, 16, 8, 4, 2, 1]


def test_after_trouble_a_window_steps_up_by_one_a_round():
    """Additive increase: a whole window of answers for one place more."""
    server = Server(fault=lambda s: RateLimitedError("429") if s.calls == 1 else None)
    pace = driven(Limits(concurrency=16), server, 16 + 8 + 9 + 10 + 11, tasks=16)
    assert 10 <= pace.limit <= 12
    assert server.windows[16] == 9


@pytest.mark.parametrize("seed", range(3))
def test_one_random_failure_in_ten_is_borne(seed):
    """Bad luck is no overload: over 20,000 calls the window stays wide open."""
    chance = random.Random(seed)
    server = Server(fault=lambda _: ServerError("500") if chance.random() < 0.1 else None)
    driven(Limits(concurrency=256), server, 8_000)
    assert statistics.mean(server.windows) > 240


@pytest.mark.parametrize("share", [0.4, 0.6, 1.0])
def test_many_failures_are_taken_as_overload(share):
    """A server that fails four calls of ten is given less to do."""
    chance = random.Random(1)
    server = Server(fault=lambda _: ServerError("500") if chance.random() < share else None)
    driven(Limits(concurrency=256), server, 4000)
    assert server.windows[-1] <= 16


def test_a_few_early_failures_prove_nothing():
    """Two failures out of two are no statistic."""
    server = Server(fault=lambda s: ServerError("500") if s.calls <= 6 else None)
    driven(Limits(concurrency=64), server, 200)
    assert min(server.windows) == 64


def test_a_window_recovers_when_a_provider_has_become_slower_for_good():
    """After a cut the quickness of earlier days is no measure any more: it isn't stuck at one."""

    def latency_s(server):
        return 0.2 if server.calls <= 300 else 2.0

    def fault(server):
        return RateLimitedError("429") if 300 < server.calls <= 500 else None

    server = Server(latency_s=latency_s, fault=fault)
    pace = driven(Limits(concurrency=32), server, 6000, tasks=32)
    assert min(server.windows) <= 4
    assert pace.limit > 24


# The rates


@pytest.mark.parametrize("rpm", [60, 600, 3000])
def test_requests_are_spread_evenly_over_the_minute(rpm):
    """No bursts: any second holds its share, however many callers wait."""
    server = Server()
    driven(Limits(concurrency=256, rpm=rpm), server, rpm * 2)
    assert most_in(server.begun_s[: rpm // 2], 10.0) <= rpm / 6 + 1
    gaps = [b - a for a, b in itertools.pairwise(server.begun_s)]
    assert min(gaps) == pytest.approx(60 / rpm, rel=1e-6)
    assert max(server.begun_s) == pytest.approx(120 - 60 / rpm, rel=1e-3)


def test_an_unused_minute_is_not_saved_up():
    """After a pause of its own a lane begins as slowly as before."""

    async def main():
        pace, server = Pace(Limits(concurrency=8, rpm=60)), Server()
        await call(pace, server)
        await asyncio.sleep(600)
        await drive(pace, server, 5, tasks=5)
        return server.begun_s[1:]

    begun_s = virtual_time.run(main())
    assert [round(t - begun_s[0], 6) for t in begun_s] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("guess", [0, 100, 1000])
def test_tokens_of_any_minute_stay_within_the_limit(guess):
    """Calls are told apart by what they take, known or guessed: 100 calls of 1000 tokens."""
    chance = random.Random(1)
    taken = []

    def reply(server):
        taken.append((now(), tokens := chance.randrange(500, 1500)))
        return None, tokens

    server = Server(reply=reply)
    driven(Limits(concurrency=64, tpm=60_000), server, 600, guess=guess)
    at_once = 64 if guess == 0 else 2
    for start, _ in taken:
        inside = sum(tokens for when, tokens in taken if start <= when < start + 60)
        assert inside <= 60_000 + at_once * 1500
    assert taken[-1][0] == pytest.approx(sum(t for _, t in taken) / 1000, rel=0.15)


def test_a_guess_far_off_is_put_right_by_what_calls_really_take():
    """A guess of ten times too much costs one round, not ten times the time."""
    server = Server(reply=lambda s: (None, 100))
    driven(Limits(concurrency=8, tpm=6000), server, 100, guess=1000)
    assert server.begun_s[-1] == pytest.approx(100 * 1.0, rel=0.15)


def test_limits_from_headers_are_held_with_some_headroom():
    """What a provider says of itself is used when nobody said otherwise."""
    said = RateLimits(rpm=600, tpm=None)
    server = Server(reply=lambda s: (said, None))
    driven(Limits(concurrency=4), server, 500, tasks=16)
    gaps = [b - a for a, b in itertools.pairwise(server.begun_s[4:])]
    assert min(gaps) == pytest.approx(0.1 / 0.95, rel=1e-6)


def test_token_limits_from_headers_are_held():
    """The same for tokens, though the first calls went out before anybody knew."""
    said = RateLimits(rpm=None, tpm=6000)
    server = Server(reply=lambda s: (said, 100))
    driven(Limits(concurrency=4), server, 200, tasks=16)
    assert server.begun_s[-1] == pytest.approx(200 * 100 / (6000 * 0.95 / 60), rel=0.1)


def test_limits_that_were_given_win_over_headers():
    """`--rpm` and `--tpm` override what the provider says, each for itself."""
    said = RateLimits(rpm=60, tpm=60)
    server = Server(reply=lambda s: (said, 1))
    driven(Limits(concurrency=4, rpm=600, tpm=100_000), server, 300, tasks=16)
    assert server.begun_s[-1] == pytest.approx(29.9, abs=0.2)
    server = Server(reply=lambda s: (said, None))
    driven(Limits(concurrency=4, tpm=100_000), server, 60, tasks=16)
    assert server.begun_s[-1] > 55


def test_a_limit_of_a_provider_that_changes_is_followed():
    """A day's quota may shrink while it runs."""

    def reply(server):
        return RateLimits(rpm=6000 if server.calls < 100 else 600), None

    server = Server(reply=reply)
    driven(Limits(concurrency=4), server, 300, tasks=16)
    late = [b - a for a, b in itertools.pairwise(server.begun_s[110:])]
    assert min(late) == pytest.approx(0.1 / 0.95, rel=1e-6)


# The pause


def test_one_call_that_is_told_to_wait_makes_all_wait():
    """`Retry-After: 30` to the fifth call: nothing begins for 30 seconds."""
    server = Server(
        latency_s=lambda s: 0.1 * s.calls,
        fault=lambda s: RateLimitedError("429", retry_after_s=30) if s.calls == 5 else None,
    )
    driven(Limits(concurrency=4), server, 40, tasks=40)
    silence = [(a, b) for a, b in itertools.pairwise(server.begun_s) if b - a > 5]
    assert len(silence) == 1
    told = server.begun_s[4] + 0.5
    assert silence[0][1] == pytest.approx(told + 30)
    assert silence[0][0] <= told


def test_the_longest_pause_counts_and_none_is_endless():
    """A shorter one doesn't cut a longer one short; a day is taken as five minutes."""
    waits = {1: 3600.0 * 24, 2: 5.0}

    def fault(server):
        wait_s = waits.get(server.calls)
        return wait_s and RateLimitedError("429", retry_after_s=wait_s)

    server = Server(fault=fault)
    driven(Limits(concurrency=2), server, 6, tasks=6)
    assert server.begun_s[2] == pytest.approx(300.2)


def test_a_pause_that_begins_while_a_call_waits_for_its_turn_holds_it_too():
    """The turn that was about to come is put off."""
    server = Server(
        latency_s=lambda s: 0.5,
        fault=lambda s: RateLimitedError("429", retry_after_s=60) if s.calls == 1 else None,
    )
    driven(Limits(concurrency=4, rpm=60), server, 4, tasks=4)
    assert server.begun_s == pytest.approx([0.0, 60.5, 61.5, 62.5])


# Turns


def test_turns_come_in_the_order_of_asking():
    """Whoever waited longest is next, with a window, with a rate, and after failures."""

    async def main(limits):
        pace, order = Pace(limits), []

        async def one(number):
            async with pace.call():
                order.append(number)
                await asyncio.sleep(0.1 + (number % 7) * 0.01)

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(one(number))
        return order

    for limits in (Limits(concurrency=5), Limits(concurrency=50, rpm=600)):
        assert virtual_time.run(main(limits)) == list(range(200))


def test_a_newcomer_does_not_take_the_place_of_one_who_was_called():
    """A place that became free belongs to the first in the queue, even before it has moved."""

    async def main():
        pace, order = Pace(Limits(concurrency=1)), []

        async def one(name):
            async with pace.call():
                order.append(name)
                await asyncio.sleep(1)

        async def barge():
            for number in range(3):
                async with pace.call():
                    order.append(f"new {number}")
                    await asyncio.sleep(1)

        async with asyncio.TaskGroup() as group:
            group.create_task(barge())
            for name in ("a", "b", "c"):
                await asyncio.sleep(0.1)
                group.create_task(one(name))
        return order

    assert virtual_time.run(main()) == ["new 0", "a", "b", "c", "new 1", "new 2"]


def test_waiting_costs_no_more_for_many_than_for_few():
    """With a rate, only the next in the queue is woken, not all of them each time."""

    async def main(tasks):
        loop = asyncio.get_running_loop()
        pace, steps, call_at = Pace(Limits(concurrency=tasks, rpm=6000)), 0, loop.call_at

        def counted(*arguments, **options):
            nonlocal steps
            steps += 1
            return call_at(*arguments, **options)

        loop.call_at = counted
        await drive(pace, Server(), 1000, tasks=tasks)
        return steps

    assert virtual_time.run(main(256)) <= 1.5 * virtual_time.run(main(32))


@pytest.mark.parametrize("limits", [Limits(concurrency=1), Limits(concurrency=1, rpm=60)])
def test_who_is_cancelled_while_waiting_leaves_its_place_to_the_next(limits):
    """At every moment of the wait: before it is called, as it is called, and just after."""

    async def main(moment):
        pace, done = Pace(limits), []

        async def one(name, seconds):
            async with pace.call():
                await asyncio.sleep(seconds)
            done.append(name)

        first = asyncio.create_task(one("first", 1))
        await asyncio.sleep(0)
        second = asyncio.create_task(one("second", 1))
        third = asyncio.create_task(one("third", 1))
        await asyncio.sleep(0.5)
        if moment == "waiting":
            second.cancel()
        else:
            # The loop runs callbacks in order: `first` gives its place away, and in the same
            # round, before `second` has moved, `second` is cancelled.
            first.add_done_callback(lambda _: second.cancel())
        async with asyncio.timeout(600):
            await asyncio.gather(first, third)
            with pytest.raises(asyncio.CancelledError):
                await second
            await one("fourth", 1)
        assert pace.in_flight == 0
        return done

    for moment in ("waiting", "called"):
        assert virtual_time.run(main(moment)) == ["first", "third", "fourth"]


def test_a_call_that_is_cancelled_or_refused_gives_its_place_back():
    """However a call ends, the window is whole again."""

    async def main():
        pace = Pace(Limits(concurrency=2))

        async def ends_badly(error):
            async with pace.call():
                await asyncio.sleep(1)
                raise error

        hanging = [asyncio.create_task(ends_badly(ValueError())) for _ in range(2)]
        await asyncio.sleep(0.5)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        for error in (RejectedError("400"), ValueError(), ServerError("500")):
            with pytest.raises(type(error)):
                await ends_badly(error)
        server = Server()
        await drive(pace, server, 4, tasks=4)
        return pace, server

    pace, server = virtual_time.run(main())
    assert pace.in_flight == 0
    assert server.most_in_flight == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_whatever_happens_nobody_is_left_waiting(seed, fixed, rated):
    """Failures, cancellations and shrinking windows in any order: all others get their turn,
    and calls in flight never outnumber the window they began under."""
    chance = random.Random(seed)
    faults = (None, None, None, RateLimitedError("429"), ServerError("500"))

    async def main():
        limits = Limits(concurrency=12, fixed=fixed, rpm=6000 if rated else None)
        pace, ended = Pace(limits), 0
        server = Server(
            latency_s=lambda _: chance.choice((0.0, 0.1, 0.5)),
            fault=lambda _: chance.choice(faults),
        )

        async def one():
            nonlocal ended
            try:
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.3)))
                await call(pace, server)
            finally:
                ended += 1

        tasks = [asyncio.create_task(one()) for _ in range(120)]
        for task in chance.sample(tasks, 40):
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.05, 0.2)))
            task.cancel()
        async with asyncio.timeout(3600):
            await asyncio.gather(*tasks, return_exceptions=True)
            async with asyncio.TaskGroup() as group:
                for _ in range(pace.limit):
                    group.create_task(call(pace, server))
        assert ended == 120
        assert pace.in_flight == 0
        assert server.most_in_flight <= 12

    virtual_time.run(main())
