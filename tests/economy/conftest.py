"""Hypothesis profiles of the economy: deterministic, and longer on request.

`HERETIX_HYPOTHESIS=ci` gives the state machines several times as many examples, `long` many more.
The profiles have names of their own, so that the other tests keep the settings they have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from exchanging import Table
from hypothesis import HealthCheck, settings
from playing import H, O, Play, started

from heretix.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMON = {
    "database": None,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

settings.register_profile("economy-quick", max_examples=100, stateful_step_count=50, **_COMMON)
settings.register_profile("economy-ci", max_examples=400, stateful_step_count=60, **_COMMON)
settings.register_profile("economy-long", max_examples=3_000, stateful_step_count=120, **_COMMON)


@pytest.fixture
def play() -> Play:
    """An episode in which Ann and Bob have bet, and challenges have begun."""
    return started(("ann", H, 5_000), ("bob", O, 3_000))


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An empty store, on each database in turn."""
    with Store.open(store_url) as store:
        yield store


@pytest.fixture
def table(store: Store) -> Table:
    """An exchange with Ann, Bob, Cat and Dan, and an episode in draft."""
    return Table(store)
