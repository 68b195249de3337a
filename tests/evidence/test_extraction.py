"""Reading documents: what comes out of each kind, and what stops at the door."""

import gzip
import io
import sys
import zlib
from datetime import date

import pypdf
import pytest

from heretix.core.errors import ConfigError, UnreadableError
from heretix.evidence.sources.extract import (
    Extract,
    Limits,
    clean_text,
    extract,
    inflate,
    make_document,
    media_type_of,
    read_date,
    read_stated_fields,
)

SENTENCES = "Some words make a sentence that is long enough to be kept as an article. " * 8


def page(*, head: str = "", extra: str = "", lang: str = "en") -> bytes:
    return (
        f'<html lang="{lang}"><head><title>A title</title>{head}</head><body>'
        f"<nav><a href='/'>Home</a> <a href='/about'>About us</a></nav>"
        f"<article><h1>A title</h1>{extra}<p>{SENTENCES}</p></article>"
        "<footer>All rights reserved</footer></body></html>"
    ).encode()


def pdf_of(*pages: bytes, title: str = "A paper", created: str = "D:20190412093000Z") -> bytes:
    """A minimal PDF whose pages have these content streams."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, content in enumerate(pages):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] "
            b"/Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % (5 + 2 * number)
        )
        packed = zlib.compress(content, 9)
        objects.append(
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%b\nendstream" % (len(packed), packed)
        )
    objects.append(f"<< /Title ({title}) /Author (A. Demo) /CreationDate ({created}) >>".encode())
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    xref = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1,
        len(objects),
        xref,
    )
    return bytes(out)


def line(text: str) -> bytes:
    return f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET".encode()


def refusal(data: bytes, name: str, **options) -> str:
    with pytest.raises(UnreadableError) as caught:
        extract(data, name=name, **options)
    return str(caught.value)


def test_html_gives_the_article_without_its_surroundings():
    """Navigation and footers are no part of the text."""
    found = extract(page(), name="a.html")
    assert found.text.startswith("Some words make a sentence") or "A title" in found.text[:20]
    assert "About us" not in found.text
    assert "All rights reserved" not in found.text
    assert found.title == "A title"


PUBLISHED = '<meta property="article:published_time" content="{}T10:00:00Z">'
LINKED_DATA = '<script type="application/ld+json">{"datePublished": "2020-02-03"}</script>'


@pytest.mark.parametrize(
    ("head", "extra", "url", "expected", "method"),
    [
        (PUBLISHED.format("2021-03-04"), "", None, date(2021, 3, 4), "metadata"),
        (PUBLISHED.format("2021-01-01"), "", None, date(2021, 1, 1), "metadata"),
        (LINKED_DATA, "", None, date(2020, 2, 3), "metadata"),
        ("", "", "https://news.example/2018/06/07/story.html", date(2018, 6, 7), "url"),
        ("", '<time datetime="2017-08-09">9 Aug</time>', None, date(2017, 8, 9), "htmldate"),
        ("", '<span class="post-date">May 1, 2016</span>', None, date(2016, 5, 1), "htmldate"),
    ],
)
def test_a_stated_date_is_found_with_its_method(head, extra, url, expected, method):
    """Metadata first, then the address, then elements marked as dates."""
    found = extract(page(head=head, extra=extra), name="a.html", url=url)
    assert (found.published, found.published_method) == (expected, method)


@pytest.mark.parametrize(
    ("head", "extra"),
    [
        ('<meta name="date" content="2021">', ""),
        ('<meta itemprop="copyrightYear" content="2019">', ""),
        ('<meta name="citation_date" content="2021/05">', ""),
        ('<meta name="citation_date" content="May 2021">', ""),
        ('<meta property="article:modified_time" content="2022-03-04T10:00:00Z">', ""),
        ('<meta property="article:published_time" content="2121-03-04T10:00:00Z">', ""),
        ("", '<span class="post-date">May 2016</span>'),
        ("", '<span class="updated-date">2016-05-02</span>'),
        ("", "<p>On 2011-05-03 something happened, far away from here.</p>"),
        ("", "<footer>© 2015 Somebody</footer>"),
    ],
)
def test_no_day_is_guessed(head, extra):
    """A year, a month, a change, the future or a date in the text is no day of publication."""
    found = extract(page(head=head, extra=extra), name="a.html")
    assert (found.published, found.published_method) == (None, None)


def test_a_page_that_begins_like_an_address_is_not_downloaded():
    """A string that starts with http is text here, never something to fetch."""
    refusal(b"http://127.0.0.1:9/secret", "a.html")


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "koi8-r"])
def test_encodings_are_told_apart(codec):
    """A mark, a label or the looks of the bytes tell how a text is written."""
    words = "Привет, это русский текст. " if codec == "koi8-r" else "Übung macht den Großmeister. "
    label = None if codec.startswith("utf") else f"text/plain; charset={codec}"
    found = extract((words * 20).encode(codec), name="a.txt", media_type=label)
    assert found.text == (words * 20).strip()


def test_an_unlabelled_encoding_is_told_by_its_looks():
    """Without a label, bytes that aren't UTF-8 are looked at."""
    words = "Die Straße führt über den Fluss, und die Möwen kreisen über dem Hafen. " * 5
    assert extract(words.encode("cp1252"), name="a.txt").text == words.strip()


