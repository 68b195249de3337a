"""Money is whole minor units of a currency; a share of it is parts per million.

The direction of every rounding is in the name of the function that does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from heretix.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "CURRENCIES",
    "MAX_AMOUNT",
    "PLAY",
    "PPM",
    "XC",
    "Currency",
    "Shared",
    "ceil_div",
    "ceil_part",
    "floor_part",
    "format_amount",
    "is_whole",
    "require_ppm",
    "require_whole",
    "share_out",
]

PPM: Final = 1_000_000
"""Parts per million: the unit of every rate, belief and probability here."""
MAX_AMOUNT: Final = 2**63 - 1
"""What a database's 64-bit integer holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Currency:
    """A currency is data: nothing in the rules depends on which one it is."""

    code: str
    exponent: int
    """Minor units are 10^-exponent of the unit that people see."""
    transferable: bool
    """Whether it may move other than from and to the account that issues it."""


PLAY: Final = Currency(code="PLAY", exponent=2, transferable=True)
XC: Final = Currency(code="XC", exponent=0, transferable=False)
"""Exploration credits: earned and burnt, never sent, never cash."""
CURRENCIES: Final[Mapping[str, Currency]] = MappingProxyType({c.code: c for c in (PLAY, XC)})


@dataclass(frozen=True, slots=True)
class Shared:
    """An amount shared out in whole units, and the dust that was left."""

    parts: tuple[int, ...]
    dust: int


def is_whole(value: object) -> bool:
    """Whether `value` is an integer; `True` is not money."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_whole(name: str, value: int, *, least: int = 0, most: int = MAX_AMOUNT) -> int:
    """Check that `value` is an integer within bounds, and return it."""
    if not is_whole(value) or not least <= value <= most:
        raise UsageError(
            f"`{name}` must be a whole number from {least} to {most}, got {value!r}; "
            "money is counted in minor units"
        )
    return value


def require_ppm(name: str, value: int, *, least: int = 0, most: int = PPM) -> int:
    """Check that `value` is a number of parts per million within bounds, and return it."""
    if not is_whole(value) or not least <= value <= most:
        raise UsageError(
            f"`{name}` must be a whole number of parts per million from {least} to {most}, "
            f"got {value!r}"
        )
    return value


def ceil_div(numerator: int, denominator: int) -> int:
    """Quotient rounded up; the denominator is positive."""
    return -(-numerator // denominator)


def ceil_part(amount: int, ppm: int) -> int:
    """A share of an amount, rounded up: what someone pays."""
    return ceil_div(amount * ppm, PPM)


def floor_part(amount: int, ppm: int) -> int:
    """A share of an amount, rounded down: what someone is paid."""
    return amount * ppm // PPM


def share_out(total: int, weights: Sequence[int]) -> Shared:
    """Share `total` in proportion to non-negative weights, each part rounded down.

    The dust is smaller than the number of positive weights. With no weight at all nothing
    can be shared, and the whole is left.
    """
    whole = sum(weights)
    if whole == 0:
        return Shared(tuple(0 for _ in weights), total)
    parts = tuple(total * weight // whole for weight in weights)
    return Shared(parts, total - sum(parts))


def format_amount(amount: int, currency: Currency) -> str:
    """An amount as people read it: `-12.05 PLAY`."""
    sign = "-" if amount < 0 else ""
    units, minor = divmod(abs(amount), 10**currency.exponent)
    tail = f".{minor:0{currency.exponent}d}" if currency.exponent else ""
    return f"{sign}{units:,}{tail} {currency.code}"
