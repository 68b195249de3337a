"""Secrets that are handed out once: random, and known to the store by their hash only."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

__all__ = ["SECRET_BYTES", "hashed", "new_secret"]

SECRET_BYTES: Final = 32


def new_secret(prefix: str = "") -> str:
    """256 random bits as text."""
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def hashed(secret: str) -> str:
    """What the store keeps. A plain hash will do: nobody can guess 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
