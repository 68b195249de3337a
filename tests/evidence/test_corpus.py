"""The local corpus: what it takes in, what it keeps through a kill, and what it finds."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heretix.core.errors import ConfigError, RecordError, StoreBusyError, StoreError, UsageError
from heretix.evidence.demo import DEMO_POLICY, demo_claims, demo_documents
from heretix.evidence.document import Document
from heretix.evidence.sources import corpus as corpus_module
from heretix.evidence.sources.corpus import AddReport, Corpus, corpus_path, find_corpora
from heretix.evidence.sources.extract import Failure, Limits, make_document, read_stated_fields
from heretix.evidence.sources.intake import check_sources, read_documents, read_file


def document(text: str, url: str | None = None, **fields) -> Document:
    """A document with this text; `fields` as front matter would state them."""
    found = read_stated_fields({"title": f"On {text[:20]}", **fields}, text=text)
    return make_document(found, raw=text.encode(), url=url, retrieved_at="2026-01-01T00:00:00Z")


@pytest.fixture
def corpus(tmp_path):
    with Corpus.open(tmp_path / "test.sqlite") as opened:
        yield opened


def urls(hits) -> list[str | None]:
    return [hit.url for hit in hits]


def check_index(path: Path) -> None:
    """The file is whole, and the index agrees with the texts."""
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    db.close()


def test_an_empty_corpus_finds_nothing(corpus):
    """No hits and no dates: nothing is made up."""
    assert corpus.search("anything at all", 5) == []
    stats = corpus.stats()
    assert (stats.documents, stats.texts, stats.earliest, stats.latest) == (0, 0, None, None)
    assert corpus.add([]) == AddReport()


def test_a_document_comes_back_as_it_went_in(corpus):
    """Every field survives, the ones that are unknown too."""
    dated = document("Walls are long.", "https://a.example/1", published="2020-05-06", author="A",
                     retracted=True)  # fmt: skip
    undated = document("Moons are round.", None)
    corpus.add([dated, undated])
    for words, expected in (("moons", undated), ("walls", dated)):
        (hit,) = corpus.search(words, 5)
        assert hit.document == expected
    assert (hit.url, hit.title, hit.published) == (dated.url, dated.title, dated.published)
    assert (hit.document.text, hit.document.doc_id) == (dated.text, dated.doc_id)
    assert hit.score > 0


def test_the_best_fit_comes_first(corpus):
    """Documents with more and rarer words of the query are ranked higher."""
    corpus.add(
        [
            document("The moon is far away and the sea is deep.", "https://a.example/moon"),
            document("A wall, seen from the moon, is thin.", "https://a.example/both"),
            *(document(f"The sea is deep, said number {n}.") for n in range(20)),
        ]
    )
    assert urls(corpus.search("wall moon", 5)) == [
        "https://a.example/both",
        "https://a.example/moon",
    ]


def test_word_forms_and_accents_do_not_matter(corpus):
    """`lowered` finds `lowers`, and `cafe` finds `café`, composed or not."""
    corpus.add([document("Exercise lowers the pulse.", "https://a.example/1")])
    corpus.add([document("Le café est fermé.", "https://a.example/2")])
    assert urls(corpus.search("lowered", 5)) == ["https://a.example/1"]
    for spelling in ("cafe", "café", "cafe\u0301", "CAFÉ"):
        assert urls(corpus.search(spelling, 5)) == ["https://a.example/2"]
    corpus.add([document("Die Straße ist lang.", "https://a.example/3")])
    assert urls(corpus.search("STRASSE Straße", 5)) == ["https://a.example/3"]


def test_snippets_show_where_the_words_stand(corpus):
    """The stretch around the rarest word, marked where it was cut."""
    corpus.add([document("Filler words here. " * 100 + "Then a zebra came. " + "More. " * 100)])
    (hit,) = corpus.search("zebra", 1)
    assert "Then a zebra came." in hit.snippet
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert len(hit.snippet) < 300


def test_adding_again_changes_nothing(corpus):
    """The second run finds everything unchanged."""
    documents = [document(f"Text number {n}.", f"https://a.example/{n}") for n in range(5)]
    assert corpus.add(documents) == AddReport(added=5)
    assert corpus.add(documents) == AddReport(unchanged=5)
    assert corpus.stats().documents == 5


def test_a_changed_text_replaces_the_old_one(corpus):
    """The old words are gone from the index, and the new ones are in it."""
    old = document("An elephant walks.", "https://a.example/1")
    new = document("A giraffe sleeps.", "https://a.example/1")
    corpus.add([old, document("Something else.", "https://a.example/2")])
    assert corpus.add([new]) == AddReport(replaced=1)
    assert corpus.search("elephant", 5) == []
    assert urls(corpus.search("giraffe", 5)) == ["https://a.example/1"]
    assert (corpus.stats().documents, corpus.stats().texts) == (2, 2)
    check_index(corpus.path)


def test_a_corrected_date_replaces_the_old_one(corpus):
    """The text may be the same; what is said of it counts too, but not when it was read."""
    undated = document("An elephant walks.", "https://a.example/1")
    dated = document("An elephant walks.", "https://a.example/1", published="2020-05-06")
    corpus.add([undated])
    assert corpus.add([replace(undated, retrieved_at="2027", raw_sha256="x")]).unchanged == 1
    assert corpus.add([dated]) == AddReport(replaced=1)
    (hit,) = corpus.search("elephant", 5)
    assert hit.published == date(2020, 5, 6)
    assert corpus.stats().texts == 1
    check_index(corpus.path)


def test_a_fragment_is_not_another_page(corpus):
    """`page#part` is the page."""
    corpus.add([document("Text.", "https://a.example/page")])
    assert corpus.add([document("Text.", "https://a.example/page#part")]).unchanged == 1


def test_a_text_at_two_addresses_is_stored_once(corpus):
    """Both addresses are kept, with dates of their own: which was first is for others to judge."""
    text = "The same words about a walrus."
    copy = document(text, "https://copy.example/1", published="2021-01-02")
    first = document(text, "https://first.example/1", published="2020-01-02")
    undated = document(text, "https://undated.example/1")
    assert corpus.add([copy, first, undated]) == AddReport(added=1, duplicates=2)
    stats = corpus.stats()
    assert (stats.documents, stats.texts) == (3, 1)
    assert urls(corpus.search("walrus", 5)) == [
        "https://first.example/1",
        "https://copy.example/1",
        "https://undated.example/1",
    ]


def test_a_copy_outlives_the_original(corpus):
    """A text stays in the index as long as it stands at one address."""
    text = "The same words about a walrus."
    corpus.add([document(text, "https://a.example/1"), document(text, "https://b.example/1")])
    corpus.add([document("Now a seal.", "https://a.example/1")])
    assert urls(corpus.search("walrus", 5)) == ["https://b.example/1"]
    corpus.add([document("Now a whale.", "https://b.example/1")])
    assert corpus.search("walrus", 5) == []
    assert corpus.stats().texts == 2
    check_index(corpus.path)


def test_one_address_twice_in_a_batch_keeps_the_last(corpus):
    """A list with repetitions ends as if it had been added one by one."""
    report = corpus.add(
        [
            document("First words.", "https://a.example/1"),
            document("Second words.", "https://a.example/1"),
            document("Second words.", "https://a.example/1"),
        ]
    )
    assert report == AddReport(added=1, replaced=1, unchanged=1)
    assert corpus.stats().texts == 1
    check_index(corpus.path)


def test_identical_files_without_address_are_one_hit(corpus):
    """Two paths with the same text have the same id, and one of them is shown."""
    one = replace(document("A note about otters."), meta={"path": "/a/1.txt"})
    other = replace(one, meta={"path": "/a/2.txt"})
    assert corpus.add([one, other]) == AddReport(added=1, duplicates=1)
    assert len(corpus.search("otters", 5)) == 1


def test_undated_documents_stay_and_later_ones_go(corpus):
    """`as_of` keeps the day itself, what was before it, and what has no date."""
    corpus.add(
        [
            document("An owl one.", "https://a.example/before", published="2019-12-31"),
            document("An owl two.", "https://a.example/day", published="2020-01-01"),
            document("An owl three.", "https://a.example/after", published="2020-01-02"),
            document("An owl four.", "https://a.example/undated"),
        ]
    )
    found = urls(corpus.search("owl", 9, as_of=date(2020, 1, 1)))
    assert sorted(found) == [f"https://a.example/{x}" for x in ("before", "day", "undated")]
    assert corpus.stats().undated == 1


def test_domains_are_compared_at_the_dots(corpus):
    """`example.org` covers what is under it, and not what merely ends alike."""
    places = ["example.org", "www.example.org", "notexample.org", "other.net"]
    corpus.add([document(f"An owl at {host}.", f"https://{host}/") for host in places])
    corpus.add([document("An owl in a file.")])
    included = urls(corpus.search("owl", 9, include=["example.org"]))
    assert sorted(included) == ["https://example.org/", "https://www.example.org/"]
    excluded = urls(corpus.search("owl", 9, exclude=["*.Example.ORG", "other.net"]))
    assert set(excluded) == {"https://notexample.org/", None}
    with pytest.raises(ConfigError, match="must be a domain"):
        corpus.search("owl", 9, include=["not a domain!"])


@pytest.mark.parametrize("k", [0, -1, 100_000])
def test_k_has_bounds(corpus, k):
    """Numbers of hits that make no sense are refused."""
    with pytest.raises(ConfigError, match="`k` must be from 1"):
        corpus.search("x", k)


HOSTILE = [
    '"', "'", "*", "NEAR(a b)", "title:secret", "a AND", "OR OR OR", "(((", "-x", "^a", "a\x00b",
    "{a b} : c", '"unbalanced', "'; DROP TABLE texts; --", "owl*", "+owl", "\ud800", "", "   ",
    "_", "…", "a" * 10_000, "owl " * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_queries_are_only_words(corpus, query):
    """No syntax of the search language gets through, and nothing fails."""
    corpus.add([document("An owl keeps one secret.", "https://a.example/1")])
    words = set(re.findall(r"[a-z]+", query.lower()))
    assert bool(corpus.search(query, 5)) == bool(words & {"owl", "secret"})
    assert corpus.stats().texts == 1


@pytest.fixture(scope="module")
def small_corpus(tmp_path_factory):
    with Corpus.open(tmp_path_factory.mktemp("small") / "small.sqlite") as opened:
        opened.add([document("An owl and a secret, number 1 of NOT 2.")])
        yield opened


@settings(max_examples=200, deadline=None)
@given(query=st.text(max_size=60))
def test_any_text_can_be_a_query(small_corpus, query):
    """Whatever is asked, the answer is a list."""
    assert isinstance(small_corpus.search(query, 3), list)


def test_common_words_do_not_crowd_out_rare_ones(corpus, monkeypatch):
    """Beyond the budget of rows, the rare words of a query decide."""
    monkeypatch.setattr(corpus_module, "_SCORED_ROWS", 10)
    corpus.add(document(f"Common words, number {n}.", f"https://a.example/{n}") for n in range(50))
    corpus.add([document("Common words about a yak.", "https://a.example/yak")])
    assert urls(corpus.search("common words yak", 5)) == ["https://a.example/yak"]


def test_only_common_words_are_joined(corpus, monkeypatch):
    """When every word is common, documents with several of them are found."""
    monkeypatch.setattr(corpus_module, "_SCORED_ROWS", 10)
    corpus.add(document(f"Red, number {n}.", f"https://a.example/r{n}") for n in range(20))
    corpus.add(document(f"Green, number {n}.", f"https://a.example/g{n}") for n in range(20))
    corpus.add([document("Red and green.", "https://a.example/both")])
    assert urls(corpus.search("red green", 5)) == ["https://a.example/both"]
    assert len(corpus.search("red", 5)) == 5


def test_progress_counts_every_document(corpus):
    """The bar moves with each one, failures included."""
    seen = []
    made = [document("One."), Failure("a.txt", "is empty"), document("Two.")]
    report = corpus.add(made, progress=seen.append)
    assert seen == [1, 2, 3]
    assert report.failed == (Failure("a.txt", "is empty"),)
    assert (report.added, report.total) == (2, 3)


def test_half_a_surrogate_pair_fails_alone(corpus):
    """What can't be stored is reported, and the others are."""
    made = document("Fine text.")
    bad = replace(made, text="half \ud800", url="https://a.example/bad")
    report = corpus.add([bad, made])
    assert report.added == 1
    assert "surrogate" in report.failed[0].reason


