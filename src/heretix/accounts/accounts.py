"""Accounts: people, roles, quotas, passwords, and attempts to sign in."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from heretix.accounts.audit import Audit, Repository, note
from heretix.accounts.person import (
    FRESH_EXPLORER,
    LOCAL,
    Person,
    Quotas,
    Role,
    check_name,
    fold_name,
)
from heretix.accounts.sessions import Session, Sessions, Tokens
from heretix.core import errors
from heretix.core.canonical import sha256_text
from heretix.core.clock import utc_text
from heretix.store import accounts as rows
from heretix.store.jobs import stop_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from argon2 import PasswordHasher

    from heretix.store import Store

MIN_PASSWORD_CHARS: Final = 10
MAX_PASSWORD_CHARS: Final = 1024  # hashing takes time in proportion; nobody may ask for hours of it


def check_password(text: str) -> str:
    """Check that a password may be set; the error doesn't repeat it."""
    if not MIN_PASSWORD_CHARS <= len(text) <= MAX_PASSWORD_CHARS:
        raise errors.AccountError(
            f"`password` must have {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS:,} characters, "
            f"got {len(text):,}; several words in a row make a good one"
        )
    return text


class Passwords:
    """Argon2id with the parameters of RFC 9106 for machines with little memory to spare."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._given = hasher

    @cached_property
    def _hasher(self) -> PasswordHasher:
        # Imported as needed: listing people takes no password.
        from argon2 import PasswordHasher

        return self._given or PasswordHasher()

    def hash(self, password: str) -> str:
        """Hash a password, with its salt and parameters."""
        return self._hasher.hash(password)

    @cached_property
    def _decoy(self) -> str:
        return self._hasher.hash(secrets.token_urlsafe(32))

    def verify(self, password: str, kept: str | None) -> bool:
        """Compare a password with the hash that was kept. Without a hash it takes as long: a decoy
        is hashed, made on the first call whoever that is about, so as not to tell names apart."""
        from argon2.exceptions import InvalidHashError, VerificationError

        decoy = self._decoy
        if len(password) > MAX_PASSWORD_CHARS:
            password = ""
        try:
            self._hasher.verify(kept or decoy, password)
        except (VerificationError, InvalidHashError):
            return False
        return kept is not None

    def is_outdated(self, kept: str) -> bool:
        """Tell that a hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(kept)


WINDOW_S: Final = 900.0
_BOTH: Final = 10  # failures of one name from one address: somebody tries passwords
_ADDRESS: Final = 100  # failures from one address: somebody tries names, or an office shares it
_NAME: Final = 200  # failures of one name from anywhere. High, since it locks out the person, too


class Attempts(Repository):
    """Attempts to sign in, counted in the store, so that all servers on it agree.

    One counts before its password is checked: those made at the same moment all count.
    """

    def begin(self, name: str, address: str | None) -> None:
        """Count an attempt; raise when there were too many lately."""
        now = self._clock()
        limits = _limits(name, address)
        counted = self._store.write(rows.count_attempts, limits, now=now, window_s=WINDOW_S)
        over = [since for subject, (count, since) in counted.items() if count > limits[subject]]
        if over:
            wait_s = max(1.0, max(over) + WINDOW_S - now)
            raise errors.TooManyRequestsError(
                "signing in failed too often; try again in "
                f"{max(1, round(wait_s / 60))} min, or ask an operator",
                retry_after_s=wait_s,
            )

    def clear(self, name: str, address: str | None) -> None:
        """Forget the failures of this name from here; the attempt itself was none."""
        both, *others = _limits(name, address)
        self._store.write(
            rows.forget_attempts, cleared=[both], forgiven=others, before=self._clock() - WINDOW_S
        )


def _limits(name: str, address: str | None) -> dict[str, int]:
    """Name the counts that an attempt adds to, the one of name and address first."""
    who, place = fold_name(name), address or ""
    limits = {("both", who, place): _BOTH, ("name", who): _NAME}
    if address is not None:
        limits["address", place] = _ADDRESS
    # Hashed: what was typed as a name may be a password, and may be long.
    return {sha256_text("\x00".join(parts)): most for parts, most in limits.items()}


