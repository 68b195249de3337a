"""Tampering: one change to any table of the economy, behind the exchange's back, and it is found.

SQLite alone: what is held against the events are rows, which both databases give the same.
"""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from itertools import pairwise

import pytest
from exchanging import TABLES, H, O, Table
from sqlalchemy import Boolean

from heretix.economy.exchange import Exchange
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
    """Every way to change one thing about a table: (what, statement, values)."""
    table = getattr(schema, name)
    names = [column.name for column in table.columns]
    rows = connection.execute(f"SELECT {', '.join(names)} FROM {name}").fetchall()
    assert rows, f"{name} must have rows to tamper with"
    key = [column.name for column in table.primary_key]
    where = " AND ".join(f"{column} = ?" for column in key)

    def place(row):
        return [row[names.index(column)] for column in key]

    for row in rows:
        yield "drop", f"DELETE FROM {name} WHERE {where}", place(row)
        for column, value in zip(table.columns, row, strict=True):
            statement = f"UPDATE {name} SET {column.name} = ? WHERE {where}"
            others = (_other(column, value), *_alike(column, value), *_emptied(column, value))
            for other in others:
                yield f"edit {column.name}", statement, [other, *place(row)]
            if value is not None and column.nullable:
                yield f"empty {column.name}", statement, [None, *place(row)]
    for one, two in pairwise(rows):
        for index, column in enumerate(names):
            if one[index] != two[index] and column not in key:
                statement = (
                    f"UPDATE {name} SET {column} = CASE WHEN {where} THEN ? ELSE ? END "
                    f"WHERE ({where}) OR ({where})"
                )
                values = [*place(one), two[index], one[index], *place(one), *place(two)]
                yield f"swap {column}", statement, values
    added = [
        _other(c, v) if c.primary_key else v for c, v in zip(table.columns, rows[-1], strict=True)
    ]
    marks = ", ".join("?" * len(names))
    yield "add", f"INSERT INTO {name} ({', '.join(names)}) VALUES ({marks})", added


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


@pytest.mark.parametrize("name", TABLES)
def test_one_change_to_any_row_is_found(played, tmp_path, name):
    """Every column of every row is edited, every row dropped, a row added, neighbours swapped."""
    missed = []
    tried = refused = 0
    path = shutil.copy(played, tmp_path)
    with Store.open(path) as store, sqlite3.connect(path) as connection:
        exchange = Exchange(store, clock=None)
        # What the database itself would refuse is no proof of the chain.
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        before = dump(connection, name)
        for what, statement, values in list(tamperings(connection, name)):
            try:
                connection.execute(statement, values)
            except sqlite3.IntegrityError:
                refused += 1
                connection.rollback()
                continue
            connection.commit()
            tried += 1
            if exchange.verify().ok:
                missed.append((what, values))
            restore(connection, name, before)
        assert exchange.verify().ok
    assert missed == []
    assert tried > refused


def dump(connection, name):
    return connection.execute(f"SELECT * FROM {name}").fetchall()


def restore(connection, name, rows):
    connection.execute(f"DELETE FROM {name}")
    marks = ", ".join("?" * len(rows[0]))
    connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    connection.commit()
