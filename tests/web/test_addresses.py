"""Addresses as the web has them: HEAD, methods that are allowed, and slashes at the end."""

import re

import httpx2
import pytest
from website import run_of

from heretix.accounts import LOCAL
from heretix.jobs import MeasureRequest

REQUEST = MeasureRequest.parse({"claims": ["Tea is good."], "models": ["mock:a"]})
PAGES = ("/", "/jobs", "/measure", "/method", "/episodes", "/ledger", "/search?q=tea", "/nowhere")
OWN = {"date", "set-cookie", "transfer-encoding"}
"""What differs between any two answers, or depends on how a body is sent."""


def alike(site, path, **options):
    """The answers to HEAD and GET, which must have the same head."""
    headers = {"x-request-id": "alike", **options.pop("headers", {})}
    head = site.client.request("HEAD", path, headers=headers, **options)
    got = site.get(path, headers=headers, **options)
    assert head.status_code == got.status_code, path
    assert head.content == b""
    kept = [
        {name: value for name, value in answer.headers.items() if name not in OWN}
        for answer in (head, got)
    ]
    assert kept[0] == kept[1], path
    return head


@pytest.mark.parametrize("path", PAGES)
def test_a_page_answers_head_as_get(measured_site, path):
    """The same status and the same headers, the length included; no body."""
    head = alike(measured_site, path)
    assert int(head.headers["content-length"]) > 0


def test_records_and_files_answer_head_as_get(measured_site):
    """With the ETag, and with 304 for who has them."""
    run = run_of(measured_site)
    record = f"/api/v1/executions/{run.execution_id}"
    head = alike(measured_site, record)
    assert head.headers["etag"] == f'"{run.execution_id}"'
    assert int(head.headers["content-length"]) > 1_000
    same = alike(measured_site, record, headers={"if-none-match": head.headers["etag"]})
    assert same.status_code == 304
    page = alike(measured_site, f"/runs/{run.execution_id}")
    assert page.status_code == 200
    styles = re.findall(r'href="(/static/[^"]+\.css[^"]*)"', measured_site.get("/").text)
    assert styles
    for style in styles:
        assert alike(measured_site, style).headers["content-type"].startswith("text/css")
    for path in ("/api/v1/runs", "/api/v1/openapi.json", "/api/v1/executions/nothing"):
        alike(measured_site, path)
    export = alike(measured_site, "/api/v1/export/samples.jsonl")
    assert export.headers["content-type"].startswith("application/")


def test_head_of_a_stream_ends_at_once(site):
    """Nobody waits for a body that never comes, and no stream is left open."""
    job = site.state.jobs.submit(LOCAL, REQUEST)
    for prefix in ("", "/api/v1"):
        head = site.client.request("HEAD", f"{prefix}/jobs/{job.id}/events")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
    assert site.state.jobs.get(job.id, by=LOCAL).state.value == "queued"


def test_head_writes_nothing_and_needs_who_get_needs(accounts_site):
    """It is as safe as GET, and as closed."""
    nobody = accounts_site.client.request("HEAD", "/jobs")
    assert (nobody.status_code, nobody.headers["location"]) == (303, "/sign-in?next=%2Fjobs")
    assert accounts_site.client.request("HEAD", "/api/v1/jobs").status_code == 401
    alice = accounts_site.signed_in("alice")
    refused = alice.client.request("HEAD", "/jobs/job-1/cancel")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/api/v1/jobs", "DELETE", "GET, HEAD, POST"),
        ("/api/v1/episodes", "PUT", "GET, HEAD, POST"),
        ("/api/v1/jobs/job-1", "POST", "GET, HEAD"),
        ("/api/v1/jobs/job-1/cancel", "GET", "POST"),
        ("/episodes/new", "PATCH", "GET, HEAD, POST"),
        ("/static/site.css", "POST", "GET, HEAD"),
        ("/jobs", "OPTIONS", "GET, HEAD"),
    ],
)
def test_a_refused_method_is_told_all_that_are_allowed(site, path, method, allowed):
    """Each may have a route of its own; the answer names every one."""
    answer = site.another().client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "evil.example/x?"])
@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/sign-in/", "/sign-in"),
        ("/episodes///", "/episodes"),
        ("/search/?q=a%20b&x=//evil.example", "/search?q=a%20b&x=//evil.example"),
        ("/api/v1/runs/", "/api/v1/runs"),
        ("/runs/a%3Fb%0d%0aset-cookie:x/", "/runs/a%3Fb%0D%0Aset-cookie%3Ax"),
    ],
)
def test_a_slash_too_many_leads_to_this_server_whatever_the_host(
    accounts_site, host, path, location
):
    """The way on names no host, so none that was forged."""
    answer = accounts_site.get(path, headers={"host": host})
    assert (answer.status_code, answer.headers["location"]) == (307, location)
    assert "evil.example" not in answer.headers["location"].partition("?")[0]


@pytest.mark.parametrize(
    "path", ["//evil.example/", "//evil.example/jobs/", "/\\evil.example/", "///", "/nowhere/"]
)
def test_a_slash_leads_to_no_other_host(accounts_site, path):
    """What begins like a host isn't led to, and what isn't there isn't found."""
    url = httpx2.URL(accounts_site.url).copy_with(raw_path=path.encode())
    answer = accounts_site.client.get(url, headers={"host": "evil.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_links_with_a_slash_too_many_work(site):
    """For pages and programs, and writes keep their body."""
    followed = site.get("/jobs/?before=x", follow_redirects=True)
    assert (followed.status_code, str(followed.url)) == (200, f"{site.url}/jobs?before=x")
    plan = site.another().client.post(
        "/api/v1/plan/", json={"claims": ["A b c."], "models": ["mock:a"]}, follow_redirects=True
    )
    assert plan.status_code == 200