def test_a_wrong_label_does_not_win_over_the_bytes():
    """A page that is called ASCII but isn't is read all the same."""
    found = extract(
        "Größe und Maß. ".encode(), name="a.txt", media_type="text/plain; charset=ascii"
    )
    assert found.text == "Größe und Maß."


def test_markdown_front_matter_is_read():
    """Title, author, date and address come from the front matter; the rest is kept aside."""
    data = b"---\ntitle: On walls\nauthors: [A, B]\ndate: 2020-05-06\nurl: https://a.example/x\n"
    data += b"retracted: true\ntags: [x, y]\n---\n\n# Heading\n\nThe text.\n"
    found = extract(data, name="a.md")
    assert found == Extract(
        text="# Heading\n\nThe text.",
        title="On walls",
        author="A, B",
        published=date(2020, 5, 6),
        published_method="stated",
        url="https://a.example/x",
        meta={"retracted": "true"},
    )


def test_a_year_in_front_matter_is_no_date():
    """What was stated is kept, and nothing is made of it."""
    found = extract(b"---\ndate: 2020\n---\nText.", name="a.md")
    assert found.published is None
    assert found.meta == {"published_as_stated": "2020"}


def test_rules_around_prose_are_not_front_matter():
    """Two rules with a sentence in between belong to the text."""
    found = extract(b"---\njust a sentence\n---\nMore.", name="a.md")
    assert found.text == "---\njust a sentence\n---\nMore."


@pytest.mark.parametrize(
    "matter", [b"a: [1, 2", b"a: !!python/object/apply:os.system ['true']", b"a: *nowhere"]
)
def test_hostile_front_matter_is_refused(matter):
    """What isn't plain YAML gives a reason, and runs nothing."""
    assert "front matter" in refusal(b"---\n" + matter + b"\n---\nThe text.", "a.md")


def test_front_matter_that_holds_itself_is_left_out():
    """A list without end is no value to keep."""
    found = extract(b"---\na: &x [*x, *x]\ntitle: T\n---\nThe text.", name="a.md")
    assert (found.text, found.title, found.meta) == ("The text.", "T", {})


@pytest.mark.parametrize(
    ("data", "name", "title"),
    [
        (b"# The heading\n\nText.", "x.md", "The heading"),
        (b"A first line\n\nText.", "x.txt", "A first line"),
        (b"A long first line " * 20, "my_notes.txt", "my notes"),
    ],
)
def test_titles_are_headings_short_first_lines_or_names(data, name, title):
    """No title is made up."""
    assert extract(data, name=name).title == title


