"""A server that answers as providers do, for all tests here."""

import pytest

from faultserver import FaultServer


@pytest.fixture(scope="module")
def running():
    """One server for the tests of a file."""
    with FaultServer() as server:
        yield server


@pytest.fixture
def server(running):
    """The server, which remembers nothing."""
    running.forget()
    return running
