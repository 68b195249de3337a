"""Extract documents from bytes: HTML, PDF, Markdown and plain text, within limits. What comes in is
somebody else's and may be damaged, huge or hostile. Whatever is wrong with it becomes an
`UnreadableError` that says why. Libraries are loaded when the first document needs them."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import re
import struct
import time
import zlib
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import yaml

from heretix.core.canonical import sha256_hex, sha256_text
from heretix.core.clock import utc_second
from heretix.core.errors import ConfigError, UnreadableError
from heretix.evidence.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DATE_CONFIDENCE: Final[Mapping[str, float]] = MappingProxyType(
    {"stated": 1.0, "metadata": 0.9, "url": 0.8, "search": 0.7, "htmldate": 0.6, "pdf": 0.5}
)
"""By method: stated outright in front matter or a record; a page's metadata; its address; a search
service's word; elements marked as dates; a PDF's day of creation, often that of a later export."""

# What parsers raise on damaged input is open-ended. This is everything but missing names, exhausted
# memory and interruption.
PARSER_FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)

_MB: Final = 1024 * 1024
_LINE_CHARS: Final = 300
_DATE_CHARS: Final = 64
# Tabs and line ends stay; so do the joiners that some scripts need.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Failure:
    """A source that gave no document, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on what one document may cost."""

    max_bytes: int = 10 * _MB
    max_decoded_bytes: int = 20 * _MB  # After decompression
    max_text_chars: int = 1_000_000  # Longer texts are cut, and say so in their `meta`
    max_html_tags: int = 100_000
    max_pdf_pages: int = 500
    pdf_timeout_s: float = 30.0


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """Text of a document, and what it says of itself."""

    text: str
    title: str = ""
    author: str | None = None
    published: date | None = None
    published_method: str | None = None  # A key of `DATE_CONFIDENCE`; None without a date
    url: str | None = None  # Place where the document says it belongs
    meta: Mapping[str, str] = field(default_factory=dict)


def read_date(value: object) -> date | None:
    """A full date out of what records and headers hold; None for anything less than a full one."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).date()
    if isinstance(value, date):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if not text or len(text) > _DATE_CHARS:
        return None
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return read_date(parse(text))
        except (ValueError, OverflowError):
            continue
    return None


def clean_text(text: str) -> str:
    """`text` with line ends of one kind and without what no file, hash or terminal can take."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _CONTROL.sub("", text).strip()


def one_line(text: str) -> str:
    """`text` on one line, at a length that suits a title or a name."""
    return clean_text(" ".join(text.split()))[:_LINE_CHARS].strip()


def write_plain(value: object) -> str:
    """A scalar as text; nothing for lists, mappings and null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | date):
        return clean_text(str(value))
    return ""


