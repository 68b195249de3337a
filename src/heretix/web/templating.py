"""Templates: one environment, the formats that every page shares, and answers with an ETag."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from heretix.core.canonical import sha256_text
from heretix.core.clock import span_text
from heretix.core.errors import HeretixError
from heretix.core.lenses import LENSES, RPL
from heretix.economy.ledger import CURRENCIES, PPM, format_amount
from heretix.economy.market import MICRO
from heretix.economy.sentences import Surface
from heretix.economy.sentences import sentence as write_reason
from heretix.providers.catalog import DEMONSTRATION_MODELS, MADE_UP_BY
from heretix.report import figures, findings, words
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from heretix.economy.ledger import Reason
    from heretix.web.state import AppState

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


NONE: Final = "—"


def money(amount: int | None, currency: str) -> str:
    """Write an amount with its currency, with a real minus."""
    if amount is None:
        return NONE
    return format_amount(amount, CURRENCIES[currency]).replace("-", "−")


def plain_amount(amount: int, currency: str) -> str:
    """Write an amount as it is typed into a form."""
    exponent = CURRENCIES[currency].exponent
    return str(Decimal(amount).scaleb(-exponent).quantize(Decimal(1).scaleb(-exponent)))


def shares(micro: int, currency: str) -> str:
    """Write shares: as many as units of the currency that they pay."""
    return f"{micro / MICRO / 10 ** CURRENCIES[currency].exponent:,.4f}"


def when(at_ms: int | None) -> Markup:
    """Write a moment in UTC, exact for machines and short for people."""
    if at_ms is None:
        return escape(NONE)
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return _time_tag(at, at.isoformat(timespec="milliseconds"))


def holder(account: str) -> str:
    """Name whose account it is, as people say it."""
    kind, _, rest = account.partition(":")
    if kind == "user":
        return rest.rpartition(":")[0]
    if kind == "escrow":
        return f"pot: {rest.split(':')[1]}s" if rest.count(":") == 2 else account
    names = {"epc_fund": "the reward fund", "rounding": "rounding", "issuance": "the mint"}
    return names.get(kind, f"the {kind}" if kind in {"house", "platform"} else kind)


class PageSurface(Surface):
    """Formats of the pages: real minus signs, rounded percents, short dates, people's names."""

    def money(self, minor: int) -> str:
        return money(minor, self.currency)

    def moment(self, at_ms: int) -> str:
        return when(at_ms).striptags()

    def ppm(self, value: int) -> str:
        """Write parts per million as percent, two decimals at most."""
        return f"{100 * value / PPM:.2f}".rstrip("0").rstrip(".") + "%"

    def holder(self, account: str) -> str:
        return holder(account)


def reason(given: Reason, currency: str) -> str:
    """Say why money moved, in the formats of the pages."""
    return write_reason(given, PageSurface(currency))


_TICKS: Final = "".join(f'<path d="M{x} 16v{8 if x % 500 else 14}"/>' for x in range(0, 1001, 100))
_ODDS_TICKS: Final = "".join(
    f'<path d="M{10 * figures.Scale(True).at(prob):.0f} 16v{14 if prob == 0.5 else 8}"/>'
    for prob, _ in figures.Scale(True).ticks
)


class Place(NamedTuple):
    """One entry of the masthead; `below` are the addresses that belong to it."""

    label: str
    href: str
    below: tuple[str, ...] = ()

    def here(self, path: str) -> bool:
        """Say whether a page is at this place."""
        return path == self.href or path.startswith(self.below)


