"""Accounts: names, roles, quotas, passwords, and the log of it all."""

import logging
import threading

import pytest
from argon2 import PasswordHasher
from sqlalchemy import select

from heretix.accounts import LOCAL, Passwords, People, Person, Quotas, Role, check_name
from heretix.core.errors import (
    AccessError,
    AccountError,
    ConflictError,
    RecordError,
    SignInError,
    TooManyRequestsError,
)
from heretix.store import schema as web_schema

PASSWORD = "correct horse battery"


def everything(store):
    """All that the tables of people hold, as text."""
    tables = ("people", "sessions", "tokens", "attempts", "audit")
    with store.reading() as connection:
        return "\n".join(
            str(tuple(row))
            for name in tables
            for row in connection.execute(select(getattr(web_schema, name)))
        )


def test_roles_are_steps():
    """Each role may do what those below it may, whatever their names' order."""
    assert Role.READER < Role.EXPLORER < Role.OPERATOR
    assert Role.OPERATOR >= Role.READER
    assert min(Role.OPERATOR, Role.READER) is Role.READER
    assert max(Role) is Role.OPERATOR
    with pytest.raises(TypeError):
        assert Role.READER < "reader"


def test_a_person_is_kept_as_added(people):
    """What was given comes back, by name in any case and by id."""
    quotas = Quotas(jobs_per_day=3, running_jobs=1, usd_micros_per_day=2_500_000)
    ada = people.add("Ada", role=Role.EXPLORER, password=PASSWORD, quotas=quotas)
    assert people.find("ADA") == ada
    assert (ada.role, ada.active, ada.quotas, ada.has_password) == (
        Role.EXPLORER,
        True,
        quotas,
        True,
    )
    assert people.list() == [ada]
    assert people.count() == 1


@pytest.mark.parametrize("name", ["ada", "ADA", "Ａｄａ"])
def test_a_name_that_looks_the_same_is_taken(people, name):
    """Nobody can pass for somebody else by case or by width."""
    people.add("Ada")
    with pytest.raises(ConflictError):
        people.add(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a:b",
        "a：b",
        "a/b",
        "x" * 41,
        "a\nb",
        "a\x00",
        " ada",
        "a  b",
        "a\u202eb",
        "LOCAL",
        "\ud800",
    ],
)
def test_names_that_would_lead_astray_are_refused(name):
    """Colons, slashes, control and invisible characters, and the name of the machine's user."""
    with pytest.raises(AccountError):
        check_name(name)


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "O'Brien & Söhne", "李小龍", "a b"]
)
def test_markup_in_a_name_is_only_text(people, name):
    """It is taken and comes back as it was; pages escape it."""
    assert people.add(name).name == people.find(name).name == check_name(name)


def test_roles_quotas_and_state_can_be_changed(people):
    """The change is there for whoever looks next, and in the log with who made it."""
    boss = people.add("Boss", role=Role.OPERATOR)
    people.add("Ada")
    people.set_role("ada", Role.EXPLORER, by=boss, address="10.0.0.1")
    people.set_quotas("ada", Quotas(running_jobs=2), by=boss)
    people.deactivate("ada", by=boss)
    ada = people.find("Ada")
    assert (ada.role, ada.quotas.running_jobs, ada.active) == (Role.EXPLORER, 2, False)
    assert people.activate("ada", by=boss).active
    newest = people.audit.entries(limit=4)
    assert [entry.what for entry in newest] == [
        "person.enable",
        "person.disable",
        "person.quotas",
        "person.role",
    ]
    assert {(entry.who, entry.subject) for entry in newest} == {("Boss", "Ada")}
    assert newest[-1].address == "10.0.0.1"


def test_nobody_is_somebody_by_mistake(people):
    """Unknown names are errors; the machine's user needs no account."""
    with pytest.raises(RecordError):
        people.find("nobody")
    with pytest.raises(RecordError):
        people.set_role("nobody", Role.OPERATOR)
    assert LOCAL.role is Role.OPERATOR


def test_operators_do_not_lock_themselves_out(people):
    """Disabling oneself is left to another."""
    boss = people.add("Boss", role=Role.OPERATOR)
    with pytest.raises(AccessError):
        people.deactivate("boss", by=boss)