def test_batches_are_committed_as_they_fill(corpus, monkeypatch):
    """What came before a failing source is kept."""
    monkeypatch.setattr(corpus_module, "_BATCH_DOCUMENTS", 10)

    def broken():
        for n in range(25):
            yield document(f"Text number {n}.", f"https://a.example/{n}")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        corpus.add(broken())
    assert corpus.stats().documents == 20
    check_index(corpus.path)


KILLED = """
import sys
from pathlib import Path
from heretix.evidence.sources import corpus as corpus_module
from heretix.evidence.sources.corpus import Corpus
from heretix.evidence.sources.extract import make_document, read_stated_fields
corpus_module._BATCH_DOCUMENTS = 50
corpus_module._BATCH_S = 1e9
def documents():
    for n in range(1_000_000):
        found = read_stated_fields({"title": f"T{n}"}, text=f"Text number {n} about an otter.")
        if n == 500:
            print("ready", flush=True)
        yield make_document(found, raw=b"", url=f"https://a.example/{n}", retrieved_at="2026")
Corpus.open(Path(sys.argv[1])).add(documents())
"""


def test_a_kill_in_the_middle_loses_one_batch_at_most(tmp_path):
    """The file is whole, whole batches are in it, and the next run goes on from there."""
    path = tmp_path / "killed.sqlite"
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
    check_index(path)
    with Corpus.open(path) as corpus:
        kept = corpus.stats().documents
        assert kept >= 500
        assert kept % 50 == 0
        again = [
            make_document(
                read_stated_fields({"title": f"T{n}"}, text=f"Text number {n} about an otter."),
                raw=b"",
                url=f"https://a.example/{n}",
                retrieved_at="2026",
            )
            for n in range(kept + 10)
        ]
        assert corpus.add(again) == AddReport(added=10, unchanged=kept)
        assert len(corpus.search("otter", 100)) == 100


