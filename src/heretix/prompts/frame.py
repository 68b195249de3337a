"""The frame of the evidence lenses: a wording, with documents before it.

A lens changes what the model is shown, never how it is asked: the wordings are those of the bank
of raw priors, under the same indices. Mainstream and heterodox evidence share one clause, so that
nothing but the documents differs between them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import yaml

from heretix.core.canonical import sha256_hex
from heretix.core.errors import BankError
from heretix.prompts.bank import CLAIM, PARAPHRASE, Bank, Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ANSWER_SCHEMA",
    "Frame",
    "ShownItem",
    "free_nonce",
    "load_frame",
    "nonce_of",
    "render_in",
]


CLAUSE: Final = "{CLAUSE}"
EVIDENCE: Final = "{EVIDENCE}"

ANSWER_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "prob_true": {
            "type": "number",
            "description": "Probability, from 0 to 1, that the claim is true.",
        },
        "used": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Ids of the documents that mattered.",
        },
        "quotes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "text": {"type": "string"}},
                "required": ["id", "text"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["prob_true", "used", "quotes"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ShownItem:
    """A piece of evidence as the model sees it."""

    id: str
    """`E01`, `E02`, …: its place in the bundle, whatever place it is shown in."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around a wording."""

    version: str
    system: str
    user_template: str
    no_documents: str
    clauses: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """Of everything in it."""
        content = [
            self.version,
            self.system,
            self.user_template,
            self.no_documents,
            dict(sorted(self.clauses.items())),
        ]
        return sha256_hex(json.dumps(content, ensure_ascii=False).encode())


@cache
def load_frame(name: str = "lens_v1") -> Frame:
    """The packaged frame of this name."""
    file = resources.files(__package__) / "frames" / f"{name}.yaml"
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise BankError(f"`frame` {name!r} isn't packaged") from exc
    return Frame(**values)


def nonce_of(shown_sha256: str) -> str:
    """The code that marks the documents of a prompt; nobody can know it who writes one of them.

    It is made from the content of all of them, so that the same documents give the same prompts.
    """
    return sha256_hex(f"nonce|{shown_sha256}".encode())[:12]


def free_nonce(shown_sha256: str, texts: Iterable[str]) -> str:
    """The code for these documents: if one of them holds it after all, another is made."""
    held = list(texts)
    nonce = nonce_of(shown_sha256)
    while any(nonce in text for text in held):
        nonce = nonce_of(nonce)
    return nonce


def render_in(
    frame: Frame,
    bank: Bank,
    idx: int,
    claim: str,
    *,
    lens: str,
    items: Sequence[ShownItem],
    nonce: str,
    order: Sequence[str] | None = None,
) -> Prompt:
    """Wording `idx` with the documents before it, their order turned by one for each wording.

    Over as many wordings as there are documents, each document stands once in each place. `order`
    names the documents that are turned, where they aren't those shown: what is left of them keeps
    its order, and what was added stands last.
    """
    names = order or [item.id for item in items]
    shown = _documents(_turned(items, names, idx), nonce) if items else frame.no_documents
    before, _, after = bank.paraphrases[idx].partition(CLAIM)
    user = _filled(
        frame.user_template,
        {CLAUSE: frame.clauses[lens], EVIDENCE: shown, PARAPHRASE: f"{before}{claim}{after}"},
    )
    digest = sha256_hex(f"{frame.system}\n\n{user}".encode())
    return Prompt(idx, frame.system, user, digest)


def _documents(items: Sequence[ShownItem], nonce: str) -> str:
    return "\n\n".join(f"<<{item.id} {nonce}>>\n{item.text}\n<<END {nonce}>>" for item in items)


def _turned(items: Sequence[ShownItem], names: Sequence[str], idx: int) -> Sequence[ShownItem]:
    shift = idx % len(names)
    places = {name: place for place, name in enumerate([*names[shift:], *names[:shift]])}
    return sorted(items, key=lambda item: places.get(item.id, len(places)))


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Fill placeholders in one pass: what is filled in is never searched for more of them."""
    return re.sub(r"\{[A-Z]+\}", lambda match: values.get(match[0], match[0]), template)
