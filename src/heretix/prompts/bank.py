"""Prompts: banks of wordings of "is this true?", and the frame that shows documents before them.

A bank is part of a measurement's identity, so a mistake in one is refused when it is loaded,
with the file and the line, and never found out later in the samples. A lens changes what the model
is shown, never how it is asked: a frame puts documents before the wordings of a bank, under the
same indices.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from heretix.core.canonical import sha256_hex, sha256_json, sha256_text
from heretix.core.errors import BankError, PluginError
from heretix.core.plugins import Plugin, Registry
from heretix.core.yaml_lines import (
    Document,
    YamlFault,
    find_control_character,
    hint,
    list_names,
    load,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MIN_WORDINGS: Final = 4
"""Fewer say too little about how much the wording matters. Ours have 16."""
MAX_WORDINGS: Final = 999
"""Stems are sorted by an index of three digits."""
MAX_PARAPHRASE_CHARS: Final = 400
"""Longest wording, the claim not counted: a small model must cope with it."""
MAX_FRAME_CHARS: Final = 4_000
"""Longest `system` and `user_template`."""

CLAIM: Final = "{CLAIM}"
PARAPHRASE: Final = "{PARAPHRASE}"
CLAUSE: Final = "{CLAUSE}"
EVIDENCE: Final = "{EVIDENCE}"


@dataclass(frozen=True, slots=True)
class Bank:
    """A versioned set of wordings, as loaded."""

    version: str
    """The full version, e.g. `rpl_v1_2026-11-15`: what identities hold."""
    system: str
    user_template: str
    paraphrases: tuple[str, ...]
    source: str = field(compare=False)
    """Origin: a packaged bank's name, or a path. No part of what the bank is."""
    sha256: str
    """SHA-256 of everything in it, so that two texts under one version can be told apart."""
    plugin: Plugin | None = field(default=None, compare=False)
    """The plug-in that brings it; None for ours and for files."""

    @classmethod
    def of(
        cls,
        *,
        version: str,
        system: str,
        user_template: str,
        paraphrases: Sequence[str],
        source: str,
        plugin: Plugin | None = None,
    ) -> Bank:
        """A bank from its parts, which are trusted: a reader or a record vouches for them."""
        texts = tuple(paraphrases)
        content = {
            "version": version,
            "system": system,
            "user_template": user_template,
            "paraphrases": texts,
        }
        return cls(version, system, user_template, texts, source, sha256_json(content), plugin)

    @property
    def T_bank(self) -> int:
        """Count the wordings there are to choose from."""
        return len(self.paraphrases)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One wording with the claim filled in: exactly what is sent."""

    paraphrase_idx: int
    system: str
    user: str
    sha256: str
    """SHA-256 of system, a blank line, and user text."""


def render(bank: Bank, idx: int, claim: str) -> Prompt:
    """Fill `claim` into wording `idx`.

    The templates are cut at their placeholders and joined around the claim in one pass. The claim
    itself is never searched, so braces, or even a placeholder, inside it come through verbatim.
    """
    if not 0 <= idx < bank.T_bank:
        raise BankError(
            f"`paraphrase_idx` must be from 0 to {bank.T_bank - 1} in bank `{bank.version}`, "
            f"got {idx}"
        )
    head, _, tail = bank.user_template.partition(PARAPHRASE)
    before, _, after = bank.paraphrases[idx].partition(CLAIM)
    user = f"{head}{before}{claim}{after}{tail}"
    return Prompt(idx, bank.system, user, sha256_text(f"{bank.system}\n\n{user}"))


def _as_text(found: Any) -> str:
    """A registered bank as YAML: a text of several lines, or a file to read."""
    if isinstance(found, str) and "\n" in found:
        return found
    source = Path(found) if isinstance(found, str) else found
    if not hasattr(source, "read_text"):
        raise TypeError(f"a bank must be YAML text or the path of a file, got {found!r}")
    return str(source.read_text(encoding="utf-8-sig"))


_FOLDER: Final = resources.files(__package__) / "banks"
BANKS: Final = Registry(
    "banks",
    # A file is no `module:attribute`; the packaged names are those of the folder, sorted.
    {
        name.removesuffix(".yaml"): _FOLDER / name
        for name in sorted(entry.name for entry in _FOLDER.iterdir())
        if name.endswith(".yaml")
    },
    _as_text,
)
"""Banks by name: the packaged ones, and those of plug-ins."""


def load_bank(name: str) -> Bank:
    """The bank of this name (`rpl_v1`) or full version (`rpl_v1_2026-11-15`).

    Packaged ones are looked at first, then those of plug-ins.
    """
    if name in BANKS.builtin:
        return _load_registered(name)
    for names in (tuple(BANKS.builtin), tuple(BANKS.plugins())):
        if name in names:
            return _load_registered(name)
        for one in names:
            with contextlib.suppress(PluginError, BankError):
                if (bank := _load_registered(one)).version == name:
                    return bank
    known = [*BANKS.names(), *(_load_registered(packaged).version for packaged in BANKS.builtin)]
    raise BankError(
        f"`prompt_version` {name!r} names no packaged bank{hint(name, known)}; "
        f"packaged: {', '.join(BANKS.names())}. A bank of your own goes under `prompts_file`"
    )


def load_bank_file(path: str | Path) -> Bank:
    """Read a bank from a YAML file. It can't take a packaged bank's version for other text."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise BankError(f"`prompts_file` {path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise BankError(f"`prompts_file` {path} isn't UTF-8 text; save it as UTF-8") from exc
    return _refuse_taken_version(_read_bank(text, str(path)))


def _load_registered(name: str) -> Bank:
    return _read_registered(name, BANKS.plugin(name))


@cache
def _read_registered(name: str, plugin: Plugin | None) -> Bank:
    bank = _read_bank(BANKS.load(name), name, plugin)
    return bank if plugin is None else _refuse_taken_version(bank)


def _refuse_taken_version(bank: Bank) -> Bank:
    for name in BANKS.builtin:
        packaged = _load_registered(name)
        if packaged.version == bank.version and packaged.sha256 != bank.sha256:
            raise BankError(
                f"`{bank.source}` and the packaged bank `{name}` both have the version "
                f"`{bank.version}`, but their text differs; give the file a version of its own"
            )
    return bank


def _read_bank(text: str, source: str, plugin: Plugin | None = None) -> Bank:
    document, file = _read_yaml(_bank_file(), text, source)
    lines: dict[str, int] = {}
    for index, wording in enumerate(file.paraphrases):
        line = document.line_of(("paraphrases", index))
        folded = " ".join(wording.casefold().split())
        if lines.setdefault(folded, line) != line:
            raise BankError(
                f"`{source}` line {line}: `paraphrases[{index}]` is the same wording as the one on "
                f"line {lines[folded]}; each must differ"
            )
    return Bank.of(**dict(file), source=source, plugin=plugin)


def _read_yaml(kind: Any, text: str, source: str) -> tuple[Document, Any]:
    """Read a file as a `kind` of pydantic's. Every mistake is named, with the file and the line."""
    from pydantic import TypeAdapter, ValidationError

    from heretix.core.validation import find_faults

    known = [name for name in kind.__annotations__ if not name.startswith("_")]
    try:
        document = load(text)
        if not isinstance(document.values, dict):
            raise YamlFault(1, f"must hold the keys {list_names(known)}, and holds none")
        return document, TypeAdapter(kind).validate_python(document.values)
    except YamlFault as fault:
        raise BankError(fault.at(source)) from fault
    except ValidationError as exc:
        faults = [f"line {fault.line}: {fault}" for fault in find_faults(exc, document, (), known)]
        raise BankError(f"`{source}` {'; '.join(faults)}") from exc


@cache
def _bank_file() -> Any:
    """A bank's file, as pydantic checks it."""
    from pydantic import AfterValidator, BaseModel, ConfigDict

    class BankFile(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)

        version: Annotated[str, AfterValidator(_check_version)]
        system: Annotated[str, AfterValidator(_check_text)]
        user_template: Annotated[str, AfterValidator(partial(_check_text, paraphrases=1))]
        paraphrases: Annotated[
            list[Annotated[str, AfterValidator(_check_wording)]], AfterValidator(_check_number)
        ]

    return BankFile


def _check_version(text: str) -> str:
    # No '|': it separates the parts of an identity.
    if not re.fullmatch(r"[A-Za-z0-9._-]+", _check_text(text)):
        raise ValueError("must be letters, digits, '.', '_' and '-' only, e.g. rpl_v1_2026-11-15")
    return text


def _check_wording(text: str) -> str:
    wording = _check_text(text, claims=1).replace(CLAIM, "")
    if not wording.strip():
        raise ValueError(f"has no wording besides {CLAIM}")
    if len(wording) > MAX_PARAPHRASE_CHARS:
        raise ValueError(
            f"must have at most {MAX_PARAPHRASE_CHARS} characters besides {CLAIM}, "
            f"and has {len(wording)}"
        )
    return text


def _check_number(wordings: list[str]) -> list[str]:
    if not MIN_WORDINGS <= len(wordings) <= MAX_WORDINGS:
        raise ValueError(
            f"must hold from {MIN_WORDINGS} to {MAX_WORDINGS} texts, and holds {len(wordings)}"
        )
    return wordings


def _check_text(text: str, *, claims: int = 0, paraphrases: int = 0) -> str:
    if not text.strip():
        raise ValueError("is empty")
    # An escape ("\x07") can still bring in what the file itself doesn't show.
    if bad := find_control_character(text):
        raise ValueError(f"has a control character ({bad}); remove it")
    if len(text) > MAX_FRAME_CHARS:
        raise ValueError(f"must have at most {MAX_FRAME_CHARS:,} characters, and has {len(text):,}")
    for placeholder, wanted in ((CLAIM, claims), (PARAPHRASE, paraphrases)):
        if (got := text.count(placeholder)) != wanted:
            rule = "exactly once" if wanted else "nowhere"
            raise ValueError(f"must contain {placeholder} {rule}, and does {got} times")
    return text


QUOTE_CHARS: Final = 200
"""Longest quote of a document, as the frame says it to every model."""

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

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    id: str
    """`E01`, `E02`, …: its place in the bundle, whatever place it is shown in."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Frame around a wording."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    version: str
    system: str
    user_template: str
    no_documents: str
    clauses: dict[str, str]

    @property
    def sha256(self) -> str:
        """Hash of everything in it."""
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
        text = file.read_text(encoding="utf-8")
    except OSError as exc:
        raise BankError(f"`frame` {name!r} isn't packaged") from exc
    frame: Frame = _read_yaml(Frame, text, name)[1]
    return frame


def nonce_of(shown_sha256: str) -> str:
    """The code that marks the documents of a prompt; nobody can know it who writes one of them.

    It is made from the content of all of them, so that the same documents give the same prompts.
    """
    return sha256_hex(f"nonce|{shown_sha256}".encode())[:12]


def find_free_nonce(shown_sha256: str, texts: Iterable[str]) -> str:
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
    shown = frame.no_documents
    if items:
        names = order or [item.id for item in items]
        shift = idx % len(names)
        places = {name: place for place, name in enumerate([*names[shift:], *names[:shift]])}
        turned = sorted(items, key=lambda item: places.get(item.id, len(places)))
        marked = (f"<<{item.id} {nonce}>>\n{item.text}\n<<END {nonce}>>" for item in turned)
        shown = "\n\n".join(marked)
    before, _, after = bank.paraphrases[idx].partition(CLAIM)
    parts = {CLAUSE: frame.clauses[lens], EVIDENCE: shown, PARAPHRASE: f"{before}{claim}{after}"}
    # In one pass: what is filled in is never searched for more placeholders.
    user = re.sub(r"\{[A-Z]+\}", lambda found: parts.get(found[0], found[0]), frame.user_template)
    return Prompt(idx, frame.system, user, sha256_text(f"{frame.system}\n\n{user}"))
