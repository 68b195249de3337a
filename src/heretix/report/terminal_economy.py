"""Accounts, markets, episodes and rewards as a person reads them in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from heretix.core.clock import span_text, utc_text_of_ms
from heretix.core.lenses import RPL
from heretix.economy.episode.moves import find_due
from heretix.economy.episode.state import Fate, State
from heretix.economy.ledger import CURRENCIES, PPM, format_amount
from heretix.economy.market import MICRO, Side, price_ppm
from heretix.report.terminal import facts_table, one_line, plain_table, shock_text
from heretix.report.words import feed_text, plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from rich.table import Table

    from heretix.economy import exchange
    from heretix.economy.episode.state import Episode
    from heretix.economy.exploration_service import Burn, Credited, Prospect, Standing
    from heretix.economy.ledger import Breach, LedgerReport
    from heretix.economy.market import Position, Quote

_WIDE: Final = 120  # Columns from which a transfer has room on one line
_STYLE: Final = {Side.HERETIC: "magenta", Side.ORTHODOX: "blue"}


def money(amount: int, currency: str) -> str:
    """Write an amount as people read it."""
    return format_amount(amount, CURRENCIES[currency])


moment = utc_text_of_ms


def balances_table(holdings: Sequence[exchange.Holding]) -> Table:
    """List who holds what."""
    rows = [
        (held.account.id, money(held.balance, held.account.currency), held.person or "")
        for held in holdings
    ]
    return plain_table("~account", ">balance", "person", rows=rows)


def history_table(entries: Sequence[exchange.Entry], *, width: int) -> Table:
    """List transfers as they stand in the chain; on a narrow screen three lines each."""
    wide = width >= _WIDE
    columns = (">seq", "at", ">amount", "code", "~from", "~to") if wide else (">seq", "~transfer")
    table = plain_table(*columns)
    for entry in entries:
        moved, at = entry.transfer, moment(entry.at_ms)
        amount, code = money(moved.amount, moved.currency), moved.code.value
        stacked = f"{amount} {code}, {at}\nfrom {moved.debit}\nto {moved.credit}"
        cells = (at, amount, code, moved.debit, moved.credit) if wide else (stacked,)
        table.add_row(str(moved.seq), *map(Text, cells))
    return table


def ledger_view(report: LedgerReport) -> RenderableType:
    """Say if the whole ledger holds."""
    if report.ok:
        said = f"{report.count:,} transfers verified; the chain ends in {report.last_hash[:16]}"
        return Text(said, style="green")
    return breaches_view(f"{report.count:,} transfers", report.breaches)


def breaches_view(subject: str, breaches: Sequence[Breach]) -> RenderableType:
    """List what doesn't hold."""
    count = "1 thing doesn't" if len(breaches) == 1 else f"{len(breaches)} things don't"
    head = Text(f"{subject}: {count} hold", style="bold red")
    lines = [Text(f"  {b.rule}: {b.subject}: {b.detail}", style="red") for b in breaches]
    return Group(head, *lines)


def episodes_table(found: Sequence[exchange.EpisodeSummary]) -> Table:
    """List episodes and what their markets say."""
    table = plain_table("episode", "state", ">heretic", ">staked", ">bets", "~claim")
    for item in found:
        market = item.market
        table.add_row(
            item.id,
            item.state.value,
            "—" if market is None else _percent(market.probability(Side.HERETIC)),
            "—" if market is None else money(market.money, item.currency),
            str(max(0, item.position_count - 2)),
            one_line(item.claim),
        )
    return table


def market_view(episode: Episode, positions: Sequence[Position]) -> RenderableType:
    """Show the two pools of an episode."""
    head = Text(f"{episode.id}  ", style="dim").append(episode.state.value, style="bold cyan")
    parts: list[RenderableType] = [Text(episode.terms.claim, style="bold"), head]
    if episode.market is None:
        return Group(*parts, Text("not open yet: nothing can be bet", style="dim"))
    table = plain_table("side", ">price", ">implied", ">staked", "bets")
    kept = episode.select_positions(positions)
    for side in Side:
        own = [position for position in kept if position.side is side]
        outside = sum(not position.house for position in own)
        table.add_row(
            Text(side.value, style=_STYLE[side]),
            _price(episode.market.price(side)),
            _percent(episode.market.probability(side)),
            money(sum(position.stake for position in own), episode.terms.currency),
            f"{outside} and the house's",
        )
    return Group(*parts, table)


