"""The credited belief path of an episode: where accepted evidence took it, and where q lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from heretix.economy.money import PPM
from heretix.report.charts.figure import HEIGHT, WIDTH, Chart, figure, layer, shortened, small_text
from heretix.report.theme import LIGHT, SHAPES, Theme
from heretix.report.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.episode import Episode
    from heretix.economy.outcome import Outcome

__all__ = ["credited_path"]

_FEW: Final = 12


def credited_path(
    episode: Episode, outcome: Outcome | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """Every accepted step, with what the lens wanted where the bond was too short for it."""
    rows = _rows(episode, theme)
    durable, missing = _durable(outcome)
    layers = [*_path(rows, theme), *_wanted(rows, theme)]
    # A step is a whole number: where there are few, the axis would put halves between them.
    ticks = {"values": [row["step"] for row in rows]} if len(rows) <= _FEW else {}
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


def _rows(episode: Episode, theme: Theme) -> list[dict[str, Any]]:
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
    shape = {"field": "shape", "type": "nominal", "scale": None}
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
            color={"field": "colour", "type": "nominal", "scale": None},
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
        shape={"field": "shape", "type": "nominal", "scale": None},
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
