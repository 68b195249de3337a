"""Sharing and publishing: one record of what is said, as card, report, table, citation and site."""

import asyncio
import csv
import io
import re
import struct
from dataclasses import replace
from posixpath import dirname, join, normpath

import pytest
from website import MODEL, WEATHER

from heretix.api import measure
from heretix.core.canonical import sha256_text
from heretix.core.errors import ConfigError, TooManyRequestsError
from heretix.report.findings import chance, write_interval
from heretix.report.share import card_svg, cite_bibtex, cite_line, table_csv, write_share_html
from heretix.web.pages.share import find_shared
from heretix.web.publish import file_of, publish
from heretix.web.state import WorkLimiter

DIGEST = sha256_text(WEATHER)[:16]


@pytest.fixture
def shared(measured_site):
    """What can be shared of the claim that was shown evidence."""
    return find_shared(measured_site.state, "claims", DIGEST)


def test_a_card_is_a_picture_of_the_size_that_is_asked_for(measured_site):
    """1200 by 630 pixels, with the sentence for screen readers in its drawing."""
    picture = measured_site.get(f"/share/claims/{DIGEST}/card.png")
    assert picture.headers["content-type"] == "image/png"
    assert struct.unpack(">II", picture.content[16:24]) == (1200, 630)
    drawing = measured_site.get(f"/share/claims/{DIGEST}/card.svg").text
    assert 'width="1200" height="630"' in drawing
    assert "Made-up answers, nobody&#x27;s belief" in drawing


def test_a_card_never_cuts_its_sentence(shared):
    """What must be known to quote a number stands at the end: letters shrink instead."""
    long = replace(shared, sentence=" ".join(f"word{number}" for number in range(70)) + " end.")
    drawn = re.sub(r"<[^>]+>", " ", card_svg(long))
    assert "word0" in drawn
    assert "end." in drawn
    assert "…" not in drawn.replace("…", "", sum("…" in name for name, _ in long.rows))


def test_every_form_says_the_same_sentence(measured_site, shared):
    """Report, embedded page, claim page and citation: one title."""
    pages = [
        measured_site.get(path).text
        for path in (
            f"/share/claims/{DIGEST}/report.html",
            f"/embed/claims/{DIGEST}",
            f"/claims/{DIGEST}",
        )
    ]
    assert "heterodox moved by any text" in shared.note
    assert all(shared.note in text for text in (*pages[:2], card_svg(shared)))
    plain = shared.sentence.replace("'", "&#39;")
    # What qualifies it is set more lightly, and is in it all the same.
    assert all(f">{plain}</h1>" in re.sub(r"</?span[^>]*>", "", text) for text in pages)
    assert all('<span class="light">Made-up answers' in text for text in pages)
    assert shared.sentence.removesuffix(".") in cite_line(shared, "https://x.example/")


def test_the_table_has_every_number_behind_it(measured_site, shared):
    """One row a run, experiments among them, with ids that lead to the record."""
    text = measured_site.get(f"/share/claims/{DIGEST}/data.csv").text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(shared.table) >= 5
    assert {row["lens"] for row in rows if row["model"] == MODEL} == {"RPL", "NUL", "MEL", "HEL"}
    assert all(row["execution_id"].startswith("exec-") for row in rows)


def test_a_claim_is_no_formula_in_a_spreadsheet(shared):
    """Somebody who opens the table has nothing run that a claim says."""
    planted = replace(shared, columns=("claim",), table=({"claim": "=1+1"},))
    assert table_csv(planted) == b"claim\n'=1+1\n"


def test_a_report_shows_the_numbers_on_a_wide_screen_too(shared):
    """A row a run with its belief and interval, experiments in a folded table of their own; nothing
    is hidden by the style of phones."""
    text = write_share_html(shared)
    folded = text.index("<summary>Experiments")
    table, rest = text[text.index("<table") : folded], text[folded:]
    assert 'class="narrow"' not in table
    parts = sum(bool(row["variant"]) for row in shared.table)
    assert table.count("<tr>") == len(shared.table) - parts + 1
    assert rest.count("<tr>") == parts + 1 > 1
    row = shared.table[0]
    assert f"<td>{row['prob_true_rpl']:.3f}</td>" in table
    assert f"<td>{row['ci_lo']:.3f} to {row['ci_hi']:.3f}</td>" in table


