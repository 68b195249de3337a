"""Time: stamps in UTC, clocks that are held, and durations as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from heretix.core.clock import (
    CENTURY_MS,
    ManualClock,
    SystemClock,
    parse_duration_ms,
    utc_now,
    utc_text,
    utc_text_of_ms,
)
from heretix.core.errors import UsageError


def test_a_stamp_is_utc_to_the_millisecond():
    """Of a moment anywhere, and of seconds since 1970."""
    noon = datetime(2026, 11, 15, 12, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=1)))
    assert utc_text(noon) == utc_text(noon.timestamp()) == "2026-11-15T11:00:00.123Z"
    assert utc_text(0) == "1970-01-01T00:00:00.000Z"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", utc_now())


def test_milliseconds_are_shown_to_the_second():
    """As refusals and tables show them."""
    assert utc_text_of_ms(1_763_208_000_999) == "2025-11-15 12:00:00 UTC"


def test_the_system_clock_counts_milliseconds():
    """Between two looks at the machine's own."""
    before = int(datetime.now(UTC).timestamp() * 1000)
    assert before <= SystemClock().now_ms() <= int(datetime.now(UTC).timestamp() * 1000) + 1


def test_a_held_clock_only_runs_forwards():
    """It stands still until it is moved."""
    clock = ManualClock(1_000)
    assert (clock.now_ms(), clock.advance(500), clock.now_ms()) == (1_000, 1_500, 1_500)
    with pytest.raises(UsageError, match="time only runs forwards"):
        clock.hold(1_499)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("250ms", 250),
        ("30s", 30_000),
        ("10m", 600_000),
        ("1d12h", 129_600_000),
        ("2w", 1_209_600_000),
        ("36500d", CENTURY_MS),
    ],
)
def test_durations_are_read_in_their_units(text: str, ms: int):
    """Whole numbers, each with its unit."""
    assert parse_duration_ms("--for", text) == ms


@pytest.mark.parametrize("text", ["", "10", "m", "1.5h", "-1d", "10 m", "1y", "1d 2h", "1dx"])
def test_what_is_no_duration_is_refused(text: str):
    """The message names the option and shows how one is written."""
    with pytest.raises(UsageError, match="`--for` must be a duration such as 30s, 10m"):
        parse_duration_ms("--for", text)


def test_too_long_is_refused_in_the_words_of_who_asks():
    """A century, unless somebody allows less."""
    with pytest.raises(UsageError, match=r"`--for` must be at most a century \(36500d\), got"):
        parse_duration_ms("--for", "36501d")
    with pytest.raises(UsageError, match="`x` must be ten years at most, got '3651d'"):
        parse_duration_ms("x", "3651d", longest_ms=CENTURY_MS // 10, rule="ten years at most")
