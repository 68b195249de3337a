"""Scripts that put no spaces between words: Chinese, Japanese, Thai, Lao, Burmese, Khmer.

Nothing here knows where their words begin. Every character is indexed by itself, and two that
stand side by side are what a word is elsewhere: enough to tell what a text is about.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["UNSPACED", "is_unspaced", "paired", "spaced"]

UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
"""As the inside of a regular expression's brackets."""
_CHARACTER: Final = re.compile(f"[{UNSPACED}]")


def is_unspaced(word: str) -> bool:
    """Whether `word`, as `words` gives them, is a character of such a script."""
    return len(word) == 1 and _CHARACTER.match(word) is not None


def spaced(text: str) -> str:
    """`text` with room around each character of such a script, so that an index sees them."""
    return text if text.isascii() else _CHARACTER.sub(r" \g<0> ", text)


def paired(words: Sequence[str]) -> Iterator[str]:
    """`words` with neighbouring characters of such scripts joined two by two."""
    before = ""
    for word, after in pairwise((*words, "")):
        if not is_unspaced(word):
            yield word
        elif is_unspaced(after):
            yield word + after
        elif not is_unspaced(before):
            yield word
        before = word
