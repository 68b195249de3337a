"""From bytes to documents: HTML, PDF, Markdown and plain text, within limits.

What comes in is somebody else's and may be damaged, huge or hostile. Whatever is wrong with it
becomes an `UnreadableError` that says why. Libraries are loaded when the first document needs them.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import replace
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import yaml

from heretix.evidence.digest import sha256_text
from heretix.evidence.document import Document
from heretix.evidence.pdf import read_pdf
from heretix.evidence.reading import (
    DATE_CONFIDENCE,
    DEFAULT_LIMITS,
    PARSER_FAULTS,
    Extract,
    Failure,
    Limits,
    UnreadableError,
    clean_text,
    load_library,
    one_line,
    plain,
    read_date,
)
from heretix.evidence.webpage import read_html

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "READABLE_TYPES",
    "Extract",
    "Failure",
    "Limits",
    "UnreadableError",
    "extract",
    "inflate",
    "make_document",
    "media_type_of",
    "stated_fields",
]

_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXT: Final = frozenset({"text/plain", "text/markdown", "text/x-markdown"})
_UNTOLD: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})
READABLE_TYPES: Final = _HTML | _TEXT | {"application/pdf"}
"""Media types that can be read."""

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
        markup = _decode(data, name, media_type)
        found = read_html(markup, name=name, url=url, limits=limits)
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
    retrieved_at: str,
    meta: Mapping[str, str] | None = None,
) -> Document:
    """A document with its hashes. Its id depends on its address and text, not on this machine."""
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
        retrieved_at=retrieved_at,
        raw_sha256=hashlib.sha256(raw).hexdigest(),
        text_sha256=text_sha256,
        meta=MappingProxyType({**found.meta, **(meta or {})}),
    )


def media_type_of(name: str) -> str | None:
    """The type that a file's ending stands for; None for endings that aren't read."""
    return _SUFFIXES.get(PurePath(name).suffix.lower())


def stated_fields(record: Mapping[str, Any], *, text: str) -> Extract:
    """What front matter, or a line of JSON, says of a text; other plain values become `meta`."""
    known = {"text", "title", "author", "authors", "published", "date", "url"}
    stated = next((record[key] for key in ("published", "date") if record.get(key)), None)
    published = read_date(stated)
    meta = {one_line(str(k)): plain(v) for k, v in record.items() if k not in known and plain(v)}
    if stated is not None and published is None:
        # Kept for the reader to see: a year alone is no date to filter by.
        meta["published_as_stated"] = plain(stated)
    author = record.get("author") or record.get("authors")
    if isinstance(author, list):
        author = ", ".join(plain(one) for one in author)
    return Extract(
        text=text,
        title=one_line(plain(record.get("title"))),
        author=one_line(plain(author)) or None,
        published=published,
        published_method="stated" if published else None,
        url=plain(record.get("url")) or None,
        meta=meta,
    )


def inflate(data: bytes, encoding: str, *, name: str, max_bytes: int) -> bytes:
    """Undo an HTTP content encoding, and stop as soon as the result grows beyond `max_bytes`."""
    match encoding.strip().lower():
        case "" | "identity":
            unpacked = data if len(data) <= max_bytes else None
        case "gzip" | "x-gzip":
            unpacked = _unzip(data, 16 + zlib.MAX_WBITS, name, max_bytes)
        case "deflate":
            # Some servers send the bare stream, against the standard.
            is_zlib = len(data) >= 2 and data[0] & 0x0F == 8 and not (data[0] << 8 | data[1]) % 31
            unpacked = _unzip(data, zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS, name, max_bytes)
        case other:
            raise UnreadableError(f"`{name}` must be plain, gzip or deflate, got {other!r}")
    if unpacked is None:
        raise UnreadableError(f"`{name}` unpacks to more than {max_bytes} bytes; it is refused")
    return unpacked


def _unzip(data: bytes, wbits: int, name: str, max_bytes: int) -> bytes | None:
    """The unpacked bytes; None as soon as they are too many."""
    parts: list[bytes] = []
    left = max_bytes + 1
    try:
        while data:
            stream = zlib.decompressobj(wbits)
            parts.append(stream.decompress(data, left))
            left -= len(parts[-1])
            if left <= 0:
                return None
            if not stream.eof:
                raise UnreadableError(f"`{name}` is cut off in the middle of its compressed data")
            # A gzip file may be several, one behind the other; what else follows is padding.
            data = stream.unused_data if stream.unused_data.startswith(b"\x1f\x8b") else b""
    except zlib.error as exc:
        raise UnreadableError(f"`{name}` isn't the compressed data it is said to be") from exc
    return b"".join(parts)


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
    return _guess(data, name) if text is None else text


def _guess(data: bytes, name: str) -> str:
    best = load_library("charset_normalizer").from_bytes(data[:_SAMPLE_BYTES]).best()
    if best is None:
        raise UnreadableError(f"`{name}` is in no encoding that can be told; save it as UTF-8")
    return data.decode(best.encoding, "replace")


def _read_plain(text: str, name: str) -> Extract:
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    matter = _FRONT_MATTER.match(text[:_FRONT_MATTER_CHARS])
    if matter is None:
        return Extract(text=text, title=_title_in(text))
    try:
        record = yaml.safe_load(matter[1])
    except (yaml.YAMLError, *PARSER_FAULTS) as exc:
        raise UnreadableError(f"`{name}` has front matter that isn't YAML; correct it") from exc
    if not isinstance(record, dict):
        # Two rules with text in between, not front matter.
        return Extract(text=text, title=_title_in(text))
    found = stated_fields(record, text=text[matter.end() :])
    return found if found.title else replace(found, title=_title_in(found.text))


def _title_in(text: str) -> str:
    """The first heading, or a first line short enough to be one."""
    heading = _HEADING.search(text[:5000])
    if heading:
        return heading[1]
    first = text.strip().partition("\n")[0]
    return first if len(first) <= _FIRST_LINE_CHARS else ""