NAVIGATION: Final = (
    Place("Claims", "/search", ("/runs/", "/claims")),
    Place("Measure", "/measure", ("/measure/",)),
    Place("Anomalies", "/anomalies"),
    Place("Compare", "/compare"),
    Place("Panels", "/panels", ("/panels/",)),
    Place("Jobs", "/jobs", ("/jobs/",)),
    Place("Sources", "/policy", ("/policy/", "/bundles/")),
    Place("Episodes", "/episodes", ("/episodes/", "/leaderboard", "/ledger", "/profile")),
    Place("Method", "/method"),
)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Make the one environment: everything is escaped, and an unknown name is an error."""
    env = Environment(
        loader=PackageLoader("heretix.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=400,
    )
    env.filters |= _FILTERS
    env.globals |= {
        "version": VERSION,
        "navigation": NAVIGATION,
        "lenses_known": LENSES,
        "rule": rule,
        "axis": figures.axis,
        "difference": figures.difference,
        "dumbbell": figures.dumbbell,
        "scale_of": lambda marks: figures.Scale.of(mark.prob for mark in marks),
        "scale_of_all": lambda found, marks_of: figures.Scale.of(
            mark.prob for one in found for mark in marks_of(one)[1]
        ),
        "drop_detail": words.drop_detail,
        "not_assessed": words.NOT_ASSESSED,
        "stance_text": words.stance_text,
        "beside_text": words.beside_text,
        "check_text": words.check_text,
        "clamp_sensitive": words.warn_clamp_sensitive,
        "feed_text": words.feed_text,
        "finding_of": findings.belief_finding,
        "leading_interval": findings.leading_interval,
        "shift_finding": findings.shift_finding,
        "few_pairs": words.warn_few_pairs,
        "few_wordings": words.warn_few_wordings,
        "p_text": words.p_text,
        "placebo_text": words.placebo_text,
        "twins_text": words.twins_text,
        "unchecked": words.warn_unchecked,
        "label_of": words.warning_label,
        "missing_reason": words.missing_reason,
        "no_estimate_reason": words.no_estimate_reason,
    }
    return env


def page(
    request: Request,
    name: str,
    /,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> Response:
    """Render a whole page for whoever asked; with a `problem`, under its status. A reader that has
    it already is told so."""
    from heretix.web.auth import visit_of
    from heretix.web.problems import status_of

    visit = visit_of(request)
    problem = values.get("problem")
    if isinstance(problem, HeretixError):
        status = status_of(problem)
    app = request.app.state.heretix
    template = environment().get_template(name)
    assets = request.app.state.assets
    html = template.render(
        request=request,
        path=request.url.path,
        address_of=partial(address_of, request),
        visit=visit,
        app=app,
        assets=assets,
        **values,
    )
    response = send_with_etag(request, html.encode("utf-8", "replace"), "text/html", status=status)
    for key, value in (headers or {}).items():
        response.headers[key] = value
    visit.set_cookies(response)
    return response


def address_of(request: Request, path: str) -> str:
    """Name the whole address of a page or file; of a published site its file, where the place of
    the site is known, and else nothing."""
    app: AppState = request.app.state.heretix
    if not app.published:
        return f"{request.url.scheme}://{request.url.netloc}{path}"
    from heretix.web.publish import file_of

    return f"{app.base_url}/{file_of(path)}" if app.base_url else ""


def fragment(name: str, /, **values: Any) -> Markup:
    """Render what depends on its values alone: a piece of a page that can be cached, or an error
    before anybody is known."""
    return Markup(environment().get_template(name).render(**values))  # noqa: S704


def etag_of(content: bytes) -> str:
    """Make a strong validator: equal content, equal tag."""
    return f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def send_with_etag(
    request: Request,
    content: bytes,
    media_type: str,
    *,
    status: int = 200,
    cache_control: str = "private, no-cache",
    etag: str | None = None,
) -> Response:
    """Send content with its ETag, or 304 when the reader's copy is this one."""
    etag = etag or etag_of(content)
    headers = {"etag": etag, "cache-control": cache_control}
    known = request.headers.get("if-none-match", "").split(",")
    current = any(part.strip().removeprefix("W/") in {etag, "*"} for part in known)
    if current and status == 200 and request.method in {"GET", "HEAD"}:
        return Response(status_code=304, headers=headers)
    return Response(content, status, headers=headers, media_type=media_type)


def prob(value: float | None, digits: int = 3) -> str:
    """Write a probability. One that isn't known is a dash, never a number."""
    return NONE if value is None else f"{value:.{digits}f}"


def write_signed(value: float | None, digits: int = 3) -> str:
    """Write a difference, with a real minus."""
    return NONE if value is None else f"{value:+.{digits}f}".replace("-", "−")


def usd(value: float | None) -> str:
    """Write dollars; small amounts keep the digits that matter."""
    if value is None:
        return "unknown"
    if value == 0:
        return "$0"
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}"


def duration(seconds: float | None) -> str:
    """Write a length of time, as people say it."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return "under a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _time_tag(at: datetime, exact: str) -> Markup:
    shown = f"{words.day_words(at)}, {at.hour:02}:{at.minute:02} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, shown)


def moment(text: str | None) -> Markup:
    """Write a stored time stamp, exact for machines and short for people."""
    try:
        return (
            _time_tag(datetime.fromisoformat(text).astimezone(UTC), text) if text else escape(NONE)
        )
    except ValueError:
        return escape(text)


def mark_code(text: object) -> Markup:
    """Write a message with its subject, which stands in backticks, as code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if inside % 2 else escape(part)
        for inside, part in enumerate(parts)
    )


