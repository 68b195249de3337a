"""Model ids, the home of each family of models, what a model accepts, and what its tokens cost.

A model id is `provider:model`, or a bare name whose family has a home (`gpt-5` is OpenAI's).
Families are matched by prefix, so that a model released tomorrow is known today.

Prices stand in a dated table, with the user's own over it. A price that isn't in it is unknown
(None), never zero. Only what runs on this machine, the mock and the embedded models, costs nothing.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from decimal import ROUND_CEILING, Decimal
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from heretix.core.errors import (
    ConfigError,
    MissingKeyError,
    ModelError,
    PluginError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    UnreachedError,
)
from heretix.core.plugins import Registry, import_target
from heretix.core.validation import find_faults
from heretix.core.yaml_lines import YamlFault, hint, list_names, load
from heretix.providers.base import Endpoint, Opening
from heretix.readouts import FROM_LOGPROBS, SAMPLED, Readout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from heretix.core.settings import Settings
    from heretix.providers.base import Provider, Reply, Request
    from heretix.providers.batch import BatchProvider


def _make_local_endpoint(adapter: str, **more: Any) -> Endpoint:
    adapter = f"heretix.providers.{adapter}.open"
    return Endpoint(open=adapter, in_process=True, no_effort=("",), **more)


def _make_compatible_endpoint(
    base_url: str | None, key_variable: str | None, **more: Any
) -> Endpoint:
    adapter = "heretix.providers.compatible:CompatibleProvider.open"
    more = {"readouts": FROM_LOGPROBS, **more}
    return Endpoint(open=adapter, base_url=base_url, key_variable=key_variable, **more)


_BUILTIN: Final[Mapping[str, Endpoint]] = {
    "mock": _make_local_endpoint("mock:MockProvider"),
    "sim": _make_local_endpoint("sim:SimProvider", readouts=FROM_LOGPROBS),
    "local": _make_local_endpoint("local:LocalProvider", readouts=FROM_LOGPROBS),
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
    "openai-compatible": _make_compatible_endpoint(None, "HERETIX_COMPATIBLE_API_KEY"),
    "openrouter": _make_compatible_endpoint(
        "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", needs_key=True
    ),
    "xai": _make_compatible_endpoint("https://api.x.ai/v1", "XAI_API_KEY", needs_key=True),
    "deepseek": _make_compatible_endpoint(
        "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", needs_key=True
    ),
    "ollama": _make_compatible_endpoint("http://localhost:11434/v1", None),
    "vllm": _make_compatible_endpoint("http://localhost:8000/v1", "VLLM_API_KEY"),
    # Addresses and keys are inspect_ai's own affair.
    "inspect": Endpoint(open="heretix.providers.inspect_ai:open_model", base_url="inspect:"),
    "llamacpp": _make_compatible_endpoint("http://localhost:8080/v1", "LLAMA_API_KEY"),
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
        return (
            self.name if _find_home(self.name) == self.provider else f"{self.provider}:{self.name}"
        )

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

    def make_mock(self) -> ModelId:
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
    home = _find_home(text)
    if home is not None:
        return ModelId(home, text)
    known = ", ".join(sorted(PROVIDERS.names()))
    if colon:
        near = [f"{n}:{name}" for n in get_close_matches(provider, PROVIDERS.names(), n=1)]
    else:
        near = _find_nearest_names(text)
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


def select_sent_options(model: ModelId, options: Options) -> Options:
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


def _find_nearest_names(text: str) -> list[str]:
    """Find the model that is called nearly so: those with a price, and the embedded one."""
    ids = (*list_priced_models(), parse_model(_DEFAULT_LOCAL_MODEL))
    written = {
        model.name: model.name if _find_home(model.name) else model.identity for model in ids
    }
    return [written[name] for name in get_close_matches(text.lower(), written, n=1)]


def _find_home(name: str) -> str | None:
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
    return _resolve(model.endpoint.open)(opening)


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
    return _resolve(opener)(opening)


def _resolve(opener: str | Callable[[Opening], _P]) -> Callable[[Opening], _P]:
    return import_target(opener) if isinstance(opener, str) else opener


# Prices: exact sums in micro-dollars.

# The day a snapshot was made: -2025-08-07 or -20251001. Anything else makes another model.
_SNAPSHOT: Final = re.compile(r"-20\d\d(-?)[01]\d\1[0-3]\d$")
_OVERHEAD_TOKENS: Final = 512
"""Room for what a provider puts around a prompt: roles, separators, the answer's schema."""


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one model. Dollars per million tokens are also micro-dollars per token."""

    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal
    as_of: date | None
    """The day the price was seen; None for what is free by nature."""
    batch_discount: Decimal | None = None
    """Fraction taken off for batch jobs; None where unknown."""

    @property
    def is_free(self) -> bool:
        """Tell whether nothing is ever charged."""
        return not (self.input_usd_per_mtok or self.output_usd_per_mtok)

    def discount_for_batch(self) -> Price | None:
        """The price of the same call in a batch job; None where that is unknown."""
        if self.batch_discount is None:
            return None
        kept = 1 - self.batch_discount
        return replace(
            self,
            input_usd_per_mtok=self.input_usd_per_mtok * kept,
            output_usd_per_mtok=self.output_usd_per_mtok * kept,
            batch_discount=None,
        )


FREE: Final = Price(Decimal(0), Decimal(0), as_of=None)


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by provider and model name."""

    prices: Mapping[str, Mapping[str, Price]]

    def find(self, model: ModelId) -> Price | None:
        """The price of `model` by its exact name, else of the model it is a dated snapshot of.

        `gpt-5` prices `gpt-5-2025-08-07`, but neither `gpt-5.5` nor `gpt-5-mini`. None: unknown.
        """
        if model.endpoint.in_process:
            return FREE
        known = self.prices.get(model.provider, {})
        return known.get(model.name) or known.get(_SNAPSHOT.sub("", model.name))


