"""Every page answers, says what it should, and lets no text become markup."""

import json
import re
from datetime import date
from html import escape
from html.parser import HTMLParser

import pytest
from website import FAULTY, MARKUP, MODEL, WEATHER, run_of

from heretix.core.canonical import sha256_text
from heretix.evidence.bundle import DropReason
from heretix.evidence.policy.policy import SourceClass
from heretix.report.words import DROP_PHRASES, reliability_text
from heretix.store import ExecutionResult, ExecutionStart, RunSummary, Store
from heretix.store.runs import (
    find_execution,
    find_record,
    finish_executions,
    select_runs,
    start_executions,
)
from heretix.web.middleware import CSP
from heretix.web.pages.evidence import CLASSES
from heretix.web.templating import mark_code, model_label

PLAIN_PAGES = {
    "/": "What does a model believe",
    "/search": "All claims, the one measured last first",
    "/search?q=daylight": "Daylight saving time",
    "/search?q=nothing-like-it": "Nothing has",
    "/anomalies": "further than wording and chance do",
    "/compare": "tick two or more",
    "/measure": "Show the plan and the price",
    "/jobs": "All jobs",
    "/panels": "asked of the same models in waves",
    "/policy": "Which side of the canon",
    "/policy?name=demo": "demo",
    "/policy?url=www.nature.com/articles/x": "canonical",
    "/policy?url=%3Cb%3E": "unknown",
    "/method": "How the numbers are made",
    "/help": "When something isn't right",
    "/account": "no accounts",
}


@pytest.mark.parametrize("path", PLAIN_PAGES)
def test_a_page_answers_and_says_what_it_is_for(measured_site, path):
    """200, the words that it is known by, one main landmark, one headline, a skip link."""
    answer = measured_site.get(path)
    assert answer.status_code == 200, answer.text
    assert PLAIN_PAGES[path] in answer.text
    assert answer.text.count("<main") == answer.text.count("<h1") == 1
    assert 'class="skip"' in answer.text


@pytest.mark.parametrize("path", ["/", "/search", "/anomalies", "/compare", "/jobs", "/measure"])
def test_an_empty_store_teaches(site, path):
    """Where there is nothing, the page says what would be there and how to begin."""
    answer = site.get(path)
    assert answer.status_code == 200
    assert "/measure" in answer.text
    if path != "/measure":
        assert 'class="empty"' in answer.text


def test_the_claim_page_shows_the_belief_with_everything_around_it(measured_site):
    """Number, interval, stability, the vector, what lies between, other models, provenance."""
    run = run_of(measured_site, lens="HEL")
    text = measured_site.get(f"/runs/{run.run_id}").text
    record = measured_site.state.cache.record(run.execution_id)
    belief = record.aggregates
    lo, hi = belief.ci95
    assert WEATHER in text
    assert f"{belief.prob_true_rpl:.3f}" in text
    assert f"{lo:.3f} – {hi:.3f}" in text
    for said in ("Shock Index", "Amplification Gap", "raw prior", "heterodox evidence"):
        assert said in text
    lo, hi = record.beside.template_t.ci95
    assert f"{lo:.3f} – {hi:.3f}" in text
    assert text.count("paired t ") >= 6
    assert "moved by any text: minus sham " in text
    assert "mock:gpt-5" in text
    assert record.sha256 in text
    assert f"/bundles/{run.bundle_id}" in text
    assert "documents cut" in text or "documents raised" in text
    assert text.count('class="fig fig-row"') >= 2
    assert "<script" not in text.partition("</head>")[2]
    assert escape(record.prompts.paraphrases[record.sampler.tpl_indices[0]])[:20] in text


def test_a_comparison_has_its_p_values_with_their_intervals(measured_site):
    """By the paired t and its trimmed twin, over the wordings in common."""
    refs = [run_of(measured_site, lens=lens).run_id for lens in ("RPL", "HEL")]
    text = measured_site.get(f"/compare?ref={refs[0]}&ref={refs[1]}").text
    assert "paired t −" in text or "paired t -" in text
    assert "p&lt;0.0001; trimmed" in text
    assert "not checked against a placebo: irrelevant text may move the model as far" in text


def test_a_movement_in_a_list_says_what_moved_it(measured_site):
    """On the start, as on the page of the claim: documents, or any text of their length."""
    measured_site.state.anomalies.wait_s = 60
    row = measured_site.get("/").text.partition(f">{WEATHER}</a>\n")[2].partition("</li>")[0]
    assert '<span class="tag">moved by any text</span>' in row
    page = measured_site.get(f"/runs/{run_of(measured_site, lens='HEL').run_id}").text
    assert 'heterodox <small class="muted">moved by any text</small>' in page