def day(given: str | date | None) -> str:
    """Write the day of a time stamp; a bare day belongs to no time zone."""
    if not given:
        return NONE
    if not isinstance(given, str):
        return words.day_words(given)
    try:
        bare = len(given) == len("2026-01-01")
        at = date.fromisoformat(given) if bare else datetime.fromisoformat(given).astimezone(UTC)
    except ValueError:
        return given
    return words.day_words(at)


def time_between(begun: str, ended: str) -> str:
    """Write the length of time from one time stamp to another."""
    try:
        between = datetime.fromisoformat(ended) - datetime.fromisoformat(begun)
    except ValueError:
        return NONE
    return duration(between.total_seconds())


def sentence(text: str) -> str:
    """Write a note that stands among sentences: it begins and ends like one."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def model_label(name: str) -> str:
    """Mark a model whose numbers nobody should quote; the others get no mark."""
    if name in DEMONSTRATION_MODELS:
        return "demonstration"
    return "made up" if name.partition(":")[0] in MADE_UP_BY else ""


def short_id(text: str | None) -> str:
    """Shorten an id to what is enough to recognise it."""
    if not text:
        return NONE
    head, _, tail = text.rpartition("-") if text.startswith("heretix-") else ("", "", text)
    return f"{head}-{tail[:8]}" if head else text.removeprefix("exec-")[:8]


def rule(
    value: float | None,
    ci: tuple[float, float] | None,
    lens: str = RPL,
    *,
    ghost: float | None = None,
    leads: bool = False,
    scale: figures.Scale = figures.EVEN,
) -> Markup:
    """Draw a belief on a rule from 0 to 1: the point, its interval, and another one's place.

    An interval that leads stands in place of the point.
    """
    if value is None or ci is None:
        return Markup('<span class="rule rule-empty" aria-hidden="true"></span>')
    lo, hi, at = (round(10 * scale.at(prob)) for prob in (*ci, value))
    other = (
        "" if ghost is None else f'<path class="rule-ghost" d="M{10 * scale.at(ghost):.0f} 2v26"/>'
    )
    point = "" if leads else f'<path class="rule-point" d="M{at} 4v24"/>'
    told = "" if leads else f"{value:.3f}, "
    ticks = _TICKS if not scale.log_odds else _ODDS_TICKS
    return Markup(  # noqa: S704
        f'<svg class="rule lens-{escape(lens.lower())}" viewBox="-12 0 1024 32" '
        f'preserveAspectRatio="none" role="img" aria-label="{told}95% interval '
        f'{ci[0]:.3f} to {ci[1]:.3f}"><g class="rule-scale"><path d="M0 16h1000"/>{ticks}</g>'
        f'{other}<path class="rule-span" d="M{lo} 16H{max(hi, lo + 4)}"/>'
        f'<path class="rule-caps" d="M{lo} 9v14M{hi} 9v14"/>{point}</svg>'
    )


_FILTERS: Final[Mapping[str, Callable[..., str]]] = {
    "reliability": words.reliability_text,
    "chance": lambda value: f"{float(value):.1%}",
    "code": lambda value: CODES.get(value, value),
    "percent_of": lambda value: NONE if value is None else findings.chance(value),
    "short_model": findings.short_model,
    "emphasise": figures.emphasise,
    "count": lambda value: NONE if value is None else f"{value:,}",
    "day": day,
    "digest": lambda claim: sha256_text(claim)[:16],
    "duration": duration,
    "holder": holder,
    "between": lambda ci: findings.write_interval(*ci),
    "interval": lambda ci: NONE if ci is None else f"{ci[0]:.3f} – {ci[1]:.3f}",
    "time_between": time_between,
    "lens_name": lambda code: LENSES[code].name if code in LENSES else code,
    "model_label": model_label,
    "moment": moment,
    "money": money,
    "money_change": lambda amount, currency: "+" * (amount > 0) + money(amount, currency),
    "percent": lambda value: NONE if value is None else f"{value:.0%}",
    "plain_amount": plain_amount,
    "ppm": lambda value, digits=2: NONE if value is None else f"{value / PPM:.{digits}%}",
    "price": lambda value: f"{float(value):.4f}",
    "prob": prob,
    "reason": reason,
    "sentence": sentence,
    "shares": shares,
    "short_id": short_id,
    "signed": write_signed,
    "span": span_text,
    "mark_code": mark_code,
    "usd": usd,
    "when": when,
}
