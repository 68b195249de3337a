"""Publishing: the pages of a store as files that need no server, with a search of their own.

Pages are made by the app itself, asked as a reader would ask, so a site can't say anything else
than the server does. Links between them become relative; what can't be asked of files (measuring,
jobs, accounts) is left out.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from posixpath import relpath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from heretix.accounts import Person, Quotas, Role
from heretix.core.errors import ConfigError, RecordError
from heretix.version import VERSION
from heretix.web.app import create_app
from heretix.web.state import AppState

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from starlette.types import ASGIApp

    from heretix.core.settings import Settings
    from heretix.store import Store

MARKER: Final = "heretix-site.json"
_BEGIN: Final = ("/", "/all", "/anomalies", "/panels", "/episodes", "/method")
_KEPT: Final = re.compile(
    r"/|/(all|anomalies|panels|episodes|method|policy)|/claims/[0-9a-f]{16}"
    r"|/runs/[A-Za-z0-9-]+(/artifact\.json)?|/bundles/[0-9a-f]{64}|/panels/[A-Za-z0-9._-]+"
    r"|/episodes/ep-[0-9a-f]{12}(/record\.json)?"
    r"|/(share|embed)/[a-z]+/[A-Za-z0-9._-]+(/[a-z]+\.[a-z]+)?|/static/[a-z.-]+"
)
_FILES: Final = re.compile(r"\.(json|png|svg|csv|bib|css|js|html)$")
_LINK: Final = re.compile(r'\b(href|src)="(/[^"]*)"')
_FORM: Final = re.compile(r"<form\b.*?</form>", re.DOTALL)
READER: Final = Person(
    id="published",
    name="reader",
    role=Role.READER,
    active=True,
    created_at="1970-01-01T00:00:00.000Z",
    quotas=Quotas(),
)
"""Whom the pages are made for: somebody who may look, and nothing else."""


@dataclass(slots=True, kw_only=True)
class Published:
    """Result of publishing."""

    folder: Path
    pages: int = 0
    files: int = 0
    bytes: int = 0


async def publish(
    store: Store,
    settings: Settings,
    folder: Path,
    *,
    base_url: str = "",
    tell: Callable[[int, int], None] | None = None,
) -> Published:
    """Write the site beside its place and move it there: a reader never sees half of one."""
    _check(folder)
    state = AppState.open(store, settings)
    state.published, state.base_url = True, base_url.rstrip("/")
    # Ranking takes seconds on a large store; a page that is written once waits for it.
    state.anomalies.wait_s = _PATIENCE_S
    made = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    written = Published(folder=folder)
    try:
        await _write_pages(create_app(state), made, written, tell)
        summary = {"made_by": f"heretix {VERSION}", "pages": written.pages}
        (made / MARKER).write_text(json.dumps(summary) + "\n", encoding="utf-8")
        _move(made, folder)
    except OSError as exc:
        raise RecordError(f"`{folder}` can't be written: {exc.strerror or exc}") from exc
    finally:
        shutil.rmtree(made, ignore_errors=True)
        await state.aclose()
    return written


_PATIENCE_S: Final = 600.0


def _check(folder: Path) -> None:
    """Refuse a folder that holds anything but a site of ours: it is going to be replaced."""
    if folder.is_file() or folder.is_symlink():
        raise ConfigError(f"`{folder}` must be a folder, new or one that `publish` made")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise ConfigError(
            f"`{folder}` must be empty, new, or a site that `publish` made: it holds other files; "
            "name another folder"
        )


def _move(made: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    made.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


async def _write_pages(
    app: ASGIApp, made: Path, written: Published, tell: Callable[[int, int], None] | None
) -> None:
    waiting, seen = list(_BEGIN), set(_BEGIN)
    while waiting:
        path = waiting.pop()
        status, kind, content = await _get(app, path)
        if status != 200:
            # A link to what isn't here (a bundle of a record from elsewhere) leads to a page
            # that says so, on a server, too.
            content, kind = _render_absent(path), "text/html"
        if kind.startswith("text/html") and not path.endswith(".html"):
            text, found = _localise(content.decode(), path)
            content = text.encode()
            for link in found:
                if link not in seen:
                    seen.add(link)
                    waiting.append(link)
            written.pages += 1
        target = made / file_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        written.files += 1
        written.bytes += len(content)
        if tell is not None:
            tell(written.files, len(seen))


def file_of(path: str) -> str:
    """Name the file of an address."""
    if path == "/":
        return "index.html"
    name = path.removeprefix("/")
    return name if _FILES.search(name) else f"{name}.html"


def _localise(text: str, path: str) -> tuple[str, list[str]]:
    """Make the links of a page relative; links to what isn't published become plain words."""
    here, found = str(Path(file_of(path)).parent), []

    def link(match: re.Match[str]) -> str:
        parts = urlsplit(unescape(match[2]))
        target = "/all" if parts.path == "/search" else parts.path
        if not _KEPT.fullmatch(target):
            return 'data-left-out=""'
        found.append(target)
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return f'{match[1]}="{escape(relpath(file_of(target), here))}{escape(fragment)}"'

    return _LINK.sub(link, _FORM.sub("", text)), found


def _render_absent(path: str) -> bytes:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Not here</title>'
        f"<main><h1>Not here</h1><p>{escape(path)} isn't in the store that this was made of.</p>"
        "</main></html>"
    ).encode()


async def _get(app: ASGIApp, path: str) -> tuple[int, str, bytes]:
    """Ask the app for an address, in this process."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
    status, headers, parts = 500, {}, []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, headers.get("content-type", ""), b"".join(parts)