def test_require_says_what_is_missing(people):
    """A reader can't measure; a disabled operator can do nothing."""
    with pytest.raises(AccessError, match="explorer"):
        people.add("Ada").require(Role.EXPLORER)
    people.add("Boss", role=Role.OPERATOR)
    with pytest.raises(AccessError, match="disabled"):
        people.deactivate("Boss").require(Role.READER)


@pytest.mark.parametrize("quotas", [{"jobs_per_day": -1}, {"usd_micros_per_day": -5}])
def test_quotas_are_not_negative(quotas):
    """A limit below nothing is a mistake."""
    with pytest.raises(AccountError):
        Quotas(**quotas)


def test_the_right_password_lets_in_and_no_other(people):
    """Unknown, disabled and without a password all look like a wrong one."""
    people.add("Ada", password=PASSWORD)
    people.add("Bot")
    assert people.authenticate("ada", PASSWORD).name == "Ada"
    for name, password in (("ada", "wrong password"), ("eve", PASSWORD), ("bot", ""), ("ada", "")):
        with pytest.raises(SignInError) as caught:
            people.authenticate(name, password)
        assert str(caught.value) == "the name or the password is wrong"
    people.deactivate("ada")
    with pytest.raises(SignInError):
        people.authenticate("ada", PASSWORD)


def test_an_unknown_name_is_checked_as_long_as_a_known_one(people, quick, monkeypatch):
    """Whatever the name, exactly one hash is computed; the time tells nothing."""
    people.add("Ada", password=PASSWORD)
    people.add("Bot")
    people.add("Gone", password=PASSWORD)
    people.deactivate("gone")
    verified = []
    real = quick._hasher.verify
    monkeypatch.setattr(
        type(quick._hasher),
        "verify",
        lambda _, kept, given: verified.append(1) or real(kept, given),
    )
    for name in ("ada", "bot", "gone", "nobody"):
        verified.clear()
        with pytest.raises(SignInError):
            people.authenticate(name, "wrong password")
        assert len(verified) == 1, name


@pytest.mark.parametrize("password", ["short", "x" * 1025])
def test_passwords_have_a_length(people, password):
    """Too short is guessed, too long takes for ever; neither is repeated in the message."""
    with pytest.raises(AccountError) as caught:
        people.add("Ada", password=password)
    assert password not in str(caught.value)


def test_a_hash_of_old_parameters_is_made_anew(people, store, clock):
    """Signing in is the one moment when the password is known."""
    people.add("Ada", password=PASSWORD)
    stronger = Passwords(PasswordHasher(time_cost=2, memory_cost=16, parallelism=1))
    before = everything(store)
    People(store, clock=clock, passwords=stronger).authenticate("ada", PASSWORD)
    assert "t=2" in everything(store)
    assert "t=2" not in before
    assert people.authenticate("ada", PASSWORD).name == "Ada"


def test_a_new_password_ends_all_sessions(people):
    """Whoever had the old one is out, wherever they are."""
    ada = people.add("Ada", password=PASSWORD)
    session = people.sign_in("ada", PASSWORD)
    with pytest.raises(SignInError):
        people.change_password(ada, "not the old one", "another password")
    people.change_password(ada, PASSWORD, "another password")
    with pytest.raises(SignInError):
        people.sessions.find(session.token)
    with pytest.raises(SignInError):
        people.authenticate("ada", PASSWORD)
    assert people.authenticate("ada", "another password") == ada


def test_guessing_is_stopped_and_only_there(people, clock):
    """After ten failures the name is closed from that address for a while, not from another."""
    people.add("Ada", password=PASSWORD)
    for _ in range(10):
        with pytest.raises(SignInError):
            people.authenticate("ada", "wrong password", address="10.0.0.9")
    with pytest.raises(TooManyRequestsError) as caught:
        people.authenticate("ada", PASSWORD, address="10.0.0.9")
    assert 0 < caught.value.retry_after_s <= 900
    assert people.authenticate("ada", PASSWORD, address="10.0.0.1").name == "Ada"
    clock.forward(901)
    assert people.authenticate("ada", PASSWORD, address="10.0.0.9").name == "Ada"


def test_trying_many_names_from_one_address_is_stopped(people):
    """A list of names doesn't help either."""
    for number in range(100):
        with pytest.raises(SignInError):
            people.authenticate(f"name{number}", "wrong password", address="10.0.0.9")
    with pytest.raises(TooManyRequestsError):
        people.authenticate("yet another", "wrong password", address="10.0.0.9")


