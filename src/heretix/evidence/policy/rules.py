"""Rules of a source policy: which addresses they cover, and the class and facts they give.

Membership, not quality: a class says which side of the canon a source stands on. How far a
document can be relied on is another matter (`heretix.evidence.reliability`), and blind to this one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from heretix.core.lenses import LENSES
from heretix.evidence.policy.publisher import Address, read_address, read_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class SourceClass(StrEnum):
    """Side of the canon that a source stands on."""

    CANONICAL = "canonical"
    """Official, or established as a source of record."""
    HETERODOX = "heterodox"
    """Documented, with an author who can be held to it, and outside the canon."""
    CONTESTED = "contested"
    """Its standing is itself disputed, or its pages await the review that would settle it."""
    FLAGGED = "flagged"
    """Known for made-up stories, or satire that gets taken for news."""
    FACTCHECK = "factcheck"
    """Publishes verdicts on claims. No lens admits it: the verdict would be handed over."""
    UNKNOWN = "unknown"
    """No rule matches. That is an answer, and the most frequent one."""
    PROVIDED = "provided"
    """Given by the user."""


def admitted(lens: str, *, flagged: bool = False) -> frozenset[SourceClass]:
    """Source classes that `lens` lets in; those it takes on request only if `flagged`."""
    record = LENSES[lens]
    return frozenset(map(SourceClass, record.admits | (record.on_request if flagged else set())))


class Level(StrEnum):
    """Weight of a problem."""

    ERROR = "error"
    """The policy can't be used, or a rule in it can never apply."""
    WARNING = "warning"
    """It works, but perhaps not as it was meant."""
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a policy, and where."""

    level: Level
    source: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"`{self.source}` line {self.line}: {self.message}"


class Kind(StrEnum):
    """Part of an address that a rule compares."""

    SUFFIX = "suffix"
    DOMAIN = "domain"
    PATH = "path"
    LIST = "list"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a rule covers: a host with all below it, or a path on such a host."""

    host: str
    prefix: str
    """Path that must stand in front; empty for the whole host."""
    open_ended: bool
    """The prefix may end inside a segment (`/~*`)."""
    cls: SourceClass
    facts: tuple[str, ...] = ()
    """What is known about this very entry."""
    line: int = field(default=0, compare=False)

    @property
    def pattern(self) -> str:
        """The entry as it would be written."""
        return f"{self.host}{self.prefix}{'*' if self.open_ended else ''}"

    @property
    def specificity(self) -> tuple[int, int]:
        """Of two entries of one rule that match, the greater counts."""
        return self.host.count("."), len(self.prefix)

    def covers_path(self, path: str) -> bool:
        """`path`, on a host that the entry covers, is covered too."""
        if not self.prefix or path == self.prefix:
            return True
        return path.startswith(self.prefix if self.open_ended else f"{self.prefix}/")

    def covers(self, address: Address) -> bool:
        """The entry matches on label borders: `reuters.com` never covers `notreuters.com`."""
        below = address.host == self.host or address.host.endswith(f".{self.host}")
        return below and self.covers_path(address.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. The first rule of a policy that covers an address decides."""

    id: str
    kind: Kind
    cls: SourceClass | None
    """None where a list gives each of its entries a class."""
    facts: tuple[str, ...]
    entries: tuple[Entry, ...]
    source: str
    """The file that it stands in."""
    line: int
    pin: Mapping[str, Any] | None = None
    """How a list was read, with its hash. It stands for the entries in the policy's own hash."""
    skipped: tuple[Problem, ...] = ()
    """Rows of a list that name no host."""

    def content(self) -> dict[str, Any]:
        """The rule as JSON values, for hashing."""
        content: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "class": self.cls,
            "facts": list(self.facts),
        }
        if self.pin is not None:
            content["list"] = dict(self.pin)
        else:
            content["entries"] = [[entry.pattern, list(entry.facts)] for entry in self.entries]
        return content


_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def read_pattern(text: str) -> tuple[str, str, bool] | None:
    """Host, path prefix and open end of a pattern such as `osf.io/preprints` or `edu/~*`.

    Lists write what they mean in many ways: an address, a leading `www.` or `*.`, a last slash.
    """
    bare = _SCHEME.sub("", text.strip(), count=1).removeprefix("*").removeprefix(".")
    name, _, rest = bare.partition("/")
    host = read_host(name)
    if host is None:
        return None
    if host.startswith("www.") and host.count(".") > 1:
        host = host.removeprefix("www.")
    open_ended = rest.endswith("*")
    address = read_address(f"//{host}/{rest.rstrip('*')}")
    if address is None:
        return None
    prefix = "" if address.path == "/" else address.path
    # `example.com/*` and `example.com/news/*` mean no more than their folders do.
    open_ended = open_ended and bool(prefix) and not rest.rstrip("*").endswith("/")
    return host, prefix, open_ended


def host_and_parents(host: str) -> Iterator[str]:
    """`a.b.example`, `b.example`, `example`: every name that an entry for `host` may have."""
    yield host
    while "." in host and not host.startswith("["):
        host = host.partition(".")[2]
        yield host
