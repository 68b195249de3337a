"""Hashes that identify policies and what models are shown, pinned: they must survive refactoring."""

import asyncio
import json
from datetime import date
from pathlib import Path

import pytest

from heretix.core.canonical import sha256_json, sha256_text
from heretix.core.errors import InsufficientEvidenceError
from heretix.evidence.bundle import dump_bundle, load_bundle
from heretix.evidence.demo import DEMO_POLICY, demo_claims, demo_documents
from heretix.evidence.policy.file import load_policy
from heretix.evidence.retrieval import Retrieval, retrieve, retrieve_provided
from heretix.evidence.sources.corpus import Corpus, LocalSearch

GOLDEN = json.loads(Path(__file__).with_suffix(".json").read_text())
LISTED = """
version: golden-1
about: A policy with every kind of rule.
extends: default
rules:
  - id: one
    class: contested
    domain: one.example
    facts: named alone
  - id: several
    class: heterodox
    domain:
      two.example: [a fact of its own, another]
      three.example: one fact
  - id: paths
    class: canonical
    path: [osf.io/preprints, "edu/~*"]
    facts: [by path]
  - id: whole-list
    class: flagged
    list: {file: plain.txt, sha256: SHA plain.txt}
    facts: a list of one class
  - id: mapped-list
    list:
      file: mapped.csv
      sha256: SHA mapped.csv
      format: csv
      domain: site
      class: rating
      classes: {good: canonical, bad: flagged, odd: null}
    facts: a list of several
"""
PLAIN = "# remark\nfour.example\nhttps://www.five.example/x/*\n"
MAPPED = "site,rating\nsix.example,good\nseven.example,bad\neight.example,odd\n"


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    """The bundles of the demonstration's claims, whole or too small, by claim and lens."""
    found = {}
    with Corpus.open(tmp_path_factory.mktemp("golden") / "demo.sqlite") as corpus:
        corpus.add(demo_documents())
        how = Retrieval(
            search=LocalSearch(corpus),
            policy=load_policy(DEMO_POLICY),
            as_of=date(2024, 6, 1),
            any_word=True,
        )
        for number, claim in enumerate(demo_claims()):
            bundles = dict(asyncio.run(retrieve(claim, how)))
            bundles["SEL"] = retrieve_provided(claim, list(demo_documents())[:10])
            for lens, bundle in bundles.items():
                short = isinstance(bundle, InsufficientEvidenceError)
                found[f"{number} {lens}"] = bundle.bundle if short else bundle
    return found


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    text = LISTED
    for name, content in (("plain.txt", PLAIN), ("mapped.csv", MAPPED)):
        (folder / name).write_text(content)
        text = text.replace(f"SHA {name}", sha256_text(content))
    (folder / "golden.yaml").write_text(text)
    return [load_policy(name) for name in ("default", DEMO_POLICY, folder / "golden.yaml")]


def content_of(bundle):
    """Everything but the id and how drops are worded."""
    record = bundle.to_json()
    drops = [[d["doc_id"], d["reason"], d["cls"], d["publisher"]] for d in record["dropped"]]
    rest = {k: v for k, v in record.items() if k not in {"bundle_id", "schema", "dropped"}}
    return sha256_json([rest, drops])


def test_policies_keep_their_hashes(policies):
    assert [policy.sha256 for policy in policies] == GOLDEN["policies"]


@pytest.mark.parametrize(
    ("name", "hash_of"),
    [
        ("shown", lambda bundle: bundle.shown_sha256),
        ("content", content_of),
        ("bundle_id", lambda bundle: bundle.bundle_id),
    ],
)
def test_bundles_keep_their_hashes(gathered, name, hash_of):
    assert {key: hash_of(bundle) for key, bundle in gathered.items()} == GOLDEN[name]


def test_golden_bundles_come_back_from_their_files(gathered):
    for bundle in gathered.values():
        assert load_bundle(dump_bundle(bundle)) == bundle
