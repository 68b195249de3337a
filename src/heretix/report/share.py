"""Sharing: what a claim, a panel or an episode says, as a card, a report, a table and a citation.

All of them are made of one record of a few fields, so that none can say more than the others. A
sentence is never cut: where it is long, the letters of the card are smaller.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from decimal import Decimal
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from heretix.core.clock import utc_text
from heretix.core.lenses import LENSES
from heretix.economy.ledger import CURRENCIES
from heretix.economy.market import MICRO
from heretix.providers.catalog import MADE_UP_BY
from heretix.report import figures
from heretix.report.charts.figure import shorten, strip_controls, wrap_text
from heretix.report.charts.theme import FONT, LIGHT, Theme
from heretix.report.findings import chance, emphasis, name_documents, panel_finding, short_model
from heretix.report.method import METHOD
from heretix.report.words import cell_text, day_words, percent
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.economy.episode.settlement import Outcome
    from heretix.economy.episode.state import Episode
    from heretix.economy.market import Position
    from heretix.report.figures import Mark
    from heretix.studies.panel import PanelReport

CARD: Final = (1200, 630)
_LEGENDS: Final = {
    "claim": "hollow: without documents; filled: with them",
    "panel": "hollow: first wave; filled: last",
    "episode": "hollow: at the start; filled: after the evidence",
}
_MARGIN: Final = 60
_SIZES: Final = (46, 42, 38, 34, 30, 27, 24, 21)
"""Of a card's sentence, in pixels: the first at which all of it fits."""
_ROWS: Final = 4
_WIDTH_AT_1PX: Final = 0.56  # of a bold letter on average, for each pixel of its font's size


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCard:
    """Finding on a claim, a panel or an episode, as it is shared."""

    kind: str  # `claim`, `panel` or `episode`
    key: str  # By which it is found: a digest, a name, an id
    about: str
    sentence: str
    rows: tuple[tuple[str, tuple[Mark, ...]], ...]
    """Lines of the picture: a name, and the beliefs on it."""
    measured_at: str
    facts: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]
    table: tuple[Mapping[str, Any], ...]
    note: str = ""
    """Words that must stand beside the picture: whether any text would have moved a belief."""

    @property
    def path(self) -> str:
        """Address of its page on a server or in a published site."""
        return f"/{self.kind}s/{self.key}"

    @property
    def scale(self) -> figures.Scale:
        """Axis of its picture."""
        return figures.Scale.of(mark.prob for _, marks in self.rows for mark in marks)

    @property
    def day(self) -> str:
        """Day on which it was measured last."""
        return self.measured_at[:10]

    @property
    def dated(self) -> str:
        """The day in words."""
        return day_words(self.day) if self.day else ""

    @property
    def legend(self) -> str:
        """The meaning of hollow and filled in its picture; empty where all lines have one mark."""
        if all(len(marks) < 2 for _, marks in self.rows):
            return ""
        return _LEGENDS[self.kind]

    @property
    def without_dots(self) -> str:
        """The meaning of a bar alone in its picture; empty where there is none."""
        wide = any(mark.wide for _, marks in self.rows for mark in marks)
        return "a bar without a dot depends on the wording" if wide else ""