def test_a_page_labels_what_nobody_should_quote(measured_site):
    """Made-up answers say so beside the number."""
    text = measured_site.get(f"/runs/{run_of(measured_site, model='mock:gpt-5').run_id}").text
    assert "Made-up answers: no model was asked, so this is nobody&#39;s belief." in text


@pytest.mark.parametrize("path", ["/", "/search", "/compare"])
def test_a_list_labels_what_nobody_should_quote(measured_site, path):
    """Wherever a number of theirs stands, also in a row of a table."""
    assert 'gpt-5</span> <span class="aside">made up</span>' in measured_site.get(path).text


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("local:smollm2-135m", "demonstration"),
        ("mock:gpt-5", "made up"),
        ("sim:m?prior=0.7", "made up"),
        ("gpt-5", ""),
        ("local:qwen2.5-coder-1.5b", ""),
    ],
)
def test_only_models_that_nobody_should_quote_have_a_label(model, label):
    """The embedded model and those whose answers are made up; no other."""
    assert model_label(model) == label


def test_a_wording_says_what_the_estimate_is_without_it(measured_site):
    """The record holds what leaving it out changes, and the table calls it so."""
    found = run_of(measured_site, model=MODEL, lens="RPL")
    text = measured_site.get(f"/runs/{found.run_id}").text
    record = measured_site.get(f"/runs/{found.run_id}/artifact.json").json()
    row = record["runs"][0]["diagnostics"]["templates"][0]
    assert "is how far the estimate moves when the wording is left out" in text
    assert f"without it </span>{row['influence_prob']:+.3f}".replace("-", "−") in text


def test_measuring_again_asks_the_same_model_and_lens(measured_site):
    """The form is filled in with what the page is about."""
    found = run_of(measured_site, model="mock:gpt-5")
    text = measured_site.get(f"/runs/{found.run_id}").text
    assert f'model=mock%3Agpt-5&amp;lenses={found.lens}">Measure again' in text


def test_a_shortened_id_leads_to_the_whole_one(measured_site):
    """A link that somebody shortened works, and shows which execution it means."""
    run = run_of(measured_site)
    answer = measured_site.get(f"/runs/{run.run_id[-12:-2]}")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/runs/{run.execution_id}"


@pytest.mark.parametrize("ref", ["nope", "exec-", "%00", "..%2f..%2fetc", "' OR 1=1 --", "%25"])
def test_an_id_that_names_nothing_is_not_found(measured_site, ref):
    """Whatever stands in the address, it is looked up and nothing else."""
    answer = measured_site.get(f"/runs/{ref}")
    assert answer.status_code == 404
    assert "Traceback" not in answer.text


def test_samples_show_raw_answers_and_why_some_are_dropped(measured_site):
    """Each attempt stands there as it came."""
    run = run_of(measured_site, claim="Sharks don't get cancer.", model=FAULTY)
    record = measured_site.state.cache.record(run.execution_id)
    text = measured_site.get(f"/runs/{run.run_id}/samples").text
    assert text.count("<tr>") >= record.usage.attempted
    assert "dropped: not json" in text
    assert (
        f"{record.usage.compliant} of {record.usage.attempted}"
        in measured_site.get(f"/runs/{run.run_id}").text
    )


def test_verify_derives_everything_again(measured_site):
    """The button's page says how many values agree."""
    run = run_of(measured_site)
    text = measured_site.get(f"/runs/{run.execution_id}/verification").text
    assert "<h1>Verified</h1>" in text
    assert re.search(r"[\d,]+ values derived again, all equal", text)


def test_a_record_that_was_changed_is_not_verified(site, measured_template):
    """A number that doesn't follow from its samples is named."""
    with Store.open(str(measured_template)) as measured:
        run = measured.read(select_runs, search="Sharks")[0]
        changed = json.loads(measured.read(find_record, run.run_id).record_json)
        started = measured.read(find_execution, run.execution_id)
    changed["aggregates"]["prob_true_rpl"] = 0.999
    row = {name: getattr(run, name) for name in RunSummary.__slots__} | {
        "counts_by_template_json": None,
        "sampler_json": None,
        "config_json": started.config_json,
    }
    for name in ("execution_id", "created_at", "updated_at"):
        del row[name]
    start = ExecutionStart(
        execution_id=run.execution_id,
        run=row,
        config_json=started.config_json,
        created_at=run.created_at,
    )
    result = ExecutionResult(
        execution_id=run.execution_id,
        status="ok",
        record_json=json.dumps(changed),
        finished_at=run.updated_at,
        run=row,
        samples=(),
    )
    site.store.write(start_executions, [start])
    site.store.write(finish_executions, [result])
    answer = site.get(f"/runs/{run.execution_id}/verification").text
    assert "<h1>Not verified</h1>" in answer
    assert "aggregates.prob_true_rpl" in answer


