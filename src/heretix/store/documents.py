"""Prompt banks and bundles of evidence: texts that are kept once and never change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, bindparam, select

from heretix.core.clock import utc_now
from heretix.core.errors import BankError, RecordError
from heretix.store.db import conflict_insert
from heretix.store.schema import bundles, prompts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.store.store import Store

_TEXT: Final = {
    "system": "system",
    "user_template": "user_template",
    "paraphrases_json": "paraphrases",
}
"""Columns that hold the text of a bank, and what a bank's file calls them."""
_BANK: Final = select(prompts).where(prompts.c.prompt_version == bindparam("version"))


def register_bank(
    store: Store,
    *,
    prompt_version: str,
    bank_sha256: str,
    source: str,
    system: str,
    user_template: str,
    paraphrases: Sequence[str],
) -> None:
    """Remember a bank's text. Other text under the same version is a `BankError`.

    It takes a store and not a connection: a bank that is known needs no turn to write.
    """
    row = {
        "prompt_version": prompt_version,
        "bank_sha256": bank_sha256,
        "source": source,
        "system": system,
        "user_template": user_template,
        "paraphrases_json": json.dumps(list(paraphrases), ensure_ascii=False),
        "created_at": utc_now(),
    }
    known = store.read(select_bank, prompt_version) or store.write(_insert_bank, row)
    differing = [name for column, name in _TEXT.items() if known[column] != row[column]]
    if differing:
        raise BankError(
            f"`version` {prompt_version} of bank `{source}` is taken: this store has "
            f"it from bank `{known['source']}`, with other text in {', '.join(differing)}; "
            f"bump `version` in `{source}`"
        )


def select_bank(connection: Connection, prompt_version: str) -> Mapping[str, Any] | None:
    """Read the bank that is registered under a version."""
    row = connection.execute(_BANK, {"version": prompt_version}).one_or_none()
    return None if row is None else row._asdict()


def _insert_bank(connection: Connection, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Register a bank, unless its version is taken; the row that stands there."""
    insert = conflict_insert(connection.dialect.name, prompts)
    connection.execute(insert.on_conflict_do_nothing(), row)
    known = select_bank(connection, row["prompt_version"])
    assert known is not None, "the row was inserted, or was there"
    return known


def save_bundle(
    connection: Connection, bundle_id: str, claim: str, lens: str, bundle_json: str
) -> None:
    """Keep a bundle; one that is there already is the same, since its id is its content."""
    row = {
        "bundle_id": bundle_id,
        "claim": claim,
        "lens": lens,
        "bundle_json": bundle_json,
        "created_at": utc_now(),
    }
    insert = conflict_insert(connection.dialect.name, bundles)
    connection.execute(insert.on_conflict_do_nothing(), row)


def find_bundle(connection: Connection, ref: str) -> str:
    """Read the JSON of the bundle whose id begins with `ref`."""
    wanted = ref.strip().lower()
    statement = select(bundles.c.bundle_json).where(
        bundles.c.bundle_id.startswith(wanted, autoescape=True)
    )
    found = connection.scalars(statement.limit(2)).all() if wanted else []
    if len(found) != 1:
        problem = "fits several bundles; give more of it" if found else "names no stored bundle"
        raise RecordError(f"`{ref}` {problem}; `heretix evidence build` makes one")
    return str(found[0])
