"""Prompt banks: sixteen wordings of "is this true?", read from YAML, checked, and filled in.

A bank is part of a measurement's identity, so a mistake in one is refused when it is loaded,
with the file and the line, and never found out later in the samples.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from heretix.errors import BankError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BANK_SIZE",
    "MAX_PARAPHRASE_CHARS",
    "Bank",
    "Prompt",
    "load_bank",
    "load_bank_file",
    "packaged_banks",
    "render",
]

BANK_SIZE: Final = 16
"""Paraphrases in a bank. Rotation and pairing across lenses rest on this number."""
MAX_PARAPHRASE_CHARS: Final = 400
"""Longest wording, the claim not counted: a small model must cope with it."""
MAX_FRAME_CHARS: Final = 4_000
"""Longest `system` and `user_template`."""

CLAIM: Final = "{CLAIM}"
PARAPHRASE: Final = "{PARAPHRASE}"

_KEYS: Final = ("version", "system", "user_template", "paraphrases")
# No '|': it separates the parts of an identity.
_VERSION: Final = re.compile(r"[A-Za-z0-9._-]+")
# All control characters but tab and newline, and halves of surrogate pairs.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Bank:
    """A versioned set of wordings, as loaded."""

    version: str
    """The full version, e.g. `rpl_v1_2026-11-15`: what identities hold."""
    system: str
    user_template: str
    paraphrases: tuple[str, ...]
    source: str = field(compare=False)
    """Where it was read: a packaged bank's name, or a path. No part of what the bank is."""
    sha256: str
    """SHA-256 of everything in it, so that two texts under one version can be told apart."""

    @classmethod
    def of(
        cls,
        *,
        version: str,
        system: str,
        user_template: str,
        paraphrases: Sequence[str],
        source: str,
    ) -> Bank:
        """A bank from its parts, which are trusted: a reader or a record vouches for them."""
        texts = tuple(paraphrases)
        digest = _bank_sha256(version, system, user_template, texts)
        return cls(version, system, user_template, texts, source=source, sha256=digest)

    @property
    def T_bank(self) -> int:
        """How many wordings there are to choose from."""
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
    return Prompt(idx, bank.system, user, _sha256(f"{bank.system}\n\n{user}"))


def packaged_banks() -> tuple[str, ...]:
    """Names of the banks that come with Heretix, sorted."""
    folder = resources.files(__package__) / "banks"
    files = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def load_bank(name: str) -> Bank:
    """The packaged bank of this name (`rpl_v1`) or full version (`rpl_v1_2026-11-15`)."""
    names = packaged_banks()
    if name in names:
        return _packaged(name)
    banks = [_packaged(packaged) for packaged in names]
    for bank in banks:
        if bank.version == name:
            return bank
    known = [*names, *(bank.version for bank in banks)]
    raise BankError(
        f"`prompt_version` {name!r} names no packaged bank{_hint(name, known)}; "
        f"packaged: {', '.join(names)}. A bank of your own goes under `prompts_file`"
    )


