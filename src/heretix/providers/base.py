"""The provider protocol: something that answers one request, and how it is reached.

An adapter turns a `Request` into one call and its outcome into a `Reply`, or raises one of the
errors under `ProviderError`. It doesn't retry, cache, judge or count: the runner does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from heretix.core.errors import ConfigError
from heretix.core.lenses import RPL
from heretix.readouts import SAMPLED, Readout
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heretix.core.settings import Settings
    from heretix.providers.batch import BatchProvider
    from heretix.providers.catalog import ModelId, Options
    from heretix.providers.http import Target

ANSWER_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "prob_true": {
            "type": "number",
            "description": "Probability, from 0 to 1, that the claim is true.",
        }
    },
    "required": ["prob_true"],
    "additionalProperties": False,
}
"""The strict schema of an answer. Bounds are left out: some providers reject them, none enforces
them reliably, and every answer is checked anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to one model."""

    model: str
    """The model's name as its provider knows it, without the provider's prefix."""
    system: str
    user: str
    max_output_tokens: int
    temperature: float | None = None
    reasoning_effort: str | None = None
    answer_schema: Mapping[str, Any] | None = None
    """JSON schema of the answer; None means `ANSWER_SCHEMA`."""
    claim: str = ""
    """For providers that make answers up (mock): what, how worded, and which repeat."""
    paraphrase_idx: int = 0
    replicate_idx: int = 0
    lens: str = RPL
    readout: Readout = SAMPLED
    """Only one that the provider's `Endpoint` declares is ever asked for."""
    seed: int = 0
    """Derived from the sample's identity, for providers whose sampling can be seeded (< 2^31)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Limits a minute, as the provider tells them; None where it doesn't."""

    rpm: int | None = None
    tpm: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply."""

    text: str
    """The answer; to a read-out of log-probabilities, these, as `readouts.dump_logprobs` writes
    them."""
    finish: Finish = Finish.STOP
    provider_model_id: str | None = None
    response_id: str | None = None
    fingerprint: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    """All tokens billed as output, reasoning included."""
    temperature: float | None = None
    rate_limits: RateLimits | None = None


class Provider(Protocol):
    """A service that answers requests, one at a time or many at once."""

    @property
    def max_concurrency(self) -> int:
        """More calls at once than this gain nothing."""
        ...

    async def ask(self, request: Request) -> Reply:
        """Answer one request, or raise a `ProviderError`."""
        ...

    async def aclose(self) -> None:
        """Close connections and models."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Arguments that a provider is opened with."""

    model: ModelId
    settings: Settings
    options: Options
    timeout_s: float

    @property
    def target(self) -> Target:
        """The address to call and its key, or an error that says which of them is missing."""
        from heretix.providers.catalog import require_key
        from heretix.providers.http import Target

        endpoint = self.model.endpoint
        key = require_key(self.model, self.settings)
        base_url = self.options.base_url or endpoint.base_url
        if base_url is None:
            raise ConfigError(
                f"`{self.model}` needs the address of its server: set `base_url` in the config, "
                "--base-url or HERETIX_BASE_URL, e.g. http://localhost:8000/v1"
            )
        return Target(
            provider=self.model.provider,
            base_url=base_url,
            # A line break at the end is what copying a key often adds.
            key=key.strip() if key else None,
            key_variable=endpoint.key_variable,
            timeout_s=self.timeout_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Registration of a provider: how it is reached and what its models accept."""

    open: str | Callable[[Opening], Provider]
    """Makes the adapter, which connects at its first call; or `module:function` of it."""
    open_batch: str | Callable[[Opening], BatchProvider] | None = None
    """The same for batches; None where the provider takes none."""
    base_url: str | None = None
    key_variable: str | None = None
    needs_key: bool = False
    in_process: bool = False
    """Calls nobody: no key, no address, no price."""
    no_temperature: tuple[str, ...] = ()
    """Beginnings of the names of models that reject a temperature; "" is all of them."""
    no_effort: tuple[str, ...] = ()
    """Likewise for a reasoning effort."""
    readouts: tuple[Readout, ...] = ()
    """Read-outs besides `sampled` that the adapter can answer, by log-probabilities."""
