"""Source policies: which class an address has, by which rule, and on which facts. A policy is an
ordered list of rules; the first that covers an address decides, and where none does the class is
`unknown`. It is versioned, and hashed into every run that used it. Membership, not quality: how far
a document can be relied on (`heretix.evidence.reliability`) is blind to its class."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from heretix.core.canonical import sha256_json
from heretix.core.lenses import LENSES
from heretix.evidence.policy.publisher import (
    Address,
    find_doi_holder,
    publisher_of,
    read_address,
    read_host,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class SourceClass(StrEnum):
    """Side of the canon that a source stands on."""

    CANONICAL = "canonical"  # Official, or established as a source of record
    HETERODOX = "heterodox"
    """Documented, with an author who can be held to it, and outside the canon."""
    CONTESTED = "contested"
    """Its standing is itself disputed, or its pages await the review that would settle it."""
    FLAGGED = "flagged"  # Known for made-up stories, or satire that gets taken for news
    FACTCHECK = "factcheck"
    """Publishes verdicts on claims. No lens admits it: the verdict would be handed over."""
    UNKNOWN = "unknown"  # No rule matches. That is an answer, and the most frequent one.
    PROVIDED = "provided"  # Given by the user


def list_admitted_classes(lens: str, *, flagged: bool = False) -> frozenset[SourceClass]:
    """Source classes that `lens` lets in, with `flagged` those too that it takes on request."""
    record = LENSES[lens]
    return frozenset(map(SourceClass, record.admits | (record.on_request if flagged else set())))


class Level(StrEnum):
    """Weight of a problem."""

    ERROR = "error"  # The policy can't be used, or a rule in it can never apply
    WARNING = "warning"  # It works, but perhaps not as it was meant
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """A doubt about a policy, and its place."""

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
    prefix: str  # Path that must stand in front; empty for the whole host
    open_ended: bool  # The prefix may end inside a segment (`/~*`)
    cls: SourceClass
    facts: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)

    @property
    def pattern(self) -> str:
        """The entry as it would be written."""
        return f"{self.host}{self.prefix}{'*' if self.open_ended else ''}"

    @property
    def specificity(self) -> tuple[int, int]:
        """Rank of an entry: of two of one rule that match, the greater counts."""
        return self.host.count("."), len(self.prefix)

    def covers_path(self, path: str) -> bool:
        """`path`, on a host that the entry covers, is covered too."""
        if not self.prefix or path == self.prefix:
            return True
        return path.startswith(self.prefix if self.open_ended else f"{self.prefix}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. The first rule of a policy that covers an address decides."""

    id: str
    kind: Kind
    cls: SourceClass | None  # None where a list gives each of its entries a class
    facts: tuple[str, ...]
    entries: tuple[Entry, ...]
    source: str  # The file that it stands in
    line: int
    pin: Mapping[str, Any] | None = None
    """Source list as read, with its hash, which stands for its entries in the policy's hash."""
    skipped: tuple[Problem, ...] = ()  # Rows of a list that name no host

    def content(self) -> dict[str, Any]:
        """The rule as JSON values, for hashing."""
        content: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "class": self.cls,
            "facts": list(self.facts),
        }
        if self.pin is not None:
            return {**content, "list": dict(self.pin)}
        entries = [[entry.pattern, list(entry.facts)] for entry in self.entries]
        return {**content, "entries": entries}


_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PLAIN_HOST: Final = re.compile(r"(?!www\.)[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,4}")


def read_pattern(text: str) -> tuple[str, str, bool] | None:
    """Host, path prefix and open end of a pattern such as `osf.io/preprints` or `edu/~*`. Lists
    write what they mean in many ways: an address, a leading `www.` or `*.`, a last slash."""
    if _PLAIN_HOST.fullmatch(text):
        return text, "", False  # Thousands of a list's rows are no more than this
    bare = _SCHEME.sub("", text.strip(), count=1).removeprefix("*").removeprefix(".")
    name, _, rest = bare.partition("/")
    host = read_host(name)
    if host is None:
        return None
    if host.startswith("www.") and host.count(".") > 1:
        host = host.removeprefix("www.")
    folder = rest.rstrip("*")
    address = read_address(f"//{host}/{folder}")
    if address is None:
        return None
    prefix = "" if address.path == "/" else address.path
    # `example.com/*` and `example.com/news/*` mean no more than their folders do.
    return host, prefix, rest.endswith("*") and bool(prefix) and not folder.endswith("/")