def share_panel(report: PanelReport) -> ShareCard:
    """Make what can be shared of a panel: its first finding, and where beliefs went."""
    # Not before a panel is shared: it loads arithmetic.
    from heretix.studies.panel import POINT_COLUMNS

    waves = f"{len(report.waves)} wave{'' if len(report.waves) == 1 else 's'}"
    moved = {(s.claim, s.model, s.lens) for s in report.moved}
    ordered = sorted(report.series, key=lambda s: (s.claim, s.model, s.lens) not in moved)
    several = len({series.model for series in report.series}) > 1
    rows = []
    for series in ordered:
        ends = [p for p in series.points if p.prob_true is not None and p.ci_lo is not None]
        marks = tuple(
            figures.Mark(
                label=f"wave {p.wave}",
                prob=p.prob_true or 0.0,
                ci=(p.ci_lo or 0.0, p.ci_hi or 0.0),
                lens=series.lens,
            )
            for p in ([ends[0], ends[-1]] if len(ends) > 1 else ends)
        )
        if marks:
            name = f" ({short_model(series.model)})" if several else ""
            rows.append((f"{series.claim}{name}", marks))
    columns = ("claim", "model", "lens", *(name for name, _ in POINT_COLUMNS))
    table = tuple(
        {"claim": s.claim, "model": s.model, "lens": s.lens} | point.row()
        for s in report.series
        for point in s.points
    )
    return ShareCard(
        kind="panel",
        key=report.panel,
        about=f"Panel {report.panel}, {waves}",
        sentence=panel_finding(report).sentence,
        rows=tuple(rows),
        measured_at=report.waves[-1].started_at if report.waves else "",
        facts=(
            ("claims", str(len({s.claim for s in report.series}))),
            ("waves", str(len(report.waves))),
        ),
        columns=columns,
        table=table,
    )


def share_episode(
    episode: Episode, outcome: Outcome | None, positions: Sequence[Position] = ()
) -> ShareCard:
    """Make what can be shared of an episode: how it stands, or how it ended; the table is of the
    positions that are given."""
    terms = episode.terms
    begun, now = terms.c0_ppm / 1e6, episode.belief_ppm / 1e6
    marks = [figures.Mark(label="at the beginning", prob=begun, ci=(begun, begun))]
    if episode.steps:
        marks.append(figures.Mark(label="credited", prob=now, ci=(now, now), lens=terms.lens[:3]))
    at_ms = episode.measured_ms or episode.frozen_ms or episode.clock_ms
    columns = ("number", "at", "account", "side", "stake", "currency", "shares", "house")
    exponent = CURRENCIES[terms.currency].exponent
    table = tuple(
        {
            "number": p.number,
            "at": utc_text(p.at_ms / 1000),
            "account": p.account,
            "side": p.side.value,
            "stake": str(Decimal(p.stake).scaleb(-exponent)),
            "currency": terms.currency,
            "shares": str(Decimal(p.shares).scaleb(-exponent) / MICRO),
            "house": p.house,
        }
        for p in positions
    )
    bets = max(0, episode.position_count - 2)  # but for the house's seed on both sides
    return ShareCard(
        kind="episode",
        key=episode.id,
        about=terms.claim,
        sentence=_tell_episode(episode, outcome),
        rows=((f"belief, {name_documents(terms.lens[:3])}", tuple(marks)),),
        measured_at=utc_text(at_ms / 1000) if at_ms else "",
        facts=(
            ("state", episode.state.value),
            ("currency", terms.currency),
            ("models", ", ".join(map(short_model, terms.models))),
            ("bets", str(bets)),
            ("evidence", f"{len(episode.challenges)} brought, {len(episode.steps)} accepted"),
            ("terms", episode.terms_hash or "not opened"),
        ),
        columns=columns,
        table=table,
    )


def _tell_episode(episode: Episode, outcome: Outcome | None) -> str:
    terms, steps = episode.terms, len(episode.steps)
    play = "play money" if terms.currency == "PLAY" else ""
    invented = all(model.partition(":")[0] in MADE_UP_BY for model in terms.models)
    notes = " and ".join(filter(None, ["made-up answers" if invented else "", play]))
    made_up = f"{notes[0].upper()}{notes[1:]}: " if notes else ""
    models = " and ".join(map(short_model, terms.models))
    begun, now = chance(terms.c0_ppm / 1e6), chance(episode.belief_ppm / 1e6)
    if not steps:
        accepted = "was accepted" if outcome else "has been accepted"
        moved = f"no evidence {accepted}, and {models}'s belief at the start was {begun}"
    else:
        pieces = "one accepted piece" if steps == 1 else f"{steps} accepted pieces"
        whose = "it" if outcome and outcome.void is None else f"{models}'s belief"
        moved = f"{pieces} of evidence took {whose} from {begun} to {now}"
    if outcome and outcome.q_ppm is not None and steps:
        moved += f", and judges who took no part put it at {chance(outcome.q_ppm / 1e6)}"
    said = f"{_tell_outcome(episode, outcome, models)}; {moved}."
    return made_up + (said if made_up else f"{said[0].upper()}{said[1:]}")


