"""The store: opened once, it gives transactions to the queries of this room."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from sqlalchemy.exc import DBAPIError

from heretix.core.errors import StoreError
from heretix.store.db import (
    NOTHING_MEASURED,
    WRITES,
    FileVersion,
    Location,
    absent_store,
    as_immutable,
    can_be_written,
    ensure_schema,
    make_engine,
    mapped_faults,
    needs_immutable,
    unwritable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from sqlalchemy import Connection, Engine

_P = ParamSpec("_P")
_T = TypeVar("_T")


BUSY_TIMEOUT_MS: Final = 10_000
"""How long to wait for another process's lock before saying so."""


class Store:
    """Transactions on SQLite or PostgreSQL, for the queries of this room. Threads may share one.

    A query is a function that takes a connection first: `store.read(query, …)` and
    `store.write(query, …)` give it a transaction of its own, `reading()` and `writing()` one for
    several. Whatever the database raises comes out as a `StoreError` that says what to do.
    """

    def __init__(
        self,
        engine: Engine,
        location: Location,
        *,
        writable: bool = True,
        file: FileVersion | None = None,
    ) -> None:
        self._use(engine)
        self._location = location
        # SQLite has one writer. Threads that wait here get their turn as soon as it is free;
        # waiting inside SQLite means asking again every so often, and a busy writer may always
        # be quicker.
        self._turn: contextlib.AbstractContextManager[object] = (
            threading.RLock() if location.path is not None else contextlib.nullcontext()
        )
        self._held = threading.local()
        self._file = file
        self._looking_again = threading.Lock()
        self.writable = writable
        """False where everything can be read, and nothing kept."""

    @classmethod
    def open(
        cls,
        url_or_path: str,
        *,
        create: bool = True,
        absent: str = NOTHING_MEASURED,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    ) -> Store:
        """Open a store, made and brought up to date as needed.

        Takes a path, `sqlite:///…` or `postgresql+psycopg://…`. With `create=False` a store that
        doesn't exist is an error and nothing is made; `absent` says what that means to whoever
        asks, and what to do first. One that can't be written to is then opened to be read;
        otherwise it is refused, before anything is paid for that couldn't be kept.
        """
        location = Location.parse(url_or_path)
        engine, writable, file = _opened(location, busy_timeout_ms, create=create, absent=absent)
        return cls(engine, location, writable=writable, file=file)

    def _use(self, engine: Engine) -> None:
        self._engine = engine
        self._writes = engine.execution_options(**{WRITES: True})
        # SQLite shows a transaction one moment as it is; PostgreSQL would show each statement what
        # was committed meanwhile.
        self._reads = engine
        if engine.dialect.name == "postgresql":
            self._reads = engine.execution_options(isolation_level="REPEATABLE READ")

    @property
    def name(self) -> str:
        """The store's path or URL, fit to be shown."""
        return self._location.name

    @property
    def is_file(self) -> bool:
        """The store is a file of this machine: a look-up waits for no network."""
        return self._location.path is not None

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def read(
        self, query: Callable[Concatenate[Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Ask one query in a transaction of its own: `store.read(select_runs, limit=20)`."""
        with self.reading() as connection:
            return query(connection, *args, **kwargs)

    def write(
        self, query: Callable[Concatenate[Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Make one change in a transaction of its own: `store.write(save_samples, batch)`."""
        with self.writing() as connection:
            return query(connection, *args, **kwargs)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a transaction that only reads, and that sees one moment."""
        held: Connection | None = getattr(self._held, "connection", None)
        if held is not None:
            yield held
            return
        file = self._file
        try:
            with mapped_faults(self.name), self._reads.connect() as connection:
                yield connection
        except StoreError:
            # Half old and half new looks like damage.
            self._check(file)
            raise
        self._check(file)

    def _check(self, file: FileVersion | None) -> None:
        """Refuse what was read while somebody else wrote; the next read sees what they wrote."""
        if file is None or file.is_current():
            return
        with self._looking_again:
            if self._file is file:
                engine, _, fresh = _opened(
                    self._location, BUSY_TIMEOUT_MS, create=False, absent=NOTHING_MEASURED
                )
                self._engine.dispose()
                self._use(engine)
                # Last: a reader takes the version first, and never the new one for the old file.
                self._file = fresh
        raise StoreError(
            f"`{self.name}` was changed by another program while it was read; run the command again"
        )

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything that this thread reads inside share one transaction: for a page that is
        made of several look-ups. Nothing is written inside, and nothing awaited."""
        with self.reading() as connection:
            self._held.connection = connection
            try:
                yield
            finally:
                self._held.connection = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Begin a transaction that writes: all of it is kept, or nothing."""
        with self._turn, mapped_faults(self.name), self._writes.begin() as connection:
            yield connection


def _opened(
    location: Location, busy_timeout_ms: int, *, create: bool, absent: str
) -> tuple[Engine, bool, FileVersion | None]:
    """Open an engine; with it, whether it may write, and the version of an immutable file."""
    if location.path is not None:
        _prepare_file(location, create=create, absent=absent)
    writable = can_be_written(location)
    if create and not writable:
        raise unwritable(location.name)
    with mapped_faults(location.name):
        try:
            engine = _engine_at(
                location, busy_timeout_ms, create=create, absent=absent, writable=writable
            )
        except DBAPIError as exc:
            if create or location.path is None or not needs_immutable(exc, location):
                raise
            # Nothing can be made beside the file.
            file = FileVersion.of(location.path)
            engine = _engine_at(
                as_immutable(location), busy_timeout_ms, create=False, absent=absent, writable=False
            )
            return engine, False, file
    return engine, writable, None


def _engine_at(
    location: Location, busy_timeout_ms: int, *, create: bool, absent: str, writable: bool
) -> Engine:
    with contextlib.ExitStack() as stack:
        engine = make_engine(location, busy_timeout_ms=busy_timeout_ms)
        stack.callback(engine.dispose)
        ensure_schema(engine, location, create=create, absent=absent, writable=writable)
        stack.pop_all()
    return engine


def _prepare_file(location: Location, *, create: bool, absent: str) -> None:
    assert location.path is not None
    try:
        if create:
            location.path.parent.mkdir(parents=True, exist_ok=True)
        elif not location.path.exists():
            raise absent_store(location, absent)
    except OSError as exc:
        raise StoreError(
            f"`{location.name}` can't be made: {exc.strerror or exc}; "
            "choose another path with --db or HERETIX_DB"
        ) from exc
