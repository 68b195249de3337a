"""Ranking by words and meaning, searches for a lens's own classes, and reasons for all that goes."""

import asyncio
import dataclasses
from datetime import date

import numpy as np
import pytest
from documents import document, prose

from heretix.core.canonical import sha256_text
from heretix.core.errors import InsufficientEvidenceError
from heretix.evidence.embedding import PACKAGE, Encoder, find_encoder
from heretix.evidence.policy.file import load_policy
from heretix.evidence.retrieval import Candidate, Retrieval, read_passages, retrieve
from heretix.evidence.search import Hit, narrow
from heretix.evidence.sources.corpus import Corpus

CLAIM = "Coffee reduces the risk of stroke"
ENCODER = find_encoder()
with_encoder = pytest.mark.skipif(
    ENCODER is None, reason=f"the extra `rerank` and {PACKAGE} aren't installed"
)


class Planted:
    """An encoder whose meaning is told: the closeness of a text is that of its first known word."""

    def __init__(self, **closeness):
        self.closeness = closeness
        self.read = []

    def encode(self, texts):
        rows = []
        for text in texts:
            self.read.append(text)
            found = [c for word, c in self.closeness.items() if word in text.lower()]
            close = 1.0 if text == CLAIM else found[0] if found else 0.0
            # Beside the claim's direction every text has one of its own.
            own = np.zeros(64)
            own[1 + int(sha256_text(text)[:4], 16) % 63] = (1.0 - close**2) ** 0.5
            own[0] = close
            rows.append(own)
        return np.stack(rows)


class Listed:
    """A search over fixed hits, which keeps what it was asked."""

    name = "listed"

    def __init__(self, *documents):
        self.hits = [
            Hit(url=d.url, title=d.title, snippet="", published=d.published, score=None, document=d)
            for d in documents
        ]
        self.asked = []

    async def search(self, query, k, **filters):
        self.asked.append((query, filters))
        return narrow(self.hits, k=k, **filters)

    async def aclose(self):
        pass


def candidates(*texts):
    policy = load_policy()
    made = [
        document(text, doc_id=f"d{n}", url=f"https://h{n}.gov/x") for n, text in enumerate(texts)
    ]
    return [
        Candidate(document=d, classification=policy.classify(d.url), ranks={"neutral": n})
        for n, d in enumerate(made, start=1)
    ]


def find(search, *, lens="MEL", **how):
    found = asyncio.run(
        retrieve(CLAIM, Retrieval(search=search, policy=load_policy(), **how), [lens])
    )
    bundle = found[lens]
    return bundle.bundle if isinstance(bundle, InsufficientEvidenceError) else bundle


def offices(*texts, **changes):
    return [
        document(text, doc_id=f"d{n}", url=f"https://office{n}.gov/x", **changes)
        for n, text in enumerate(texts)
    ]


def test_meaning_outweighs_a_few_ranks_and_words_decide_without_it():
    """What means the same comes first, though it stands last by words."""
    made = candidates("Coffee and stroke.", "Coffee and milk.", "Espresso protects the brain.")
    plain = read_passages(CLAIM, made, None, max_chars=600)
    ranked = sorted(plain, key=lambda c: -c.relevance)
    assert [c.doc_id for c in ranked] == ["d0", "d1", "d2"]
    read = read_passages(CLAIM, made, Planted(espresso=0.9, milk=0.1, stroke=0.6), max_chars=600)
    assert [c.doc_id for c in sorted(read, key=lambda c: -c.relevance)] == ["d2", "d0", "d1"]


def test_the_passage_shown_is_the_one_that_means_most():
    """Of a long document the passage counts that is closest, not the one with the most words."""
    dull = "Coffee and stroke and risk are words. " * 12
    text = f"{dull}\n\n{prose(3, 60)}\n\nEspresso protects the coffee drinker. {prose(5, 60)}"
    (read,) = read_passages(CLAIM, candidates(text), Planted(espresso=0.9), max_chars=400)
    assert "Espresso protects" in read.passage
    assert len(read.passage) <= 400
    (plain,) = read_passages(CLAIM, candidates(text), None, max_chars=400)
    assert "are words" in plain.passage


def test_other_scripts_are_not_read_for_their_meaning():
    """The encoder knows English: claims in other scripts, and passages, are ranked by words."""
    made, planted = candidates("咖啡有益健康。咖啡。", "Coffee helps."), Planted(coffee=0.7)
    read = {c.doc_id: c.closeness for c in read_passages(CLAIM, made, planted, max_chars=600)}
    assert read == {"d0": None, "d1": 0.7}
    for found in read_passages("咖啡有益健康", made, planted, max_chars=600):
        assert found.closeness is None