def _tell_outcome(episode: Episode, outcome: Outcome | None, models: str) -> str:
    """Say how an episode ended, or that it hasn't: it stands first."""
    if outcome is None:
        state = episode.state.value
        return f"not decided yet ({_STATES.get(state, state)})"
    if outcome.void is not None:
        return "nothing was decided, and the stakes went back"
    if outcome.moved is None:
        return (
            f"whether evidence moved {models}'s belief for good can't be told, and the stakes went "
            "back"
        )
    way = {"heretic": "up", "orthodox": "down"}[outcome.moved.value]
    alone = "" if outcome.winner else "; one side had no bets, so the stakes went back"
    return f"evidence moved {models}'s belief {way}, and that lasted{alone}"


_STATES: Final = {"open": "open for bets", "challenge": "open for bets and evidence"}


def card_svg(shared: ShareCard, *, theme: Theme = LIGHT) -> str:
    """Draw the card: what it is about, the sentence, its picture, the date and the source."""
    width, height = CARD
    room, y = width - 2 * _MARGIN, _MARGIN + 8.0
    parts = [
        f'<rect width="{width}" height="{height}" fill="{theme.paper}"/>',
        f'<rect width="{width}" height="10" fill="{theme.colour("heretic")}"/>',
    ]

    def write(line: str, px: int, colour: str) -> None:
        at = f'x="{_MARGIN}" y="{y:.0f}" font-size="{px}"'
        parts.append(f'<text {at} fill="{colour}">{escape(line)}</text>')

    for line in wrap_text(shared.about, int(room / (26 * 0.5)), lines=2):
        y += 32
        write(line, 26, theme.muted)
    rows = [row for row in shared.rows if row[1]][:_ROWS]
    low = height - (98 if shared.note else 74) - (30 + 46 * len(rows) if rows else 0)
    for px in _SIZES:
        lines = wrap_text(shared.sentence, int(room / (px * _WIDTH_AT_1PX)), lines=99)
        if y + 18 + 1.22 * px * len(lines) <= low:
            break
    y += 12
    for spans in _lighten_qualifiers(lines, shared.sentence, theme):
        y += 1.22 * px
        parts.append(
            f'<text x="{_MARGIN}" y="{y:.0f}" font-size="{px}" fill="{theme.ink}" '
            f'font-weight="bold">{spans}</text>'
        )
    y = low + 26
    left, right = _MARGIN + 330, width - _MARGIN - 10
    scale = shared.scale
    for name, marks in rows:
        write(shorten(name, 30), 20, theme.ink)
        parts.append(_card_row(marks, scale, (left, right), y - 7, theme))
        y += 46
    if rows:
        parts += _card_axis(scale, (left, right), y - 12, theme)
    y = height - 36
    dated = f" · measured {shared.dated}" if shared.day else ""
    source = f"Heretix · {shared.kind} {shared.key}{dated}"
    # There is room for one of them; the sentence names the wording, too.
    legend = shared.legend or shared.without_dots
    source += f" · {legend}" if legend else ""
    write(source + (" · log-odds axis" if rows and scale.log_odds else ""), 18, theme.muted)
    if shared.note:
        y -= 24
        write(shared.note, 16, theme.muted)
    label = escape(strip_controls(f"{shared.about} {shared.sentence}"), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="{FONT}">'
        f"{''.join(parts)}</svg>"
    )


