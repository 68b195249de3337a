"""Searches: what is asked of each service, what is made of its answers, and of its failures."""

import asyncio
import json
from collections.abc import Callable
from datetime import date

import pytest
from aiohttp import web
from localsite import Site

from heretix.core.errors import (
    CallTimeoutError,
    ConfigError,
    ConnectionFailedError,
    MissingKeyError,
    RateLimitedError,
    RecordError,
    RejectedError,
    ServerError,
)
from heretix.evidence.demo import demo_claims, demo_documents
from heretix.evidence.policy.publisher import is_within, read_domains
from heretix.evidence.search import SERVICES, Hit, narrow, service_from_env
from heretix.evidence.search.services import (
    BraveSearch,
    ExaSearch,
    Question,
    Retry,
    SearxngSearch,
    TavilySearch,
    add_site_operators,
)
from heretix.evidence.search.wrappers import FullTextSearch, RecordingSearch, ReplaySearch
from heretix.evidence.sources.corpus import Corpus, LocalSearch
from heretix.evidence.sources.fetch import Fetcher, FetchOptions

KEY = "secret-key-1234567890"
AS_OF = date(2024, 3, 31)
AT_ONCE = Retry(attempts=3, wait_initial_s=0.0, wait_max_s=0.0)

TAVILY = {
    "query": "q",
    "answer": None,
    "images": [],
    "results": [
        {
            "title": "A page",
            "url": "https://a.example/1",
            "content": "A snippet.",
            "score": 0.97,
            "raw_content": "The whole text.",
            "published_date": "Tue, 11 Feb 2020 13:08:00 GMT",
        },
        {"title": "No text", "url": "https://b.example/2", "content": "Other.", "score": 0.5},
    ],
    "response_time": 1.2,
    "request_id": "r",
}
EXA = {
    "requestId": "r",
    "resolvedSearchType": "neural",
    "results": [
        {
            "id": "https://a.example/1",
            "title": "A page",
            "url": "https://a.example/1",
            "publishedDate": "2020-02-11T13:08:00.000Z",
            "author": "A. Demo",
            "score": 0.4,
            "text": "The whole text.",
        },
        {"id": "x", "title": None, "url": "https://b.example/2", "publishedDate": None},
    ],
}
BRAVE = {
    "type": "search",
    "query": {"original": "q", "more_results_available": False},
    "web": {
        "type": "search",
        "results": [
            {
                "title": "A <strong>page</strong> &amp; more",
                "url": "https://a.example/1",
                "description": "A snippet.",
                "page_age": "2020-02-11T13:08:00",
                "extra_snippets": ["Another."],
            },
            {"title": "B", "url": "https://b.example/2", "age": "3 days ago"},
        ],
    },
}
SEARXNG = {
    "query": "q",
    "number_of_results": 2,
    "results": [
        {
            "title": "A page",
            "url": "https://a.example/1",
            "content": "A snippet.",
            "score": 4.0,
            "publishedDate": "2020-02-11T13:08:00",
            "engine": "x",
        },
        {"title": "B", "url": "https://b.example/2", "content": "", "publishedDate": None},
    ],
    "answers": [],
    "unresponsive_engines": [],
}
PATHS = {
    "tavily": "/search",
    "exa": "/search",
    "brave": "/res/v1/web/search",
    "searxng": "/search",
}
ANSWERS = {"tavily": TAVILY, "exa": EXA, "brave": BRAVE, "searxng": SEARXNG}
ALL = sorted(SERVICES.builtin)


@pytest.fixture
def site():
    with Site() as running:
        yield running


def made(name: str, site: Site, **options):
    """The adapter, led to the local site, without waits."""
    options = {"min_interval_s": 0.0, "retry": AT_ONCE, **options}
    match name:
        case "tavily":
            return TavilySearch(KEY, base_url=site.url(""), **options)
        case "exa":
            return ExaSearch(KEY, base_url=site.url(""), **options)
        case "brave":
            return BraveSearch(KEY, base_url=site.url("/res/v1"), **options)
    return SearxngSearch(base_url=site.url(""), **options)


