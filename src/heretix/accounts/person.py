"""A person: name, role and quotas."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import AccessError, AccountError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Role(StrEnum):
    """Permissions in three steps, compared by rank: each may do all that the one before may."""

    READER = "reader"  # look at everything that was measured
    EXPLORER = "explorer"  # measure, within quotas, and take part in episodes
    OPERATOR = "operator"  # look after people, jobs and episodes

    @classmethod
    def parse(cls, text: str) -> Role:
        """Read a role as people write it."""
        try:
            return cls(text.strip().lower())
        except ValueError as exc:
            raise AccountError(f"`role` must be one of {', '.join(cls)}, got {text!r}") from exc

    def __lt__(self, other: object) -> bool:
        return _rank(self) < _rank(other)

    def __le__(self, other: object) -> bool:
        return _rank(self) <= _rank(other)

    def __gt__(self, other: object) -> bool:
        return _rank(self) > _rank(other)

    def __ge__(self, other: object) -> bool:
        return _rank(self) >= _rank(other)


def _rank(role: object) -> int:
    # Text would be compared by spelling, where an explorer comes before a reader.
    if not isinstance(role, Role):
        raise TypeError(f"a role is compared with a role, got {role!r}")
    return list(Role).index(role)


MAX_NAME_CHARS: Final = 40
_REFUSED: Final = {":": "a colon", "/": "a slash"}
"""A colon would let one name spell another's account in the ledger; a slash, another page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Limits on what a person may use. None: no limit."""

    jobs_per_day: int | None = None
    running_jobs: int | None = None  # jobs that may wait or run at the same time
    usd_micros_per_day: int | None = None  # millionths of a dollar

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**31 * 1000:
                raise AccountError(f"`{name}` must be a whole number of 0 or more, got {value}")


FRESH_EXPLORER: Final = Quotas(jobs_per_day=50, running_jobs=4, usd_micros_per_day=5_000_000)
"""Limits of whoever may measure and was given none: $5 and 50 jobs a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """An account, or the one user of a store that has none."""

    id: str
    name: str
    role: Role
    active: bool
    created_at: str
    quotas: Quotas
    has_password: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Person:
        """Read a row of `people`."""
        return cls(
            id=row["person_id"],
            role=Role(row["role"]),
            **{name: row[name] for name in ("name", "active", "created_at")},
            quotas=Quotas(**{name: row[name] for name in Quotas.__slots__}),
            has_password=row["password_hash"] is not None,
        )

    @property
    def is_local(self) -> bool:
        """Tell that this is whoever sits at the machine, without an account."""
        return self.id == LOCAL.id

    def require(self, role: Role) -> None:
        """Raise unless the person may do what `role` may."""
        if not self.active:
            raise AccessError(f"`{self.name}` is disabled; an operator can enable the account")
        if self.role < role:
            raise AccessError(
                f"`{self.name}` is a {self.role.value}, and this takes the role {role.value}; "
                "ask an operator for it"
            )


LOCAL: Final = Person(
    id="local",
    name="local",
    role=Role.OPERATOR,
    active=True,
    created_at="1970-01-01T00:00:00.000Z",
    quotas=Quotas(),
)
"""Whoever uses the command line, or a server on this machine only that has no accounts."""


def check_name(text: str) -> str:
    """Bring a name into one Unicode form, or refuse it. Markup is as good as anything."""
    name = unicodedata.normalize("NFKC", text)
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise AccountError(
            f"`name` must be 1 to {MAX_NAME_CHARS} printable characters, got {text[:60]!r}"
        )
    if name != " ".join(name.split()):
        raise AccountError(
            f"`name` must have no spaces at its ends and single ones inside, got {text!r}"
        )
    for char, what in _REFUSED.items():
        if char in name:
            raise AccountError(f"`name` must not have {what}, got {text!r}; choose another")
    if fold_name(name) == LOCAL.name:
        raise AccountError(
            f"`name` {text!r} stands for whoever sits at this machine; choose another"
        )
    return name


def fold_name(name: str) -> str:
    """Fold a name, so that two that people can't tell apart by case or width are equal."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
