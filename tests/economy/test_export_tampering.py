"""Tampering with an exported episode: every place of it, and all of it at once."""

from __future__ import annotations

import copy
import json
import shutil

import pytest
from exchanging import Table
from playing import make_terms

from heretix.core.canonical import decode, encode, sha256_hex
from heretix.core.errors import RecordError, UsageError
from heretix.economy.audit import verify_episode
from heretix.economy.heads import Head, prove
from heretix.economy.ledger import EventChain
from heretix.store import Store


@pytest.fixture(scope="module")
def signed(sqlite_template, tmp_path_factory):
    """A settled episode among moves of another one, exported, and a head of the chain then."""
    folder = tmp_path_factory.mktemp("export")
    with Store.open(str(shutil.copy(sqlite_template, folder / "x.sqlite"))) as store:
        table = Table(store)
        other = table.exchange.draft(make_terms(claim="bees sleep"))
        table.exchange.open(other)
        table.ready()
        table.exchange.begin_challenge(other)
        table.close()
        head = table.exchange.sign_head(folder / "key")
        table.exchange.join("eve")
        return json.dumps(table.exchange.record(table.id)), head


@pytest.fixture
def record(signed):
    """A copy to change."""
    return json.loads(signed[0])


def is_found(record, against=None):
    """Tell whether a record is refused, or has something that doesn't follow."""
    try:
        audit = verify_episode(record)
        return not (audit if against is None else prove(audit, against)).ok
    except (RecordError, UsageError):
        return True


def places(value, path=()):
    """Every place of a record."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    for name, item in enumerate(value) if isinstance(value, list) else inner:
        yield from places(item, (*path, name))


def edit(holder, name):
    value = holder[name]
    if isinstance(value, bool):
        holder[name] = not value
    elif isinstance(value, int):
        holder[name] = value + 1
    elif isinstance(value, str):
        holder[name] = f"{value}0"
    else:
        holder[name] = {} if value is None else None


def remove(holder, name):
    del holder[name]


def repeat(holder, name):
    holder.insert(name, copy.deepcopy(holder[name]))


def swap(holder, name):
    holder[name - 1], holder[name] = holder[name], holder[name - 1]


def test_one_change_to_any_place_is_found(record):
    """Every field is edited and removed; what stands in lists is dropped, doubled and moved."""
    tried, missed = set(), []
    assert not is_found(record)
    for path in filter(None, places(record)):
        kind = tuple("*" if isinstance(name, int) else name for name in path)
        listed = isinstance(path[-1], int)
        for change in (edit, remove, repeat, swap) if listed else (edit, remove):
            # The first of its kind stands for the others.
            if (kind, change) in tried or (change is swap and path[-1] == 0):
                continue
            changed = copy.deepcopy(record)
            holder = changed
            for name in path[:-1]:
                holder = holder[name]
            change(holder, path[-1])
            if changed == record:
                continue
            tried.add((kind, change))
            if not is_found(changed):
                missed.append((change.__name__, path))
    assert len(tried) > 250
    assert missed == []
    assert is_found(record | {"more": 1})


def test_a_record_made_up_as_a_whole_is_found_against_a_head(signed, record):
    """Events and parts that agree with each other prove nothing; a head that was kept does."""
    pytest.importorskip("cryptography")
    head = signed[1]
    assert not is_found(record, head)
    forged = json.loads(json.dumps(record).replace("exec-gate", "exec-mine"))
    for link in forged["chain"]["links"]:
        if link["rows_json"] is not None:
            link["rows_sha256"] = sha256_hex(link["rows_json"].encode())
    chain = decode(EventChain, forged["chain"], "chain")
    forged["chain"]["hash"] = chain.hashes()[chain.links[-1].seq]
    assert not is_found(forged)
    assert is_found(forged, head)


def test_a_head_of_another_time_is_no_proof(signed, record):
    """It must lie within the events that the record holds; and a forged one is found."""
    pytest.importorskip("cryptography")
    head = encode(signed[1])
    links = record["chain"]["links"]
    for seq, complaint in ((links[0]["seq"] - 1, "or later"), (links[-1]["seq"] + 1, "or earlier")):
        with pytest.raises(UsageError, match=complaint):
            prove(verify_episode(record), decode(Head, head | {"seq": seq}, "head"))
    forged = decode(Head, head | {"at_ms": head["at_ms"] + 1}, "head")
    (breach,) = prove(verify_episode(record), forged).breaches
    assert (breach.rule, "wasn't signed" in breach.detail) == ("head", True)


def test_other_episodes_stay_out_of_a_record(record):
    """Of their events there is what hashes are made of, and nothing else."""
    shown = [link for link in record["chain"]["links"] if link["rows_json"] is not None]
    assert len(shown) < len(record["chain"]["links"])
    assert all(record["episode"]["id"] in link["rows_json"] for link in shown)
    assert "bees sleep" not in json.dumps(record)
