"""Tampering: one change to any table of the economy, behind the exchange's back, and it is found.

SQLite alone: what is held against the events are rows, which both databases give the same.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from exchanging import TABLES, H, O, Table
from sqlalchemy import Boolean

from heretix.core.clock import ManualClock
from heretix.economy.audit import verify_episode
from heretix.economy.exchange import Exchange
from heretix.economy.heads import prove
from heretix.economy.ledger import GENESIS, Event, root_hash
from heretix.store import Store, schema


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A store in which one episode was settled, one is open and one is a draft; a credit too."""
    path = tmp_path_factory.mktemp("tampering") / "heretix.sqlite"
    with Store.open(str(path)) as store:
        table = Table(store)
        played = table.id
        table.exchange.draft(table.episode.terms)
        table.id = table.exchange.draft(replace(table.episode.terms, claim="another"))
        table.exchange.open(table.id)
        table.bet("ann", H, 70)
        table.bet("bob", O, 50)
        table.id = played
        table.ready()
        table.close()
        with table.exchange.transaction() as transaction:
            for number in range(2):
                row = {
                    "claim_id": f"claim-{number}",
                    "claim": f"Claim {number}.",
                    "person": "ann",
                    "amount": 10 + number,
                    "found": 12 + number,
                    "day": number,
                    "week": number,
                    "evidence_json": "{}",
                    "at_ms": number,
                }
                connection = transaction.connection
                connection.execute(schema.exploration_grants.insert(), row)
                transaction.record("exploration_grants", [row])
        assert table.exchange.verify().ok
    return path


def tamperings(connection: sqlite3.Connection, name: str):
    """Every way to change one thing about a table: (what, statement, values, whose row it is)."""
    table = getattr(schema, name)
    names = [column.name for column in table.columns]
    rows = connection.execute(f"SELECT {', '.join(names)} FROM {name}").fetchall()
    assert rows, f"{name} must have rows to tamper with"
    key = [column.name for column in table.primary_key]
    where = " AND ".join(f"{column} = ?" for column in key)

    (of,) = {"episode_id", "episode", "chain", "name"}.intersection(names) or ("",)

    def place(row):
        return [row[names.index(column)] for column in key]

    def owner(row):
        return row[names.index(of)] if of else None

    for row in rows:
        yield "drop", f"DELETE FROM {name} WHERE {where}", place(row), owner(row)
        for column, value in zip(table.columns, row, strict=True):
            statement = f"UPDATE {name} SET {column.name} = ? WHERE {where}"
            others = (_other(column, value), *_alike(column, value), *_emptied(column, value))
            for other in others:
                yield f"edit {column.name}", statement, [other, *place(row)], owner(row)
            if value is not None and column.nullable:
                yield f"empty {column.name}", statement, [None, *place(row)], owner(row)
    for one, two in pairwise(rows):
        for index, column in enumerate(names):
            if one[index] != two[index] and column not in key:
                statement = (
                    f"UPDATE {name} SET {column} = CASE WHEN {where} THEN ? ELSE ? END "
                    f"WHERE ({where}) OR ({where})"
                )
                values = [*place(one), two[index], one[index], *place(one), *place(two)]
                yield f"swap {column}", statement, values, owner(one)
    added = [
        _other(c, v) if c.primary_key else v for c, v in zip(table.columns, rows[-1], strict=True)
    ]
    marks = ", ".join("?" * len(names))
    yield "add", f"INSERT INTO {name} ({', '.join(names)}) VALUES ({marks})", added, None


def _alike(column, value):
    """What would be read as the same value."""
    if isinstance(column.type, Boolean) and value:
        return (2, -1)
    return (f"{value} ", value.upper()) if column.name == "secret" else ()


def _emptied(column, value):
    """A text without anything in it, which no rule could take apart."""
    return ("",) if isinstance(value, str) and value else ()