def test_two_connections_see_each_other(tmp_path):
    """One process adds while another searches."""
    with Corpus.open(tmp_path / "a.sqlite") as one, Corpus.open(tmp_path / "a.sqlite") as other:
        one.add([document("An owl.", "https://a.example/1")])
        assert urls(other.search("owl", 5)) == ["https://a.example/1"]
        assert other.add([document("An owl.", "https://a.example/1")]).unchanged == 1


def test_threads_may_share_a_corpus(corpus):
    """Searches and additions from several threads don't disturb each other."""
    failures = []

    def work(name: str) -> None:
        try:
            for n in range(20):
                corpus.add([document(f"An owl {name} {n}.", f"https://{name}.example/{n}")])
                corpus.search("owl", 5)
        except Exception as exc:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert corpus.stats().documents == 60


def test_a_locked_corpus_says_so(tmp_path, monkeypatch):
    """Another writer is named as the reason, after a wait."""
    monkeypatch.setattr("heretix.evidence.sources.corpus._BUSY_TIMEOUT_S", 0.01)
    with Corpus.open(tmp_path / "a.sqlite") as corpus:
        blocker = sqlite3.connect(corpus.path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match="locked by another process"):
            corpus.add([document("An owl.")])
        blocker.close()
        assert corpus.add([document("An owl.")]).added == 1


