"""Untrusted text: a screen for instructions in it, and the plain form that a model is shown.

This is a screen and no guarantee. It knows common wordings, in English and a few in other
languages, also where they are spelt in letters that only look Latin; whoever wants past it will
get past it. What protects a measurement is the rest: marked items, a system line that quoted text
is never an instruction, and the canary that shows how far a planted instruction moves the model. A
document that only writes about such attacks is caught too.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from heretix.evidence.text.fold import fold_with_offsets


class InjectionKind(StrEnum):
    """Kind of attack that a passage looks like."""

    OVERRIDE = "override"  # Tells the reader to drop its instructions
    ROLE = "role"  # Mimics the marks between system, user and assistant
    ANSWER = "answer"  # Plants the answer, or the key that it is read from
    ADDRESS = "address"  # Speaks to a machine that reads it
    MARKER = "marker"  # Mimics the marks that items stand between
    HIDDEN = "hidden"  # Written in characters that nobody sees


@dataclass(frozen=True, slots=True)
class InjectionFlag:
    """A suspicious passage: `text[start:end]`."""

    kind: InjectionKind
    start: int
    end: int


def _search(cues: str, *parts: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """A pattern for lower case, tried only on texts that hold one of the words it can't do without.
    Most texts hold none, and looking for plain words is a hundred times as fast."""
    return tuple(cues.split(",")), re.compile("|".join(f"(?:{part})" for part in parts))


# Rules and guidelines are left out: medicine is full of people who ignore earlier ones.
_ORDERS: Final = r"(?:instruction|prompt|directive|direction|command)s?\b"
_MACHINE: Final = (
    r"(?:an? )?(?:ai|llm|gpt|a\.i\.|large language model|language model|chatbot"
    r"|ai (?:model|assistant|system|agent))s?\b"
)

# Looked for in folded text, so that wide letters, odd spaces and invisible characters don't help.
_FOLDED: Final = {
    InjectionKind.OVERRIDE: _search(
        "instruct,prompt,directi,command,above,consigne,anweisung,vorgabe,regel,instrucc,instruç,"
        "инструкци,указани,指令,指示,命令,提示",
        r"\b(?:ignore|disregard|forget|override|bypass|do not follow|don't follow|stop following)\b"
        r"[^.!?]{0,40}?\b(?:(?:previous|prior|above|earlier|preceding|foregoing|system)\b"
        rf"[^.!?]{{0,30}}?\b{_ORDERS}|(?:all|any|these|your) (?:(?:of )?(?:the|your) )?{_ORDERS})",
        r"\b(?:ignore|disregard|forget)\b[^.!?]{0,20}\b(?:everything|all of the|the text|rules?)\b"
        r"[^.!?]{0,10}\babove\b",
        r"\b(?:ignore|disregard)\b[^.!?]{0,10}\babove\b[^.!?]{0,20}\b(?:rules?|text|message)s?\b",
        r"\b(?:new|updated|real|actual) (?:system )?(?:instructions?|prompt)\s*:",
        r"\bignor(?:iere|ieren sie)\b[^.!?]{0,40}\b(?:anweisung|vorgabe|regel)",
        r"\bignor(?:e|ez|er)\b[^.!?]{0,30}\b(?:instructions|consignes)\b[^.!?]{0,20}\bpr[\u00e9e]c",
        r"\bignor(?:a|e|en|ar)\b[^.!?]{0,30}\binstru(?:cciones|ções)\b",
        r"\bигнорируй(?:те)?\b[^.!?]{0,40}\b(?:инструкци|указани)",
        r"(?:忽略|無視|无视|忽视|不要理会)[^\u3002.!?]{0,20}(?:指令|指示|命令|提示)",
        r"(?:指示|命令|指令)を(?:すべて|全て)?無視",
    ),
    InjectionKind.ROLE: _search(
        "<,[,##,begin",
        r"<\|[a-z_]{2,30}\|>",
        r"\[/?inst\]|<</?sys>>|\[/?system\]",
        r"</?(?:system|assistant|instructions?)(?: [^<>]{0,80})?>",
        r"#{2,}\s*(?:system|instructions?|assistant|response)\b\s*:?",
        r"\bbegin (?:system|admin|developer) (?:prompt|message|override)\b",
    ),
    InjectionKind.ANSWER: _search(
        "prob_true,{,answer,respond,reply,output,return,say,probability,likelihood,confidence",
        r"prob_true",
        r"\b(?:answer|respond|reply|output|return|say)(?:\s+(?:only|with|exactly|just|the|value"
        r"|number|probability|json))*\s*:?\s*[\"'{\[(]*(?:[01]?\.\d+|[01]\.0)(?![\d.]*\s*(?:%|per))",
        r"\b(?:set|rate|score|mark|report|give)\b[^.!?]{0,30}\b(?:probability|likelihood|confidence)\b"
        r"[^.!?]{0,20}\b(?:to|as|at|of)\s+(?:[01]?\.\d+|[01]\b|100\s*%|0\s*%)",
        r"\{\s*[\"'](?:probability|prob|answer|p)[\"']\s*:\s*[01]?(?:\.\d+)?",
    ),
    InjectionKind.ADDRESS: _search(
        ' ai,"ai,(ai,llm,gpt,a.i.,language model,chatbot,system prompt',
        rf"\bif you(?: are|'re) {_MACHINE}",
        rf"\b(?:dear|attention|note to|message (?:to|for)|hey),? (?:all |any |the )?{_MACHINE}",
        rf"{_MACHINE} (?:reading|processing|evaluating|summari[sz]ing|parsing) this",
        rf"\byou are (?:now )?{_MACHINE}[^.!?]{{0,60}}\b(?:must|should|will|have to)\b",
        r"\b(?:reveal|print|repeat|show)\b[^.!?]{0,20}\b(?:your|the) system prompt\b",
    ),
    InjectionKind.MARKER: _search("<<", r"<<\s*(?:e\d{1,3}|end)\b[^<>]{0,120}>>"),
}
# Cyrillic and Greek letters, and a few of phonetics, that pass for Latin ones. For the screen only:
# nothing that is shown, quoted or hashed is spelt anew.
_LOOKALIKES: Final = str.maketrans(
    "\u0430\u0441\u0501\u0435\u04bb\u0456\u0458\u043a\u04cf\u043c\u043f\u043e\u0440\u051b\u0455\u0442"
    "\u0475\u051d\u0445\u0443"
    "\u0410\u0412\u0421\u0500\u0415\u041d\u0406\u0408\u041a\u04c0\u041c\u041e\u0420\u051a\u0405\u0422"
    "\u0474\u051c\u0425\u0423"
    "\u03b1\u03b5\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c2\u03c4\u03c5\u03c7"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u0251\u0261\u0131\u026a\u029f\u0274\u0280",
    "acdehijklmnopqstvwxyABCDEHIJKIMOPQSTVWXYaenikvopctuxABEZHIKMNOPTYXagiilnr",
)
# Looked for in the text as it stands, where lines are still lines and the invisible is still there.
_VERBATIM: Final = {
    InjectionKind.ROLE: re.compile(
        r"^[ \t]*(?:system|assistant)[ \t]*:", re.IGNORECASE | re.MULTILINE
    ),
    InjectionKind.HIDDEN: re.compile(
        # Flags of regions are spelt in tags too, behind a black flag.
        "(?<!\U0001f3f4)(?<![\U000e0020-\U000e007e])[\U000e0020-\U000e007e]{2,}"
        "|[\u200b-\u200d\u2060-\u2064\ufeff]{8,}"
        "|[\u202a-\u202e\u2066-\u2069]{2,}"
    ),
}


def screen(text: str) -> tuple[InjectionFlag, ...]:
    """Suspicious passages in `text`, in order."""
    folded = fold_with_offsets(text)
    flags = {
        InjectionFlag(kind, match.start(), match.end())
        for kind, pattern in _VERBATIM.items()
        for match in pattern.finditer(_latinise(text))
    }
    # Both spellings: some orders are written in Cyrillic letters and meant so.
    for spelling in dict.fromkeys((folded.text, _latinise(folded.text))):
        lowered = _lower(spelling)
        padded = f" {lowered}"
        for kind, (cues, pattern) in _FOLDED.items():
            if any(cue in padded for cue in cues):
                for match in pattern.finditer(lowered):
                    if span := folded.span(match.start(), match.end(), covering=True):
                        flags.add(InjectionFlag(kind, span.start, span.end))
    return tuple(sorted(flags, key=lambda flag: (flag.start, flag.end, flag.kind)))


def _latinise(text: str) -> str:
    """Replace lookalikes one for one, so that places stay places."""
    return text if text.isascii() else text.translate(_LOOKALIKES)


def _lower(text: str) -> str:
    """`text` in lower case and of the same length, so that places stay places."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(char.lower() if len(char.lower()) == 1 else char for char in text)


