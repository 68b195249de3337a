"""What tokens cost: a dated table, the user's own over it, and exact sums in micro-dollars.

A price that isn't in the table is unknown (None), never zero. Only what runs on this machine, the
mock and the embedded models, costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

import yaml

from heretix.core.errors import ConfigError
from heretix.core.yaml_lines import YamlFault, compose, entries, listed, shown
from heretix.providers.catalog import ModelId, endpoints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heretix.core.settings import Settings

__all__ = ["FREE", "Price", "PriceTable", "cost_micros", "load_prices", "priced_models"]

_BLOCK_KEYS: Final = ("batch_discount", "models")
_PRICE_KEYS: Final = ("input", "output", "as_of")
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
"""What runs on this machine."""


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


def load_prices(settings: Settings) -> PriceTable:
    """The packaged table, with the file named by HERETIX_PRICES laid over it."""
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
            blocks[provider] = _over(block, blocks.get(provider, _Block()))
    return PriceTable({provider: block.priced() for provider, block in blocks.items()})


def priced_models() -> tuple[ModelId, ...]:
    """The models of the packaged table."""
    return tuple(
        ModelId(provider, name) for provider, block in _packaged().items() for name in block.models
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """What a file says about one provider."""

    batch_discount: Decimal | None = None
    models: Mapping[str, Price] = field(default_factory=dict)

    def priced(self) -> dict[str, Price]:
        return {
            name: replace(price, batch_discount=self.batch_discount)
            for name, price in self.models.items()
        }


def _over(upper: _Block, lower: _Block) -> _Block:
    discount = lower.batch_discount if upper.batch_discount is None else upper.batch_discount
    return _Block(discount, {**lower.models, **upper.models})


@cache
def _packaged() -> Mapping[str, _Block]:
    text = (resources.files(__package__) / "prices.yaml").read_text(encoding="utf-8")
    return _read_prices(text, "prices.yaml")


def _read_prices(text: str, source: str) -> dict[str, _Block]:
    """Check one file. Numbers are read as they were typed, so that a price is exact."""
    paid = tuple(name for name, endpoint in endpoints().items() if not endpoint.in_process)
    try:
        root = compose(text)
        if root is None:
            return {}
        providers = _entries(root, "provider", known=paid)
        return {provider: _block(node) for provider, node in providers.items()}
    except YamlFault as fault:
        raise ConfigError(fault.at(source)) from fault


def _block(node: yaml.Node) -> _Block:
    found = _entries(node, "key", known=_BLOCK_KEYS)
    discount = None
    if "batch_discount" in found:
        discount = _amount("batch_discount", found["batch_discount"], most=1)
    models = {}
    if "models" in found:
        named = _entries(found["models"], "model")
        models = {name: _price(name, value) for name, value in named.items()}
    return _Block(discount, models)


def _price(name: str, node: yaml.Node) -> Price:
    found = _entries(node, "key", known=_PRICE_KEYS)
    missing = [key for key in _PRICE_KEYS if key not in found]
    if missing:
        raise YamlFault(node, f"`{name}` lacks {listed(missing)}")
    return Price(
        _amount("input", found["input"]),
        _amount("output", found["output"]),
        _date(found["as_of"]),
    )


def _entries(
    node: yaml.Node, what: str, *, known: tuple[str, ...] | None = None
) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise YamlFault(node, f"a mapping of each {what} to its value must stand here")
    return entries(node, known, what=what)


def _amount(name: str, node: yaml.Node, *, most: int | None = None) -> Decimal:
    limit = f"from 0 to {most}" if most is not None else "of 0 or more"
    try:
        amount = Decimal(node.value) if isinstance(node.value, str) else Decimal("nan")
    except InvalidOperation:
        amount = Decimal("nan")
    if not amount.is_finite() or amount < 0 or (most is not None and amount > most):
        raise YamlFault(node, f"`{name}` must be a number {limit}, got {shown(node)}")
    return amount


def _date(node: yaml.Node) -> date:
    try:
        return date.fromisoformat(node.value)
    except (TypeError, ValueError) as exc:
        raise YamlFault(node, f"`as_of` must be a date like 2026-10-03, got {shown(node)}") from exc
