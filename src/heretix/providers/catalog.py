"""Model ids, the home of each family of models, and what a model accepts.

A model id is `provider:model`, or a bare name whose family has a home (`gpt-5` is OpenAI's).
Families are matched by prefix, so that a model released tomorrow is known today.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from heretix.core.errors import ConfigError, MissingKeyError, ModelError, PluginError
from heretix.core.plugins import Registry, import_target
from heretix.providers.base import Endpoint, Opening
from heretix.readouts import FROM_LOGPROBS, SAMPLED, Readout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from heretix.core.settings import Settings
    from heretix.providers.base import Provider
    from heretix.providers.batch import BatchProvider


def _in_process(adapter: str, **more: Any) -> Endpoint:
    adapter = f"heretix.providers.{adapter}.open"
    return Endpoint(open=adapter, in_process=True, no_effort=("",), **more)


def _compatible(base_url: str | None, key_variable: str | None, **more: Any) -> Endpoint:
    adapter = "heretix.providers.compatible:CompatibleProvider.open"
    more = {"readouts": FROM_LOGPROBS, **more}
    return Endpoint(open=adapter, base_url=base_url, key_variable=key_variable, **more)


_BUILTIN: Final[Mapping[str, Endpoint]] = {
    "mock": _in_process("mock:MockProvider"),
    "sim": _in_process("sim:SimProvider", readouts=FROM_LOGPROBS),
    "local": _in_process("local:LocalProvider", readouts=FROM_LOGPROBS),
    "openai": Endpoint(
        open="heretix.providers.openai:OpenAIProvider.open",
        open_batch="heretix.providers.openai:OpenAIBatchProvider.open",
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        needs_key=True,
        no_temperature=("gpt-5", "gpt-6", "o1", "o3", "o4"),
        no_effort=("gpt-3", "gpt-4", "chatgpt-"),
    ),
    "anthropic": Endpoint(
        open="heretix.providers.anthropic:AnthropicProvider.open",
        open_batch="heretix.providers.anthropic:AnthropicBatchProvider.open",
        base_url="https://api.anthropic.com",
        key_variable="ANTHROPIC_API_KEY",
        needs_key=True,
        no_temperature=("",),
    ),
    "gemini": Endpoint(
        open="heretix.providers.gemini:GeminiProvider.open",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        key_variable="GEMINI_API_KEY",
        needs_key=True,
        readouts=FROM_LOGPROBS,
    ),
    "openai-compatible": _compatible(None, "HERETIX_COMPATIBLE_API_KEY"),
    "openrouter": _compatible("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", needs_key=True),
    "xai": _compatible("https://api.x.ai/v1", "XAI_API_KEY", needs_key=True),
    "deepseek": _compatible("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", needs_key=True),
    "ollama": _compatible("http://localhost:11434/v1", None),
    "vllm": _compatible("http://localhost:8000/v1", "VLLM_API_KEY"),
    "llamacpp": _compatible("http://localhost:8080/v1", "LLAMA_API_KEY"),
}


def _as_endpoint(found: object) -> Endpoint:
    if isinstance(found, Endpoint):
        return found
    raise TypeError(f"a provider must be a heretix.providers.base.Endpoint, got {found!r}")


PROVIDERS: Final = Registry("providers", _BUILTIN, _as_endpoint)
"""Providers by the name that stands before a model's; plug-ins add to them."""

