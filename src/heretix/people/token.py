"""Tokens: how programs say on whose behalf they ask. Shown once, kept as a hash."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import AccessError, AccountError, RecordError, SignInError
from heretix.people.audit import iso, note
from heretix.people.person import Person
from heretix.people.role import Role
from heretix.people.secret import hashed, new_secret
from heretix.store import people as rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heretix.store import Store

__all__ = ["PREFIX", "IssuedToken", "Token", "Tokens"]

PREFIX: Final = "htx_"
"""Lets people, and programs that look for leaked secrets, see what it is."""
_TOUCH_S: Final = 60.0
_MAX_LABEL_CHARS: Final = 80
_LONGEST_S: Final = 3650 * 86_400.0
_WRONG: Final = "the token isn't known, or was revoked; `heretix users tokens` makes another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token; the token itself isn't."""

    id: str
    person_id: str
    label: str
    role: Role
    created_at: str
    expires_at: float | None
    last_used_at: float | None
    revoked_at: str | None

    @property
    def ends(self) -> str | None:
        """When it is over by itself; None: never."""
        return None if self.expires_at is None else iso(self.expires_at)

    def has_expired(self, now: float) -> bool:
        """It is over by itself, revoked or not."""
        return self.expires_at is not None and now >= self.expires_at

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Token:
        """The token in a row of `tokens`."""
        return cls(
            id=row["token_id"],
            person_id=row["person_id"],
            label=row["label"],
            role=Role(row["role"]),
            created_at=row["created_at"],
            expires_at=row["expires_at"],
            last_used_at=row["last_used_at"],
            revoked_at=row["revoked_at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token, at the one moment when its text is known."""

    secret: str = field(repr=False)
    token: Token


class Tokens:
    """The tokens of one store."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    def issue(
        self,
        person: Person,
        *,
        label: str,
        role: Role | None = None,
        expires_in_s: float | None = None,
        by: Person | None = None,
        address: str | None = None,
    ) -> IssuedToken:
        """Make a token that may do what `role` may, which is no more than the person may."""
        if person.is_local:
            raise AccountError("`local` needs no token: there are no accounts here to tell apart")
        if role is not None and role > person.role:
            raise AccessError(
                f"`role` of a token must not be above {person.role.value}, got {role.value}"
            )
        label = label.strip()
        if not 1 <= len(label) <= _MAX_LABEL_CHARS or not label.isprintable():
            raise AccountError(
                f"`label` must be 1 to {_MAX_LABEL_CHARS} printable characters; say what it is for"
            )
        # Written so that what isn't a number is refused, too: it would never be over.
        if expires_in_s is not None and not 0 < expires_in_s <= _LONGEST_S:
            raise AccountError(
                f"`expires_in_s` must be more than 0 and at most {_LONGEST_S:,.0f} (ten years), "
                f"got {expires_in_s}; leave it out for a token that doesn't expire"
            )
        now = self._clock()
        secret = new_secret(PREFIX)
        token = Token(
            id=f"token-{secrets.token_hex(6)}",
            person_id=person.id,
            label=label,
            role=role or person.role,
            created_at=iso(now),
            expires_at=None if expires_in_s is None else now + expires_in_s,
            last_used_at=None,
            revoked_at=None,
        )
        with self._store.writing() as connection:
            rows.insert_token(
                connection,
                {
                    "token_id": token.id,
                    "token_sha256": hashed(secret),
                    "person_id": person.id,
                    "label": label,
                    "role": token.role.value,
                    "created_at": token.created_at,
                    "expires_at": token.expires_at,
                },
            )
            note(connection, now, "token.issue", by=by or person, subject=token.id, address=address)
        return IssuedToken(secret=secret, token=token)

    def verify(self, secret: str, *, used: bool = True) -> Person:
        """Whoever a token speaks for, with the lower of the two roles; being `used` is noted."""
        if not secret.startswith(PREFIX):
            raise SignInError(_WRONG)
        now = self._clock()
        with self._store.reading() as connection:
            row = rows.token_and_person(connection, hashed(secret))
        if row is None or row["revoked_at"] is not None:
            raise SignInError(_WRONG)
        if row["expires_at"] is not None and now >= row["expires_at"]:
            raise SignInError("the token has expired; `heretix users tokens` makes another")
        person = Person.of(row)
        if not person.active:
            raise SignInError("the account is disabled; ask an operator")
        if used and now - (row["last_used_at"] or 0.0) >= _TOUCH_S:
            with self._store.writing() as connection:
                rows.touch_token(connection, row["token_id"], now)
        return replace(person, role=min(person.role, Role(row["token_role"])))

    def list(self, person_id: str | None = None) -> list[Token]:
        """Tokens, the newest first: of one person, or of all."""
        with self._store.reading() as connection:
            return [Token.of(row) for row in rows.list_tokens(connection, person_id)]

    def revoke(self, token_id: str, *, by: Person, address: str | None = None) -> None:
        """End a token: its owner may, and an operator. One that has ended is left as it is."""
        now = self._clock()
        with self._store.writing() as connection:
            row = rows.token_by_id(connection, token_id)
            # Somebody else's token looks as if it didn't exist.
            if row is None or (row["person_id"] != by.id and by.role < Role.OPERATOR):
                raise RecordError(f"`{token_id}` names no token of yours")
            if row["revoked_at"] is None:
                rows.update_token(connection, token_id, {"revoked_at": iso(now)})
                note(connection, now, "token.revoke", by=by, subject=token_id, address=address)
