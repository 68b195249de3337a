"""Why a document was left out of a bundle, as people read it."""

from __future__ import annotations

from typing import Final

from heretix.evidence.bundle import DropReason

__all__ = ["REASONS"]

REASONS: Final = {
    DropReason.WRONG_CLASS: "of a class that this lens doesn't admit",
    DropReason.AFTER_AS_OF: "published after the day that was asked for",
    DropReason.UNDATED: "without a date, where dates were required",
    DropReason.UNREADABLE: "no text could be read from it",
    DropReason.HOLDS_NONCE: "holds the code that marks documents",
    DropReason.INJECTION: "tries to give the model orders",
    DropReason.UNREAD: "its page couldn't be fetched or read",
    DropReason.OFF_TOPIC: "speaks of something else than the claim",
    DropReason.BELOW_FLOOR: "less reliable than was asked for",
    DropReason.DUPLICATE: "says what another document says",
    DropReason.PUBLISHER_CAP: "one more of a publisher that has its share",
    DropReason.OVER_BUDGET: "there was no room left",
}