def answers(site: Site, name: str, *bodies: object) -> None:
    """One body after the other; the last one stays. A callable makes a response of its own."""
    left = list(bodies)

    async def answer(site: Site, request: web.Request) -> web.Response:
        body = left.pop(0) if len(left) > 1 else left[0]
        return body() if isinstance(body, Callable) else web.json_response(body)

    site.handle(PATHS[name], answer)


def failing(status: int, body: object = None, **headers: str) -> Callable[[], web.Response]:
    told = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda: web.json_response(body or {"error": "as ordered"}, status=status, headers=told)


async def asked(search, k: int = 5, **filters) -> list[Hit]:
    try:
        return await search.search("walls from afar", k, **filters)
    finally:
        await search.aclose()


@pytest.mark.parametrize("name", ALL)
async def test_answers_become_hits(site, name):
    """Address, title, snippet and date, and no more than the service said."""
    answers(site, name, ANSWERS[name])
    one, two = await asked(made(name, site))
    assert (one.url, one.published) == ("https://a.example/1", date(2020, 2, 11))
    assert one.title == {"brave": "A page & more"}.get(name, "A page")
    assert one.snippet.startswith({"exa": "The whole"}.get(name, "A snippet."))
    assert (two.url, two.published, two.document) == ("https://b.example/2", None, None)


@pytest.mark.parametrize("name", ["tavily", "exa"])
async def test_text_comes_as_a_document(site, name):
    """Where the service has the page's text, nothing needs to be fetched."""
    answers(site, name, ANSWERS[name])
    one, _ = await asked(made(name, site))
    assert one.document.text == "The whole text."
    assert one.document.url == "https://a.example/1"
    assert one.document.published_method == "search"
    assert one.document.meta == {"text_by": name}
    assert one.document.author == ("A. Demo" if name == "exa" else None)


async def test_tavily_is_asked_as_it_documents(site):
    """The key in the header, the filters in the body."""
    answers(site, "tavily", TAVILY)
    await asked(made("tavily", site), 50, as_of=AS_OF, include=["a.example"], exclude=["c.example"])
    (call,) = site.calls
    assert (call.method, call.headers["authorization"]) == ("POST", f"Bearer {KEY}")
    assert json.loads(call.body) == {
        "query": "walls from afar",
        "topic": "general",
        "search_depth": "basic",
        "max_results": 20,
        "include_answer": False,
        "include_images": False,
        "include_raw_content": "text",
        "end_date": "2024-03-31",
        "include_domains": ["a.example"],
        "exclude_domains": ["c.example"],
    }


async def test_exa_is_asked_as_it_documents(site):
    """The key in the header, contents nested, the day's end as the limit."""
    answers(site, "exa", EXA)
    await asked(made("exa", site), 500, as_of=AS_OF, include=["a.example"], exclude=["c.example"])
    (call,) = site.calls
    assert (call.method, call.headers["x-api-key"]) == ("POST", KEY)
    assert json.loads(call.body) == {
        "query": "walls from afar",
        "type": "auto",
        "numResults": 100,
        "contents": {"text": {"maxCharacters": 20_000}},
        "endPublishedDate": "2024-03-31T23:59:59.999Z",
        "includeDomains": ["a.example"],
        "excludeDomains": ["c.example"],
    }


async def test_brave_is_asked_as_it_documents(site):
    """The key in the header, a range of dates, and domains as operators of the query."""
    answers(site, "brave", BRAVE)
    await asked(made("brave", site), 50, as_of=AS_OF, include=["a.example"], exclude=["c.example"])
    (call,) = site.calls
    assert (call.method, call.headers["x-subscription-token"]) == ("GET", KEY)
    assert call.query == {
        "q": "walls from afar site:a.example -site:c.example",
        "count": "20",
        "offset": "0",
        "result_filter": "web",
        "text_decorations": "false",
        "freshness": "1970-01-01to2024-03-31",
    }


