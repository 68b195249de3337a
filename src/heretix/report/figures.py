"""Figures drawn on the server: inline SVG in the type of the page around it, as wide as its room.

Places along the axis are percents and heights are pixels, so that words and marks keep their size
at any width, and no script has to lay anything out. Colours are the page's own, by class.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from heretix.core.lenses import RPL
from heretix.report.findings import chance, emphasis, is_wide, leading_interval, write_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from heretix.measurement.record import RunRecord

_EXTREME: Final = 0.02
"""Nearer than this to 0 or 1, a difference can't be seen on an even axis."""
_END: Final = math.log(0.999 / 0.001)
_EVEN: Final = ((0.0, "0%"), (0.25, "25%"), (0.5, "50%"), (0.75, "75%"), (1.0, "100%"))
_ODDS: Final = (
    *((0.001, "0.1%"), (0.01, "1%"), (0.1, "10%"), (0.5, "50%")),
    *((0.9, "90%"), (0.99, "99%"), (0.999, "99.9%")),
)
_NARROW: Final = frozenset({0.0, 0.001, 0.01, 0.5, 0.99, 0.999, 1.0})
_HEIGHT: Final = 200
"""Of the plot of a timeline, in pixels."""


def emphasise(sentence: str) -> Markup:
    """Set a finding for a page: what qualifies it more lightly than what was found."""
    return Markup("").join(
        escape(part) if strong else Markup('<span class="light">{}</span>').format(part)
        for part, strong in emphasis(sentence)
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Places of probabilities on an axis: even, or by log-odds where answers are extreme."""

    log_odds: bool = False

    @classmethod
    def of(cls, probs: Iterable[float | None]) -> Scale:
        """Choose the axis on which all these can be told apart."""
        return cls(any(p is not None and not _EXTREME <= p <= 1 - _EXTREME for p in probs))

    def at(self, prob: float) -> float:
        """Return the place of a probability, in percent of the axis."""
        if not self.log_odds:
            return round(100 * prob, 2)
        held = min(max(prob, 0.001), 0.999)
        return round(50 + 50 * math.log(held / (1 - held)) / _END, 2)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """List what stands along the axis, with its words."""
        return _ODDS if self.log_odds else _EVEN

    @property
    def said(self) -> str:
        """Say which axis it is, where it isn't the even one."""
        return "log-odds axis" if self.log_odds else ""


EVEN: Final = Scale()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A belief on a figure: its name, number, interval and lens."""

    label: str
    prob: float
    ci: tuple[float, float]
    lens: str = RPL

    @property
    def wide(self) -> bool:
        """True where the number depends on the wording: its interval stands in place of it."""
        return is_wide(*self.ci)

    @property
    def words(self) -> str:
        """Text that leads a line of words: the number, or the interval in place of it."""
        return write_interval(*self.ci) if self.wide else chance(self.prob)

    def __str__(self) -> str:
        lo, hi = self.ci
        if self.wide:
            return f"{self.label} {lo:.3f} to {hi:.3f} (95% interval), which depends on the wording"
        return f"{self.label} {self.prob:.3f}, 95% interval {lo:.3f} to {hi:.3f}"


def belief_mark(record: RunRecord, label: str = "belief") -> Mark | None:
    """Make the mark of a record's belief, with the interval that its sentence tells."""
    found = record.aggregates
    if found.prob_true_rpl is None or found.ci95 is None:
        return None
    ends = leading_interval(record) or found.ci95
    return Mark(label=label, prob=found.prob_true_rpl, ci=ends, lens=record.lens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Beliefs of one kind over time."""

    label: str
    lens: str
    points: Sequence[tuple[datetime, float, tuple[float, float]]]


def dumbbell(marks: Sequence[Mark], scale: Scale = EVEN) -> Markup:
    """Draw beliefs on one line, joined: the first is hollow, where it was, the others filled.

    Where one depends on the wording, it is its interval alone, and each has a line of its own.
    """
    parts = [_grid(scale, 28)]
    places, lines = [scale.at(mark.prob) for mark in marks], lines_of(marks, 14, 10)
    if len(set(lines)) < len(marks):
        parts.append(_line(min(places), 14, max(places), 14, "fig-join"))
    spans, dots = [], []
    for number, (mark, place, y) in enumerate(zip(marks, places, lines, strict=True)):
        lo, hi = (scale.at(edge) for edge in mark.ci)
        hollow = number == 0 and len(marks) > 1
        span = _line(lo, y, hi, y, "fig-span")
        if mark.wide:
            box = f'x="{lo}%" width="{round(hi - lo, 2)}%" y="{y - 3.5:g}" height="7"'
            span += f'<rect class="{"fig-open" if hollow else "fig-ends"}" {box}/>'
        else:
            kind = "fig-from" if hollow else "fig-dot"
            dots.append((mark, f'<circle class="{kind}" cx="{place}%" cy="{y:g}" r="5.5"/>'))
        spans.append((mark, span))
    parts += [f'<g class="lens-{escape(m.lens.lower())}">{drawn}</g>' for m, drawn in spans + dots]
    return _svg(parts, 28, "; then ".join(map(str, marks)), "fig fig-row")


def lines_of(marks: Sequence[Mark], middle: float, apart: float) -> list[float]:
    """Place marks in the height of their row: one below the other where an interval stands in
    place of a number, or else one would hide the other."""
    if not any(mark.wide for mark in marks):
        return [middle] * len(marks)
    first = middle - apart * (len(marks) - 1) / 2
    return [first + apart * number for number in range(len(marks))]


def axis(scale: Scale = EVEN) -> Markup:
    """Write the words below figures that share an axis."""
    words = []
    for prob, word in scale.ticks:
        place = scale.at(prob)
        anchor = "start" if place < 1 else "end" if place > 99 else "middle"
        narrow = "" if prob in _NARROW else ' class="fig-wide"'
        words.append(f'<text x="{place}%" y="12" text-anchor="{anchor}"{narrow}>{word}</text>')
    return _svg(words, 16, "", "fig fig-axis")


def difference(value: float, ends: tuple[float, float]) -> Markup:
    """Draw a difference of probabilities between −1 and 1, with its interval, about a zero."""
    lo, hi, at = (round(50 + 50 * min(max(x, -1.0), 1.0), 2) for x in (*ends, value))
    parts = [
        _line(0, 14, 100, 14, "fig-base"),
        _line(50, 4, 50, 24, "fig-tick"),
        _line(lo, 14, hi, 14, "fig-span"),
        f'<circle class="fig-dot" cx="{at}%" cy="14" r="4.5"/>',
    ]
    told = f"{value:+.3f}, 95% interval {ends[0]:+.3f} to {ends[1]:+.3f}"
    return _svg(parts, 28, told, "fig fig-row")


def timeline(lines: Sequence[Line], scale: Scale = EVEN) -> Markup:
    """Draw beliefs over time with their intervals, each kind in the colour of its lens."""
    moments = sorted(at for line in lines for at, _, _ in line.points)
    if len(set(moments)) < 2:
        return Markup("")
    first, last = moments[0], moments[-1]
    span = (last - first).total_seconds()
    top, parts = 14, []
    for prob, word in scale.ticks:
        y = _find_y(scale, prob, top)
        parts.append(_line(0, y, 100, y, "fig-tick" if prob == 0.5 else "fig-base"))
        parts.append(f'<text x="0" y="{y - 3:.1f}">{word}</text>')

    def across(at: datetime) -> float:
        return round(9 + 88 * (at - first).total_seconds() / span, 2)

    for line in lines:
        shown = [(across(at), prob, ci) for at, prob, ci in sorted(line.points)]
        drawn = [
            _line(x, _find_y(scale, p, top), x2, _find_y(scale, p2, top), "fig-path")
            for (x, p, _), (x2, p2, _) in itertools.pairwise(shown)
        ]
        for x, prob, (lo, hi) in shown:
            drawn.append(_line(x, _find_y(scale, lo, top), x, _find_y(scale, hi, top), "fig-span"))
            y = _find_y(scale, prob, top)
            drawn.append(f'<circle class="fig-dot" cx="{x}%" cy="{y}" r="4"/>')
        parts.append(f'<g class="lens-{escape(line.lens.lower())}">{"".join(drawn)}</g>')
    low = top + _HEIGHT + 16
    # As fine as it takes to tell the ends apart.
    forms = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S")
    dated = next((form for form in forms if f"{first:{form}}" != f"{last:{form}}"), forms[-1])
    parts.append(f'<text x="9%" y="{low}">{first:{dated}}</text>')
    parts.append(f'<text x="100%" y="{low}" text-anchor="end">{last:{dated}}</text>')
    told = "; ".join(
        f"{line.label} from {min(line.points)[1]:.2f} to {max(line.points)[1]:.2f}"
        for line in lines
    )
    return _svg(parts, low + 4, f"Belief over time: {told}", "fig fig-time")


def _find_y(scale: Scale, prob: float, top: int) -> float:
    return round(top + _HEIGHT * (1 - scale.at(prob) / 100), 1)


def _grid(scale: Scale, height: int) -> str:
    ticks = "".join(
        _line(place, 4, place, height - 4, "fig-tick" if prob == 0.5 else "fig-base")
        for prob, place in ((prob, scale.at(prob)) for prob, _ in scale.ticks)
    )
    return _line(0, height / 2, 100, height / 2, "fig-base") + ticks


def _line(x: float, y: float, x2: float, y2: float, name: str) -> str:
    return f'<line class="{name}" x1="{x}%" y1="{y:g}" x2="{x2}%" y2="{y2:g}"/>'


def _svg(parts: Sequence[str], height: float, told: str, name: str) -> Markup:
    role = f'role="img" aria-label="{escape(told)}"' if told else 'aria-hidden="true"'
    return Markup(  # noqa: S704  (numbers, and words that were escaped)
        f'<svg class="{name}" width="100%" height="{height:g}" {role}>{"".join(parts)}</svg>'
    )
