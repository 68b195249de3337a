"""From a model id to the provider that answers for it.

Adapters are imported when one is opened: `heretix --help` needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from heretix.core.errors import ConfigError
from heretix.core.plugins import import_target
from heretix.providers.base import Opening
from heretix.providers.catalog import ModelId, Options, parse_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.core.settings import Settings
    from heretix.providers.base import Provider
    from heretix.providers.batch.base import BatchProvider

P = TypeVar("P")
_NO_OPTIONS: Final = Options()


class Opener(Protocol):
    """`open_provider`, or something that shares the providers that it opened."""

    def __call__(self, model: ModelId, settings: Settings, *, options: Options) -> Provider:
        """The provider of `model`; the caller closes it."""
        ...


def resolve_model(text: str, settings: Settings) -> ModelId:
    """Read a model id; a local file is named by what it holds, not by where it lies."""
    model = parse_model(text)
    if model.is_made_up:
        # How they answer stands in their name: what can't be is refused before it is planned.
        open_provider(model, settings)
    if model.provider != "local":
        return model
    from heretix.providers.gguf import resolve

    found = resolve(model.name, settings)
    return ModelId("local", found.name, file=str(found.path))


def open_provider(
    model: ModelId,
    settings: Settings,
    *,
    options: Options = _NO_OPTIONS,
    timeout_s: float = 120.0,
) -> Provider:
    """Make the provider of `model` ready; connections are made by its first call."""
    opening = Opening(model=model, settings=settings, options=options, timeout_s=timeout_s)
    return _resolved(model.endpoint.open)(opening)


def open_batch_provider(
    model: ModelId,
    settings: Settings,
    *,
    options: Options = _NO_OPTIONS,
    timeout_s: float = 120.0,
) -> BatchProvider:
    """Make the provider of `model` ready to take batches; few of them do."""
    opener = model.endpoint.open_batch
    if opener is None:
        raise ConfigError(
            f"`--batch` works with models of OpenAI and Anthropic, got {model}; "
            "leave it out to ask this model now"
        )
    opening = Opening(model=model, settings=settings, options=options, timeout_s=timeout_s)
    return _resolved(opener)(opening)


def _resolved(opener: str | Callable[[Opening], P]) -> Callable[[Opening], P]:
    return import_target(opener) if isinstance(opener, str) else opener
