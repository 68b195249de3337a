"""Jobs to test with, on both databases."""

import pytest

from faultserver import FaultServer
from heretix.core.settings import Settings
from heretix.jobs import Jobs
from heretix.store import Store


@pytest.fixture
def store(store_url):
    """An empty store, on each database in turn."""
    with Store.open(store_url) as store:
        yield store


@pytest.fixture
def jobs(store):
    """The jobs of the store."""
    return Jobs(store, Settings())


@pytest.fixture
def server():
    """A provider that answers, fails or keeps silent on command."""
    with FaultServer() as server:
        yield server


@pytest.fixture
def live(server, tmp_path):
    """Settings under which `openai-compatible:m` is that provider, at a dollar a thousand tokens."""
    prices = tmp_path / "prices.yaml"
    prices.write_text(
        "openai-compatible:\n  models:\n    m: {input: 1000, output: 1000, as_of: 2026-11-01}\n"
    )
    base_url = server.url("openai-compatible")
    return Settings(env={"HERETIX_BASE_URL": base_url}, prices_file=prices)
