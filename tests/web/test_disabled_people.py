"""A person who is disabled: out at once, their jobs stopped, and the reason where one looks."""

import pytest
from typer.testing import CliRunner
from website import Site

from heretix.cli.app import app
from heretix.jobs import JobState, MeasureRequest
from heretix.people import LOCAL

REQUEST = MeasureRequest.parse({"claims": ["Tea is good."], "models": ["mock:a"]})


@pytest.fixture
def disabled(accounts_site: Site, tmp_path):
    """A job of alice's, who was disabled from the command line while it waited."""
    alice = accounts_site.signed_in("alice")
    person = accounts_site.desk.people.find("alice")
    secret = accounts_site.desk.people.tokens.issue(person, label="ci").secret
    job = accounts_site.desk.jobs.submit(person, REQUEST)
    db = str(tmp_path / "heretix.sqlite")
    told = CliRunner().invoke(app, ["users", "disable", "alice", "--db", db])
    assert told.exit_code == 0, told.output
    assert "alice: explorer, disabled" in told.output
    return alice, secret, job, db


def test_the_reason_stands_on_the_page_in_the_api_and_on_the_command_line(accounts_site, disabled):
    """For operators: alice herself doesn't get in any more."""
    _, _, job, db = disabled
    assert accounts_site.desk.jobs.get(job.id, by=LOCAL).state is JobState.CANCELLED
    root = accounts_site.signed_in("root")
    page = root.get(f"/jobs/{job.id}").text
    assert "<strong>Why:</strong> <code>alice</code> was disabled" in page
    found = root.get(f"/api/v1/jobs/{job.id}").json()
    assert (found["state"], found["error_kind"]) == ("cancelled", "AccessError")
    assert "`alice` was disabled" in found["error"]
    shown = CliRunner().invoke(app, ["jobs", "show", job.id, "--db", db])
    assert "cancelled" in shown.output
    assert "`alice` was disabled" in shown.output


def test_sessions_and_tokens_end_as_well(accounts_site, disabled):
    """At the next request, whatever it is."""
    alice, secret, job, _ = disabled
    assert alice.get(f"/jobs/{job.id}").status_code == 303
    bearer = {"authorization": f"Bearer {secret}"}
    answer = accounts_site.another().get(f"/api/v1/jobs/{job.id}", headers=bearer)
    assert answer.status_code == 401
