"""Charts of the economy: a market's prices, an episode's belief path, wealth by strategy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import RecordError
from heretix.core.lenses import NUL
from heretix.economy.ledger import PPM
from heretix.economy.market import Market, Side
from heretix.report.charts.figure import (
    HEIGHT,
    WIDTH,
    Chart,
    figure,
    layer,
    listed,
    literal,
    shortened,
    small_text,
    time_axis,
)
from heretix.report.charts.theme import LIGHT, SERIES_DASHES, SERIES_SHAPES, SHAPES, Theme
from heretix.report.words import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from heretix.economy.episode.settlement import Outcome
    from heretix.economy.episode.state import Episode
    from heretix.economy.ledger import Currency
    from heretix.economy.market import Position

# A market in the making: prices and pools after every bet.

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


# The credited belief path of an episode: where accepted evidence took it, and where q lies.

_PATH_FEW: Final = 12


def credited_path(
    episode: Episode, outcome: Outcome | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """Every accepted step, with what the lens wanted where the bond was too short for it."""
    rows = _path_rows(episode, theme)
    durable, missing = _durable(outcome)
    layers = [*_path(rows, theme), *_wanted(rows, theme)]
    # A step is a whole number: where there are few, the axis would put halves between them.
    ticks = {"values": [row["step"] for row in rows]} if len(rows) <= _PATH_FEW else {}
    for part in layers:
        part["encoding"]["x"]["axis"] |= ticks
    if durable is not None:
        layers += _durable_line(durable, theme)
    said = f"durable belief q = {durable:.1%}" if durable is not None else missing
    end = rows[-1]["belief"]
    steps = counted(len(episode.steps), "accepted step")
    return figure(
        {"width": WIDTH, "height": HEIGHT, "layer": layers},
        title=episode.terms.claim,
        subtitle=[
            f"Episode {shortened(episode.id, 40)}: n = {steps}",
            f"From {rows[0]['belief']:.1%} to {end:.1%}; {said}",
            "▲ raised the belief, ▼ lowered it; hollow: where the lens went beyond the bond.",
        ],
        description=(
            f"Credited belief from {rows[0]['belief']:.1%} to {end:.1%} in {steps}; {said}."
        ),
        theme=theme,
    )


def _path_rows(episode: Episode, theme: Theme) -> list[dict[str, Any]]:
    start = episode.terms.c0_ppm / PPM
    rows: list[dict[str, Any]] = [
        {
            "step": 0,
            "belief": start,
            "wanted": start,
            "shape": "circle",
            "colour": theme.ink,
            "account": "at open",
        }
    ]
    for number, step in enumerate(episode.steps, 1):
        side = "heretic" if step.c_to_ppm >= step.c_from_ppm else "orthodox"
        rows.append(
            {
                "step": number,
                "belief": step.c_to_ppm / PPM,
                "wanted": step.c_wanted_ppm / PPM,
                "shape": SHAPES[side],
                "colour": theme.colour(side),
                "account": shortened(step.account, 40),
            }
        )
    return rows


def _durable(outcome: Outcome | None) -> tuple[float | None, str]:
    if outcome is None:
        return None, "durable belief: not measured yet"
    if outcome.q_ppm is None:
        why = outcome.void.value.replace("_", " ") if outcome.void else "not measured"
        return None, f"durable belief: none, the episode is void ({why})"
    return outcome.q_ppm / PPM, ""


def _axes() -> tuple[dict[str, Any], dict[str, Any]]:
    x = {
        "field": "step",
        "type": "quantitative",
        "scale": {"nice": False, "padding": 16},
        "axis": {"title": "accepted step", "tickMinStep": 1, "format": "d", "grid": False},
    }
    y = {
        "field": "belief",
        "type": "quantitative",
        "scale": {"domain": [0, 1]},
        "axis": {
            "title": "credited belief (probability)",
            "values": [0, 0.25, 0.5, 0.75, 1],
            "format": ".0%",
        },
    }
    return x, y


def _path(rows: Sequence[dict[str, Any]], theme: Theme) -> list[dict[str, Any]]:
    x, y = _axes()
    shape = literal("shape")
    return [
        layer(
            {"type": "line", "interpolate": "step-after", "color": theme.ink, "strokeWidth": 2},
            rows,
            x=x,
            y=y,
        ),
        layer(
            {"type": "point", "filled": True, "size": 110, "opacity": 1},
            rows,
            x=x,
            y=y,
            shape=shape,
            color=literal("colour"),
            tooltip=[
                {"field": "step", "type": "quantitative"},
                {"field": "account", "type": "nominal"},
                {"field": "belief", "type": "quantitative", "format": ".1%"},
                {"field": "wanted", "type": "quantitative", "format": ".1%"},
            ],
        ),
    ]


def _wanted(rows: Sequence[dict[str, Any]], theme: Theme) -> list[dict[str, Any]]:
    short = [row for row in rows if row["wanted"] != row["belief"]]
    if not short:
        return []
    x, y = _axes()
    line = layer(
        {"type": "rule", "color": theme.muted, "strokeDash": [2, 2]},
        short,
        x=x,
        y=y,
        y2={"field": "wanted"},
    )
    points = layer(
        {"type": "point", "size": 90, "color": theme.muted, "fill": theme.paper, "opacity": 1},
        short,
        x=x,
        y={**y, "field": "wanted"},
        shape=literal("shape"),
    )
    return [line, points]


def _durable_line(durable: float, theme: Theme) -> list[dict[str, Any]]:
    _, y = _axes()
    row = [{"belief": durable, "said": f"q {durable:.1%}"}]
    return [
        layer(
            {"type": "rule", "color": theme.muted, "strokeDash": [6, 3], "strokeWidth": 2}, row, y=y
        ),
        layer(
            small_text(theme, align="left", dx=6) | {"color": theme.ink},
            row,
            x={"value": WIDTH},
            y=y,
            text={"field": "said"},
        ),
    ]


# Wealth by strategy: how ways of playing fare, episode by episode.

_LINE_PX: Final = 15
_NAME_CHARS: Final = 28
_THROUGH: Final = [1, 0]
_DASHES: Final = tuple(dash for dash in SERIES_DASHES if dash != _THROUGH)


@dataclass(frozen=True, slots=True, kw_only=True)
class WealthPoint:
    """Wealth of a strategy after an episode, or at a time.

    Over several runs: the mean, and the 2.5th and 97.5th percentile.
    """

    strategy: str
    at: float
    wealth: float
    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WealthSummary:
    """Final wealth of a strategy over `n` runs: the mean, and 95% of the runs."""

    strategy: str
    n: int
    start: float
    final: float
    lo: float | None = None
    hi: float | None = None


def wealth_by_strategy(
    points: Sequence[WealthPoint],
    summaries: Sequence[WealthSummary] = (),
    *,
    unit: str,
    axis: str = "episode",
    emphasised: Collection[str] = (),
    bystanders: Collection[str] = (),
    theme: Theme = LIGHT,
) -> Chart:
    """A line a strategy, named at its end; the band is the interval over runs, where given.

    With `emphasised` strategies, theirs are thick and in colour; all others are grey, those of
    `bystanders` drawn through and the rest dashed. More than seven can't be told by colour.
    """
    if not points:
        raise RecordError("`points` must hold at least one, got none; simulate an episode first")
    names = list(dict.fromkeys(point.strategy for point in points))
    rows = [{**asdict(point), "strategy": _name(point.strategy)} for point in points]
    steps = len({point.at for point in points})
    lines = {summary.strategy: _summary(summary, unit) for summary in summaries}
    said = "; ".join(f"{_name(name)} {lines[name]}" for name in names if name in lines)
    looks = {
        name: _look(number, name, emphasised, bystanders, theme)
        for number, name in enumerate(names)
    }
    return figure(
        {
            "width": WIDTH,
            "height": HEIGHT,
            "layer": [
                *_lines(rows, looks, unit, axis),
                *_labels(rows, looks, lines, theme),
            ],
        },
        title="Wealth by strategy",
        subtitle=[
            listed([f"n = {len(names)} strategies, {steps} points each", *_runs(summaries)]),
        ],
        description=f"Wealth in {unit} of {len(names)} strategies by {axis}. {said}".strip(),
        theme=theme,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Look of one strategy's line."""

    colour: str
    dash: list[int]
    shape: str
    width: float
    size: int
    bold: bool