def test_a_citation_is_bibtex_whatever_stands_in_a_claim(shared):
    """Signs with a meaning are escaped, the year and the address are there."""
    entry = cite_bibtex(replace(shared, about="50% of {cats} & $1_000 \\ #1"), "https://x.example/")
    assert entry.startswith(f"@misc{{heretix-claim-{DIGEST},\n")
    assert r"50\% of \{cats\} \& \$1\_000 \textbackslash{} \#1" in entry
    assert re.search(r"year = \{\d{4}\}", entry)
    assert entry.count("{") - entry.count(r"\{") == entry.count("}") - entry.count(r"\}")


def test_only_the_embedded_page_may_stand_in_a_frame(measured_site):
    """It holds no form; everything else refuses to be framed."""
    embedded = measured_site.get(f"/embed/claims/{DIGEST}")
    assert "frame-ancestors *" in embedded.headers["content-security-policy"]
    assert "<form" not in embedded.text
    assert "<script" not in embedded.text
    page = measured_site.get(f"/claims/{DIGEST}")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["claims/0123456789abcdef", "panels/none", "episodes/ep-nowhere"])
def test_what_is_not_here_cannot_be_shared(measured_site, path):
    """Not found, in every form."""
    for address in (f"/share/{path}/card.svg", f"/embed/{path}"):
        assert measured_site.get(address).status_code == 404


def test_markup_in_what_is_shared_stays_text(shared):
    """A claim is untrusted in the report and in the drawing."""
    hostile = replace(shared, about="<script>alert(1)</script>", sentence="<b>x</b> & y.")
    for text in (write_share_html(hostile), card_svg(hostile)):
        assert "<script>" not in text
        assert "<b>x" not in text
        assert "&lt;b&gt;" in text


def test_a_published_site_leads_nowhere_else(measured_site, tmp_path):
    """Every link is relative and leads to a file; nothing can be sent, nobody is named."""
    folder = tmp_path / "site"
    state = measured_site.state
    made = asyncio.run(
        publish(measured_site.store, state.settings, folder, base_url="https://x.example/h/")
    )
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert made.files + 1 == len(files)
    assert {"index.html", "all.html", f"claims/{DIGEST}.html", "static/filter.js"} <= files
    assert f"share/claims/{DIGEST}/card.png" in files
    for name in (one for one in files if one.endswith(".html")):
        text = (folder / name).read_text()
        assert "<form" not in text, name
        assert "/measure" not in text, name
        for link in re.findall(r'\b(?:href|src)="([^"#][^"]*)"', text):
            if not link.startswith(("http", "data:")):
                assert normpath(join(dirname(name), link.partition("#")[0])) in files, (name, link)
    claim = (folder / f"claims/{DIGEST}.html").read_text()
    assert f'content="https://x.example/h/share/claims/{DIGEST}/card.png"' in claim
    # Addresses name files: a plain file server knows no others.
    assert f'iframe src="https://x.example/h/embed/claims/{DIGEST}.html"' in claim
    cited = (folder / f"share/claims/{DIGEST}/cite.bib").read_text()
    assert f"url = {{https://x.example/h/claims/{DIGEST}.html}}" in cited


def test_a_published_site_names_no_place_that_nobody_told(measured_site, tmp_path):
    """Without --base-url there is no address to cite or embed, least of all this machine's."""
    folder = tmp_path / "site"
    asyncio.run(publish(measured_site.store, measured_site.state.settings, folder))
    for path in (one for one in folder.rglob("*") if one.suffix in {".html", ".bib"}):
        assert "127.0.0.1" not in path.read_text(), path
    assert "iframe" not in (folder / f"claims/{DIGEST}.html").read_text()
    assert "url =" not in (folder / f"share/claims/{DIGEST}/cite.bib").read_text()


