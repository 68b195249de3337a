"""Measure the recall of final bundles beside plain BM25.

    python bench/recall.py [--data FILE] [--half choose|report] [--sentences] [--words-only]
                           [--json]

`--data` is JSON lines with `claim` and `evidence`: every distinct evidence is a document of a
publisher of its own, every claim is searched for, and what counts is whether its own evidence
stands in the bundle that a model would be shown: behind duplicates, limits, budget and choice.
Evidence of which a near-duplicate stands there is told apart: the method keeps one of each,
whatever ranks them, and plain BM25 may show both. With `--sentences` each sentence of the evidence
is a document by itself: then few are near-duplicates, and all of a claim's count.
The yardstick is bm25s with English stop words and the Snowball stemmer, which are not installed
with Heretix: `uv pip install bm25s PyStemmer`. `--half` splits the claims by hash. The
constants were chosen while looking at both halves, so neither is a held-out set.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib
import json
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heretix.core.canonical import sha256_text
from heretix.core.errors import InsufficientEvidenceError
from heretix.core.lenses import LENSES
from heretix.evidence.bundle import Bundle
from heretix.evidence.document import Document
from heretix.evidence.embedding import find_encoder
from heretix.evidence.policy.file import load_policy
from heretix.evidence.retrieval import Retrieval, retrieve
from heretix.evidence.sources.corpus import Corpus, LocalSearch
from heretix.evidence.text.excerpt import find_content_words, split_sentences
from heretix.evidence.text.fold import cluster

DATA = Path(__file__).parents[2] / "shared" / "data" / "claim_evidence_stance.jsonl"
DEPTHS = (8, 20)
LONG = 16
"""Content words from which a claim is long."""
TARGET = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Both sides over the same claims and documents."""

    claims: int
    documents: int
    encoder: bool
    recall: dict[int, float]
    bm25: dict[int, float]
    ratio: dict[int, float]
    recall_of_texts: dict[int, float]
    """Evidence counts where it or a near-duplicate of it was found."""
    bm25_of_texts: dict[int, float]
    ratio_of_texts: dict[int, float]
    long_claims: int
    long_enough: float | None
    """Share of long claims with enough documents to be measured."""
    enough: float
    s_per_claim: float


def read_pairs(path: Path, *, apart: bool) -> dict[str, set[str]]:
    """The evidence of each claim, whole or its sentences `apart`."""
    pairs: defaultdict[str, set[str]] = defaultdict(set)
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = row["evidence"]
        parts = (
            [text[place.start : place.end] for place in split_sentences(text)] if apart else [text]
        )
        pairs[row["claim"]].update(parts)
    return dict(pairs)


def make_document(number: int, text: str) -> Document:
    """A document of a publisher of its own, of the class that MEL admits."""
    return Document(
        doc_id=f"{number:06d}",
        url=f"https://office{number}.gov/page",
        title=f"Page {number}",
        text=text,
        author=None,
        published=None,
        published_method=None,
        published_confidence=None,
        retrieved_at="2024-01-01T00:00:00Z",
        raw_sha256=sha256_text(text),
        text_sha256=sha256_text(text),
    )


async def find(claims: list[str], how: Retrieval, depth: int) -> dict[str, tuple[list[str], bool]]:
    """Ids in each claim's bundle of so many documents, and whether they are enough."""
    how = replace(how, limits=replace(LENSES["MEL"].limits, k=depth))
    found = {}
    for place, claim in enumerate(claims, start=1):
        got = (await retrieve(claim, how, ["MEL"]))["MEL"]
        short = isinstance(got, InsufficientEvidenceError)
        bundle = got.bundle if isinstance(got, InsufficientEvidenceError) else got
        assert isinstance(bundle, Bundle)
        found[claim] = [item.doc_id for item in bundle.items], not short
        if place % 50 == 0:
            print(f"{place} of {len(claims)} claims, {depth} documents", file=sys.stderr)
    return found


def rank_plainly(claims: list[str], texts: list[str], depth: int) -> dict[str, list[str]]:
    """Rank as bm25s with a stemmer does."""
    bm25s: Any = importlib.import_module("bm25s")
    stemmer = importlib.import_module("Stemmer").Stemmer("english")
    options = {"stopwords": "en", "stemmer": stemmer, "show_progress": False}
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, **options), show_progress=False)
    tokens = bm25s.tokenize(claims, **options)
    places, _ = index.retrieve(tokens, k=min(depth, len(texts)), show_progress=False)
    return {
        claim: [f"{n:06d}" for n in row] for claim, row in zip(claims, places.tolist(), strict=True)
    }


Groups = dict[str, int]
"""Of each id, the number of its group."""