def _look(
    number: int,
    name: str,
    emphasised: Collection[str],
    bystanders: Collection[str],
    theme: Theme,
) -> _Look:
    shape = SERIES_SHAPES[number % len(SERIES_SHAPES)]
    dash = SERIES_DASHES[number % len(SERIES_DASHES)]
    if not emphasised:
        return _Look(
            colour=theme.series(number), dash=dash, shape=shape, width=2, size=60, bold=False
        )
    if name in emphasised:
        colour = theme.series(list(emphasised).index(name))
        return _Look(colour=colour, dash=_THROUGH, shape=shape, width=4, size=80, bold=True)
    through = name in bystanders
    dash = _THROUGH if through else _DASHES[number % len(_DASHES)]
    return _Look(colour=theme.colour(NUL), dash=dash, shape=shape, width=1.2, size=25, bold=False)


def _name(strategy: str) -> str:
    return shortened(strategy, _NAME_CHARS)


def _runs(summaries: Sequence[WealthSummary]) -> list[str]:
    counts = sorted({summary.n for summary in summaries})
    if not counts:
        return []
    said = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [f"{said} runs each; bands: 95% of the runs"]


def _summary(summary: WealthSummary, unit: str) -> str:
    change = summary.final - summary.start
    text = f"{change:+,.0f} {unit}"
    if summary.lo is not None and summary.hi is not None:
        text += f" [{summary.lo - summary.start:+,.0f}, {summary.hi - summary.start:+,.0f}]"
    return text.replace("-", "−")