def test_publishing_replaces_its_own_site_and_nothing_else(measured_site, tmp_path):
    """A folder with other files is refused and left as it is; a site is replaced as a whole."""
    settings = measured_site.state.settings
    other = tmp_path / "other"
    other.mkdir()
    (other / "diary.txt").write_text("mine")
    with pytest.raises(ConfigError, match="must be empty, new, or a site"):
        asyncio.run(publish(measured_site.store, settings, other))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    site = tmp_path / "site"
    asyncio.run(publish(measured_site.store, settings, site))
    (site / "stale.html").write_text("old")
    asyncio.run(publish(measured_site.store, settings, site))
    assert not (site / "stale.html").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"other", "site"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "index.html"),
        ("/claims/a", "claims/a.html"),
        ("/share/x/y/card.png", "share/x/y/card.png"),
    ],
)
def test_an_address_has_one_file(path, name):
    """Pages end in .html; what has an ending keeps it."""
    assert file_of(path) == name


def test_costly_work_has_places():
    """So many a person and in all; who asks for more is told to come back, and places return."""

    async def refused(work: WorkLimiter, person: str, why: str) -> None:
        with pytest.raises(TooManyRequestsError, match=why):
            async with work.turn(person):
                pass

    async def ask() -> None:
        work = WorkLimiter(at_once=3, each=2, patience_s=0.001)
        async with work.turn("ada"), work.turn("ada"):
            await refused(work, "ada", "you have as many")
            async with work.turn("ben"):
                await refused(work, "cleo", "others have as many")
        async with work.turn("ada"), work.turn("cleo"):
            pass

    asyncio.run(ask())


def test_who_waits_gets_the_place_that_comes_back():
    """A short while of patience: nobody is refused for a moment's crowd."""

    async def ask() -> list[str]:
        work, done = WorkLimiter(at_once=1, each=1, patience_s=60), []

        async def one(person: str) -> None:
            async with work.turn(person):
                await asyncio.sleep(0)
                done.append(person)

        await asyncio.gather(*map(one, ["ada", "ada", "ben", "cleo"]))
        return done

    assert sorted(asyncio.run(ask())) == ["ada", "ada", "ben", "cleo"]


def test_what_depends_on_the_wording_leads_with_its_interval_everywhere(site, tmp_path):
    """Rows of two marks too: the interval in words, and a bar without a point; the stable belief
    beside it keeps its number and its dot."""
    site.state.anomalies.wait_s = 60
    claim = "Daylight saving time reduces electricity consumption."
    given = {"lenses": "RPL,HEL", "model": "sim:mixed?template_sd=0.2&response_sd=1.6", "B": 100}
    vector = measure(claim, store=site.store.name, **given)
    prior, after = vector["RPL"], vector["HEL"]
    assert prior.ci[1] - prior.ci[0] <= 0.2 < after.ci[1] - after.ci[0]
    led = f"{chance(prior.prob)} → {write_interval(*after.ci)}"
    digest = sha256_text(claim)[:16]
    drawn = re.compile(r'<svg class="fig fig-row".*?</svg>')
    rows = ["/", "/search", "/anomalies", f"/claims/{digest}"]
    for path in (*rows, f"/embed/claims/{digest}", f"/share/claims/{digest}/report.html"):
        page = site.get(path).text
        assert (path, f">{led}</b>" in page) == (path, path in rows)
        for picture in drawn.findall(page):
            assert (path, picture.count("<circle"), picture.count("fig-ends")) == (path, 1, 1)
            assert "(95% interval), which depends on the wording" in picture
        assert len(drawn.findall(page)) >= 1
        assert "without a dot depends on the wording" in page
    page = site.get(f"/claims/{digest}").text
    matrix = page[page.index('class="matrix"') : page.index("</table>")]
    assert f"<b>{write_interval(*after.ci)}</b>" in matrix
    assert (matrix.count('class="rule '), matrix.count("rule-point")) == (2, 1)
    card = card_svg(find_shared(site.state, "claims", digest))
    assert card.count("<circle") == 1
    asyncio.run(publish(site.store, site.state.settings, tmp_path / "out"))
    files = [path.read_text() for path in (tmp_path / "out").rglob("*.html")]
    assert any(f">{led}</b>" in text for text in files)
