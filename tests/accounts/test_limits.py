"""Limits on how much is asked at a time, and replies to what is asked twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heretix.accounts import RateLimiter, Replies, StoredReply
from heretix.core.errors import ConflictError, TooManyRequestsError, UsageError


def test_a_bucket_empties_and_fills(clock):
    """A burst, then as many as flow in."""
    limiter = RateLimiter(per_s=2, burst=3, clock=clock)
    assert [limiter.take("a") for _ in range(3)] == [0, 0, 0]
    assert limiter.take("a") == 0.5
    assert limiter.take("b") == 0
    clock.forward(0.5)
    assert limiter.take("a") == 0
    with pytest.raises(TooManyRequestsError) as caught:
        limiter.check("a")
    assert caught.value.retry_after_s == 0.5
    clock.forward(1000)
    assert [limiter.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_only_so_many_keys_are_remembered(clock):
    """Those that asked last: addresses come without end."""
    limiter = RateLimiter(per_s=1, burst=1, clock=clock, max_keys=2)
    for key in ("a", "b", "a", "c"):
        limiter.take(key)
    assert limiter.take("a") > 0
    assert limiter.take("b") == 0


@given(st.lists(st.floats(0, 3), max_size=60))
def test_no_more_gets_through_than_burst_and_rate_allow(pauses):
    """Over any time, however the requests are spread."""
    now = 0.0
    limiter = RateLimiter(per_s=2, burst=5, clock=lambda: now)
    passed = 0
    for pause in pauses:
        now += pause
        passed += limiter.take("a") == 0
        assert passed <= 5 + 2 * now + 1e-6


@pytest.mark.parametrize("wrong", [{"per_s": 0, "burst": 1}, {"per_s": 1, "burst": 0}])
def test_a_limit_of_nothing_is_a_mistake(wrong):
    """It would let nobody in."""
    with pytest.raises(ValueError, match="above 0"):
        RateLimiter(**wrong)


@pytest.fixture
def replies(store, clock):
    """The replies of the store."""
    return Replies(store, clock=clock)


def test_the_same_write_gets_the_same_reply(replies):
    """It is done once, however often it is sent."""
    assert replies.begin("ada POST /jobs", "k1", b"body") is None
    replies.finish("ada POST /jobs", "k1", status=201, response_json='{"id": 1}')
    same = StoredReply(status=201, response_json='{"id": 1}')
    assert replies.begin("ada POST /jobs", "k1", b"body") == same
    assert replies.begin("eve POST /jobs", "k1", b"body") is None


def test_a_key_belongs_to_one_body(replies):
    """Another request under it is a mistake of the caller's."""
    replies.begin("s", "k", b"one")
    with pytest.raises(ConflictError, match="another request"):
        replies.begin("s", "k", b"two")


def test_a_write_under_way_is_not_done_twice(replies, clock):
    """Until it is given up, or whoever did it must be dead."""
    replies.begin("s", "k", b"body")
    with pytest.raises(ConflictError, match="worked on"):
        replies.begin("s", "k", b"body")
    replies.abandon("s", "k")
    assert replies.begin("s", "k", b"body") is None
    clock.forward(121)
    assert replies.begin("s", "k", b"body") is None
    with pytest.raises(ConflictError, match="worked on"):
        replies.begin("s", "k", b"body")


def test_a_reply_that_was_sent_is_not_abandoned(replies):
    """A failure after the reply doesn't make the write happen again."""
    replies.begin("s", "k", b"body")
    replies.finish("s", "k", status=200, response_json="{}")
    replies.abandon("s", "k")
    assert replies.begin("s", "k", b"body") == StoredReply(status=200, response_json="{}")


def test_replies_are_forgotten_after_a_day(replies, clock):
    """The table doesn't grow for ever."""
    replies.begin("s", "k", b"body")
    replies.finish("s", "k", status=200, response_json="{}")
    clock.forward(24 * 3600 + 1)
    assert replies.begin("s", "k", b"body") is None


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "ü"])
def test_keys_are_short_and_plain(replies, key):
    """They stand in a header and in an index."""
    with pytest.raises(UsageError):
        replies.begin("s", key, b"")
