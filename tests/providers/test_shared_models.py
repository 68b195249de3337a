"""Sharing: an embedded model is in memory once, for as long as somebody uses it."""

import asyncio

import pytest

from heretix.core.settings import Settings
from heretix.providers.base import Reply, Request
from heretix.providers.catalog import ModelId, Options
from heretix.providers.local import SharedModels
from heretix.providers.mock import MockProvider

ASKED = Request(model="m", system="s", user="u", max_output_tokens=9, seed=1)


class Engine:
    """A provider that says what happens to it, and lets go of its memory when it is told to."""

    max_concurrency = 4

    def __init__(self, number, told, may_close):
        self._number, self._told, self._may_close = number, told, may_close

    async def ask(self, request):
        self._told.append(f"ask {self._number}")
        return Reply(text="{}")

    async def aclose(self):
        self._told.append(f"closing {self._number}")
        await self._may_close.wait()
        self._told.append(f"closed {self._number}")


@pytest.fixture
def shop():
    """Shared models, what happens to them, and the word that lets one go."""
    told, may_close, opened = [], asyncio.Event(), []

    def opener(model, settings, *, options):
        opened.append(model)
        return Engine(len(opened), told, may_close)

    models = SharedModels(opener)
    return lambda: models.open(LOCAL, Settings(), options=Options()), told, may_close


LOCAL = ModelId("local", "m")


async def test_all_users_ask_one_and_the_last_lets_it_go(shop):
    """Closing twice is no second user less."""
    opened, told, may_close = shop
    may_close.set()
    first, second = opened(), opened()
    assert first.max_concurrency == 4
    await first.ask(ASKED)
    await second.ask(ASKED)
    await first.aclose()
    await first.aclose()
    await second.ask(ASKED)
    assert told == ["ask 1"] * 3
    await second.aclose()
    assert told[3:] == ["closing 1", "closed 1"]


async def test_whoever_comes_next_waits_until_the_memory_is_free(shop):
    """There are never two in memory, and one that is being let go of serves nobody."""
    opened, told, may_close = shop
    first = opened()
    closing = asyncio.create_task(first.aclose())
    await asyncio.sleep(0)
    late = opened()
    asking = asyncio.create_task(late.ask(ASKED))
    for _ in range(10):
        await asyncio.sleep(0)
    assert told == ["closing 1"]
    may_close.set()
    await asyncio.gather(closing, asking)
    assert told == ["closing 1", "closed 1", "ask 2"]
    await late.aclose()
    assert told[3:] == ["closing 2", "closed 2"]


async def test_a_user_who_is_interrupted_while_it_closes_leaves_it_closing(shop):
    """Its memory would never be free otherwise."""
    opened, told, may_close = shop
    closing = asyncio.create_task(opened().aclose())
    for _ in range(3):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    may_close.set()
    late = opened()
    await late.ask(ASKED)
    assert told == ["closing 1", "closed 1", "ask 2"]
    await late.aclose()


async def test_a_user_in_between_who_asks_nothing_frees_no_memory(shop):
    """Whoever comes after it still waits for the model that was in use before."""
    opened, told, may_close = shop
    closing = [asyncio.create_task(opened().aclose())]
    await asyncio.sleep(0)
    between = opened()
    closing.append(asyncio.create_task(between.aclose()))
    await asyncio.sleep(0)
    late = opened()
    asking = asyncio.create_task(late.ask(ASKED))
    may_close.set()
    await asyncio.gather(*closing, asking)
    assert told == ["closing 1", "closed 1", "closing 2", "closed 2", "ask 3"]
    await late.aclose()


async def test_what_takes_no_memory_is_opened_for_each():
    """Services and mocks: nothing is gained by sharing them."""
    models, model = SharedModels(), ModelId("mock", "a")
    first, second = (models.open(model, Settings(), options=Options()) for _ in range(2))
    assert isinstance(first, MockProvider)
    assert first is not second