_TAGS: Final = (
    "a abbr address article aside audio b blockquote body br button canvas caption center cite "
    "code col dd del details div dl dt em embed figcaption figure font footer form h1 h2 h3 h4 h5 "
    "h6 head header hr html i iframe img input ins label li link main mark meta nav noscript "
    "object ol option p picture pre q s script section select small source span strike strong "
    "style sub summary sup svg table tbody td template textarea tfoot th thead time title tr u ul "
    "var video wbr system assistant user instruction instructions"
)
# The rest of an address, without the full stop or comma of the sentence that it stands in.
_REST: Final = r"(?:[^\s<>\"')\]]*[^\s<>\"')\],.;:!?])?"
_ADDRESS: Final = rf"(?:[a-z][a-z0-9+.-]*://|www\.){_REST}"
_STRIPPED: Final = (
    (re.compile(r"<!--.*?(?:-->|$)", re.DOTALL), " "),
    (re.compile(r"<(script|style)\b.*?(?:</\1\s*>|$)", re.DOTALL | re.IGNORECASE), " "),
    (re.compile(rf"</?(?:{'|'.join(_TAGS.split())})\b[^<>]*>", re.IGNORECASE), " "),
    (re.compile(r"<\|[^<>|]*\|>|\[/?INST\]", re.IGNORECASE), " "),
    # Markdown: images, links, references, headings, emphasis, code.
    (re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+[\"'][^\"']*[\"'])?\)"), r"\1"),
    (re.compile(r"^[ \t]*\[[^\[\]]+\]:[ \t]*\S+.*$", re.MULTILINE), " "),
    (re.compile(r"^(?:[ \t]*#{1,6}[ \t]+)+", re.MULTILINE), ""),
    (re.compile(r"\*\*|__|`+"), ""),
    # Addresses last: taking marks away may have joined the parts of one.
    (re.compile(_ADDRESS, re.IGNORECASE), ""),
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b"), ""),
    (re.compile(rf"\b(?:[a-z0-9-]{{1,63}}\.){{1,8}}[a-z]{{2,24}}/{_REST}", re.IGNORECASE), ""),
    (re.compile(r"<{2,}"), "<"),
    (re.compile(r">{2,}"), ">"),
    (re.compile(r"\(\s*\)|\[\s*\]"), ""),
    (re.compile(r"\s+"), " "),
)
_UNSEEN: Final = re.compile(
    "[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u0084\u0086-\u009f\u00ad\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\U000e0000-\U000e0fff]"
)


def plain_text(text: str) -> str:
    """`text` as a model is shown it: one paragraph without markup, addresses and the invisible.
    Applied until nothing changes, so that taking one thing away can't put another together: the
    result never holds `http://`, `https://`, `www.` or the marks that items stand between."""
    plain = text
    while True:
        before = plain
        plain = _UNSEEN.sub("", html.unescape(plain))
        for pattern, replacement in _STRIPPED:
            plain = pattern.sub(replacement, plain)
        plain = plain.strip()
        if plain == before:
            return plain
