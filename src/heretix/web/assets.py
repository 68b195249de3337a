"""Files that browsers fetch: kept in memory, named with their content, cached for a year. The names
are a closed set, so no address can reach any other file."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from heretix.web.templating import etag_of, send_with_etag

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_FOR_EVER: Final = "public, max-age=31536000, immutable"
_BRIEFLY: Final = "public, max-age=60"
_MEDIA_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file."""

    content: bytes
    media_type: str
    version: str


class Assets:
    """All files, by name."""

    def __init__(self) -> None:
        self._files: dict[str, Asset] = {}
        for path in resources.files("heretix.web").joinpath("static").iterdir():
            if path.is_file():
                self._files[path.name] = _asset(path.name, path.read_bytes())
        self._files["theme.css"] = _asset("theme.css", theme_css().encode())

    def url(self, name: str) -> str:
        """Give the address of a file, as it is now."""
        return f"/static/{name}?v={self._files[name].version}"

    def get(self, name: str) -> Asset | None:
        """Give a file."""
        return self._files.get(name)


def serve_asset(request: Request) -> Response:
    """Send one file. With its version in the address it never changes. Whoever asks may have it:
    no session is looked up, and it counts towards no limit."""
    name: str = request.path_params["name"]
    assets: Assets = request.app.state.assets
    asset = assets.get(name)
    if asset is None:
        raise HTTPException(404, f"`{name}` isn't a file of this server")
    cache = _FOR_EVER if request.query_params.get("v") == asset.version else _BRIEFLY
    etag = etag_of(asset.version.encode())
    return send_with_etag(request, asset.content, asset.media_type, cache_control=cache, etag=etag)


def redirect_to_icon(request: Request) -> Response:
    """Lead a browser to the icon from where it looks by itself."""
    assets: Assets = request.app.state.assets
    return RedirectResponse(assets.url("mark.svg"))


@lru_cache(maxsize=1)
def theme_css() -> str:
    """Write the charts' colours for the pages. Dark is what the system says, until the reader
    chooses: then `data-theme` on the root decides."""
    from heretix.core.lenses import LENSES
    from heretix.report.charts.theme import colour_pairs

    pairs = [(name, light, dark) for name, (light, dark) in colour_pairs()]
    light = "".join(f"--hx-{name}:{value};" for name, value, _ in pairs)
    dark = "".join(f"--hx-{name}:{value};" for name, _, value in pairs)
    system = (
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
    )
    lenses = "".join(f".lens-{c}{{--c:var(--hx-{c})}}" for c in map(str.lower, LENSES))
    chosen = f"@media screen{{:root[data-theme=dark]{{{dark}}}}}"
    return f":root{{{light}}}\n{system}\n{chosen}\n{lenses}\n"


def _asset(name: str, content: bytes) -> Asset:
    # Not by `mimetypes` alone: a machine may have its own idea of what these are.
    kind = _MEDIA_TYPES.get(name.rpartition(".")[2]) or mimetypes.guess_type(name)[0]
    media_type = kind or "application/octet-stream"
    return Asset(content=content, media_type=media_type, version=_digest(content))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()