async def test_searxng_is_asked_as_it_documents(site):
    """JSON, page by page, without a key."""
    answers(site, "searxng", SEARXNG, {"results": []})
    await asked(made("searxng", site), 50, as_of=AS_OF, exclude=["c.example"])
    assert [call.query for call in site.calls] == [
        {"q": "walls from afar -site:c.example", "format": "json", "pageno": page}
        for page in ("1", "2")
    ]


@pytest.mark.parametrize("name", ALL)
async def test_services_that_ignore_filters_are_filtered(site, name):
    """Hits after `as_of`, outside of `include` or inside of `exclude` don't get through."""
    answers(site, name, ANSWERS[name])
    early = await asked(made(name, site), as_of=date(2019, 1, 1))
    assert [hit.url for hit in early] == ["https://b.example/2"]
    answers(site, name, ANSWERS[name])
    only = await asked(made(name, site), include=["A.example."])
    assert [hit.url for hit in only] == ["https://a.example/1"]
    answers(site, name, ANSWERS[name])
    others = await asked(made(name, site), exclude=["a.example"])
    assert [hit.url for hit in others] == ["https://b.example/2"]
    answers(site, name, ANSWERS[name])
    assert len(await asked(made(name, site), 1)) == 1


async def test_brave_gives_further_pages(site):
    """Pages are asked for until there are enough hits, or no more."""

    def page(*names: str, more: bool) -> dict:
        results = [{"title": n, "url": f"https://{n}.example/"} for n in names]
        query = {"more_results_available": more}
        return {"type": "search", "query": query, "web": {"results": results}}

    answers(
        site, "brave", page("a", "b", more=True), page("b", "c", more=True), page("d", more=False)
    )
    hits = await asked(made("brave", site), 50)
    assert [hit.title for hit in hits] == ["a", "b", "c", "d"]
    assert [call.query["offset"] for call in site.calls] == ["0", "1", "2"]


async def test_searxng_stops_when_pages_repeat(site):
    """Engines that know no pages don't keep us asking."""
    answers(site, "searxng", SEARXNG)
    assert len(await asked(made("searxng", site), 50)) == 2
    assert len(site.calls) == 2


async def test_brave_may_find_nothing(site):
    """An answer without results is an answer."""
    answers(site, "brave", {"type": "search", "query": {"original": "q"}})
    assert await asked(made("brave", site)) == []


@pytest.mark.parametrize("name", ALL)
async def test_patience_is_rewarded(site, name):
    """429 with a wait, then 500, then the answer: three calls and the hits."""
    answers(site, name, failing(429, Retry_After="0"), failing(500), ANSWERS[name], {"results": []})
    assert len(await asked(made(name, site), 2)) == 2
    assert len(site.calls) == 3


@pytest.mark.parametrize("name", ALL)
async def test_patience_has_an_end(site, name):
    """After a few tries the failure is told, with its status."""
    answers(site, name, failing(503))
    with pytest.raises(ServerError) as caught:
        await asked(made(name, site))
    assert caught.value.status == 503
    assert len(site.calls) == 3


@pytest.mark.parametrize("name", ALL)
async def test_long_waits_are_not_waited_for(site, name):
    """A service that asks for an hour is not asked again."""
    answers(site, name, failing(429, Retry_After="3600"))
    with pytest.raises(RateLimitedError) as caught:
        await asked(made(name, site))
    assert caught.value.retry_after_s == 3600
    assert len(site.calls) == 1


