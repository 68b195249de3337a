"""Measure how fast a corpus takes documents in and answers, on words of a natural distribution.

    python bench/corpus.py [--documents 100000] [--queries 200] [--json]

The yardstick beside ours is what one writes first: FTS5 with its defaults, one row after the other
in transactions of the same size, and all words of a query joined by OR. The exit code says whether
the targets are met: 2,000 documents a second in, 50 ms a query (95th percentile).
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heretix.core.canonical import sha256_text
from heretix.evidence.document import Document
from heretix.evidence.sources.corpus import Corpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TARGET_DOCUMENTS_PER_S = 2_000
TARGET_QUERY_MS = 50
VOCABULARY = 50_000
HITS = 30
BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Both sides, in the same process, over the same documents and queries."""

    documents: int
    mean_chars: float
    index_s: float
    documents_per_s: float
    documents_per_cpu_s: float
    """On a machine that does other things too, this says what an idle one would do."""
    naive_documents_per_s: float
    index_ratio: float
    """Ours over the yardstick, in documents a second: more than 1 is faster."""
    again_documents_per_s: float
    """Adding everything once more, unchanged."""
    query_ms_median: float
    query_ms_p95: float
    query_ms_max: float
    query_cpu_ms_p95: float
    naive_query_ms_median: float
    naive_query_ms_p95: float
    query_ratio: float
    """Ours over the yardstick at the 95th percentile, in time: less than 1 is faster."""
    filtered_query_ms_p95: float
    file_mb: float
    target_documents_per_s: int = TARGET_DOCUMENTS_PER_S
    target_query_ms: int = TARGET_QUERY_MS

    @property
    def met(self) -> bool:
        """Both targets are met."""
        return (
            self.documents_per_s >= self.target_documents_per_s
            and self.query_ms_p95 <= self.target_query_ms
        )


class Language:
    """Made-up words whose frequencies fall with their rank, as words' frequencies do."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
        lengths = self._rng.integers(2, 11, size=VOCABULARY)
        made = self._rng.choice(letters, size=(VOCABULARY, 11))
        self._words = np.array(["".join(row[:n]) for row, n in zip(made, lengths, strict=True)])
        weights = 1 / np.arange(1, VOCABULARY + 1)
        self._cumulative = np.cumsum(weights / weights.sum())

    def words(self, count: int) -> list[str]:
        """Words as they follow each other in a text."""
        ranks = np.searchsorted(self._cumulative, self._rng.random(count))
        return list(self._words[np.minimum(ranks, VOCABULARY - 1)])

    def documents(self, count: int) -> list[Document]:
        """Documents of 2 to 4 KB."""
        return [self._document(number) for number in range(count)]

    def _document(self, number: int) -> Document:
        text = " ".join(self.words(int(self._rng.integers(330, 660))))
        sha256 = sha256_text(text)
        return Document(
            doc_id=sha256[:16],
            url=f"https://site{number % 977}.example/{number}",
            title=" ".join(self.words(8)),
            text=text,
            author=None,
            published=date(2000, 1, 1) + timedelta(days=number % 9000),
            published_method="stated",
            published_confidence=1.0,
            retrieved_at="2026-01-01T00:00:00Z",
            raw_sha256=sha256,
            text_sha256=sha256,
        )


def naive_corpus(path: Path, documents: list[Document]) -> sqlite3.Connection:
    """FTS5 as its manual shows it."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("CREATE VIRTUAL TABLE words USING fts5 (url, title, text)")
    for start in range(0, len(documents), BATCH):
        db.execute("BEGIN")
        for one in documents[start : start + BATCH]:
            db.execute("INSERT INTO words VALUES (?, ?, ?)", (one.url, one.title, one.text))
        db.execute("COMMIT")
    return db


def naive_search(db: sqlite3.Connection, query: str) -> list[object]:
    """All words joined by OR."""
    expression = " OR ".join(f'"{word}"' for word in query.split())
    return db.execute(
        "SELECT url, text FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?", (expression, HITS)
    ).fetchall()