def recall(found: dict[str, list[str]], true: dict[str, set[str]], groups: Groups) -> float:
    """Share of all true evidence of which something of the same group was found."""
    hits = sum(
        groups[wanted] in {groups[one] for one in ids}
        for claim, ids in found.items()
        for wanted in true[claim]
    )
    return hits / sum(len(true[claim]) for claim in found)


def measure(path: Path, half: str | None, *, words_only: bool, apart: bool) -> Result:
    """Search for every claim, both ways."""
    pairs = read_pairs(path, apart=apart)
    texts = list(dict.fromkeys(text for found in pairs.values() for text in sorted(found)))
    ids = {text: f"{n:06d}" for n, text in enumerate(texts)}
    true = {claim: {ids[text] for text in found} for claim, found in pairs.items()}
    claims = [claim for claim in pairs if half in {None, half_of(claim)}]
    itself: Groups = {number: n for n, number in enumerate(ids.values())}
    copies: Groups = {
        f"{place:06d}": n
        for n, places in enumerate(cluster(texts, earliest=lambda place: place))
        for place in places
    }
    encoder = None if words_only else find_encoder()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Corpus.open(Path(folder, "c.sqlite")) as corpus:
        corpus.add(make_document(n, text) for n, text in enumerate(texts))
        how = Retrieval(
            search=LocalSearch(corpus), policy=load_policy(), any_word=True, encoder=encoder
        )
        found = {}
        for depth in DEPTHS:
            found[depth] = asyncio.run(find(claims, how, depth))
            # Told as soon as it is known: on a busy machine the rest takes long.
            share = recall({claim: got for claim, (got, _) in found[depth].items()}, true, itself)
            print(f"recall@{depth} of bundles: {share:.3f}", file=sys.stderr, flush=True)
    seconds = (time.monotonic() - begun) / (len(claims) * len(DEPTHS))
    ranked = {depth: rank_plainly(claims, texts, depth) for depth in DEPTHS}
    bundles = {d: {claim: got for claim, (got, _) in found[d].items()} for d in DEPTHS}
    ours, plain, our_texts, plain_texts = (
        {depth: recall(of[depth], true, groups) for depth in DEPTHS}
        for groups in (itself, copies)
        for of in (bundles, ranked)
    )
    enough = {claim: sufficient for claim, (_, sufficient) in found[DEPTHS[0]].items()}
    long = [claim for claim in claims if len(find_content_words(claim)) >= LONG]
    return Result(
        claims=len(claims),
        documents=len(texts),
        encoder=encoder is not None,
        recall=ours,
        bm25=plain,
        ratio={depth: ours[depth] / plain[depth] for depth in DEPTHS},
        recall_of_texts=our_texts,
        bm25_of_texts=plain_texts,
        ratio_of_texts={depth: our_texts[depth] / plain_texts[depth] for depth in DEPTHS},
        long_claims=len(long),
        long_enough=sum(enough[claim] for claim in long) / len(long) if long else None,
        enough=sum(enough.values()) / len(enough),
        s_per_claim=seconds,
    )


def half_of(claim: str) -> str:
    """The half that a claim belongs to, for ever."""
    even = int(hashlib.sha256(claim.encode()).hexdigest(), 16) % 2 == 0
    return "choose" if even else "report"


def main() -> int:
    """Measure and print; 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--half", choices=("choose", "report"))
    parser.add_argument("--sentences", action="store_true", help="each a document by itself")
    parser.add_argument("--words-only", action="store_true", help="without the encoder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not args.data.is_file():
        print(f"{args.data} isn't there; name a file with --data", file=sys.stderr)
        return 2
    result = measure(args.data, args.half, words_only=args.words_only, apart=args.sentences)
    if args.json:
        values = {name: getattr(result, name) for name in result.__dataclass_fields__}
        print(json.dumps(values, indent=2))
    else:
        by = "words and meaning" if result.encoder else "words only"
        print(f"{result.claims} claims, {result.documents} documents, by {by}")
        for depth in DEPTHS:
            print(
                f"recall@{depth}: bundle {result.recall[depth]:.3f}, plain BM25 "
                f"{result.bm25[depth]:.3f}, ratio {result.ratio[depth]:.3f}; it or a copy of it: "
                f"{result.recall_of_texts[depth]:.3f}, {result.bm25_of_texts[depth]:.3f}, "
                f"{result.ratio_of_texts[depth]:.3f}"
            )
        share = "–" if result.long_enough is None else f"{result.long_enough:.0%}"
        print(f"enough documents: {result.enough:.1%} of claims")
        print(f"enough documents: {share} of {result.long_claims} claims of {LONG}+ content words")
        print(f"{result.s_per_claim:.2f} s a claim")
    return 0 if result.ratio_of_texts[DEPTHS[0]] >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
