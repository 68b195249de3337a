"""A person who is disabled: out at once, their jobs stopped, and the reason where one looks."""

from contextlib import nullcontext

import pytest
from typer.testing import CliRunner
from website import Site

from heretix.accounts import LOCAL, Role
from heretix.accounts.sessions import IDLE_S, Sessions
from heretix.cli.app import app
from heretix.core.errors import SignInError
from heretix.jobs import JobState, MeasureRequest

REQUEST = MeasureRequest.parse({"claims": ["Tea is good."], "models": ["mock:a"]})


@pytest.fixture
def disabled(accounts_site: Site, tmp_path):
    """A job of alice's, who was disabled from the command line while it waited."""
    alice = accounts_site.signed_in("alice")
    person = accounts_site.state.people.find("alice")
    secret = accounts_site.state.people.tokens.issue(person, label="ci").secret
    job = accounts_site.state.jobs.submit(person, REQUEST)
    db = str(tmp_path / "heretix.sqlite")
    told = CliRunner().invoke(app, ["users", "disable", "alice", "--db", db])
    assert told.exit_code == 0, told.output
    assert "alice: explorer, disabled" in told.output
    return alice, secret, job, db


def test_the_reason_stands_on_the_page_in_the_api_and_on_the_command_line(accounts_site, disabled):
    """For operators: alice herself doesn't get in any more."""
    _, _, job, db = disabled
    assert accounts_site.state.jobs.get(job.id, by=LOCAL).state is JobState.CANCELLED
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


def disable(people, _reader):
    people.deactivate("rita")


def demote(people, _reader):
    people.set_role("rita", Role.EXPLORER)


def sign_out(people, reader):
    people.sessions.close(reader.client.cookies["heretix_session"])


def revoke(people, _reader):
    (token,) = people.tokens.list(people.find("rita").id)
    people.tokens.revoke(token.id, by=LOCAL)


@pytest.mark.parametrize(
    ("prefix", "via", "shut_out"),
    [
        ("", "session", disable),
        ("/api/v1", "session", sign_out),
        ("", "token", demote),
        ("/api/v1", "token", revoke),
    ],
)
def test_an_open_stream_of_anothers_job_ends(accounts_site, prefix, via, shut_out):
    """It needs no news of the job for that, and whoever may still be there reads on."""
    people = accounts_site.state.people
    job = accounts_site.state.jobs.submit(people.find("alice"), REQUEST)
    people.set_role("rita", Role.OPERATOR)
    if via == "session":
        reader, headers = accounts_site.signed_in("rita"), {}
    else:
        secret = people.tokens.issue(people.find("rita"), label="ci").secret
        reader, headers = accounts_site.another(), {"authorization": f"Bearer {secret}"}
    path = f"{prefix}/jobs/{job.id}/events"
    root = accounts_site.signed_in("root")
    with (
        root.client.stream("GET", path) as kept,
        reader.client.stream("GET", path, headers=headers) as stream,
    ):
        assert (kept.status_code, stream.status_code) == (200, 200)
        lines, others = stream.iter_lines(), kept.iter_lines()
        next(line for line in lines if line.startswith("data:"))
        shut_out(people, reader)
        assert not any(line.startswith("data:") for line in lines)
        accounts_site.state.jobs.cancel(job.id, by=LOCAL)
        assert any('"ended":true' in line for line in others)


@pytest.mark.parametrize("used", [True, False])
def test_to_be_looked_after_does_not_keep_a_session_alive(accounts_site, used):
    """A page that was left open is no use of it."""
    people = accounts_site.state.people
    session = people.sessions.open(people.find("rita"))
    now = [session.created_at + IDLE_S - 1]
    sessions = Sessions(accounts_site.store, lambda: now[0])
    sessions.find(session.token, used=used)
    now[0] += 2
    with nullcontext() if used else pytest.raises(SignInError):
        sessions.find(session.token)
