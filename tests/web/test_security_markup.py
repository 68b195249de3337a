"""Markup and scripts in claims, evidence, models, names and addresses: they stay text everywhere."""

import asyncio
import json
import re
import shutil

import pytest
from economyplay import NOW, Play
from hostile import BREAKOUT, CLAIM, LABEL, MODEL, NAME, SCRIPT, injected, links
from website import PASSWORD, quick_passwords, serving, state_over

from heretix.accounts import People, Role
from heretix.core.clock import ManualClock
from heretix.jobs import MeasureRequest, Worker
from heretix.store import Store
from heretix.store.runs import select_runs

_MOST_PAGES = 150


@pytest.fixture(scope="module")
def nest(tmp_path_factory, sqlite_template):
    """A server whose claims, models, evidence and people are all called something hostile."""
    folder = tmp_path_factory.mktemp("nest")
    path = shutil.copy(sqlite_template, folder / "heretix.sqlite")
    with Store.open(str(path)) as store:
        state = state_over(store, folder)
        state.clock = ManualClock(NOW)
        state.people = People(store, passwords=quick_passwords())
        owner = state.people.add(NAME, role=Role.OPERATOR, password=PASSWORD)
        for name in ("root", "alice", "bob"):
            state.people.add(name, role=Role.OPERATOR, password=PASSWORD)
        documents = [
            {
                "title": f"Tea {SCRIPT}{BREAKOUT}",
                "text": f"Tea is a drink, said the {SCRIPT} board in its report on tea. {BREAKOUT}",
                "url": "https://tea.example/\"'><svg/onload=alert(8)>",
            }
        ]
        asked = {"claims": [CLAIM], "models": [MODEL], "K": 4, "R": 1, "B": 100}
        state.jobs.submit(owner, MeasureRequest.parse(asked))
        shown = {"lenses": ["RPL", "SEL"], "documents": documents, "influence": True}
        state.jobs.submit(owner, MeasureRequest.parse(asked | shown))
        asyncio.run(Worker(store, state.settings).run_until_idle())
        with serving(state, loopback_only=False) as running:
            yield running


@pytest.fixture(scope="module")
def walked(nest):
    """Every page that can be reached by links, and each that is told something hostile."""
    play = Play(nest, claim=CLAIM)
    visitor = nest.signed_in(NAME)
    play.join(visitor, play.alice)
    play.bet(visitor, "heretic", "25")
    play.reveal(play.alice, play.commit(play.alice, stake="900", doc_title=f"Tea {SCRIPT}"))
    pages, waiting = {}, ["/", "/account", "/jobs", "/profile", "/search", "/ledger", "/episodes"]
    while waiting and len(pages) < _MOST_PAGES:
        link = waiting.pop().partition("#")[0]
        if link in pages or link.startswith("/static/"):
            continue
        pages[link] = answer = visitor.get(link, follow_redirects=True)
        if answer.headers["content-type"].startswith("text/html"):
            waiting += links(answer.text)
    return pages


def test_markup_in_claims_evidence_models_and_names_runs_nowhere(walked):
    """On every page that a link leads to, what somebody wrote is text."""
    read = [a for a in walked.values() if a.headers["content-type"].startswith("text/html")]
    assert len(read) > 25
    for answer in read:
        assert injected(answer.text) == [], answer.url
        assert answer.status_code < 500, answer.url
    together = "".join(answer.text for answer in read)
    for words in ("alert(1)", "alert(3)", "alert(5)", "alert(6)", "alert(8)"):
        assert words in together, f"{words} was shown nowhere: the pages weren't tried"
    assert "{{7*7}}${7*7}" in together, "a template ran somebody's text"


@pytest.mark.parametrize("text", [SCRIPT, BREAKOUT, NAME, LABEL, "<p style='x'>", "<iframe>"])
def test_markup_that_isnt_escaped_would_be_found(text):
    """What these tests look with sees each of the attacks."""
    assert injected(f"<p>{text}</p>") or injected(f'<p title="{text}">')


