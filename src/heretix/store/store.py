"""The store: one object that everything measured is written to and read from."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from sqlalchemy.exc import DBAPIError

from heretix.core.errors import StoreError
from heretix.store import executions, samples
from heretix.store import executions as banks
from heretix.store import executions as bundles
from heretix.store import runs as catalogue
from heretix.store import samples as leases
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
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from sqlalchemy import Connection, Engine

    from heretix.sample import Sample
    from heretix.store.executions import (
        ExecutionResult,
        ExecutionStart,
        ExecutionSummary,
        RunSummary,
        StartedExecution,
        StoredRecord,
    )

__all__ = ["Store"]

BUSY_TIMEOUT_MS: Final = 10_000
"""How long to wait for another process's lock before saying so."""


class Store:
    """Runs, samples and executions in SQLite or PostgreSQL. Threads may share one.

    Whatever the database raises comes out as a `StoreError` that says what to do.
    """

    def __init__(
        self,
        engine: Engine,
        location: Location,
        *,
        writable: bool = True,
        file: FileVersion | None = None,
    ) -> None:
        self._engine = engine
        self._writes = engine.execution_options(**{WRITES: True})
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

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads."""
        held: Connection | None = getattr(self._held, "connection", None)
        if held is not None:
            yield held
            return
        file = self._file
        try:
            with mapped_faults(self.name), self._engine.connect() as connection:
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
                self._engine, self._writes = engine, engine.execution_options(**{WRITES: True})
                # Last: a reader takes the version first, and never the new one for the old file.
                self._file = fresh
        raise StoreError(
            f"`{self.name}` was changed by another program while it was read; run the command again"
        )

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
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
        """A transaction that writes: all of it is kept, or nothing."""
        with self._turn, mapped_faults(self.name), self._writes.begin() as connection:
            yield connection

    def cached(self, cache_keys: Sequence[str]) -> dict[str, Sample]:
        """The answers that are known already, by `cache_key`. Failed calls aren't answers."""
        with self.reading() as connection:
            return samples.cached(connection, cache_keys)

    def save_samples(self, batch: Sequence[Sample], *, owner: str | None = None) -> None:
        """Keep samples, all or none. An answer replaces; a failure never replaces an answer.

        `owner`'s leases on them end in the same transaction: nobody sees a sample that is
        neither stored nor spoken for.
        """
        if batch:
            with self.writing() as connection:
                samples.save_samples(connection, batch)
                if owner is not None:
                    leases.release(connection, [sample.cache_key for sample in batch], owner)

    def claim(
        self, cache_keys: Sequence[str], owner: str, *, lease_s: float = leases.LEASE_S
    ) -> set[str]:
        """Take leases on those keys that are free; whoever has one may call for the sample."""
        if not cache_keys:
            return set()
        now = time.time()
        with self.writing() as connection:
            return leases.claim(connection, cache_keys, owner, until=now + lease_s, now=now)

    def extend_leases(self, owner: str, *, lease_s: float = leases.LEASE_S) -> None:
        """Keep an owner's leases for another while."""
        with self.writing() as connection:
            leases.extend(connection, owner, until=time.time() + lease_s)

    def release(self, cache_keys: Sequence[str], owner: str) -> None:
        """Give leases back."""
        if cache_keys:
            with self.writing() as connection:
                leases.release(connection, cache_keys, owner)

    def release_all(self, owner: str) -> None:
        """Give back all leases of an owner."""
        with self.writing() as connection:
            leases.release_all(connection, owner)

    def register_bank(
        self,
        *,
        prompt_version: str,
        bank_sha256: str,
        source: str,
        system: str,
        user_template: str,
        paraphrases: Sequence[str],
    ) -> None:
        """Remember a bank's text. Other text under the same version is a `BankError`."""
        row = {
            "prompt_version": prompt_version,
            "bank_sha256": bank_sha256,
            "source": source,
            "system": system,
            "user_template": user_template,
            "paraphrases_json": json.dumps(list(paraphrases), ensure_ascii=False),
            "created_at": _utc_now(),
        }
        with self.reading() as connection:
            known = banks.known_bank(connection, prompt_version)
        if known is None:
            with self.writing() as connection:
                banks.insert_bank(connection, row)
                known = banks.known_bank(connection, prompt_version)
        assert known is not None, "the row was inserted, or was there"
        banks.refuse_other_text(known, row)

    def start_executions(self, starts: Sequence[ExecutionStart]) -> None:
        """Write down that executions begin, before their first sample is saved."""
        with self.writing() as connection:
            executions.start_executions(connection, starts)

    def finish_executions(self, ended: Sequence[ExecutionResult]) -> None:
        """Write down how executions ended, once their samples are saved."""
        with self.writing() as connection:
            executions.finish_executions(connection, ended)

    def runs(
        self,
        *,
        limit: int = 20,
        offset: int = 0,
        search: str | None = None,
        whole: bool = False,
    ) -> list[RunSummary]:
        """Summaries of runs, the latest first; `search` looks in claims, models and ids.

        `whole` leaves out the parts of experiments and episodes.
        """
        with self.reading() as connection:
            return catalogue.list_runs(
                connection, limit=limit, offset=offset, search=search, whole=whole
            )

    def runs_of_claim(self, claim: str, *, limit: int = 200) -> list[RunSummary]:
        """Summaries of the runs of one claim, word for word, the latest first."""
        with self.reading() as connection:
            return catalogue.runs_of_claim(connection, claim, limit)

    def executions_of(self, run_id: str, *, limit: int | None = None) -> list[ExecutionSummary]:
        """A run's executions, the newest first; all of them, or `limit`."""
        with self.reading() as connection:
            return executions.executions_of(connection, run_id, limit)

    def find(self, ref: str) -> StoredRecord:
        """The record that a full or shortened `run_id` or `execution_id` means.

        A run stands for its latest finished execution. A reference that fits several things, or
        none, is a `RecordError`.
        """
        with self.reading() as connection:
            return catalogue.find(connection, ref)

    def record(self, execution_id: str) -> StoredRecord:
        """The record of a finished execution, by its whole id."""
        with self.reading() as connection:
            return catalogue.record(connection, execution_id)

    def latest_execution(self, run_id: str) -> str | None:
        """The latest finished execution of a run, by its whole id; None where there is none."""
        with self.reading() as connection:
            return catalogue.latest_execution(connection, run_id)

    def started(self, ref: str) -> StartedExecution:
        """What the execution that `ref` means was asked to do, finished or not."""
        with self.reading() as connection:
            return catalogue.started(connection, ref)

    def unfinished(self, *, limit: int = 20) -> list[StartedExecution]:
        """Executions that no result followed, the newest first: running, stopped or killed."""
        with self.reading() as connection:
            return catalogue.unfinished(connection, limit)

    def save_bundle(self, bundle_id: str, claim: str, lens: str, bundle_json: str) -> None:
        """Keep a bundle of evidence under its own id."""
        row = {
            "bundle_id": bundle_id,
            "claim": claim,
            "lens": lens,
            "bundle_json": bundle_json,
            "created_at": _utc_now(),
        }
        with self.writing() as connection:
            bundles.save_bundle(connection, row)

    def bundle(self, ref: str) -> str:
        """The JSON of a stored bundle, by its id or the beginning of it."""
        with self.reading() as connection:
            return bundles.find_bundle(connection, ref)

    def lens_records(self, *, limit: int = 10_000) -> list[str]:
        """Records of runs that an evidence lens has company in, the latest first."""
        with self.reading() as connection:
            return catalogue.lens_records(connection, limit)

    def count_runs(self) -> int:
        """How many recipes were measured here."""
        with self.reading() as connection:
            return catalogue.count_runs(connection)

    def newest_sample_at(self) -> str | None:
        """When the newest sample was made; None in an empty store."""
        with self.reading() as connection:
            return catalogue.newest_sample_at(connection)

    def bank(self, prompt_version: str) -> Mapping[str, Any] | None:
        """The text of a bank that was used here."""
        with self.reading() as connection:
            return banks.known_bank(connection, prompt_version)


def _opened(
    location: Location, busy_timeout_ms: int, *, create: bool, absent: str
) -> tuple[Engine, bool, FileVersion | None]:
    """What reads a store, whether it writes as well, and how a file was that nobody changes."""
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


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
