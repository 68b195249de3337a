"""What tokens cost: a dated table, the user's own over it, and exact sums in micro-dollars.

A price that isn't in the table is unknown (None), never zero. Only what runs on this machine, the
mock and the embedded models, costs nothing.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

import yaml

from heretix.errors import ConfigError
from heretix.providers.catalog import ENDPOINTS, IN_PROCESS, ModelId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heretix.settings import Settings

__all__ = ["FREE", "Price", "PriceTable", "cost_micros", "load_prices"]

_BLOCK_KEYS: Final = ("batch_discount", "models")
_PRICE_KEYS: Final = ("input", "output", "as_of")
# The day a snapshot was made: -2025-08-07 or -20251001. Anything else makes another model.
_SNAPSHOT: Final = re.compile(r"-20\d\d(-?)[01]\d\1[0-3]\d$")
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
        if model.endpoint.kind in IN_PROCESS:
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
        for provider, block in _PriceReader(text, str(path)).read().items():
            blocks[provider] = _over(block, blocks.get(provider, _Block()))
    return PriceTable({provider: block.priced() for provider, block in blocks.items()})


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
    return _PriceReader(text, "prices.yaml").read()


class _PriceReader:
    """Checks one file. Reads nodes, which know their lines and keep numbers as they were typed."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source

    def read(self) -> dict[str, _Block]:
        try:
            root = yaml.compose(self._text, Loader=_LOADER)
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            line = mark.line + 1 if mark else 1
            raise self._error(line, f"isn't YAML: {exc.problem or exc.context}") from exc
        except yaml.YAMLError as exc:
            raise self._error(1, f"isn't YAML: {exc}") from exc
        if root is None:
            return {}
        paid = tuple(name for name, at in ENDPOINTS.items() if at.kind not in IN_PROCESS)
        return {
            provider: self._block(node)
            for provider, node in self._entries(root, "provider", known=paid)
        }

    def _block(self, node: yaml.Node) -> _Block:
        entries = dict(self._entries(node, "key", known=_BLOCK_KEYS))
        discount = None
        if "batch_discount" in entries:
            discount = self._amount("batch_discount", entries["batch_discount"], most=1)
        models = {}
        if "models" in entries:
            named = self._entries(entries["models"], "model")
            models = {name: self._price(name, value) for name, value in named}
        return _Block(discount, models)

    def _price(self, name: str, node: yaml.Node) -> Price:
        entries = dict(self._entries(node, "key", known=_PRICE_KEYS))
        missing = [key for key in _PRICE_KEYS if key not in entries]
        if missing:
            listed = ", ".join(f"`{key}`" for key in missing)
            raise self._error(_line(node), f"`{name}` lacks {listed}")
        return Price(
            self._amount("input", entries["input"]),
            self._amount("output", entries["output"]),
            self._date(entries["as_of"]),
        )

    def _entries(
        self, node: yaml.Node, what: str, *, known: tuple[str, ...] | None = None
    ) -> Iterator[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(_line(node), f"a mapping of each {what} to its value must stand here")
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            if known is not None and name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
                hint = f" (did you mean `{near[0]}`?)" if near else ""
                raise self._error(
                    _line(key), f"unknown {what} `{name}`{hint}; known: {', '.join(known)}"
                )
            if name in seen:
                raise self._error(
                    _line(key), f"{what} `{name}` stands here and on line {seen[name]}; keep one"
                )
            seen[name] = _line(key)
            yield name, value

    def _amount(self, name: str, node: yaml.Node, *, most: int | None = None) -> Decimal:
        limit = f"from 0 to {most}" if most is not None else "of 0 or more"
        try:
            amount = Decimal(node.value) if isinstance(node.value, str) else Decimal("nan")
        except InvalidOperation:
            amount = Decimal("nan")
        if not amount.is_finite() or amount < 0 or (most is not None and amount > most):
            raise self._error(_line(node), f"`{name}` must be a number {limit}, got {node.value!r}")
        return amount

    def _date(self, node: yaml.Node) -> date:
        try:
            return date.fromisoformat(node.value)
        except (TypeError, ValueError) as exc:
            raise self._error(
                _line(node), f"`as_of` must be a date like 2026-10-03, got {node.value!r}"
            ) from exc

    def _error(self, line: int, problem: str) -> ConfigError:
        return ConfigError(f"`{self._source}` line {line}: {problem}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
