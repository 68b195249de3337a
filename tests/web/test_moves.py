"""A move is defined once: its command, its operation and its form are made from the definition."""

import inspect

import pytest
import typer
from economyplay import NOW, Play
from typer.testing import CliRunner
from website import serving

from heretix.cli import economy as eco
from heretix.core.clock import ManualClock
from heretix.core.errors import RefusedError
from heretix.economy.ledger import Status
from heretix.economy.market import Side
from heretix.economy.moves import MOVES, Field, Move
from heretix.web.api import episodes as api
from heretix.web.app import create_app
from heretix.web.pages import moves as pages

made = []


def _cheer(actor, episode_id, given):
    if given["loudness"] > 9:
        raise RefusedError("`loudness` is too much", status=Status.ID_CONFLICT.value)
    made.append((actor.person, episode_id, dict(given)))
    return actor.exchange.episode(episode_id)


CHEER = Move(
    name="cheer",
    role="explorer",
    help="Cheer for a side.",
    operation="cheer_side",
    path="cheers",
    schema="Cheer",
    schema_help="A cheer.",
    fields=(
        Field(name="side", kind="choice", choices=Side),
        Field(name="loudness", kind="whole", help="From 1 to 10.", least=1, most=10),
        Field(name="loyal", kind="flag", required=False),
    ),
    keyed=True,
    make=_cheer,
)


@pytest.fixture
def cheering(accounts_site, monkeypatch):
    """A server that knows one move more, for as long as the test takes."""
    made.clear()
    accounts_site.state.clock = ManualClock(NOW)
    for router in (api.changes, pages.router):
        monkeypatch.setattr(router, "routes", list(router.routes))
    api.add_operation(CHEER)
    pages.add_form(CHEER)
    return Play(accounts_site)


def test_every_move_has_its_surfaces():
    """No operation and no form is written by hand that the table doesn't know."""
    operations = {route.name for route in (*api.changes.routes, *api.operations.routes)}
    assert {move.operation for move in MOVES} | {"create_episode"} == operations
    forms = {route.path for route in pages.router.routes if "POST" in route.methods}
    assert {f"/episodes/{{episode_id}}/{move.name}" for move in MOVES} <= forms


def test_a_new_move_is_an_operation(cheering):
    """Documented, validated, and made as whoever asks."""
    document = create_app(cheering.town.state).openapi()
    operation = document["paths"]["/api/v1/episodes/{episode_id}/cheers"]["post"]
    assert (operation["operationId"], operation["description"]) == ("cheer_side", CHEER.help)
    fields = document["components"]["schemas"]["Cheer"]["properties"]
    assert fields["loudness"]["maximum"] == 10
    assert fields["loyal"]["default"] is False


def test_a_new_move_is_a_form(cheering):
    """Its fields are read by their kinds; mistakes and refusals are told, the rest is made once."""
    with serving(cheering.town.state, loopback_only=False) as site:
        alice, path = site.signed_in("alice"), f"{cheering.path}/cheer"
        fields = {"side": "heretic", "loudness": "2", "key": "cheer-once"}
        sent = alice.post(path, fields)
        assert (sent.status_code, sent.headers["location"]) == (303, cheering.path)
        assert made == [
            ("alice", cheering.id, {"side": Side.HERETIC, "loudness": 2, "loyal": False})
        ]
        for value, status, said in (("10", 409, "is too much"), ("11", 422, "at most")):
            answer = alice.post(path, fields | {"loudness": value})
            assert (answer.status_code, said in answer.text) == (status, True)
        assert site.signed_in("rita").post(path, fields, form="/account").status_code == 403
        assert len(made) == 1


def test_a_new_move_is_a_command(heretix_db):
    """With an option for each field, and the rules' refusal in words."""
    app = typer.Typer()
    app.callback()(lambda: None)
    shown = []
    eco.add_move_command(app, CHEER, lambda *found: shown.append(found))
    db, episode = heretix_db
    options = ["--side", "orthodox", "--loudness", "3", "--loyal", "--as", "ada", "--db", db]
    result = CliRunner().invoke(app, ["cheer", episode, *options])
    assert result.exit_code == 0, result.output
    assert made[-1] == ("ada", episode, {"side": Side.ORTHODOX, "loudness": 3, "loyal": True})
    assert shown[0][1] == episode
    assert CliRunner().invoke(app, ["cheer", episode, "--loudness", "11"]).exit_code == 2
    refused = CliRunner().invoke(app, ["cheer", episode, "--loudness", "10", "--db", db])
    assert isinstance(refused.exception, RefusedError)
    assert "Cheer for a side." in inspect.cleandoc(app.registered_commands[0].callback.__doc__)


@pytest.fixture
def heretix_db(accounts_site):
    """A store with an open episode."""
    made.clear()
    accounts_site.state.clock = ManualClock(NOW)
    return accounts_site.store.name, Play(accounts_site).id
