"""Sessions, roles and tokens, as pages use them."""

import re

import pytest
from website import PASSWORD

from heretix.accounts import Role
from heretix.jobs import MeasureRequest

REQUEST = MeasureRequest.parse({"claims": ["Coffee beans are seeds."], "models": ["mock:m"]})
PRIVATE = [
    "/",
    "/search",
    "/anomalies",
    "/runs/x",
    "/bundles/abcdef",
    "/jobs",
    "/method",
    "/account",
]


@pytest.mark.parametrize("path", PRIVATE)
def test_nobody_reads_without_signing_in(accounts_site, path):
    """With accounts, a page leads to the form, and back afterwards."""
    answer = accounts_site.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?next=%2F")


def test_signing_in_leads_on_and_out_again(accounts_site):
    """A new session each time; after signing out, the old cookie opens nothing."""
    site = accounts_site.another()
    answer = site.post(
        "/sign-in",
        {"name": "alice", "password": PASSWORD, "next": "/jobs"},
        form="/sign-in?next=/jobs",
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
    assert "alice" in site.get("/").text
    token = site.client.cookies["heretix_session"]
    out = site.post("/sign-out", form="/account")
    assert out.status_code == 303
    # What the browser has kept is dropped, so that "back" shows nothing to the next person.
    assert out.headers["clear-site-data"] == '"cache"'
    site.client.cookies.set("heretix_session", token)
    assert site.get("/").status_code == 303


def test_a_wrong_password_says_so_and_nothing_more(accounts_site):
    """Name and password are wrong together: nobody learns which names there are."""
    texts = set()
    for name in ("alice", "nobody"):
        site = accounts_site.another()
        answer = site.post("/sign-in", {"name": name, "password": "wrong wrong"}, form="/sign-in")
        assert answer.status_code == 401
        texts.add(answer.text.split('role="alert"')[1].split("</div>")[0])
    assert len(texts) == 1


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:x", "\\\\e"]
)
def test_signing_in_leads_to_no_other_site(accounts_site, target):
    """`next` can be in a link that somebody sent."""
    site = accounts_site.another()
    fields = {"name": "alice", "password": PASSWORD, "next": target}
    answer = site.post("/sign-in", fields, form="/sign-in")
    assert answer.headers["location"] == "/"


def test_signing_in_needs_the_form_of_this_browser(accounts_site):
    """Nobody can be signed in as somebody else by a page elsewhere."""
    site = accounts_site.another()
    answer = site.client.post(
        "/sign-in", data={"name": "bob", "password": PASSWORD}, headers={"origin": site.url}
    )
    assert answer.status_code == 403


def test_roles_open_what_they_should(accounts_site):
    """A reader reads; measuring takes an explorer."""
    rita, alice = accounts_site.signed_in("rita"), accounts_site.signed_in("alice")
    assert rita.get("/search").status_code == 200
    assert rita.get("/measure").status_code == 403
    assert "takes the role explorer" in rita.get("/measure").text
    assert alice.get("/measure").status_code == 200
    # No link leads where one may not go.
    assert 'href="/measure"' not in rita.get("/").text
    assert 'href="/measure"' in alice.get("/").text


def test_jobs_of_others_look_like_nothing(accounts_site):
    """Not their page, not their events, no cancelling; an operator sees all."""
    state = accounts_site.state
    job = state.jobs.submit(state.people.find("alice"), REQUEST)
    alice, bob = accounts_site.signed_in("alice"), accounts_site.signed_in("bob")
    root = accounts_site.signed_in("root")
    assert alice.get(f"/jobs/{job.id}").status_code == 200
    for path in (f"/jobs/{job.id}", f"/jobs/{job.id}/events"):
        assert bob.get(path).status_code == 404
    assert bob.post(f"/jobs/{job.id}/cancel", form="/account").status_code == 404
    assert job.title not in bob.get("/jobs").text
    assert job.title in root.get("/jobs").text
    assert root.get(f"/jobs/{job.id}").status_code == 200
    assert alice.post(f"/jobs/{job.id}/cancel", form="/account").status_code == 303


