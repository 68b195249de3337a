"""Reading addresses the way a browser would: which host, and which path on it.

Sources are told apart by their hosts, so a host must not be open to tricks: user names that look
like hosts, backslashes, escapes, wide letters and dots, a port, another spelling of the same name.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["Address", "is_address", "read_address", "read_host"]

MAX_URL_CHARS: Final = 8_192
MAX_HOST_CHARS: Final = 253

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_PORT_AHEAD: Final = re.compile(r":\d{1,5}(?:[/?#]|$)")
_HOST: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
# A copy in this archive is the work of the site it was taken from, not of the archive.
_ARCHIVED: Final = re.compile(r"/web/\d{4,14}(?:[a-z]{2}_)?/(?=https?:/)", re.IGNORECASE)
_ARCHIVE_HOST: Final = "web.archive.org"


@dataclass(frozen=True, slots=True)
class Address:
    """Where something stands, in one spelling."""

    host: str
    """Lower case, punycode, without port, user name and last dot; an IPv6 address in brackets."""
    path: str
    """Unescaped, without query and `..`; starts with a slash."""
    archived: bool = False
    """The address was read out of a web archive's."""


def read_address(url: str) -> Address | None:
    """The host and path of `url`; None where it has no host that can be made out."""
    text = url.strip()
    if not text or len(text) > MAX_URL_CHARS:
        return None
    # Browsers read a backslash as a slash: `https://evil.example\@reuters.com` is evil.example.
    text = text.replace("\\", "/")
    with_host = _with_slashes(text)
    if with_host is None:
        return None
    try:
        parts = urlsplit(with_host)
        host = read_host(parts.hostname or "")
    except ValueError:
        return None
    if host is None:
        return None
    archived = _ARCHIVED.match(parts.path) if host == _ARCHIVE_HOST else None
    original = read_address(parts.path[archived.end() :]) if archived else None
    if original is not None:
        return Address(original.host, original.path, archived=True)
    return Address(host, _path(parts.path))


def is_address(url: str) -> bool:
    """Whether `url` was meant as an address, rather than a word or a number that passes for one."""
    address = read_address(url)
    if address is None:
        return False
    if address.host.startswith("["):
        return True
    _, dot, last = address.host.rpartition(".")
    if last.isdigit():
        # As in a browser: what ends in a number is an IPv4 address, or no host at all.
        return _is_ipv4(address.host)
    # With a scheme, a name without a dot is a host of somebody's own network.
    return bool(dot) or "//" in url


def read_host(name: str) -> str | None:
    """`name` in the one spelling that hosts are compared in; None if it can't be a host."""
    host = unquote(name).strip().lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        return _ipv6(host)
    host = re.sub("[\u3002\uff0e\uff61]", ".", host).removesuffix(".")
    if not host.isascii():
        encoded = _punycode(host)
        if encoded is None:
            return None
        host = encoded
    if len(host) > MAX_HOST_CHARS or not _HOST.fullmatch(host):
        return None
    return host


def _with_slashes(text: str) -> str | None:
    """`text` as something `urlsplit` finds a host in; None for `mailto:` and its kin."""
    if text.startswith("//"):
        return text
    scheme = _SCHEME.match(text)
    if scheme is None or _PORT_AHEAD.match(text, scheme.end() - 1):
        return f"//{text}"
    rest = text[scheme.end() :]
    if scheme[1].lower() in {"http", "https"}:
        # Browsers need no slashes here, and take any number of them.
        return f"{scheme[0]}//{rest.lstrip('/')}"
    return text if rest.startswith("//") else None


def _path(path: str) -> str:
    kept: list[str] = []
    for segment in unquote(path).split("/"):
        if segment == "..":
            if kept:
                kept.pop()
        elif segment not in {"", "."}:
            kept.append(segment)
    return "/" + "/".join(kept)


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _ipv6(text: str) -> str | None:
    try:
        return f"[{ipaddress.IPv6Address(text.partition('%')[0]).compressed}]"
    except ValueError:
        return None


def _punycode(host: str) -> str | None:
    import idna

    try:
        return idna.encode(host, uts46=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError):
        return None