class People(Repository):
    """The accounts of one store. Every change is in the log, where `by` says who made it."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        passwords: Passwords | None = None,
    ) -> None:
        super().__init__(store, clock)
        self._passwords = passwords or Passwords()
        self._attempts = Attempts(store, clock)
        self.sessions = Sessions(store, clock)
        self.tokens = Tokens(store, clock)
        self.audit = Audit(store, clock)

    def add(
        self,
        name: str,
        *,
        role: Role = Role.READER,
        password: str | None = None,
        quotas: Quotas | None = None,
        by: Person = LOCAL,
        address: str | None = None,
    ) -> Person:
        """Make an account. Without a password nobody can sign in; tokens can be issued. A fresh
        explorer has daily limits unless others are given."""
        name = check_name(name)
        if quotas is None:
            quotas = FRESH_EXPLORER if role is Role.EXPLORER else Quotas()
        row = {
            "person_id": f"person-{secrets.token_hex(8)}",
            "name": name,
            "folded_name": fold_name(name),
            "role": role.value,
            "active": True,
            "password_hash": (
                None if password is None else self._passwords.hash(check_password(password))
            ),
            **asdict(quotas),
            "created_at": utc_text(self._clock()),
        }
        with self._store.writing() as connection:
            if not rows.insert_person(connection, row):
                raise errors.ConflictError(
                    f"`name` {name!r} is taken, or too much like one that is"
                )
            note(connection, self._clock(), "person.add", by=by, subject=name, address=address)
        return Person.of(row)

    def list(self, *, limit: int = 100, after: str = "") -> list[Person]:
        """List people by name, from the one behind a name."""
        found = self._store.read(rows.select_people, limit=limit, after=fold_name(after))
        return [Person.of(row) for row in found]

    def count(self) -> int:
        """Count the accounts. None: whoever reaches this machine is its operator."""
        return self._store.read(rows.count_people)

    def find(self, name: str) -> Person:
        """Find the person of a name, in whatever case it is written."""
        row = self._store.read(rows.select_person_by_name, fold_name(name))
        if row is None:
            raise _unknown(name)
        return Person.of(row)

    def set_role(
        self, name: str, role: Role, *, by: Person = LOCAL, address: str | None = None
    ) -> Person:
        """Let a person do more, or less, from now on. Who becomes an explorer and has no limits is
        given those of a fresh one."""
        values: dict[str, Any] = {"role": role.value}
        if role is Role.EXPLORER and self.find(name).quotas == Quotas():
            values |= asdict(FRESH_EXPLORER)
        return self._change(name, values, "person.role", by=by, address=address)

    def set_quotas(
        self, name: str, quotas: Quotas, *, by: Person = LOCAL, address: str | None = None
    ) -> Person:
        """Say how much a person may use."""
        return self._change(name, asdict(quotas), "person.quotas", by=by, address=address)

    def set_password(
        self, name: str, password: str, *, by: Person = LOCAL, address: str | None = None
    ) -> Person:
        """Give a person another password. Whoever was signed in with the old one is signed out."""
        new = {"password_hash": self._passwords.hash(check_password(password))}
        return self._change(name, new, "person.password", by=by, address=address)

    def change_password(
        self, person: Person, old: str, new: str, *, address: str | None = None
    ) -> Person:
        """Let people change their own password, if they know it."""
        check_password(new)
        self.authenticate(person.name, old, address=address)
        return self.set_password(person.name, new, by=person, address=address)

    def deactivate(self, name: str, *, by: Person = LOCAL, address: str | None = None) -> Person:
        """Shut a person out, sessions and tokens included. What they did stays.

        Their jobs end: what waits at once, what runs as soon as its worker hears of it.
        """
        if fold_name(name) == fold_name(by.name):
            raise errors.AccessError(f"`{name}` can't disable itself; let another operator do it")
        off = {"active": False}
        return self._change(name, off, "person.disable", by=by, address=address, stops=True)

    def activate(self, name: str, *, by: Person = LOCAL, address: str | None = None) -> Person:
        """Enable an account again."""
        return self._change(name, {"active": True}, "person.enable", by=by, address=address)

    def authenticate(self, name: str, password: str, *, address: str | None = None) -> Person:
        """Check a name and password. An unknown name takes as long as a known one."""
        self._attempts.begin(name, address)
        row = self._store.read(rows.select_person_by_name, fold_name(name))
        kept = row["password_hash"] if row is not None and row["active"] else None
        if not self._passwords.verify(password, kept):
            # a name that nobody has isn't written down: people type passwords into that field.
            subject = row["name"] if row is not None else None
            self.audit.write("session.refused", by=None, subject=subject, address=address)
            raise errors.SignInError("the name or the password is wrong")
        assert row is not None
        assert kept is not None
        self._attempts.clear(name, address)
        if self._passwords.is_outdated(kept):
            new = self._passwords.hash(password)
            self._store.write(rows.replace_password_hash, row["person_id"], old=kept, new=new)
        return Person.of(row)

    def sign_in(
        self, name: str, password: str, *, address: str | None = None, replacing: str | None = None
    ) -> Session:
        """Sign in. `replacing` is the token of the session that the browser had before."""
        person = self.authenticate(name, password, address=address)
        return self.sessions.open(person, address=address, replacing=replacing)

    def _change(
        self,
        name: str,
        values: dict[str, Any],
        what: str,
        *,
        by: Person,
        address: str | None,
        stops: bool = False,
    ) -> Person:
        """Change a row and, if it `stops` the person, end their jobs, in one transaction.

        Whoever has another password, or is shut out, is signed out, too.
        """
        with self._store.writing() as connection:
            row = rows.select_person_by_name(connection, fold_name(name), lock=True)
            if row is None:
                raise _unknown(name)
            rows.update_person(connection, row["person_id"], values)
            if stops or "password_hash" in values:
                rows.delete_sessions(connection, row["person_id"])
            now = self._clock()
            note(connection, now, what, by=by, subject=row["name"], address=address)
            why = (
                f"`{row['name']}` was disabled, so the job was stopped; what was answered is kept, "
                "and an operator can let it go on"
            )
            stopping = {
                "error": why,
                "error_kind": errors.AccessError.__name__,
                "stamp": utc_text(now),
            }
            for job_id in stop_jobs(connection, row["person_id"], **stopping) if stops else ():
                note(connection, now, "job.cancel", by=by, subject=job_id, address=address)
        return Person.of({**row, **values})


def _unknown(name: str) -> errors.RecordError:
    return errors.RecordError(f"`{name[:60]}` names nobody; `heretix users list` shows who is here")
