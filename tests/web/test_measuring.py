"""A new measurement from the form to the result, and its life in between."""

import asyncio
import html
import json
import re

import pytest

from heretix.accounts import LOCAL
from heretix.evidence.bundle import DropReason
from heretix.jobs import JobState, MeasureRequest, Worker
from heretix.report.words import DROP_PHRASES
from heretix.web.forms import MeasureForm

CLAIM = {"claims": "Coffee beans are the seeds of a fruit.", "models": "mock:gpt-5"}


def planned(site, fields):
    """The fields of the form that starts what was planned."""
    page = site.post("/measure", fields)
    assert page.status_code == 200, page.text
    asked = html.unescape(re.search(r'name="request" value="([^"]*)"', page.text)[1])
    key = re.search(r'name="key" value="([^"]*)"', page.text)[1]
    return page.text, {"request": asked, "key": key}


def work(site):
    """Do all jobs, as a worker elsewhere would."""
    return asyncio.run(Worker(site.store, site.state.settings).run_until_idle())


def test_from_the_form_to_the_result(site):
    """Plan, price and time first; then a job; then the belief."""
    page, start = planned(site, CLAIM)
    assert "calls to make" in page
    assert "$0" in page
    answer = site.post("/measure/start", start)
    assert answer.status_code == 303
    address = answer.headers["location"]
    waiting = site.get(address).text
    assert "Waiting for a worker" in waiting
    assert 'http-equiv="refresh"' in waiting
    assert work(site) == 1
    done = site.get(address).text
    assert '<h2 id="state" data-state>Done</h2>' in done
    assert "refresh" not in done
    assert "Look at the result" in done
    result = re.search(r'href="(/runs/exec-[^"]+)"', done)[1]
    assert CLAIM["claims"] in site.get(result).text


def test_sent_twice_it_is_one_job(site):
    """A double click, or a reload of the answer, starts nothing twice."""
    _, start = planned(site, CLAIM)
    first = site.post("/measure/start", start)
    again = site.post("/measure/start", start)
    assert first.headers["location"] == again.headers["location"]
    assert len(site.state.jobs.list(by=LOCAL)) == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"claims": "   "}, "empty"),
        ({"models": "nobody:knows"}, "no known provider"),
        ({"K": "many"}, "whole number"),
        ({"K": "1000000"}, "at most 64"),
        ({"models": "local:../../etc/passwd"}, "no path"),
        ({"corpus": "../x"}, "corpus"),
        ({"as_of": "yesterday"}, "day like"),
        ({"claims": "x" * 10_001}, "at most 10,000"),
    ],
)
def test_a_mistake_is_shown_beside_what_was_typed(site, fields, said):
    """The form comes back as it was, with what to put right."""
    answer = site.post("/measure", {**CLAIM, **fields})
    assert answer.status_code == 422
    assert said in html.unescape(answer.text)
    assert 'role="alert"' in answer.text
    assert "Start measuring" not in answer.text


def test_a_model_without_its_key_is_planned_and_not_started(site):
    """What it would cost can be seen by anybody; to start it, the key must be there."""
    page, start = planned(site, {**CLAIM, "models": "gpt-5"})
    assert "set OPENAI_API_KEY where this server runs" in page
    answer = site.post("/measure/start", start)
    assert answer.status_code == 422
    assert "OPENAI_API_KEY" in answer.text
    assert site.state.jobs.list(by=LOCAL) == []


def test_a_question_is_planned_with_a_warning(site):
    """A question is neither true nor false; the plan says so, and doesn't refuse it."""
    page, _ = planned(site, {**CLAIM, "claims": "Is coffee a fruit?\nTea is a leaf."})
    assert page.count("<strong>A question.</strong>") == 1


def test_a_lens_without_documents_is_said_to_be_left_out(site):
    """The plan tells it before anything starts, in words and not in codes."""
    page, _ = planned(site, {**CLAIM, "lenses": ["RPL", "MEL"]})
    assert "<strong>A lens is left out.</strong>" in page
    assert "insufficient_evidence" not in page.partition('<h2 id="plan">')[2].partition("<form")[0]


def test_an_address_can_fill_in_the_form(site):
    """Links of other pages lead to a form that is ready to be sent."""
    page = site.get("/measure?claim=Tea+%3C3&model=mock:m&lenses=all&K=16").text
    assert "Tea &lt;3</textarea>" in page
    assert 'value="mock:m"' in page
    assert page.count(" checked") == 4


