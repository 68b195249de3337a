"""What attackers send, every address there is to send it to, and what must never come back."""

import re
import socket
from contextlib import ExitStack
from html.parser import HTMLParser
from urllib.parse import urlsplit

from heretix.web.api import PREFIX
from heretix.web.api import router as api_router
from heretix.web.app import create_app

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
BREAKOUT = "\"'><svg onload=alert(3)><a href='javascript:alert(4)'>x</a>{{7*7}}${7*7}<!--"
CLAIM = f"Tea {SCRIPT} is {BREAKOUT} a drink."
MODEL = "mock:<svg/onload=alert(5)>\"'</script>"
NAME = "<img src=x onerror=alert(6)>"
LABEL = "\"'><svg onload=alert(7)>"
INJECTIONS = (
    "' OR '1'='1",
    "x'; DROP TABLE people; --",
    '" UNION SELECT password_hash FROM people --',
    "%27%20OR%201=1",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%5c..%5cetc%5cpasswd",
    "%252e%252e%252fetc%252fpasswd",
    "file:%2f%2f%2fetc%2fpasswd",
    "a%00b",
    "%ed%a0%80",
    "%ff%fe",
    "-1",
    "1e309",
    "9" * 400,
    "%25%25%25%5f%5f",
    "$(id)",
    "a" * 3000,
)
"""As parts of an address, encoded where they have to be."""
SEARCHED = tuple(text for text in INJECTIONS if "etc" not in text and len(text) < 500)
"""Those that mean something to a search."""


def every_route(state):
    """All addresses of the app with their methods: (method, path)."""
    found = _walk(create_app(state).routes)
    return sorted({(method, path) for path, methods in found for method in methods})


def writes(state):
    """Addresses that change something."""
    return [(method, path) for method, path in every_route(state) if method not in _SAFE]


def reads(state):
    """Addresses that are looked at."""
    return [path for method, path in every_route(state) if method == "GET"]


def filled(path, value):
    """An address with something in place of each of its variables."""
    return re.sub(r"\{[^}]+\}", lambda _: value, path)


def raw(site, sent, *, timeout=120):
    """Send bytes as they are, and read until the server closes the connection."""
    address = urlsplit(site.url)
    with ExitStack() as stack:
        # However slow this client is: it has sent everything when its time begins.
        with site.busy():
            wire = stack.enter_context(
                socket.create_connection((address.hostname, address.port), timeout=timeout)
            )
            wire.sendall(sent)
        received = b""
        while piece := wire.recv(65536):
            received += piece
    return received


def injected(html):
    """What a page holds that only somebody's text can have put there."""
    parser = _Finder()
    parser.feed(html)
    parser.close()
    return parser.found


class _Finder(HTMLParser):
    """Looks for elements and attributes that run something."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.links = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        inline = tag == "script" and "src" not in given and given.get("type") != "application/json"
        runs = [name for name in given if name.startswith("on") or name in {"style", "srcdoc"}]
        leads = [v for k, v in attrs if k in {"href", "src", "action", "formaction"} and v]
        schemes = [v for v in leads if re.match(r"(?i)\s*(javascript|vbscript|data:text)", v)]
        if inline or runs or schemes or (tag, given.get("src")) == ("img", "x") or tag == "iframe":
            self.found.append(self.get_starttag_text())
        self.links += leads


def links(html):
    """Where a page leads on this server."""
    parser = _Finder()
    parser.feed(html)
    return [link for link in parser.links if link.startswith("/") and not link.startswith("//")]


def _walk(routes, prefix=""):
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield prefix + route.path, route.methods
        else:
            # A router that was put together under a prefix says it of its parts only when asked.
            yield from _walk(inner.routes, PREFIX if inner is api_router else prefix)


_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