def load_library(module: str) -> Any:
    """Import one of the libraries of the `evidence` extra, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"`{module}` is needed to read documents, and isn't installed: "
            "`uv sync --extra evidence`, or `pip install '.[evidence]'` in the clone"
        ) from exc


# A date is taken only from where pages state it: metadata, the address, elements marked as dates.
# Running text is full of other dates, and a bare month or year has no day: both give no date.

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
    from heretix.evidence.sources.hidden import drop_hidden

    trafilatura, lxml = load_library("trafilatura"), load_library("lxml.etree")
    try:
        # `htmldate` would take a string that starts with "http" for an address and download it;
        # a parsed tree it never does.
        tree = trafilatura.load_html(markup)
        if tree is None:
            raise UnreadableError(f"`{name}` holds nothing that can be read as HTML")
        whole = deepcopy(tree)  # A date may well be stated where nobody sees it
        hidden = drop_hidden(tree, markup)
        page = trafilatura.bare_extraction(
            tree,
            url=url,
            with_metadata=True,
            include_comments=False,
            date_extraction_params=dict(_DATE_OPTIONS),
        )
        if page is None:
            raise UnreadableError(f"`{name}` holds no readable text")
        published, method = _find_publication(whole, url or page.url)
    except UnreadableError:
        raise
    except (*PARSER_FAULTS, lxml.LxmlError) as exc:
        raise UnreadableError(f"`{name}` is damaged HTML ({type(exc).__name__})") from exc
    return Extract(
        text=page.text or "",
        title=page.title or "",
        author=one_line(page.author or "") or None,
        published=published,
        published_method=method,
        url=page.url,
        meta={
            **({"site": one_line(page.sitename)} if page.sitename else {}),
            **({"hidden_text": "true"} if hidden else {}),
        },
    )


def _find_publication(tree: Any, url: str | None) -> tuple[date | None, str | None]:
    """The first date that a place for dates gives, best places first, and the place."""
    find_date = load_library("htmldate").find_date
    # What dates a change and not the original is left out.
    metadata = _page_of(
        element
        for element in tree.iter("meta", "script")
        if element.get("type") == "application/ld+json"
        or (element.tag == "meta" and not _is_change_date(element))
    )
    found = read_date(find_date(metadata, **_DATE_OPTIONS))
    if found and _states_day(metadata, found):
        return found, "metadata"
    found = read_date(find_date(_page_of(()), url=url, **_DATE_OPTIONS)) if url else None
    if found:
        return found, "url"
    elements = (
        element
        for element in tree.iter()
        if isinstance(element.tag, str)
        and element.tag not in _NO_DATES
        and (
            element.tag in {"time", "abbr"}
            or any(_DATE_CUE.search(element.get(key) or "") for key in ("class", "id", "itemprop"))
        )
        and not _is_change_date(element)
        and len(element.text_content()) <= _DATE_TEXT_CHARS
    )
    marked = _page_of(islice(elements, _MAX_DATE_ELEMENTS))
    found = read_date(find_date(marked, **_DATE_OPTIONS))
    return (found, "htmldate") if found and _states_day(marked, found) else (None, None)


def _is_change_date(element: Any) -> bool:
    return _CHANGED.search(" ".join(element.attrib.values())) is not None


def _page_of(elements: Iterable[Any]) -> Any:
    """A page of nothing but copies of these elements."""
    html = load_library("lxml.html")
    copies = [html.tostring(one, encoding="unicode", with_tail=False) for one in elements]
    return html.document_fromstring(
        f"<html><body><div><p></p>{''.join(copies)}</div></body></html>"
    )


def _states_day(page: Any, found: date) -> bool:
    """Check that the whole date is written there. A parser that is given "May 2021" fills in a day:
    the first, or even today's."""
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


# PDF files: their text page by page, within a number of pages and a time.

_REASON_CHARS: Final = 120
_FIRST_YEAR: Final = 1990


def read_pdf(data: bytes, *, name: str, limits: Limits) -> Extract:
    """The text of a PDF. The time is looked at between pages; streams have pypdf's own limits."""
    from heretix.evidence.sources.hidden import PdfPage

    pypdf, errors = load_library("pypdf"), load_library("pypdf.errors")
    # It comments on every oddity of a file; what matters becomes an error here.
    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    deadline = time.monotonic() + limits.pdf_timeout_s
    parts: list[str] = []
    hidden = False
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableError(f"`{name}` is encrypted; save a copy without a password")
        pages = len(reader.pages)
        left = limits.max_text_chars
        for number in range(min(pages, limits.max_pdf_pages)):
            if time.monotonic() > deadline:
                raise UnreadableError(
                    f"`{name}` must be read within {limits.pdf_timeout_s:g} s, "
                    f"got {number} of {pages} pages done; split it"
                )
            page = reader.pages[number]
            eye = PdfPage(page)
            parts.append(
                page.extract_text(
                    visitor_operand_before=eye.before, visitor_operand_after=eye.after
                )
            )
            hidden = hidden or eye.hidden
            left -= len(parts[-1])
            if left <= 0:
                break
        info = reader.metadata or {}
        title, author, created = (info.get(key) for key in ("/Title", "/Author", "/CreationDate"))
    except UnreadableError:
        raise
    except (errors.PyPdfError, errors.DependencyError, *PARSER_FAULTS) as exc:
        reason = one_line(str(exc))[:_REASON_CHARS] or type(exc).__name__
        raise UnreadableError(f"`{name}` is a damaged or barred PDF: {reason}") from exc
    if hidden and not "".join(parts).strip():
        raise UnreadableError(
            f"`{name}` holds no text that a reader would see: all of it is invisible, as that "
            "laid over scans is; give its text as a file"
        )
    published = None
    if found := re.match(r"D:(\d{4})(\d{2})(\d{2})", str(created or "")):
        with contextlib.suppress(ValueError):
            published = date(*map(int, found.groups()))
    if published and not (published.year >= _FIRST_YEAR and published <= datetime.now(UTC).date()):
        published = None  # A clock that was never set.
    return Extract(
        text="\n\n".join(parts),
        title=write_plain(title),
        author=one_line(write_plain(author)) or None,
        published=published,
        published_method="pdf" if published else None,
        meta={
            **({"truncated": "true"} if len(parts) < pages else {}),
            **({"hidden_text": "true"} if hidden else {}),
        },
    )