@pytest.mark.parametrize(
    ("remaining", "reset", "wait_s", "calls"),
    [("0, 1000", "0, 1419704", 0, 3), ("1, 0", "1, 1419704", 1419704, 1), ("", "0", 0, 3)],
)
async def test_braves_quotas_are_understood(site, remaining, reset, wait_s, calls):
    """The window that is used up says how long to wait: a second, or a month."""
    refused = failing(429, X_RateLimit_Remaining=remaining, X_RateLimit_Reset=reset)
    answers(site, "brave", refused)
    with pytest.raises(RateLimitedError) as caught:
        await asked(made("brave", site))
    assert caught.value.retry_after_s == wait_s
    assert len(site.calls) == calls


@pytest.mark.parametrize("name", ["tavily", "exa", "brave"])
async def test_a_wrong_key_names_its_variable(site, name):
    """No second try, and the key is in no message."""
    answers(site, name, failing(401, {"error": f"bad key {KEY}"}))
    with pytest.raises(RejectedError, match=f"{name.upper()}_API_KEY") as caught:
        await asked(made(name, site))
    assert KEY not in str(caught.value)
    assert len(site.calls) == 1


async def test_braves_way_to_refuse_a_key_is_known(site):
    """It comes as 422, as a wrong parameter would."""
    error = {"code": "SUBSCRIPTION_TOKEN_INVALID", "detail": "…", "status": 422}
    answers(site, "brave", failing(422, {"type": "ErrorResponse", "error": error}))
    with pytest.raises(RejectedError, match="check BRAVE_API_KEY"):
        await asked(made("brave", site))


async def test_a_searxng_without_json_says_what_to_set(site):
    """Most public instances have it off."""
    answers(site, "searxng", lambda: web.Response(status=403, text="Forbidden"))
    with pytest.raises(RejectedError, match=r"`search\.formats`"):
        await asked(made("searxng", site))


@pytest.mark.parametrize("name", ALL)
async def test_a_silent_service_is_given_up(site, name):
    """No answer in time is told as such."""
    site.silence(PATHS[name])
    search = made(name, site, timeout_s=0.05, retry=Retry(attempts=1))
    with pytest.raises(CallTimeoutError, match=r"within 0\.05 s"):
        await asked(search)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "body",
    [
        lambda: web.Response(text="<html>Bad gateway</html>", content_type="text/html"),
        {"unexpected": True},
        {"results": "none"},
    ],
)
async def test_nonsense_is_an_error_and_not_an_empty_answer(site, name, body):
    """What isn't of the service's form is never read as «nothing found»."""
    answers(site, name, body)
    with pytest.raises(ServerError):
        await asked(made(name, site, retry=Retry(attempts=1)))


@pytest.mark.parametrize("name", ALL)
async def test_keys_do_not_travel(site, name):
    """A redirect is refused: it would carry the key elsewhere."""
    site.redirect(PATHS[name], site.url("/elsewhere"))
    with pytest.raises(RejectedError, match="redirects aren't followed"):
        await asked(made(name, site))
    assert len(site.calls) == 1


async def test_results_without_an_address_are_left_out(site):
    """So are addresses that no browser would open; odd scores and titles are none."""
    results = [
        {"title": "a"},
        {"url": None},
        {"url": "javascript:alert(1)"},
        "a string",
        {"url": "https://a.example/1", "title": ["x"], "score": True, "raw_content": "\ud800 text"},
    ]
    answers(site, "tavily", {"results": results})
    (hit,) = await asked(made("tavily", site))
    assert (hit.title, hit.score, hit.document.text) == ("https://a.example/1", None, "\ufffd text")


async def test_nobody_there_is_told():
    """A closed port is a failed connection, after the tries."""
    search = SearxngSearch(base_url="http://127.0.0.1:9", min_interval_s=0.0, retry=AT_ONCE)
    with pytest.raises(ConnectionFailedError):
        await asked(search)


