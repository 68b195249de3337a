"""Web pages: the article without its surroundings, and the day it was published.

A date is taken only from where pages state it: metadata, the address, elements marked as dates.
Running text is full of other dates, and a bare month or year has no day: both give no date.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.reading import (
    PARSER_FAULTS,
    Extract,
    Limits,
    UnreadableError,
    load_library,
    one_line,
    read_date,
)

if TYPE_CHECKING:
    from datetime import date

__all__ = ["read_html"]

_DATE_OPTIONS: Final = {"extensive_search": False, "original_date": True}
_DATE_TEXT_CHARS: Final = 200
_MAX_DATE_ELEMENTS: Final = 100
_CHANGED: Final = re.compile(r"modif|updat|copyright|revis", re.IGNORECASE)
_DATE_CUE: Final = re.compile(r"date|publish|posted|byline|pubtime", re.IGNORECASE)
_NO_DATES: Final = frozenset({"html", "head", "body", "meta", "script", "style"})


def read_html(markup: str, *, name: str, url: str | None, limits: Limits) -> Extract:
    """The main text of a page, with what the page says of itself."""
    tags = markup.count("<")
    if tags > limits.max_html_tags:
        # Extraction is quadratic in places; such a page would hold everything up for minutes.
        raise UnreadableError(
            f"`{name}` must have at most {limits.max_html_tags} HTML tags, got {tags}"
        )
    trafilatura, faults = load_library("trafilatura"), _parser_faults()
    try:
        # `htmldate` would take a string that starts with "http" for an address and download it;
        # a parsed tree it never does.
        tree = trafilatura.load_html(markup)
        if tree is None:
            raise UnreadableError(f"`{name}` holds nothing that can be read as HTML")
        page = trafilatura.bare_extraction(
            tree,
            url=url,
            with_metadata=True,
            include_comments=False,
            date_extraction_params=dict(_DATE_OPTIONS),
        )
        if page is None:
            raise UnreadableError(f"`{name}` holds no readable text")
        published, method = _publication(tree, url or page.url)
    except UnreadableError:
        raise
    except faults as exc:
        raise UnreadableError(f"`{name}` is damaged HTML ({type(exc).__name__})") from exc
    return Extract(
        text=page.text or "",
        title=page.title or "",
        author=one_line(page.author or "") or None,
        published=published,
        published_method=method,
        url=page.url,
        meta={"site": one_line(page.sitename)} if page.sitename else {},
    )


def _parser_faults() -> tuple[type[BaseException], ...]:
    return (*PARSER_FAULTS, load_library("lxml.etree").LxmlError)


def _publication(tree: Any, url: str | None) -> tuple[date | None, str | None]:
    """The first date that a place for dates gives, best places first, and the place."""
    find_date = load_library("htmldate").find_date
    metadata = _page_of(_metadata(tree))
    found = read_date(find_date(metadata, **_DATE_OPTIONS))
    if found and _states_day(metadata, found):
        return found, "metadata"
    found = read_date(find_date(_page_of([]), url=url, **_DATE_OPTIONS)) if url else None
    if found:
        return found, "url"
    marked = _page_of(_date_elements(tree))
    found = read_date(find_date(marked, **_DATE_OPTIONS))
    if found and _states_day(marked, found):
        return found, "htmldate"
    return None, None


def _metadata(tree: Any) -> list[Any]:
    """Metadata that may date the original; what dates a change is left out."""
    return [
        element
        for element in tree.iter("meta", "script")
        if element.get("type") == "application/ld+json"
        or (element.tag == "meta" and not _CHANGED.search(" ".join(element.attrib.values())))
    ]


def _date_elements(tree: Any) -> list[Any]:
    """Short elements that are marked as dates."""
    kept = [
        element
        for element in tree.iter()
        if isinstance(element.tag, str)
        and element.tag not in _NO_DATES
        and (
            element.tag in {"time", "abbr"}
            or any(_DATE_CUE.search(element.get(key) or "") for key in ("class", "id", "itemprop"))
        )
        and not _CHANGED.search(" ".join(element.attrib.values()))
        and len(element.text_content()) <= _DATE_TEXT_CHARS
    ]
    return kept[:_MAX_DATE_ELEMENTS]


def _page_of(elements: list[Any]) -> Any:
    """A page of nothing but copies of these elements."""
    html = load_library("lxml.html")
    copies = [html.tostring(one, encoding="unicode", with_tail=False) for one in elements]
    return html.document_fromstring(
        f"<html><body><div><p></p>{''.join(copies)}</div></body></html>"
    )


def _states_day(page: Any, found: date) -> bool:
    """Whether the whole date is written there.

    A parser that is given "May 2021" fills in a day: the first, or even today's.
    """
    source = str(load_library("lxml.html").tostring(page, encoding="unicode"))
    day, month, year = rf"(?<!\d)0?{found.day}", rf"(?<!\d)0?{found.month}", str(found.year)
    written = (
        rf"{year}\D{{1,3}}0?{found.month}\D{{1,3}}0?{found.day}(?!\d)",
        found.strftime(r"(?<!\d)%Y%m%d"),
        rf"{day}\D{{1,3}}0?{found.month}\D{{1,3}}{year}",
        rf"{month}[-/.]0?{found.day}[-/.]{year}",
        # A month by its name, in any language.
        rf"{day}(?:st|nd|rd|th|er|º|\.)?[ -](?:de )?[^\W\d]{{3,}}\.?,?[ -](?:de )?{year}",
        rf"[^\W\d]{{3,}}\.? 0?{found.day}(?:st|nd|rd|th)?,? {year}",
    )
    return any(re.search(pattern, source) for pattern in written)