def quote_view(quote: Quote, currency: str, typical: exchange.TypicalRate | None) -> RenderableType:
    """Show what a bet would buy, and what it can come to."""
    tau = quote.tau_max_ppm
    usual = "not known: no side has won an episode here yet"
    if typical is not None:
        usual = (
            f"{money(quote.floor_after_fee(typical.rate_ppm), currency)} or more, at "
            f"{typical.rate_ppm / PPM:.2%}: the median rate of the last "
            f"{plural(typical.episodes, 'episode')} that a side won"
        )
    rows = {
        "stake": f"{money(quote.stake, currency)} on {quote.side.value}",
        "shares": f"{quote.shares / MICRO / 10 ** CURRENCIES[currency].exponent:,.4f}",
        "average price": _price(quote.average_price),
        "marginal price": f"{_price(quote.marginal_price)} after this bet",
        "implied": f"{_percent(quote.probability)} for {quote.side.value} after this bet",
        "gain if it wins": (
            f"{money(0, currency)} or more: it grows with the rate at which the episode settles, "
            f"to at least {money(quote.floor_after_fee(tau), currency)} at the full rate of "
            f"{tau / PPM:.0%}, after a fee of {quote.fee_ppm / PPM:.0%}"
        ),
        "typical gain": usual,
        "worst case": (
            f"{money(quote.worst_case, currency)} lost, if the other side wins at the full rate"
        ),
        "held or void": f"{money(quote.stake, currency)} comes back whole",
    }
    return facts_table(rows.items())


def positions_table(held: Sequence[exchange.HeldPosition], currency: str = "PLAY") -> Table:
    """List a person's bets."""
    table = plain_table("episode", "state", "side", ">staked", ">shares", "~claim")
    scale = MICRO * 10 ** CURRENCIES[currency].exponent
    for item in held:
        position = item.position
        table.add_row(
            item.episode,
            f"{item.state.value}, given back" if item.late else item.state.value,
            Text(position.side.value, style=_STYLE[position.side]),
            money(position.stake, currency),
            f"{position.shares / scale:,.4f}",
            one_line(item.claim),
        )
    return table


def episode_view(
    episode: Episode,
    positions: Sequence[Position],
    told: Sequence[exchange.StoredMeasurement],
    *,
    now_ms: int,
    whole: bool = True,
) -> RenderableType:
    """An episode: where it stands, what was measured, what comes next; with terms and times."""
    parts: list[RenderableType] = [market_view(episode, positions)]
    if whole:
        parts += [Text(""), _terms(episode), Text(""), _timeline(episode)]
    if episode.challenges:
        parts += [Text(""), _challenges(episode)]
    if episode.measurements:
        parts += [Text(""), _measurements(episode)]
    for dispute in episode.disputes:
        ruling = {None: "pending", True: "upheld", False: "rejected"}[dispute.upheld]
        bond = money(dispute.bond, episode.terms.currency)
        parts.append(Text(f"dispute {dispute.round}: {dispute.ground.value}, {bond}, {ruling}"))
    executions = plural(sum(len(item.source.executions) for item in told), "execution")
    parts += [Text(""), Text(f"measured in {executions}", style="dim")]
    parts += [Text(line, style="dim") for line in _next(episode, positions, now_ms)]
    return Group(*parts)


def leaderboard_table(standings: Sequence[Standing]) -> Table:
    """Rank those whose findings last."""
    rows = [
        (
            str(rank),
            standing.person,
            f"{standing.reputation_ppm / PPM:+.4f}",
            str(standing.rewards),
            f"{standing.passed} of {standing.attempts}",
            money(standing.credits, "XC"),
        )
        for rank, standing in enumerate(standings, start=1)
    ]
    columns = (">", "person", ">reputation", ">rewards", ">passed", ">credits")
    return plain_table(*columns, rows=rows)


