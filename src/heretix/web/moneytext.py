"""Money, beliefs and moments of the economy, as pages write and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from heretix.economy.market import MAX_POOL, MICRO
from heretix.economy.money import CURRENCIES, PPM, format_amount
from heretix.economy.treasury import require_currency
from heretix.errors import UsageError
from heretix.web.templating import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from fractions import Fraction

__all__ = ["FILTERS", "amount_of", "duration_ms", "holder", "money", "plain_amount"]

CODES: Final[Mapping[str, str]] = {
    "issue": "issued",
    "burn": "decayed",
    "seed": "the house's seed",
    "budget": "budget for rewards",
    "stake": "bet",
    "late_stake_refund": "late bet, given back",
    "challenge": "challenge",
    "challenge_refund": "challenge, given back",
    "challenge_fee": "fee of a failed challenge",
    "resilience_yield": "resilience yield",
    "bond": "bond",
    "bond_return": "bond, given back",
    "clawback": "clawed back",
    "reward": "reward",
    "budget_return": "budget, given back",
    "payout": "payout",
    "stake_refund": "bet, given back",
    "fee": "fee",
    "dust": "rounding",
    "dispute": "dispute",
    "dispute_return": "dispute, given back",
    "dispute_lost": "dispute, lost",
    "reversal": "reversal",
    "correction": "correction",
}
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LONGEST_MS: Final = 3_650 * _UNITS_MS["d"]
_DURATION: Final = re.compile(r"(\d+)([smhdw])")


def money(amount: int | None, currency: str) -> str:
    """An amount with its currency, with a real minus."""
    if amount is None:
        return NONE
    return format_amount(amount, CURRENCIES[currency]).replace("-", "−")


def money_change(amount: int, currency: str) -> str:
    """What came in or went out, with its sign."""
    return f"{'+' if amount > 0 else ''}{money(amount, currency)}"


def plain_amount(amount: int, currency: str) -> str:
    """An amount as it is typed into a form."""
    exponent = CURRENCIES[currency].exponent
    return str(Decimal(amount).scaleb(-exponent).quantize(Decimal(1).scaleb(-exponent)))


def amount_of(name: str, text: str, currency: str) -> int:
    """Minor units of an amount as people type it."""
    exponent = require_currency(currency).exponent
    try:
        minor = Decimal(text.strip().replace(",", "")).scaleb(exponent)
        if not 0 < minor <= MAX_POOL or minor != minor.to_integral_value():
            raise InvalidOperation
    except ArithmeticError as exc:
        raise UsageError(
            f"`{name}` must be above 0 with at most {exponent} decimals, got {text!r}"
        ) from exc
    return int(minor)


def duration_ms(name: str, text: str) -> int:
    """Milliseconds of a duration such as 10m or 1d12h."""
    parts = _DURATION.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise UsageError(
            f"`{name}` must be a duration such as 30s, 10m, 36h, 7d or 1d12h, got {text!r}"
        )
    length = sum(int(number[:12]) * _UNITS_MS[unit] for number, unit in parts)
    if length > _LONGEST_MS:
        raise UsageError(f"`{name}` must be ten years at most, got {text!r}")
    return length


def span(ms: int) -> str:
    """A length of time in its largest whole units."""
    parts, left = [], ms
    for unit, size in sorted(_UNITS_MS.items(), key=lambda item: -item[1]):
        count, left = divmod(left, size)
        if count and unit != "w":
            parts.append(f"{count} {unit}")
        elif count:
            parts.append(f"{count * 7} d")
    return " ".join(parts[:2]) or "at once"


def ppm(value: int | None, digits: int = 2) -> str:
    """Parts per million as percent."""
    return NONE if value is None else f"{value / PPM:.{digits}%}"


def price(value: Fraction) -> str:
    """A price of a share."""
    return f"{float(value):.4f}"


def chance(value: Fraction) -> str:
    """A probability that a price implies."""
    return f"{float(value):.1%}"


def shares(micro: int, currency: str) -> str:
    """Shares: as many as units of the currency that they pay."""
    return f"{micro / MICRO / 10 ** CURRENCIES[currency].exponent:,.4f}"


def when(at_ms: int | None) -> Markup:
    """A moment in UTC, exact for machines and short for people."""
    if at_ms is None:
        return escape(NONE)
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    exact = moment.isoformat(timespec="milliseconds")
    shown = moment.strftime("%-d %b %Y, %H:%M UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, shown)


def holder(account: str) -> str:
    """Whose account it is, as people say it."""
    kind, _, rest = account.partition(":")
    if kind == "user":
        return rest.rpartition(":")[0]
    if kind == "escrow":
        return f"pot: {rest.split(':')[1]}s" if rest.count(":") == 2 else account
    names = {"epc_fund": "the reward fund", "rounding": "rounding", "issuance": "the mint"}
    return names.get(kind, f"the {kind}" if kind in {"house", "platform"} else kind)


def code(value: str) -> str:
    """Why money moved, in words."""
    return CODES.get(value, value)


FILTERS: Final[Mapping[str, Callable[..., str]]] = {
    "chance": chance,
    "code": code,
    "holder": holder,
    "money": money,
    "money_change": money_change,
    "plain_amount": plain_amount,
    "ppm": ppm,
    "price": price,
    "shares": shares,
    "span": span,
    "when": when,
}
"""What templates of the economy call them by."""
