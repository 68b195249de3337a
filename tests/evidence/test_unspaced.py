"""Scripts without spaces between words: indexed by character, compared two by two."""

import pytest

from heretix.evidence.text.fold import is_unspaced, pair_characters, space_characters, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Plain words stay.", ["plain", "words", "stay"]),
        ("咖啡有益健康", ["咖啡", "啡有", "有益", "益健", "健康"]),
        ("AI 与人 work", ["ai", "与人", "work"]),
        ("水 and fire", ["水", "and", "fire"]),
        ("수면은 중요하다", ["수면은", "중요하다"]),
        ("", []),
    ],
)
def test_neighbours_are_paired(text, found):
    """A pair of characters is what a word is elsewhere; Korean has spaces, and words."""
    assert list(pair_characters(words(text))) == found


def test_characters_get_room():
    """An index that splits at spaces sees every character, and the rest as it was."""
    assert space_characters("Tea 咖啡!").split() == ["Tea", "咖", "啡", "!"]
    assert space_characters("café") == "café"
    assert (is_unspaced("咖"), is_unspaced("咖啡"), is_unspaced("a")) == (True, False, False)
