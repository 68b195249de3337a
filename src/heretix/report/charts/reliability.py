"""The reliability diagram: of claims believed to a degree, how many are true?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import ConfigError
from heretix.report.charts.figure import (
    Chart,
    figure,
    layer,
    listed,
    notice,
    prob_axis,
    small_text,
)
from heretix.report.theme import LIGHT, Theme

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["JudgedClaim", "ReliabilityBin", "reliability_bins", "reliability_diagram"]

_SIDE_PX: Final = 320
_Z95: Final = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim:
    """A belief in a claim whose truth is known. Without an estimate `prob_true` is None."""

    prob_true: float | None
    is_true: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Claims with beliefs in [lo, hi): the mean belief, and the share that is true."""

    lo: float
    hi: float
    n: int
    mean_prob: float
    share_true: float
    share_lo: float
    share_hi: float
    """The share's 95% interval (Wilson 1927)."""


def reliability_bins(claims: Sequence[JudgedClaim], *, bins: int = 10) -> list[ReliabilityBin]:
    """Claims with an estimate, by equal bins of belief; empty bins are left out."""
    if bins < 1:
        raise ConfigError(f"`bins` must be a positive integer, got {bins!r}")
    grouped: dict[int, list[tuple[float, bool]]] = {}
    for claim in claims:
        if claim.prob_true is not None:
            number = min(int(claim.prob_true * bins), bins - 1)
            grouped.setdefault(number, []).append((claim.prob_true, claim.is_true))
    return [_bin(number, grouped[number], bins) for number in sorted(grouped)]


def reliability_diagram(
    claims: Sequence[JudgedClaim],
    *,
    bins: int = 10,
    title: str = "Reliability: belief against truth",
    theme: Theme = LIGHT,
) -> Chart:
    """Belief against the share that is true; on the diagonal, 70% belief is right 70% of times."""
    found = reliability_bins(claims, bins=bins)
    known = [(c.prob_true, c.is_true) for c in claims if c.prob_true is not None]
    without = len(claims) - len(known)
    lacking = f"{without} left out: no estimate" if without else ""
    subtitle = [listed([f"n = {len(known)} claims with a known answer", lacking])]
    if not known:
        return notice(
            "No claim has both an estimate and a known answer.",
            title=title,
            subtitle=subtitle,
            description="Reliability diagram.",
            theme=theme,
        )
    brier = math.fsum((prob - is_true) ** 2 for prob, is_true in known) / len(known)
    gap = math.fsum(b.n * abs(b.mean_prob - b.share_true) for b in found) / len(known)
    scores = f"Brier score {brier:.3f} (0 is best) · mean gap to the diagonal {gap:.3f}"
    subtitle += [
        scores,
        "Bars: 95% intervals. Dashed: perfectly calibrated. Above: claims in a bin.",
    ]
    return figure(
        {
            "width": _SIDE_PX,
            "height": _SIDE_PX,
            "layer": [*_diagonal(theme), *_points(found, theme)],
        },
        title=title,
        subtitle=subtitle,
        description=f"Reliability diagram of {len(known)} claims in {len(found)} bins. {scores}.",
        theme=theme,
    )


def _bin(number: int, members: Sequence[tuple[float, bool]], bins: int) -> ReliabilityBin:
    n, true = len(members), sum(is_true for _, is_true in members)
    lo, hi = _wilson(true, n)
    return ReliabilityBin(
        lo=number / bins,
        hi=(number + 1) / bins,
        n=n,
        mean_prob=math.fsum(prob for prob, _ in members) / n,
        share_true=true / n,
        share_lo=lo,
        share_hi=hi,
    )


def _wilson(hits: int, n: int) -> tuple[float, float]:
    share, z2 = hits / n, _Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def _diagonal(theme: Theme) -> list[dict[str, Any]]:
    ends = [{"prob": 0, "share": 0}, {"prob": 1, "share": 1}]
    mark = {"type": "line", "color": theme.muted, "strokeDash": [4, 4], "strokeWidth": 1.5}
    return [
        layer(mark, ends, x=_x(), y=_y()),
    ]


def _x() -> dict[str, Any]:
    return {**prob_axis("mean belief p(true) in the bin, a probability"), "field": "prob"}


def _y() -> dict[str, Any]:
    return {**prob_axis("share of the claims that is true, a probability"), "field": "share"}


def _points(found: Sequence[ReliabilityBin], theme: Theme) -> list[dict[str, Any]]:
    rows = [
        {
            "prob": b.mean_prob,
            "share": b.share_true,
            "lo": b.share_lo,
            "hi": b.share_hi,
            "n": b.n,
        }
        for b in found
    ]
    y = _y()
    colour = theme.rpl
    return [
        layer(
            {"type": "rule", "color": colour, "strokeWidth": 2, "opacity": 0.7},
            rows,
            x=_x(),
            y={**y, "field": "lo"},
            y2={"field": "hi"},
        ),
        layer(
            {"type": "line", "color": colour, "strokeWidth": 1.5, "opacity": 0.5}, rows, x=_x(), y=y
        ),
        layer(
            {"type": "point", "filled": True, "size": 80, "color": colour, "opacity": 1},
            rows,
            x=_x(),
            y=y,
            tooltip=[
                {"field": "prob", "type": "quantitative", "format": ".3f", "title": "mean belief"},
                {"field": "share", "type": "quantitative", "format": ".3f", "title": "true"},
                {"field": "n", "type": "quantitative"},
            ],
        ),
        layer(
            small_text(theme, baseline="bottom"),
            rows,
            x=_x(),
            y={"value": -5},
            text={"field": "n"},
        ),
    ]
