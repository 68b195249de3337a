"""What somebody new sees first: help that isn't cut short, names in full, words that help on."""

import pytest
import typer

CLAIM = "Daylight saving time reduces electricity consumption."


def groups(command, *path):
    """The command and all below it that have commands of their own, by the words that name them."""
    below = getattr(command, "commands", None)
    if below:
        yield path
    for name, each in (below or {}).items():
        yield from groups(each, *path, name)


def test_no_summary_of_a_command_is_cut_short(heretix, monkeypatch):
    """The list of commands is read before anything else, in a terminal of 80 columns."""
    from heretix.cli.app import app

    monkeypatch.setenv("COLUMNS", "80")
    found = list(groups(typer.main.get_command(app)))
    assert {(), ("episode",), ("export",)} <= set(found)
    for path in found:
        listed = heretix(*path, "--help").out.partition("Commands:")[2].splitlines()
        assert len(listed) > 1, path
        assert not [line for line in listed if line.endswith("...") or line.startswith("   ")], path


def test_models_are_named_in_full_on_a_narrow_terminal(heretix, monkeypatch):
    """What is listed can be pulled by the name that is shown."""
    monkeypatch.setenv("COLUMNS", "80")
    assert "local:qwen2.5-coder-1.5b" in heretix("models", "list").out


def test_quotes_have_the_width_of_the_terminal(heretix, monkeypatch):
    """Several words a line, and where the bundles are now is said."""
    monkeypatch.setenv("COLUMNS", "80")
    built = heretix("evidence", "build", CLAIM, "--corpus", "demo", "--out", "bundles")
    assert built.code == 0
    assert "The report concludes that daylight saving time reduces" in built.out
    assert "stored in runs/heretix.sqlite, written to bundles" in built.out
    assert max(map(len, built.out.splitlines())) <= 80


@pytest.mark.parametrize("command", [("lens", "-m", "sim:x", "-B", "100"), ("evidence", "build")])
def test_a_claim_of_ones_own_is_told_about_the_demo_corpus(heretix, command):
    """It is about a few claims, so that another one finds too little there."""
    found = heretix(*command, "The moon is made of cheese.")
    assert found.code == 1
    assert "`demo` corpus is about four claims only" in " ".join(found.err.split())


def test_no_jobs_are_no_empty_table(heretix):
    """But a way to leave one."""
    heretix("run", "Tea is good", "--mock", "-K", "4", "-R", "1", "-T", "4")
    assert "no jobs; `heretix jobs submit`" in heretix("jobs", "list").out


def test_a_quota_is_said_back(heretix):
    """What was set, and what an explorer begins with."""
    heretix("users", "add", "ada", "--role", "explorer", "--no-password")
    said = heretix("users", "quota", "ada", "--jobs-per-day", "20", "--usd-per-day", "5").out
    assert "20 jobs a day, 4 jobs at a time, 5.00 USD a day" in said


def test_too_small_a_purse_is_told_in_money(heretix):
    """Not in minor units, and not by the key of the move."""
    heretix("episode", "open", "Tin whiskers cause short circuits.", "--practice", "-B", "200")
    refused = heretix("market", "buy", "latest", "heretic", "20000", "--as", "bob")
    assert refused.code == 2
    assert "has 10,000.00 PLAY left and would need 20,000.00 PLAY" in refused.err
    assert "by:user" not in refused.err
    early = heretix("episode", "settle", "latest")
    assert "`heretix episode show EPISODE` says what comes next" in early.err


def test_a_reason_is_told_in_money_and_percent(heretix):
    """Not in minor units, nor in parts per million."""
    heretix("episode", "open", "Tin whiskers cause short circuits.", "--practice", "-B", "200")
    explained = heretix("rewards", "explain", "latest").out
    assert "the house seeds the market at 50% for heretic" in explained
    assert "measured in 1 execution\n" in heretix("episode", "show", "latest").out


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("runs", "heretix run"),
        ("resume", "heretix run"),
        ("show x", "heretix run"),
        ("anomalies", 'heretix lens "A claim."'),
        ("batch status", 'heretix run "A claim." --batch'),
        ("evidence show x", 'heretix evidence build "A claim."'),
        ("episode list", 'heretix episode open "A claim." --practice'),
        ("market list", 'heretix episode open "A claim." --practice'),
        ("rewards explain latest", 'heretix episode open "A claim." --practice'),
        ("ledger balances", "heretix ledger join NAME"),
        ("explore feed", 'heretix lens "A claim."'),
        ("export runs", "heretix run"),
        ("export samples", "heretix run"),
        ("export transfers", "heretix ledger join NAME"),
        ("jobs list", 'heretix jobs submit "A claim."'),
        ("users list", "heretix users add NAME --role operator"),
    ],
)
def test_an_empty_folder_is_told_how_to_begin(heretix, folder, line, first):
    """Each command names its own first step, and makes nothing."""
    result = heretix(*line.split())
    assert result.code == 2
    assert f"`{first}` first" in result.err
    assert not (folder / "runs" / "heretix.sqlite").exists()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("runs", 0, 'no runs yet; `heretix run "A claim."` makes one'),
        ("anomalies", 0, 'no claim was measured with evidence yet; `heretix lens "A claim."`'),
        ("episode list", 0, 'no episode yet; `heretix episode open "A claim." --practice`'),
        ("market list", 0, 'no market is open; `heretix episode open "A claim." --practice`'),
        ("market positions", 0, "me has no bets; `heretix market list`"),
        ("market show latest", 2, '`heretix episode open "A claim." --practice`'),
        ("ledger balances --person bob", 0, "`heretix ledger join NAME`"),
        ("explore leaderboard", 0, "nobody yet; rewards of episodes count here"),
        ("jobs list", 0, "no jobs; `heretix jobs submit`"),
        ("users audit --what nothing.such", 0, "nothing like that was done yet"),
    ],
)
def test_an_empty_store_is_told_how_to_go_on(heretix, line, code, said):
    """A list of nothing says what would fill it."""
    assert heretix("ledger", "join", "ann").code == 0
    result = heretix(*line.split())
    assert result.code == code
    assert said in " ".join(f"{result.out} {result.err}".split())