def _lighten_qualifiers(lines: Sequence[str], sentence: str, theme: Theme) -> Iterator[str]:
    """Set what qualifies a sentence more lightly than what was found, in its lines on a card."""
    light = [part for part, strong in emphasis(strip_controls(sentence)) if not strong]
    whole, place = " ".join(lines), 0
    soft = bytearray(len(whole))
    for part in light:
        begin = whole.find(part.strip(), place)
        if begin >= 0:  # else a word was broken within it, and all of it stays bold
            place = begin + len(part.strip())
            soft[begin:place] = b"\x01" * (place - begin)
    at = 0
    for line in lines:
        flags = soft[at : at + len(line)]
        at += len(line) + 1
        yield "".join(
            f'<tspan font-weight="normal" fill="{theme.muted}">{escape(text)}</tspan>'
            if is_soft
            else escape(text)
            for is_soft, text in (
                (key, "".join(char for _, char in group))
                for key, group in groupby(zip(flags, line, strict=True), key=lambda pair: pair[0])
            )
        )


def _card_axis(
    scale: figures.Scale, ends: tuple[float, float], y: float, theme: Theme
) -> Iterator[str]:
    """Write the ticks below the rows of a card."""
    left, right = ends
    for prob, word in scale.ticks:
        x = left + (right - left) * scale.at(prob) / 100
        yield (
            f'<text x="{x:.0f}" y="{y:.0f}" font-size="15" text-anchor="middle" '
            f'fill="{theme.muted}">{word}</text>'
        )


def _card_row(
    marks: Sequence[Mark], scale: figures.Scale, ends: tuple[float, float], y: float, theme: Theme
) -> str:
    def across(prob: float) -> float:
        return ends[0] + (ends[1] - ends[0]) * scale.at(prob) / 100

    base = f'y1="{y:.0f}" y2="{y:.0f}"'
    parts = [f'<line x1="{ends[0]}" x2="{ends[1]}" {base} stroke="{theme.grid}" stroke-width="2"/>']
    places, lines = [across(mark.prob) for mark in marks], figures.lines_of(marks, y, 18)
    if len(set(lines)) < len(marks):
        parts.append(
            f'<line x1="{min(places):.1f}" x2="{max(places):.1f}" {base} stroke="{theme.muted}" '
            'stroke-width="3"/>'
        )
    dots = []
    for number, (mark, x, at) in enumerate(zip(marks, places, lines, strict=True)):
        colour, hollow = theme.colour(mark.lens), number == 0 and len(marks) > 1
        lo, hi = map(across, mark.ci)
        parts.append(
            f'<rect x="{lo:.1f}" width="{hi - lo:.1f}" y="{at - 6:.0f}" height="12" '
            f'fill="{colour}" fill-opacity="0.35"/>'
        )
        if mark.wide:
            inside = f'fill="{theme.paper}"' if hollow else 'fill="none"'
            parts.append(
                f'<rect x="{lo:.1f}" width="{hi - lo:.1f}" y="{at - 6:.0f}" height="12" '
                f'{inside} stroke="{colour}" stroke-width="2"/>'
            )
        else:
            # Where both lie at one place, the hollow one is seen around the filled one.
            dots.append(
                f'<circle cx="{x:.1f}" cy="{at:.0f}" r="{10 if hollow else 8}" '
                f'fill="{theme.paper if hollow else colour}" stroke="{colour}" stroke-width="3"/>'
            )
    return "".join(parts + dots)


def card_png(shared: ShareCard, *, theme: Theme = LIGHT) -> bytes:
    """Draw the card as a picture of 1200 × 630 pixels."""
    from heretix.report.charts.output import drawing_bytes

    return drawing_bytes(card_svg(shared, theme=theme), ".png", scale=1.0)


