"""Tampering with an exported episode: every place of it, and all of it at once."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace

import pytest
from exchanging import Table
from playing import make_terms

from heretix.core.canonical import decode, encode
from heretix.core.errors import RecordError, UsageError
from heretix.economy.audit import verify_episode
from heretix.economy.heads import Head, prove
from heretix.economy.ledger import GENESIS, EventChain
from heretix.store import Store


@pytest.fixture(scope="module")
def signed(sqlite_template, tmp_path_factory):
    """A settled episode among moves of others, exported, and the heads of then and of before."""
    folder = tmp_path_factory.mktemp("export")
    with Store.open(str(shutil.copy(sqlite_template, folder / "x.sqlite"))) as store:
        table = Table(store)
        other = table.exchange.draft(make_terms(claim="bees sleep"))
        table.exchange.open(other)
        table.ready()
        table.exchange.begin_challenge(other)
        early = table.exchange.sign_head(folder / "key")
        table.close()
        table.exchange.join("eve")
        head = table.exchange.sign_head(folder / "key")
        record = table.exchange.record(table.id, against=early.seq)
        return json.dumps(record), head, early


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


def test_one_change_to_any_place_is_found(signed, record):
    """Every field is edited and removed; what stands in lists is dropped, doubled and moved."""
    tried, missed = set(), []
    _, _, early = signed
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
            # A record says nothing wrong without a proof; it is missed by who has that head.
            dropped = change is remove and path[:2] == ("chain", "proofs") and len(path) == 3
            if not is_found(changed, early if dropped else None):
                missed.append((change.__name__, path))
    assert len(tried) > 250
    assert missed == []
    assert is_found(record | {"more": 1})


def test_a_record_made_up_as_a_whole_is_found_against_a_head(signed, record):
    """Events and parts that agree with each other prove nothing; a head that was kept does."""
    pytest.importorskip("cryptography")
    _, *heads = signed
    assert not any(is_found(record, head) for head in heads)
    forged = forge(json.loads(json.dumps(record).replace("exec-gate", "exec-mine")))
    assert not is_found(forged)
    assert all(is_found(forged, head) for head in heads)


def forge(record):
    """Make the hashes of a record agree with its events again."""
    hashes = [GENESIS]
    for event in decode(EventChain, record["chain"], "chain").events:
        changed = replace(event, prev_hash=hashes[-1])
        record["chain"]["events"][len(hashes) - 1]["prev_hash"] = hashes[-1]
        hashes.append(changed.hash())
    chain = decode(EventChain, record["chain"] | {"hash": hashes[-1]}, "chain")
    tops = [proof.top_of(record["episode"]["id"], hashes[proof.number]) for proof in chain.proofs]
    for proof, top in zip(record["chain"]["proofs"], tops, strict=True):
        proof["top"] = top
    record["chain"]["hash"] = chain.hash
    return record


def test_events_that_were_cut_off_are_found_by_whoever_has_a_later_head(signed, record):
    """What a head says of the chain's end covers the events up to then, and none can be left out."""
    pytest.importorskip("cryptography")
    _, head, early = signed
    events, proofs = record["chain"]["events"], record["chain"]["proofs"]
    settled = proofs[0]["number"]
    assert settled < proofs[1]["number"] == len(events)
    cut = copy.deepcopy(record)
    del cut["chain"]["events"][settled:]
    cut["chain"]["proofs"][1]["number"] = settled
    audit = verify_episode(forge(cut))
    assert not any(breach.rule == "proof" for breach in audit.breaches)
    assert {one.seq: prove(audit, one).breaches == audit.breaches for one in (early, head)} == {
        early.seq: True,
        head.seq: False,
    }


def test_a_head_of_another_time_is_no_proof(signed, record):
    """The record must have a proof for it; and a forged one is found."""
    pytest.importorskip("cryptography")
    head = encode(signed[1])
    for seq in (head["seq"] - 1, head["seq"] + 1):
        with pytest.raises(UsageError, match=r"has a proof for \(\d+, \d+\), got one of event"):
            prove(verify_episode(record), decode(Head, head | {"seq": seq}, "head"))
    forged = decode(Head, head | {"at_ms": head["at_ms"] + 1}, "head")
    (breach,) = prove(verify_episode(record), forged).breaches
    assert (breach.rule, "wasn't signed" in breach.detail) == ("head", True)


def test_other_episodes_stay_out_of_a_record(record):
    """Of their events there is a hash over each of their chains, and nothing else."""
    assert {event["chain"] for event in record["chain"]["events"]} == {record["episode"]["id"]}
    # Three chains: this episode's, the other's, and that of all else.
    assert [len(proof["path"]) for proof in record["chain"]["proofs"]] == [2, 2]
    assert "bees sleep" not in json.dumps(record)