def _other(column, value):
    if isinstance(column.type, Boolean):
        return not value
    if column.type.python_type is int:
        return (value or 0) + 1_000
    return f"{value or ''}0"


@pytest.mark.parametrize("most", [3, pytest.param(None, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", TABLES)
def test_one_change_to_any_row_is_found(played, tmp_path, name, most):
    """Every column of every row is edited, every row dropped, a row added, neighbours swapped.

    What belongs to an episode is found by reading that episode's chain alone, too. All of them in
    CI, and the first of each kind elsewhere.
    """
    missed = []
    tried = refused = 0
    path = shutil.copy(played, tmp_path)
    with Store.open(path) as store, sqlite3.connect(path) as connection:
        exchange = Exchange(store, clock=None)
        # What the database itself would refuse is no proof of the chain.
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        before = dump(connection, name)
        own = {row[0] for row in connection.execute("SELECT episode_id FROM episodes")}
        kinds = Counter()
        for what, statement, values, owner in list(tamperings(connection, name)):
            kinds[what] += 1
            if most is not None and kinds[what] > most:
                continue
            try:
                connection.execute(statement, values)
            except sqlite3.IntegrityError:
                refused += 1
                connection.rollback()
                continue
            connection.commit()
            tried += 1
            if exchange.verify().ok or (owner in own and exchange.verify(episode=owner).ok):
                missed.append((what, values))
            restore(connection, name, before)
        assert exchange.verify().ok
    assert missed == []
    assert tried > refused


@pytest.fixture
def forged(played, tmp_path):
    """A copy to forge, whose foreign keys nobody watches: the exchange, and the rows behind it."""
    path = shutil.copy(played, tmp_path)
    with Store.open(path) as store, sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = OFF")
        yield Exchange(store, clock=ManualClock()), connection


def link_again(connection):
    """Give all events their numbers, hashes and roots anew, and the chains their ends: what who can
    write to the store, and has no key, can do to hide a change."""
    ends, root = {}, GENESIS
    for row in connection.execute("SELECT * FROM events ORDER BY seq").fetchall():
        number, last = ends.get(row["chain"], (0, GENESIS))
        fields = {name: row[name] for name in ("chain", "move", "rows_json", "at_ms")}
        event = Event(number=number + 1, prev_hash=last, **fields)
        root = root_hash(seq=row["seq"], event=event.hash(), prev_root=root)
        ends[event.chain] = (event.number, event.hash())
        connection.execute(
            "UPDATE events SET number = ?, prev_hash = ?, hash = ?, root = ? WHERE seq = ?",
            (event.number, last, event.hash(), root, row["seq"]),
        )
    ends["root"] = (row["seq"], root)
    for name, (number, hash_) in ends.items():
        values = (number, hash_, name)
        connection.execute("UPDATE chains SET number = ?, hash = ? WHERE name = ?", values)
    connection.commit()


def episodes_of(connection):
    """Ids of the settled, the open and the drafted episode."""
    order = "CASE state WHEN 'settled' THEN 0 WHEN 'draft' THEN 2 ELSE 1 END"
    rows = connection.execute(f"SELECT episode_id FROM episodes ORDER BY {order}")
    return [row["episode_id"] for row in rows]


def test_an_event_in_anothers_chain_is_found_however_well_it_is_linked(forged):
    """Hashes can all be made anew; the rows still say whose they are."""
    exchange, connection = forged
    link_again(connection)
    assert exchange.verify().ok
    settled, other, _ = episodes_of(connection)
    for chain in (other, "common"):
        moved = "UPDATE events SET chain = ? WHERE chain = ? AND move = 'stake'"
        connection.execute(moved, (chain, settled))
        link_again(connection)
        assert "stands in another's chain" in str(exchange.verify().breaches)
        assert not exchange.verify(episode=settled).ok
        connection.execute(moved, (settled, chain))
        connection.execute(
            "UPDATE events SET chain = ? WHERE move = 'stake' AND rows_json LIKE ?",
            (other, f"%{other}%"),
        )
        link_again(connection)
        assert exchange.verify().ok


def test_events_of_two_chains_that_change_places_are_found(forged):
    """Each stays in its chain, where its number is right: the order of all of them isn't."""
    exchange, connection = forged
    one, two = (
        connection.execute("SELECT seq FROM events WHERE chain = ?", (of,)).fetchone()["seq"]
        for of in episodes_of(connection)[:2]
    )
    for seq, to in ((one, -1), (two, one), (-1, two)):
        connection.execute("UPDATE events SET seq = ? WHERE seq = ?", (to, seq))
    connection.commit()
    found = exchange.verify().breaches
    assert {breach.subject for breach in found if "before it of all" in breach.detail} >= {
        str(one),
        str(two),
    }
    assert not any("before it in its chain" in breach.detail for breach in found)


def test_an_end_that_was_put_back_is_found(forged):
    """With its last event left out, or still there: of each chain that has one."""
    exchange, connection = forged
    for name in (*episodes_of(connection), "common"):
        last = connection.execute(
            "SELECT * FROM events WHERE chain = ? ORDER BY seq DESC", (name,)
        ).fetchone()
        back = "UPDATE chains SET number = ?, hash = ? WHERE name = ?"
        connection.execute(back, (last["number"] - 1, last["prev_hash"], name))
        connection.commit()
        assert not exchange.verify().ok
        assert name == "common" or not exchange.verify(episode=name).ok
        connection.execute("DELETE FROM events WHERE seq = ?", (last["seq"],))
        connection.commit()
        assert not exchange.verify().ok
        assert name == "common" or not exchange.verify(episode=name).ok
        marks = ", ".join("?" * len(tuple(last)))
        connection.execute(f"INSERT INTO events VALUES ({marks})", tuple(last))
        connection.execute(back, (last["number"], last["hash"], name))
        connection.commit()
        assert exchange.verify().ok


def test_one_episode_is_verified_whatever_becomes_of_another(forged):
    """A bet that was changed, an event whose rows were: its own episode alone doesn't hold."""
    exchange, connection = forged
    settled, *others = episodes_of(connection)
    for table, column, whose in (
        ("positions", "stake", "episode_id"),
        ("events", "at_ms", "chain"),
    ):
        change = f"UPDATE {table} SET {column} = {column} + ? WHERE {whose} = ?"
        connection.execute(change, (1, settled))
        connection.commit()
        assert not exchange.verify(episode=settled).ok
        assert all(exchange.verify(episode=other).ok for other in others)
        connection.execute(change, (-1, settled))
        connection.commit()


def test_a_history_that_was_linked_anew_is_found_against_a_head(forged, tmp_path):
    """Rows and events that agree prove nothing; a head that was kept does, of all or of one."""
    pytest.importorskip("cryptography")
    exchange, connection = forged
    settled, *_ = episodes_of(connection)
    head = exchange.sign_head(tmp_path / "key")
    assert exchange.verify(episode=settled, against=head).ok
    changed = "UPDATE events SET at_ms = at_ms + 1 WHERE chain = ? AND move = 'judge'"
    assert connection.execute(changed, (settled,)).rowcount
    link_again(connection)
    for episode in (None, settled):
        assert exchange.verify(episode=episode).ok
        found = exchange.verify(episode=episode, against=head).breaches
        assert {(breach.rule, breach.detail.split()[0]) for breach in found} == {
            ("head", "`root`"),
            ("head", "`chains`"),
        }
    audit = verify_episode(exchange.record(settled, against=head.seq))
    assert audit.ok
    assert not prove(audit, head).ok


def dump(connection, name):
    return connection.execute(f"SELECT * FROM {name}").fetchall()


def restore(connection, name, rows):
    connection.execute(f"DELETE FROM {name}")
    marks = ", ".join("?" * len(rows[0]))
    connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    connection.commit()
