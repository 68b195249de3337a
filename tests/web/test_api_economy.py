"""The economy through the API: an episode from its opening to its settlement, by three people."""

import pytest
from apiserver import served
from sqlalchemy import select

from heretix.core.clock import ManualClock
from heretix.economy.audit import verify_episode
from heretix.economy.episode.challenges import evidence_commitment
from heretix.economy.episode.state import Direction
from heretix.economy.judging.workflow import DAY_MS
from heretix.evidence.retrieval import retrieve_provided
from heretix.evidence.sources.intake import read_file
from heretix.store.schema import episodes

CLAIM = "Daylight saving time reduces electricity use."
NONCE = bytes(range(32))
SMALL = {"claim": CLAIM, "B": 400}


@pytest.fixture
def team(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as found:
        found.state.clock = ManualClock(1_800_000_000_000)
        yield found


def opened(team) -> str:
    """An episode that takes bets and evidence."""
    answer = team.outcome(team.post("/episodes", SMALL, "root", key="open"), "root")
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "challenge"
    return f"/episodes/{answer.json()['id']}"


def bundle_of(folder, text: str):
    """Evidence for the claim."""
    path = folder / "evidence.txt"
    path.write_text(text, encoding="utf-8")
    return retrieve_provided(CLAIM, [read_file(path)])


def stake(team, path, who, side, amount=5_000, **more):
    body = {"side": side, "amount": amount, "min_shares": 0}
    return team.post(f"{path}/stakes", body, who, key=more.pop("key", f"{who} {side}"), **more)


def move(team, path, name, who="root"):
    return team.post(f"{path}/{name}", None, who, key=f"{name} {team.state.clock.now_ms()}")


def test_an_episode_is_played_to_its_settlement(team, tmp_path):
    """Opened, bet on, challenged, revealed, judged, measured twice and paid out, all explained."""
    path = opened(team)
    bundle = bundle_of(tmp_path, "A study of daylight saving found that electricity use fell.")
    assert stake(team, path, "bob", "orthodox").status_code == 201
    assert stake(team, path, "root", "heretic").status_code == 201
    least = team.get(f"{path}/least-challenge", "alice").json()["amount"]
    commitment = evidence_commitment(NONCE, bundle.bundle_id, Direction.UP, "user:alice:PLAY")
    given = {"commitment": commitment, "amount": max(least, 90_000)}
    committed = team.post(f"{path}/challenges", given, "alice", key="c")
    assert committed.status_code == 201, committed.text
    shown = {
        "challenge": committed.json()["number"],
        "nonce": NONCE.hex(),
        "bundle_sha256": bundle.bundle_id,
        "direction": "up",
        "bundle": bundle.to_json(),
    }
    early = team.post(f"{path}/reveals", shown, "alice", key="early")
    assert (early.status_code, early.json()["reason"]) == (409, "too_early")
    assert move(team, path, "freeze").status_code == 409
    team.state.clock.advance(7 * DAY_MS + 1)
    assert team.post(f"{path}/reveals", shown, "bob", key="r").status_code == 409
    assert team.get(f"/bundles/{bundle.bundle_id}", "bob").status_code == 404
    assert team.post(f"{path}/reveals", shown, "alice", key="r").json()["fate"] == "revealed"

    team.state.clock.advance(DAY_MS)
    assert move(team, path, "freeze").json()["state"] == "frozen"
    judged = team.outcome(move(team, path, "judge"), "root").json()
    assert judged["challenges"][0]["fate"] == "accepted", judged
    measured = team.outcome(move(team, path, "measure"), "root").json()
    assert len(measured["measurements"]) == 1
    team.state.clock.advance(7 * DAY_MS)
    assert team.outcome(move(team, path, "measure"), "root").json()["state"] == "measured"
    team.state.clock.advance(3 * DAY_MS)
    assert move(team, path, "settle").json()["state"] == "settled"

    assert team.get("/ledger/verify", "rita").json()["ok"] is True
    assert team.get(f"{path}/verify", "rita").json() == {"ok": True, "breaches": []}
    whole = team.get("/ledger/verify", "rita").json()
    own = team.get("/ledger/verify", "rita", params={"episode": path.rpartition("/")[2]}).json()
    assert own["ok"] is True
    assert own["count"] < whole["count"]
    assert team.get("/ledger/verify", "rita", params={"episode": "ep-none"}).status_code == 404
    (newest,) = team.get(f"{path}/record", "rita").json()["chain"]["proofs"]
    earlier = newest["seq"] - 1
    record = team.get(f"{path}/record", "rita", params={"against": earlier}).json()
    assert verify_episode(record).ok
    assert [p["seq"] for p in record["chain"]["proofs"]] == [earlier, newest["seq"]]
    assert team.get(f"{path}/record", "rita", params={"against": 10**9}).status_code == 422
    moves = [s["move"] for s in team.get(f"{path}/statements", "rita").json()["items"]]
    assert moves[-1] == "settle"
    (standing,) = team.get("/leaderboard", "rita").json()["items"]
    assert (standing["person"], standing["passed"]) == ("alice", 1)
    made = [e for e in team.state.people.audit.entries(limit=100) if e.who in {"alice", "bob"}]
    assert [(e.who, e.what) for e in reversed(made) if e.subject == path.rpartition("/")[2]] == [
        ("bob", "episode.stake"),
        ("alice", "episode.commit"),
        ("alice", "episode.reveal"),
    ]


@pytest.mark.parametrize("first", ["challenges", "freeze"])
def test_nobody_has_to_announce_that_challenges_begin(team, first):
    """When their time has come they are taken, as on the pages and the command line."""
    later = {**SMALL, "challenge_after_ms": DAY_MS}
    answer = team.outcome(team.post("/episodes", later, "root", key="open"), "root")
    path = f"/episodes/{answer.json()['id']}"
    assert answer.json()["state"] == "open"
    commitment = evidence_commitment(NONCE, "0" * 64, Direction.UP, "user:alice:PLAY")
    given = {"commitment": commitment, "amount": 20_000}
    early = team.post(f"{path}/challenges", given, "alice", key="early")
    assert (early.status_code, early.json()["reason"]) == (409, "wrong_state")
    if first == "challenges":
        team.state.clock.advance(DAY_MS)
        taken = team.post(f"{path}/challenges", given, "alice", key="c")
        assert taken.status_code == 201, taken.text
    else:
        team.state.clock.advance(9 * DAY_MS)
        assert move(team, path, "freeze").json()["state"] == "frozen"


def test_a_bet_is_made_as_oneself_and_once(team):
    """The account follows from the token; nothing in the request can name another."""
    path = opened(team)
    first = stake(team, path, "alice", "heretic", key="k").json()
    again = stake(team, path, "alice", "heretic", key="k").json()
    assert first == again
    assert first["account"] == "user:alice:PLAY"
    body = {"side": "heretic", "amount": 1, "min_shares": 0, "person": "bob", "account": "x"}
    assert team.post(f"{path}/stakes", body, "alice", key="other").status_code == 422
    outside = [p for p in team.get(f"{path}/positions", "bob").json()["items"] if not p["house"]]
    assert [p["account"] for p in outside] == ["user:alice:PLAY"]
    (held,) = team.get("/people/me/positions", "alice").json()["items"]
    assert held["position"]["stake"] == 5_000
    assert team.get("/people/me/positions", "bob").json()["items"] == []
    assert team.get("/people/me", "alice").json()["balance"] == 1_000_000 - 5_000


def test_a_quote_is_what_a_bet_then_buys(team):
    """And asking for more shares than quoted is refused, with the reason."""
    path = opened(team)
    offer = team.get(f"{path}/quote", "alice", params={"side": "heretic", "amount": 700}).json()
    more = {"side": "heretic", "amount": 700, "min_shares": offer["shares"] + 1}
    refused = team.post(f"{path}/stakes", more, "alice", key="a")
    assert refused.status_code == 409
    assert refused.json()["reason"] == "bet_refused"
    assert str(offer["shares"]) in refused.json()["detail"]
    exact = {**more, "min_shares": offer["shares"]}
    assert team.post(f"{path}/stakes", exact, "alice", key="b").json()["shares"] == offer["shares"]


@pytest.mark.parametrize("amount", [0, -1, 2**63, 1.5, "1", True, None])
def test_money_is_whole_positive_amounts(team, amount):
    """Nothing is rounded on the way in."""
    body = {"side": "heretic", "amount": amount, "min_shares": 0}
    assert team.post("/episodes/ep-1/stakes", body, "alice", key="k").status_code == 422


def test_an_episode_that_isnt_there_isnt_found(team):
    """Reading and playing alike."""
    assert team.get("/episodes/ep-none", "alice").status_code == 404
    assert stake(team, "/episodes/ep-none", "alice", "heretic").status_code == 404
    assert move(team, "/episodes/ep-none", "settle").status_code == 404


def test_operations_are_for_operators(team):
    """An explorer can't end what others bet on."""
    path = opened(team)
    for name in ("open", "begin", "freeze", "judge", "measure", "rule", "settle"):
        assert move(team, path, name, "alice").status_code == 403, name


def test_the_seed_stays_secret_until_the_freeze(team):
    """Neither the episode nor its record nor the list shows it."""
    path = opened(team)
    assert team.get(path, "root").json()["seed"] is None
    assert '"seed":"' not in team.get(f"{path}/record", "root").text.replace(" ", "")
    with team.store.reading() as connection:
        (seed,) = connection.scalars(select(episodes.c.secret))
    texts = [team.get(p, "root").text for p in (path, f"{path}/record", "/episodes")]
    assert all(seed not in text for text in texts)


def test_a_bundle_that_isnt_what_was_revealed_is_refused(team, tmp_path):
    """Its hash must be the one that the commitment was made for, its claim the episode's."""
    path = opened(team)
    bundle = bundle_of(tmp_path, "A study found that use fell.").to_json()
    shown = {"challenge": 0, "nonce": NONCE.hex(), "bundle_sha256": "0" * 64, "bundle": bundle}
    shown["direction"] = "up"
    assert team.post(f"{path}/reveals", shown, "alice", key="a").status_code == 422
    forged = {**bundle, "claim": "Another claim."}
    shown |= {"bundle": forged, "bundle_sha256": bundle["bundle_id"]}
    assert team.post(f"{path}/reveals", shown, "alice", key="b").status_code == 422
    assert team.get(f"/bundles/{bundle['bundle_id']}", "alice").status_code == 404


def test_transfers_are_paged_and_balances_add_up(team):
    """Every transfer once, the newest first; in each currency everything adds up to nothing."""
    path = opened(team)
    for number in range(3):
        stake(team, path, "alice", "heretic", 10, key=f"k{number}").raise_for_status()
    seen, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = team.get("/ledger/transfers", "rita", params=query).json()
        seen += [transfer["seq"] for transfer in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert seen == list(range(len(seen), 0, -1))
    balances = team.get("/ledger/balances", "rita", params={"currency": "PLAY"}).json()["items"]
    assert sum(holding["balance"] for holding in balances) == 0
