"""A market in the making: prices and pools after every bet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from heretix.economy.market import Market, Side
from heretix.errors import RecordError
from heretix.report.charts.figure import HEIGHT, WIDTH, Chart, figure, layer, time_axis
from heretix.report.theme import LIGHT, SHAPES, Theme
from heretix.report.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.market import Position
    from heretix.economy.money import Currency

__all__ = ["market_history"]

_FEW: Final = 24
"""So many states have a tick each; an axis of its own choice would put halves between them."""


def market_history(
    positions: Sequence[Position],
    *,
    currency: Currency,
    title: str = "Market",
    theme: Theme = LIGHT,
) -> Chart:
    """The price of each side and the money on it, bet by bet, from the house's seed on."""
    rows = _rows(positions, currency)
    if not rows:
        raise RecordError("`positions` must hold the seed of the market, got none")
    timed = len({position.at_ms for position in positions}) > 1
    bets = sum(not position.house for position in positions)
    last = {row["side"]: row for row in rows}
    money = last[Side.HERETIC.value]["pool"] + last[Side.ORTHODOX.value]["pool"]
    said = ", ".join(
        f"{side.value} {last[side.value]['price']:.3f} ({last[side.value]['implied']:.0%})"
        for side in Side
    )
    return figure(
        {
            "vconcat": [
                _panel(rows, "price", _price_axis(), theme, timed=timed, height=HEIGHT - 60),
                _panel(rows, "pool", _pool_axis(currency), theme, timed=timed, height=HEIGHT - 110),
            ],
            "spacing": 18,
        },
        title=title,
        subtitle=[
            f"n = {counted(bets, 'bet')} · {money:,.2f} {currency.code} in all",
            f"After the last bet {said}; a price squared is the probability it implies",
            "▲ Heretic: the belief moves up. ▼ Orthodox: it moves down.",
        ],
        description=f"Prices and pools of a market after {counted(bets, 'bet')}: {said}.",
        theme=theme,
    )


def _rows(positions: Sequence[Position], currency: Currency) -> list[dict[str, Any]]:
    """Two rows a bet: the state of both sides after it. The seed is one state, not two."""
    held, pools = dict.fromkeys(Side, 0), dict.fromkeys(Side, 0)
    rows: list[dict[str, Any]] = []
    unit = 10**currency.exponent
    for number, position in enumerate(positions):
        held[position.side] += position.shares
        pools[position.side] += position.stake
        following = positions[number + 1] if number + 1 < len(positions) else None
        if position.house and following is not None and following.house:
            continue
        market = Market(
            money=sum(pools.values()), heretic=held[Side.HERETIC], orthodox=held[Side.ORTHODOX]
        )
        rows += [
            {
                "bet": number,
                "at": _moment(position.at_ms),
                "side": side.value,
                "price": float(market.price(side)),
                "implied": float(market.probability(side)),
                "pool": pools[side] / unit,
            }
            for side in Side
        ]
    return rows


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _day(moment: str) -> str:
    """The day on which the axis begins: its first tick may be an hour."""
    return f"{datetime.fromisoformat(moment):%d %b %Y}".removeprefix("0")


def _price_axis() -> dict[str, Any]:
    return {
        "type": "quantitative",
        "scale": {"domain": [0, 1]},
        "axis": {"title": "price of a share (0 to 1)", "values": [0, 0.25, 0.5, 0.75, 1]}
        | {"format": ".2f"},
    }


def _pool_axis(currency: Currency) -> dict[str, Any]:
    return {
        "type": "quantitative",
        "scale": {"zero": True},
        "axis": {"title": f"stakes ({currency.code})", "tickCount": 4},
    }


def _panel(
    rows: Sequence[dict[str, Any]],
    field: str,
    axis: dict[str, Any],
    theme: Theme,
    *,
    timed: bool,
    height: int,
) -> dict[str, Any]:
    x: dict[str, Any] = (
        time_axis("at", f"time (UTC), from {_day(rows[0]['at'])}")
        if timed
        else {
            "field": "bet",
            "type": "quantitative",
            "scale": {"nice": False},
            "axis": {"title": "number of the bet; the first is the house's seed"}
            | {"tickMinStep": 1, "format": "d"},
        }
    )
    if not timed and len(rows) <= _FEW:
        x["axis"] |= {"values": sorted({row["bet"] for row in rows})}
    x["axis"] |= {"grid": False}
    sides = [side.value for side in Side]
    color = {
        "field": "side",
        "type": "nominal",
        "scale": {"domain": sides, "range": [theme.colour(side) for side in sides]},
        "legend": None,
    }
    dash = {**color, "scale": {"domain": sides, "range": [[1, 0], [6, 3]]}}
    shape = {**color, "scale": {"domain": sides, "range": [SHAPES[side] for side in sides]}}
    y = {**axis, "field": field}
    line = layer(
        {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        rows,
        x=x,
        y=y,
        color=color,
        strokeDash=dash,
    )
    points = layer(
        {"type": "point", "filled": True, "size": 45, "opacity": 1},
        rows,
        x=x,
        y=y,
        color=color,
        shape=shape,
        tooltip=[
            {"field": "bet", "type": "quantitative"},
            {"field": "side", "type": "nominal"},
            {"field": "price", "type": "quantitative", "format": ".3f"},
            {"field": "implied", "type": "quantitative", "format": ".1%", "title": "implies"},
            {"field": "pool", "type": "quantitative", "format": ",.2f"},
        ],
    )
    return {"width": WIDTH, "height": height, "layer": [line, points, *_names(rows, x, y, theme)]}


def _names(
    rows: Sequence[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], theme: Theme
) -> list[dict[str, Any]]:
    """Each line bears its name at its end."""
    ends = rows[-len(Side) :]
    return [
        layer(
            {
                "type": "text",
                "align": "left",
                "dx": 10,
                "dy": _apart(row, ends, y["field"]),
                "fontWeight": "bold",
                "color": theme.colour(row["side"]),
            },
            [{**row, "name": row["side"].capitalize()}],
            x=x,
            y=y,
            text={"field": "name"},
        )
        for row in ends
    ]


def _apart(row: dict[str, Any], ends: Sequence[dict[str, Any]], field: str) -> int:
    """Names of lines that end together would cover each other."""
    other = next(end for end in ends if end is not row)
    scale = max(row[field], other[field]) or 1.0
    if abs(row[field] - other[field]) > 0.12 * scale:
        return 0
    above = (row[field], row["side"] == Side.HERETIC) > (
        other[field],
        other["side"] == Side.HERETIC,
    )
    return -7 if above else 7
