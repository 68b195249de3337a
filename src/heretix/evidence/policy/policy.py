"""Source policies: which class an address has, by which rule, and on which facts.

A policy is an ordered list of rules; the first that covers an address decides, and where none does
the class is `unknown`. It is versioned, and hashed into every run that used it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import sha256_json
from heretix.core.errors import PolicyError
from heretix.evidence.policy.file import read_policy
from heretix.evidence.policy.publisher import (
    Address,
    carries_many,
    is_public_suffix,
    publisher_of,
    read_address,
)
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


# Doubts about a policy that can be read: rules that never apply, lists that disagree.

_SHOWN: Final = 5
"""Examples that a message gives; a list may have thousands."""


def check_file(name: str | Path) -> tuple[Policy | None, tuple[Problem, ...]]:
    """Load the policy `name`, if that can be, with everything wrong or doubtful about it."""
    policy, problems = policy_problems(name)
    return policy, problems if policy is None else (*problems, *check_policy(policy))


def check_policy(policy: Policy) -> tuple[Problem, ...]:
    """Everything doubtful about a policy, in the order of its rules."""
    problems: list[Problem] = []
    for order, rule in enumerate(policy.rules):
        problems += _unreachable(policy, order, rule)
        problems += _contradictions(rule)
        problems += _skipped_rows(rule)
        problems += _wrong_kind(rule)
    return tuple(problems)


def _unreachable(policy: Policy, order: int, rule: Rule) -> Iterator[Problem]:
    """Entries that earlier rules decide about. An overlay does that on purpose to its base."""
    everything = next((r for r in policy.rules[:order] if r.kind is Kind.ANY), None)
    if everything is not None:
        message = (
            f"`{rule.id}` can never apply: `{everything.id}` (line {everything.line}) covers "
            "everything before it; move that one to the end"
        )
        yield Problem(Level.ERROR, rule.source, rule.line, message)
        return
    deciders: Counter[str] = Counter()
    other_class: list[str] = []
    for entry in rule.entries:
        match = policy.first_match(_within(entry), before=order)
        if match is not None:
            deciders[f"{match.rule.id}` ({match.rule.source} line {match.rule.line})"] += 1
            if match.cls is not entry.cls:
                other_class.append(f"{entry.pattern} is {match.cls}")
    if not deciders:
        return
    names = ", ".join(f"`{name}" for name in sorted(deciders))
    if deciders.total() == len(rule.entries):
        message = f"`{rule.id}` can never apply: earlier rules decide all of it: {names}"
        yield Problem(Level.ERROR, rule.source, rule.line, message)
    else:
        differs = f"; with another class: {_some(other_class)}" if other_class else ""
        message = (
            f"`{rule.id}`: earlier rules decide {deciders.total()} of {len(rule.entries)} entries: "
            f"{names}{differs}"
        )
        level = Level.WARNING if other_class else Level.NOTE
        yield Problem(level, rule.source, rule.line, message)


def _contradictions(rule: Rule) -> Iterator[Problem]:
    """Patterns that one list gives two classes."""
    first: dict[str, Entry] = {}
    conflicts: list[str] = []
    for entry in rule.entries:
        earlier = first.setdefault(entry.pattern, entry)
        if earlier.cls is not entry.cls:
            conflicts.append(
                f"{entry.pattern} is {earlier.cls} on line {earlier.line} and {entry.cls} on line "
                f"{entry.line}"
            )
    if conflicts:
        message = f"`{rule.id}` contradicts itself, and the first line counts: {_some(conflicts)}"
        yield Problem(Level.WARNING, rule.source, rule.line, message)


def _skipped_rows(rule: Rule) -> Iterator[Problem]:
    if rule.skipped:
        rows = _some([f"line {problem.line}: {problem.message}" for problem in rule.skipped])
        message = f"`{rule.id}`: {len(rule.skipped)} rows of its list are left out: {rows}"
        yield Problem(Level.WARNING, rule.source, rule.line, message)


def _wrong_kind(rule: Rule) -> Iterator[Problem]:
    """Domains that are suffixes, suffixes that are domains, and platforms taken for publishers."""
    for entry in rule.entries:
        suffix = is_public_suffix(entry.host) or carries_many(entry.host)
        if rule.kind is Kind.SUFFIX and not suffix:
            message = f"`suffix` `{entry.host}` isn't a public suffix; `domain` says what is meant"
            yield Problem(Level.NOTE, rule.source, entry.line, message)
        elif rule.kind is Kind.DOMAIN and is_public_suffix(entry.host):
            message = f"`domain` `{entry.host}` is a public suffix, with many owners; use `suffix`"
            yield Problem(Level.WARNING, rule.source, entry.line, message)
        elif (
            rule.kind is Kind.DOMAIN
            and entry.cls is not SourceClass.UNKNOWN
            and carries_many(entry.host)
        ):
            message = (
                f"`domain` `{entry.host}` carries many publishers, and all of them become "
                f"{entry.cls}; name the ones you mean"
            )
            yield Problem(Level.WARNING, rule.source, entry.line, message)


def _within(entry: Entry) -> Address:
    """An address that every rule covers which covers all of `entry`, and no other rule."""
    return Address(entry.host, f"{entry.prefix}x" if entry.open_ended else entry.prefix or "/")


def _some(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return "; ".join(items[:_SHOWN]) + more