def test_what_is_clearly_about_something_else_is_dropped_whatever_the_length():
    """Two shared words are enough for a claim of any length; meaning lets in what shares none."""
    texts = ["Coffee and stroke.", "A stroke of luck.", "Espresso protects.", "Dogs bark."]
    long = f"{CLAIM} {prose(9, 40)}"
    for claim in (CLAIM, long):
        how = Retrieval(search=Listed(*offices(*texts)), policy=load_policy(), any_word=True)
        found = asyncio.run(retrieve(claim, how, ["MEL"]))["MEL"].bundle
        assert [item.doc_id for item in found.items] == ["d0"]
        assert {d.doc_id: d.reason.value for d in found.dropped} == dict.fromkeys(
            ("d1", "d2", "d3"), "off_topic"
        )
    encoder = Planted(coffee=0.6, luck=0.05, espresso=0.5)
    read = find(Listed(*offices(*texts)), any_word=True, encoder=encoder)
    assert {item.doc_id for item in read.items} == {"d0", "d2"}


def test_copies_in_other_words_collapse_and_contradictions_do_not():
    """The same meaning is one document; another number, a "not" or a stance makes two."""
    texts = (
        "Coffee cut strokes by 20% in the trial.",
        "In the trial, strokes fell by 20% with coffee.",
        "Coffee cut strokes by 12% in the trial.",
        "Coffee did not cut strokes by 20% in the trial.",
    )

    class Same(Planted):
        def encode(self, texts):
            return np.ones((len(texts), 1))

    bundle = find(Listed(*offices(*texts)), encoder=Same())
    assert {d.doc_id: d.reason.value for d in bundle.dropped} == {"d1": "duplicate"}
    assert {i.doc_id: i.n_copies for i in bundle.items} == {"d0": 2, "d2": 1, "d3": 1}


def test_each_lens_searches_for_its_own_classes():
    """Classes that were found and aren't the lens's are shut out, and the policy's own are named."""
    canonical = offices(*(f"Coffee and stroke. {prose(n)}" for n in range(3)))
    policy = load_policy()
    other = document(
        f"Coffee and stroke. {prose(8)}", doc_id="o", url="https://nobody-knows.example/x"
    )
    search = Listed(*canonical, other)
    find(search, lens="HEL")
    filters = [asked for query, asked in search.asked if query == CLAIM]
    shut_out = [asked["exclude"] for asked in filters if asked.get("exclude")]
    hosts = (*(f"office{n}.gov" for n in range(3)), "nobody-knows.example")
    assert shut_out == [tuple(sorted(hosts))]
    for asked in filters:
        for domain in asked.get("include", ()):
            found = policy.classify(f"https://{domain}/").cls.value
            assert found in {"heterodox", "contested"}, (domain, found)


def test_a_lens_reaches_what_others_stood_in_front_of():
    """Forty documents of another class don't keep a lens from finding its own."""
    crowd = offices(*(f"Coffee and stroke. {prose(n)}" for n in range(45)))
    own = [
        document(f"Coffee and stroke. {prose(60 + n)}", doc_id=f"m{n}", url=f"https://m{n}.gov/x")
        for n in range(3)
    ]
    away = [dataclasses.replace(d, url=f"https://crowd{n}.example/x") for n, d in enumerate(crowd)]
    assert {item.doc_id for item in find(Listed(*away, *own)).items} == {"m0", "m1", "m2"}


def test_what_came_later_is_listed_with_its_day():
    """A search leaves out what is later; the bundle says what that was."""
    texts = [f"Coffee and stroke. {prose(n)}" for n in range(4)]
    made = offices(*texts, published=date(2020, 1, 1))
    made[3] = dataclasses.replace(made[3], published=date(2022, 5, 6))
    bundle = find(Listed(*made), as_of=date(2021, 1, 1))
    assert [item.doc_id for item in bundle.items] == ["d0", "d1", "d2"]
    (late,) = bundle.dropped
    assert (late.doc_id, late.reason.value) == ("d3", "after_as_of")
    assert late.params == {"published": "2022-05-06"}


def test_a_title_that_is_only_the_beginning_counts_once(tmp_path):
    """Where the first words stand in for a title they don't outweigh the text."""
    with Corpus.open(tmp_path / "c.sqlite") as corpus:
        text = "Tea is a plant of the east, says a long sentence about coffee that goes on."
        beginning = document(text, doc_id="a", url="https://a.example/x", title=text[:40])
        about = document("Tea and tea: what tea is.", doc_id="b", url=None, title="Another")
        corpus.add([beginning, about])
        assert [hit.title for hit in corpus.search("tea", 2)] == ["Another", text[:40]]


@with_encoder
def test_the_encoder_knows_what_belongs_together():
    """Paraphrases are close, other subjects aren't; a text has one vector, alone or among others."""
    texts = [
        "Coffee lowers the risk of stroke.",
        "People who drink espresso have fewer brain infarcts.",
        "The parliament voted on the new budget.",
    ]
    vectors = ENCODER.encode(texts)
    assert vectors.shape == (3, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.4 > 0.2 > vectors[0] @ vectors[2]
    alone = Encoder(ENCODER._tensors, ENCODER._tokenizer).encode([texts[1]])
    assert np.allclose(alone[0], vectors[1], atol=1e-5)
