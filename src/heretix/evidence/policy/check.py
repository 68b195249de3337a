"""Doubts about a policy that can be read: rules that never apply, lists that disagree."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from heretix.evidence.policy.policy import Policy, policy_problems
from heretix.evidence.policy.publisher import Address, carries_many, is_public_suffix
from heretix.evidence.policy.rules import Entry, Kind, Level, Problem, Rule, SourceClass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHOWN: Final = 5
"""Examples that a message gives; a list may have thousands."""


def check_file(name: str | Path) -> tuple[Policy | None, tuple[Problem, ...]]:
    """Load the policy `name`, if that can be, with everything wrong or doubtful about it."""
    policy, problems = policy_problems(name)
    return policy, problems if policy is None else (*problems, *check(policy))


def check(policy: Policy) -> tuple[Problem, ...]:
    """Everything doubtful about a policy, in the order of its rules."""
    problems: list[Problem] = []
    for order, rule in enumerate(policy.rules):
        problems += _unreachable(policy, order, rule)
        problems += _contradictions(rule)
        problems += _skipped(rule)
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


def _skipped(rule: Rule) -> Iterator[Problem]:
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