def test_other_files_are_refused(tmp_path):
    """A text file, another program's database and a folder are no corpora, and stay as they are."""
    text = tmp_path / "text.sqlite"
    text.write_text("this is not a database, though it is long enough to be looked at " * 20)
    with pytest.raises(StoreError, match="another kind of file"):
        Corpus.open(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(StoreError, match="another program"):
        Corpus.open(other)
    with pytest.raises(StoreError, match="can't be"):
        Corpus.open(tmp_path)
    newer = tmp_path / "newer.sqlite"
    Corpus.open(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="version 2, got 99"):
        Corpus.open(newer)


def test_a_missing_corpus_is_not_made_by_looking(tmp_path):
    """Without `create` the message says how to make one, and nothing appears."""
    path = corpus_path(tmp_path, "news")
    with pytest.raises(RecordError, match=r"`news` must be a corpus.*heretix corpus add"):
        Corpus.open(path, create=False)
    assert find_corpora(tmp_path) == []
    Corpus.open(path).close()
    assert find_corpora(tmp_path) == ["news"]
    assert find_corpora(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["", "../etc", "a/b", ".hidden", "a b", "x" * 65])
def test_names_of_corpora_stay_in_their_folder(tmp_path, name):
    """A name is never a path."""
    with pytest.raises(ConfigError, match="`corpus` must be a name"):
        corpus_path(tmp_path, name)


def test_a_folder_is_walked(tmp_path):
    """Every readable file in one order; hidden files, links and other kinds are left out."""
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b.md").write_text("---\ntitle: B\nurl: https://b.example/\n---\nText b.")
    (tmp_path / "a.txt").write_text("Text a.")
    words = "Text c, at length. " * 20
    (tmp_path / "sub" / "c.htm").write_text(f"<html><body><p>{words}</p></body></html>")
    (tmp_path / ".git" / "d.txt").write_text("Text d.")
    (tmp_path / ".hidden.txt").write_text("Text e.")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    found = list(read_documents([tmp_path]))
    assert [item.text[:7] for item in found if isinstance(item, Document)] == [
        "Text a.",
        "Text b.",
        "Text c,",
    ]
    assert [Path(item.source).name for item in found if isinstance(item, Failure)] == ["empty.txt"]
    assert found[1].url == "https://b.example/"
    assert found[0].url is None
    assert found[0].meta["path"] == str((tmp_path / "a.txt").resolve())


def test_a_saved_page_knows_its_address_by_its_own_word(tmp_path):
    """A canonical link is used, and marked as the page's claim."""
    path = tmp_path / "saved.html"
    link = '<link rel="canonical" href="https://news.example/story">'
    words = "A sentence that is kept. " * 20
    path.write_text(f"<html><head>{link}</head><body><p>{words}</p></body></html>")
    made = read_file(path)
    assert made.url == "https://news.example/story"
    assert made.meta["url_by"] == "page"


def test_json_lines_are_documents(tmp_path):
    """Good lines are read, bad ones are reported with their place."""
    path = tmp_path / "docs.jsonl"
    lines = [
        json.dumps({"text": "One.", "url": "https://a.example/1", "published": "2020-05-06",
                    "title": "T", "author": "A", "retracted": True}),
        "not json",
        json.dumps({"text": ""}),
        json.dumps(["a list"]),
        json.dumps({"text": "Two.", "url": "file:///etc/passwd"}),
        "",
        json.dumps({"text": "Three \ud800.", "published": "2020"}),
    ]  # fmt: skip
    path.write_text("\n".join(lines))
    found = list(read_documents([str(path)]))
    one, three = (item for item in found if isinstance(item, Document))
    assert (one.text, one.title, one.author, one.published) == ("One.", "T", "A", date(2020, 5, 6))
    assert one.meta == {"retracted": "true"}
    assert (three.text, three.published, three.title) == ("Three \ufffd.", None, "Three \ufffd.")
    places = [item.source.rpartition(":")[2] for item in found if isinstance(item, Failure)]
    assert places == ["2", "3", "4", "5"]


def test_json_files_hold_one_document_or_many(tmp_path):
    """An object and an array of objects are both read."""
    (tmp_path / "one.json").write_text(json.dumps({"text": "One."}))
    (tmp_path / "two.json").write_text(json.dumps([{"text": "Two."}, {"text": "Three."}]))
    (tmp_path / "zero.json").write_text("{")
    found = list(read_documents([tmp_path]))
    texts = [item.text for item in found if isinstance(item, Document)]
    assert texts == ["One.", "Two.", "Three."]
    assert "isn't JSON" in found[-1].reason


def test_large_files_and_lines_are_not_read(tmp_path):
    """The size is looked at before the content."""
    (tmp_path / "a.txt").write_text("x" * 101)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "x" * 101}))
    found = list(read_documents([tmp_path], limits=Limits(max_bytes=100)))
    assert [isinstance(item, Failure) for item in found] == [True, True]
    assert all("at most 100 bytes" in item.reason for item in found)


