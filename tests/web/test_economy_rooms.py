"""Around an episode: proposals, operators, the ledger, profiles, and jobs that measure."""

import asyncio
import html
import re
from dataclasses import replace

import pytest
from economyplay import CLAIM, DAY, NOW, PAPER, SMALL, Play, hidden
from sqlalchemy import text as sql

from heretix.accounts import LOCAL
from heretix.config import RunConfig
from heretix.core.clock import ManualClock
from heretix.core.settings import Settings
from heretix.economy.audit import verify_episode
from heretix.economy.episode.state import Fate, State
from heretix.economy.heads import read_head
from heretix.economy.judging.workflow import EpisodeWorkflow
from heretix.evidence.bundle import dump_bundle
from heretix.jobs import BackgroundWorker
from heretix.measurement.service import prepare
from heretix.store.bundles import save_bundle
from heretix.web.forms import EvidenceForm


@pytest.fixture
def town(accounts_site):
    """A server with people, at a time that only the test moves."""
    accounts_site.state.clock = ManualClock(NOW)
    return accounts_site


def test_only_operators_move_an_episode_on(town):
    """An explorer is refused, whatever the state, and sees no button for it."""
    play = Play(town)
    for name in ("open", "begin", "freeze", "judge", "measure", "rule", "settle"):
        answer = play.alice.post(f"{play.path}/{name}", {"key": "key-of-alice"})
        assert (answer.status_code, name) == (403, name)
    assert "For operators" not in play.alice.get(play.path).text
    assert "For operators" in play.root.get(play.path).text


def test_only_operators_open_episodes_and_readers_only_read(town):
    """Roles hold for the forms and for what they are sent to."""
    play = Play(town)
    assert play.alice.get("/episodes/new").status_code == 403
    sent = play.alice.post("/episodes/new", {**SMALL, "claim": CLAIM, "key": "not-an-operator"})
    assert sent.status_code == 403
    rita = town.signed_in("rita")
    for path in ("/episodes", play.path, "/ledger", "/leaderboard", "/profile"):
        assert rita.get(path).status_code == 200
    for path in ("/profile/join", f"{play.path}/stake", f"{play.path}/challenge"):
        assert rita.post(path, {"key": "a-readers-key"}, form="/account").status_code == 403
    assert "needs the role of an explorer" in rita.get(play.path).text
    nobody = town.another().get(play.path)
    assert (nobody.status_code, nobody.headers["location"][:9]) == (303, "/sign-in?")


def test_moves_out_of_time_are_refused_in_words(town):
    """What isn't due yet says when it will be."""
    play = Play(town)
    answer = play.root.post(f"{play.path}/freeze")
    assert answer.status_code == 409
    assert "too_early" in answer.text
    assert "2023-11-22 22:13:20 UTC" in answer.text
    assert play.root.post(f"{play.path}/settle").status_code == 409
    assert play.root.post(f"{play.path}/measure", {"key": "too-early-key"}).status_code == 409
    assert play.episode.state is State.CHALLENGE


def test_an_episode_is_proposed_once_however_often_the_form_is_sent(town):
    """The key of the form stands for one measurement and one episode."""
    play = Play(town)
    fields = {**SMALL, "claim": CLAIM, "key": "open-it-once"}
    assert play.worked("/episodes/new", fields) == play.path
    assert len(play.exchange.episodes()) == 1


def test_a_draft_is_opened_later(town):
    """Written down first, opened by hand; without time left for that it says so."""
    play = Play(town, draft_only="1", begin_after="1d", key="draft-first")
    assert play.episode.state is State.DRAFT
    assert "nobody can bet before it is opened" in play.alice.get(play.path).text
    play.move("open")
    assert play.episode.state is State.OPEN
    early = play.root.post(f"{play.path}/begin")
    assert early.status_code == 409
    play.clock.advance(DAY)
    play.move("begin")
    assert play.episode.state is State.CHALLENGE


MISTAKES = [
    ("claim", "", "claim"),
    ("K", "0", "`K` must be a whole number"),
    ("challenge_for", "soon", "`challenge for` must be a duration"),
    ("durability", "9999999w", "ten years at most"),
    ("candle", "9d", "candle"),
    ("seed_stake", "free", "`seed stake` must be above 0"),
    ("base_rate", "120", "`base rate` must lie"),
    ("models", "local:/etc/passwd", "no path"),
    ("bundle", "../../x", "`bundle` must be the id"),
    ("judges", "40", "judge_pool"),
]


