"""Read what a user names as sources: folders, files, JSON, addresses and lists of them. Nothing
here stops at a bad file: it becomes a `Failure` in the stream, and the next one is read."""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from heretix.core.errors import UnreadableError, UsageError
from heretix.core.event_loop import run_attentively
from heretix.core.validation import explain
from heretix.evidence.sources import extract
from heretix.evidence.sources.extract import DEFAULT_LIMITS, Failure, Limits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from heretix.evidence.document import Document
    from heretix.evidence.sources.fetch import FetchOptions

_URL: Final = re.compile(r"https?://\S+", re.IGNORECASE)
_LISTS: Final = frozenset({".txt", ".urls", ".list"})
_LINES: Final = frozenset({".jsonl", ".ndjson"})
_JSON: Final = ".json"
_LIST_BYTES: Final = 5_000_000


class _Record(BaseModel):
    """A document as JSON states it; whatever else it says is kept too."""

    model_config = ConfigDict(extra="allow")

    text: str
    url: str | None = None

    @field_validator("text")
    @classmethod
    def _clean(cls, text: str) -> str:
        if not (cleaned := extract.clean_text(text)):
            raise ValueError("must not be empty")
        return cleaned

    @field_validator("url")
    @classmethod
    def _require_url(cls, url: str | None) -> str | None:
        if url and not _URL.fullmatch(extract.clean_text(url)):
            raise ValueError("must begin with http:// or https://")
        return url


def read_documents(
    sources: Iterable[str | Path],
    *,
    limits: Limits = DEFAULT_LIMITS,
    fetch: FetchOptions | None = None,
) -> Iterator[Document | Failure]:
    """Documents from each source in turn. Addresses are gathered, and fetched at the end.

    Not for use inside a running event loop: `Fetcher.documents` is, for addresses.

    A source is a folder (walked, hidden files and links left out), a file (HTML, PDF, Markdown,
    text, JSON or JSON lines with `text`, `url`, `title`, `published` and `author`), a text file of
    addresses, or an address.
    """
    urls: list[str] = []
    for source in sources:
        check_sources([source])
        if _is_url(source):
            urls.append(str(source))
            continue
        path = Path(source)
        for file in _walk(path) if path.is_dir() else (path,):
            listed = _read_listed_urls(file)
            urls += listed
            if not listed:
                yield from _from_file(file, limits)
    if urls:
        yield from _fetch(urls, limits, fetch)


def check_sources(sources: Iterable[str | Path]) -> None:
    """Refuse sources that are neither addresses nor there."""
    for source in sources:
        if not _is_url(source) and not Path(source).exists():
            raise UsageError(f"`{source}` must be a folder, a file or an address; there is no such")


def _is_url(source: str | Path) -> bool:
    return isinstance(source, str) and _URL.fullmatch(source) is not None


def read_file(path: Path, *, limits: Limits = DEFAULT_LIMITS) -> Document:
    """One file as a document."""
    data = _read_bytes(path, limits)
    media_type = extract.media_type_of(path.name)
    found = extract.extract(data, name=path.name, media_type=media_type, limits=limits)
    meta = {"path": str(path.resolve())}
    if found.url and media_type in {"text/html", "application/xhtml+xml"}:
        # Front matter is the user's own word; a saved page's address is only the page's.
        meta["url_by"] = "page"
    return extract.make_document(found, raw=data, url=found.url, meta=meta)


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place, name)
            known = path.suffix.lower() in {_JSON, *_LINES, ".urls"}
            hidden = name.startswith(".") or path.is_symlink()
            if (known or extract.media_type_of(name)) and not hidden:
                yield path


def _from_file(path: Path, limits: Limits) -> Iterator[Document | Failure]:
    suffix = path.suffix.lower()
    try:
        if suffix in _LINES:
            yield from _from_lines(path, limits)
        elif suffix == _JSON:
            try:
                value = json.loads(_read_bytes(path, limits))
            except (ValueError, RecursionError) as exc:
                raise UnreadableError(f"`{path.name}` isn't JSON: {exc}") from exc
            for number, record in enumerate(value if isinstance(value, list) else [value], start=1):
                yield _from_record(json.dumps(record).encode(), f"{path}:{number}", limits)
        else:
            yield read_file(path, limits=limits)
    except UnreadableError as exc:
        yield Failure(str(path), str(exc))
    except OSError as exc:
        yield Failure(str(path), f"`{path.name}` can't be read: {exc.strerror or exc}")


def _from_lines(path: Path, limits: Limits) -> Iterator[Document | Failure]:
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(limits.max_bytes + 1), b"")
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if len(line) > limits.max_bytes:
                # The rest of this line can't be told from the next.
                yield Failure(place, f"a line must be at most {limits.max_bytes} bytes")
                return
            if line.strip():
                yield _from_record(line, place, limits)


def _from_record(raw: bytes, place: str, limits: Limits) -> Document | Failure:
    try:
        # By `json`, which takes a byte order mark and other encodings.
        record = _Record.model_validate(json.loads(raw))
    except ValidationError as exc:
        return Failure(place, explain(exc.errors()[0]))
    except (ValueError, RecursionError):
        return Failure(place, "must be a JSON object, and isn't JSON")
    text = record.text
    found = extract.read_stated_fields(record.model_dump(), text=text[: limits.max_text_chars])
    meta = {} if len(text) <= limits.max_text_chars else {"truncated": "true"}
    if not found.url:
        meta["path"] = place
    if not found.title:
        found = replace(found, title=text.partition("\n")[0][:120])
    return extract.make_document(found, raw=raw, url=found.url, meta=meta)


def _read_listed_urls(path: Path) -> list[str]:
    """The addresses in a file that holds nothing else; lines that begin with # are remarks."""
    if path.suffix.lower() not in _LISTS:
        return []
    try:
        if path.stat().st_size > _LIST_BYTES:
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError):
        return []
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return found if all(_URL.fullmatch(line) for line in found) else []


def _read_bytes(path: Path, limits: Limits) -> bytes:
    size = path.stat().st_size
    if size > limits.max_bytes:
        raise UnreadableError(
            f"`{path.name}` must be at most {limits.max_bytes} bytes, got {size}; split it"
        )
    return path.read_bytes()


def _fetch(
    urls: list[str], limits: Limits, options: FetchOptions | None
) -> Iterator[Document | Failure]:
    # Imported as needed: most corpora are made of files, and this brings an HTTP client along.
    from heretix.evidence.sources.fetch import Fetcher, FetchOptions

    with asyncio.Runner() as runner:
        fetcher = Fetcher(options or FetchOptions(limits=limits))
        pages = fetcher.documents(urls)
        try:
            while (page := runner.run(run_attentively(_next(pages)))) is not None:
                yield page
        finally:
            runner.run(pages.aclose())
            runner.run(fetcher.aclose())


async def _next(
    pages: AsyncGenerator[Document | Failure, None],
) -> Document | Failure | None:
    return await anext(pages, None)