def test_pdf_text_and_metadata():
    """Pages follow each other; the day of creation is a date of little confidence."""
    found = extract(pdf_of(line("First page."), line("Second page.")), name="a.pdf")
    assert found.text == "First page.\n\nSecond page."
    assert (found.title, found.author) == ("A paper", "A. Demo")
    assert (found.published, found.published_method) == (date(2019, 4, 12), "pdf")


@pytest.mark.parametrize("created", ["D:19700101", "D:20191345", "D:29990101", "yesterday"])
def test_a_pdf_of_an_unset_clock_has_no_date(created):
    """Days before PDF, after today or not in the calendar are none."""
    assert extract(pdf_of(line("Text."), created=created), name="a.pdf").published is None


def test_pdf_pages_are_limited():
    """Pages beyond the limit are left out, and the document says so."""
    data = pdf_of(*(line(f"Page {n}.") for n in range(5)))
    found = extract(data, name="a.pdf", limits=Limits(max_pdf_pages=2))
    assert found.text == "Page 0.\n\nPage 1."
    assert found.meta["truncated"] == "true"


def test_pdf_time_is_limited():
    """A file that takes too long is given up between pages."""
    reason = refusal(pdf_of(line("a"), line("b")), "a.pdf", limits=Limits(pdf_timeout_s=-1.0))
    assert "0 of 2 pages" in reason


def test_a_pdf_bomb_is_refused():
    """A page that unpacks to hundreds of megabytes is not unpacked."""
    data = pdf_of(b" " * 200_000_000)
    assert len(data) < 1_000_000
    assert "damaged or barred PDF" in refusal(data, "bomb.pdf")


def test_an_encrypted_pdf_is_refused_with_a_remedy():
    """Without its password there is nothing to read."""
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf_of(line("Secret."))))
    writer.encrypt("password", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    assert "encrypted" in refusal(out.getvalue(), "a.pdf")


@pytest.mark.parametrize("cut", [9, 60, 200])
def test_a_damaged_pdf_is_refused(cut):
    """A file that was cut off gives a reason."""
    assert "`a.pdf` is a damaged" in refusal(pdf_of(line("Text."))[:cut], "a.pdf")


def test_deep_nesting_is_survived():
    """A hundred thousand elements inside of each other exhaust neither stack nor patience."""
    data = b"<html><body>" + b"<div>" * 40_000 + b"<p>text</p>" + b"</div>" * 40_000
    refusal(data, "deep.html")


def test_too_many_tags_are_refused():
    """Pages on which extraction would take minutes are told by their tags."""
    reason = refusal(b"<html>" + b"<td>" * 100_001, "a.html")
    assert "at most 100000 HTML tags, got 100002" in reason


def test_bytes_are_limited():
    """Nothing is read of what is too large."""
    assert "at most 10 bytes, got 11" in refusal(b"x" * 11, "a.txt", limits=Limits(max_bytes=10))


def test_long_texts_are_cut_and_say_so():
    """The limit on text holds for every kind."""
    found = extract(b"word " * 100, name="a.txt", limits=Limits(max_text_chars=50))
    assert len(found.text) <= 50
    assert found.meta == {"truncated": "true"}


@pytest.mark.parametrize(
    ("data", "name", "media_type", "part"),
    [
        (b"", "a.txt", None, "no readable text"),
        (b" \n\t ", "a.md", None, "no readable text"),
        (b"<html><body></body></html>", "a.html", None, "a.html"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + b"\x00" * 50, "a.txt", None, "isn't text"),
        (b"GIF89a", "a.gif", "image/gif", "got 'image/gif'"),
        (b"no pdf", "a.pdf", "application/pdf", "doesn't begin like one"),
    ],
)
def test_what_holds_no_text_is_refused_with_a_reason(data, name, media_type, part):
    """The message names the document and what is wrong with it."""
    reason = refusal(data, name, media_type=media_type)
    assert part in reason
    assert f"`{name}`" in reason


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    """Without the extra, reading HTML names both ways to install it."""
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(ConfigError, match=r"uv sync --extra evidence.*pip install"):
        extract(page(), name="a.html")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate", "identity", ""])
def test_content_encodings_are_undone(encoding):
    """Plain, gzip, zlib and bare deflate streams give back what went in."""
    packed = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "raw deflate": lambda data: zlib.compress(data)[2:-4],
    }.get(encoding, bytes)(b"text " * 100)
    name = encoding.removeprefix("raw ")
    assert inflate(packed, name, name="a", max_bytes=500) == b"text " * 100


