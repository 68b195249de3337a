"""`heretix users`: accounts from the command line."""

import json

import pytest
from typer.testing import CliRunner

from heretix.accounts import People
from heretix.store import Store

PASSWORD = "correct horse battery"


@pytest.fixture
def users(folder):
    """Run `heretix users …` with a line of standard input; what came of it."""
    from heretix.cli.app import app
    from heretix.core.errors import HeretixError

    def run(*args, typed=f"{PASSWORD}\n"):
        result = CliRunner().invoke(app, ["users", *args], input=typed)
        if isinstance(result.exception, HeretixError):
            return result.exception.exit_code, str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stdout

    return run


def test_an_account_can_sign_in(users):
    """The password comes from standard input and is good for signing in."""
    code, out = users("add", "Ada", "--role", "explorer", "--json")
    assert code == 0
    assert json.loads(out)["role"] == "explorer"
    with Store.open("runs/heretix.sqlite") as store:
        assert People(store).authenticate("ada", PASSWORD).name == "Ada"


def test_there_is_no_way_to_put_a_password_on_the_command_line(users):
    """Other programs can read it there."""
    assert users("add", "Ada", "--password", PASSWORD)[0] == 2
    assert users("password", "Ada", PASSWORD)[0] == 2


def test_mistakes_are_told(users):
    """Each with exit code 2, and nothing is made."""
    for args, typed, message in (
        (("add", "a:b"), "", "colon"),
        (("add", "Ada"), "short\n", "password"),
        (("add", "Ada", "--role", "king"), "", "role"),
    ):
        code, told = users(*args, typed=typed)
        assert code == 2
        assert message in told
    users("add", "Ada", "--no-password")
    assert users("add", "ada", "--no-password")[0] == 2
    for args in (
        ("role", "nobody", "reader"),
        ("quota", "Ada", "--jobs-per-day", "many"),
        ("quota", "Ada", "--usd-per-day", "-1"),
        ("quota", "Ada", "--usd-per-day", "nan"),
        ("tokens", "Ada", "--new", "x", "--role", "operator"),
        ("tokens", "Ada", "--revoke", "token-0"),
    ):
        assert users(*args)[0] == 2, args


def test_roles_quotas_and_state_are_set(users):
    """What isn't named stays as it is; `none` takes a limit away."""
    users("add", "Ada", "--no-password")
    users("role", "ada", " Operator ")
    users("quota", "ada", "--jobs-per-day", "5", "--usd-per-day", "1.25")
    users("quota", "ada", "--running-jobs", "2", "--jobs-per-day", "none")
    users("disable", "ada")
    (person,) = json.loads(users("list", "--json")[1])
    assert (person["role"], person["active"]) == ("operator", False)
    assert person["quotas"] == {
        "jobs_per_day": None,
        "running_jobs": 2,
        "usd_micros_per_day": 1_250_000,
    }
    assert "disabled" in users("list")[1]
    assert json.loads(users("enable", "ada", "--json")[1])["active"]


def test_a_token_is_shown_once(users):
    """Then only what it is for; until it is revoked."""
    users("add", "Ada", "--no-password")
    issued = json.loads(users("tokens", "ada", "--new", "ci", "--days", "30", "--json")[1])
    assert issued["secret"].startswith("htx_")
    listed = users("tokens", "ada")[1]
    assert "ci" in listed
    assert issued["secret"] not in listed
    users("tokens", "ada", "--revoke", issued["id"])
    assert "revoked" in users("tokens", "ada")[1]


def test_the_log_is_shown(users):
    """With names that try to be markup shown as they are."""
    users("add", "[red]Eve", "--no-password")
    users("password", "[red]Eve")
    told = users("audit")[1]
    assert "[red]Eve" in told
    assert PASSWORD not in told
    entries = json.loads(users("audit", "--json", "--limit", "1")[1])
    assert [entry["what"] for entry in entries] == ["person.password"]


def test_a_store_without_accounts_says_what_that_means(users, heretix):
    """Whoever reaches the machine is its operator."""
    heretix("run", "Tea is good", "--mock", "-K", "2", "-R", "1", "-B", "100", "--model", "gpt-5")
    assert "operator" in users("list")[1]
