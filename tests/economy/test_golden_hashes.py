"""Encoded records keep the hashes that the first build gave them."""

from __future__ import annotations

import pytest
from playing import H, O, make_measurement, make_terms, started

from heretix.core.canonical import encode_json, sha256_hex


def play_to_a_dispute():
    """Play an episode until it has something in every field."""
    play = started(("ann", H, 5_000), ("bob", O, 3_000))
    play.challenge("cat", "evidence", amount=60_000)
    play.freeze()
    play.judge(0)
    play.measure()
    play.measure()
    play.dispute("dan")
    return play


GOLDEN = {
    "terms": "3f33a551fed4bae1ad230ab9083f3c4c9a798c97671d318811fb497378f840a4",
    "episode": "725612f8733b31a4ecece06c349b85202a21f79334cb74e796f80706c024f3d1",
    "positions": "9cf20619cd5622f10b109cdb8a0ca467abc1e6519e3495c988c11f4bdc9e15f6",
    "measurement": "b71d755a3e7e096274badb53edd233c346214103feb45c3de430efcd62bde516",
    "transfers": "12a2060d2f149f320d51d3ad418414d5f06bb4c3751fecec14a7bee073598a39",
    "odd_terms": "e50acf81670db8afb102f6ed9bfb583aca1e602360e62a277b6521672714d177",
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
