"""Source policies: rules, classes, overlays and what can be said about them."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heretix.core.errors import PolicyError
from heretix.evidence.policy.file import load_policy
from heretix.evidence.policy.policy import (
    Entry,
    Policy,
    SourceClass,
    classify_provided,
    diff,
    list_admitted_classes,
    read_pattern,
)
from heretix.evidence.policy.publisher import NO_PUBLISHER, read_address

HEAD = "version: test_1\nrules:\n"


def policy_of(folder: Path, rules: str, *, head: str = HEAD, name: str = "policy.yaml") -> Policy:
    path = folder / name
    path.write_text(head + rules, encoding="utf-8")
    return load_policy(path)


def one_domain(folder: Path, domain: str, cls: str = "canonical") -> Policy:
    return policy_of(folder, f"  - {{id: r, class: {cls}, facts: f, domain: {domain}}}\n")


@pytest.mark.parametrize(
    ("url", "covered"),
    [
        ("https://reuters.com/x", True),
        ("https://www.reuters.com/", True),
        ("https://uk.reuters.com.:443/x", True),
        ("https://notreuters.com/", False),
        ("https://reuters.com.evil.example/", False),
        ("https://reuters.com@evil.example/", False),
        ("https://evil.example/reuters.com", False),
        ("https://web.archive.org/web/2020/https://reuters.com/x", True),
        ("https://r\u0435uters.com/", False),
    ],
)
def test_domains_match_on_label_borders(tmp_path, url, covered):
    """A domain covers itself and what is below it, and nothing that merely looks like it."""
    policy = one_domain(tmp_path, "reuters.com")
    assert policy.classify(url).cls == ("canonical" if covered else "unknown")


@pytest.mark.parametrize(
    ("pattern", "url", "covered"),
    [
        ("osf.io/preprints", "https://osf.io/preprints/x", True),
        ("osf.io/preprints", "https://osf.io/preprints", True),
        ("osf.io/preprints", "https://osf.io/preprints2", False),
        ("osf.io/preprints", "https://osf.io/x/preprints", False),
        ("osf.io/preprints", "https://osf.io/x/../preprints/y", True),
        ("osf.io/preprints", "https://osf.io/%70reprints/y", True),
        ("osf.io/preprints", "https://notosf.io/preprints", False),
        ("edu/~*", "https://www.school.edu/~bob/x", True),
        ("edu/~*", "https://www.school.edu/bob", False),
    ],
)
def test_paths_match_on_segment_borders(tmp_path, pattern, url, covered):
    """A path covers its folder, in whatever way the address spells it."""
    policy = policy_of(tmp_path, f"  - {{id: r, class: contested, facts: f, path: '{pattern}'}}\n")
    assert policy.classify(url).cls == ("contested" if covered else "unknown")


def test_the_first_rule_decides_and_the_most_special_entry_speaks(tmp_path):
    """Order decides between rules; within a rule, the longer entry gives the facts."""
    policy = policy_of(
        tmp_path,
        "  - {id: desk, class: factcheck, facts: desk, path: a.example/check}\n"
        "  - {id: site, class: canonical, domain: {a.example: whole, b.a.example: part}}\n"
        "  - {id: rest, class: heterodox, facts: all others, any: true}\n",
    )
    assert policy.classify("https://a.example/check/1").rule_id == "desk"
    assert policy.classify("https://x.b.a.example/other").facts == ("part",)
    assert policy.classify("https://c.a.example/").facts == ("whole",)
    rest = policy.classify("https://elsewhere.example/")
    assert (rest.cls, rest.rule_id, rest.facts) == ("heterodox", "rest", ("all others",))


def test_unknown_is_an_answer(tmp_path):
    """No rule, no address and no host all give `unknown`, with the publisher where there is one."""
    policy = one_domain(tmp_path, "reuters.com")
    assert policy.classify("https://a.elsewhere.example/").publisher == "elsewhere.example"
    for url in ("https://a.elsewhere.example/", "mailto:a@reuters.com", "", None):
        found = policy.classify(url)
        assert (found.cls, found.rule_id, found.facts) == (SourceClass.UNKNOWN, None, ())
    assert policy.classify(None).publisher == NO_PUBLISHER


def test_lenses_admit_disjoint_classes():
    """No document serves two lenses, verdicts serve none, and flagged ones come only on request."""
    assert list_admitted_classes("MEL") == {"canonical"}
    assert list_admitted_classes("HEL") == {"heterodox", "contested"}
    assert list_admitted_classes("SEL") == {"provided"}
    assert list_admitted_classes("HEL", flagged=True) - list_admitted_classes("HEL") == {
        "unknown",
        "flagged",
    }
    assert list_admitted_classes("MEL", flagged=True) == list_admitted_classes("MEL")
    assert classify_provided("https://reuters.com/x").cls in list_admitted_classes("SEL")
    assert classify_provided(None).publisher == NO_PUBLISHER


def test_an_overlay_speaks_first(tmp_path):
    """A user's rules stand before those of the policy that they extend."""
    head = "version: mine_1\nextends: default\nrules:\n"
    mine = policy_of(
        tmp_path, "  - {id: mine, class: flagged, facts: f, domain: reuters.com}\n", head=head
    )
    default = load_policy()
    assert mine.classify("https://reuters.com/").rule_id == "mine"
    assert mine.classify("https://apnews.com/") == default.classify("https://apnews.com/")
    assert mine.sources == (str(tmp_path / "policy.yaml"), "default")
    assert mine.sha256 != default.sha256
    assert [rule.id for rule in mine.rules[1:]] == [rule.id for rule in default.rules]


