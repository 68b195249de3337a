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

from heretix.store.runs import select_runs
from heretix.web.api import describe, router
from heretix.web.problems import REFUSALS

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 4 if os.environ.get("HERETIX_HYPOTHESIS", "quick") == "quick" else 8


def _document():
    app = FastAPI()
    app.include_router(router)
    describe(app)
    return app.openapi()


SCHEMA = schemathesis.openapi.from_dict(_document())
# A text that is longer than its schema allows may be more than a body or an address may have. Any
# refusal that is documented is one.
SCHEMA.config.checks.negative_data_rejection.expected_statuses = [
    str(status) for status in REFUSALS if 400 <= int(status) < 500
]
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
        derandomize=True,
        database=None,
        deadline=None,
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
    refs |= {"job_id": job["id"], "episode_id": episode["id"]}
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
            for status in ("401", "403", "404", "422", "429"):
                content = operation["responses"][status]["content"]
                assert content == {"application/problem+json": {"schema": problem}}, path
            keys = [p["name"] for p in operation.get("parameters", []) if p["in"] == "header"]
            if method == "post" and path != "/api/v1/plan":
                assert "Idempotency-Key" in keys, path
    assert set(document["components"]["securitySchemes"]) == {"token", "session"}
    assert document["security"] == [{"token": []}, {"session": []}]
