"""Sealed file: the commitment secret that a challenger keeps until the reveal.

Until the reveal nobody else may have it. It holds all that the reveal needs; losing it loses the
stake.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from heretix.core.canonical import Record
from heretix.core.errors import RecordError, RefusedError
from heretix.economy.episode.challenges import evidence_commitment
from heretix.economy.episode.state import Denial, Direction
from heretix.economy.ledger import user_account
from heretix.evidence.bundle import read_bundle

if TYPE_CHECKING:
    from heretix.economy.episode.state import Episode
    from heretix.evidence.bundle import Bundle

FORMAT: Final = "heretix-reveal/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Secret behind a commitment, and where it was made."""

    episode: str
    number: int | None
    """The challenge's number; None where the file was made before the commitment was taken."""
    person: str
    nonce: bytes
    direction: Direction
    bundle: Bundle

    def commitment(self, person: str, currency: str) -> str:
        """Commitment that this opens."""
        account = user_account(person, currency).id
        return evidence_commitment(self.nonce, self.bundle.bundle_id, self.direction, account)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File(Record):
    """The fields of a reveal file."""

    format: Literal["heretix-reveal/2"]
    episode: str
    number: int | None
    person: str
    nonce: bytes
    direction: Direction
    bundle: dict[str, Any]


def dump_secret(secret: Secret) -> str:
    """Write the secret as the text of a file."""
    own = {"nonce": secret.nonce.hex(), "bundle": secret.bundle.to_json()}
    names = ("episode", "number", "person", "direction")
    content = {"format": FORMAT} | {name: getattr(secret, name) for name in names} | own
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def load_secret(text: str, source: str = "the reveal file") -> Secret:
    """Read a secret; every hash of its bundle is checked."""
    from pydantic import TypeAdapter, ValidationError

    from heretix.core.validation import explain

    try:
        content = TypeAdapter(_File).validate_json(text)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise RecordError(
                f"`{source}` isn't JSON ({first['msg']}); give what `heretix episode challenge` "
                "wrote"
            ) from exc
        raise RecordError(
            f"`{source}` must be what committing to evidence gave you ({FORMAT}), and was "
            f"changed or cut off: {explain(first)}"
        ) from exc
    names = ("episode", "number", "person", "nonce", "direction")
    own = {name: getattr(content, name) for name in names}
    return Secret(**own, bundle=read_bundle(content.bundle, source))


def find_commitment(secret: Secret, episode: Episode, person: str) -> int:
    """Find the challenge of this person's that hides this secret, by its commitment."""
    wanted = secret.commitment(person, episode.terms.currency)
    account = user_account(person, episode.terms.currency).id
    for challenge in episode.challenges:
        if (challenge.account, challenge.commitment) == (account, wanted):
            return challenge.number
    raise RefusedError(
        f"`{episode.id}` has no commitment by {person} to this evidence; reveal as the person who "
        "committed to it, with the file that was saved then",
        status=Denial.WRONG_REVEAL.value,
    )