def standing_view(standing: Standing) -> RenderableType:
    """Show one person's standing."""
    return facts_table(
        {
            "person": standing.person,
            "reputation": f"{standing.reputation_ppm / PPM:+.4f} from {standing.rewards} rewards",
            "challenges": f"{standing.passed} of {standing.attempts} passed",
            "failure rate": f"{standing.failure_rate_ppm / PPM:.0%}, as stakes count it",
            "credits": f"{money(standing.credits, 'XC')} of {standing.granted:,} granted",
        }.items()
    )


def credited_view(credited: Credited) -> RenderableType:
    """Show what a finding earned, or why it didn't."""
    finding, crediting = credited.finding, credited.crediting
    facts = {"claim": finding.claim, "model": finding.model}
    for lens, item in ((finding.lens, finding.evidence), (RPL, finding.prior)):
        span = f"{_ppm(item.lo_ppm)} to {_ppm(item.hi_ppm)}"
        facts[f"{lens} 95% CI"] = span if item.stable else f"{span}, unstable"
    why = f" ({crediting.reason.value})" if crediting.reason else ""
    facts["found"] = money(crediting.found, "XC")
    facts["credited"] = f"{money(crediting.amount, 'XC')}{why}"
    facts["balance"] = money(credited.balance, "XC")
    return facts_table(facts.items())


def burns_table(burns: Sequence[Burn]) -> Table:
    """List what decay took."""
    rows = [(burn.person, money(burn.amount, "XC"), money(burn.balance, "XC")) for burn in burns]
    return plain_table("person", ">burnt", ">left", rows=rows)


def prospects_table(prospects: Sequence[Prospect]) -> Table:
    """List the anomaly feed, and what is still to be had."""
    table = plain_table("Shock Index", "model", "credited to", "~claim")
    for prospect in prospects:
        anomaly, owner = prospect.anomaly, prospect.credited_to
        table.add_row(
            shock_text(anomaly.shock_index),
            Text(anomaly.model),
            Text(owner or "nobody yet", style="" if owner else "dim"),
            Text(f"({feed_text(anomaly)}) ", style="green") + one_line(anomaly.claim),
        )
    return table


def _terms(episode: Episode) -> Table:
    terms = episode.terms
    drawn = f"{terms.parameters.judges} of {len(terms.hold_outs)}, drawn at the freeze"
    facts = {
        "lens": terms.lens,
        "models": ", ".join(terms.models),
        "judges": ", ".join(episode.judges) or drawn,
        "sampling": f"K={terms.K} R={terms.R} T={terms.T} B={terms.B}, {terms.bank}",
        "terms": episode.terms_hash or "not hashed yet: a draft",
        "belief": f"{_ppm(terms.c0_ppm)} at open, {_ppm(episode.belief_ppm)} credited now",
    }
    return facts_table(facts.items())


def _timeline(episode: Episode) -> Table:
    terms, frozen = episode.terms, episode.frozen_ms
    second = None if frozen is None else frozen + terms.parameters.durability_ms
    moments: list[tuple[str, int | None, str]] = [
        ("challenges from", terms.challenge_from_ms, ""),
        ("effective close from", terms.close_from_ms, ""),
        ("bets and challenges until", terms.close_until_ms, ""),
        ("reveals until", terms.freeze_at_ms, ""),
        ("effective close", episode.close_ms, "drawn at the freeze"),
        ("frozen", frozen, "not yet"),
        ("second measurement from", second, "after the durability window"),
        ("measured", episode.measured_ms, "not yet"),
    ]
    return facts_table(
        (name, unknown if at is None else moment(at)) for name, at, unknown in moments
    )


