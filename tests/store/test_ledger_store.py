"""The ledger's queries on both databases: one end, one writer, one order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event, insert

from heretix.core.errors import StoreError
from heretix.store import Store
from heretix.store import economy as queries
from heretix.store.schema import CHAINS_START, TRANSFERS, chains, transfers

if TYPE_CHECKING:
    from pathlib import Path


def account(name: str, **changes):
    """An account's row."""
    row = {
        "id": name,
        "kind": "user",
        "currency": "PLAY",
        "episode": None,
        "person": name,
        "balance": 0,
        "created_ms": 1,
    }
    return row | changes


def transfer(seq: int, **changes):
    """A transfer's row, from `a` to `b`."""
    row = {
        "seq": seq,
        "id": f"t{seq}",
        "body_hash": "body",
        "debit": "a",
        "credit": "b",
        "amount": 5,
        "currency": "PLAY",
        "code": "issue",
        "episode": None,
        "group_id": f"g{seq}",
        "prev_hash": f"h{seq - 1}",
        "hash": f"h{seq}",
        "at_ms": seq,
    }
    return row | changes


@pytest.fixture
def two(store: Store) -> Store:
    """A store with two accounts."""
    with store.writing() as connection:
        queries.add_accounts(connection, [account("a"), account("b")])
    return store


def test_a_new_store_has_the_ends_of_its_chains(store: Store):
    """Rows written with the tables: there is always something to take."""
    with store.reading() as connection:
        assert queries.select_chain(connection) == list(CHAINS_START)


def test_a_chain_has_one_end(store: Store):
    """A second row is refused."""
    with pytest.raises(StoreError), store.writing() as connection:
        connection.execute(insert(chains).values(CHAINS_START[0] | {"number": 2}))


def test_a_chain_begins_once(store: Store):
    """Beginning it again reads where it ends; others stay out of it."""
    with store.writing() as connection:
        assert queries.begin_chain(connection, "e") == (0, "0" * 64)
        queries.set_chains(connection, {"e": (3, "h3")})
        assert queries.begin_chain(connection, "e") == (3, "h3")
        ends = queries.lock_chains(connection, "e")
        assert ends == dict.fromkeys(("root", "transfers"), (0, "0" * 64)) | {"e": (3, "h3")}
        assert queries.lock_chains(connection, "other").keys() == {"root", "transfers"}


def test_an_account_is_made_once(two: Store):
    """Adding it again changes nothing of it."""
    with two.writing() as connection:
        queries.append_transfers(connection, [transfer(1)], {"a": -5, "b": 5})
        queries.add_accounts(connection, [account("a", kind="house", balance=9)])
        queries.add_accounts(connection, [])
        rows = queries.select_accounts_by_id(connection, ["a", "b", "nobody"])
    assert {name: (row["kind"], row["balance"]) for name, row in rows.items()} == {
        "a": ("user", -5),
        "b": ("user", 5),
    }


def test_transfers_set_balances(two: Store):
    """Both in one go."""
    with two.writing() as connection:
        rows = [transfer(1), transfer(2, amount=2)]
        queries.append_transfers(connection, rows, {"a": -7, "b": 7})
    with two.reading() as connection:
        assert [dict(row) for row in queries.stream_transfers(connection)] == rows
        balances = {row["id"]: row["balance"] for row in queries.select_accounts(connection)}
    assert balances == {"a": -7, "b": 7}


def test_amounts_of_64_bits_are_exact(two: Store):
    """On both databases, both signs."""
    most = 2**63 - 1
    with two.writing() as connection:
        queries.append_transfers(connection, [transfer(1, amount=most)], {"a": -most, "b": most})
    with two.reading() as connection:
        (row,) = queries.stream_transfers(connection)
        balances = [row["balance"] for row in queries.select_accounts(connection)]
    assert (row["amount"], balances) == (most, [-most, most])


@pytest.mark.parametrize(
    "wrong",
    [{"amount": 0}, {"amount": -1}, {"debit": "nobody"}, {"credit": "nobody"}, {"id": "t1"}],
    ids=str,
)
def test_the_database_refuses_what_the_rules_would(two: Store, wrong):
    """The last line of defence: amounts, accounts, keys."""
    with two.writing() as connection:
        queries.append_transfers(connection, [transfer(1)], {"a": -5, "b": 5})
    with pytest.raises(StoreError), two.writing() as connection:
        connection.execute(insert(transfers), transfer(2) | wrong)
    with two.reading() as connection:
        assert len(list(queries.stream_transfers(connection))) == 1


