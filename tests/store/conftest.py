"""Stores to test with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from store_builders import start

from heretix.store import Store
from heretix.store.runs import start_executions

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An empty store, on each database in turn."""
    with Store.open(store_url) as store:
        yield store


@pytest.fixture
def started(store: Store) -> Store:
    """A store in which one execution has begun, so that samples can be saved."""
    store.write(start_executions, [start()])
    return store
