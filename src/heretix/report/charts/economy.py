"""Charts of the economy: a market's prices, an episode's belief path, wealth by strategy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from heretix.core.clock import utc_text
from heretix.core.errors import RecordError
from heretix.core.lenses import NUL
from heretix.economy.ledger import PPM
from heretix.economy.market import Market, Side
from heretix.report.charts import figure as fig
from heretix.report.charts.figure import HEIGHT, WIDTH, Chart, Part, Rows
from heretix.report.charts.theme import LIGHT, SERIES_DASHES, SERIES_SHAPES, SHAPES, Theme
from heretix.report.words import plural

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
    """Draw the price of each side and the money on it, bet by bet, from the house's seed on."""
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
    price = {**fig.prob_axis("price of a share (0 to 1)"), "field": "price"}
    stakes = fig.quantity(f"stakes ({currency.code})", scale={"zero": True}, tickCount=4)
    x = _bet_axis(rows, timed=timed)
    panels = [
        {"width": WIDTH, "height": HEIGHT - less, "layer": _side_layers(rows, x, y, theme)}
        for y, less in ((price, 60), ({**stakes, "field": "pool"}, 110))
    ]
    return fig.figure(
        {"vconcat": panels, "spacing": 18},
        title=title,
        subtitle=[
            f"n = {plural(bets, 'bet')} · {money:,.2f} {currency.code} in all",
            f"After the last bet {said}; a price squared is the probability it implies",
            "▲ Heretic: the belief moves up. ▼ Orthodox: it moves down.",
        ],
        description=f"Prices and pools of a market after {plural(bets, 'bet')}: {said}.",
        theme=theme,
    )


def _rows(positions: Sequence[Position], currency: Currency) -> list[Part]:
    """Make two rows a bet: the state of both sides after it. The seed is one state, not two."""
    held, pools = dict.fromkeys(Side, 0), dict.fromkeys(Side, 0)
    rows: list[Part] = []
    unit = 10**currency.exponent
    for number, position in enumerate(positions):
        held[position.side] += position.shares
        pools[position.side] += position.stake
        if position.house and any(following.house for following in positions[number + 1 :][:1]):
            continue
        heretic, orthodox = (held[side] for side in (Side.HERETIC, Side.ORTHODOX))
        market = Market(money=sum(pools.values()), heretic=heretic, orthodox=orthodox)
        at = utc_text(position.at_ms / 1000)
        rows += [
            {
                "bet": number,
                "at": at,
                "side": side.value,
                "price": float(market.price(side)),
                "implied": float(market.probability(side)),
                "pool": pools[side] / unit,
            }
            for side in Side
        ]
    return rows


def _bet_axis(rows: Rows, *, timed: bool) -> Part:
    """Make an axis of time or, where all came at once, of bets by number."""
    if timed:
        # Named in the title: the axis's first tick may be an hour.
        day = f"{datetime.fromisoformat(rows[0]['at']):%d %b %Y}".removeprefix("0")
        return fig.time_axis("at", f"time (UTC), from {day}")
    title = "number of the bet; the first is the house's seed"
    look: Part = {"tickMinStep": 1, "format": "d", "grid": False}
    if len(rows) <= _FEW:
        look["values"] = sorted({row["bet"] for row in rows})
    return {**fig.quantity(title, scale={"nice": False}, **look), "field": "bet"}


def _side_layers(rows: Rows, x: Part, y: Part, theme: Theme) -> list[Part]:
    sides = [side.value for side in Side]
    at = {"x": x, "y": y, "color": _channel("side", sides, [theme.colour(one) for one in sides])}
    dash = _channel("side", sides, [[1, 0], [6, 3]])
    which, price = (("bet", "quantitative"), ("side", "nominal")), ("price", ".3f")
    told = fig.tooltip(*which, price, ("implied", ".1%", "implies"), ("pool", ",.2f"))
    shape = _channel("side", sides, [SHAPES[side] for side in sides])
    point = {**at, "shape": shape, "tooltip": told}
    line = {"interpolate": "step-after", "strokeWidth": 2}
    return [
        fig.layer("line", rows, {**at, "strokeDash": dash}, **line),
        fig.layer("point", rows, point, filled=True, size=45, opacity=1),
        *_names(rows, x, y, theme),
    ]


