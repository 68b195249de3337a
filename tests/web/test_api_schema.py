"""The API against its own description: whatever is sent, the answer is one that it documents."""

import os

import hypothesis
import pytest
import requests
import schemathesis
from apiserver import served
from fastapi import FastAPI
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from heretix.core.validation import PATTERNS
from heretix.store.runs import select_runs
from heretix.web.api import describe, router

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# `long` is five times what CI gives each operation.
EXAMPLES = {"quick": 2, "ci": 8, "long": 40}[os.environ.get("HERETIX_HYPOTHESIS", "quick")]


def _document():
    app = FastAPI()
    app.include_router(router)
    describe(app)
    return app.openapi()


SCHEMA = schemathesis.openapi.from_dict(_document())
# A text that is longer than its schema allows may be more than a body or an address may have. Any
# refusal will do; that it is one of the operation's own is checked besides.
SCHEMA.config.checks.negative_data_rejection.expected_statuses = ["4xx"]
OPERATIONS = {
    found.ok().definition.raw["operationId"]: found.ok() for found in SCHEMA.get_all_operations()
}


@pytest.fixture(scope="module")
def api(tmp_path_factory, sqlite_template):
    """A server with accounts and some measurements, and a session of its operator's."""
    folder = tmp_path_factory.mktemp("schema")
    with served(folder, sqlite_template, accounts=True) as site, requests.Session() as session:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {site.tokens['root']}"
        yield site, session


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_whatever_is_sent_the_answer_is_documented(api, name, mode):
    """No server error; what doesn't fit the schema is refused with a problem document."""
    site, session = api
    operation = OPERATIONS[name]
    checks = [*CHECKS, negative_data_rejection]

    @hypothesis.settings(
        max_examples=EXAMPLES,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        response = case.call(base_url=site.url, session=session, timeout=120)
        case.validate_response(response, checks=checks)
        if response.status_code >= 400:
            assert response.json()["detail"]
            assert response.headers["content-type"][0].startswith("application/problem+json")

    send()


def test_things_that_exist_are_answered_as_described(api):
    """Every read of something that is there is 200, with the content that its schema says."""
    site, session = api
    run = site.store.read(select_runs, limit=1)[0]
    refs = {"ref": run.run_id, "table": "runs", "ending": "jsonl"}
    job = site.post("/jobs", {"claims": ["A b c."]}, "root", key="schema").json()
    site.post(f"/jobs/{job['id']}/cancel", None, "root", key="schema").raise_for_status()
    begun = site.post("/episodes", {"claim": "A b c."}, "root", key="schema")
    episode = site.outcome(begun, "root").json()
    refs |= {"job_id": job["id"], "episode_id": episode["id"], "name": "alice"}
    query = {
        "compare_runs": {"a": run.run_id, "b": run.execution_id},
        "quote_stake": {"side": "heretic", "amount": 100},
        "explain_source": {"url": "https://example.org/a"},
    }
    seen = []
    for name, operation in sorted(OPERATIONS.items()):
        if operation.method != "get" or "bundle" in name:
            continue
        wanted = [p.name for p in operation.path_parameters]
        case = operation.Case(
            path_parameters={part: refs[part] for part in wanted}, query=query.get(name, {})
        )
        response = case.call(base_url=site.url, session=session, timeout=120)
        assert response.status_code == 200, (name, response.text)
        case.validate_response(response, checks=CHECKS)
        seen.append(name)
    assert len(seen) > 20


def test_operations_have_stable_names_and_document_their_refusals():
    """Clients are made from the document: names, tags, security and problems are all there."""
    document = _document()
    problem = {"$ref": "#/components/schemas/Problem"}
    tags = {tag["name"] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["operationId"].isidentifier(), path
            assert operation["description"], path
            assert len(operation["tags"]) == 1, path
            assert set(operation["tags"]) <= tags, path
            refused = {status for status in operation["responses"] if status >= "400"}
            assert refused >= {"400", "401", "421", "422", "429"}, path
            # What only writes, or only those that name something that may not be there, come to.
            assert refused.issuperset({"403", "408", "409", "413", "415"}) == (method == "post")
            names = "{" in path or path.endswith(("/compare", "/credits", "/verify"))
            names = names or (method == "post" and path.endswith("/episodes"))
            assert ("404" in refused) == names
            for status in refused:
                content = operation["responses"][status]["content"]
                assert content == {"application/problem+json": {"schema": problem}}, path
            keys = [p["name"] for p in operation.get("parameters", []) if p["in"] == "header"]
            if method == "post" and path != "/api/v1/plan":
                assert "Idempotency-Key" in keys, path
    assert set(document["components"]["securitySchemes"]) == {"token", "session"}
    assert document["security"] == [{"token": []}, {"session": []}]
    assert [server["url"] for server in document["servers"]] == ["/"]


def test_operations_dont_all_refuse_alike():
    """Each documents its own: a client is told what it may meet there."""
    kinds = {
        frozenset(status for status in operation["responses"] if status >= "400")
        for methods in _document()["paths"].values()
        for operation in methods.values()
    }
    assert len(kinds) >= 5


def test_no_rule_of_the_api_is_told_as_a_pattern():
    """Each pattern that a request must match has words."""

    def patterns(value):
        if isinstance(value, dict):
            yield from [value["pattern"]] if isinstance(value.get("pattern"), str) else ()
            value = list(value.values())
        for part in value if isinstance(value, list) else ():
            yield from patterns(part)

    document = _document()
    asked = [
        operation.get(part, [])
        for methods in document["paths"].values()
        for operation in methods.values()
        for part in ("parameters", "requestBody")
    ]
    found = set(patterns(asked)) | set(patterns(document["components"]["schemas"]))
    assert len(found) >= 6
    assert found <= PATTERNS.keys()


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("GET", "/runs?limit=0", None, "`limit` must be at least 1, got '0'"),
        ("GET", "/runs?limit=x", None, "`limit` must be a whole number, got 'x'"),
        ("GET", "/runs?limt=3", None, "unknown parameter `limt` (did you mean `limit`?)"),
        ("GET", "/runs?lens=XEL", None, "`SEL`, got 'XEL' (did you mean `SEL`?)"),
        ("GET", "/executions/%20", None, "`ref` must be letters, digits, `_` and `-`, got ' '"),
        ("GET", "/compare?a=x", None, "`b` is missing"),
        ("POST", "/plan", {"claims": ["A b."], "k": 4}, "unknown key `k` (did you mean `K`?)"),
        ("POST", "/plan", {"claims": "A b."}, "`claims` must be a list, got 'A b.'"),
        ("POST", "/plan", {"claims": ["A b."], "K": 65}, "`K` must be at most 64, got 65"),
        ("POST", "/plan", [], "`body` must be an object, got []"),
        ("POST", "/plan", None, "`body` is missing"),
        ("POST", "/plan", "{", "the body isn't JSON: "),
        ("POST", "/plan", "[" * 100_000, "the body isn't JSON in UTF-8 that can be read here: "),
        ("POST", "/plan", f'{{"K": {"9" * 5_000}}}', "a number of too many digits"),
        ("DELETE", "/runs", None, "`DELETE` isn't taken at this address; it takes GET, HEAD"),
    ],
)
def test_what_is_wrong_is_told_in_our_words(api, method, path, body, said):
    """The place, the rule, the value got, and the nearest name that there is."""
    site, session = api
    raw = {"data": body} if isinstance(body, str) else {"json": body}
    headers = {"Content-Type": "application/json"}
    answer = session.request(method, f"{site.url}/api/v1{path}", headers=headers, **raw)
    assert answer.status_code in {400, 405, 422}
    assert said in answer.json()["detail"]


def test_a_body_of_another_kind_is_told_of_json(api):
    """It isn't shown back as the bytes that it is."""
    site, session = api
    sent = session.post(
        f"{site.url}/api/v1/plan", data="{}", headers={"Content-Type": "text/plain"}
    )
    assert sent.status_code == 422
    assert "must be JSON, sent with `Content-Type: application/json`" in sent.json()["detail"]