def test_an_overlay_may_extend_a_file(tmp_path):
    """A relative name is looked for beside the file that names it."""
    policy_of(
        tmp_path, "  - {id: base, class: flagged, facts: f, domain: a.example}\n", name="b.yaml"
    )
    head = "version: top\nextends: b.yaml\nrules:\n"
    top = policy_of(
        tmp_path, "  - {id: t, class: canonical, facts: f, domain: c.example}\n", head=head
    )
    assert top.classify("https://a.example").rule_id == "base"


def test_a_circle_is_refused(tmp_path):
    """A policy that extends itself is named, with its line."""
    with pytest.raises(PolicyError, match=r"line 2: `extends` leads in a circle"):
        policy_of(tmp_path, "  []\n", head="version: a\nextends: policy.yaml\nrules:\n")


def test_the_hash_covers_what_is_said_and_not_where(tmp_path):
    """Another class, fact, order or list is another policy; another folder or comment is not."""
    rules = [
        "  - {id: a, class: canonical, facts: f, domain: a.example}\n",
        "  - {id: b, class: flagged, facts: f, domain: b.example}\n",
    ]
    first = policy_of(tmp_path, "".join(rules)).sha256
    other = tmp_path / "elsewhere"
    other.mkdir()
    assert policy_of(other, "".join(rules) + "# a comment\n").sha256 == first
    for changed in (
        "".join(reversed(rules)),
        "".join(rules).replace("flagged", "unknown"),
        "".join(rules).replace("facts: f,", "facts: g,"),
        "".join(rules).replace("b.example", "c.example"),
    ):
        assert policy_of(tmp_path, changed).sha256 != first


def test_explain_shows_what_was_compared(tmp_path):
    """An explanation names the rule, the rules before it and those that came too late."""
    policy = policy_of(
        tmp_path,
        "  - {id: first, class: flagged, facts: nothing, domain: [x.example, y.example]}\n"
        "  - {id: second, class: canonical, facts: yes it is, domain: a.example}\n"
        "  - {id: third, class: contested, facts: late, suffix: example}\n"
        "  - {id: other, class: contested, facts: never, domain: z.example}\n",
    )
    why = policy.explain("HTTPS://www.A.example:443/x/../y?q")
    assert why.classification == policy.classify("https://www.a.example/y")
    assert why.classification.rule_id == "second"
    assert [(rule.id, rule.kind, rule.line) for rule in why.compared] == [
        ("first", "domain", 3),
        ("second", "domain", 4),
    ]
    assert [(match.rule.id, match.cls) for match in why.later] == [("third", "contested")]

    nothing = policy.explain("https://elsewhere.test/")
    assert nothing.classification.rule_id is None
    assert (len(nothing.compared), nothing.later) == (4, ())
    assert policy.explain("no host at all:").compared == ()