def test_a_proposal_with_a_mistake_comes_back(town):
    """The form returns with what was typed and what is wrong; nothing is measured."""
    root = town.signed_in("root")
    for field, value, said in MISTAKES:
        fields = {**SMALL, "claim": CLAIM, "key": "a-mistaken-form", field: value}
        answer = root.post("/episodes/new", fields)
        assert (answer.status_code, field) == (422, field)
        assert said in html.unescape(answer.text)
    assert town.state.exchange.episodes() == []


def test_the_ledger_is_filtered_and_paged(town):
    """By account, episode and group, and further back by place; the chain is shown."""
    play = Play(town)
    play.join(play.alice)
    for number in range(55):
        play.exchange.issue("alice", 1, key=f"pay {number}")
    first = play.alice.get("/ledger")
    (older,) = re.findall(r"before=(\d+)", first.text)
    second = play.alice.get("/ledger", params={"before": older})
    text = first.text + second.text
    places = [int(place) for place in re.findall(r'data-label="Place"[^>]*>(\d+)</td>', text)]
    assert places == list(range(places[0], 0, -1))
    of_alice = play.alice.get("/ledger", params={"account": "user:alice:PLAY"}).text
    assert "10,000.55 PLAY" in of_alice
    of_episode = play.alice.get("/ledger", params={"episode": play.id}).text
    assert "budget for rewards" in of_episode
    assert "issued" not in of_episode
    group = play.alice.get("/ledger", params={"group": f"open:{play.id}"}).text
    assert len(re.findall("← [0-9a-f]{12}", group)) == 2
    nothing = play.alice.get("/ledger", params={"account": "user:<x>:PLAY"}).text
    assert "No transfer fits" in nothing
    assert "user:<x>" not in nothing


def test_heads_of_the_ledger_are_public(town, tmp_path):
    """Without an account the newest is there to be kept, and history is held against it."""
    nobody, key = town.another(), tmp_path / "signing.key"
    town.state.settings = replace(town.state.settings, env={"HERETIX_SIGNING_KEY": str(key)})
    assert "None is signed yet" in nobody.get("/ledger/heads").text
    assert nobody.get("/ledger/head.json").status_code == 404
    assert not key.exists()
    Play(town).join(town.signed_in("alice"))
    exchange = town.state.exchange
    end = exchange.sign_head(key)
    page = nobody.get("/ledger/heads").text
    for said in (end.root, end.chains, end.key, "every thousandth event"):
        assert said in page
    kept = tmp_path / "head.json"
    kept.write_text(nobody.get("/ledger/head.json").text)
    head = read_head(kept)
    assert (head.seq, head.root, head.chains) == (end.seq, end.root, end.chains)
    assert head.is_genuine
    exchange.issue("alice", 1, key="later")
    assert exchange.verify(against=head).ok
    for path in ("/ledger", "/ledger/verification", "/leaderboard", "/profile"):
        assert nobody.get(path).status_code == 303


def test_a_ledger_that_was_tampered_with_is_shown_to_be(town):
    """A changed amount breaks the hashes, and the verification names the place."""
    play = Play(town)
    play.join(play.alice)
    with town.store.writing() as connection:
        connection.execute(sql("UPDATE transfers SET amount = amount + 1 WHERE seq = 1"))
    found = play.alice.get("/ledger/verification")
    assert "doesn't hold" in html.unescape(found.text)
    assert "the body differs from its hash" in found.text


def test_empty_pages_teach(town):
    """Before there is anything, each page says what it will show and how to begin."""
    root = town.signed_in("root")
    episodes = root.get("/episodes").text
    assert "heretix episode open" in episodes
    assert "/episodes/new?practice=1" in episodes
    assert "heretix ledger verify" in root.get("/ledger").text
    assert "Nobody yet" in root.get("/leaderboard").text
    assert "No bets yet" in root.get("/profile").text
    asked = root.get("/episodes/new?practice=1&claim=Coffee").text
    assert 'value="1" checked' in asked


def test_the_record_of_an_episode_is_served(town):
    """As a file to verify elsewhere."""
    play = Play(town)
    play.join(play.alice)
    play.bet(play.alice, "heretic", "5")
    record = play.alice.get(f"{play.path}/record.json")
    assert record.headers["content-disposition"].startswith("attachment")
    assert verify_episode(record.json()).ok
    assert play.alice.get(f"{play.path}/nonsense.json").status_code == 404
    for path in ("/episodes/ep-nowhere", "/jobs/nothing"):
        assert play.root.get(path).status_code == 404