def test_the_artifact_can_be_taken_along(measured_site):
    """What is downloaded is what `heretix verify` reads."""
    from heretix.measurement.verify import parse_artifacts, verify_artifact

    run = run_of(measured_site)
    answer = measured_site.get(f"/runs/{run.execution_id}/artifact.json")
    assert "attachment" in answer.headers["content-disposition"]
    (artifact,) = parse_artifacts(answer.text, source="download")
    assert all(found.ok for found in verify_artifact(artifact))


def test_the_bundle_page_says_why_of_everything(measured_site):
    """Documents with quote, class, rule, reliability and influence; and what was left out."""
    run = run_of(measured_site, lens="HEL")
    bundle = measured_site.state.cache.bundle(run.bundle_id)
    answer = measured_site.get(f"/bundles/{run.bundle_id}")
    assert answer.status_code == 200
    for item in bundle.items:
        assert item.id in answer.text
        record = item.reliability
        assert not record["judged"]
        assert f">{reliability_text(record)}</span> (not assessed further)" in answer.text
    assert "Influence" in answer.text
    assert "Left out" in answer.text
    assert "provenance" in answer.text
    short = measured_site.get(f"/bundles/{run.bundle_id[:12]}")
    assert short.headers["location"] == f"/bundles/{run.bundle_id}"


def test_every_class_and_every_reason_has_words():
    """A new one can't leave a page without an explanation."""
    assert set(CLASSES) == set(SourceClass)
    assert set(DROP_PHRASES) == set(DropReason)


@pytest.mark.parametrize(
    ("ref", "status"),
    [("..%2f..%2fx", 404), ("zz", 422), ("abcd' OR 1=1", 422), ("%00", 404), ("f" * 65, 422)],
)
def test_bundle_ids_are_hex_and_nothing_else(measured_site, ref, status):
    """A bundle's address can't be made to mean a file."""
    assert measured_site.get(f"/bundles/{ref}").status_code == status


def test_compare_pairs_runs_by_wording(measured_site):
    """Runs over the same wordings are compared wording by wording, on one axis."""
    refs = [run_of(measured_site, lens=lens).run_id for lens in ("RPL", "HEL")]
    answer = measured_site.get("/compare", params={"ref": refs})
    assert answer.status_code == 200
    assert "paired by wording" in answer.text
    assert answer.text.count('class="rule ') == 2
    drift = measured_site.get("/compare", params={"drift": refs[0]})
    assert drift.status_code == 200
    assert measured_site.get("/compare", params={"ref": ["nope"]}).status_code == 404
    assert measured_site.get("/compare", params={"ref": ["x"] * 13}).status_code in {404, 422}


def test_the_list_of_claims_has_one_row_a_claim(measured_site):
    """However often it was measured: the belief its page shows first, and how many were asked."""
    text = measured_site.get("/search").text
    assert text.count('class="row-claim"') == len({WEATHER, MARKUP, "Sharks don't get cancer."})
    row = text.partition(f">{WEATHER}</a>\n")[2].partition("</li>")[0]
    shown = re.sub(r"<[^>]+>", "", row)
    assert "planted" in shown
    assert re.search(r"\d% → \d+%", shown)
    assert "2 models, 4 lenses" in shown
    assert f'href="/claims/{sha256_text(WEATHER)[:16]}"' in text


def test_the_list_of_claims_is_searched_by_model_and_id_too(measured_site):
    """What has the words stands for its claim."""
    run = run_of(measured_site, lens="HEL")
    for words, rows, model in (
        ("gpt-5", 2, "gpt-5"),
        (run.run_id, 1, "planted"),
        ("m?not", 1, "m"),
    ):
        text = measured_site.get("/search", params={"q": words}).text
        assert text.count('class="row-claim"') == rows
        assert f">{model}</span>" in text
    assert "Sharks" in measured_site.get("/compare", params={"q": "shark"}).text
    assert WEATHER not in measured_site.get("/compare", params={"q": "shark"}).text