def test_a_missing_source_is_the_users_mistake():
    """A path that isn't there stops at once: it is a typing error, not a bad file."""
    with pytest.raises(UsageError, match="no such"):
        list(read_documents(["nowhere/at/all"]))


def test_the_demonstration_corpus_is_what_it_says(corpus):
    """Marked documents of bearable length, on made-up sites, for and against each claim."""
    documents = list(demo_documents())
    for made in documents:
        assert "Demonstration text written for Heretix." in made.text
        assert made.meta["demonstration"] == "true"
        assert made.url.split("/")[2].endswith(".example")
        assert 80 <= len(made.text.split()) <= 256
    styles = Counter((made.meta["claim"], made.meta["style"]) for made in documents)
    assert set(styles) == {
        (claim, style)
        for claim in ("exercise", "handwashing", "wall", "dst")
        for style in ("canonical", "heterodox")
    }
    assert all(count >= 4 for count in styles.values())
    assert sum(made.published is None for made in documents) == 1
    assert sum("Ignore all previous instructions" in made.text for made in documents) == 1
    report = corpus.add(documents)
    assert (report.added, report.duplicates, report.failed) == (43, 1, ())


def test_the_demonstration_claims_find_their_documents(corpus):
    """The best hits of each claim are about it, from both sides."""
    corpus.add(demo_documents())
    for claim, about in zip(demo_claims(), ("exercise", "handwashing", "wall", "dst"), strict=True):
        best = [hit.document for hit in corpus.search(claim, 8)]
        assert [made.meta["claim"] for made in best] == [about] * 8
        assert {made.meta["style"] for made in best} == {"canonical", "heterodox"}


