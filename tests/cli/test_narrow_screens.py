"""On a narrow screen bars, models and claims give way; names and numbers never do."""

import re

import pytest

CLAIM = "Handwashing with soap reduces the spread of diarrhoeal disease."
MODEL = "sim:reader?prior=0.72&mel=0.3&hel=-1.7&template_sd=0.12&noise_sd=0.1"
SMALL = ("-K", 8, "-R", 1, "-B", 100)
LINE = r"(RPL|NUL|MEL|HEL) +0\.\d{3}  0\.\d{3}–0\.\d{3}"


@pytest.fixture
def screen(monkeypatch):
    """Set the columns of the screen."""
    return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


@pytest.fixture
def measured(heretix):
    """A store with a belief vector of one model."""
    done = heretix("lens", CLAIM, "-m", MODEL, *SMALL, "-o", "vector.json")
    assert done.code == 0, done.err


@pytest.fixture
def played(heretix):
    """A store with an episode that was opened."""
    opened = heretix("episode", "open", CLAIM, "--practice", "-R", 1, "-B", 100)
    assert opened.code == 0, opened.err


@pytest.mark.parametrize("columns", [60, 80])
def test_a_list_of_runs_shows_every_number(heretix, played, screen, columns):
    """What an episode calls its runs is shortened; run, p and interval are whole."""
    assert heretix("run", CLAIM, "--mock", *SMALL).code == 0
    screen(columns)
    listed = heretix("runs").out
    assert max(map(len, listed.splitlines())) <= columns
    rows = re.findall(
        r"^([0-9a-f]{8})  (NUL episode|RPL) +0\.\d{3}  0\.\d{3}–0\.\d{3}  \S", listed, re.MULTILINE
    )
    assert {what for _, what in rows} == {"NUL episode", "RPL"}
    assert len(rows) == len(listed.splitlines()) - (2 if columns < 72 else 1)
    for ref, _ in rows:
        assert heretix("show", ref).code == 0


def test_a_wide_list_names_the_episode(heretix, played, screen):
    """Where there is room, or no screen at all, the variant is whole."""
    screen(200)
    assert re.search(r"NUL episode:draft-\w+:c0:before ", heretix("runs").out)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_the_bar_of_a_vector_gives_way(heretix, measured, screen, columns):
    """Every lens keeps its name, its p and its interval; a wide screen has that by t, too."""
    screen(columns)
    shown = heretix("show", "vector.json").out
    assert max(map(len, shown.splitlines())) <= columns
    by_t = r"  0\.\d{3}–0\.\d{3}" if columns >= 64 else ""
    assert len(re.findall(f"^{LINE}{by_t}  0 .*[●━].* 1 *$", shown, re.MULTILINE)) == 4


def test_where_there_is_no_room_for_a_bar_there_is_none(heretix, measured, screen):
    """A bar of two cells would say nothing."""
    screen(30)
    shown = heretix("show", "vector.json").out
    assert len(re.findall(f"^{LINE} *$", shown, re.MULTILINE)) == 4


@pytest.mark.parametrize("columns", [50, 60])
def test_the_templates_of_a_run_keep_their_numbers(heretix, measured, screen, columns):
    """The table of templates cuts its bars, and nothing else."""
    screen(columns)
    ref = re.search(r"^[0-9a-f]{8}", heretix("runs").out, re.MULTILINE)[0]
    shown = heretix("show", ref).out
    row = r"^ *(trimmed )? *\d+  1  0\.\d{3}  0\.\d{3}–0\.\d{3} +[+-]0\.\d{3}( |$)"
    assert len(re.findall(row, shown, re.MULTILINE)) == 8


def test_the_history_of_the_ledger_is_stacked(heretix, played, screen):
    """Accounts are read on lines of their own, not letter by letter."""
    screen(60)
    listed = heretix("ledger", "history").out
    assert max(map(len, listed.splitlines())) <= 60
    assert re.search(r"^ +to escrow:ep-\w+:stake:PLAY *$", listed, re.MULTILINE)
    assert re.search(r"1,000\.00 PLAY seed, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", listed)