def test_markup_in_json_and_downloads_is_never_html(walked, nest):
    """Specifications, records and tables come as what they are, and browsers mustn't guess."""
    visitor = nest.signed_in(NAME)
    run = nest.store.read(select_runs, limit=1)[0]
    found = {path: answer for path, answer in walked.items() if path.endswith(".json")}
    for path in (
        f"/runs/{run.run_id}/artifact.json",
        "/api/v1/runs",
        "/api/v1/jobs",
        "/api/v1/export/samples.jsonl",
        "/api/v1/people/me",
    ):
        found[path] = visitor.get(path)
    for path, answer in found.items():
        assert answer.status_code == 200, path
        assert "html" not in answer.headers["content-type"], path
        assert answer.headers["x-content-type-options"] == "nosniff", path
        name = answer.headers.get("content-disposition", 'attachment; filename="a"')
        assert re.fullmatch(r'attachment; filename="[\w.-]+"', name), name


def test_markup_in_scripts_of_data_cant_end_them(walked):
    """JSON inside a page holds no `</script`, whatever the data says."""
    for answer in walked.values():
        for block in re.findall(
            r'<script type="application/json"[^>]*>(.*?)</script>', answer.text
        ):
            json.loads(block)


def test_markup_in_a_job_s_events_stays_one_line(nest):
    """A server-sent event can't be ended, or another begun, by what an error says."""
    from heretix.jobs import JobEvent, JobState, Progress
    from heretix.web.events import _write

    said = f"{SCRIPT}\r\n\r\nevent: end\ndata: forged\u2028\ud800"
    event = JobEvent(job_id="j", seq=1, state=JobState.RUNNING, progress=Progress(), error=said)
    lines = _write(event).decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["id", "event", "data", ""]
    assert json.loads(lines[2].removeprefix("data: "))["error"] == said


REFLECTED = (
    "/search?q={}",
    "/measure?claim={}&model={}&K={}",
    "/episodes/new?claim={}",
    "/policy?url={}",
    "/policy?url=javascript:{}",
    "/policy?name={}",
    "/compare?ref={}",
    "/compare?drift={}",
    "/claims?text={}",
    "/ledger?account={}&episode={}&group={}",
    "/sign-in?next={}",
    "/jobs?before={}",
    "/episodes?state={}",
    "/runs/{}",
    "/jobs/{}",
    "/bundles/{}",
    "/episodes/{}",
    "/static/{}",
    "/{}",
)


@pytest.mark.parametrize("path", REFLECTED)
def test_markup_in_an_address_runs_nowhere(nest, path):
    """Searches, filters and wrong addresses come back as text, on error pages, too."""
    from urllib.parse import quote

    for text in (SCRIPT, BREAKOUT, LABEL):
        for site in (nest.signed_in(NAME), nest.another()):
            address = path.replace("{}", quote(text[:90], safe=""))
            answer = site.get(address, follow_redirects=True)
            assert answer.status_code < 500
            assert injected(answer.text) == [], address


def test_markup_in_forms_comes_back_as_text(nest):
    """A form that is shown again holds what was typed, and a new token's label is a label."""
    visitor = nest.signed_in(NAME)
    for path, fields in (
        ("/measure", {"claims": CLAIM, "models": MODEL, "K": SCRIPT, "doc_title": BREAKOUT}),
        ("/measure/start", {"request": json.dumps({SCRIPT: 1}), "key": "k" * 10}),
        ("/episodes/new", {"claim": CLAIM, "K": SCRIPT, "models": MODEL, "key": "k" * 10}),
        ("/account/tokens", {"label": LABEL}),
        ("/account/tokens", {"label": "x", "role": SCRIPT}),
        ("/profile/credit", {"claim": CLAIM, "model": MODEL}),
    ):
        answer = visitor.post(path, fields)
        assert answer.status_code < 500, path
        assert injected(answer.text) == [], path
    assert "alert(7)" in visitor.get("/account").text
    assert injected(visitor.get("/account").text) == []
