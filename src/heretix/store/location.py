"""Where a store is: a path or a URL, read once and named without its password."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from heretix.errors import ConfigError

__all__ = ["Location"]

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_SECRETS: Final = ("password", "sslpassword")
_REMEDY: Final = (
    "give a path such as runs/heretix.sqlite, or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A database's address, and the name that messages call it by."""

    url: URL
    path: Path | None
    """The file, for SQLite; None for a server."""
    name: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Read a plain path, `sqlite:///…` or `postgresql+psycopg://…`."""
        if not text.strip():
            raise ConfigError(f"`db` must name a store, got nothing; {_REMEDY}")
        if not _SCHEME.match(text):
            path = Path(text).expanduser()
            url = URL.create(_DRIVERS["sqlite"], database=str(path))
            return cls(url=url, path=_file_of(url), name=text)
        try:
            url = make_url(text)
        except (ArgumentError, ValueError) as exc:
            # The text isn't repeated: what couldn't be parsed may hold a password.
            raise ConfigError(f"`db` must be a path or a database URL; {_REMEDY}") from exc
        driver = _DRIVERS.get(url.drivername)
        if driver is None:
            raise ConfigError(
                f"`db` must be SQLite or PostgreSQL, got {url.drivername}://…; {_REMEDY}"
            )
        url = url.set(drivername=driver)
        if driver.startswith("sqlite"):
            path = _file_of(url)
            return cls(url=url, path=path, name=str(path))
        return cls(url=url, path=None, name=_without_secrets(url))


def _file_of(url: URL) -> Path:
    database = url.database or ":memory:"
    if database.startswith("file:"):
        database = unquote(database.removeprefix("file:"))
    if database == ":memory:" or url.query.get("mode") == "memory":
        raise ConfigError(f"`db` must be a file, got a database in memory; {_REMEDY}")
    return Path(database)


def _without_secrets(url: URL) -> str:
    """SQLAlchemy masks the password before the `@`; libpq takes one from the query as well."""
    hidden = {name: "***" for name in _SECRETS if name in url.query}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)