def test_a_success_forgets_the_failures_before(people):
    """Somebody who mistypes now and then is never locked out."""
    people.add("Ada", password=PASSWORD)
    for _ in range(5):
        for _ in range(9):
            with pytest.raises(SignInError):
                people.authenticate("ada", "wrong password", address="10.0.0.9")
        people.authenticate("ada", PASSWORD, address="10.0.0.9")


def test_two_servers_count_together(people, store, clock, quick):
    """The failures stand in the store: asking another server is no way around."""
    other = People(store, clock=clock, passwords=quick)
    for server in (people, other) * 5:
        with pytest.raises(SignInError):
            server.authenticate("ada", "wrong password", address="10.0.0.9")
    with pytest.raises(TooManyRequestsError):
        other.authenticate("ada", "wrong password", address="10.0.0.9")


def test_guesses_at_the_same_moment_all_count(people):
    """An attempt counts before it is checked, so a burst gets no more tries than a row."""
    refused, wrong = [], []
    barrier = threading.Barrier(15)

    def guess():
        barrier.wait()
        try:
            people.authenticate("ada", "wrong password", address="10.0.0.9")
        except TooManyRequestsError:
            refused.append(1)
        except SignInError:
            wrong.append(1)

    threads = [threading.Thread(target=guess) for _ in range(15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(wrong), len(refused)) == (10, 5)


def test_no_secret_is_in_the_store_or_the_log(people, store, caplog, capfd):
    """Neither passwords nor tokens can be read from the database, the log or a repr."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("sqlalchemy.engine").setLevel(logging.DEBUG)
    try:
        ada = people.add("Ada", password=PASSWORD)
        session = people.sign_in("ada", PASSWORD, address="10.0.0.1")
        issued = people.tokens.issue(ada, label="for a script")
        people.tokens.verify(issued.secret)
        people.sessions.find(session.token)
        with pytest.raises(SignInError):
            people.authenticate("a secret typed as a name", "wrong password")
    finally:
        logging.getLogger("sqlalchemy.engine").setLevel(logging.NOTSET)
    captured = capfd.readouterr()
    told = f"{caplog.text}{captured.out}{captured.err}{everything(store)}{session!r}{issued!r}"
    secrets = (PASSWORD, session.token, session.csrf, issued.secret, issued.secret[4:])
    for secret in (*secrets, "a secret typed as a name"):
        assert secret not in told
    assert "$argon2id$" in everything(store)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_no_secret_is_in_the_file(people, tmp_path):
    """Not in a page of it, nor in its log of writes."""
    ada = people.add("Ada", password=PASSWORD)
    session = people.sign_in("ada", PASSWORD)
    issued = people.tokens.issue(ada, label="for a script")
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("heretix.sqlite*"))
    assert b"for a script" in kept
    for secret in (PASSWORD, session.token, issued.secret):
        assert secret.encode() not in kept


def test_the_log_comes_in_pages_and_is_filtered(people):
    """Pages join without gap or overlap; who and what can be asked for."""
    for number in range(7):
        people.audit.write(f"thing.{number % 2}", by=None, subject=str(number))
    first = people.audit.entries(limit=3)
    second = people.audit.entries(limit=10, before=first[-1].seq)
    assert [entry.subject for entry in (*first, *second)] == list("6543210")
    assert [entry.subject for entry in people.audit.entries(what="thing.1")] == list("531")
    assert people.audit.entries(who="Ada") == []
    assert {entry.who for entry in first} == {"nobody"}


def test_the_log_has_no_way_to_change(people):
    """Entries are added and read; nothing else can be asked of it."""
    methods = {name for name in dir(people.audit) if not name.startswith("_")}
    assert methods == {"write", "entries"}


def test_a_change_and_its_entry_are_one(people, store):
    """When the change fails, the log doesn't tell of it."""
    people.add("Ada")
    with pytest.raises(ConflictError):
        people.add("ADA")
    assert [entry.subject for entry in people.audit.entries()] == ["Ada"]


def test_a_person_is_a_value(people):
    """Equal by content, and not to be changed."""
    ada = people.add("Ada")
    assert ada == people.find("ada")
    with pytest.raises(AttributeError):
        ada.role = Role.OPERATOR
    assert isinstance(ada, Person)