def test_the_demonstration_policy_knows_the_demonstration_sites():
    """Each site's class is the one that its documents are written for."""
    from heretix.evidence.policy.file import load_policy

    policy = load_policy(DEMO_POLICY)
    classes = {
        made.url.split("/")[2]: (policy.classify(made.url).cls, made.meta["style"])
        for made in demo_documents()
    }
    assert classes.pop("viral-claims.example") == ("flagged", "heterodox")
    assert classes.pop("weekend-blog.example") == ("unknown", "heterodox")
    assert all(cls == style for cls, style in classes.values())


COFFEE = "研究表明,适量饮用咖啡可以降低心脏病的风险。"
CLOCKS = "夏令时并没有减少家庭用电量。"


def test_scripts_without_spaces_are_searched(corpus):
    """Two characters side by side are looked for, wherever in a sentence they stand."""
    corpus.add([document(COFFEE, "https://a.example/1"), document(CLOCKS, "https://a.example/2")])
    assert urls(corpus.search("咖啡有益健康", 5)) == ["https://a.example/1"]
    assert urls(corpus.search("夏令时减少用电", 5)) == ["https://a.example/2"]
    assert corpus.search("啡咖", 5) == []
    (hit,) = corpus.search("心脏病", 5)
    assert "心脏病" in hit.snippet


def test_a_replaced_text_without_spaces_is_forgotten(corpus):
    """The index is told to forget exactly what it was told before."""
    corpus.add([document(COFFEE, "https://a.example/1")])
    corpus.add([document(CLOCKS, "https://a.example/1")])
    assert corpus.search("咖啡", 5) == []
    assert urls(corpus.search("夏令时", 5)) == ["https://a.example/1"]


def test_sources_are_checked_before_anything_is_opened(tmp_path):
    """An address is taken as it is; a path must be there."""
    check_sources(["https://a.example/x", tmp_path])
    with pytest.raises(UsageError, match="there is no such"):
        check_sources([tmp_path, str(tmp_path / "nowhere")])