def test_documents_of_ones_own_are_a_lens(site):
    """Whoever brings documents asks for SEL."""
    form = MeasureForm(claims="A claim.", documents=[{"title": "", "text": "Some text."}])
    request = form.request()
    assert request.lenses == ("RPL", "SEL")
    assert request.documents[0].title == "Document 1"


def submit(site, **values):
    values = {"claims": ["Tea is a drink."], "models": ["mock:m"], **values}
    return site.state.jobs.submit(LOCAL, MeasureRequest.parse(values))


def test_cancel_and_go_on(site):
    """A cancelled job can be resumed, and then ends as any other."""
    job = submit(site)
    assert site.post(f"/jobs/{job.id}/cancel").status_code == 303
    page = site.get(f"/jobs/{job.id}").text
    assert "Cancelled" in page
    assert "Go on" in page
    again = site.post(f"/jobs/{job.id}/cancel")
    assert again.status_code == 409
    # Whoever clicked in a page that was older than the job gets back to it.
    assert f'href="/jobs/{job.id}">Back to the page' in again.text
    assert site.post(f"/jobs/{job.id}/resume").status_code == 303
    work(site)
    assert site.state.jobs.get(job.id, by=LOCAL).state is JobState.DONE
    assert site.post(f"/jobs/{job.id}/resume", {"budget_usd": "x"}).status_code == 422


def events(response):
    """The events of a stream until it ends."""
    for block in response.iter_text():
        for part in block.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line)
            if "data" in fields:
                yield int(fields["id"]), json.loads(fields["data"])


def test_events_tell_the_progress_until_the_end(site):
    """The stream of a job ends with the event that says so."""
    job = submit(site)
    work(site)
    with site.client.stream("GET", f"/jobs/{job.id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        found = list(events(response))
    seq, last = found[-1]
    assert last["ended"]
    assert last["state"] == "done"
    assert last["progress"]["done"] == last["progress"]["total"] == 16
    # Whoever has seen the end is told not to come again.
    again = site.get(f"/jobs/{job.id}/events", headers={"last-event-id": str(seq)})
    assert again.status_code == 204


@pytest.mark.parametrize("last", ["0", "-1", "x", "9" * 40, ""])
def test_a_lost_connection_comes_back_where_it_was(site, last):
    """A `Last-Event-ID` that can't be read means from the beginning."""
    job = submit(site)
    work(site)
    with site.client.stream(
        "GET", f"/jobs/{job.id}/events", headers={"last-event-id": last}
    ) as response:
        assert response.status_code == 200
        assert list(events(response))[-1][1]["ended"]


def test_a_job_is_followed_while_it_runs(site):
    """Events come as things happen, before the job is done."""
    job = submit(site)
    with site.client.stream("GET", f"/jobs/{job.id}/events") as response:
        stream = events(response)
        _, first = next(stream)
        assert first["state"] == "queued"
        work(site)
        assert list(stream)[-1][1]["ended"]


def test_open_streams_end_with_the_server(site):
    """Nobody has to wait for browsers that keep a page open."""
    job = submit(site)
    with site.client.stream("GET", f"/jobs/{job.id}/events") as response:
        stream = events(response)
        next(stream)
        site.state.stopping = True
        assert list(stream) == []


def test_events_of_no_job_are_not_found(site):
    """An address that somebody made up."""
    assert site.get("/jobs/nope/events").status_code == 404
    assert site.get("/jobs/..%2f..%2fetc").status_code == 404


def test_a_lens_without_evidence_is_told_in_words_and_a_claim_in_its_own(site):
    """What a claim says isn't taken for a reason, whatever it holds."""
    claim = "Zyxwv: `insufficient_evidence`: off_topic, wrong_class."
    page, _ = planned(site, {**CLAIM, "claims": claim, "lenses": ["RPL", "MEL"]})
    assert f"For “{claim}” " in page
    told = re.search(r"needs at least 3 documents and has 0.*?</div>", page, re.DOTALL)[0]
    assert re.search(
        rf"<li>\d+ left out: {DROP_PHRASES[DropReason.OFF_TOPIC]}</li>", html.unescape(told)
    )
    assert "_" not in told


def test_every_reason_to_leave_a_document_out_has_words():
    """A page looks them up; one without would be blank."""
    assert set(DROP_PHRASES) == set(DropReason)
