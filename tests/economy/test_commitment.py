"""Commitments, and what is drawn from a committed seed."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from playing import SEED, sha

from heretix.core.errors import RecordError, UsageError
from heretix.economy.episode.challenges import (
    draw_close,
    draw_judges,
    evidence_commitment,
    matches_seed,
    seed_commitment,
)
from heretix.economy.episode.state import Direction

POOL = tuple(f"m{n}" for n in range(9))


UP, DOWN = Direction.UP, Direction.DOWN


def test_a_commitment_is_the_hash_of_nonce_bundle_direction_and_account():
    """sha256(nonce ‖ bundle hash ‖ direction ‖ ":" ‖ account), which anyone can work out again."""
    told = SEED + bytes.fromhex(sha("bundle")) + b"up:user:ann:PLAY"
    expected = hashlib.sha256(told).hexdigest()
    assert evidence_commitment(SEED, sha("bundle"), UP, "user:ann:PLAY") == expected


def test_a_commitment_binds_all_four():
    """Another nonce, bundle, direction or account gives another commitment."""
    made = {
        evidence_commitment(nonce, sha(bundle), direction, account)
        for nonce in (SEED, SEED[::-1])
        for bundle in ("a", "b")
        for direction in Direction
        for account in ("ann", "bob")
    }
    assert len(made) == 16


def test_secrets_must_have_their_length():
    """A short nonce could be guessed, or shift the bytes that follow it."""
    with pytest.raises(UsageError, match="`nonce` must be 32 bytes, got 5"):
        evidence_commitment(b"short", sha("bundle"), UP, "ann")
    with pytest.raises(RecordError, match="bundle_sha256"):
        evidence_commitment(SEED, "bundle", DOWN, "ann")
    with pytest.raises(UsageError, match="`seed`"):
        draw_close(b"", "ep", from_ms=0, until_ms=1)


def test_only_the_committed_seed_matches():
    """The preimage is checked, its length included."""
    assert matches_seed(seed_commitment(SEED), SEED)
    assert not matches_seed(seed_commitment(SEED), SEED[::-1])
    assert not matches_seed(hashlib.sha256(b"x").hexdigest(), b"x")


def test_the_close_is_drawn_evenly_from_its_window():
    """Every moment of the window can come, about as often, and no other."""
    draws = Counter(draw_close(SEED, f"ep-{n}", from_ms=100, until_ms=109) for n in range(2_000))
    assert set(draws) == set(range(100, 110))
    assert max(draws.values()) < 1.4 * min(draws.values())
    assert draw_close(SEED, "ep", from_ms=5, until_ms=5) == 5


def test_judges_are_drawn_without_regard_to_order():
    """The same pool in any order gives the same judges; a round, an episode, a seed others."""
    drawn = draw_judges(SEED, "ep", POOL, count=3)
    assert len(set(drawn)) == 3
    assert draw_judges(SEED, "ep", POOL[::-1], count=3) == drawn
    others = [
        draw_judges(SEED, "ep", POOL, count=3, round_=1),
        draw_judges(SEED, "ep-2", POOL, count=3),
        draw_judges(SEED[::-1], "ep", POOL, count=3),
    ]
    assert all(set(other) != set(drawn) for other in others)
    assert set(draw_judges(SEED, "ep", POOL, count=99)) == set(POOL)


@pytest.mark.parametrize("count", [3, 5, 7, 11])
def test_no_provider_has_a_majority_of_judges(count):
    """However many models of one house are in the pool; made-up models are a house each."""
    pool = [f"big:m{n}" for n in range(40)] + [f"{name}:x" for name in "abcdef"]
    for n in range(200):
        drawn = draw_judges(SEED, f"ep-{n}", pool, count=count)
        assert len(drawn) == count
        assert 2 * sum(model.startswith("big:") for model in drawn) < count
    made_up = [f"sim:judge{n}" for n in range(11)]
    assert len(draw_judges(SEED, "ep", made_up, count=count)) == count


def test_labels_of_a_draw_cannot_run_into_each_other():
    """Round 1 of episode `ep1` isn't round 11 of episode `ep`."""
    assert draw_judges(SEED, "ep", POOL, count=9, round_=11) != draw_judges(
        SEED, "ep1", POOL, count=9, round_=1
    )


def test_every_model_of_the_pool_judges_about_as_often():
    """The draw favours nobody."""
    counts = Counter(
        model for n in range(1_500) for model in draw_judges(SEED, f"ep-{n}", POOL, count=3)
    )
    assert set(counts) == set(POOL)
    assert max(counts.values()) < 1.25 * min(counts.values())
