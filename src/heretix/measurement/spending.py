"""What calls cost, as they are made, and the point at which to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.errors import ConfigError
from heretix.providers.prices import Price, PriceTable, cost_micros

if TYPE_CHECKING:
    from heretix.providers.catalog import ModelId

__all__ = ["Spending"]


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
        unpriced = [model for model, price in self._prices.items() if price is None]
        if budget_usd is not None and unpriced:
            raise ConfigError(
                f"`budget_usd` can't be kept: the price of {unpriced[0]} isn't known; "
                "put it into a table of yours and name that with HERETIX_PRICES"
            )

    def price_of(self, model: ModelId) -> Price | None:
        """The price of a model; None where it isn't known."""
        return self._prices[model]

    def charge(self, model: ModelId, tokens_in: int | None, tokens_out: int | None) -> None:
        """Add a call that was answered."""
        price = self._prices[model]
        if price is not None and price.is_free:
            return
        if price is None or tokens_in is None or tokens_out is None:
            self._unknown = True
            return
        read, written = self._tokens[model]
        self._tokens[model] = (read + tokens_in, written + tokens_out)

    @property
    def spent_usd(self) -> float | None:
        """Dollars spent so far; None once a call's cost couldn't be told."""
        if self._unknown:
            return None
        prices = self._prices
        return (
            sum(
                cost_micros(price, *self._tokens[model])
                for model, price in prices.items()
                if price is not None
            )
            / 1e6
        )

    @property
    def exhausted(self) -> bool:
        """The budget is used up, or can't be kept because a provider told no tokens."""
        if self.budget_usd is None:
            return False
        return self.spent_usd is None or self.spent_usd >= self.budget_usd
