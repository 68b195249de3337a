"""The packaged policy, and how far it and public lists reach."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import re
from collections import Counter
from itertools import count, cycle
from pathlib import Path

import pytest
from documents import document

from heretix.core.errors import InsufficientEvidenceError
from heretix.evidence.policy.file import check_file, check_policy, load_policy
from heretix.evidence.policy.policy import Kind
from heretix.evidence.retrieval import Retrieval, retrieve
from heretix.evidence.sources.corpus import Corpus, LocalSearch
from heretix.report.words import composition_text

SCRIPT = Path(__file__).parents[2] / "bench" / "sources.py"
_spec = importlib.util.spec_from_file_location("bench_sources", SCRIPT)
sources = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sources)

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("url", "cls", "rule_id"),
    [
        ("https://www.cdc.gov/flu", "canonical", "publishers"),
        ("https://www.dol.gov/x", "canonical", "government-suffixes"),
        ("https://www.gov.uk/guidance", "canonical", "government-suffixes"),
        ("https://www.nhs.uk/conditions", "canonical", "government-suffixes"),
        ("https://www.ons.gov.uk/x", "canonical", "publishers"),
        ("https://ec.europa.eu/eurostat/web", "canonical", "eurostat"),
        ("https://www.ecb.europa.eu/x", "canonical", "publishers"),
        ("https://ec.europa.eu/info", "canonical", "publishers"),
        ("https://www.who.int/x", "canonical", "publishers"),
        ("https://www.ospar.int/x", "canonical", "treaty-organisations"),
        ("https://doi.org/10.1038/s41586-020-2649-2", "canonical", "publishers"),
        ("https://doi.org/10.1101/2020.03.22.1", "contested", "publishers"),
        ("https://dx.doi.org/10.1101/gr.1", "canonical", "publishers"),
        ("https://doi.org/10.99999/x", "unknown", None),
        ("https://www.uni-heidelberg.de/x", "canonical", "publishers"),
        ("https://www.youtube.com/@someone", "unknown", "publishers"),
        ("https://www.bild.de/x", "flagged", "publishers"),
        ("https://www.brookings.edu/x", "heterodox", "publishers"),
        ("https://www.reuters.com/world", "canonical", "publishers"),
        ("https://www.reuters.com/fact-check/x", "factcheck", "fact-check-desks"),
        ("https://notreuters.com/world", "unknown", None),
        ("https://factcheck.afp.com/x", "factcheck", "publishers"),
        ("https://www.afp.com/x", "canonical", "publishers"),
        ("https://arxiv.org/abs/1", "contested", "publishers"),
        ("https://osf.io/preprints/x", "contested", "publishers"),
        ("https://osf.io/x", "unknown", None),
        ("https://www.academia.edu/1", "contested", "publishers"),
        ("https://web.stanford.edu/~someone/x", "unknown", "pages-of-persons"),
        ("https://plato.stanford.edu/entries/x", "canonical", "publishers"),
        ("https://www.stanford.edu/x", "canonical", "universities"),
        ("https://www.theguardian.com/commentisfree/x", "unknown", "opinion-sections"),
        ("https://www.theguardian.com/world/x", "canonical", "publishers"),
        ("https://abcnews.com.co/x", "flagged", "publishers"),
        ("https://nytimes.com.co/x", "flagged", "publishers"),
        ("https://archive.ph/abc", "unknown", "publishers"),
        ("https://web.archive.org/web/2020/https://www.cato.org/x", "heterodox", "publishers"),
        ("https://www.theonion.com/x", "flagged", "publishers"),
        ("https://someone.substack.com/p/x", "unknown", "publishers"),
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
            if fact.startswith(("name: ", "owner: ")):
                continue  # Good Housekeeping calls itself that
            assert not verdicts.search(fact), fact
            assert len(fact) <= 120, fact
        assert rule.facts or all(entry.facts for entry in rule.entries)


def test_it_stands_on_its_own_facts():
    """Its one list is the packaged one, and every class but `provided` is in use."""
    rules = load_policy().rules
    assert [rule.id for rule in rules if rule.kind is Kind.LIST] == ["publishers"]
    assert {rule.cls or entry.cls for rule in rules for entry in rule.entries} == {
        "canonical", "heterodox", "contested", "flagged", "factcheck", "unknown",
    }  # fmt: skip


def test_the_list_of_publishers_is_what_its_check_wants():
    """Every row has a known kind, a country and a language by their codes, and its own key."""
    rows = sources.read_publishers()
    assert len(rows) >= 3_000
    assert sources.find_slips(rows) == []


PRESS = {"newspaper", "broadcaster", "public broadcaster", "magazine", "news agency",
         "news site", "trade press", "student newspaper", "tabloid"}  # fmt: skip


def test_the_press_is_never_heterodox():
    """What the list calls press by its kind is canonical, or flagged, and so in no HEL bundle."""
    policy = load_policy()
    found = {
        str(policy.classify(f"https://{row['domain']}/").cls)
        for row in sources.read_publishers()
        if row["kind"] in PRESS
    }
    assert found == {"canonical", "flagged"}


@pytest.mark.skipif(not DATA.is_dir(), reason="the claims of ../shared/data aren't here")
@pytest.mark.study
def test_hel_bundles_of_real_claims_hold_no_press(tmp_path):
    """The evidence of 50 real claims stands at outlets of the press, at unknown sites and at others:
    no bundle has one of the press, and each says how many unknown ones were left out."""
    lines = (DATA / "claim_evidence_stance.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    texts = list(dict.fromkeys(row["evidence"] for row in rows))[:200]
    claims = list(dict.fromkeys(row["claim"] for row in rows if row["evidence"] in texts))[:50]
    listed = [row for row in sources.read_publishers() if "/" not in row["domain"]]
    press = [row["domain"] for row in listed if row["kind"] in PRESS][:: len(texts)]
    others = [row["domain"] for row in listed if row["kind"] in {"advocacy", "think tank"}]
    turns = zip(cycle(press), (f"site{n}.example" for n in count()), others, strict=False)
    hosts = [host for turn in turns for host in turn]
    policy = load_policy()
    made = [
        document(text, doc_id=f"{n:04d}", url=f"https://{host}/x", title=f"Page {n}")
        for n, (text, host) in enumerate(zip(texts * 3, hosts, strict=False))
    ]
    with Corpus.open(tmp_path / "c.sqlite") as corpus:
        corpus.add(made)
        how = Retrieval(search=LocalSearch(corpus), policy=policy, any_word=True)
        found = [asyncio.run(retrieve(claim, how, ["HEL"]))["HEL"] for claim in claims]
    bundles = [b.bundle if isinstance(b, InsufficientEvidenceError) else b for b in found]
    kinds = {row["domain"]: row["kind"] for row in listed}
    shown = [kinds[item.publisher] for bundle in bundles for item in bundle.items]
    assert set(shown) <= {"advocacy", "think tank"}
    assert len(shown) >= 3 * len(claims)
    for bundle in bundles:
        unknown = {
            d.doc_id for d in bundle.dropped if d.cls == "unknown" and d.reason == "wrong_class"
        }
        assert {d.publisher for d in bundle.dropped} & set(press)
        assert unknown
        assert f"{len(unknown)} unknown left out" in composition_text(bundle.to_json())


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
    assert coverage["university_domains"] > 0.7
    assert coverage["rsp_domains"] > 0.7
    reliable = [entry.pattern for entry in overlay.rules[2].entries if entry.cls == "canonical"]
    unknown = [one for one in reliable if default.classify(f"https://{one}").cls == "unknown"]
    assert len(unknown) <= len(reliable) / 10
    assert [len(rule.skipped) for rule in overlay.rules[: len(LISTS)]] == [0, 0, 0]
    messages = [problem.message for problem in check_policy(overlay)]
    assert any("`rsp_domains` contradicts itself" in message for message in messages)
