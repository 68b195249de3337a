"""Answers on their way to the store, kept in a file of this machine until the store has them.

What was paid for is on disk the moment it has arrived: written at once, so that the end of the
process doesn't lose it, and synced in groups, so that the end of the machine doesn't. A process
holds a lock on its files; a file without one was left by a process that is gone, and the next one
on the same store brings it in. Whoever takes over leases that ran out reads the files of a process
that is there as well: it may stand still, or be cut off. Storing twice is storing once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import uuid
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from heretix.core.errors import ConfigError, StoreAwayError, StoreError
from heretix.sample import Finish, Noncompliance, Sample
from heretix.store.db import chunked
from heretix.store.replies import StoredReply, save_replies, select_replies
from heretix.store.samples import Keyed, save_samples, select_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from heretix.store.db import Store

with contextlib.suppress(ImportError):  # Not on Windows.
    import fcntl

_Kept = TypeVar("_Kept", bound=Keyed)
_FILE_BYTES: Final = 1_000_000
"""A file of this size is followed by another, and deleted once the store has all of it."""
_SYNC_S: Final = 0.02
"""Least time between two syncs: answers that arrive together go together."""
_SAVED_TOGETHER: Final = 500
_TRIES: Final = 5

_log: Final = logging.getLogger(__name__)
_sync: Final = getattr(os, "fdatasync", os.fsync)


@dataclass(slots=True, eq=False)
class _File:
    """One file of a spool."""

    path: Path
    number: int
    begins_at: int
    """Number of answers in the files before."""
    count: int = 0
    size: int = 0


class Spool(Generic[_Kept]):
    """Takes answers in the order in which the store will be given them. Threads may share one."""

    def __init__(
        self,
        store: Store,
        *,
        replace: bool,
        owner: str = "",
        of: type[_Kept] = Sample,  # type: ignore[assignment]
    ) -> None:
        """`replace`: answers take the place of older ones, as those of a run without the cache.
        `owner` has the leases on them; `of` is what they are, samples or replies."""
        self._stem = store.spool_stem
        names = [field.name for field in fields(of)]  # type: ignore[arg-type]
        self._head = {"of": of.__name__, "fields": names, "replace": replace, "owner": owner}
        self._values = attrgetter(*names)
        self._files: list[_File] = []
        self._taken = 0
        self._stored = 0
        self._changed = threading.Condition()
        self._dirty = self._ended = False
        self._syncing: threading.Thread | None = None
        self._trouble: OSError | None = None
        try:
            self._stem.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            writable = os.access(self._stem.parent, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            raise ConfigError(
                f"`{self._stem.parent}` must be a folder that can be written to: answers are kept "
                "there until the store has them; name another with HERETIX_SPOOL"
            )

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return self._stem.parent

    @property
    def count(self) -> int:
        """Answers that are kept here and that the store doesn't have."""
        with self._changed:
            return 0 if self._trouble else self._taken - self._stored

    def append(self, sample: _Kept) -> None:
        """Keep an answer. One that can't be kept goes to the store all the same."""
        with self._changed:
            self._taken += 1
            if self._trouble is not None:
                return
            try:
                file = self._current()
                line = _line(self._values(sample))
                _write(file.number, line)
            except OSError as exc:
                self._trouble = exc
                _log.warning("answers can't be kept in %s (%s)", self.folder, exc.strerror or exc)
                return
            file.count += 1
            file.size += len(line)
            self._dirty = True
            self._changed.notify()

    def mark(self, count: int) -> None:
        """Note that the store has the first `count` answers."""
        with self._changed:
            self._stored = count
            # What the store has needs no sync here.
            self._dirty = self._dirty and count < self._taken
            for file in list(self._files):
                done = file.begins_at + file.count <= count
                if done and (file.size >= _FILE_BYTES or file is not self._files[-1]):
                    self._delete(file)
                elif file.begins_at < count and self._trouble is None:
                    with contextlib.suppress(OSError):
                        _write(file.number, _line(count - file.begins_at))

    def close(self) -> None:
        """Sync what is left, and let go of it; delete what the store has."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._syncing is not None:
            self._syncing.join()
        with self._changed:
            for file in list(self._files):
                if file.begins_at + file.count <= self._stored:
                    self._delete(file)
                else:
                    os.close(file.number)
            self._files = []

    def _current(self) -> _File:
        if self._files and self._files[-1].size < _FILE_BYTES:
            return self._files[-1]
        if self._syncing is None:
            self._syncing = threading.Thread(target=self._run, name="heretix-spool", daemon=True)
            self._syncing.start()
        path, number = self._make()
        file = _File(path, number, begins_at=self._taken - 1)
        self._files.append(file)
        _write(number, _line(self._head))
        return file

    def _make(self) -> tuple[Path, int]:
        """Make a file and lock it. Who brings in what others left may find it before that, and
        then deletes it: it is made again, and in the end goes without a lock where there is none.
        """
        for again in reversed(range(_TRIES)):
            path = Path(f"{self._stem}{uuid.uuid4().hex}")
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            if _is_locked_by_us(path, number) or not again:
                break
            os.close(number)
            path.unlink(missing_ok=True)
        return path, number

    def _delete(self, file: _File) -> None:
        self._files.remove(file)
        with contextlib.suppress(OSError):
            file.path.unlink()
        os.close(file.number)

    def _run(self) -> None:
        """Sync in a thread of its own, as often as there is something to."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._dirty or self._ended)
                if not self._dirty:
                    return
                self._dirty = False
                # Copies: a file may be deleted meanwhile, and its number be another's.
                numbers = [os.dup(file.number) for file in self._files[-2:]]
            for number in numbers:
                with contextlib.suppress(OSError):
                    _sync(number)
                os.close(number)
            time.sleep(_SYNC_S)