def test_a_finding_is_credited_once(site):
    """On one's own machine practice counts; a claim earns once, one that wasn't measured nothing."""
    form = EvidenceForm(typed=[("Report", PAPER), ("Reply", f"The reply: {PAPER}")])
    bundle, _ = form.make_bundle(CLAIM)
    config = RunConfig.parse(
        {"models": ("sim:moved?sel=-2",), "K": 16, "T": 16, "B": 300, "lenses": ("RPL", "SEL")}
    )
    bundles = {(CLAIM, "SEL"): bundle}
    site.store.write(save_bundle, bundle.bundle_id, CLAIM, "SEL", dump_bundle(bundle))
    asyncio.run(prepare(config, Settings(), claims=[CLAIM], bundles=bundles).run(site.store))
    first = site.post("/profile/credit", {"claim": CLAIM})
    assert re.search(r"[1-9][0-9]* XC credited", first.text)
    assert "each earns once" in site.post("/profile/credit", {"claim": CLAIM}).text
    unknown = site.post("/profile/credit", {"claim": "Nobody measured this."})
    assert (unknown.status_code, "has no raw prior" in unknown.text) == (422, True)


def test_a_measurement_that_fails_decides_nothing(town, monkeypatch):
    """The job says what went wrong, and the episode is where it was; going on decides it."""
    play = Play(town, models="sim:lens?prior=0.4", judge_pool="")
    play.to_frozen(evidence=False)

    async def broken(*_, **__):
        raise RuntimeError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(EpisodeWorkflow, "measure", broken)
        sent = play.root.post(f"{play.path}/measure", {"key": "measure-first"})
        assert town.work() == 1
    page = html.unescape(play.root.get(sent.headers["location"]).text)
    assert "Nothing was decided" in page
    assert "the server's log has it" in page
    assert "a fault" not in page
    assert (play.episode.state, play.episode.measurements) == (State.FROZEN, ())
    assert play.root.post(f"{sent.headers['location']}/resume").status_code == 303
    assert town.work() == 1
    assert play.looked_at(sent) == play.path
    assert len(play.episode.measurements) == 1


def test_an_episode_shows_the_job_that_moves_it(town):
    """Everybody sees that it is under way, operators how far; a second move is refused."""
    play = Play(town)
    play.to_frozen(evidence=False)
    sent = play.root.post(f"{play.path}/measure", {"key": "measure-first"})
    again = play.root.post(f"{play.path}/measure", {"key": "measure-first"})
    assert again.headers["location"] == sent.headers["location"]
    note = "The first measurement of the judges.</strong> It waits for a worker"
    assert note in play.alice.get(play.path).text
    assert "/jobs/" not in play.alice.get(play.path).text.partition("<main")[2]
    shown = play.root.get(play.path).text
    assert f'<a href="{sent.headers["location"]}">How far it is</a>' in shown
    assert "For operators" not in shown
    second = play.root.post(f"{play.path}/judge", {"key": "judge-them"})
    assert second.status_code == 409
    assert sent.headers["location"].rpartition("/")[2] in second.text
    waiting = play.root.get(sent.headers["location"])
    assert "Waiting for a worker" in waiting.text
    assert f"The first measurement of the judges: {html.escape(CLAIM)}" in waiting.text
    assert "K = " not in waiting.text
    assert (
        f"The first measurement of the judges: {html.escape(CLAIM)}" in play.root.get("/jobs").text
    )
    assert play.alice.get(sent.headers["location"]).status_code == 404
    assert play.root.post(f"{sent.headers['location']}/cancel").status_code == 303
    assert town.work() == 0
    assert "For operators" in play.root.get(play.path).text
    assert play.episode.measurements == ()


def test_stopping_the_server_loses_no_measurement(town):
    """Whatever waits is in the store: the next worker does it, and once."""
    play = Play(town)
    play.to_frozen()
    play.root.post(f"{play.path}/judge", {"key": "judge-them"})
    with BackgroundWorker(town.store, town.state.settings, clock=town.state.clock):
        pass
    town.work()
    assert town.state.jobs.find_moving(play.id) is None
    assert [challenge.fate for challenge in play.episode.challenges] != [Fate.REVEALED]


def test_one_person_on_their_own_machine_plays_alone(site):
    """Without accounts the one user is the operator, and bets as `local`."""
    site.state.clock = ManualClock(NOW)
    sent = site.post("/episodes/new", {**SMALL, "claim": CLAIM, "key": "alone-at-home"})
    assert site.work() == 1
    job = site.state.jobs.get(sent.headers["location"].rpartition("/")[2], by=LOCAL)
    path = f"/episodes/{job.episode}"
    site.post("/profile/join")
    quote = site.get(f"{path}/quote", params={"side": "orthodox", "amount": "1,000"})
    site.post(f"{path}/stake", hidden(quote.text))
    assert site.state.exchange.balance("local") == 900_000
    assert "You, on this machine" in site.get("/profile").text
