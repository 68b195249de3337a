"""Files that browsers fetch: kept in memory, named with their content, cached for a year. The names
are a closed set, so no address can reach any other file."""

from __future__ import annotations

import hashlib
import mimetypes
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, resources
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException

from heretix.version import VERSION
from heretix.web.templating import etag_of, fresh

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

CHARTS: Final = "charts.js"
_MAKE_CHARTS: Final = (
    "import sys; from heretix.report.charts import embed_script; "
    "sys.stdout.buffer.write(embed_script().encode())"
)
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
        self._charts_version = _charts_version()
        self._making = threading.Lock()

    def url(self, name: str) -> str:
        """Give the address of a file, as it is now."""
        version = self._charts_version if name == CHARTS else self._files[name].version
        return f"/static/{name}?v={version}"

    def get(self, name: str) -> Asset | None:
        """Give a file; the chart bundle is made when it is first wanted: its engine is heavy."""
        if name == CHARTS and CHARTS not in self._files:
            with self._making:
                if CHARTS not in self._files:
                    self._files[CHARTS] = _charts(self._charts_version)
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
    return fresh(request, asset.content, asset.media_type, cache_control=cache, etag=etag)


@lru_cache(maxsize=1)
def theme_css() -> str:
    """Write the charts' colours for the pages, and the dark ones for drawn charts. Dark is what the
    system says, until the reader chooses: then `data-theme` on the root decides."""
    from heretix.core.lenses import LENSES
    from heretix.report.charts.theme import colour_pairs, tooltip_css

    pairs = [(name, light, dark) for name, (light, dark) in colour_pairs()]
    light = "".join(f"--hx-{name}:{value};" for name, value, _ in pairs)
    dark = "".join(f"--hx-{name}:{value};" for name, _, value in pairs)
    drawn = "".join(
        f'.chart svg [{part}="{value}"]{{{part}:var(--hx-{name})}}'
        for name, value, _ in pairs
        for part in ("fill", "stroke")
    )
    system = (
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
    )
    lenses = "".join(f".lens-{c}{{--c:var(--hx-{c})}}" for c in map(str.lower, LENSES))
    chosen = f"@media screen{{:root[data-theme=dark]{{{dark}}}}}"
    return f":root{{{light}}}\n{system}\n{chosen}\n{lenses}\n{drawn}\n{tooltip_css()}\n"


def _charts(version: str) -> Asset:
    """Make the chart bundle in a process of its own: for a second or two its engine lets no other
    thread run, so that every page would have to wait."""
    made = subprocess.run(  # noqa: S603
        (sys.executable, "-c", _MAKE_CHARTS), capture_output=True, check=False
    )
    content = made.stdout
    if made.returncode:
        # Here it says itself what it lacks; or it can be made after all.
        from heretix.report.charts import embed_script

        content = embed_script().encode()
    return Asset(content=content, media_type="text/javascript", version=version)


def _charts_version() -> str:
    """Hash what the bundle is made of; known without making it."""
    try:
        engine = metadata.version("vl-convert-python")
    except metadata.PackageNotFoundError:
        engine = "none"
    # By way of the room above: to import the charts takes a while.
    folder = resources.files("heretix.report").joinpath("charts")
    scripts = [path for path in folder.iterdir() if path.name.endswith(".js")]
    mount = "".join(sorted(path.read_text(encoding="utf-8") for path in scripts))
    return _digest(f"{VERSION} {engine} {mount}".encode())


def _asset(name: str, content: bytes) -> Asset:
    # Not by `mimetypes` alone: a machine may have its own idea of what these are.
    kind = _MEDIA_TYPES.get(name.rpartition(".")[2]) or mimetypes.guess_type(name)[0]
    media_type = kind or "application/octet-stream"
    return Asset(content=content, media_type=media_type, version=_digest(content))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()
