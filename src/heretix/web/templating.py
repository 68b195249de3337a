"""Templates: one environment, the formats that every page shares, and answers with an ETag."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from heretix.providers.catalog import DEMONSTRATION_MODELS, MADE_UP_BY
from heretix.report.words import few_wordings, label_of
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

__all__ = [
    "bare_page",
    "environment",
    "etag_of",
    "fragment",
    "fresh",
    "interval",
    "page",
    "prob",
    "signed",
    "usd",
]

NONE: Final = "—"

_TICKS: Final = "".join(f'<path d="M{x} 16v{8 if x % 500 else 14}"/>' for x in range(0, 1001, 100))
_MONTHS: Final = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"

LENS_NAMES: Final[Mapping[str, str]] = {
    "RPL": "raw prior",
    "NUL": "frame, no documents",
    "MEL": "mainstream evidence",
    "HEL": "heterodox evidence",
    "SEL": "sandbox evidence",
}


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The one environment: everything is escaped, and a name that isn't there is an error."""
    env = Environment(
        loader=PackageLoader("heretix.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=400,
    )
    env.filters |= {
        "count": count,
        "day": day,
        "duration": duration,
        "interval": interval,
        "lasted": lasted,
        "lens_name": lens_name,
        "model_label": model_label,
        "moment": moment,
        "percent": percent,
        "prob": prob,
        "sentence": sentence,
        "short_id": short_id,
        "signed": signed,
        "ticked": ticked,
        "usd": usd,
    }
    env.globals |= {
        "version": VERSION,
        "lens_names": LENS_NAMES,
        "rule": rule,
        "few_wordings": few_wordings,
        "label_of": label_of,
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
    """A whole page for whoever asked. A reader that has it already is told so."""
    from heretix.web.identity import visit_of

    visit = visit_of(request)
    desk = request.app.state.desk
    html = (
        environment()
        .get_template(name)
        .render(
            request=request,
            path=request.url.path,
            visit=visit,
            desk=desk,
            assets=request.app.state.assets,
            **values,
        )
    )
    response = fresh(request, html.encode("utf-8", "replace"), "text/html", status=status)
    for key, value in (headers or {}).items():
        response.headers[key] = value
    visit.keep(response)
    return response


def bare_page(name: str, /, **values: Any) -> str:
    """A page that needs nobody to be known: errors can happen before anybody is."""
    return environment().get_template(name).render(**values)


def fragment(name: str, /, **values: Any) -> Markup:
    """A piece of a page that depends on its values alone, so that it can be kept."""
    return Markup(environment().get_template(name).render(**values))  # noqa: S704


def etag_of(content: bytes) -> str:
    """A strong validator: equal content, equal tag."""
    return f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def fresh(
    request: Request,
    content: bytes,
    media_type: str,
    *,
    status: int = 200,
    cache_control: str = "private, no-cache",
    etag: str | None = None,
) -> Response:
    """Content with its ETag, or 304 when the reader's copy is this one."""
    etag = etag or etag_of(content)
    headers = {"etag": etag, "cache-control": cache_control}
    known = request.headers.get("if-none-match", "")
    if status == 200 and request.method in {"GET", "HEAD"} and _among(etag, known):
        return Response(status_code=304, headers=headers)
    return Response(content, status, headers=headers, media_type=media_type)


def _among(etag: str, known: str) -> bool:
    return any(part.strip().removeprefix("W/") in {etag, "*"} for part in known.split(","))


def prob(value: float | None, digits: int = 3) -> str:
    """A probability. One that isn't known is a dash, never a number."""
    return NONE if value is None else f"{value:.{digits}f}"


def interval(value: tuple[float, float] | None) -> str:
    """A 95% interval of probabilities."""
    return NONE if value is None else f"{value[0]:.3f} – {value[1]:.3f}"


def signed(value: float | None, digits: int = 3) -> str:
    """A difference, with a real minus."""
    return NONE if value is None else f"{value:+.{digits}f}".replace("-", "−")


def percent(value: float | None) -> str:
    """A share as whole percent."""
    return NONE if value is None else f"{value:.0%}"


def count(value: int | None) -> str:
    """A whole number, grouped."""
    return NONE if value is None else f"{value:,}"


def usd(value: float | None) -> str:
    """Dollars; small amounts keep the digits that matter."""
    if value is None:
        return "unknown"
    if value == 0:
        return "$0"
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}"


def duration(seconds: float | None) -> str:
    """A length of time, as people say it."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return "under a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def moment(text: str | None) -> Markup:
    """A stored time stamp, exact for machines and short for people."""
    if not text:
        return escape(NONE)
    try:
        when = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return escape(text)
    shown = f"{_date(when)}, {when.hour:02}:{when.minute:02} UTC"
    exact = escape(text)
    return Markup(f'<time datetime="{exact}" title="{exact}">{shown}</time>')  # noqa: S704


def ticked(text: object) -> Markup:
    """A message whose subject stands in backticks, as all of ours do: the subject as code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if inside % 2 else escape(part)
        for inside, part in enumerate(parts)
    )


