"""Clocks: one that runs, one that is held."""

from __future__ import annotations

import time

import pytest

from heretix.core.clock import ManualClock, SystemClock
from heretix.core.errors import UsageError


def test_the_systems_clock_counts_milliseconds_since_1970():
    """It lies between two readings of the machine's own."""
    before = time.time_ns() // 1_000_000
    assert before <= SystemClock().now_ms() <= time.time_ns() // 1_000_000


def test_a_held_clock_stands_still_until_it_is_moved():
    """And then stands there."""
    clock = ManualClock(5)
    assert [clock.now_ms(), clock.now_ms()] == [5, 5]
    clock.hold(7)
    assert clock.advance(3) == clock.now_ms() == 10


def test_time_does_not_run_backwards():
    """An earlier moment is refused."""
    clock = ManualClock(5)
    with pytest.raises(UsageError, match="`at_ms` must not lie before 5"):
        clock.hold(4)
    with pytest.raises(UsageError):
        clock.advance(-1)
    assert clock.now_ms() == 5
