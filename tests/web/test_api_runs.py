"""Reading measurements through the API: pages, records that never change, and who may read."""

import json

import pytest
from apiserver import CLAIMS, measured, served

from heretix.measurement.record import RunRecord
from heretix.store.runs import find_record, select_runs

HOSTILE = (
    "' OR 1=1 --",
    '"; DROP TABLE runs; --',
    "%25",
    "_",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "\u202e<script>alert(1)</script>",
    "a" * 1_900,
)


@pytest.fixture(scope="module")
def api(tmp_path_factory, sqlite_template):
    with served(tmp_path_factory.mktemp("runs"), sqlite_template) as found:
        yield found


@pytest.fixture(scope="module")
def team(tmp_path_factory, sqlite_template):
    with served(tmp_path_factory.mktemp("team"), sqlite_template, accounts=True) as found:
        yield found


def test_runs_come_in_pages_that_lead_to_each_other(api):
    """Following `next` gives every run once, the latest first."""
    seen, cursor = [], None
    while True:
        query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = api.get("/runs", params=query).json()
        assert len(page["items"]) <= 2
        seen += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert sorted(run["claim"] for run in seen) == sorted(CLAIMS)
    assert [run["updated_at"] for run in seen] == sorted(
        (run["updated_at"] for run in seen), reverse=True
    )


def test_a_page_isnt_repeated_when_something_is_measured_meanwhile(tmp_path, sqlite_template):
    """A cursor names a place, so that new runs don't push old ones onto the next page again."""
    with served(tmp_path, sqlite_template) as api:
        first = api.get("/runs", params={"limit": 2}).json()
        measured(api.store, "A new claim.")
        second = api.get("/runs", params={"limit": 2, "cursor": first["next"]}).json()
        seen = [run["run_id"] for run in first["items"] + second["items"]]
        assert len(seen) == len(set(seen)) == 3


@pytest.mark.parametrize("cursor", ["x", "W10", "WzEsMl0", "bm90IGpzb24", "é", "W1siYSJdLCJiIl0"])
def test_a_cursor_that_isnt_one_is_refused(api, cursor):
    """Only what a page gave is taken back."""
    for path in ("/runs", "/claims", "/jobs", "/episodes", "/ledger/transfers"):
        answer = api.get(path, params={"cursor": cursor})
        assert answer.status_code == 422, path
        assert "cursor" in answer.json()["detail"]


def test_runs_are_found_by_text_claim_model_and_lens(api):
    """Filters narrow the list, and hold together."""
    found = api.get("/runs", params={"q": "TEA IS"}).json()["items"]
    assert [run["claim"] for run in found] == [CLAIMS[1]]
    found = api.get("/runs", params={"claim": CLAIMS[0], "model": "mock:gpt-5", "lens": "RPL"})
    assert [run["claim"] for run in found.json()["items"]] == [CLAIMS[0]]
    assert api.get("/runs", params={"lens": "HEL"}).json()["items"] == []
    assert api.get("/runs", params={"lens": "XYZ"}).status_code == 422


def test_claims_are_listed_with_how_often_they_were_measured(api):
    """One line a claim."""
    found = api.get("/claims", params={"q": "glass"}).json()["items"]
    assert [(line["claim"], line["runs"], line["models"]) for line in found] == [(CLAIMS[2], 1, 1)]


def test_a_record_is_served_as_it_was_stored(api):
    """Byte for byte, by the id of its execution or of its run, whole or shortened."""
    run = api.store.read(select_runs, limit=1)[0]
    stored = api.store.read(find_record, run.execution_id).record_json
    for ref in (run.execution_id, run.run_id, run.run_id.rpartition("-")[2][:8]):
        answer = api.get(f"/executions/{ref}")
        assert answer.content == stored.encode(), ref
    RunRecord.model_validate_json(stored)