@pytest.mark.parametrize(
    ("name", "variable"),
    [("tavily", "TAVILY_API_KEY"), ("brave", "BRAVE_API_KEY"), ("exa", "EXA_API_KEY"),
     ("searxng", "SEARXNG_URL")],
)  # fmt: skip
def test_a_missing_key_is_told_in_one_line(name, variable):
    """Which service, which variable, what to do."""
    for env in ({}, {variable: "  "}):
        with pytest.raises(MissingKeyError, match=f"`{name}` needs {variable}") as caught:
            service_from_env(name, env)
        assert "\n" not in str(caught.value)
    assert service_from_env(name, {variable: "http://localhost:1"}).name == name


def test_unknown_services_are_named_with_the_known_ones():
    """The message lists what there is."""
    with pytest.raises(ConfigError, match="`brave`, `exa`, `searxng`, `tavily`, got 'goggle'"):
        service_from_env("goggle", {})


def sited(query, include=(), exclude=()):
    asked = Question(query, 5, None, tuple(include), tuple(exclude))
    return add_site_operators(asked, max_chars=400, max_words=50)


def test_sites_fit_into_a_query_or_are_left_out():
    """Operators are added while they fit; half a list of wanted sites would be wrong."""
    many = [f"site{n}.example" for n in range(50)]
    assert sited("q", many, ["x.example"]) == "q -site:x.example"
    both = sited("q", ["a.example", "b.example"])
    assert both == "q site:a.example OR site:b.example"
    assert sited("word " * 100) == "word " * 49 + "word"
    nested = sited("q", [], ["a.example", "www.a.example"])
    assert nested == "q -site:a.example"


def test_domains_have_one_spelling():
    """Capitals, stars and dots at the ends don't matter; what isn't a domain is refused."""
    assert read_domains(["Example.ORG", "*.example.org", "münchen.example"]) == (
        "example.org",
        "xn--mnchen-3ya.example",
    )
    assert is_within("www.example.org", "example.org")
    assert not is_within("notexample.org", "example.org")
    with pytest.raises(ConfigError):
        read_domains(["https://a.example/"])


def test_an_address_is_a_hit_once():
    """The first of several hits at one address stays."""
    twice = [Hit(url="https://a.example/", title=t, snippet="", published=None, score=None)
             for t in ("first", "second")]  # fmt: skip
    (kept,) = narrow(twice, k=5, as_of=None, include=(), exclude=())
    assert kept.title == "first"


@pytest.fixture
def demo(tmp_path):
    with Corpus.open(tmp_path / "demo.sqlite") as corpus:
        corpus.add(demo_documents())
        yield corpus


async def test_the_local_corpus_is_a_search(demo):
    """Searches may run side by side; every hit has its document."""
    search = LocalSearch(demo)
    found = await asyncio.gather(*(search.search(claim, 5) for claim in demo_claims()))
    assert search.name == "local:demo"
    added = {document.doc_id: document for document in demo_documents()}
    for hits, claim in zip(found, demo_claims(), strict=True):
        assert hits == demo.search(claim, 5)
        assert all(added[hit.document.doc_id] == hit.document for hit in hits)


async def test_an_empty_corpus_gives_no_hits(tmp_path):
    """Nothing is put in place of what isn't there."""
    with Corpus.open(tmp_path / "empty.sqlite") as corpus:
        assert await LocalSearch(corpus).search("anything", 5) == []


async def test_what_was_recorded_is_replayed(demo, tmp_path):
    """The same hits, to the last field, without the corpus."""
    recording = RecordingSearch(LocalSearch(demo), tmp_path / "tape")
    filters = {"as_of": AS_OF, "include": ["b.example", "public-health.example"]}
    said = {claim: await recording.search(claim, 5) for claim in demo_claims()}
    narrowed = await recording.search(demo_claims()[0], 5, **filters)
    demo.close()
    replay = ReplaySearch(tmp_path / "tape", "local:demo")
    for claim, hits in said.items():
        assert await replay.search(claim, 5) == hits
    filters["include"] = ["public-health.example.", "B.example"]
    assert await replay.search(demo_claims()[0], 5, **filters) == narrowed