def test_diff_names_what_flips(tmp_path):
    """Only addresses whose class changes are named, with both classifications."""
    before = one_domain(tmp_path, "a.example", "canonical")
    after = one_domain(tmp_path, "a.example", "flagged")
    (flip,) = diff(before, after, ["https://a.example/1", "https://b.example/"])
    assert (flip.url, flip.before.cls, flip.after.cls) == (
        "https://a.example/1",
        "canonical",
        "flagged",
    )
    assert diff(before, before, ["https://a.example/1"]) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: is empty"),
        ("version: [", r"isn't YAML"),
        ("rules: []", r"line 1: `version` is missing"),
        (HEAD + "  - {id: a, clas: x}", r"line 3: unknown key `clas` \(did you mean `class`\?\)"),
        (HEAD + "  - {id: a, class: canoncial, facts: f, domain: a.example}",
         r"line 3: `class` must be one of .*got 'canoncial' \(did you mean `canonical`\?\)"),
        (HEAD + "  - {class: flagged, facts: f, domain: a.example}", r"line 3: `id` is missing"),
        (HEAD + "  - {id: a b, class: flagged, facts: f, any: true}", r"`id` must be letters"),
        (HEAD + "  - {id: a, class: flagged, facts: f}", r"exactly one of .*got 0"),
        (HEAD + "  - {id: a, class: flagged, facts: f, any: true, domain: b.c}", r"got 2"),
        (HEAD + "  - {id: a, facts: f, domain: b.c}", r"`a` has no `class`"),
        (HEAD + "  - {id: a, class: flagged, domain: b.c}", r"`a` has no `facts`"),
        (HEAD + "  - {id: a, class: flagged, facts: f, any: 1}", r"`any` must be true, got 1"),
        (HEAD + "  - {id: a, class: flagged, facts: f, domain: 'b c.d'}", r"names no host"),
        (HEAD + "  - {id: a, class: flagged, facts: f, domain: b.c/d}", r"use `path` for it"),
        (HEAD + "  - {id: a, class: flagged, facts: f, path: b.c}", r"has no path"),
        (HEAD + "  - {id: a, class: flagged, facts: f, domain: gov}", r"use `suffix` for it"),
        (HEAD + "  - {id: a, class: flagged, facts: f, domain: [b.c, www.b.c]}", r"also on line 3"),
        (HEAD + "  - {id: a, class: flagged, facts: 5, domain: b.c}", r"`facts` must be text"),
        (HEAD + "  - {id: a, class: flagged, facts: f, domain: b.c}\n"
                "  - {id: a, class: flagged, facts: f, domain: d.c}", r"line 4: `a` is also on"),
        (HEAD + "  - {id: a, class: nope, facts: f, domain: b.c}\n"
                "  - {id: b, class: nope, facts: f, domain: d.c}", r"line 3: .*\(and 1 more\)"),
        ("version: x\nextends: default\nrules: [{id: publishers, class: unknown, any: true, facts: f}]",
         r"line 3: `publishers` is also in `default` line \d+"),
        ("version: x\nextends: nowhere.yaml\nrules: []", r"nowhere.yaml can't be read"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_file_and_line(tmp_path, text, message):
    """A policy with a mistake isn't used, and the message says where and what to do."""
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError, match=message) as caught:
        load_policy(path)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems
    assert caught.value.exit_code == 2


def test_patterns_are_read_as_lists_write_them():
    """An address, a star, a `www.`, capitals and a last slash all mean the same domain."""
    for written in (
        "a.example",
        "https://www.A.example/",
        "*.a.example",
        ".a.example",
        "a.example/*",
    ):
        assert read_pattern(written) == ("a.example", "", False)
    assert read_pattern("a.example/news/ufo*") == ("a.example", "/news/ufo", True)
    assert read_pattern("a.example/news/*") == ("a.example", "/news", False)
    assert read_pattern("www.example") == ("www.example", "", False)
    for written in ("", "a b", "/x", "https://", "a..b"):
        assert read_pattern(written) is None


labels = st.text("ab", min_size=1, max_size=2)
hosts = st.lists(labels, min_size=1, max_size=3).map(".".join)
paths = st.lists(labels, max_size=2).map(lambda parts: "".join(f"/{part}" for part in parts))


@given(st.lists(st.tuples(hosts, paths), max_size=6), hosts, paths)
def test_the_index_finds_what_a_walk_over_the_rules_finds(rules, host, path):
    """Looking entries up by host is only a faster way to the first rule that covers."""
    policy = load_policy()
    made = tuple(
        policy.rules[0].__class__(
            id=f"r{n}", kind="list", cls=None, facts=(), source="s", line=n,
            entries=(Entry(h, p, open_ended=False, cls=SourceClass.FLAGGED),),
        )
        for n, (h, p) in enumerate(rules)
    )  # fmt: skip
    address = read_address(f"https://{host}{path}")
    found = Policy("v", made, ()).classify(f"https://{host}{path}").rule_id

    def covers(entry):
        """Match on label borders: `a.b` never covers `xa.b`."""
        below = address.host == entry.host or address.host.endswith(f".{entry.host}")
        return below and entry.covers_path(address.path)

    walked = next((rule.id for rule in made if covers(rule.entries[0])), None)
    assert found == walked


def test_a_policy_names_its_files_by_content_hash(tmp_path):
    """The same list under another hash is another policy, even if the rest is equal."""
    rule = "  - {{id: l, class: flagged, facts: f, list: {{file: l.txt, sha256: {}}}}}\n"
    hashes = []
    for text in ("a.example\n", "a.example\nb.example\n"):
        (tmp_path / "l.txt").write_text(text, encoding="utf-8")
        pinned = rule.format(hashlib.sha256(text.encode()).hexdigest())
        hashes.append(policy_of(tmp_path, pinned).sha256)
    assert hashes[0] != hashes[1]