_FAMILIES: Final[tuple[tuple[str, str], ...]] = (
    ("gpt-", "openai"),
    ("chatgpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("claude-", "anthropic"),
    ("gemini-", "gemini"),
    ("grok-", "xai"),
    ("deepseek-", "deepseek"),
)

MADE_UP_BY: Final = frozenset({"mock", "sim"})
"""Providers that ask no model: they make their answers up."""
DEMONSTRATION_MODELS: Final = frozenset({"local:smollm2-135m"})
"""Models that show that the machine works and know nothing; labelled wherever they appear."""

_DEFAULT_MODELS: Final = (
    ("OPENAI_API_KEY", "gpt-5"),
    ("ANTHROPIC_API_KEY", "claude-sonnet-5-5"),
    ("GEMINI_API_KEY", "gemini-2.5-pro"),
)
_DEFAULT_LOCAL_MODEL: Final = "local:smollm2-135m"


@dataclass(frozen=True, slots=True)
class ModelId:
    """A model and the provider that is asked for it."""

    provider: str
    name: str
    file: str | None = field(default=None, compare=False, repr=False)
    """Path of a local model's file: no part of what the model is."""

    @property
    def identity(self) -> str:
        """The model as it stands in identities: the provider in front unless it is the home."""
        return self.name if _home(self.name) == self.provider else f"{self.provider}:{self.name}"

    @property
    def endpoint(self) -> Endpoint:
        """The provider's endpoint; a `ModelError` where its plug-in isn't installed."""
        if not PROVIDERS.offers(self.provider):
            raise ModelError(
                f"`{self}` is answered by the plug-in provider `{self.provider}`, which isn't "
                "installed here"
            )
        return PROVIDERS.load(self.provider)

    @property
    def is_demonstration(self) -> bool:
        """The model's numbers carry a label: they aren't beliefs worth quoting."""
        return self.identity in DEMONSTRATION_MODELS

    @property
    def is_made_up(self) -> bool:
        """No model is asked: the answers are made up, here."""
        return self.provider in MADE_UP_BY

    def mocked(self) -> ModelId:
        """The mock that stands in for this model; a mock is its own stand-in."""
        return self if self.provider == "mock" else ModelId("mock", self.identity)

    def __str__(self) -> str:
        return self.identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options sent besides the prompt that change answers. None: left to the provider."""

    temperature: float | None = None
    reasoning_effort: str | None = None
    base_url: str | None = None

    def as_dict(self) -> dict[str, float | str]:
        """The options that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def parse_model(text: str) -> ModelId:
    """Read `provider:model` or a bare known name."""
    text = text.strip()
    if "|" in text or any(c.isspace() for c in text) or not text:
        raise ModelError(f"`model` must be one word without '|', got {text!r}")
    provider, colon, name = text.partition(":")
    if colon and PROVIDERS.offers(provider):
        if not name:
            raise ModelError(f"`model` {text!r} names no model; write {provider}:MODEL")
        return ModelId(provider, name)
    home = _home(text)
    if home is not None:
        return ModelId(home, text)
    known = ", ".join(sorted(PROVIDERS.names()))
    if colon:
        near = [f"{n}:{name}" for n in get_close_matches(provider, PROVIDERS.names(), n=1)]
    else:
        near = _nearest_names(text)
    hint = f" (did you mean `{near[0]}`?)" if near else ""
    raise ModelError(
        f"`model` {text!r} has no known provider{hint}; write provider:model with one of: {known}"
    )


def default_model(settings: Settings) -> ModelId:
    """The model to measure when nobody named one: the first with a key, else the embedded one."""
    named = (name for variable, name in _DEFAULT_MODELS if settings.env.get(variable))
    return parse_model(next(named, _DEFAULT_LOCAL_MODEL))


def endpoints() -> dict[str, Endpoint]:
    """Every provider that can be used, by name; a plug-in that is broken is left out."""
    found = {}
    for name in PROVIDERS.names():
        with contextlib.suppress(PluginError):
            found[name] = PROVIDERS.load(name)
    return found


def sent_options(model: ModelId, options: Options) -> Options:
    """The options that `model` accepts; a parameter that it rejects is not sent.

    A record of a provider that isn't installed here holds what was sent: that stays as it is.
    """
    if not PROVIDERS.offers(model.provider):
        return options
    endpoint = model.endpoint
    if model.name.startswith(endpoint.no_temperature):
        options = replace(options, temperature=None)
    if model.name.startswith(endpoint.no_effort):
        options = replace(options, reasoning_effort=None)
    if endpoint.in_process or options.base_url == endpoint.base_url:
        options = replace(options, base_url=None)
    return options


def require_key(model: ModelId, settings: Settings) -> str | None:
    """The provider's key, or an error that says which variable to set."""
    endpoint = model.endpoint
    key = settings.env.get(endpoint.key_variable) if endpoint.key_variable else None
    if endpoint.needs_key and not key:
        raise MissingKeyError(
            f"`{model}` needs a key: set {endpoint.key_variable}, or use --mock, "
            f"or a model that needs none (--model {_DEFAULT_LOCAL_MODEL})"
        )
    return key or None


def require_readout(models: Iterable[ModelId], readout: Readout) -> None:
    """Refuse a model whose provider can't answer a read-out."""
    for model in models:
        if readout != SAMPLED and readout not in model.endpoint.readouts:
            able = [name for name, endpoint in endpoints().items() if readout in endpoint.readouts]
            raise ConfigError(
                f"`readout` {readout} needs log-probabilities, which `{model}` doesn't give; "
                f"take a model of {', '.join(able)}, or leave `readout` out"
            )


def require_keys(models: Iterable[ModelId], settings: Settings) -> None:
    """Refuse models whose keys are missing, naming all of them at once."""
    missing: dict[str, MissingKeyError] = {}
    for model in models:
        try:
            require_key(model, settings)
        except MissingKeyError as exc:
            missing.setdefault(str(model.endpoint.key_variable), exc)
    if len(missing) == 1:
        raise next(iter(missing.values()))
    if missing:
        raise MissingKeyError(
            f"`models` need keys that are missing: set {', '.join(missing)}; or use --mock, "
            f"or a model that needs none (--model {_DEFAULT_LOCAL_MODEL})"
        )


def _nearest_names(text: str) -> list[str]:
    """Find the model that is called nearly so: those with a price, and the embedded one."""
    from heretix.providers.prices import priced_models

    ids = (*priced_models(), parse_model(_DEFAULT_LOCAL_MODEL))
    written = {model.name: model.name if _home(model.name) else model.identity for model in ids}
    return [written[name] for name in get_close_matches(text.lower(), written, n=1)]


def _home(name: str) -> str | None:
    return next((home for prefix, home in _FAMILIES if name.startswith(prefix)), None)


# From a model id to the provider that answers for it. Adapters are imported when one is opened:
# `heretix --help` needs none of them.

_P = TypeVar("_P")
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
    model: ModelId, settings: Settings, *, options: Options = _NO_OPTIONS, timeout_s: float = 120.0
) -> Provider:
    """Make the provider of `model` ready; connections are made by its first call."""
    opening = Opening(model=model, settings=settings, options=options, timeout_s=timeout_s)
    return _resolved(model.endpoint.open)(opening)


def open_batch_provider(
    model: ModelId, settings: Settings, *, options: Options = _NO_OPTIONS, timeout_s: float = 120.0
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


def _resolved(opener: str | Callable[[Opening], _P]) -> Callable[[Opening], _P]:
    return import_target(opener) if isinstance(opener, str) else opener
