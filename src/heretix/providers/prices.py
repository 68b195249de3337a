"""Prices of tokens: a dated table, the user's own over it, exact sums in micro-dollars.

A price that isn't in the table is unknown (None), never zero. Only what runs on this machine, the
mock and the embedded models, costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date
from decimal import ROUND_CEILING, Decimal
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from heretix.core.errors import ConfigError
from heretix.core.validation import find_faults
from heretix.core.yaml_lines import YamlFault, hint, listed, load
from heretix.providers.catalog import ModelId, endpoints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heretix.core.settings import Settings

# The day a snapshot was made: -2025-08-07 or -20251001. Anything else makes another model.
_SNAPSHOT: Final = re.compile(r"-20\d\d(-?)[01]\d\1[0-3]\d$")


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
        """Nothing is ever charged."""
        return not (self.input_usd_per_mtok or self.output_usd_per_mtok)

    def batched(self) -> Price | None:
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
    blocks = dict(_packaged())
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


def priced_models() -> tuple[ModelId, ...]:
    """List the models of the packaged table."""
    return tuple(
        ModelId(provider, name) for provider, block in _packaged().items() for name in block.models
    )


@cache
def _packaged() -> Mapping[str, _Block]:
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
                    f"unknown provider `{name}`{hint(name, paid)}; known: {listed(paid)}",
                )
        return _FILE.validate_python(values)
    except YamlFault as fault:
        raise ConfigError(fault.at(source)) from fault
    except ValidationError as exc:
        faults = find_faults(exc, document, known=_KEYS)
        raise ConfigError("\n".join(fault.at(source) for fault in faults)) from exc