def day(given: str | date | None) -> str:
    """The day of a time stamp; a bare day belongs to no time zone."""
    if not given:
        return NONE
    if not isinstance(given, str):
        return _date(given)
    try:
        bare = len(given) == len("2026-01-01")
        when = date.fromisoformat(given) if bare else datetime.fromisoformat(given).astimezone(UTC)
    except ValueError:
        return given
    return _date(when)


def lasted(begun: str, ended: str) -> str:
    """How long it was from one time stamp to another."""
    try:
        between = datetime.fromisoformat(ended) - datetime.fromisoformat(begun)
    except ValueError:
        return NONE
    return duration(between.total_seconds())


def sentence(text: str) -> str:
    """A note that stands among sentences: it begins and ends like one."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def _date(when: date) -> str:
    # The same wherever the server runs: `strftime` goes by its machine's language.
    return f"{when.day} {_MONTHS[4 * when.month - 4 :][:3]} {when.year}"


def lens_name(code: str) -> str:
    """What a lens shows, in words."""
    return LENS_NAMES.get(code, code)


def model_label(name: str) -> str:
    """A word beside a model whose numbers nobody should quote; nothing beside the others."""
    if name in DEMONSTRATION_MODELS:
        return "demonstration"
    return "made up" if name.partition(":")[0] in MADE_UP_BY else ""


def short_id(text: str | None) -> str:
    """Enough of an id to recognise it."""
    if not text:
        return NONE
    head, _, tail = text.rpartition("-") if text.startswith("heretix-") else ("", "", text)
    return f"{head}-{tail[:8]}" if head else text.removeprefix("exec-")[:8]


def rule(
    value: float | None,
    ci: tuple[float, float] | None,
    lens: str = "RPL",
    *,
    ghost: float | None = None,
) -> Markup:
    """A belief on a rule from 0 to 1: the point, its interval, and where another one stands."""
    if value is None or ci is None:
        return Markup('<span class="rule rule-empty" aria-hidden="true"></span>')
    lo, hi = (round(1000 * edge) for edge in ci)
    at = round(1000 * value)
    other = "" if ghost is None else f'<path class="rule-ghost" d="M{round(1000 * ghost)} 2v26"/>'
    return Markup(  # noqa: S704
        f'<svg class="rule lens-{escape(lens.lower())}" viewBox="-12 0 1024 32" '
        f'preserveAspectRatio="none" role="img" aria-label="{value:.3f}, 95% interval '
        f'{ci[0]:.3f} to {ci[1]:.3f}"><g class="rule-scale"><path d="M0 16h1000"/>{_TICKS}</g>'
        f'{other}<path class="rule-span" d="M{lo} 16H{max(hi, lo + 4)}"/>'
        f'<path class="rule-caps" d="M{lo} 9v14M{hi} 9v14"/>'
        f'<path class="rule-point" d="M{at} 4v24"/></svg>'
    )
