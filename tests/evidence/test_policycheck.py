"""What is doubtful about a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from heretix.evidence.policy.file import check_file

HEAD = "version: test_1\nrules:\n"


def problems(folder: Path, rules: str, *, head: str = HEAD) -> list[tuple[str, int, str]]:
    path = folder / "policy.yaml"
    path.write_text(head + rules, encoding="utf-8")
    return [(found.level, found.line, found.message) for found in check_file(path)[1]]


def test_a_clean_policy_has_no_problems(tmp_path):
    """A special case before the general rule is how policies are written, and no problem."""
    rules = (
        "  - {id: a, class: factcheck, facts: f, path: a.example/check}\n"
        "  - {id: b, class: canonical, facts: f, domain: a.example}\n"
        "  - {id: c, class: canonical, facts: f, suffix: gov.uk}\n"
        "  - {id: d, class: contested, facts: f, any: true}\n"
    )
    assert problems(tmp_path, rules) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("domain: a.example", "domain: a.example"),
        ("domain: a.example", "domain: [b.a.example, c.a.example]"),
        ("domain: a.example", "path: a.example/x"),
        ("path: a.example/x", "path: a.example/x/y"),
        ("path: 'a.example/x*'", "path: 'a.example/xy*'"),
        ("suffix: gov.uk", "domain: ons.gov.uk"),
        ("any: true", "domain: a.example"),
        ("any: true", "any: true"),
    ],
)
def test_rules_that_can_never_apply(tmp_path, first, second):
    """A rule that earlier ones decide wholly is an error, at its line."""
    rules = (
        f"  - {{id: one, class: canonical, facts: f, {first}}}\n"
        f"  - {{id: two, class: flagged, facts: f, {second}}}\n"
    )
    ((level, line, message),) = problems(tmp_path, rules)
    assert (level, line) == ("error", 4)
    assert "`two` can never apply" in message
    assert "`one`" in message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("path: a.example/x", "domain: a.example"),
        ("path: a.example/x", "path: 'a.example/x*'"),
        ("domain: b.a.example", "domain: a.example"),
        ("domain: a.example", "domain: nota.example"),
        ("domain: ons.gov.uk", "suffix: gov.uk"),
    ],
)
def test_rules_that_still_apply(tmp_path, first, second):
    """What an earlier rule covers only in part, or not at all, is no problem."""
    rules = (
        f"  - {{id: one, class: canonical, facts: f, {first}}}\n"
        f"  - {{id: two, class: flagged, facts: f, {second}}}\n"
    )
    assert problems(tmp_path, rules) == []


def test_partly_decided_rules_say_with_which_class(tmp_path):
    """A contradiction between two rules names the entry and the class that it gets."""
    rules = (
        "  - {id: one, class: canonical, facts: f, domain: a.example}\n"
        "  - {id: two, class: flagged, facts: f, domain: [a.example, b.example]}\n"
        "  - {id: three, class: canonical, facts: f, domain: [a.example, c.example]}\n"
    )
    (two, three) = problems(tmp_path, rules)
    assert two[:2] == ("warning", 4)
    assert "1 of 2 entries" in two[2]
    assert "a.example is canonical" in two[2]
    assert three[:2] == ("note", 5)


def test_kinds_that_do_not_fit(tmp_path):
    """Suffixes as domains, domains as suffixes and whole platforms are pointed out."""
    rules = (
        "  - {id: a, class: canonical, facts: f, domain: gov.uk}\n"
        "  - {id: b, class: canonical, facts: f, suffix: reuters.com}\n"
        "  - {id: c, class: heterodox, facts: f, domain: substack.com}\n"
        "  - {id: d, class: unknown, facts: f, domain: medium.com}\n"
    )
    found = problems(tmp_path, rules)
    assert [(level, line) for level, line, _ in found] == [
        ("warning", 3),
        ("note", 4),
        ("warning", 5),
    ]
    assert "use `suffix`" in found[0][2]
    assert "carries many publishers" in found[2][2]


def test_all_mistakes_are_found_in_one_go(tmp_path):
    """A policy that can't be used still has all its mistakes named."""
    rules = (
        "  - {id: one, class: canoncial, facts: f, domain: a.example}\n"
        "  - {id: two, class: flagged, domain: b.example}\n"
        "  - {id: three, class: flagged, facts: f, domain: c.example}\n"
        "  - {id: three, class: flagged, facts: f, domain: d.example}\n"
    )
    found = problems(tmp_path, rules)
    assert [(level, line) for level, line, _ in found] == [("error", n) for n in (3, 4, 6)]


def test_what_an_overlay_overrides_is_said(tmp_path):
    """Rules of the base that an overlay decides about are named at their place in the base."""
    head = "version: mine\nextends: default\nrules:\n"
    found = problems(
        tmp_path, "  - {id: mine, class: flagged, facts: f, domain: reuters.com}\n", head=head
    )
    assert any("reuters.com is flagged" in message for _, _, message in found)
    assert all(level != "error" for level, _, _ in found)