def _challenges(episode: Episode) -> Table:
    table = plain_table(">", "by", "direction", ">stake", "fate", "~path")
    steps = {step.evidence: step for step in episode.steps}
    for challenge in episode.challenges:
        step = steps.get(challenge.bundle_sha256 or "")
        moved = step if challenge.fate is Fate.ACCEPTED else None
        table.add_row(
            str(challenge.number),
            Text(_person_of(challenge.account)),
            challenge.direction.value if challenge.direction else "sealed",
            money(challenge.stake, episode.terms.currency),
            challenge.fate.value,
            f"{_ppm(moved.c_from_ppm)} to {_ppm(moved.c_to_ppm)}" if moved else "",
        )
    return table


def _measurements(episode: Episode) -> Table:
    table = plain_table("measurement", ">P(up)", "shift, 95%", ">judges")
    for name, found in zip(("first", "second"), episode.measurements, strict=False):
        known = found.shift_lo is not None and found.shift_hi is not None
        table.add_row(
            name,
            "—" if found.p_up_ppm is None else f"{found.p_up_ppm / PPM:.4f}",
            f"{found.shift_lo:+.3f} to {found.shift_hi:+.3f}" if known else "—",
            f"{len(found.shifts)} of {len(found.readings)}",
        )
    return table


_BY_HAND: Final = {
    "begin": "freeze",
    "freeze": "freeze",
    "judge": "judge",
    "conclude": "measure",
    "first": "measure",
    "second": "measure",
    "rule": "rule",
    "settle": "settle",
}
"""Command that makes each move that is due. Evidence may be committed as soon as its time comes."""


def _next(episode: Episode, positions: Sequence[Position], now_ms: int) -> list[str]:
    """Name the commands that move the episode on, and the moments that they wait for."""
    name, terms, due = episode.id, episode.terms, find_due(episode, positions)
    if due is None:
        move = "episode open" if episode.state is State.DRAFT else "rewards explain"
        return [f"next: heretix {move} {name}"]
    lines = []
    if episode.state in {State.OPEN, State.CHALLENGE} and now_ms <= terms.close_until_ms:
        begin, until = (
            terms.challenge_from_ms,
            f", until {_write_ahead(terms.close_until_ms, now_ms)}",
        )
        lines.append(f"heretix market buy {name} heretic 10{until}")
        since = f", from {_write_ahead(begin, now_ms)}" if now_ms < begin else ""
        lines.append(f"heretix episode challenge {name} --document FILE{since}{until}")
    if any(c.fate is Fate.COMMITTED for c in episode.challenges) and now_ms <= terms.freeze_at_ms:
        begin, until = terms.close_until_ms, f", until {_write_ahead(terms.freeze_at_ms, now_ms)}"
        since = f", from {_write_ahead(begin, now_ms)}" if now_ms <= begin else ""
        lines.append(f"heretix episode reveal FILE (whoever committed){since}{until}")
    # By hand a dispute can be ruled on at once.
    at_ms = terms.freeze_at_ms if due.step == "begin" else due.at_ms
    waits = now_ms < at_ms and due.step != "rule"
    since = f", from {_write_ahead(at_ms, now_ms)}" if waits else ""
    lines.append(f"heretix episode {_BY_HAND[due.step]} {name}{since}")
    firsts = ["next", *("or" for _ in lines[1:-1]), "then"]
    if waits and due.step == "settle":
        lines.append(f"heretix episode dispute {name}, until {_write_ahead(at_ms, now_ms)}")
        firsts[-1] = "or"
    return [f"{first}: {line}" for first, line in zip(firsts, lines, strict=False)]


def _write_ahead(at_ms: int, now_ms: int) -> str:
    """Write a moment, and how long it is until then."""
    return f"{moment(at_ms)} (in {span_text(at_ms - now_ms)})"


def _person_of(account: str) -> str:
    kind, _, rest = account.partition(":")
    return rest.rpartition(":")[0] if kind == "user" else account


def _price(price: Fraction) -> str:
    return f"{price_ppm(price) / PPM:.4f}"


def _percent(probability: Fraction) -> str:
    return f"{float(probability):.1%}"


def _ppm(ppm: int) -> str:
    return f"{ppm / PPM:.2%}"