def load_bank_file(path: str | Path) -> Bank:
    """Read a bank from a YAML file. It can't take a packaged bank's version for other text."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise BankError(f"`prompts_file` {path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise BankError(f"`prompts_file` {path} isn't UTF-8 text") from exc
    bank = _BankReader(text, str(path)).read()
    for name in packaged_banks():
        packaged = _packaged(name)
        if packaged.version == bank.version and packaged.sha256 != bank.sha256:
            raise BankError(
                f"`{path}` and the packaged bank `{name}` both have the version "
                f"`{bank.version}`, but their text differs; give the file a version of its own"
            )
    return bank


@cache
def _packaged(name: str) -> Bank:
    file = resources.files(__package__) / "banks" / f"{name}.yaml"
    return _BankReader(file.read_text(encoding="utf-8"), name).read()


class _BankReader:
    """Checks one file. YAML nodes are read rather than values, because nodes know their lines."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source

    def read(self) -> Bank:
        entries = self._entries(self._compose())
        version = self._version(entries["version"])
        system = self._frame("system", entries["system"])
        self._require_count(entries["system"], "system", system, {CLAIM: 0, PARAPHRASE: 0})
        user_template = self._frame("user_template", entries["user_template"])
        self._require_count(
            entries["user_template"], "user_template", user_template, {PARAPHRASE: 1, CLAIM: 0}
        )
        paraphrases = self._paraphrases(entries["paraphrases"])
        return Bank.of(
            version=version,
            system=system,
            user_template=user_template,
            paraphrases=paraphrases,
            source=self._source,
        )

    def _compose(self) -> yaml.Node | None:
        # YAML readers refuse control characters too, but don't all say on which line.
        for number, line in enumerate(self._text.split("\n"), start=1):
            bad = _control_character(line.removesuffix("\r"))
            if bad:
                raise self._error(number, f"has a control character ({bad}); remove it")
        try:
            root: yaml.Node | None = yaml.compose(self._text, Loader=_LOADER)
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            problem = exc.problem or exc.context or "a mistake"
            raise self._error(mark.line + 1 if mark else 1, f"isn't YAML: {problem}") from exc
        except yaml.YAMLError as exc:
            raise self._error(1, f"isn't YAML: {exc}") from exc
        return root

    def _entries(self, root: yaml.Node | None) -> dict[str, yaml.Node]:
        if not isinstance(root, yaml.MappingNode):
            raise self._error(
                _line(root) if root else 1, f"must hold the keys {_listed(_KEYS)}, and holds none"
            )
        entries: dict[str, yaml.Node] = {}
        for key, value in root.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            if name not in _KEYS:
                raise self._error(
                    _line(key), f"unknown key `{name}`{_hint(name, _KEYS)}; known: {_listed(_KEYS)}"
                )
            if name in entries:
                raise self._error(
                    _line(key), f"`{name}` stands here and on line {_line(entries[name])}; keep one"
                )
            entries[name] = value
        missing = [name for name in _KEYS if name not in entries]
        if missing:
            raise self._error(
                _line(root), f"{_listed(missing)} missing; a bank has {_listed(_KEYS)}"
            )
        return entries

    def _version(self, node: yaml.Node) -> str:
        version = self._string("version", node)
        if not _VERSION.fullmatch(version):
            raise self._error(
                _line(node),
                "`version` must be letters, digits, '.', '_' and '-' only, "
                f"e.g. rpl_v1_2026-11-15, got {version!r}",
            )
        return version

    def _frame(self, name: str, node: yaml.Node) -> str:
        text = self._string(name, node)
        if len(text) > MAX_FRAME_CHARS:
            raise self._error(
                _line(node),
                f"`{name}` must have at most {MAX_FRAME_CHARS:,} characters, got {len(text):,}",
            )
        return text

    def _paraphrases(self, node: yaml.Node) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(_line(node), f"`paraphrases` must be a list of {BANK_SIZE} texts")
        seen: dict[str, int] = {}
        texts: list[str] = []
        for index, item in enumerate(node.value):
            text = self._paraphrase(f"paraphrases[{index}]", item)
            folded = " ".join(text.casefold().split())
            if folded in seen:
                raise self._error(
                    _line(item),
                    f"`paraphrases[{index}]` is the same wording as the one on line "
                    f"{seen[folded]}; each must differ",
                )
            seen[folded] = _line(item)
            texts.append(text)
        if len(texts) != BANK_SIZE:
            raise self._error(
                _line(node), f"`paraphrases` must hold exactly {BANK_SIZE} texts, got {len(texts)}"
            )
        return tuple(texts)

    def _paraphrase(self, name: str, node: yaml.Node) -> str:
        text = self._string(name, node)
        self._require_count(node, name, text, {CLAIM: 1, PARAPHRASE: 0})
        wording = text.replace(CLAIM, "")
        if not wording.strip():
            raise self._error(_line(node), f"`{name}` has no wording besides {CLAIM}")
        if len(wording) > MAX_PARAPHRASE_CHARS:
            raise self._error(
                _line(node),
                f"`{name}` must have at most {MAX_PARAPHRASE_CHARS} characters besides {CLAIM}, "
                f"got {len(wording)}",
            )
        return text

    def _string(self, name: str, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag != _TEXT_TAG:
            got = node.value if isinstance(node, yaml.ScalarNode) else "a list or a mapping"
            raise self._error(_line(node), f"`{name}` must be text, got {got}; put it in quotes")
        text = str(node.value)
        if not text.strip():
            raise self._error(_line(node), f"`{name}` is empty")
        # An escape ("\x07") can still bring in what the file itself doesn't show.
        bad = _control_character(text)
        if bad:
            raise self._error(_line(node), f"`{name}` has a control character ({bad}); remove it")
        return text

    def _require_count(self, node: yaml.Node, name: str, text: str, counts: dict[str, int]) -> None:
        for placeholder, wanted in counts.items():
            got = text.count(placeholder)
            if got != wanted:
                rule = "exactly once" if wanted else "nowhere"
                raise self._error(
                    _line(node), f"`{name}` must contain {placeholder} {rule}, got it {got} times"
                )

    def _error(self, line: int, problem: str) -> BankError:
        return BankError(f"`{self._source}` line {line}: {problem}")


def _bank_sha256(
    version: str, system: str, user_template: str, paraphrases: tuple[str, ...]
) -> str:
    content = {
        "version": version,
        "system": system,
        "user_template": user_template,
        "paraphrases": paraphrases,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _sha256(canonical)


def _control_character(text: str) -> str | None:
    """The first character that nobody meant to send, by its code point."""
    found = _CONTROL.search(text)
    return f"U+{ord(found[0]):04X}" if found else None


def _hint(name: str, known: list[str] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f" (did you mean `{near[0]}`?)" if near else ""


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
