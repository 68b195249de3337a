"""A store that can't be written to: it is read as it is, and never half."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from store_builders import RUN_ID, key, sample, start

from heretix.core.errors import HeretixError, StoreError, StoreReadOnlyError
from heretix.store import Store, db
from heretix.store.db import FileVersion, Location, make_immutable
from heretix.store.runs import select_runs, start_executions
from heretix.store.samples import release_all_leases, save_samples
from readonly import BOUND, obey_permissions, obeying_permissions, read_only

if TYPE_CHECKING:
    from pathlib import Path

_LOOK_AGAIN_AND_AGAIN = """
import sys
from heretix.core.errors import HeretixError
from heretix.store import Store
from heretix.store.samples import select_answers
with Store.open(sys.argv[1], create=False) as store:
    print(len(store.read(select_answers, [sys.argv[2]])), flush=True)
    for _ in sys.stdin:
        try:
            print(len(store.read(select_answers, [sys.argv[2]])), flush=True)
        except HeretixError as exc:
            print(type(exc).__name__, exc, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one execution begun in it, alone in its folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    path = folder / "heretix.sqlite"
    with Store.open(str(path)) as store:
        store.write(start_executions, [start()])
    return path


def look(path: Path, how: str = "look") -> list[str]:
    """What somebody who obeys permissions finds, and what is said to a write."""
    found = []
    with obeying_permissions():
        try:
            with Store.open(str(path), create=how == "create") as store:
                runs = (run.run_id for run in store.read(select_runs))
                found.append(" ".join([str(store.writable), *runs]))
                store.write(release_all_leases, "nobody")
        except HeretixError as exc:
            found.append(f"{type(exc).__name__} {exc.exit_code} {exc}")
    return found


needs_permissions = pytest.mark.skipif(not BOUND, reason="root goes by no permissions here")


@needs_permissions
def test_a_file_in_a_folder_that_may_only_be_read_is_read(path: Path):
    """Nothing is made beside it, and writing is refused by the message that says what to do."""
    with read_only(path.parent):
        found, refused = look(path)
    assert found == f"False {RUN_ID}"
    assert refused.startswith("StoreReadOnlyError 2 ")
    assert "can't be written to; check who may write" in refused
    assert list(path.parent.iterdir()) == [path]


@needs_permissions
def test_a_folder_alone_that_may_only_be_read_is_enough(path: Path):
    """The file could be written, but nothing beside it."""
    with read_only(path.parent):
        path.chmod(0o644)
        assert look(path)[0] == f"False {RUN_ID}"
        assert "StoreReadOnlyError 2" in look(path, "create")[0]


@needs_permissions
def test_whoever_comes_to_write_is_refused_at_once(path: Path):
    """Before anything is asked of a model that couldn't be kept."""
    with read_only(path.parent):
        (refused,) = look(path, "create")
    assert refused.startswith("StoreReadOnlyError 2 ")
    assert "choose another store with --db or HERETIX_DB" in refused


@needs_permissions
def test_changes_that_are_only_in_the_log_are_not_overlooked(path: Path):
    """A copy made under a writer, without the index: half of the store would be missing."""
    with Store.open(str(path)) as store:
        store.write(save_samples, [sample(1)])
        copy = path.parent.parent / "copy"
        copy.mkdir()
        for name in (path.name, f"{path.name}-wal"):
            shutil.copy(path.parent / name, copy / name)
    with read_only(copy):
        (refused,) = look(copy / path.name)
    assert "heretix.sqlite-wal; copy both files to a folder that you may write to" in refused
    assert look(copy / path.name)[0] == f"True {RUN_ID}"


def test_an_older_store_is_brought_up_to_date_elsewhere(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where it can't be written to it can't be migrated, either; the message says what to do."""
    monkeypatch.setattr(db, "HEAD", "0002")
    with pytest.raises(StoreReadOnlyError, match=r"older Heretix \(schema 0001, .*; copy it to"):
        Store.open(f"sqlite:///file:{path}?mode=ro&uri=true", create=False)


def test_a_newer_store_is_left_alone(path: Path):
    """The remedy is another Heretix, not another folder."""
    with Store.open(str(path)) as store, store.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="made by a newer Heretix"):
        Store.open(f"sqlite:///file:{path}?mode=ro&uri=true", create=False)


def test_a_change_of_a_read_only_file_is_noticed(path: Path):
    """Somebody else may be able to write where we aren't, to the file or to its log."""
    version = FileVersion.of(path)
    assert version.is_current()
    with Store.open(str(path)) as other:
        other.write(save_samples, [sample(1)])
        assert not version.is_current()
    assert not version.is_current()


@needs_permissions
@pytest.mark.parametrize("still_open", [False, True], ids=["file", "log"])
def test_whoever_looks_for_long_sees_what_others_write(path: Path, still_open: bool):
    """What was read meanwhile is refused once; after that it is as it is by now."""
    path = path.rename(path.with_name("100%41?#.sqlite"))

    def asked() -> str:
        with read_only(path.parent):
            reader.stdin.write("again\n")
            reader.stdin.flush()
            return reader.stdout.readline()

    with read_only(path.parent):
        reader = subprocess.Popen(
            [sys.executable, "-c", _LOOK_AGAIN_AND_AGAIN, str(path), key(1)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=obey_permissions,
        )
        assert reader.stdout.readline() == "0\n"
    with reader, contextlib.ExitStack() as opened:
        assert asked() == "0\n"
        writer = opened.enter_context(Store.open(str(path)))
        writer.write(save_samples, [sample(1)])
        if not still_open:
            writer.close()
        assert "by another program while it was read; run the command again" in asked()
        assert asked() == asked() == "1\n"
        reader.stdin.close()


@pytest.mark.parametrize("name", ["100%.sqlite", "what?.sqlite", "a#b.sqlite", "wäre gut 🧪.db"])
def test_any_file_name_will_do_for_reading(path: Path, name: str):
    """A path in a URL is quoted."""
    named = path.rename(path.with_name(name))
    url = make_immutable(Location.parse(str(named))).url
    with Store.open(url.render_as_string(), create=False) as store:
        assert [run.run_id for run in store.read(select_runs)] == [RUN_ID]
        assert not store.writable
