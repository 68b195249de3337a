"""Refusals as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from heretix.errors import RefusedError

__all__ = ["readable"]

# After the words that moments follow: an amount may have as many digits.
_MOMENT: Final = re.compile(r"(?:(?<=\bat )|(?<=\bis )|(?<=\buntil ))1\d{12}(?![\w.])")


def readable(error: RefusedError) -> RefusedError:
    """A refusal with its moments as people write them; rules count milliseconds."""

    def said(found: re.Match[str]) -> str:
        moment = datetime.fromtimestamp(int(found[0]) / 1000, UTC)
        return moment.strftime("%Y-%m-%d %H:%M:%S UTC")

    return RefusedError(_MOMENT.sub(said, str(error)), status=error.status)