_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXT: Final = frozenset({"text/plain", "text/markdown", "text/x-markdown"})
_UNTOLD: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})
READABLE_TYPES: Final = _HTML | _TEXT | {"application/pdf"}  # Media types that can be read

_SUFFIXES: Final[Mapping[str, str]] = {
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "application/xhtml+xml",
    ".pdf": "application/pdf",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".txt": "text/plain",
    ".text": "text/plain",
}
_FRONT_MATTER_CHARS: Final = 16_384
_SAMPLE_BYTES: Final = 100_000
_FIRST_LINE_CHARS: Final = 120

_FRONT_MATTER: Final = re.compile(r"\A---[ \t]*\n(.*?\n)---[ \t]*(?:\n|\Z)", re.DOTALL)
_HEADING: Final = re.compile(r"^#{1,3}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9._:-]{2,40})", re.IGNORECASE)
_META_CHARSET: Final = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([A-Za-z0-9._:-]{2,40})", re.IGNORECASE
)
_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def extract(
    data: bytes,
    *,
    name: str,
    media_type: str | None = None,
    url: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Extract:
    """Read one document; `name` stands in messages, and its ending tells an untold type."""
    if len(data) > limits.max_bytes:
        raise UnreadableError(
            f"`{name}` must be at most {limits.max_bytes} bytes, got {len(data)}; split it"
        )
    kind = _kind(data, name, media_type)
    if kind == "pdf":
        found = read_pdf(data, name=name, limits=limits)
    elif kind == "html":
        found = read_html(_decode(data, name, media_type), name=name, url=url, limits=limits)
    else:
        found = _read_plain(_decode(data, name, media_type), name)
    text = clean_text(found.text)
    if not text:
        raise UnreadableError(f"`{name}` holds no readable text")
    meta = dict(found.meta)
    if len(text) > limits.max_text_chars:
        text = text[: limits.max_text_chars].rstrip()
        meta["truncated"] = "true"
    title = one_line(found.title) or one_line(PurePath(name).stem.replace("_", " "))
    return replace(found, text=text, title=title, meta=meta)


def make_document(
    found: Extract,
    *,
    raw: bytes,
    url: str | None,
    retrieved_at: str | None = None,
    meta: Mapping[str, str] | None = None,
) -> Document:
    """A document with its hashes, retrieved now unless told otherwise. Its id depends on its
    address and text, not on this machine."""
    text_sha256 = sha256_text(found.text)
    method = found.published_method if found.published else None
    return Document(
        doc_id=sha256_text(f"{url or ''}\n{text_sha256}")[:16],
        url=url,
        title=found.title,
        text=found.text,
        author=found.author,
        published=found.published,
        published_method=method,
        published_confidence=DATE_CONFIDENCE.get(method) if method else None,
        retrieved_at=retrieved_at or utc_second(),
        raw_sha256=sha256_hex(raw),
        text_sha256=text_sha256,
        meta=MappingProxyType({**found.meta, **(meta or {})}),
    )


def media_type_of(name: str) -> str | None:
    """The type that a file's ending stands for; None for endings that aren't read."""
    return _SUFFIXES.get(PurePath(name).suffix.lower())


def read_stated_fields(record: Mapping[str, Any], *, text: str) -> Extract:
    """Read what front matter, or a record, says of a text; other plain values become `meta`."""
    known = {"text", "title", "author", "authors", "published", "date", "url"}
    stated = next((record[key] for key in ("published", "date") if record.get(key)), None)
    published = read_date(stated)
    meta = {
        one_line(str(k)): write_plain(v)
        for k, v in record.items()
        if k not in known and write_plain(v)
    }
    if stated is not None and published is None:
        # Kept for the reader to see: a year alone is no date to filter by.
        meta["published_as_stated"] = write_plain(stated)
    author = record.get("author") or record.get("authors")
    if isinstance(author, list):
        author = ", ".join(write_plain(one) for one in author)
    return Extract(
        text=text,
        title=one_line(write_plain(record.get("title"))),
        author=one_line(write_plain(author)) or None,
        published=published,
        published_method="stated" if published else None,
        url=write_plain(record.get("url")) or None,
        meta=meta,
    )


def inflate(data: bytes, encoding: str, *, name: str, max_bytes: int) -> bytes:
    """Undo an HTTP content encoding, and stop as soon as the result grows beyond `max_bytes`."""
    match encoding.strip().lower():
        case "" | "identity":
            wbits = None
        case "gzip" | "x-gzip":
            wbits = 16 + zlib.MAX_WBITS
        case "deflate":
            # Some servers send the bare stream, against the standard.
            is_zlib = len(data) >= 2 and data[0] & 0x0F == 8 and not (data[0] << 8 | data[1]) % 31
            wbits = zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS
        case other:
            raise UnreadableError(f"`{name}` must be plain, gzip or deflate, got {other!r}")
    unpacked = b"" if wbits else data
    try:
        while wbits and data and len(unpacked) <= max_bytes:
            stream = zlib.decompressobj(wbits)
            unpacked += stream.decompress(data, max_bytes + 1 - len(unpacked))
            if not stream.eof and len(unpacked) <= max_bytes:
                raise UnreadableError(f"`{name}` is cut off in the middle of its compressed data")
            # A gzip file may be several, one behind the other; what else follows is padding.
            data = stream.unused_data if stream.unused_data.startswith(b"\x1f\x8b") else b""
    except zlib.error as exc:
        raise UnreadableError(f"`{name}` isn't the compressed data it is said to be") from exc
    if len(unpacked) > max_bytes:
        raise UnreadableError(f"`{name}` unpacks to more than {max_bytes} bytes; it is refused")
    return unpacked


def _kind(data: bytes, name: str, media_type: str | None) -> str:
    told = (media_type or "").partition(";")[0].strip().lower()
    if told in _UNTOLD:
        told = media_type_of(name) or ""
    start = data[:1024].lstrip().lower()
    if start.startswith(b"%pdf-"):
        return "pdf"
    if told in _HTML or (not told and (start.startswith(b"<!doctype html") or b"<html" in start)):
        return "html"
    if told in _TEXT or not told:
        return "text"
    if told == "application/pdf":
        raise UnreadableError(f"`{name}` is called a PDF, but doesn't begin like one")
    raise UnreadableError(f"`{name}` must be HTML, PDF, Markdown or text, got {told!r}")


def _decode(data: bytes, name: str, media_type: str | None) -> str:
    """The text of `data`: by its mark, by its label, as UTF-8, by its own word, by its looks."""
    bom = next((codec for mark, codec in _BOMS if data.startswith(mark)), None)
    label, inside = _CHARSET.search(media_type or ""), _META_CHARSET.search(data[:4096])
    told = (bom, label[1] if label else None, "utf-8", inside[1].decode() if inside else None)
    text = None
    for codec in filter(None, told):
        try:
            text = data.decode(codec)
            break
        except (LookupError, ValueError):
            continue
    # Text holds no NUL; pictures and programs do.
    if "\x00" in (text or data[:_SAMPLE_BYTES].decode("latin-1"))[:_SAMPLE_BYTES]:
        raise UnreadableError(f"`{name}` isn't text, whatever its name says")
    if text is None:
        best = load_library("charset_normalizer").from_bytes(data[:_SAMPLE_BYTES]).best()
        if best is None:
            raise UnreadableError(f"`{name}` is in no encoding that can be told; save it as UTF-8")
        text = data.decode(best.encoding, "replace")
    return text


def _read_plain(text: str, name: str) -> Extract:
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    found = Extract(text=text)
    if matter := _FRONT_MATTER.match(text[:_FRONT_MATTER_CHARS]):
        try:
            record = yaml.safe_load(matter[1])
        except (yaml.YAMLError, *PARSER_FAULTS) as exc:
            raise UnreadableError(f"`{name}` has front matter that isn't YAML; correct it") from exc
        # Otherwise two rules with text in between, not front matter.
        if isinstance(record, dict):
            found = read_stated_fields(record, text=text[matter.end() :])
    if found.title:
        return found
    # The first heading, or a first line short enough to be one.
    heading = _HEADING.search(found.text[:5000])
    first = found.text.strip().partition("\n")[0]
    title = heading[1] if heading else first if len(first) <= _FIRST_LINE_CHARS else ""
    return replace(found, title=title)
