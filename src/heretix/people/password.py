"""Passwords: hashed slowly, never kept, and checked in the same time whoever is asked for."""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import TYPE_CHECKING, Final

from heretix.errors import AccountError

if TYPE_CHECKING:
    from argon2 import PasswordHasher

__all__ = ["MAX_PASSWORD_CHARS", "MIN_PASSWORD_CHARS", "Passwords", "check_password"]

MIN_PASSWORD_CHARS: Final = 10
MAX_PASSWORD_CHARS: Final = 1024
"""Hashing takes time in proportion; nobody may ask for hours of it."""


def check_password(text: str) -> str:
    """A password that may be set, or an error that doesn't repeat it."""
    if not MIN_PASSWORD_CHARS <= len(text) <= MAX_PASSWORD_CHARS:
        raise AccountError(
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

    @cached_property
    def _decoy(self) -> str:
        """A hash that no password fits, for names that nobody has."""
        return self._hasher.hash(secrets.token_urlsafe(32))

    def hash(self, password: str) -> str:
        """The hash of a password, with its salt and parameters."""
        return self._hasher.hash(password)

    def fits(self, password: str, kept: str | None) -> bool:
        """Whether a password is the one that was hashed. Without a hash it takes as long."""
        from argon2.exceptions import InvalidHashError, VerificationError

        # Made on the first call, whoever that is about: it mustn't tell names apart.
        decoy = self._decoy
        if len(password) > MAX_PASSWORD_CHARS:
            password = ""
        try:
            self._hasher.verify(kept or decoy, password)
        except (VerificationError, InvalidHashError):
            return False
        return kept is not None

    def outdated(self, kept: str) -> bool:
        """Whether a hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(kept)