def times_ms(
    ask: Callable[[str], object],
    queries: list[str],
    clock: Callable[[], float] = time.perf_counter,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Time each query, once."""
    times = []
    for query in queries:
        start = clock()
        ask(query)
        times.append((clock() - start) * 1000)
    return np.array(times)


def count_documents(documents: list[Document]) -> Iterator[Document]:
    """The documents, with a line on the terminal that counts them."""
    for number, document in enumerate(documents):
        if number % 1000 == 0 and sys.stderr.isatty():
            print(f"\r{number} documents", end="", file=sys.stderr)
        yield document


def measure(folder: Path, *, documents: int, queries: int, seed: int) -> Result:
    """Index, index again, ask; then the same with the yardstick."""
    language = Language(seed)
    made = language.documents(documents)
    asked = [" ".join(language.words(8)) for _ in range(queries)]
    with Corpus.open(folder / "bench.sqlite") as corpus:
        start, cpu = time.perf_counter(), time.process_time()
        corpus.add(count_documents(made))
        index_s, index_cpu_s = time.perf_counter() - start, time.process_time() - cpu
        start = time.perf_counter()
        report = corpus.add(made)
        again_s = time.perf_counter() - start
        assert report.unchanged == documents, "a second run must find everything unchanged"
        ours = times_ms(lambda query: corpus.search(query, HITS), asked)
        ours_cpu = times_ms(lambda query: corpus.search(query, HITS), asked, time.process_time)
        filtered = times_ms(
            lambda query: corpus.search(query, HITS, date(2010, 1, 1), (), ("site1.example",)),
            asked,
        )
        file_mb = corpus.stats().file_bytes / 1e6
    start = time.perf_counter()
    db = naive_corpus(folder / "naive.sqlite", made)
    naive_s = time.perf_counter() - start
    naive = times_ms(lambda query: naive_search(db, query), asked)
    db.close()
    return Result(
        documents=documents,
        mean_chars=sum(len(one.text) for one in made) / documents,
        index_s=index_s,
        documents_per_s=documents / index_s,
        documents_per_cpu_s=documents / index_cpu_s,
        naive_documents_per_s=documents / naive_s,
        index_ratio=naive_s / index_s,
        again_documents_per_s=documents / again_s,
        query_ms_median=float(np.median(ours)),
        query_ms_p95=float(np.percentile(ours, 95)),
        query_ms_max=float(ours.max()),
        query_cpu_ms_p95=float(np.percentile(ours_cpu, 95)),
        naive_query_ms_median=float(np.median(naive)),
        naive_query_ms_p95=float(np.percentile(naive, 95)),
        query_ratio=float(np.percentile(ours, 95) / np.percentile(naive, 95)),
        filtered_query_ms_p95=float(np.percentile(filtered, 95)),
        file_mb=file_mb,
    )


def main() -> int:
    """Run from the command line; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(
            Path(folder), documents=options.documents, queries=options.queries, seed=options.seed
        )
    if options.json:
        print(json.dumps({**asdict(result), "met": result.met}, indent=2))
    else:
        show(result)
    return 0 if result.met else 1


def show(result: Result) -> None:
    """Print the result for people."""
    print(f"{result.documents} documents of {result.mean_chars:.0f} characters")
    print(f"{'':24}{'ours':>12}{'plain FTS5':>12}")
    rows = (
        ("index, documents/s", result.documents_per_s, result.naive_documents_per_s),
        ("query, median ms", result.query_ms_median, result.naive_query_ms_median),
        ("query, 95% ms", result.query_ms_p95, result.naive_query_ms_p95),
    )
    for name, ours, naive in rows:
        print(f"{name:24}{ours:12.1f}{naive:12.1f}")
    print(f"index, documents/CPU s  {result.documents_per_cpu_s:12.1f}")
    print(f"query, 95% CPU ms       {result.query_cpu_ms_p95:12.1f}")
    print(f"with filters, 95% ms    {result.filtered_query_ms_p95:12.1f}")
    print(f"unchanged, documents/s  {result.again_documents_per_s:12.1f}")
    print(f"file, MB                {result.file_mb:12.1f}")
    verdict = "met" if result.met else "MISSED"
    print(f"targets {result.target_documents_per_s}/s and {result.target_query_ms} ms: {verdict}")


if __name__ == "__main__":
    raise SystemExit(main())
