"""Recognise the language of a claim: by its script, and by the commonest words of each language.

A small rule of our own: it knows the languages that have a bank, and neighbours that it would
otherwise take for one of them. What it isn't sure of it doesn't name.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

# Words that say little and stand in nearly every sentence. One that several languages share counts
# for each of them, and so decides nothing between them.
_COMMON: Final = {
    "en": "the a an of is are was were be been has have had does do did not and or in on at to for "
    "from by with than that this these it its as more most will would can could there their they "
    "which who if when into over under after before between all no any",
    "de": "der die das den dem des ein eine einen einem einer eines ist sind war waren wird werden "
    "wurde wurden hat haben hatte nicht kein keine und oder im in am an auf aus bei mit nach von "
    "vom zu zum zur für über unter durch gegen ohne als wie dass es sich auch mehr kann können "
    "liegt gibt vor nur noch seit",
    "es": "el la los las un una unos unas de del es son está están era eran fue fueron ser ha han "
    "hay no y o en al a por para con sin sobre que se su sus más menos como tiene tienen puede "
    "pueden lo entre desde hasta muy todos todas cuando",
    "fr": "le la les un une des du de est sont était étaient fut furent être a ont avait ne pas et "
    "ou en au aux à par pour avec sans sur que qui se sa son ses plus moins comme dans ce cette il "
    "elle on peut peuvent y d' l' n' s' c' j' qu' entre depuis tous toutes",
    # Without a bank.
    "it": "il lo la i gli le un uno una di del della dei delle è sono era erano fu non e o in nel "
    "nella al alla a per con senza su che si suo sua più meno come ha hanno può l' d' da dal dalla",
    "pt": "o a os as um uma de do da dos das é são está estão era foi foram não e ou em no na nos "
    "nas ao à por para com sem sobre que se seu sua mais menos como tem têm pode entre",
    "nl": "de het een van is zijn was waren wordt worden werd heeft hebben niet geen en of in op "
    "aan uit bij met naar door voor over onder als dan dat die er ook meer kan kunnen te tot ligt",
    "sv": "en ett den det de är var har hade inte och eller i på av för med till från om som att "
    "kan er og ikke af til på et med det den der som har blev",
    "pl": "jest są był była było nie i w we z ze na do od po za o przez dla jako że się to ma może",
    "tr": "bir ve bu ile için değil daha çok en olarak gibi da de ki ne",
    "id": "adalah yang dan di ke dari untuk tidak dengan pada ini itu dalam lebih akan oleh",
    "la": "est sunt et in non ad per cum sed quod qui ex ab",
}
_LETTERS: Final = {
    "de": "äöüß",
    "es": "ñ¿¡",
    "fr": "çœêâîûëï",
    "it": "ìò",
    "pt": "ãõçâê",
    "sv": "åøäö",
    "pl": "ąęłśźżćń",
    "tr": "ışğöüç",
    "nl": "ë",
}
"""Letters that tell a language from most of its neighbours; having any of them counts as a word."""
_WORDS: Final = {code: frozenset(text.split()) for code, text in _COMMON.items()}
_WORD: Final = re.compile(r"\b(?:[cdjlns]|qu)'|[^\W\d_]+")
"""A French article has its apostrophe; what follows one in English ("Yale's") is no word."""
_HAN: Final = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002fa1f]")
_KANA_OR_HANGUL: Final = re.compile("[\u3041-\u30fa\u1100-\u11ff\uac00-\ud7a3]")
_HAS_BANK: Final = frozenset({"en", "de", "es", "fr"})
_LEAST_SHARE: Final = 0.25
"""Of a claim's words that are common in its language, so that a name ("El Niño") isn't enough.
English, which is asked in anyway where it isn't clear, needs none."""


def recognise(claim: str) -> str | None:
    """Name a claim's language, `en`, `de`, `es`, `fr` or `zh`; None where it isn't clear."""
    text = claim.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    han = len(_HAN.findall(text))
    words = _WORD.findall(_HAN.sub(" ", text))
    # A character is about a word; names may stand among them in another script.
    if han and han >= len(words):
        return None if _KANA_OR_HANGUL.search(text) else "zh"
    counts = {code: sum(word in common for word in words) for code, common in _WORDS.items()}
    scores = Counter(counts)
    scores.update(code for code, own in _LETTERS.items() if any(letter in text for letter in own))
    (best, most), (_, second) = scores.most_common(2)
    if most == second or best not in _HAS_BANK:
        return None
    return best if best == "en" or counts[best] >= _LEAST_SHARE * len(words) else None