def test_the_list_of_claims_goes_on_where_a_page_ended(measured_site, monkeypatch):
    """Every claim once, page by page; a cursor that is none is its sender's mistake."""
    monkeypatch.setattr("heretix.web.pages.home.PAGE_SIZE", 1)
    seen, address = [], "/search"
    while address:
        text = measured_site.get(address).text
        seen += re.findall(r'class="row-claim" href="([^"]+)"', text)
        following = re.search(r'rel="next" href="([^"]+)"', text)
        address = following and following[1].replace("&amp;", "&")
        assert (">Newest</a>" in text) is (len(seen) > 1)
    assert len(seen) == len(set(seen)) == 3
    assert measured_site.get("/search", params={"cursor": "x"}).status_code == 422


def test_a_run_that_has_not_ended_leads_nowhere(measured_site):
    """It has no page and can't be compared yet; the jobs say how far it is."""
    from dataclasses import replace

    from heretix.web.templating import environment

    ended = run_of(measured_site)
    begun = replace(ended, prob_true_rpl=None, rpl_compliance_rate=None, stability_band=None)
    table = environment().get_template("_macros.html").module.runs_table
    for run, leads in ((ended, True), (begun, False)):
        for shown in (True, False):
            text = str(table([run], "Runs.", checks=True, show_claim=shown))
            assert (f'href="/runs/{run.run_id}"' in text) is leads
            assert (f'value="{run.run_id}"' in text) is leads
            assert ('href="/jobs"' in text) is not leads


def test_a_claim_is_found_by_its_words(measured_site):
    """Other pages link to a claim without knowing its runs."""
    answer = measured_site.get("/claims", params={"text": WEATHER, "model": MODEL})
    address = answer.headers["location"]
    assert address.startswith(f"/claims/{sha256_text(WEATHER)[:16]}?model=")
    shown = measured_site.get(address)
    assert f'href="/runs/{run_of(measured_site).run_id}"' in shown.text
    assert measured_site.get("/claims/0123456789abcdef").status_code == 404
    answer = measured_site.get("/claims", params={"text": "Nobody asked this."})
    assert answer.headers["location"].startswith("/measure?claim=Nobody")
    for words in ({}, {"text": ""}, {"text": "  "}):
        answer = measured_site.get("/claims", params=words)
        assert (answer.status_code, answer.headers["location"]) == (303, "/search")


def test_the_worked_example_is_computed_by_the_functions_that_measure(measured_site):
    """The page's numbers are the estimator's."""
    from heretix.belief.estimator import estimate
    from heretix.belief.logodds import logit

    typed = "0.2 0.3\n0.25 0.22\n0.4 0.35"
    answer = measured_site.get("/method", params={"answers": typed})
    logits = {
        f"{n:02d}": [logit(float(p)) for p in line.split()]
        for n, line in enumerate(typed.splitlines())
    }
    found = estimate(logits, seed=42)
    assert f"{found.prob_true:.3f}" in answer.text
    assert f"{found.ci_lo:.3f} – {found.ci_hi:.3f}" in answer.text
    wrong = measured_site.get("/method", params={"answers": "2 <b>\n1"})
    assert wrong.status_code == 422
    assert "must hold numbers from 0 to 1" in wrong.text
    assert "<b>\n1" not in wrong.text


def test_markup_in_a_claim_stays_text(measured_site):
    """On every page that shows a claim, it is shown as it was written."""
    run = run_of(measured_site, claim=MARKUP, model="mock:gpt-5")
    pages = [
        "/",
        "/search?q=alert",
        f"/runs/{run.run_id}",
        f"/runs/{run.run_id}/samples",
        f"/runs/{run.run_id}/verification",
        f"/compare?ref={run.run_id}",
        "/jobs",
    ]
    for path in pages:
        text = measured_site.get(path).text
        assert "<script>alert" not in text, path
        assert "<img src=x" not in text, path
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in measured_site.get(f"/runs/{run.run_id}").text


@pytest.mark.parametrize("path", ["/search", "/policy", "/measure", "/method"])
def test_markup_in_an_address_stays_text(measured_site, path):
    """What somebody typed comes back as text."""
    names = {"/search": "q", "/policy": "url", "/measure": "claim", "/method": "answers"}
    evil = '"><script>alert(1)</script>'
    answer = measured_site.get(path, params={names[path]: evil})
    assert "<script>alert" not in answer.text


