"""Fixtures of the web tests. They live in a module of a name of its own, so that tests can also
import what isn't a fixture: every folder has a `conftest`."""

from website import *  # noqa: F403