async def test_what_was_not_recorded_is_not_answered(demo, tmp_path):
    """Another query, number, date, filter or search is another question."""
    await RecordingSearch(LocalSearch(demo), tmp_path / "tape").search("walls", 5)
    replay = ReplaySearch(tmp_path / "tape", "local:demo")
    others = [("wall", 5, {}), ("walls", 6, {}), ("walls", 5, {"as_of": AS_OF}),
              ("walls", 5, {"include": ["a.example"]})]  # fmt: skip
    for query, k, filters in others:
        with pytest.raises(RecordError, match="must be among the recorded searches"):
            await replay.search(query, k, **filters)
    with pytest.raises(RecordError, match="recorded searches of brave"):
        await ReplaySearch(tmp_path / "tape", "brave").search("walls", 5)
    with pytest.raises(RecordError, match="record it once"):
        await ReplaySearch(tmp_path / "nowhere", "local:demo").search("walls", 5)


async def test_a_changed_record_is_refused(demo, tmp_path):
    """Its hash tells; so do damage and foreign files."""
    await RecordingSearch(LocalSearch(demo), tmp_path / "tape").search("walls", 5)
    (path,) = (tmp_path / "tape").iterdir()
    replay = ReplaySearch(tmp_path / "tape", "local:demo")
    whole = path.read_text()
    path.write_text(whole.replace("Great Wall", "Great Fall"))
    with pytest.raises(RecordError, match="was changed since"):
        await replay.search("walls", 5)
    for damaged in ("", whole[:-20], "[]", '{"schema": 1}'):
        path.write_text(damaged)
        with pytest.raises(RecordError, match="can't be read"):
            await replay.search("walls", 5)
    path.write_text(whole)
    assert await replay.search("walls", 5)


async def test_recording_again_replaces_the_record(site, tmp_path):
    """The latest answer counts, and no half-written file is left."""
    answers(site, "tavily", TAVILY, {"results": []})
    search = RecordingSearch(made("tavily", site), tmp_path)
    assert len(await search.search("walls", 5)) == 2
    assert await search.search("walls", 5) == []
    await search.aclose()
    assert await ReplaySearch(tmp_path, "tavily").search("walls", 5) == []
    assert len(list(tmp_path.iterdir())) == 1


class Fixed:
    """A search that always finds the same."""

    name = "fixed"

    def __init__(self, *hits: Hit) -> None:
        self._hits = list(hits)

    async def search(self, query, k, as_of=None, include=(), exclude=()):
        return self._hits[:k]

    async def aclose(self) -> None: ...


def snippet_hit(url: str, published: date | None = None) -> Hit:
    return Hit(url=url, title="T", snippet="S", published=published, score=None)


SENTENCES = "Some words make a sentence that is kept. " * 10
DATED = '<meta property="article:published_time" content="2025-03-04">'


async def test_full_text_is_fetched_for_snippets(site, tmp_path):
    """Pages become documents; the service's date fills in for a page without one."""
    site.page("/a", f"<html><body><p>{SENTENCES}</p></body></html>")
    site.page("/new", f"<html><head>{DATED}</head><body><p>{SENTENCES}</p></body></html>")
    hits = [
        snippet_hit(site.url("/a"), date(2020, 2, 11)),
        snippet_hit(site.url("/missing")),
        snippet_hit(site.url("/new")),
    ]
    fetcher = Fetcher(FetchOptions(allow_private=True, host_delay_s=0.0))
    search = RecordingSearch(FullTextSearch(Fixed(*hits), fetcher), tmp_path)
    one, missing = await search.search("q", 5, as_of=AS_OF)
    await search.aclose()
    assert one.document.text.startswith("Some words")
    assert (one.document.published, one.document.published_method) == (date(2020, 2, 11), "search")
    assert (missing.url, missing.document) == (site.url("/missing"), None)
    assert await ReplaySearch(tmp_path, "fixed").search("q", 5, as_of=AS_OF) == [one, missing]