def test_a_reader_that_has_a_page_is_told_so(measured_site):
    """The same page again is 304 with nothing in it; other content isn't."""
    run = run_of(measured_site)
    first = measured_site.get(f"/runs/{run.execution_id}")
    again = measured_site.get(
        f"/runs/{run.execution_id}", headers={"if-none-match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    other = measured_site.get("/help", headers={"if-none-match": first.headers["etag"]})
    assert other.status_code == 200


def test_files_are_served_from_a_closed_set(measured_site):
    """Own styles and scripts, versioned for a year; nothing else can be reached."""
    page = measured_site.get("/").text
    for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        answer = measured_site.get(address)
        assert answer.status_code == 200, address
        assert "immutable" in answer.headers["cache-control"]
    assert "immutable" not in measured_site.get("/static/heretix.css").headers["cache-control"]
    for name in (
        "..%2fapp.py",
        "%2e%2e/app.py",
        "app.py",
        "heretix.css%00",
        "%2fetc%2fpasswd",
    ):
        assert measured_site.get(f"/static/{name}").status_code == 404, name


def test_the_icon_is_where_browsers_look_by_themselves(measured_site):
    """A card or a table has no page around it that could name the icon."""
    icon = measured_site.get("/favicon.ico", follow_redirects=True)
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")


class Tags(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_pages_load_nothing_from_elsewhere_and_run_nothing_inline(measured_site):
    """No other host for a style, a script or a picture; no script or style in the page itself."""
    run = run_of(measured_site, lens="HEL")
    for path in [*PLAIN_PAGES, f"/runs/{run.run_id}", f"/bundles/{run.bundle_id}"]:
        for tag, attrs in Tags(measured_site.get(path).text).found:
            loaded = attrs.get("src") or (attrs.get("href") if tag == "link" else None) or "/"
            assert re.match(r"/(?!/)", loaded), (path, tag, attrs)
            assert tag != "style", path
            assert tag != "script" or "src" in attrs or attrs.get("type") == "application/json"
            assert not any(name == "style" or name.startswith("on") for name in attrs), attrs


def test_every_answer_carries_the_same_headers(measured_site):
    """Pages, files, refusals: a strict policy, and no guessing of types."""
    for path in ("/", "/static/heretix.css", "/nope", "/runs/nope", "/api/v1/nope"):
        headers = measured_site.get(path).headers
        assert headers["content-security-policy"] == CSP
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-frame-options"] == "DENY"
        assert "strict-transport-security" not in headers
    assert "unsafe" not in CSP


def test_errors_are_pages_for_people_and_documents_for_programs(measured_site):
    """The same mistake in two forms; both say what to do."""
    page = measured_site.get("/runs/nope")
    assert page.headers["content-type"].startswith("text/html")
    assert "names no run" in page.text
    document = measured_site.get("/api/v1/nowhere")
    assert document.headers["content-type"] == "application/problem+json"
    assert document.json()["status"] == 404


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain <b>", "plain &lt;b&gt;"),
        ("`<i>` is wrong", "<code>&lt;i&gt;</code> is wrong"),
        ("one ` tick", "one ` tick"),
        ("", ""),
    ],
)
def test_the_subject_of_a_message_is_shown_as_code(text, html):
    """Backticks become code, and what is inside stays text."""
    assert str(mark_code(text)) == html


@pytest.mark.parametrize("value", [None, 0.0, 0.5, 1.0])
def test_a_belief_that_is_not_known_is_drawn_as_nothing(value):
    """A missing number is a dash and an empty rule, never a point."""
    from heretix.web.templating import prob, rule, usd, write_signed

    drawn = str(rule(value, None if value is None else (value, value)))
    assert ("rule-point" in drawn) is (value is not None)
    assert (prob(value) == "—") is (value is None)
    assert (write_signed(value) == "—") is (value is None)
    assert (usd(value) == "unknown") is (value is None)


def test_times_and_notes_read_as_people_write_them():
    """The same day in tables and text, how long it took, and a note among sentences."""
    from heretix.web.templating import day, moment, sentence, time_between

    stamp = "2026-01-02T23:59:59.500Z"
    assert day(stamp) == "2 Jan 2026"
    assert "2 Jan 2026, 23:59 UTC" in str(moment(stamp))
    assert (day(None), day("soon")) == ("—", "soon")
    assert day("2026-01-02") == day(date(2026, 1, 2)) == "2 Jan 2026"
    assert time_between(stamp, "2026-01-03T00:00:41.500Z") == "42 s"
    assert time_between(stamp, stamp) == "under a second"
    assert time_between(stamp, "soon") == "—"
    assert sentence("nothing varies") == sentence("nothing varies.") == "Nothing varies."


def test_every_error_has_a_status():
    """Each kind of error maps to a status by itself or by what it is a kind of; few are 500."""
    from heretix.core import errors
    from heretix.web.problems import STATUS, status_of

    for name in errors.__all__:
        kind = getattr(errors, name)
        status = status_of(
            kind("x", retry_after_s=1) if name == "TooManyRequestsError" else kind("x")
        )
        assert status >= 400
        assert (status == 500) is (name == "HeretixError"), name
    assert set(STATUS) <= set(errors.__all__)
