"""Source policies: which class an address has, by which rule, and on which facts.

A policy is an ordered list of rules; the first that covers an address decides, and where none does
the class is `unknown`. It is versioned, and hashed into every run that used it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import sha256_json
from heretix.core.errors import PolicyError
from heretix.evidence.policy.file import read_policy
from heretix.evidence.policy.publisher import Address, publisher_of, read_address
from heretix.evidence.policy.rules import (
    Entry,
    Kind,
    Level,
    Problem,
    Rule,
    SourceClass,
    host_and_parents,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEFAULT_POLICY: Final = "default"
PROVIDED_RULE: Final = "provided"
"""What stands in place of a rule's id where the user gave the document."""
MAX_DEPTH: Final = 8
"""Policies that extend one another, at most."""


@dataclass(frozen=True, slots=True)
class Classification:
    """Class, rule and facts that a policy gives an address."""

    cls: SourceClass
    rule_id: str | None
    """None: no rule matched, and the class is `unknown`."""
    facts: tuple[str, ...]
    publisher: str


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that covers an address, and the entry that does."""

    rule: Rule
    entry: Entry | None
    """None for a rule that covers everything."""

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


@dataclass(frozen=True, slots=True)
class Comparison:
    """One rule that was looked at, and what in it matched."""

    rule_id: str
    kind: Kind
    entries: int
    matched: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Account of why an address has its class."""

    url: str
    address: Address | None
    """What was compared: host and path, in one spelling."""
    classification: Classification
    decided_by: Match | None
    compared: tuple[Comparison, ...]
    """The rules in order, up to the one that decided."""
    later: tuple[Match, ...]
    """Rules that would have matched, had none before."""


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
    sources: tuple[str, ...]
    """The files it was read from, its own first."""

    @cached_property
    def sha256(self) -> str:
        """Of everything that the policy says, and the hashes of the lists it uses."""
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
        """Everything behind `classify(url)`."""
        address = read_address(url)
        matches = {} if address is None else self._matches(address)
        orders = sorted(matches)
        compared = self.rules[: orders[0] + 1] if orders else self.rules
        return Explanation(
            url=url,
            address=address,
            classification=self.classify(url),
            decided_by=matches[orders[0]] if orders else None,
            compared=tuple(
                Comparison(rule.id, rule.kind, len(rule.entries), _matched(matches.get(order)))
                for order, rule in enumerate(compared)
            )
            if address is not None
            else (),
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
        for name in host_and_parents(address.host):
            for order, entry in self._entries.get(name, ()):
                best = found.get(order)
                if entry.covers_path(address.path) and (
                    best is None or entry.specificity > best.specificity
                ):
                    found[order] = entry
        matches = {order: Match(self.rules[order], entry) for order, entry in found.items()}
        for order in self._covering_all:
            matches[order] = Match(self.rules[order], None)
        return matches

    @cached_property
    def _entries(self) -> dict[str, list[tuple[int, Entry]]]:
        """Entries by host, so that a lookup takes a few steps and not a walk over all rules."""
        index: dict[str, list[tuple[int, Entry]]] = {}
        for order, rule in enumerate(self.rules):
            for entry in rule.entries:
                index.setdefault(entry.host, []).append((order, entry))
        return index

    @cached_property
    def _covering_all(self) -> tuple[int, ...]:
        return tuple(order for order, rule in enumerate(self.rules) if rule.kind is Kind.ANY)


def classify_provided(url: str | None) -> Classification:
    """The classification of a document that the user provided, wherever it came from."""
    publisher = publisher_of(read_address(url))
    facts = ("provided by the user",)
    return Classification(SourceClass.PROVIDED, PROVIDED_RULE, facts, publisher)


def diff(before: Policy, after: Policy, urls: Iterable[str]) -> tuple[Flip, ...]:
    """The addresses among `urls` whose class changes from one policy to the other."""
    flips = (Flip(url, before.classify(url), after.classify(url)) for url in urls)
    return tuple(flip for flip in flips if flip.before.cls is not flip.after.cls)


def load_policy(name: str | Path = DEFAULT_POLICY) -> Policy:
    """The packaged policy `default`, or the policy in a YAML file."""
    policy, problems = _load(name)
    errors = [problem for problem in problems if problem.level is Level.ERROR]
    if policy is None or errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise PolicyError(f"{errors[0]}{more}", problems=tuple(problems))
    return policy


def policy_problems(name: str | Path) -> tuple[Policy | None, tuple[Problem, ...]]:
    """The policy, where it can be used, with everything that its files get wrong."""
    policy, problems = _load(name)
    return policy, tuple(problems)


@cache
def _packaged() -> Policy:
    policy, problems = _assemble(DEFAULT_POLICY, [])
    assert policy is not None, problems
    return policy


def _load(name: str | Path) -> tuple[Policy | None, list[Problem]]:
    if name == DEFAULT_POLICY:
        return _packaged(), []
    return _assemble(name, [])


def _assemble(name: str | Path, above: list[str]) -> tuple[Policy | None, list[Problem]]:
    """Read a policy with all that it extends; `above` are the files that led here."""
    source, text, folder = _read(name)
    draft = read_policy(text, source, folder)
    problems = list(draft.problems)
    if draft.version is None:
        return None, problems
    rules, sources = list(draft.rules), [source]
    if draft.extends is not None:
        trail = [*above, source]
        base: str | Path = draft.extends
        if base != DEFAULT_POLICY:
            base = folder / base
        if str(base) in trail or len(trail) >= MAX_DEPTH:
            circle = " -> ".join([*trail, str(base)])
            message = f"`extends` leads in a circle, or too deep: {circle}"
            return None, [*problems, Problem(Level.ERROR, source, draft.extends_line, message)]
        extended, more = _assemble(base, trail)
        problems += more
        if extended is None:
            return None, problems
        problems += _shared_ids(draft.rules, extended.rules)
        rules += extended.rules
        sources += extended.sources
    if any(problem.level is Level.ERROR for problem in problems):
        return None, problems
    return Policy(draft.version, tuple(rules), tuple(sources)), problems


def _read(name: str | Path) -> tuple[str, str, Path]:
    """A policy's source, text and folder."""
    if name == DEFAULT_POLICY:
        file = resources.files("heretix.evidence") / "policies" / f"{DEFAULT_POLICY}.yaml"
        return DEFAULT_POLICY, file.read_text(encoding="utf-8"), Path()
    path = Path(name)
    try:
        return str(path), path.read_text(encoding="utf-8-sig"), path.parent
    except OSError as exc:
        raise PolicyError(f"`policy` {path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise PolicyError(f"`policy` {path} isn't UTF-8 text; save it as UTF-8") from exc


def _shared_ids(rules: Iterable[Rule], base: Iterable[Rule]) -> Iterator[Problem]:
    known = {rule.id: rule for rule in base}
    for rule in rules:
        other = known.get(rule.id)
        if other is not None:
            message = f"`{rule.id}` is also in `{other.source}` line {other.line}; rename this one"
            yield Problem(Level.ERROR, rule.source, rule.line, message)


def _matched(match: Match | None) -> str | None:
    if match is None:
        return None
    return "*" if match.entry is None else match.entry.pattern
