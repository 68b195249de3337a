"""The terms of an episode, and their hash."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playing import (
    make_terms,
)

from heretix.core.errors import ConfigError, UsageError
from heretix.economy.episode.state import Parameters


def test_the_terms_must_make_sense():
    """Times follow each other, hashes look like hashes, the panel is large enough."""
    with pytest.raises(ConfigError, match="follow each other"):
        make_terms(close_from_ms=500)
    with pytest.raises(ConfigError, match="each model once"):
        make_terms(judge_pool=("a",) * 9)
    with pytest.raises(UsageError, match="c0_ppm"):
        make_terms(c0_ppm=5_000)
    with pytest.raises(UsageError, match="judges"):
        Parameters(judges=2)
    with pytest.raises(UsageError, match="win_ppm"):
        Parameters(win_ppm=400_000)


def test_any_change_of_the_terms_changes_their_hash():
    """Every field is covered, the parameters' included."""
    terms = make_terms()
    changed = [
        make_terms(claim="other"),
        make_terms(K=17),
        make_terms(c0_ppm=500_001),
        make_terms(close_until_ms=9_999),
        make_terms(judge_pool=tuple(f"judge-{n:02d}" for n in range(13))),
        make_terms(parameters=Parameters(fee_ppm=1)),
        make_terms(parameters=replace(Parameters(), gate=replace(Parameters().gate, min_slots=1))),
    ]
    assert len({terms.hash(), *(item.hash() for item in changed)}) == 8
    assert terms.hash() == make_terms().hash()
