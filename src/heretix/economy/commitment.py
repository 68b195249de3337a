"""Commitments: a hash now, what it hides later.

Evidence is committed together with the account that found it, so that a copied commitment is
of no use to anyone else. The close and the judges are drawn from one secret, committed at
open, so that nobody can choose them afterwards.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from heretix.economy.canon import require_sha256, sha256_hex
from heretix.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "SECRET_BYTES",
    "draw_close",
    "draw_judges",
    "evidence_commitment",
    "matches_seed",
    "seed_commitment",
]

SECRET_BYTES: Final = 32


def evidence_commitment(nonce: bytes, bundle_sha256: str, account: str) -> str:
    """sha256(nonce ‖ bundle hash ‖ account); the first two have a fixed length."""
    _require_secret("nonce", nonce)
    bundle = bytes.fromhex(require_sha256("bundle_sha256", bundle_sha256))
    return sha256_hex(nonce + bundle + account.encode())


def seed_commitment(seed: bytes) -> str:
    """The hash of a secret seed."""
    return sha256_hex(_require_secret("seed", seed))


def matches_seed(commitment: str, seed: bytes) -> bool:
    """Whether this is the seed that was committed to."""
    return len(seed) == SECRET_BYTES and sha256_hex(seed) == commitment


def draw_close(seed: bytes, episode: str, *, from_ms: int, until_ms: int) -> int:
    """The effective close: any millisecond from the first to the last, each as likely."""
    number = int.from_bytes(_draw(seed, "close", episode), "big")
    return from_ms + number % (until_ms - from_ms + 1)


def draw_judges(
    seed: bytes, episode: str, pool: Sequence[str], *, count: int, round_: int = 0
) -> tuple[str, ...]:
    """`count` of the pool, or all of it when it is smaller; each round draws anew.

    The pool is ranked by hash, so the draw doesn't depend on the order it is given in.
    """
    ranked = sorted(pool, key=lambda model: _draw(seed, "judge", episode, str(round_), model))
    return tuple(ranked[:count])


def _draw(seed: bytes, *labels: str) -> bytes:
    """A hash for one purpose. Lengths keep two lists of labels from reading the same."""
    message = b"".join(
        len(text).to_bytes(4, "big") + text for text in (label.encode() for label in labels)
    )
    return hashlib.sha256(_require_secret("seed", seed) + message).digest()


def _require_secret(name: str, value: bytes) -> bytes:
    if len(value) != SECRET_BYTES:
        raise UsageError(
            f"`{name}` must be {SECRET_BYTES} bytes, got {len(value)}; draw it from a secure "
            "source of randomness"
        )
    return value