def cost_micros(price: Price, tokens_in: int, tokens_out: int) -> int:
    """Cost in whole micro-dollars, rounded up, so that a sum is never understated.

    Round once: give the tokens of a whole run, rather than adding up its samples.
    """
    exact = price.input_usd_per_mtok * tokens_in + price.output_usd_per_mtok * tokens_out
    return int(exact.to_integral_value(rounding=ROUND_CEILING))


class _Row(BaseModel):
    """Price of one model in a file."""

    model_config = ConfigDict(extra="forbid")

    input: Annotated[Decimal, Field(ge=0)]
    output: Annotated[Decimal, Field(ge=0)]
    as_of: date


class _Block(BaseModel):
    """Prices of one provider in a file."""

    model_config = ConfigDict(extra="forbid")

    batch_discount: Annotated[Decimal, Field(ge=0, le=1)] | None = None
    models: dict[str, _Row] = {}


_FILE: Final = TypeAdapter(dict[str, _Block])
_KEYS: Final = (*_Block.model_fields, *_Row.model_fields)


def load_prices(settings: Settings) -> PriceTable:
    """Read the packaged table, with the file named by HERETIX_PRICES laid over it."""
    blocks = dict(_load_packaged())
    path = settings.prices_file
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as exc:
            raise ConfigError(f"`HERETIX_PRICES` {path} can't be read: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"`HERETIX_PRICES` {path} isn't UTF-8 text") from exc
        for provider, block in _read_prices(text, str(path)).items():
            under = blocks.get(provider, _Block())
            discount = block.batch_discount
            blocks[provider] = _Block(
                batch_discount=under.batch_discount if discount is None else discount,
                models=under.models | block.models,
            )
    prices = {
        provider: {
            name: Price(row.input, row.output, row.as_of, block.batch_discount)
            for name, row in block.models.items()
        }
        for provider, block in blocks.items()
    }
    return PriceTable(prices)


def list_priced_models() -> tuple[ModelId, ...]:
    """List the models of the packaged table."""
    return tuple(
        ModelId(provider, name)
        for provider, block in _load_packaged().items()
        for name in block.models
    )


@cache
def _load_packaged() -> Mapping[str, _Block]:
    text = (resources.files(__package__) / "prices.yaml").read_text(encoding="utf-8")
    return _read_prices(text, "prices.yaml")


def _read_prices(text: str, source: str) -> dict[str, _Block]:
    paid = tuple(name for name, endpoint in endpoints().items() if not endpoint.in_process)
    try:
        document = load(text)
        values = {} if document.values is None else document.values
        if not isinstance(values, dict):
            raise YamlFault(1, "a mapping of each provider to its value must stand here")
        for name in values:
            if name not in paid:
                raise YamlFault(
                    document.line_of((name,)),
                    f"unknown provider `{name}`{hint(name, paid)}; known: {list_names(paid)}",
                )
        return _FILE.validate_python(values)
    except YamlFault as fault:
        raise ConfigError(fault.at(source)) from fault
    except ValidationError as exc:
        faults = find_faults(exc, document, known=_KEYS)
        raise ConfigError("\n".join(fault.at(source) for fault in faults)) from exc


# What the calls of a process cost: the most that each can is held, what it did is counted.


@dataclass(slots=True)
class Hold:
    """The most that one call can cost, and what became of it."""

    model: ModelId
    bound_micros: int
    sent: bool = False
    reply: Reply | None = None
    failure: BaseException | None = None

    @property
    def presumed(self) -> bool:
        """Tell whether it may have been billed, and nobody told how much: the most counts."""
        if self.reply is not None:
            untold = self.reply.tokens_in is None or self.reply.tokens_out is None
            return untold and bool(self.bound_micros)
        return self.sent and self.failure is not None and may_be_billed(self.failure)


_TURNED_AWAY: Final = frozenset({503, 529})
"""Overloaded: these, unlike other errors of a server, say that nothing was begun."""


def may_be_billed(exc: BaseException) -> bool:
    """Tell a call that a provider may have answered, and billed, though no answer came.

    A gateway that gives up (502, 504) doesn't know what became of the call, and a body that can't
    be read may have held the answer. What was refused or never sent is free.
    """
    if isinstance(exc, UnreachedError):
        return False
    status = exc.status if isinstance(exc, ProviderError) else None
    if status is None:
        return not isinstance(exc, RateLimitedError | RejectedError)
    return status < 300 or status == 408 or (status >= 500 and status not in _TURNED_AWAY)


class Spending:
    """The running total of all lanes, from the providers' own token counts.

    An unknown price makes the total unknown, not zero; a budget then can't be kept and is refused
    at the door.
    """

    def __init__(
        self, prices: PriceTable, models: tuple[ModelId, ...], *, budget_usd: float | None = None
    ) -> None:
        self._prices = {model: prices.find(model) for model in models}
        self.budget_usd = budget_usd
        self._tokens = dict.fromkeys(models, (0, 0))
        """Read and written, per model: a sum of many small costs is rounded once, not each."""
        self._unknown = False
        self.calls = 0
        """Calls that were made, those that failed or were made again included."""
        self.cut_off = 0
        """Calls of which nobody knows whether they were billed."""
        self.presumed_micros = 0
        """The most that those can have cost."""
        self._here: tuple[dict[ModelId, tuple[int, int]], bool, int, int, int] | None = None
        """Account of this machine, once others tell of theirs."""
        if budget_usd is not None:
            self.require_prices("budget_usd")

    def require_prices(self, name: str) -> None:
        """Refuse a budget that can't be kept."""
        unpriced = [model for model, price in self._prices.items() if price is None]
        if unpriced:
            raise ConfigError(
                f"`{name}` can't be kept: the price of {unpriced[0]} isn't known; "
                "put it into a table of yours and name that with HERETIX_PRICES"
            )

    def price_of(self, model: ModelId) -> Price | None:
        """The price of a model; None where it isn't known."""
        return self._prices[model]

    def bound_micros(self, model: ModelId, request: Request) -> int:
        """The most that a call can cost. No tokeniser makes more tokens than there are bytes."""
        price = self._prices[model]
        if price is None or price.is_free:
            return 0
        sent = len(request.system.encode()) + len(request.user.encode())
        sent += len(str(request.answer_schema or "").encode())
        return cost_micros(price, sent + _OVERHEAD_TOKENS, request.max_output_tokens)

    def charge(self, model: ModelId, tokens_in: int | None, tokens_out: int | None) -> Decimal:
        """Add a call that was answered; what it cost, in millionths of a dollar."""
        price = self._prices[model]
        read, written = self._tokens[model]
        self._tokens[model] = (read + (tokens_in or 0), written + (tokens_out or 0))
        told = tokens_in is not None and tokens_out is not None
        if price is None or not (told or price.is_free):
            self._unknown = True
            return Decimal(0)
        return price.input_usd_per_mtok * (tokens_in or 0) + price.output_usd_per_mtok * (
            tokens_out or 0
        )

    def hold(self, model: ModelId, request: Request) -> Hold:
        """Make the hold of a call that is about to be made."""
        return Hold(model, self.bound_micros(model, request))

    def settle(self, hold: Hold) -> Decimal:
        """Count what a call did cost; what that was, in millionths of a dollar."""
        if hold.presumed:
            self.cut_off += 1
            self.presumed_micros += hold.bound_micros
        if hold.reply is None:
            return Decimal(0)
        return self.charge(hold.model, hold.reply.tokens_in, hold.reply.tokens_out)

    def take_remote_counts(
        self, tokens: Mapping[ModelId, tuple[int, int]], *, calls: int, untold: bool, **cut_off: int
    ) -> None:
        """Take over what other machines told of their calls, all in all."""
        if self._here is None:
            own = dict(self._tokens), self._unknown
            self._here = *own, self.calls, self.cut_off, self.presumed_micros
        here, unknown, made, lost, presumed = self._here
        for model, (read, written) in tokens.items():
            self._tokens[model] = here[model][0] + read, here[model][1] + written
        self._unknown, self.calls = unknown or untold, made + calls
        self.cut_off = lost + cut_off["cut_off"]
        self.presumed_micros = presumed + cut_off["presumed_micros"]

    @property
    def totals(self) -> dict[str, int]:
        """Calls made, and tokens read and written as far as the providers told."""
        read, written = zip(*self._tokens.values(), strict=True)
        return {"calls": self.calls, "tokens_in": sum(read), "tokens_out": sum(written)}

    @property
    def spent_usd(self) -> float | None:
        """Dollars spent so far on answers; None once a call's cost couldn't be told."""
        if self._unknown:
            return None
        priced = [(model, price) for model, price in self._prices.items() if price is not None]
        return sum(cost_micros(price, *self._tokens[model]) for model, price in priced) / 1e6
