"""The packaged policy, and how far it and public lists reach."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path

import pytest

from heretix.evidence.policy.file import check_file, check_policy, load_policy
from heretix.evidence.policy.policy import Kind

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("url", "cls", "rule_id"),
    [
        ("https://www.cdc.gov/flu", "canonical", "government-suffixes"),
        ("https://www.gov.uk/guidance", "canonical", "government-suffixes"),
        ("https://www.nhs.uk/conditions", "canonical", "government-suffixes"),
        ("https://www.ons.gov.uk/x", "canonical", "statistics-offices"),
        ("https://ec.europa.eu/eurostat/web", "canonical", "eurostat"),
        ("https://www.ecb.europa.eu/x", "canonical", "public-bodies"),
        ("https://ec.europa.eu/info", "canonical", "intergovernmental"),
        ("https://www.who.int/x", "canonical", "treaty-organisations"),
        ("https://www.reuters.com/world", "canonical", "wire-services"),
        ("https://www.reuters.com/fact-check/x", "factcheck", "fact-check-desks"),
        ("https://notreuters.com/world", "unknown", None),
        ("https://factcheck.afp.com/x", "factcheck", "fact-checkers"),
        ("https://www.afp.com/x", "canonical", "wire-services"),
        ("https://arxiv.org/abs/1", "contested", "preprint-servers"),
        ("https://osf.io/preprints/x", "contested", "preprint-sections"),
        ("https://osf.io/x", "unknown", None),
        ("https://www.academia.edu/1", "contested", "uploads"),
        ("https://web.stanford.edu/~someone/x", "unknown", "pages-of-persons"),
        ("https://plato.stanford.edu/entries/x", "canonical", "encyclopaedias"),
        ("https://www.stanford.edu/x", "canonical", "universities"),
        ("https://www.theguardian.com/commentisfree/x", "contested", "opinion-sections"),
        ("https://www.theguardian.com/world/x", "canonical", "newspapers"),
        ("https://abcnews.com.co/x", "flagged", "imitations"),
        ("https://www.theonion.com/x", "flagged", "satire"),
        ("https://someone.substack.com/p/x", "unknown", None),
        ("https://example.com/", "unknown", None),
    ],
)
def test_classes(url, cls, rule_id):
    """Special cases come before the rules they are exceptions to."""
    found = load_policy().classify(url)
    assert (found.cls, found.rule_id) == (cls, rule_id)


def test_it_has_no_problems_of_its_own():
    """The packaged policy is what `policy check` wants policies to be."""
    assert check_file("default")[1] == ()


def test_facts_are_statements_and_not_verdicts():
    """Every source has a fact, and no fact says how good a source is."""
    verdicts = re.compile(
        r"\b(un)?(reliable|trustworthy|credible)\b|\bquality\b|\b(dis|mis)information\b"
        r"|\b(good|bad|best|worst|fake|hoax|propaganda|pseudo\w*|quack\w*)\b",
        re.IGNORECASE,
    )
    for rule in load_policy().rules:
        for fact in (*rule.facts, *(fact for entry in rule.entries for fact in entry.facts)):
            assert not verdicts.search(fact), fact
            assert len(fact) <= 120, fact
        assert rule.facts or all(entry.facts for entry in rule.entries)


def test_it_stands_on_its_own_facts():
    """No rule rests on an imported list, and every class but `provided` is in use."""
    rules = load_policy().rules
    assert all(rule.kind is not Kind.LIST for rule in rules)
    assert {rule.cls for rule in rules} == {
        "canonical", "heterodox", "contested", "flagged", "factcheck", "unknown",
    }  # fmt: skip


LISTS = {
    "us_dotgov_domains.txt": "class: canonical\n    list: {file: %s, sha256: %s}",
    "university_domains.txt": "class: canonical\n    list: {file: %s, sha256: %s}",
    "rsp_domains.csv": "list:\n      {file: %s, sha256: %s, domain: domain, class: status, classes:"
    " {gr: canonical, nc: contested, gu: contested, d: flagged, m: null}}",
}


@pytest.mark.skipif(not DATA.is_dir(), reason="the public lists of ../shared/data aren't here")
def test_public_lists_import_and_their_coverage_is_known(tmp_path, capsys):
    """Real lists go through the list mechanism; the default alone reaches so and so far."""
    text = "version: lists_1\nextends: default\nrules:\n"
    for name, rule in LISTS.items():
        digest = hashlib.sha256((DATA / name).read_bytes()).hexdigest()
        pinned = rule % (DATA / name, digest)
        text += f"  - id: {name.partition('.')[0]}\n    facts: a public list\n    {pinned}\n"
    path = tmp_path / "overlay.yaml"
    path.write_text(text, encoding="utf-8")
    overlay, default = load_policy(path), load_policy()

    coverage: dict[str, float] = {}
    lines: list[str] = []
    for rule in overlay.rules[: len(LISTS)]:
        urls = [f"https://{entry.host}{entry.prefix}" for entry in rule.entries]
        classes = Counter(default.classify(url).cls.value for url in urls)
        known = len(urls) - classes["unknown"]
        coverage[rule.id] = known / len(urls)
        lines.append(
            f"{rule.id}: {len(urls):,} entries, {len(rule.skipped)} rows left out; the default "
            f"policy knows {known:,} ({known / len(urls):.0%}): {dict(classes)}"
        )
        assert all(overlay.classify(url).rule_id is not None for url in urls)
    with capsys.disabled():
        print("\n" + "\n".join(lines))

    assert coverage["us_dotgov_domains"] == 1.0
    assert coverage["university_domains"] > 0.5
    assert 0.1 < coverage["rsp_domains"] < 0.7
    assert [len(rule.skipped) for rule in overlay.rules[: len(LISTS)]] == [0, 0, 0]
    messages = [problem.message for problem in check_policy(overlay)]
    assert any("`rsp_domains` contradicts itself" in message for message in messages)
