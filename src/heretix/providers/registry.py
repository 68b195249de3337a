"""From a model id to the provider that answers for it.

Adapters are imported when one is opened: `heretix --help` needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from heretix.core.errors import ConfigError
from heretix.providers.catalog import ModelId, Options, parse_model, require_key

if TYPE_CHECKING:
    from heretix.core.settings import Settings
    from heretix.providers.base import Provider
    from heretix.providers.batch.base import BatchProvider
    from heretix.providers.http import Target

__all__ = ["Opener", "open_batch_provider", "open_provider", "resolve_model"]

_NO_OPTIONS: Final = Options()


class Opener(Protocol):
    """What makes a provider ready: `open_provider`, or what shares those that it opened."""

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
    match model.endpoint.kind:
        case "mock":
            from heretix.providers.mock import MockProvider

            return MockProvider(model.name)
        case "sim":
            from heretix.providers.sim import SimProvider

            return SimProvider(model.name)
        case "local":
            from heretix.providers.local import LocalProvider

            return LocalProvider(model.file or model.name, settings=settings)
        case _:
            return _open_http(model, _target(model, settings, options, timeout_s))


def open_batch_provider(
    model: ModelId,
    settings: Settings,
    *,
    options: Options = _NO_OPTIONS,
    timeout_s: float = 120.0,
) -> BatchProvider:
    """Make the provider of `model` ready to take batches; few of them do."""
    match model.endpoint.kind:
        case "openai":
            from heretix.providers.batch.openai import OpenAIBatchProvider

            return OpenAIBatchProvider(_target(model, settings, options, timeout_s))
        case "anthropic":
            from heretix.providers.batch.anthropic import AnthropicBatchProvider

            return AnthropicBatchProvider(_target(model, settings, options, timeout_s))
        case _:
            raise ConfigError(
                f"`--batch` works with models of OpenAI and Anthropic, got {model}; "
                "leave it out to ask this model now"
            )


def _open_http(model: ModelId, target: Target) -> Provider:
    match model.endpoint.kind:
        case "openai":
            from heretix.providers.openai import OpenAIProvider

            return OpenAIProvider(target)
        case "anthropic":
            from heretix.providers.anthropic import AnthropicProvider

            return AnthropicProvider(target)
        case "gemini":
            from heretix.providers.gemini import GeminiProvider

            return GeminiProvider(target)
        case "openai-compatible":
            from heretix.providers.compatible import CompatibleProvider, dialect_of

            return CompatibleProvider(target, dialect_of(model.provider))
        case kind:
            raise AssertionError(f"the catalog names an adapter that doesn't exist: {kind}")


def _target(model: ModelId, settings: Settings, options: Options, timeout_s: float) -> Target:
    from heretix.providers.http import Target

    key = require_key(model, settings)
    base_url = options.base_url or model.endpoint.base_url
    if base_url is None:
        raise ConfigError(
            f"`{model}` needs the address of its server: set `base_url` in the config, "
            "--base-url or HERETIX_BASE_URL, e.g. http://localhost:8000/v1"
        )
    return Target(
        provider=model.provider,
        base_url=base_url,
        # A line break at the end is what copying a key often adds.
        key=key.strip() if key else None,
        key_variable=model.endpoint.key_variable,
        timeout_s=timeout_s,
    )