def drain_spools(store: Store, owners: Collection[str] | None = ()) -> int:
    """Store what processes that are gone left in spools; how many answers the store lacked.

    What `owners` hold that are there is stored, too, and their files are left to them; None stands
    for everybody. They may stand still, or not reach the store, and save it again later.
    """
    brought, ours = 0, store.spools
    # An owner has one store only, whichever address somebody else has for that.
    for path in store.spools_beside if owners else ours:
        with contextlib.suppress(FileNotFoundError, PermissionError), path.open("r+b") as file:
            head = _value(file.readline())
            wanted = _is_of(head, owners)
            if not wanted and path not in ours:
                continue
            gone = _is_locked_by_us(path, file.fileno())
            if not gone and not wanted:
                continue
            try:
                for save, answers in _read(head, file.read()):
                    brought += store.write(save, answers, replace=head["replace"])
            except StoreAwayError:
                raise
            except (StoreError, ValueError, TypeError, KeyError) as exc:
                _log.warning("what is in %s can't be brought in: %s", path, exc)
                continue
            if gone:
                path.unlink()
    return brought


def _is_of(head: Any, owners: Collection[str] | None) -> bool:
    """Tell by its first line that a spool that is in use is to be read."""
    return isinstance(head, dict) and (owners is None or head.get("owner") in owners)


def _read(head: Any, text: bytes) -> Iterator[tuple[Callable[..., int], list[Any]]]:
    """Read answers that aren't known to be stored, some at a time, each with how to save them."""
    values = [value for value in map(_value, text.split(b"\n")) if value is not None]
    rows = [row for row in values if isinstance(row, list)]
    stored = max((count for count in values if isinstance(count, int)), default=0)
    if rows[stored:]:
        make, save = _KINDS[head["of"]]
        made = [make(**dict(zip(head["fields"], row, strict=True))) for row in rows[stored:]]
        for answers in chunked([one for one in made if not one.failed], _SAVED_TOGETHER):
            yield save, answers


def _value(line: bytes) -> Any:
    """Read a line; None where it is torn, or not all written yet."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _make_sample(*, noncompliance: str | None, **row: Any) -> Sample:
    why = None if noncompliance is None else Noncompliance(noncompliance)
    return Sample(noncompliance=why, **row)


def _make_reply(*, finish: str, **row: Any) -> StoredReply:
    return StoredReply(finish=Finish(finish), **row)


def _save_replies(connection: Connection, replies: Sequence[StoredReply], *, replace: bool) -> int:
    keys = [reply.cache_key for reply in replies]
    before = select_replies(connection, keys)
    save_replies(connection, replies, replace=replace)
    return sum(before.get(key) != one for key, one in select_replies(connection, keys).items())


def _save_samples(connection: Connection, samples: Sequence[Sample], *, replace: bool) -> int:
    found = select_answers(connection, [sample.cache_key for sample in samples])
    new = [sample for sample in samples if sample.cache_key not in found]
    newer = [
        sample
        for sample in samples
        if replace
        and sample.cache_key in found
        and found[sample.cache_key].created_at < sample.created_at
    ]
    save_samples(connection, newer)
    save_samples(connection, [s for s in samples if s not in newer], replace=False)
    return len({sample.cache_key for sample in (*new, *newer)})


_KINDS: Final[Mapping[str, tuple[Callable[..., Any], Callable[..., int]]]] = {
    Sample.__name__: (_make_sample, _save_samples),
    StoredReply.__name__: (_make_reply, _save_replies),
}
"""By the name in a spool's first line: how an answer is made, and saved."""


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _write(number: int, line: bytes) -> None:
    if os.write(number, line) != len(line):
        raise OSError("no space left")


def _is_locked_by_us(path: Path, number: int) -> bool:
    """Take the lock of a file that is open; False if another has it, or had and deleted it."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.stat().st_ino == os.fstat(number).st_ino
    except (OSError, NameError):
        return False