def test_a_gzip_of_several_members_is_read_whole():
    """Members follow each other; padding behind them doesn't matter."""
    data = gzip.compress(b"one ", mtime=0) + gzip.compress(b"two") + b"\0\0"
    assert inflate(data, "gzip", name="a", max_bytes=100) == b"one two"


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_is_not_unpacked(pack):
    """A few kilobytes that stand for gigabytes stop at the limit."""
    data = pack(b"\0" * 50_000_000)
    encoding = "gzip" if pack is gzip.compress else "deflate"
    with pytest.raises(UnreadableError, match="more than 1000000 bytes"):
        inflate(data, encoding, name="a", max_bytes=1_000_000)


def test_many_small_members_are_a_bomb_too():
    """The limit is on the sum, not on each part."""
    with pytest.raises(UnreadableError, match="more than 1000 bytes"):
        inflate(gzip.compress(b"x" * 300, mtime=0) * 4, "gzip", name="a", max_bytes=1000)


@pytest.mark.parametrize(
    ("data", "encoding", "part"),
    [
        (b"not gzip", "gzip", "isn't the compressed data"),
        (gzip.compress(b"text" * 100, mtime=0)[:-9], "gzip", "cut off"),
        (b"x", "br", "got 'br'"),
        (b"x" * 11, "identity", "more than 10 bytes"),
    ],
)
def test_bad_encodings_are_refused(data, encoding, part):
    """Damage, an end too early and encodings nobody offered have each their reason."""
    with pytest.raises(UnreadableError, match=part):
        inflate(data, encoding, name="a", max_bytes=10 if part.startswith("more") else 1000)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2020-05-06", date(2020, 5, 6)),
        ("2023-11-16T01:36:32.547Z", date(2023, 11, 16)),
        ("2023-11-16T23:30:00-05:00", date(2023, 11, 17)),
        ("Tue, 11 Feb 2025 13:08:00 GMT", date(2025, 2, 11)),
        (date(2020, 5, 6), date(2020, 5, 6)),
        ("2020", None),
        ("2020-05", None),
        ("May 2020", None),
        ("3 days ago", None),
        ("", None),
        (2020, None),
        (None, None),
        ("2020-05-06" * 10, None),
    ],
)
def test_only_full_dates_are_dates(value, expected):
    """A year or a month is no day; an hour in another zone is counted in UTC."""
    assert read_date(value) == expected


def test_text_is_cleaned_of_what_cannot_be_stored():
    """Control characters, half surrogates and odd line ends go; everything else stays."""
    assert clean_text(" a\r\nb\rc\x00\x1b[31m\td \ud800é\u200d ") == "a\nb\nc[31m\td \ufffdé\u200d"


def test_documents_are_identified_by_address_and_text():
    """The id doesn't depend on when or where a document was read."""
    found = read_stated_fields({"title": "T", "published": "2020-05-06"}, text="Text.")
    one, again, elsewhere = (
        make_document(found, raw=raw, url=url, retrieved_at=at)
        for raw, url, at in [
            (b"a", "https://a.example/", "2026-01-01T00:00:00Z"),
            (b"b", "https://a.example/", "2026-02-02T00:00:00Z"),
            (b"a", "https://b.example/", "2026-01-01T00:00:00Z"),
        ]
    )
    assert one.doc_id == again.doc_id != elsewhere.doc_id
    assert one.text_sha256 == elsewhere.text_sha256
    assert one.raw_sha256 != again.raw_sha256
    assert (one.published_method, one.published_confidence) == ("stated", 1.0)


def test_types_are_told_by_endings():
    """Endings count in any case; unknown ones give no type."""
    assert media_type_of("a/b/C.HTM") == "text/html"
    assert media_type_of("a.docx") is None
