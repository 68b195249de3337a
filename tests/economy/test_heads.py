"""Heads: signed places among all events, against which a rewritten history is found."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import pytest
from exchanging import H, Table

from heretix.core.errors import ConfigError, RecordError
from heretix.economy.heads import dump_head, find_key, key_file_of, read_head, sign_head
from heretix.store import Store

HASHES = {"root": "0" * 64, "chains": "2" * 64}


def hashes(head):
    return head.root, head.chains


def rules_of(report):
    return {breach.rule for breach in report.breaches}


def test_history_goes_on_after_a_head(table, tmp_path):
    """What is added later doesn't touch what the head says of earlier events."""
    table.start()
    head = table.exchange.sign_head(tmp_path / "key")
    table.bet("ann", H, 10)
    assert table.exchange.verify(against=head).ok
    path = tmp_path / "head.json"
    path.write_text(dump_head(head))
    assert read_head(path) == head


def test_a_chain_that_was_written_anew_is_found(table, tmp_path):
    """Another history verifies by itself, and not against the head of the first."""
    table.start()
    table.bet("ann", H, 10)
    head = table.exchange.sign_head(tmp_path / "key")
    with Store.open(str(tmp_path / "anew.sqlite")) as store:
        anew = Table(store)
        anew.start()
        anew.bet("ann", H, 11)
        anew.bet("bob", H, 10)
        assert anew.exchange.verify().ok
        assert rules_of(anew.exchange.verify(against=head)) == {"head"}


def test_a_history_that_ends_before_the_head_is_found(table, tmp_path):
    """Events that were taken off the end are missing."""
    key = tmp_path / "key"
    head = sign_head(seq=1_000, **HASHES, at_ms=0, key_file=key)
    assert rules_of(table.exchange.verify(against=head)) == {"head"}


def test_heads_are_published_at_round_places(table, tmp_path, monkeypatch):
    """The end, then each round place before it, however far the chain has come since."""
    monkeypatch.setattr("heretix.economy.exchange.HEAD_EVERY", 3)
    key = tmp_path / "key"
    assert find_key({"HERETIX_SIGNING_KEY": str(key)}) is None
    table.start()
    before = table.exchange.heads(key)
    assert replace(before[0], at_ms=0, signature="") == replace(
        table.exchange.sign_head(key), at_ms=0, signature=""
    )
    assert find_key({"HERETIX_SIGNING_KEY": str(key)}) == key
    for _ in range(3):
        table.bet("ann", H, 10)
    after = {head.seq: hashes(head) for head in table.exchange.heads(key, limit=100)}
    end = max(after)
    assert list(after) == list(dict.fromkeys([end, *range(end - end % 3, 0, -3)]))
    assert all(after[head.seq] == hashes(head) for head in before[1:])
    assert len(table.exchange.heads(key, limit=2)) == 2
    assert all(table.exchange.verify(against=head).ok for head in before)


@pytest.mark.parametrize(
    "change",
    [{"seq": 1}, {"root": "1" * 64}, {"chains": "1" * 64}, {"at_ms": 1}, {"key": "ab" * 32}, {"key": "x"},
     {"signature": "00" * 64}, {"signature": ""}],
    ids=str,
)  # fmt: skip
def test_a_head_that_was_changed_is_not_genuine(tmp_path, change):
    """The signature covers every field."""
    head = sign_head(seq=3, **HASHES, at_ms=2, key_file=tmp_path / "key")
    assert head.is_genuine
    assert not replace(head, **change).is_genuine


def test_the_key_is_made_once_and_is_its_owners_alone(tmp_path):
    """The second head has the first one's key; nobody else may read the file."""
    path = key_file_of({"HERETIX_SIGNING_KEY": str(tmp_path / "new" / "key")})
    one, two = (sign_head(seq=n, **HASHES, at_ms=0, key_file=path) for n in (1, 2))
    assert one.key == two.key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["key"]
    path.write_text("short")
    with pytest.raises(ConfigError, match="must hold a key of 64 hex digits, got 5 characters"):
        sign_head(seq=1, **HASHES, at_ms=0, key_file=path)


@pytest.mark.parametrize("text", ["no JSON", "{}", json.dumps({"format": "other"})])
def test_a_file_that_is_no_head_is_refused(tmp_path, text):
    """It is the caller's mistake, and not a breach."""
    path = tmp_path / "head.json"
    path.write_text(text)
    with pytest.raises(RecordError):
        read_head(path)
