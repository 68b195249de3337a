"""People to test with: on both databases, with quick hashes and a clock that is set by hand."""

import pytest
from argon2 import PasswordHasher

from heretix.accounts import Passwords, People
from heretix.store import Store


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock():
    """A clock."""
    return Clock()


@pytest.fixture
def store(store_url):
    """An empty store, on each database in turn."""
    with Store.open(store_url) as store:
        yield store


@pytest.fixture
def quick():
    """Hashing that takes no time: how slow it is in use is the library's business."""
    return Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


@pytest.fixture
def people(store, clock, quick):
    """The people of the store."""
    return People(store, clock=clock, passwords=quick)