def test_a_fault_among_writes_sent_together_is_a_store_error(two: Store):
    """It comes at the end of the block, and nothing of the block is kept."""
    rows = [transfer(1), transfer(2, id="t1")]
    with pytest.raises(StoreError), two.writing() as connection, queries.pipeline(connection):
        queries.append_transfers(connection, rows, {"a": -10, "b": 10})
    with two.reading() as connection:
        assert list(queries.stream_transfers(connection)) == []


def test_same_ids_and_groups_are_found_in_order(two: Store):
    """By key or by group, however many are asked for."""
    rows = [transfer(n, group_id="g" if n % 2 else "other") for n in range(1, 7)]
    with two.writing() as connection:
        connection.execute(insert(transfers), rows)
        found = queries.select_same_id_or_group(connection, "g", [f"t{n}" for n in (6, 1_000)])
        many = queries.select_same_id_or_group(connection, "none", [f"t{n}" for n in range(1_500)])
    assert [row["seq"] for row in found] == [1, 3, 5, 6]
    assert [row["seq"] for row in many] == [1, 2, 3, 4, 5, 6]


def test_history_finds_by_account_episode_and_group(two: Store):
    """Each by its index, all of them the newest first."""
    rows = [transfer(1), transfer(2, episode="e"), transfer(3, group_id="g1"), transfer(4)]
    with two.writing() as connection:
        connection.execute(insert(transfers), rows)

        def seqs(**wanted):
            return [row["seq"] for row in queries.select_history(connection, limit=3, **wanted)]

        assert seqs() == [4, 3, 2]
        assert seqs(account="a") == [4, 3, 2]
        assert seqs(account="c") == []
        assert seqs(episode="e") == [2]
        assert seqs(group="g1") == [3, 1]
        assert seqs(account="b", before_seq=3) == [2, 1]


def test_a_second_writer_waits_for_the_end_of_the_chain(two: Store, store_url: str):
    """It sees what the first one wrote, so that neither extends an end that isn't one."""
    asked, seen = threading.Event(), []

    def second() -> None:
        with Store.open(store_url, busy_timeout_ms=60_000) as other:

            @event.listens_for(other._engine, "before_cursor_execute")
            def tell(_connection, _cursor, statement, *_):
                if "chain" in statement or "BEGIN" in statement:
                    asked.set()

            with other.writing() as connection:
                seen.append(queries.lock_chains(connection, "e"))

    with two.writing() as connection:
        queries.begin_chain(connection, "e")
    with two.writing() as connection:
        queries.lock_chains(connection, "e")
        thread = threading.Thread(target=second)
        thread.start()
        assert asked.wait(60)
        queries.set_chains(connection, dict.fromkeys(("root", TRANSFERS, "e"), (1, "h1")))
    thread.join()
    assert seen == [dict.fromkeys(("root", TRANSFERS, "e"), (1, "h1"))]


def test_a_reading_transaction_sees_one_moment(two: Store):
    """What is committed between two reads isn't in the second."""
    with two.reading() as connection:
        before = queries.select_chain(connection)
        with two.writing() as writer:
            queries.append_transfers(writer, [transfer(1)], {"a": -5, "b": 5})
            queries.set_chains(writer, {TRANSFERS: (1, "h1")})
        assert list(queries.stream_transfers(connection)) == []
        assert queries.select_chain(connection) == before
    with two.reading() as connection:
        ends = {row["name"]: row["number"] for row in queries.select_chain(connection)}
        assert ends[TRANSFERS] == 1


def test_the_ledgers_look_ups_use_an_index(tmp_path: Path):
    """No question that grows with the ledger scans it."""
    questions = {
        "SELECT * FROM transfers WHERE group_id = '' OR id IN ('')": "ix_transfers_group_id",
        "SELECT * FROM transfers WHERE debit = '' OR credit = '' ORDER BY seq DESC": (
            "ix_transfers_debit_seq"
        ),
        "SELECT * FROM transfers WHERE episode = '' ORDER BY seq": "ix_transfers_episode_seq",
        "SELECT * FROM transfers WHERE seq > 5 ORDER BY seq": "PRIMARY KEY",
        "SELECT * FROM positions WHERE account = ''": "ix_positions_account",
        "SELECT * FROM statements WHERE episode_id = '' ORDER BY first_seq": (
            "ix_statements_episode_id_first_seq"
        ),
        "SELECT * FROM episodes WHERE state = '' ORDER BY created_ms DESC": (
            "ix_episodes_state_created_ms"
        ),
        "SELECT * FROM accounts WHERE episode = ''": "ix_accounts_episode",
    }
    with Store.open(str(tmp_path / "heretix.sqlite")) as store, store.reading() as connection:
        for question, index in questions.items():
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {question}").all()
            assert any(index in row.detail for row in plan), (question, plan)
