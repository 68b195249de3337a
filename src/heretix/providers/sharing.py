"""An embedded model is loaded once, however many measurements of a process ask it at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.providers.registry import Opener, open_provider

if TYPE_CHECKING:
    from heretix.providers.base import Provider, Reply, Request
    from heretix.providers.catalog import ModelId, Options
    from heretix.settings import Settings

__all__ = ["SharedModels"]


class SharedModels:
    """Opens providers as `open_provider` does, an embedded model once for all who want it.

    It is loaded by the first call and let go of by the last user. Who else asks changes no answer:
    an embedded model's answer follows from the request alone. Of one event loop.
    """

    def __init__(self, opener: Opener = open_provider) -> None:
        self._opener = opener
        self._held: dict[str, _Held] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}

    def open(self, model: ModelId, settings: Settings, *, options: Options) -> Provider:
        """The provider of `model`; the caller closes it, and others go on with what they share."""
        opened = self._opener(model, settings, options=options)
        if model.endpoint.kind != "local":
            return opened
        name = model.identity
        # A provider that was only opened holds nothing yet: one too many is just forgotten.
        held = self._held.setdefault(name, _Held(opened, after=self._closing.get(name)))
        held.users += 1
        return _Share(self, name, held)

    async def give_back(self, name: str, held: _Held) -> None:
        """One user less."""
        held.users -= 1
        if held.users:
            return
        del self._held[name]
        closing = self._closing[name] = asyncio.create_task(held.let_go())
        closing.add_done_callback(lambda done: self._closed(name, done))
        # To its end: whoever opens the model next waits until this one's memory is free.
        await asyncio.shield(closing)

    def _closed(self, name: str, task: asyncio.Task[None]) -> None:
        if self._closing.get(name) is task:
            del self._closing[name]


@dataclass(eq=False, slots=True)
class _Held:
    """A provider that is open."""

    provider: Provider
    after: asyncio.Task[None] | None
    """How the one before it is let go of."""
    users: int = 0

    async def ask(self, request: Request) -> Reply:
        """Answer one request, once the memory of the one before is free."""
        await self._wait()
        return await self.provider.ask(request)

    async def let_go(self) -> None:
        """Close it; its memory is free once that of the one before is, too."""
        await self._wait()
        await self.provider.aclose()

    async def _wait(self) -> None:
        if self.after is not None:
            await asyncio.wait([self.after])


class _Share:
    """One user's part of a provider."""

    def __init__(self, models: SharedModels, name: str, held: _Held) -> None:
        self._models = models
        self._name = name
        self._held = held
        self._closed = False

    @property
    def max_concurrency(self) -> int:
        """As if there were nobody else: calls of several users wait for each other."""
        return self._held.provider.max_concurrency

    async def ask(self, request: Request) -> Reply:
        """Answer one request, once the model's memory is free."""
        return await self._held.ask(request)

    async def aclose(self) -> None:
        """Let go of it. A second time is no harm."""
        if not self._closed:
            self._closed = True
            await self._models.give_back(self._name, self._held)
