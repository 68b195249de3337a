"""Sealed evidence: what a challenger keeps between committing and revealing.

Until the reveal nobody else may have it. It holds all that the reveal needs; losing it loses the
stake.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import RecordError, RefusedError
from heretix.economy.episode.challenges import evidence_commitment
from heretix.economy.episode.state import Denial
from heretix.economy.ledger import user_account
from heretix.evidence.bundle import read_bundle

if TYPE_CHECKING:
    from heretix.economy.episode.state import Episode
    from heretix.evidence.bundle import Bundle

FORMAT: Final = "heretix-reveal/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """What a commitment hides, and where it was made."""

    episode: str
    number: int | None
    """The challenge's number; None where the file was made before the commitment was taken."""
    person: str
    nonce: bytes
    bundle: Bundle

    def commitment(self, person: str, currency: str) -> str:
        """What somebody commits to with this."""
        account = user_account(person, currency).id
        return evidence_commitment(self.nonce, self.bundle.bundle_id, account)


def dump_secret(secret: Secret) -> str:
    """The secret as the text of a file."""
    content = {
        "format": FORMAT,
        "episode": secret.episode,
        "number": secret.number,
        "person": secret.person,
        "nonce": secret.nonce.hex(),
        "bundle": secret.bundle.to_json(),
    }
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def load_secret(text: str, source: str = "the reveal file") -> Secret:
    """Read a secret; every hash of its bundle is checked."""
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise RecordError(
            f"`{source}` isn't JSON ({exc}); give what `heretix episode challenge` wrote"
        ) from exc
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RecordError(
            f"`{source}` must be what committing to evidence gave you ({FORMAT}); it isn't"
        )
    try:
        number = content["number"]
        return Secret(
            episode=str(content["episode"]),
            number=None if number is None else int(number),
            person=str(content["person"]),
            nonce=bytes.fromhex(content["nonce"]),
            bundle=read_bundle(content["bundle"], source),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise RecordError(f"`{source}` lacks {exc}; it was changed or cut off") from exc


def find_commitment(secret: Secret, episode: Episode, person: str) -> int:
    """The challenge of this person's that hides this secret; it is known by its commitment."""
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
