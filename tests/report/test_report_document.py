"""Reports: whole in one file, inert, linked, and true to the records."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from drawn import again, loose

from heretix.core.errors import ConfigError
from heretix.measurement.vector import select_unchanged_runs
from heretix.report.charts.theme import DARK
from heretix.report.document import report_html, report_svg
from heretix.report.findings import belief_finding
from heretix.report.method import method_lines
from heretix.report.words import reliability_text

NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


class Page(HTMLParser):
    """Elements and attributes as a browser would see them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.ids, self.links, self.handlers, self.text = set(), [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name in {"href", "src", "xlink:href"}:
                self.links.append(value)
            elif name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def vector_page(vector_artifact):
    """The report of a whole vector, with experiments."""
    return report_html([vector_artifact])


def test_a_report_is_one_file_that_loads_nothing(clean_run, vector_page):
    """No script, no image, no address: only links within the page."""
    for html in (report_html([loose([clean_run])]), vector_page):
        page = Page(html)
        assert not page.tags & {"script", "img", "link", "iframe", "object", "embed", "base"}
        assert all(link.startswith("#") for link in page.links)
        assert set(re.findall(r"https?://[^\"'\s<>]+", html)) <= NAMESPACES
        assert not re.search(r"@import|url\((?!#)", html)
        assert "default-src 'none'; style-src 'unsafe-inline'" in html
        assert "@media print" in html


def test_every_link_leads_to_a_place_on_the_page(clean_run, vector_page):
    """Figures lead to their answers; no id stands twice."""
    for html in (report_html([loose([clean_run])]), vector_page):
        page = Page(html)
        assert len(page.ids) == len(set(page.ids))
        assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
        assert html.count("<figure") == html.count("Behind this figure")
    assert "run-1-answers" in page.ids


def test_markup_in_records_is_inert(markup_run):
    """Claims and answers are text, wherever they stand: titles, drawings, tables."""
    nasty = "</code></td><script>alert(2)</script><img src=x onerror=alert(3)>"
    samples = [replace(s, raw_answer=nasty, error=nasty) for s in markup_run.samples]
    html = report_html([loose([markup_run.model_copy(update={"samples": samples})])])
    page = Page(html)
    assert not page.tags & {"script", "img"}
    assert page.handlers == []
    assert "<script>alert(1)</script>" in "".join(page.text)
    assert "<script>alert(2)</script>" in "".join(page.text)


def test_a_report_holds_every_answer_and_how_it_was_made(faulty_run):
    """Raw answers, reasons for those that don't count, and the record's own K, R, T, B, seed."""
    text = "".join(Page(report_html([loose([faulty_run])])).text)
    for sample in faulty_run.samples:
        assert (sample.raw_answer if sample.raw_answer is not None else sample.error) in text
    for part in (
        "K = 16",
        "R = 2",
        "T = 16",
        "B = 400",
        str(faulty_run.aggregation.bootstrap_seed),
    ):
        assert part in text
    assert "refused" in text
    assert faulty_run.sha256 in text


def test_a_report_says_whether_the_record_verifies(clean_run):
    """A changed number is seen, and where."""
    assert "all are equal" in report_html([loose([clean_run])])
    belief = clean_run.aggregates.model_copy(update={"prob_true_rpl": 0.99})
    html = report_html([loose([clean_run.model_copy(update={"aggregates": belief})])])
    assert "NOT verified" in html
    assert "aggregates.prob_true_rpl" in html


def test_no_estimate_is_reported_as_such(lost_run):
    """There is a reason and no number."""
    html = report_html([loose([lost_run])])
    assert "No estimate: " in html
    assert "<b>0.5" not in html


def test_several_records_stand_side_by_side(clean_run, faulty_run, lost_run):
    """A chart, and a table with a line a run."""
    html = report_html([loose([clean_run, faulty_run]), loose([lost_run])])
    assert "3 claims" in html
    assert "Side by side" in html
    assert html.count('<section class="run"') == 3


def test_a_record_that_is_named_twice_is_reported_once(clean_run):
    """The same file twice changes nothing."""
    html = report_html([loose([clean_run]), loose([clean_run])])
    assert html.count('<section class="run"') == 1
    assert "Side by side" not in html


def test_repeated_executions_show_their_drift(clean_run):
    """One recipe, measured twice."""
    assert "Over time" in report_html([loose([clean_run]), loose([again(clean_run, 2)])])


def test_a_vector_is_reported_with_its_evidence_and_experiments(vector_page, vector_artifact):
    """Charts of what lies between, and the documents with their quotes."""
    for part in ("Belief vector", "Influence of each document", "Controls"):
        assert part in vector_page
    text = "".join(Page(vector_page).text)
    for bundle in vector_artifact.bundles:
        for item in bundle["items"]:
            assert item["quote"] in text
            assert f"{reliability_text(item['reliability'])}not assessed further" in text


def test_single_runs_of_one_claim_make_a_vector(vector_artifact):
    """Lenses out of a store, named one by one, are seen together."""
    plain = select_unchanged_runs(vector_artifact.runs, vector_artifact.runs[0].claim)
    html = report_html([loose([run]) for run in plain])
    assert "Belief vector" in html


def test_the_method_in_words_uses_the_records_own_values(clean_run, vector_artifact):
    """Sixteen templates lose three at each end; a lens names its documents."""
    said = " ".join(method_lines(clean_run))
    assert "asked 48 times" in said
    assert "the 3 lowest and the 3 highest" in said
    mel = next(run for run in vector_artifact.runs if run.lens == "MEL")
    assert f"{len(mel.evidence.items)} documents (MEL" in " ".join(method_lines(mel))
    nul = next(run for run in vector_artifact.runs if run.lens == "NUL")
    assert "no documents inside" in " ".join(method_lines(nul))


def test_a_sheet_has_an_end(clean_run):
    """More runs than a picture can show are refused, with what to do instead."""
    many = [clean_run.model_copy(update={"execution_id": f"exec-{n}"}) for n in range(201)]
    with pytest.raises(ConfigError, match=r"at most 200, got 201.*\.html"):
        report_svg([loose(many)])


def test_the_sheet_is_titled_with_the_finding(clean_run):
    """As the page is; the claim stands below it."""
    svg = ET.fromstring(report_svg([loose([clean_run])]))
    assert svg.get("aria-label") == f"Report: {belief_finding(clean_run).sentence}"
    assert f"The claim: {clean_run.claim}" in "".join(svg.itertext())


def test_the_sheet_is_one_well_formed_drawing(markup_run, vector_artifact, lost_run):
    """Whatever the records hold, in light and dark."""
    for artifacts in ([loose([markup_run])], [vector_artifact], [loose([lost_run])]):
        svg = ET.fromstring(report_svg(artifacts, theme=DARK))
        assert svg.get("aria-label").startswith("Report: ")
        shown = "".join(svg.itertext())
        assert "How it was made" in shown
        assert "Verified: " in shown
