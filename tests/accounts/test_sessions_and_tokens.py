"""Sessions and tokens: proofs of who asks, and when they end."""

import pytest

from heretix.accounts import LOCAL, Role
from heretix.core.errors import AccessError, AccountError, RecordError, SignInError

PASSWORD = "correct horse battery"
HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def ada(people):
    """An explorer with a password."""
    return people.add("Ada", role=Role.EXPLORER, password=PASSWORD)


def test_a_session_finds_its_person(people, ada):
    """Until it is closed."""
    session = people.sign_in("ada", PASSWORD, address="10.0.0.1")
    assert people.sessions.find(session.token).person == ada
    people.sessions.close(session.token)
    people.sessions.close(session.token)
    with pytest.raises(SignInError):
        people.sessions.find(session.token)


def test_the_role_of_a_session_is_the_one_of_now(people, ada):
    """A change of role holds from the next page on."""
    session = people.sign_in("ada", PASSWORD)
    people.set_role("ada", Role.READER)
    assert people.sessions.find(session.token).person.role is Role.READER


def test_signing_in_always_gives_a_new_token(people, ada):
    """What a browser brought along is worth nothing afterwards, so it can't have been planted."""
    first = people.sign_in("ada", PASSWORD)
    second = people.sign_in("ada", PASSWORD, replacing=first.token)
    assert first.token != second.token
    with pytest.raises(SignInError):
        people.sessions.find(first.token)
    assert people.sessions.find(second.token).person == ada


def test_a_session_that_is_left_alone_ends(people, ada, clock):
    """A day without use is enough; use keeps it."""
    session = people.sign_in("ada", PASSWORD)
    for _ in range(5):
        clock.forward(23 * HOUR)
        people.sessions.find(session.token)
    clock.forward(24 * HOUR)
    with pytest.raises(SignInError):
        people.sessions.find(session.token)


def test_a_session_ends_however_much_it_is_used(people, ada, clock):
    """Two weeks, and no more."""
    session = people.sign_in("ada", PASSWORD)
    for _ in range(14):
        people.sessions.find(session.token)
        clock.forward(23 * HOUR)
    clock.forward(13 * HOUR)
    with pytest.raises(SignInError):
        people.sessions.find(session.token)


def test_a_disabled_person_is_out_at_once(people, ada):
    """Sessions and tokens alike; enabling doesn't bring the session back."""
    session = people.sign_in("ada", PASSWORD)
    issued = people.tokens.issue(ada, label="ci")
    people.deactivate("ada")
    for proof in (
        lambda: people.sessions.find(session.token),
        lambda: people.tokens.verify(issued.secret),
    ):
        with pytest.raises(SignInError):
            proof()
    people.activate("ada")
    with pytest.raises(SignInError):
        people.sessions.find(session.token)
    assert people.tokens.verify(issued.secret) == people.find("ada")


def test_a_form_proves_which_session_it_belongs_to(people, ada):
    """The value of another session, or none, is refused."""
    session, other = people.sign_in("ada", PASSWORD), people.sign_in("ada", PASSWORD)
    people.sessions.find(session.token).check_csrf(session.csrf)
    for value in (None, "", other.csrf, session.token, session.csrf + "0", "ü"):
        with pytest.raises(AccessError):
            session.check_csrf(value)


@pytest.mark.parametrize("token", ["", "nonsense", "x" * 100_000, "\ud800", "' OR 1=1 --"])
def test_a_made_up_proof_is_refused(people, ada, token):
    """Whatever it is, it is only looked up."""
    with pytest.raises(SignInError):
        people.sessions.find(token)
    with pytest.raises(SignInError):
        people.tokens.verify(f"htx_{token}")


def test_a_token_speaks_for_its_person(people, ada, clock):
    """Its text is shown once; what is kept says when it was used."""
    issued = people.tokens.issue(ada, label="  ci  ", expires_in_s=DAY)
    assert issued.secret.startswith("htx_")
    assert people.tokens.verify(issued.secret) == ada
    (token,) = people.tokens.list(ada.id)
    assert (token.label, token.role, token.last_used_at) == ("ci", Role.EXPLORER, clock.now)
    clock.forward(DAY)
    with pytest.raises(SignInError, match="expired"):
        people.tokens.verify(issued.secret)


def test_a_token_may_do_no_more_than_its_person(people, ada):
    """Neither when it is made nor after the person was made less."""
    with pytest.raises(AccessError):
        people.tokens.issue(ada, label="too much", role=Role.OPERATOR)
    reads = people.tokens.issue(ada, label="reads", role=Role.READER)
    acts = people.tokens.issue(ada, label="acts")
    assert people.tokens.verify(reads.secret).role is Role.READER
    people.set_role("ada", Role.OPERATOR)
    assert people.tokens.verify(acts.secret).role is Role.EXPLORER
    people.set_role("ada", Role.READER)
    assert people.tokens.verify(acts.secret).role is Role.READER


def test_a_session_is_no_token_and_a_token_no_session(people, ada):
    """Each is taken only where it belongs."""
    session, issued = people.sign_in("ada", PASSWORD), people.tokens.issue(ada, label="ci")
    with pytest.raises(SignInError):
        people.tokens.verify(session.token)
    with pytest.raises(SignInError):
        people.sessions.find(issued.secret)


def test_tokens_are_revoked_by_their_owner_or_an_operator(people, ada):
    """Somebody else's token can't even be told from one that doesn't exist."""
    eve = people.add("Eve", role=Role.EXPLORER)
    first, second = (people.tokens.issue(ada, label=label) for label in ("one", "two"))
    with pytest.raises(RecordError) as theirs:
        people.tokens.revoke(first.token.id, by=eve)
    with pytest.raises(RecordError) as nobodys:
        people.tokens.revoke("token-0", by=eve)
    assert str(theirs.value).replace(first.token.id, "token-0") == str(nobodys.value)
    people.tokens.revoke(first.token.id, by=ada)
    people.tokens.revoke(second.token.id, by=LOCAL)
    for issued in (first, second):
        with pytest.raises(SignInError):
            people.tokens.verify(issued.secret)
    assert all(token.revoked_at for token in people.tokens.list())
    assert people.tokens.list(eve.id) == []


@pytest.mark.parametrize(
    "options",
    [{"label": " "}, {"label": "x" * 81}, {"label": "a\nb"}, {"label": "ci", "expires_in_s": 0}],
)
def test_a_token_says_what_it_is_for(people, ada, options):
    """Without a label nobody dares to revoke it later."""
    with pytest.raises(AccountError):
        people.tokens.issue(ada, **options)


def test_the_machines_user_needs_no_token(people):
    """There is no account behind it that one could speak for."""
    with pytest.raises(AccountError):
        people.tokens.issue(LOCAL, label="ci")