def _lines(
    rows: Sequence[dict[str, Any]], looks: Mapping[str, _Look], unit: str, axis: str
) -> list[dict[str, Any]]:
    x = {
        "field": "at",
        "type": "quantitative",
        "scale": {"domain": _extent([row["at"] for row in rows]), "nice": False},
        "axis": {"title": axis, "grid": False},
    }
    y = {
        "field": "wealth",
        "type": "quantitative",
        "scale": {"domain": _range(rows), "nice": False, "zero": False},
        "axis": {"title": f"wealth ({unit})", "tickCount": 5},
    }
    names = [_name(name) for name in looks]
    color = _channel(names, [look.colour for look in looks.values()])
    dash = _channel(names, [look.dash for look in looks.values()])
    shape = _channel(names, [look.shape for look in looks.values()])
    banded = [row for row in rows if row["lo"] is not None and row["hi"] is not None]
    last = {row["strategy"]: row for row in rows}
    band = layer(
        {"type": "area", "opacity": 0.12},
        banded,
        x=x,
        y={**y, "field": "lo"},
        y2={"field": "hi"},
        color=color,
    )
    shown = [band] if banded else []
    # What is emphasised comes last: it lies over the others.
    for width, size in sorted({(look.width, look.size) for look in looks.values()}):
        own = {_name(n) for n, look in looks.items() if (look.width, look.size) == (width, size)}
        shown += [
            layer(
                {"type": "line", "strokeWidth": width},
                [row for row in rows if row["strategy"] in own],
                x=x,
                y=y,
                color=color,
                strokeDash=dash,
            ),
            layer(
                {"type": "point", "filled": True, "size": size, "opacity": 1},
                [row for name, row in last.items() if name in own],
                x=x,
                y=y,
                color=color,
                shape=shape,
                tooltip=[
                    {"field": "strategy", "type": "nominal"},
                    {"field": "at", "type": "quantitative", "title": axis},
                    {"field": "wealth", "type": "quantitative", "format": ",.2f"},
                ],
            ),
        ]
    return shown


def _labels(
    rows: Sequence[dict[str, Any]],
    looks: Mapping[str, _Look],
    summaries: Mapping[str, str],
    theme: Theme,
) -> list[dict[str, Any]]:
    """Each line's name at its end, the richest first; moved apart where ends lie close."""
    last = {row["strategy"]: row["wealth"] for row in rows}
    ordered = sorted(looks, key=lambda name: (-last[_name(name)], name))
    quiet = not any(look.bold for look in looks.values())
    low, high = _range(rows)
    ends = [HEIGHT * (high - last[_name(name)]) / (high - low) for name in ordered]
    key = [
        {
            "name": listed([_name(name), summaries.get(name) or _final(last[_name(name)], quiet)]),
            "end": end,
            "y": place,
            "colour": looks[name].colour,
            "ink": theme.ink
            if looks[name].bold or looks[name].colour != theme.colour(NUL)
            else theme.muted,
            "weight": "bold" if looks[name].bold else "normal",
        }
        for name, end, place in zip(ordered, ends, _wealth_apart(ends), strict=True)
    ]
    y = {"field": "y", "type": "quantitative", "scale": None}
    text = [
        layer(
            {"type": "text", "align": "left", "baseline": "middle", "fontWeight": weight},
            [row for row in key if row["weight"] == weight],
            x={"value": WIDTH + 26},
            y=y,
            color=literal("ink"),
            text={"field": "name"},
        )
        for weight in ("normal", "bold")
        if any(row["weight"] == weight for row in key)
    ]
    leader = layer(
        {"type": "rule", "strokeWidth": 1},
        key,
        x={"value": WIDTH + 6},
        x2={"value": WIDTH + 22},
        y={**y, "field": "end"},
        y2={"field": "y"},
        color=literal("colour"),
    )
    return [leader, *text]


def _final(wealth: float, quiet: bool) -> str:
    """End of a grey line as text: it can't be read off where many lie together."""
    return "" if quiet else f"{wealth:,.1f}".replace("-", "−")


def _wealth_apart(ends: Sequence[float]) -> list[float]:
    """Places for labels, in the order of their ends, a line of text apart."""
    places: list[float] = []
    for end in ends:
        places.append(max(end, places[-1] + _LINE_PX) if places else end)
    limit = max(float(HEIGHT), _LINE_PX * (len(ends) - 1))
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - _LINE_PX
    return places


def _range(rows: Sequence[dict[str, Any]]) -> list[float]:
    names = ("wealth", "lo", "hi")
    low, high = _extent([row[name] for row in rows for name in names if row[name] is not None])
    room = 0.03 * (high - low)
    return [low - room, high + room]


def _extent(values: Sequence[float]) -> list[float]:
    """From the least to the greatest; a single value has some room around it."""
    low, high = min(values), max(values)
    return [low, high] if low < high else [low - 1, high + 1]


def _channel(names: Sequence[str], values: Sequence[object]) -> dict[str, Any]:
    return {
        "field": "strategy",
        "type": "nominal",
        "scale": {"domain": list(names), "range": list(values)},
        "legend": None,
    }
