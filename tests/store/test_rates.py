"""Rates that processes share: turns never overlap, whoever takes them, and a pause is everybody's."""

import pytest

from heretix.core.settings import Settings
from heretix.measurement.pacing import name_rate
from heretix.providers.catalog import Options, parse_model
from heretix.store import Store
from heretix.store.rates import pause_rate, select_rate, take_turns


@pytest.fixture
def store(store_url):
    """A store on each database."""
    with Store.open(store_url) as store:
        yield store


def test_turns_of_two_callers_follow_each_other(store):
    """Whoever comes second begins where the first one's turns end."""
    first = store.write(take_turns, "m", requests_s=1000.0)
    second = store.write(take_turns, "m", requests_s=1000.0)
    assert first.requests_in_s <= 0.0
    assert 900.0 < second.requests_in_s <= 1000.0
    assert store.write(take_turns, "other", requests_s=1.0).requests_in_s <= 0.0


def test_tokens_have_a_time_of_their_own_and_come_back(store):
    """What a call didn't take is given back; requests aren't held up by tokens."""
    store.write(take_turns, "m", tokens_s=1000.0)
    back = store.write(take_turns, "m", tokens_s=-600.0)
    assert back.requests_in_s <= 0.0
    assert 300.0 < store.write(take_turns, "m", tokens_s=1.0).tokens_in_s <= 400.0


def test_a_pause_holds_up_everybody_and_is_never_shortened(store):
    """A shorter pause that is told later changes nothing; limits that were told are kept."""
    store.write(pause_rate, "m", 500.0)
    store.write(pause_rate, "m", 5.0)
    turns = store.write(take_turns, "m", requests_s=1.0, rpm=600)
    assert 400.0 < turns.requests_in_s <= 500.0
    found = store.read(select_rate, "m")
    assert (found.rpm, found.tpm) == (600, None)
    assert 400.0 < found.paused_s <= 500.0


def test_a_rate_is_named_by_model_address_and_hashed_key():
    """Another key or address has another rate, and no name tells the key."""
    model = parse_model("gpt-5")
    named = {
        name_rate(model, Settings(env={"OPENAI_API_KEY": key}), Options(base_url=url))
        for key in ("sk-one", "sk-two")
        for url in (None, "http://127.0.0.1:1/v1")
    }
    assert len(named) == 4
    assert not any("sk-" in name for name in named)
    assert name_rate(parse_model("mock:m"), Settings(), Options()) is None