def table_csv(shared: ShareCard) -> bytes:
    """Write the numbers behind it as CSV; what is missing is empty."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, shared.columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({k: cell_text(v) for k, v in row.items()} for row in shared.table)
    return sink.getvalue().encode("utf-8", "backslashreplace")


def cite_line(shared: ShareCard, address: str) -> str:
    """Write a citation for a text: who measured what, when, and where it stands."""
    stop = "" if shared.about.endswith((".", "!", "?")) else "."
    return (
        f"“{shared.sentence.removesuffix('.')}”. {shared.about}{stop} Heretix {VERSION}, "
        f"{shared.kind} {shared.key}{f', measured {shared.day}' if shared.day else ''}. {address}"
    ).rstrip()


def cite_bibtex(shared: ShareCard, address: str) -> str:
    """Write the citation as a BibTeX entry."""
    fields = {
        "title": shared.sentence.removesuffix("."),
        "howpublished": f"Measured with Heretix {VERSION}",
        "year": shared.day[:4],
        "month": shared.day[5:7],
        "note": f"{shared.about} ({shared.kind} {shared.key})",
        "url": address,
    }
    lines = "".join(f"  {name} = {{{_tex(value)}}},\n" for name, value in fields.items() if value)
    key = re.sub(r"[^A-Za-z0-9]+", "-", f"heretix-{shared.kind}-{shared.key}")
    return f"@misc{{{key},\n{lines}}}\n"


_TEX: Final = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def _tex(text: str) -> str:
    return strip_controls(text).translate(_TEX)


_ON_A_PAGE: Final[Mapping[str, Mapping[str, str]]] = {
    "claim": {
        "model": "model",
        "lens": "lens",
        "variant": "experiment",
        "prob_true_rpl": "p(true)",
        "ci_lo": "95% interval",
        "is_stable": "stable",
        "updated_at": "measured",
    },
    "panel": {
        "claim": "claim",
        "model": "model",
        "lens": "lens",
        "wave": "wave",
        "at": "measured",
        "prob_true": "p(true)",
        "ci_lo": "95% interval",
        "t_lo": "by Student's t",
        "extreme_share": "exactly 0 or 1",
        "clamp_sensitive": "clamp-sensitive",
    },
    "episode": {
        "at": "when",
        "account": "account",
        "side": "side",
        "stake": "stake",
        "currency": "currency",
        "shares": "shares",
    },
}
"""By kind the columns that a page has room for, with their headings; the CSV has all of them."""


def page_table(shared: ShareCard) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """Choose and word what a page shows of the numbers: headings, rows, and those of experiments
    and parts of episodes, which only some will look at."""
    columns = dict(_ON_A_PAGE[shared.kind])
    if not any(row.get("variant") for row in shared.table):
        columns.pop("variant", None)
    rows = sorted(shared.table, key=lambda row: row.get("variant") or "")
    first, rest = (
        [[_cell(row, name) for name in columns] for row in rows if bool(row.get("variant")) is part]
        for part in (False, True)
    )
    return list(columns.values()), first, rest


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if name in {"ci_lo", "t_lo"} and value is not None:
        return f"{value:.3f} to {row[f'{name[:-2]}hi']:.3f}"
    if name == "extreme_share" and value is not None:
        return percent(value)
    if name == "model":
        return short_model(value)
    if name in {"at", "updated_at"}:
        return str(value)[:16].replace("T", " ")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def write_share_html(shared: ShareCard, *, address: str = "") -> str:
    """Write a report in one file that opens offline: sentence, picture, numbers, method once."""
    from heretix.report.charts.theme import css_variables
    from heretix.report.document import environment

    return (
        environment()
        .get_template("shared.html")
        .render(
            shared=shared,
            axis=figures.axis,
            dumbbell=figures.dumbbell,
            palette=css_variables(),
            lenses=[code.lower() for code in LENSES],
            table=page_table(shared),
            method=METHOD,
            cite=cite_line(shared, address).strip(),
            bibtex=cite_bibtex(shared, address),
            version=VERSION,
        )
    )
