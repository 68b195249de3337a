"""Prompt banks in the database: one version, one text."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, bindparam, select

from heretix.errors import BankError
from heretix.store.engine import conflict_insert
from heretix.store.schema import prompts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.sql.dml import Insert

__all__ = ["insert_bank", "known_bank", "refuse_other_text"]

_TEXT: Final = {
    "system": "system",
    "user_template": "user_template",
    "paraphrases_json": "paraphrases",
}
"""Columns that hold the text, and what a bank's file calls them."""
_KNOWN: Final = select(prompts).where(prompts.c.prompt_version == bindparam("version"))


def known_bank(connection: Connection, prompt_version: str) -> Mapping[str, Any] | None:
    """The bank that is registered under a version."""
    row = connection.execute(_KNOWN, {"version": prompt_version}).one_or_none()
    return None if row is None else row._asdict()


def insert_bank(connection: Connection, row: Mapping[str, Any]) -> None:
    """Register a bank, unless its version is taken."""
    connection.execute(_insert(connection.dialect.name), row)


def refuse_other_text(known: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Two texts under one version would make two measurements look like one."""
    differing = [name for column, name in _TEXT.items() if known[column] != row[column]]
    if differing:
        raise BankError(
            f"`version` {row['prompt_version']} of bank `{row['source']}` is taken: this store has "
            f"it from bank `{known['source']}`, with other text in {', '.join(differing)}; "
            f"bump `version` in `{row['source']}`"
        )


@cache
def _insert(dialect: str) -> Insert:
    return conflict_insert(dialect, prompts).on_conflict_do_nothing(
        index_elements=[prompts.c.prompt_version]
    )