def test_a_record_that_the_reader_has_isnt_sent_again(api):
    """Its ETag is the execution's id; under the whole id it may be kept for ever."""
    run = api.store.read(select_runs, limit=1)[0]
    first = api.get(f"/executions/{run.execution_id}")
    assert first.headers["etag"] == f'"{run.execution_id}"'
    assert "immutable" in first.headers["cache-control"]
    again = api.get(
        f"/executions/{run.execution_id}", headers={"If-None-Match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    other = api.get(f"/executions/{run.execution_id}", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200
    by_run = api.get(f"/executions/{run.run_id}")
    assert "immutable" not in by_run.headers["cache-control"]


def test_half_a_surrogate_pair_in_an_answer_comes_through(tmp_path, sqlite_template):
    """Whatever a model wrote can be read by a program."""
    from sqlalchemy import update

    from heretix.store.schema import results

    with served(tmp_path, sqlite_template, claims=CLAIMS[:1]) as api:
        run = api.store.read(select_runs, limit=1)[0]
        record = json.loads(api.store.read(find_record, run.run_id).record_json)
        record["samples"][0]["raw_answer"] = "\ud800 é"
        text = json.dumps(record, ensure_ascii=False)
        with api.store.writing() as connection:
            connection.execute(update(results).values(record_json=text))
        found = json.loads(api.get(f"/executions/{run.run_id}").content)
        assert found["samples"][0]["raw_answer"] == "\ud800 é"


def test_samples_are_paged_in_the_order_of_the_plan(api):
    """The pages together are the samples of the record."""
    run = api.store.read(select_runs, limit=1)[0]
    first = api.get(f"/executions/{run.run_id}/samples", params={"limit": 10}).json()
    second = api.get(
        f"/executions/{run.run_id}/samples", params={"limit": 10, "cursor": first["next"]}
    ).json()
    assert second["next"] is None
    record = api.get(f"/executions/{run.run_id}").json()
    assert first["items"] + second["items"] == record["samples"]


def test_a_record_is_verified_and_a_forged_one_isnt(tmp_path, sqlite_template):
    """Verification says where a value doesn't follow from the rest."""
    from sqlalchemy import update

    from heretix.store.schema import results

    with served(tmp_path, sqlite_template, claims=CLAIMS[:2]) as api:
        sound, forged = api.store.read(select_runs, limit=2)
        text = api.store.read(find_record, forged.run_id).record_json
        number = repr(forged.prob_true_rpl)
        with api.store.writing() as connection:
            connection.execute(
                update(results)
                .where(results.c.execution_id == forged.execution_id)
                .values(record_json=text.replace(number, "0.123", 1))
            )
        assert api.get(f"/executions/{sound.execution_id}/verify").json()["ok"] is True
        found = api.get(f"/executions/{forged.execution_id}/verify").json()
        assert found["ok"] is False
        assert "aggregates.prob_true_rpl" in [d["path"] for d in found["differences"]]


def test_two_runs_are_compared(api):
    """Paired by wording, since the bank is the same."""
    a, b = (run.run_id for run in api.store.read(select_runs, limit=2))
    found = api.get("/compare", params={"a": a, "b": b}).json()
    assert found["paired"] is True
    back = api.get("/compare", params={"a": b, "b": a}).json()
    assert found["difference"]["diff_prob"] == pytest.approx(-back["difference"]["diff_prob"])


def test_a_source_is_explained(api):
    """Which rule gives an address its class."""
    found = api.get("/policy/explain", params={"url": "https://www.reuters.com/world"}).json()
    assert (found["class"], found["publisher"]) == ("canonical", "reuters.com")
    assert found["rule"] in found["compared"]


def test_models_and_anomalies_are_listed(api):
    """What can be asked, and what was found."""
    models = api.get("/models").json()
    assert "mock" in [provider["name"] for provider in models["providers"]]
    assert not any(provider["has_key"] for provider in models["providers"])
    assert api.get("/anomalies").json()["items"] == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_finds_nothing_and_breaks_nothing(api, text):
    """Searches are searches, and an id is an id, whatever is in them."""
    assert api.get("/runs", params={"q": text}).json()["items"] == []
    assert api.get("/claims", params={"q": text}).json()["items"] == []
    for path in (f"/runs/{text}", f"/executions/{text}", f"/jobs/{text}", f"/bundles/{text}"):
        answer = api.get(path)
        assert answer.status_code in {404, 422}, path
        assert answer.headers["content-type"] == "application/problem+json"
    assert len(api.store.read(select_runs)) == 3


def test_nothing_is_read_without_a_token(team):
    """With accounts, every operation asks who is there; a wrong token is refused as well."""
    for path in ("/runs", "/people/me", "/export/runs.jsonl", "/ledger/verify"):
        answer = team.get(path)
        assert answer.status_code == 401, path
        assert answer.json()["type"] == "urn:heretix:problem:SignIn"
        wrong = team.get(path, headers={"Authorization": "Bearer htx_wrong"})
        assert wrong.status_code == 401
    assert team.get("/runs", "rita").status_code == 200


def test_readers_read_and_change_nothing(team):
    """Measuring and playing is for explorers, operations are for operators."""
    request = {"claims": ["A b c."], "models": ["mock:gpt-5"]}
    assert team.post("/plan", request, "rita").status_code == 403
    assert team.post("/jobs", request, "rita", key="k").status_code == 403
    stake = {"side": "heretic", "amount": 1, "min_shares": 0}
    assert team.post("/episodes/ep-1/stakes", stake, "rita", key="k").status_code == 403
    assert team.post("/episodes", {"claim": "A b c."}, "alice", key="k").status_code == 403
    assert team.post("/plan", request, "alice").status_code == 200


def test_everybody_sees_their_own_tokens_only_and_never_a_secret(team):
    """A token's text was shown once; its owner sees what it is called."""
    found = team.get("/people/me/tokens", "alice")
    assert len(found.json()["items"]) == 1
    assert "htx_" not in found.text
    assert team.get("/people/me", "alice").json()["name"] == "alice"
    assert team.get("/people/alice/tokens", "root").status_code == 404


def test_a_token_is_in_no_log_and_no_answer(team, caplog):
    """Neither a good one nor a bad one, however the request ends."""
    import logging

    secret = team.tokens["alice"]
    with caplog.at_level(logging.DEBUG):
        answers = [
            team.get("/runs", "alice"),
            team.get("/runs/none", "alice"),
            team.get("/runs", headers={"Authorization": f"Bearer {secret}x"}),
            team.post("/jobs", {"claims": []}, "alice", key="k"),
        ]
    assert secret not in caplog.text
    assert all(secret not in answer.text for answer in answers)


def test_a_parameter_that_is_given_twice_is_refused(api):
    """Which one is meant can't be told."""
    answer = api.get("/runs?limit=1&limit=2")
    assert answer.status_code == 422
    assert "`limit`" in answer.json()["detail"]
