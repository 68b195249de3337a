"""Accounts, tokens and credits over the API: what operators and oneself may do there."""

import pytest
from apiserver import served

from heretix.client import Client
from heretix.core.errors import AccessError, RecordError, UsageError

CLAIM = "Daylight saving time reduces electricity use."
LIMITS = {"jobs_per_day": 3, "running_jobs": None, "usd_micros_per_day": 1_000_000}


@pytest.fixture(scope="module")
def team(tmp_path_factory, sqlite_template):
    """A server with accounts."""
    with served(tmp_path_factory.mktemp("api"), sqlite_template, accounts=True, claims=()) as found:
        yield found


def client_of(team, who):
    """The client of a person."""
    return Client(team.url, team.tokens[who])


def test_operators_see_who_is_here_and_what_they_may_use(team):
    """By name, in whatever case it is asked for; nobody else may look."""
    found = list(client_of(team, "root").accounts())
    assert [one["name"] for one in found] == ["alice", "bob", "rita", "root"]
    assert [one["role"] for one in found] == ["explorer", "explorer", "reader", "operator"]
    assert team.get("/accounts/ALICE", "root").json() == found[0]
    assert found[0]["quotas"]["jobs_per_day"] == 50
    assert found[0]["usage"] == {"jobs_today": 0, "active_jobs": 0, "usd_micros_today": 0}
    assert team.get("/accounts/nobody", "root").status_code == 404
    for path in ("/accounts", "/accounts/alice", "/accounts/alice/tokens"):
        assert team.get(path, "alice").status_code == 403


def test_limits_are_set_as_a_whole(team):
    """What isn't given is a mistake, so that nothing is lifted by accident."""
    assert team.post("/accounts/bob/limits", LIMITS, "alice", key="k").status_code == 403
    changed = team.post("/accounts/bob/limits", LIMITS, "root", key="k")
    assert changed.json()["quotas"] == LIMITS
    some = {name: LIMITS[name] for name in list(LIMITS)[:2]}
    refused = team.post("/accounts/bob/limits", some, "root", key="l")
    assert refused.status_code == 422
    assert "`usd_micros_per_day` is missing" in refused.json()["detail"]


def test_whoever_is_disabled_is_out_at_once(team):
    """And an operator can't do it to the account that asks."""
    person = team.state.people.add("eve")
    secret = team.state.people.tokens.issue(person, label="t").secret
    eve = Client(team.url, secret)
    assert eve.me()["name"] == "eve"
    assert team.post("/accounts/eve/disable", None, "root", key="k").json()["active"] is False
    with pytest.raises(AccessError):
        eve.me()
    operator = "root"
    oneself = team.post(f"/accounts/{operator}/disable", None, operator, key="l")
    assert oneself.status_code == 403


def test_tokens_are_revoked_by_their_owner_and_by_operators(team):
    """A token ends itself, too; somebody else's looks as if it didn't exist."""
    tokens, alice = team.state.people.tokens, team.state.people.find("alice")
    made = {name: tokens.issue(alice, label=name) for name in ("itself", "other")}
    own = Client(team.url, made["itself"].secret)
    assert {one["label"] for one in own.tokens()} >= {"itself", "other"}
    with pytest.raises(RecordError):
        client_of(team, "bob").revoke(made["other"].token.id)
    assert client_of(team, "root").revoke(made["other"].token.id)["revoked_at"]
    assert own.revoke(made["itself"].token.id)["label"] == "itself"
    with pytest.raises(AccessError):
        own.me()


def test_no_token_makes_what_lets_somebody_in(team):
    """Accounts, roles, passwords and tokens are made in the browser or at the machine."""
    paths = ["/accounts", "/people/me/tokens", "/accounts/bob/role", "/accounts/bob/enable"]
    for path in paths:
        assert team.post(path, {}, "root", key="k").status_code in {404, 405}, path


def test_credits_are_for_findings_of_models_that_were_not_planted(team):
    """Without a measurement there is no finding; planted beliefs are for practice alone."""
    with pytest.raises(RecordError, match="heretix lens"):
        client_of(team, "alice").credit(CLAIM)
    assert team.post("/exploration/credits", {"claim": CLAIM}, "rita", key="k").status_code == 403
    options = {"models": ["sim:m?hel=-2.5"], "lenses": ["RPL", "HEL"], "K": 16, "T": 16, "R": 1}
    client_of(team, "bob").measure(CLAIM, **options)
    team.work()
    with pytest.raises(UsageError, match="simulated"):
        client_of(team, "alice").credit(CLAIM)


def test_the_one_user_of_a_machine_practises(tmp_path, sqlite_template):
    """A finding is credited once, and the feed says to whom."""
    with served(tmp_path, sqlite_template, claims=()) as site:
        client = Client(site.url)
        options = {"models": ["sim:m?hel=-2.5"], "lenses": ["RPL", "HEL"], "K": 16, "T": 16, "R": 1}
        client.measure(CLAIM, **options)
        site.work()
        first = client.credit(CLAIM, lens="HEL")
        assert (first["claim"], first["lens"], first["reason"]) == (CLAIM, "HEL", None)
        assert first["amount"] == first["found"] == first["balance"] > 0
        again = client.credit(CLAIM)
        assert (again["amount"], again["reason"]) == (0, "claim_credited")