@dataclass(frozen=True, slots=True)
class Classification:
    """Class, rule and facts that a policy gives an address."""

    cls: SourceClass
    rule_id: str | None  # None: no rule matched, and the class is `unknown`
    facts: tuple[str, ...]
    publisher: str


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that covers an address, and the entry that does."""

    rule: Rule
    entry: Entry | None  # None for a rule that covers everything

    @property
    def cls(self) -> SourceClass:
        """The class that the rule gives."""
        cls = self.rule.cls if self.entry is None else self.entry.cls
        assert cls is not None
        return cls

    @property
    def facts(self) -> tuple[str, ...]:
        """Facts, the most special first."""
        return (*(self.entry.facts if self.entry else ()), *self.rule.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Account of why an address has its class."""

    url: str
    classification: Classification
    compared: tuple[Rule, ...]  # In order, up to the one that decided
    later: tuple[Match, ...]  # Rules that would have matched, had none before


@dataclass(frozen=True, slots=True)
class Flip:
    """An address whose class differs between two policies."""

    url: str
    before: Classification
    after: Classification


@dataclass(frozen=True)
class Policy:
    """Rules in order, those of a policy that it extends behind its own."""

    version: str
    rules: tuple[Rule, ...]
    sources: tuple[str, ...]  # The files it was read from, its own first

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that the policy says, and of the hashes of the lists it uses."""
        return sha256_json(
            {"version": self.version, "rules": [rule.content() for rule in self.rules]}
        )

    def classify(self, url: str | None) -> Classification:
        """The class of `url`, with the rule and the facts. No address at all is `unknown`."""
        address = read_address(url)
        match = None if address is None else self.first_match(address)
        if match is None:
            return Classification(SourceClass.UNKNOWN, None, (), publisher_of(address))
        return Classification(match.cls, match.rule.id, match.facts, publisher_of(address))

    def explain(self, url: str) -> Explanation:
        """Explain everything behind `classify(url)`."""
        address = read_address(url)
        matches = {} if address is None else self._matches(address)
        orders = sorted(matches)
        end = 0 if address is None else orders[0] + 1 if orders else len(self.rules)
        return Explanation(
            url=url,
            classification=self.classify(url),
            compared=self.rules[:end],
            later=tuple(matches[order] for order in orders[1:]),
        )

    def first_match(self, address: Address, *, before: int | None = None) -> Match | None:
        """The rule that decides about `address`, among those `before` a place in the order."""
        matches = self._matches(address)
        first = min(matches, default=None)
        if first is None or (before is not None and first >= before):
            return None
        return matches[first]

    def _matches(self, address: Address) -> dict[int, Match]:
        """All rules that cover `address`, by their place, each with its most special entry."""
        found: dict[int, Entry] = {}
        # A DOI stands at a resolver, and is the work of whoever registered it.
        for place in filter(None, (address, find_doi_holder(address))):
            for name in _host_and_parents(place.host):
                for order, entry in self._entries.get(name, ()):
                    best = found.get(order)
                    if entry.covers_path(place.path) and (
                        best is None or entry.specificity > best.specificity
                    ):
                        found[order] = entry
        matches = {order: Match(self.rules[order], entry) for order, entry in found.items()}
        for order, rule in enumerate(self.rules):
            if rule.kind is Kind.ANY:
                matches[order] = Match(rule, None)
        return matches

    @cached_property
    def _entries(self) -> dict[str, list[tuple[int, Entry]]]:
        """Entries by host, so that a lookup takes a few steps and not a walk over all of them."""
        index: dict[str, list[tuple[int, Entry]]] = {}
        for order, rule in enumerate(self.rules):
            for entry in rule.entries:
                index.setdefault(entry.host, []).append((order, entry))
        return index


def _host_and_parents(host: str) -> Iterator[str]:
    """`a.b.example`, `b.example`, `example`: every name that an entry for `host` may have."""
    yield host
    while "." in host and not host.startswith("["):
        host = host.partition(".")[2]
        yield host


def classify_provided(url: str | None) -> Classification:
    """The classification of a document that the user provided, wherever it came from."""
    publisher = publisher_of(read_address(url))
    return Classification(SourceClass.PROVIDED, "provided", ("provided by the user",), publisher)


def diff(before: Policy, after: Policy, urls: Iterable[str]) -> tuple[Flip, ...]:
    """The addresses among `urls` whose class changes from one policy to the other."""
    flips = (Flip(url, before.classify(url), after.classify(url)) for url in urls)
    return tuple(flip for flip in flips if flip.before.cls is not flip.after.cls)
