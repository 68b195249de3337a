"""Encoded records keep the hashes that the first build gave them."""

from __future__ import annotations

import pytest
from playing import H, O, make_measurement, make_terms, started

from heretix.core.canonical import encode_json, sha256_hex


def play_to_a_dispute():
    """Play an episode until it has something in every field."""
    play = started(("ann", H, 5_000), ("bob", O, 3_000))
    play.challenge("cat", "evidence", amount=5_000)
    play.freeze()
    play.judge(0)
    play.measure()
    play.measure()
    play.dispute("dan")
    return play


GOLDEN = {
    "terms": "26129b500bfd34c8d9262f89994a96aa862f91808ccd1640fb878a0fd4b3acec",
    "episode": "441e6bb139a33b887cd32e06c6d0778964e8e9bcd9f45f796c244504e9bcbd85",
    "positions": "9cf20619cd5622f10b109cdb8a0ca467abc1e6519e3495c988c11f4bdc9e15f6",
    "measurement": "b71d755a3e7e096274badb53edd233c346214103feb45c3de430efcd62bde516",
    "transfers": "369bfa4b79fd1e147fae1435d74e0a402dee7a4bf9d184f8c05f84516303f251",
    "odd_terms": "c95476e5e2e52bab15d34b8aad19b11e0c1dad8fdcdf09ef9377b090c843cdea",
}


@pytest.fixture(scope="module")
def records():
    """Records to encode, by the name of their hash."""
    play = play_to_a_dispute()
    return {
        "terms": play.episode.terms,
        "episode": play.episode,
        "positions": tuple(play.positions),
        "measurement": make_measurement(("a", "b", "c"), shift="0.80", p_up_ppm=None),
        "transfers": play.ledger.transfers,
        "odd_terms": make_terms(claim="tin ‘whiskers’ \x00 \U0001f9ea"),
    }


@pytest.mark.parametrize("name", GOLDEN)
def test_an_encoded_record_keeps_its_hash(records, name):
    """Stores, exports and the terms' hash depend on every byte of the encoding."""
    assert sha256_hex(encode_json(records[name]).encode()) == GOLDEN[name]


def test_the_hash_of_the_terms_is_kept():
    """It stands in the chain of transfers, in every id of the opening group."""
    assert make_terms().hash() == GOLDEN["terms"]