def test_a_token_is_shown_once_and_works_until_it_is_revoked(accounts_site):
    """The secret stands on one page, the label on the list."""
    alice = accounts_site.signed_in("alice")
    fields = {"label": "<b>notebook</b>", "role": "reader", "days": "1"}
    page = alice.post("/account/tokens", fields, form="/account")
    assert page.headers["cache-control"] == "no-store"
    secret = page.text.split('class="secret">')[1].split("<")[0]
    assert "<b>notebook" not in page.text
    assert secret not in alice.get("/account").text
    program, bearer = accounts_site.another(), {"authorization": f"Bearer {secret}"}
    assert program.get("/search", headers=bearer).status_code == 200
    assert program.get("/measure", headers=bearer).status_code == 403
    (token,) = accounts_site.state.people.tokens.list(accounts_site.state.people.find("alice").id)
    assert alice.post(f"/account/tokens/{token.id}/revoke", form="/account").status_code == 303
    assert program.get("/api/v1/runs", headers=bearer).status_code == 401


def test_a_token_that_is_over_is_not_called_valid(accounts_site):
    """Whoever looks for what still lets in sees only that."""
    people = accounts_site.state.people
    person = people.find("alice")
    for label, expires_in_s in (("old", 1e-6), ("new", 3600.0), ("lasting", None)):
        people.tokens.issue(person, label=label, expires_in_s=expires_in_s)
    page = accounts_site.signed_in("alice").get("/account").text
    lines = re.findall(r'<tr><th scope="row">(\w+)</th>.*?<span class="tag[^"]*">(\w+)<', page)
    assert dict(lines) == {"old": "expired", "new": "valid", "lasting": "valid"}
    assert page.count("/revoke") == 2


def test_a_token_makes_no_tokens(accounts_site):
    """Whoever finds one can't keep the account with it."""
    alice = accounts_site.state.people.find("alice")
    issued = accounts_site.state.people.tokens.issue(alice, label="x")
    bearer = {"authorization": f"Bearer {issued.secret}"}
    answer = accounts_site.another().client.post(
        "/account/tokens", data={"label": "y"}, headers=bearer
    )
    assert answer.status_code == 403


def test_changing_the_password_ends_every_session(accounts_site):
    """With the old one at hand; a wrong one changes nothing."""
    alice, elsewhere = accounts_site.signed_in("alice"), accounts_site.signed_in("alice")
    wrong = {"old": "wrong wrong", "new": "another good one"}
    assert alice.post("/account/password", wrong, form="/account").status_code == 422
    assert elsewhere.get("/").status_code == 200
    right = {"old": PASSWORD, "new": "another good one"}
    assert alice.post("/account/password", right, form="/account").status_code == 303
    assert elsewhere.get("/").status_code == 303


def test_a_name_with_markup_stays_text(accounts_site):
    """In the masthead, on the account's page and in the list of jobs."""
    name = '<i>eve</i> & "co"'
    accounts_site.state.people.add(name.replace("/", "|"), role=Role.EXPLORER, password=PASSWORD)
    eve = accounts_site.signed_in(name.replace("/", "|"))
    for path in ("/", "/account", "/jobs"):
        assert "<i>eve" not in eve.get(path).text
    assert "&lt;i&gt;eve" in eve.get("/account").text


def test_the_first_account_ends_free_access(site):
    """A server that runs without accounts asks for a name from the first one on."""
    assert site.get("/").status_code == 200
    site.state.people.add("alice", role=Role.OPERATOR, password=PASSWORD)
    site.state._looked_at = float("-inf")
    assert site.get("/").status_code == 303


def test_too_many_requests_are_slowed_down(accounts_site):
    """One person's share is bounded, and the answer says when to come again."""
    from heretix.accounts import RateLimiter

    alice = accounts_site.signed_in("alice")
    accounts_site.state.limiter = RateLimiter(per_s=0.001, burst=1)
    assert alice.get("/help").status_code == 200
    answer = alice.get("/help")
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