def _names(rows: Rows, x: Part, y: Part, theme: Theme) -> list[Part]:
    """Write the name of each line at its end; apart where they end together, or one is covered."""
    field, ends = y["field"], rows[-len(Side) :]
    low, high = sorted(ends, key=lambda end: (end[field], end["side"] == Side.HERETIC))
    near = high[field] - low[field] <= 0.12 * (high[field] or 1.0)
    return [
        fig.text_layer(
            [{**row, "name": row["side"].capitalize()}],
            {"x": x, "y": y},
            "name",
            align="left",
            dx=10,
            dy=(-7 if row is high else 7) if near else 0,
            fontWeight="bold",
            color=theme.colour(row["side"]),
        )
        for row in ends
    ]


# The credited belief path of an episode: where accepted evidence took it, and where q lies.

_PATH_FEW: Final = 12


def credited_path(
    episode: Episode, outcome: Outcome | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """Draw every accepted step."""
    rows = _path_rows(episode, theme)
    durable, missing = _durable(outcome)
    # A step is a whole number: where there are few, the axis would put halves between them.
    ticks = {"values": [row["step"] for row in rows]} if len(rows) <= _PATH_FEW else {}
    scale, look = {"nice": False, "padding": 16}, {"tickMinStep": 1, "format": "d", "grid": False}
    x = {**fig.quantity("accepted step", scale=scale, **look, **ticks), "field": "step"}
    y = {**fig.prob_axis("credited belief (probability)", form=".0%"), "field": "belief"}
    layers = _path_layers(rows, x, y, theme)
    if durable is not None:
        row = [{"belief": durable, "said": f"q {durable:.1%}"}]
        dashed = {"color": theme.muted, "strokeDash": [6, 3], "strokeWidth": 2}
        name = fig.small_text(theme, align="left", dx=6) | {"color": theme.ink}
        layers.append(fig.layer("rule", row, {"y": y}, **dashed))
        layers.append(fig.text_layer(row, {"x": {"value": WIDTH}, "y": y}, **name))
    said = f"durable belief q = {durable:.1%}" if durable is not None else missing
    start, end = rows[0]["belief"], rows[-1]["belief"]
    steps = plural(len(episode.steps), "accepted step")
    return fig.figure(
        {"width": WIDTH, "height": HEIGHT, "layer": layers},
        title=episode.terms.claim,
        subtitle=[
            f"Episode {fig.shorten(episode.id, 40)}: n = {steps}",
            f"From {start:.1%} to {end:.1%}; {said}",
            "▲ raised the belief, ▼ lowered it.",
        ],
        description=f"Credited belief from {start:.1%} to {end:.1%} in {steps}; {said}.",
        theme=theme,
    )


def _path_rows(episode: Episode, theme: Theme) -> list[Part]:
    start = episode.terms.c0_ppm / PPM
    opened = {"shape": "circle", "colour": theme.ink, "account": "at open"}
    rows: list[Part] = [{"step": 0, "belief": start, **opened}]
    for number, step in enumerate(episode.steps, 1):
        side = "heretic" if step.c_to_ppm >= step.c_from_ppm else "orthodox"
        rows.append(
            {
                "step": number,
                "belief": step.c_to_ppm / PPM,
                "shape": SHAPES[side],
                "colour": theme.colour(side),
                "account": fig.shorten(step.account, 40),
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


def _path_layers(rows: Rows, x: Part, y: Part, theme: Theme) -> list[Part]:
    at, shape = {"x": x, "y": y}, {"shape": fig.literal("shape")}
    told = fig.tooltip(("step", "quantitative"), ("account", "nominal"), ("belief", ".1%"))
    point = {**at, **shape, "color": fig.literal("colour"), "tooltip": told}
    line = {"interpolate": "step-after", "color": theme.ink, "strokeWidth": 2}
    return [
        fig.layer("line", rows, at, **line),
        fig.layer("point", rows, point, filled=True, size=110, opacity=1),
    ]


# Wealth by strategy: how ways of playing fare, episode by episode.

_LINE_PX: Final = 15
_NAME_CHARS: Final = 28
_THROUGH: Final = [1, 0]
_DASHES: Final = tuple(dash for dash in SERIES_DASHES if dash != _THROUGH)


@dataclass(frozen=True, slots=True, kw_only=True)
class WealthPoint:
    """Wealth of a strategy after an episode, or at a time. Over several runs: the mean, and the
    2.5th and 97.5th percentile."""

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
    """Draw a line a strategy, named at its end; the band is the interval over runs, where given.
    With `emphasised` strategies, theirs are thick and in colour; all others are grey, those of
    `bystanders` drawn through and the rest dashed. More than seven can't be told by colour."""
    if not points:
        raise RecordError("`points` must hold at least one, got none; simulate an episode first")
    names = list(dict.fromkeys(point.strategy for point in points))
    rows = [{**asdict(point), "strategy": _name(point.strategy)} for point in points]
    steps = len({point.at for point in points})
    lines = {summary.strategy: _summary(summary, unit) for summary in summaries}
    said = "; ".join(f"{_name(name)} {lines[name]}" for name in names if name in lines)
    looks = {n: _look(i, n, emphasised, bystanders, theme) for i, n in enumerate(names)}
    counts = sorted({summary.n for summary in summaries})
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(*counts)
    banded = f"{runs} runs each; bands: 95% of the runs" if counts else ""
    layers = [*_lines(rows, looks, unit, axis), *_labels(rows, looks, lines, theme)]
    return fig.figure(
        {"width": WIDTH, "height": HEIGHT, "layer": layers},
        title="Wealth by strategy",
        subtitle=[fig.join_parts([f"n = {len(names)} strategies, {steps} points each", banded])],
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
    number: int, name: str, emphasised: Collection[str], bystanders: Collection[str], theme: Theme
) -> _Look:
    shape = SERIES_SHAPES[number % len(SERIES_SHAPES)]
    if not emphasised:
        dash, colour = SERIES_DASHES[number % len(SERIES_DASHES)], theme.series(number)
        return _Look(colour=colour, dash=dash, shape=shape, width=2, size=60, bold=False)
    if name in emphasised:
        colour = theme.series(list(emphasised).index(name))
        return _Look(colour=colour, dash=_THROUGH, shape=shape, width=4, size=80, bold=True)
    dash = _THROUGH if name in bystanders else _DASHES[number % len(_DASHES)]
    return _Look(colour=theme.colour(NUL), dash=dash, shape=shape, width=1.2, size=25, bold=False)


def _name(strategy: str) -> str:
    return fig.shorten(strategy, _NAME_CHARS)


def _summary(summary: WealthSummary, unit: str) -> str:
    change = summary.final - summary.start
    text = f"{change:+,.0f} {unit}"
    if summary.lo is not None and summary.hi is not None:
        text += f" [{summary.lo - summary.start:+,.0f}, {summary.hi - summary.start:+,.0f}]"
    return text.replace("-", "−")


def _lines(rows: Rows, looks: Mapping[str, _Look], unit: str, axis: str) -> list[Part]:
    extent = {"domain": _extent([row["at"] for row in rows]), "nice": False}
    reach = {"domain": _range(rows), "nice": False, "zero": False}
    x = {**fig.quantity(axis, scale=extent, grid=False), "field": "at"}
    y = {**fig.quantity(f"wealth ({unit})", scale=reach, tickCount=5), "field": "wealth"}
    names = [_name(name) for name in looks]
    color, dash, shape = (
        _channel("strategy", names, [getattr(look, part) for look in looks.values()])
        for part in ("colour", "dash", "shape")
    )
    at = {"x": x, "y": y, "color": color}
    told = fig.tooltip(("strategy", "nominal"), ("at", "quantitative", axis), ("wealth", ",.2f"))
    banded = [row for row in rows if row["lo"] is not None and row["hi"] is not None]
    last = {row["strategy"]: row for row in rows}
    band = {**at, "y": {**y, "field": "lo"}, "y2": {"field": "hi"}}
    shown = [fig.layer("area", banded, band, opacity=0.12)] if banded else []
    # What is emphasised comes last: it lies over the others.
    for width, size in sorted({(look.width, look.size) for look in looks.values()}):
        own = {_name(n) for n, look in looks.items() if (look.width, look.size) == (width, size)}
        through = [row for row in rows if row["strategy"] in own]
        ends = [row for name, row in last.items() if name in own]
        point = {**at, "shape": shape, "tooltip": told}
        shown += [
            fig.layer("line", through, {**at, "strokeDash": dash}, strokeWidth=width),
            fig.layer("point", ends, point, filled=True, size=size, opacity=1),
        ]
    return shown


def _labels(
    rows: Rows, looks: Mapping[str, _Look], summaries: Mapping[str, str], theme: Theme
) -> list[Part]:
    """Write each line's name at its end, the richest first; moved apart where ends lie close."""
    last = {row["strategy"]: row["wealth"] for row in rows}
    ordered = sorted(looks, key=lambda name: (-last[_name(name)], name))
    quiet = not any(look.bold for look in looks.values())
    low, high = _range(rows)
    ends = [HEIGHT * (high - last[_name(name)]) / (high - low) for name in ordered]
    key = []
    for name, end, place in zip(ordered, ends, _space_labels(ends), strict=True):
        look, wealth = looks[name], last[_name(name)]
        # The end of a grey line can't be read off where many lie together.
        final = "" if quiet else f"{wealth:,.1f}".replace("-", "−")
        grey = not look.bold and look.colour == theme.colour(NUL)
        key.append(
            {
                "name": fig.join_parts([_name(name), summaries.get(name) or final]),
                "end": end,
                "y": place,
                "colour": look.colour,
                "ink": theme.muted if grey else theme.ink,
                "weight": "bold" if look.bold else "normal",
            }
        )
    y = {"field": "y", "type": "quantitative", "scale": None}
    at = {"x": {"value": WIDTH + 26}, "y": y, "color": fig.literal("ink")}
    across = {
        "x": {"value": WIDTH + 6},
        "x2": {"value": WIDTH + 22},
        "color": fig.literal("colour"),
    }
    leader = {**across, "y": {**y, "field": "end"}, "y2": {"field": "y"}}
    layers = [fig.layer("rule", key, leader, strokeWidth=1)]
    for weight in ("normal", "bold"):
        if own := [row for row in key if row["weight"] == weight]:
            how = {"align": "left", "baseline": "middle", "fontWeight": weight}
            layers.append(fig.text_layer(own, at, "name", **how))
    return layers


def _space_labels(ends: Sequence[float]) -> list[float]:
    """Find places for labels, in the order of their ends, a line of text apart."""
    places: list[float] = []
    for end in ends:
        places.append(max(end, places[-1] + _LINE_PX) if places else end)
    limit = max(float(HEIGHT), _LINE_PX * (len(ends) - 1))
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - _LINE_PX
    return places


def _range(rows: Rows) -> list[float]:
    names = ("wealth", "lo", "hi")
    low, high = _extent([row[name] for row in rows for name in names if row[name] is not None])
    room = 0.03 * (high - low)
    return [low - room, high + room]


def _extent(values: Sequence[float]) -> list[float]:
    """Find the least and the greatest; a single value has some room around it."""
    low, high = min(values), max(values)
    return [low, high] if low < high else [low - 1, high + 1]


def _channel(field: str, names: Sequence[str], values: Sequence[object]) -> Part:
    scale = {"domain": list(names), "range": list(values)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}
